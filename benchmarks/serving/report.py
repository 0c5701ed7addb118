"""The rows of the report, the marks that they must meet, and the table. Pure, but for the printing."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.papers.statistics import Interval
from benchmarks.serving.load import Workload
from benchmarks.serving.statistics import (
    Round,
    compare_first_tokens,
    compare_gaps,
    compare_throughput,
    find_gap_p99,
    overlap,
    pool,
)

Learning = Literal["idle", "training"]

MIN_RATIO = 0.95
MAX_ADDED_MS = 10.0
MAX_GAP = 1.10
"""Of the control's own ratio of gaps."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload. `control_…` is the plain server compared with itself; figures of streams are None where the
    answers came whole."""

    streams: int
    stream: bool
    learner: Learning
    rounds: int
    plain_tokens_per_second: float
    tokens_per_second: float
    throughput_ratio: float | None
    throughput_ratio_low: float | None
    throughput_ratio_high: float | None
    control_ratio: float | None
    control_ratio_low: float | None
    control_ratio_high: float | None
    plain_first_token_ms: float | None = None
    first_token_added_ms: float | None = None
    first_token_added_ms_low: float | None = None
    first_token_added_ms_high: float | None = None
    control_first_token_added_ms: float | None = None
    plain_gap_p99_ms: float | None = None
    gap_p99_ratio: float | None = None
    gap_p99_ratio_low: float | None = None
    gap_p99_ratio_high: float | None = None
    control_gap_p99_ratio: float | None = None
    control_gap_p99_ratio_low: float | None = None
    control_gap_p99_ratio_high: float | None = None
    failed: int = 0
    """Requests without a complete answer, of all sides."""
    background_cores: float = 0.0
    """What the whole of our service used while the plain server was under load."""
    updates: int = 0
    """Policy updates while our service was under load; an update is counted where it ends."""
    swaps: int = 0
    """Versions that became live meanwhile."""


def summarise(
    workload: Workload, learner: Learning, rounds: Sequence[Round], background_cores: float, updates: int, swaps: int
) -> Row:
    ours, control = compare_throughput(rounds, "ours"), compare_throughput(rounds, "control")
    values: dict[str, float | None] = {
        "plain_tokens_per_second": float(np.median([each["plain"].throughput for each in rounds])),
        "tokens_per_second": float(np.median([each["ours"].throughput for each in rounds])),
        **_spread("throughput_ratio", ours),
        **_spread("control_ratio", control),
    }
    if workload.stream:
        first = compare_first_tokens(rounds, "ours")
        plain_first = pool(rounds, "plain", lambda block: block.first_tokens)
        values |= {
            "plain_first_token_ms": 1000 * float(np.median(plain_first)),
            **_spread("first_token_added_ms", first),
            "control_first_token_added_ms": compare_first_tokens(rounds, "control").estimate,
            "plain_gap_p99_ms": 1000 * find_gap_p99(rounds, "plain"),
            **_spread("gap_p99_ratio", compare_gaps(rounds, "ours")),
            **_spread("control_gap_p99_ratio", compare_gaps(rounds, "control")),
        }
    return Row(
        streams=workload.streams,
        stream=workload.stream,
        learner=learner,
        rounds=len(rounds),
        failed=sum(len(block.failures) for each in rounds for block in each.values()),
        background_cores=round(background_cores, 3),
        updates=updates,
        swaps=swaps,
        **{name: None if value is None else round(value, 4) for name, value in values.items()},  # pyright: ignore[reportArgumentType]
    )


def _spread(name: str, interval: Interval) -> dict[str, float | None]:
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def find_misses(rows: Sequence[Row]) -> list[str]:
    """The marks that the rows with an idle learner miss, and failed requests of any row, each in a sentence."""
    misses: list[str] = []
    for row in rows:
        name = f"{row.streams} {'streamed' if row.stream else 'whole'}, {row.learner}"
        if row.failed:
            misses.append(f"{name}: {row.failed} requests failed")
        if row.learner != "idle":
            continue
        ours = Interval(row.throughput_ratio, row.throughput_ratio_low, row.throughput_ratio_high)
        control = Interval(row.control_ratio, row.control_ratio_low, row.control_ratio_high)
        if row.throughput_ratio is not None and row.throughput_ratio < MIN_RATIO and not overlap(ours, control):
            misses.append(
                f"{name}: throughput ratio {row.throughput_ratio:.3f}, below {MIN_RATIO} and outside the control's "
                f"interval ({control.low} to {control.high})"
            )
        if row.streams == 1 and row.first_token_added_ms is not None and row.first_token_added_ms > MAX_ADDED_MS:
            misses.append(f"{name}: {row.first_token_added_ms:.1f} ms added to the first token, not {MAX_ADDED_MS:.0f}")
        if row.gap_p99_ratio is not None and row.control_gap_p99_ratio is not None:
            bound = MAX_GAP * row.control_gap_p99_ratio
            if row.gap_p99_ratio > bound:
                misses.append(f"{name}: p99 of the gaps is {row.gap_p99_ratio:.2f} of plain's, more than {bound:.2f}")
    return misses


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


def print_rows(rows: Sequence[Row]) -> None:
    table = Table(
        "learner", "streams", "plain tok/s", "ours tok/s", "ratio", "control", "first token ms (plain)", "added ms",
        "gap p99 ms (plain)", "gap ratio", "control", "failed", "updates, swaps", "background cores",
        title="Our service against plain vLLM",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.learner,
            f"{row.streams} {'streamed' if row.stream else 'whole'}",
            f"{row.plain_tokens_per_second:.1f}",
            f"{row.tokens_per_second:.1f}",
            _text(row.throughput_ratio, row.throughput_ratio_low, row.throughput_ratio_high, 3),
            _text(row.control_ratio, row.control_ratio_low, row.control_ratio_high, 3),
            _text(row.plain_first_token_ms, None, None, 0),
            _text(row.first_token_added_ms, row.first_token_added_ms_low, row.first_token_added_ms_high, 1),
            _text(row.plain_gap_p99_ms, None, None, 0),
            _text(row.gap_p99_ratio, row.gap_p99_ratio_low, row.gap_p99_ratio_high, 2),
            _text(row.control_gap_p99_ratio, row.control_gap_p99_ratio_low, row.control_gap_p99_ratio_high, 2),
            str(row.failed),
            f"{row.updates}, {row.swaps}",
            f"{row.background_cores:.2f}",
        )
    Console(width=200).print(table)


def _text(value: float | None, low: float | None, high: float | None, digits: int) -> str:
    if value is None:
        return ""
    bounds = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{bounds}"
