"""The live view of a running demo: a panel in a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from online_rl.demo.pacing import ServiceStatus
from online_rl.demo.report import WINDOW, Report, moving_average

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 48
LINE_SECONDS = 10.0
RATE_WINDOW = 64
"""Ratings that the remaining time is estimated from."""


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Values from 0 to 1 as bars, at most `width`, each the mean of its share of the values."""
    if not values:
        return ""
    cells = min(width, len(values))
    means: list[float] = []
    for cell in range(cells):
        start, end = cell * len(values) // cells, (cell + 1) * len(values) // cells
        means.append(sum(values[start:end]) / (end - start))
    return "".join(BARS[min(len(BARS) - 1, max(0, int(mean * len(BARS))))] for mean in means)


@dataclass
class ViewState:
    """What the view shows; the runner writes it."""

    url: str
    phases: tuple[str, ...]
    per_phase: int
    activity: str = "starting the service"
    phase: int = 0
    rewards: list[list[float]] = field(default_factory=list)
    recoveries: list[int | None] = field(default_factory=list)
    version: int = 0
    requests: int = 0
    failed_requests: int = 0
    outstanding: int = 0
    status: ServiceStatus = field(default_factory=ServiceStatus)
    started: float = field(default_factory=time.monotonic)
    rated_at: deque[float] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW))

    @property
    def done(self) -> int:
        return sum(map(len, self.rewards))

    @property
    def total(self) -> int:
        return self.per_phase * len(self.phases)

    @property
    def reward_now(self) -> float | None:
        current = self.rewards[-1] if self.rewards else []
        return moving_average(current)[-1] if current else None

    def remaining_seconds(self) -> float | None:
        """From the pace of the last ratings; None while there are too few."""
        if len(self.rated_at) < 8:
            return None
        span = time.monotonic() - self.rated_at[0]
        return (self.total - self.done) * span / len(self.rated_at)


def format_seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def describe(state: ViewState) -> str:
    """One line."""
    reward = "–" if state.reward_now is None else f"{state.reward_now:.2f}"
    return (
        f"[{format_seconds(time.monotonic() - state.started)}] {state.activity}: reward {reward}, "
        f"{state.done}/{state.total} trajectories, version {state.version}, "
        f"{state.status.trajectories_trained} trained, {state.failed_requests} failed requests, "
        f"left {format_seconds(state.remaining_seconds())}"
    )


def render(state: ViewState) -> Panel:
    """The panel of the terminal view."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for index, name in enumerate(state.phases):
        rewards = state.rewards[index] if index < len(state.rewards) else []
        averages = moving_average(rewards)
        if not rewards:
            table.add_row(f"{name}", Text("waiting", style="dim"))
            continue
        recovered = state.recoveries[index] if index < len(state.recoveries) else None
        note = f" reached 0.7 after {recovered}" if recovered else ""
        line = Text(f"{averages[-1]:.2f} ", style="bold")
        line.append(sparkline(averages), style="green" if recovered else "yellow")
        line.append(f" {len(rewards)}/{state.per_phase}{note}", style="dim")
        table.add_row(name, line)
    status = state.status
    table.add_row("version", f"{state.version} answering, {status.versions_published} published")
    table.add_row(
        "learner", f"{status.trajectories_trained} trained in {status.updates} updates, {state.outstanding} open"
    )
    table.add_row("requests", f"{state.requests}, {state.failed_requests} failed")
    recovered = sum(value is not None for value in state.recoveries)
    table.add_row("recoveries", f"{recovered} of {len(state.phases)} tastes learned, {status.drift_events} shifts seen")
    table.add_row(
        "time", f"{format_seconds(time.monotonic() - state.started)}, left {format_seconds(state.remaining_seconds())}"
    )
    table.add_row("dashboard", f"{state.url}/dashboard")
    return Panel(
        Group(Text(state.activity), table),
        title=f"online-rl demo · mean of the last {WINDOW} rewards",
        border_style="blue",
    )


class View:
    """Shows a `ViewState` as long as the block runs. `tick` it now and then; it decides what is worth a line."""

    def __init__(self, state: ViewState, console: Console | None = None) -> None:
        self.state = state
        self.console = console or Console()
        self._live = Live(get_renderable=lambda: render(state), console=self.console, refresh_per_second=2)
        self._line_at = 0.0
        self._activity = ""

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        else:
            self.console.print(f"dashboard (once ready): {self.state.url}/dashboard", highlight=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def tick(self) -> None:
        if self.console.is_terminal:
            return
        now = time.monotonic()
        if self.state.activity != self._activity or now - self._line_at >= LINE_SECONDS:
            self._activity, self._line_at = self.state.activity, now
            self.console.print(describe(self.state), highlight=False, soft_wrap=True)


def print_report(report: Report, console: Console) -> None:
    """The table at the end."""
    table = Table(title="What the users saw")
    for column in ("taste", "trajectories", "reward first 32", "last 32", "reached 0.7 after", "held-out quality"):
        table.add_column(column, justify="left" if column == "taste" else "right")
    for phase in report.phases:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in phase.quality_parts.items())
        table.add_row(
            phase.name,
            str(phase.trajectories),
            f"{phase.reward_first:.2f}",
            f"{phase.reward_last:.2f}",
            "not reached" if phase.recovered_after is None else str(phase.recovered_after),
            f"{phase.quality_last:.2f} ({parts})",
        )
    console.print(table)
    mismatch = "–" if report.mismatch_mean is None else f"{report.mismatch_mean:.3f}"
    kl = "–" if report.kl_to_base is None else f"{report.kl_to_base:.2f}"
    console.print(
        f"{report.versions_published} versions published, {report.requests} requests, {report.failed_requests} failed, "
        f"{report.feedback_accepted} ratings accepted, {report.trajectories_trained} trajectories trained, "
        f"{report.drift_events} shifts of taste seen, KL to base {kl}, mismatch {mismatch}, "
        f"{format_seconds(report.seconds)} minutes",
        highlight=False,
        soft_wrap=True,
    )
