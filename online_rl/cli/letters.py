"""``online-rl dlq``: the messages that could not be handled."""

import base64
from typing import Annotated, Any

import typer

from online_rl.cli.errors import CommandError
from online_rl.cli.options import AsJson, Assignments, DataDir, settings_from
from online_rl.cli.output import local_time, print_json, print_table

app = typer.Typer(help="Messages that could not be handled: see them, and put them back.", no_args_is_help=True)


@app.command("list")
def list_letters(
    everything: Annotated[bool, typer.Option("--all", help="Those that were put back already, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 100,
    data_dir: DataDir = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters with their reasons, newest first, without what they hold."""
    from feedback.dead_letters import list_dead_letters
    from online_rl.cli.operate import open_prepared

    engine = open_prepared(settings_from(data_dir, assignments))
    found = list_dead_letters(engine, limit=limit, replayed=everything)
    if as_json:
        print_json(found)
        return
    print_table(
        ("dead letter", "came", "from", "reason", "put back"),
        (
            (
                row["dead_letter_id"],
                local_time(row["created_at"]),
                f"{row['topic']}/{row['partition']}@{row['offset']}",
                row["reason"],
                "" if row["replayed_at"] is None else local_time(row["replayed_at"]),
            )
            for row in found
        ),
        of_ids=True,
    )


@app.command()
def show(
    dead_letter: Annotated[str, typer.Argument(help="Its id, as `online-rl dlq list` shows it.")],
    data_dir: DataDir = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show one with what it holds, which may be what a user wrote."""
    from feedback.dead_letters import find_dead_letter
    from online_rl.cli.operate import open_prepared

    found = find_dead_letter(open_prepared(settings_from(data_dir, assignments)), dead_letter)
    if found is None:
        raise CommandError(f"there is no dead letter {dead_letter}; `online-rl dlq list --all` shows all")
    value = bytes(found.pop("value"))
    if as_json:
        print_json({**found, "value": value.decode(errors="replace"), "value_base64": base64.b64encode(value).decode()})
        return
    print_table(("", ""), ((name.replace("_", " "), _cell(name, cell)) for name, cell in found.items()))
    typer.echo(f"\n{len(value)} bytes:\n{printable(value)}")


@app.command()
def retry(
    dead_letters: Annotated[list[str] | None, typer.Argument(help="Ids.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that were not put back yet.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also those that were put back before.")] = False,
    data_dir: DataDir = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back on the topic they came from, once. What still cannot be handled is a new dead letter."""
    from feedback import dead_letters as letters
    from online_rl.cli.operate import open_prepared

    if bool(dead_letters) == everything:
        raise CommandError("name the dead letters to put back, or give --all")
    engine = open_prepared(settings_from(data_dir, assignments))
    sent = letters.retry(engine, dead_letters or letters.unretried(engine), again=again)
    if as_json:
        print_json({"put_back": sent})
        return
    left_out = len(set(dead_letters or [])) - len(sent) if dead_letters else 0
    also = f"; {left_out} were before, --again repeats it" if left_out else ""
    typer.echo(f"{len(sent)} dead letters go back on their topic as soon as the service runs{also}")


def printable(value: bytes) -> str:
    """Text without what a terminal would obey."""
    text = value.decode(errors="backslashreplace")
    return "".join(one if one.isprintable() or one == "\n" else f"\\x{ord(one):02x}" for one in text)


def _cell(name: str, value: Any) -> Any:
    return local_time(value) if name.endswith("_at") and value is not None else value
