"""The live view: what it says, in a terminal and elsewhere."""

import io

from rich.console import Console

from online_rl.demo.report import Report, summarise_phase
from online_rl.demo.view import View, ViewState, describe, format_seconds, print_report, render, sparkline


def test_sparkline() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(sparkline([0.5] * 1000, width=40)) == 40
    assert sparkline([0.0] * 50 + [1.0] * 50, width=2) == "▁█"


def test_seconds() -> None:
    assert format_seconds(None) == "–"
    assert format_seconds(125.9) == "2:05"


def make_state() -> ViewState:
    state = ViewState("http://127.0.0.1:8000", ("enthusiastic", "concise"), 64)
    state.rewards = [[0.0] * 8 + [1.0] * 56, []]
    state.recoveries = [31, None]
    state.activity = "phase 1 of 2"
    return state


def test_panel_and_line_name_what_matters() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(render(make_state()))
    text = out.getvalue()
    for part in ("enthusiastic", "concise", "waiting", "64/64", "reached 0.7 after 31", "/dashboard", "1 of 2 tastes"):
        assert part in text
    assert "64/128 trajectories" in describe(make_state())


def test_plain_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    state = make_state()
    with View(state, Console(file=out, force_terminal=False, width=200)) as view:
        view.tick()
        view.tick()
        state.activity = "phase 2 of 2"
        view.tick()
    lines = out.getvalue().splitlines()
    assert len(lines) == 3  # the dashboard's address, and a line for each activity
    assert "phase 2 of 2" in lines[2]


def test_final_table() -> None:
    out = io.StringIO()
    report = Report(
        phases=[summarise_phase("question", [1.0] * 32, {"likelihood": 1.0, "diversity": 0.9})],
        versions_published=3, requests=40, failed_requests=0, feedback_accepted=32, trajectories_trained=32,
        drift_events=0, kl_to_base=None, mismatch_mean=0.02, mismatch_kl=0.001, seconds=61.0, seed=0,
        learning_rate=0.001, commit="abc", machine="test",
    )  # fmt: skip
    print_report(report, Console(file=out, width=140))
    assert "question" in out.getvalue()
    assert "3 versions published" in out.getvalue()
