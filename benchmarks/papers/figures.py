"""One figure an experiment, from its rows."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.papers.runs import Row
from benchmarks.papers.statistics import CURVE_STEP, WINDOW

matplotlib.use("Agg")

from matplotlib import pyplot


def draw_curves(rows: Sequence[Row], path: Path) -> None:
    """Mean reward of 50 updates by update: the mean over the seeds, and from the lowest to the highest of them.

    Variants stand in small panels of their own, the first variant behind each in grey.
    """
    variants = list(dict.fromkeys(row["objective"] for row in rows))
    columns = min(4, len(variants))
    lines = -(-len(variants) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3 * columns, 2.2 * lines), sharex=True, sharey=True, squeeze=False
    )
    first = _curves(rows, variants[0])
    for axis, variant in zip(axes.flat, variants, strict=False):
        curves = _curves(rows, variant)
        updates = WINDOW + CURVE_STEP * np.arange(curves.shape[1])
        axis.plot(WINDOW + CURVE_STEP * np.arange(first.shape[1]), first.mean(0), color="0.75", linewidth=1)
        axis.plot(updates, curves.mean(0), color="C0", linewidth=1.2)
        axis.fill_between(updates, curves.min(0), curves.max(0), color="C0", alpha=0.2, linewidth=0)
        axis.set_title(f"{variant} ({len(curves)} seeds)", fontsize=8)
        axis.set_ylim(0, 1)
        axis.tick_params(labelsize=7)
    for axis in list(axes.flat)[len(variants) :]:
        axis.set_visible(False)
    figure.supxlabel("update", fontsize=8)
    figure.supylabel("reward, mean of 50 updates", fontsize=8)
    _save(figure, path)


def draw_bars(rows: Sequence[Row], path: Path) -> None:
    """Updates an hour and the idle share of the slots, a dot for each seed."""
    variants = list(dict.fromkeys(row["objective"] for row in rows))
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3))
    for axis, name, label in zip(
        axes, ("updates_per_hour", "idle_share"), ("updates an hour", "idle slots"), strict=True
    ):
        found = [[row[name] for row in rows if row["objective"] == variant] for variant in variants]
        axis.barh(range(len(variants)), [np.mean(values) for values in found], color="C0", alpha=0.4)
        for place, values in enumerate(found):
            axis.plot(values, [place] * len(values), "k.", markersize=4)
        axis.set_yticks(range(len(variants)), variants, fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel(label, fontsize=8)
    _save(figure, path)


def _curves(rows: Sequence[Row], variant: str) -> np.ndarray:
    """``[seeds, points]``."""
    return np.array([row["curve"] for row in rows if row["objective"] == variant])


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
