"""``online-rl replay``: have a topic read again."""

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from online_rl.cli.errors import CommandError
from online_rl.cli.options import AsJson, Assignments, DataDir, settings_from
from online_rl.cli.output import print_json

if TYPE_CHECKING:
    from sqlalchemy import Engine

LARGEST_OFFSET = 2**63 - 1
POLL_SECONDS = 0.5


def replay(
    start: Annotated[str, typer.Option("--from", metavar="TIME|OFFSET", help="E.g. 2026-05-01T12:00 or 1000.")],
    topic: Annotated[str, typer.Option(help="generations.v1 or trajectories.v1.")] = "generations.v1",
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the service to have done it.")] = 60.0,
    data_dir: DataDir = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Have the assembler (or learner) read its topic again from a time or offset. What was handled has no effect."""
    from feedback.replays import TOPICS, request_replay
    from online_rl.cli.operate import open_prepared

    if topic not in TOPICS:
        raise CommandError(f"--topic {topic}: nothing reads it here; give one of {', '.join(TOPICS)}")
    offset, moment = parse_start(start)
    engine = open_prepared(settings_from(data_dir, assignments))
    found = _wait(engine, request_replay(engine, topic, offset, moment, time.time()), wait)
    if as_json:
        print_json(found)
    elif found["finished_at"] is None:
        typer.echo(f"{topic} will be read again from {start}, as soon as the service runs and its reader comes to it")
    else:
        typer.echo(f"{topic} was read again from {start}: {found['messages']} messages")


def parse_start(text: str) -> tuple[int | None, float | None]:
    """(offset, None) or (None, Unix seconds). A time without zone is this machine's. Raises CommandError."""
    if text.isascii() and text.isdigit():
        if int(text) > LARGEST_OFFSET:
            raise CommandError(f"--from {text}: no offset is so large")
        return int(text), None
    try:
        return None, datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise CommandError(f"--from {text}: give an offset (1000) or a time (2026-05-01T12:00): {error}") from error


def _wait(engine: "Engine", replay_id: int, seconds: float) -> dict[str, Any]:
    from feedback.replays import read_replay

    deadline = time.monotonic() + seconds
    while True:
        found = read_replay(engine, replay_id)
        if found["finished_at"] is not None or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_SECONDS)


COMMANDS = (replay,)
