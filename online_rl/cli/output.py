"""Printing: tables for people, JSON for programs."""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import typer


def print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, of_ids: bool = False) -> None:
    """`of_ids`: the first column is what other commands take, and never cut."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    headers = [Column(name, no_wrap=of_ids and place == 0) for place, name in enumerate(columns)]
    table = Table(*headers, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    Console(soft_wrap=not Console().is_terminal).print(table)


def ago(moment: float | None) -> str:
    """How long ago a Unix time was, in words."""
    if moment is None:
        return "never"
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def local_time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
