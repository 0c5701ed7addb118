"""A whole demo run against the stub: report, resume, and what is refused."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from online_rl.config import load_settings
from online_rl.demo import runner, users
from online_rl.demo.options import HELD_OUT_ANSWERS, QUICK_HELD_OUT_ANSWERS, DemoError, DemoOptions
from online_rl.demo.progress import FILE, Progress, open_progress
from online_rl.demo.report import Report
from online_rl.demo.runner import DemoRun, choose_api_key
from online_rl.demo.topics import HELD_OUT_TOPICS
from tests.demo.stub_service import StubService

REPORT_KEYS = {
    "phases", "versions_published", "requests", "failed_requests", "feedback_accepted", "trajectories_trained",
    "drift_events", "kl_to_base", "mismatch_mean", "mismatch_kl", "seconds",
}  # fmt: skip
PHASE_KEYS = {
    "name", "trajectories", "reward_first", "reward_last", "quality_last", "quality_parts", "recovered_after",
}  # fmt: skip


HELD_OUT = HELD_OUT_ANSWERS * len(HELD_OUT_TOPICS)


class NoProcess:
    """Stands for the service's process: the stub serves already."""

    pid = 1
    stopped = False

    def start(self) -> None: ...

    async def wait_ready(self, is_ready: object, say: object) -> None: ...

    def check_alive(self) -> None: ...

    def stop(self) -> None:
        self.stopped = True


class FixedJudge:
    def judge(self, answers: list[object], base_answers: list[object]) -> dict[str, float]:
        assert len(answers) == len(base_answers) == HELD_OUT
        return {"likelihood": 0.9, "diversity": 0.85}


class SlowJudge:
    """An interrupted program must not wait for it."""

    def judge(self, answers: list[object], base_answers: list[object]) -> dict[str, float]:
        time.sleep(600)
        raise AssertionError("nobody waits for this")


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(users, "ASK_AGAIN_S", 0.01)


def make_run(options: DemoOptions, stub: StubService) -> DemoRun:
    options = replace(options, port=int(stub.url.rpartition(":")[2]))
    progress, resumed = open_progress(options)
    run = DemoRun(options, load_settings(), progress, resumed, started=0.0, console=Console(quiet=True))
    run.service = NoProcess()  # type: ignore[assignment]
    run.judge = FixedJudge()  # type: ignore[assignment]
    return run


def make_options(folder: Path, **changes: object) -> DemoOptions:
    values: dict[str, object] = {"per_phase": 32, "data_dir": folder / "data", "report": folder / "report.json"}
    return DemoOptions(**{**values, **changes})  # type: ignore[arg-type]


async def test_report_has_what_was_promised(tmp_path: Path) -> None:
    options = make_options(tmp_path, phases=("enthusiastic", "concise"), seed=3)
    stub = StubService()
    async with stub.serving():
        run = make_run(options, stub)
        report = await run.run()
    written = json.loads((tmp_path / "report.json").read_text())
    assert written == report.model_dump(mode="json")
    assert written.keys() >= REPORT_KEYS | {"seed", "commit", "machine"}
    assert [phase["name"] for phase in written["phases"]] == ["enthusiastic", "concise"]
    assert all(phase.keys() == PHASE_KEYS | {"reward_curve"} for phase in written["phases"])
    assert written["requests"] == 64 + 3 * HELD_OUT
    assert written["feedback_accepted"] == written["trajectories_trained"] == 64
    assert written["phases"][0]["quality_last"] == 0.85
    assert written["phases"][1]["reward_first"] == 1.0
    assert written["phases"][1]["recovered_after"] == 32
    assert written["failed_requests"] == 0
    assert len(stub.untrained) == 3 * HELD_OUT
    assert run.service.stopped  # type: ignore[attr-defined]


async def test_an_interrupted_run_goes_on_in_its_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = make_options(tmp_path, phases=("enthusiastic", "concise"))
    stub = StubService()
    async with stub.serving():
        first = make_run(options, stub)
        task = asyncio.create_task(first.run())
        while len(first.progress.rewards) < 2 or len(first.progress.rewards[1]) < 4:
            await asyncio.sleep(0.005)
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert first.service.stopped  # type: ignore[attr-defined]
        progress, resumed = open_progress(options)
        assert resumed
        assert len(progress.rewards[0]) == 32
        done = len(progress.rewards[1])
        assert 4 <= done < 32
        second = make_run(options, stub)
        report = await second.run()
    assert [phase.trajectories for phase in report.phases] == [32, 32]
    assert second.progress.rewards[1][:done] == progress.rewards[1]
    assert report.feedback_accepted >= 64
    assert stub.untrained.count(f"What do you think about {HELD_OUT_TOPICS[0]}?") == 6  # the base was not asked again


def test_only_the_same_unfinished_run_resumes(tmp_path: Path) -> None:
    options = make_options(tmp_path)
    progress, resumed = open_progress(options)
    assert not resumed
    options.folder.mkdir()
    progress.rewards = [[1.0]]
    progress.save(options.folder)
    assert open_progress(options) == (progress, True)
    other = make_options(tmp_path, learning_rate=0.0)
    assert open_progress(other)[1] is False
    assert not options.folder.exists()


def test_a_finished_run_starts_again(tmp_path: Path) -> None:
    options = make_options(tmp_path)
    options.folder.mkdir()
    progress, _ = open_progress(options)
    progress.finished = True
    progress.save(options.folder)
    assert open_progress(options)[1] is False


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    options = make_options(tmp_path)
    options.folder.mkdir()
    (options.folder / "online_rl.db").write_text("precious")
    with pytest.raises(DemoError, match="no demo made"):
        open_progress(options)
    assert (options.folder / "online_rl.db").read_text() == "precious"


async def test_another_runs_database_is_refused(tmp_path: Path) -> None:
    stub = StubService(version=5)
    async with stub.serving():
        run = make_run(make_options(tmp_path), stub)
        with pytest.raises(DemoError, match="another run's data"):
            await run.run()
    assert run.service.stopped  # type: ignore[attr-defined]


async def test_the_run_ends_when_the_service_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(self: NoProcess) -> None:
        if stub.feedback:
            raise DemoError("the service ended with exit code -9")

    monkeypatch.setattr(NoProcess, "check_alive", ended)
    stub = StubService(learning=False)
    async with stub.serving():
        with pytest.raises(DemoError, match="exit code -9"):
            await make_run(make_options(tmp_path, per_phase=64), stub).run()


def test_the_services_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = StubService(url="http://127.0.0.1:1")
    run = make_run(make_options(tmp_path, seed=7, learning_rate=0.0), stub)
    assert run._assignments() == ["learner.seed=7", "learner.learning_rate=0.0"]
    monkeypatch.setenv("ONLINE_RL_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9092")
    run = make_run(make_options(tmp_path), stub)
    assert run.progress.topic_prefix
    assert f'kafka.topic_prefix="{run.progress.topic_prefix}"' in run._assignments()


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"phases": ("cute",)}, "--phases"),
        ({"phases": ()}, "--phases"),
        ({"per_phase": 5}, "--per-phase"),
        ({"quick": True, "per_phase": 500}, "--per-phase"),
        ({"learning_rate": -1.0}, "--learning-rate"),
    ],
)
def test_bad_flags_are_named(changes: dict[str, object], flag: str) -> None:
    with pytest.raises(DemoError, match=flag):
        DemoOptions(**changes)  # type: ignore[arg-type]


def test_quick_is_one_short_phase() -> None:
    options = DemoOptions(quick=True)
    assert (options.held_out_answers, DemoOptions().held_out_answers) == (QUICK_HELD_OUT_ANSWERS, HELD_OUT_ANSWERS)
    assert options.phase_names == ("enthusiastic",)
    assert options.trajectories <= 192


def test_api_key() -> None:
    assert choose_api_key({}) is None
    assert choose_api_key({"a": ["inference"], "b": ["admin", "feedback", "inference"]}) == "b"
    with pytest.raises(DemoError, match="ONLINE_RL_API_KEYS"):
        choose_api_key({"a": ["inference"]})


def test_progress_survives_a_broken_file(tmp_path: Path) -> None:
    options = make_options(tmp_path)
    options.folder.mkdir()
    (options.folder / FILE).write_text('{"key": 1')
    progress, resumed = open_progress(options)
    assert not resumed
    assert progress == Progress(key=progress.key)


def test_every_committed_report_parses() -> None:
    folder = Path(runner.__file__).parents[2] / "docs" / "results"
    reports = [path for name in ("full", "quick", "control", "killed") for path in folder.glob(f"{name}-*.json")]
    assert reports
    for path in reports:
        Report.model_validate_json(path.read_text())


async def test_a_run_interrupted_while_judging_only_judges(tmp_path: Path) -> None:
    options = make_options(tmp_path, phases=("enthusiastic",))
    stub = StubService()
    async with stub.serving():
        first = make_run(options, stub)
        first.judge = SlowJudge()  # type: ignore[assignment]
        task = asyncio.create_task(first.run())
        while not first.progress.held_out:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        asked = len(stub.chats)
        report = await make_run(options, stub).run()
    assert len(stub.chats) == asked
    assert report.phases[0].trajectories == 32
