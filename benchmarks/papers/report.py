"""The rows as tables for the terminal, one line a variant."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks.papers.runs import Row
from benchmarks.papers.statistics import Claim, find_interval


def tabulate_rows(rows: Sequence[Row], columns: Mapping[str, str], title: str) -> Table:
    """Numbers as mean ± half of the 95% interval over the seeds that have them; words counted."""
    table = Table(title=title, title_justify="left")
    table.add_column("variant")
    table.add_column("seeds", justify="right")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for variant in dict.fromkeys(row["objective"] for row in rows):
        chosen = [row for row in rows if row["objective"] == variant]
        cells = [describe_values([row.get(name) for row in chosen]) for name in columns]
        table.add_row(variant, str(len(chosen)), *cells)
    return table


def tabulate_claims(claims: Sequence[Claim]) -> Table:
    table = Table(title="Claims (held where the whole 95% interval is on the claimed side)", title_justify="left")
    for heading, justify in (("claim", "left"), ("held", "left"), ("estimate", "right"), ("95% interval", "right")):
        table.add_column(heading, justify=justify)  # pyright: ignore[reportArgumentType]
    for claim in claims:
        low, high = (None if bound is None else describe_number(bound) for bound in (claim.low, claim.high))
        interval = "too few seeds" if low is None else f"{low} … {high}"
        estimate = "–" if claim.estimate is None else describe_number(claim.estimate)
        table.add_row(claim.claim, describe_verdict(claim.held), estimate, interval)
    return table


def describe_verdict(held: bool | None) -> str:
    return {True: "yes", False: "no", None: "undecided"}[held]


def describe_values(values: Sequence[object]) -> str:
    """``0.93 ± 0.02`` of numbers, ``stable 4, collapsed 1`` of words, ``–`` where there is nothing."""
    words = [value for value in values if isinstance(value, str)]
    if words:
        return ", ".join(f"{word} {count}" for word, count in Counter(words).most_common())
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers:
        return "–"
    interval = find_interval(numbers)
    assert interval.estimate is not None
    text = describe_number(interval.estimate)
    if interval.high is not None:
        text += f" ± {describe_number(interval.high - interval.estimate)}"
    return text if len(numbers) == len(values) else f"{text} ({len(numbers)} of {len(values)})"


def describe_number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
