"""The reports of several demo runs in one table and one figure.

::

    python -m benchmarks.demo_reports docs/results/full-*.json --figure docs/results/full.svg --json summary.json
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy import stats

from online_rl.demo.report import CURVE_STEP, RECOVERED, PhaseReport, Report

FIGURES = ("reward_first", "reward_last", "recovered_after", "quality_last")


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Mean and half the width of its Student-t interval; infinite for one value. Raises StatisticsError for none."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, math.inf
    quantile = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1))
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))


def phases_by_name(reports: Sequence[Report]) -> dict[str, list[PhaseReport]]:
    found: dict[str, list[PhaseReport]] = {}
    for report in reports:
        for phase in report.phases:
            found.setdefault(phase.name, []).append(phase)
    return found


def summarise(phases: Sequence[PhaseReport]) -> dict[str, Any]:
    """Mean and interval of each figure over the seeds; a taste that some seed never learned says in how many."""
    summary: dict[str, Any] = {"seeds": len(phases), "reached": sum(p.recovered_after is not None for p in phases)}
    for figure in FIGURES:
        values = [value for phase in phases if (value := getattr(phase, figure)) is not None]
        if values:
            mean, half = mean_interval(values)
            summary[figure] = {"mean": mean, "half_interval": half if math.isfinite(half) else None, "values": values}
    return summary


def print_tables(reports: Sequence[Report], summaries: dict[str, dict[str, Any]], console: Console) -> None:
    runs = Table(title="Runs")
    for column in (
        "seed",
        "commit",
        "minutes",
        "versions",
        "failed / requests",
        "mismatch",
        "KL to base",
        "shifts seen",
    ):
        runs.add_column(column, justify="right")
    for report in reports:
        runs.add_row(
            str(report.seed),
            report.commit,
            f"{report.seconds / 60:.1f}",
            str(report.versions_published),
            f"{report.failed_requests} / {report.requests}",
            "–" if report.mismatch_mean is None else f"{report.mismatch_mean:.1e}",
            "–" if report.kl_to_base is None else f"{report.kl_to_base:.2f}",
            str(report.drift_events),
        )
    console.print(runs)
    tastes = Table(title="Mean over the seeds ± half of the 95% interval (Student's t)")
    for column in ("taste", "seeds", "reached 0.7", *(figure.replace("_", " ") for figure in FIGURES)):
        tastes.add_column(column, justify="left" if column == "taste" else "right")
    for name, summary in summaries.items():
        cells = [describe(summary.get(figure)) for figure in FIGURES]
        tastes.add_row(name, str(summary["seeds"]), str(summary["reached"]), *cells)
    console.print(tastes)


def describe(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "–"
    half = figure["half_interval"]
    digits = 0 if figure["mean"] > 10 else 2
    return f"{figure['mean']:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def draw(reports: Sequence[Report], path: Path) -> None:
    """The rewards of each run over its trajectories, with the changes of taste. Raises ValueError without curves."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "demo"  # the same figures give the same file
    from matplotlib import pyplot

    if not any(phase.reward_curve for report in reports for phase in report.phases):
        raise ValueError("the reports hold no reward_curve: they were written by an older version")
    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    ends: list[tuple[int, str]] = []
    for report in reports:
        points, position, ends = [], 0, []
        for phase in report.phases:
            points += [(position + (index + 0.5) * CURVE_STEP, y) for index, y in enumerate(phase.reward_curve)]
            ends.append((position, phase.name))
            position += phase.trajectories
        axes.plot(*zip(*points, strict=True), label=f"seed {report.seed}", linewidth=1.4, alpha=0.85)
    for position, name in ends:
        axes.axvline(position, color="0.6", linewidth=0.8)
        axes.annotate(f"users like {name}", (position, 1.04), fontsize=8, annotation_clip=False)
    axes.axhline(RECOVERED, color="0.75", linewidth=0.8, linestyle="--")
    axes.set(xlabel="rated trajectories", ylabel=f"reward (mean of {CURVE_STEP})", ylim=(0, 1.02), xlim=(0, None))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, help="files that `online-rl demo --report` wrote")
    parser.add_argument("--figure", type=Path, help="draw the reward curves into this file (SVG or PNG)")
    parser.add_argument("--json", type=Path, help="write the summary here")
    chosen = parser.parse_args(arguments)
    reports = [Report.model_validate_json(path.read_text(encoding="utf-8")) for path in chosen.reports]
    reports.sort(key=lambda report: report.seed)
    summaries = {name: summarise(phases) for name, phases in phases_by_name(reports).items()}
    print_tables(reports, summaries, Console(width=120))
    if chosen.figure:
        draw(reports, chosen.figure)
    if chosen.json:
        chosen.json.write_text(json.dumps(summaries, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
