"""What the rows must meet, and the table. Pure, but for the printing."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

MAX_GROWTH = 0.02
SILENT_SHARE = 0.5
"""Where more of the tokens than this say nothing of their version, that none is untrue would prove little."""

Row = Mapping[str, Any]


def find_misses(rows: Sequence[Row]) -> list[str]:
    """The marks that the rows miss, each in a sentence."""
    misses: list[str] = []
    for row in rows:
        mode = row["mode"]
        for name, text in (
            ("failed", "requests failed"),
            ("hung", "requests hung"),
            ("wrong_version", "tokens or headers name another version than the one that spoke"),
            ("uncaptured", "answers were captured wrongly or not at all"),
        ):
            if row[name]:
                misses.append(f"{mode}: {row[name]} {text}")
        if row["rss_growth"] is not None and row["rss_growth"] >= MAX_GROWTH:
            misses.append(f"{mode}: resident memory grew by {row['rss_growth']:.1%}, not by less than {MAX_GROWTH:.0%}")
        tokens = row["tokens"]
        if tokens["silent"] > SILENT_SHARE * sum(tokens.values()):
            misses.append(f"{mode}: {tokens['silent']} of {sum(tokens.values())} tokens tell nothing of their version")
        distances = row["distances"]
        if distances is not None and distances["further"]:
            misses.append(
                f"{mode}: answers in flight are {distances['in_flight']:.4f} nats a token from an undisturbed run, the "
                f"control {distances['control']:.4f} (p = {distances['p']:.1g})"
            )
    return misses


def print_rows(rows: Sequence[Row]) -> None:
    table = Table(title="Swaps under steady streams")
    table.add_column("")
    for row in rows:
        table.add_column(row["mode"])
    lines: dict[str, list[str]] = {
        "swaps": [str(row["swaps"]) for row in rows],
        "requests, failed, hung": [f"{row['requests']}, {row['failed']}, {row['hung']}" for row in rows],
        "answers that span versions": [str(row["spanning"]) for row in rows],
        "tokens: telling, silent, untrue": [", ".join(map(str, row["tokens"].values())) for row in rows],
        "wrong versions, uncaptured": [f"{row['wrong_version']}, {row['uncaptured']}" for row in rows],
        "swap ms, median and p99": [f"{row['swap_ms_p50']:.0f}, {row['swap_ms_p99']:.0f}" for row in rows],
        "of it, median ms": [_join(row["stages_ms_p50"]) for row in rows],
        "assignment to report, median ms": [f"{row['delivery_ms_p50']:.0f}" for row in rows],
        "longest gap ms (no swap)": [
            f"{row['longest_gap_ms']:.0f} ({row['control_longest_gap_ms']:.0f})" for row in rows
        ],
        "p99 gap ms (no swap)": [f"{row['gap_p99_ms']:.0f} ({row['control_gap_p99_ms']:.0f})" for row in rows],
        "longest wait for a first token ms (no swap)": [
            f"{row['longest_first_token_ms']:.0f} ({row['control_longest_first_token_ms']:.0f})" for row in rows
        ],
        "resident MiB, growth": [f"{row['rss_mib']}, {_percent(row['rss_growth'])}" for row in rows],
        "nats a token from undisturbed: in flight, control": [_distances(row["distances"]) for row in rows],
    }
    for name, cells in lines.items():
        table.add_row(name, *cells)
    Console(width=140).print(table)


def _join(stages: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in stages.items())


def _percent(share: float | None) -> str:
    return "too few swaps" if share is None else f"{share:+.1%}"


def _distances(found: Mapping[str, Any] | None) -> str:
    return "" if found is None else f"{found['in_flight']:.5f}, {found['control']:.5f} (p {found['p']:.2g})"
