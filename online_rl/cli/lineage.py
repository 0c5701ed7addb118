"""``online-rl lineage``: what made a version, and which versions learned from a trajectory, an answer or a user."""

from typing import TYPE_CHECKING, Annotated

import typer

from online_rl.cli.errors import CommandError
from online_rl.cli.options import AsJson, Assignments, DataDir, settings_from
from online_rl.cli.output import local_time, print_json, print_table

if TYPE_CHECKING:
    from online_rl.config import Settings
    from online_rl.dashboard.lineage_records import DataLineage, TrajectoryLineage, VersionLineage

SHOWN = 20


def lineage(
    version: Annotated[str | None, typer.Argument(help="Policy version, e.g. v12.", show_default=False)] = None,
    trajectory: Annotated[str | None, typer.Option(help="A trajectory's id.", show_default=False)] = None,
    user: Annotated[str | None, typer.Option(help="A user's id.", show_default=False)] = None,
    inference: Annotated[str | None, typer.Option(help="An answer's id.", show_default=False)] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Of a version: since the base model, not its parent.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Trajectories that are listed; what is counted is all.")] = 1000,
    data_dir: DataDir = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show what made a version: updates, trajectories, feedback, users; or which versions learned from something."""
    given = [one for one in (version, trajectory, user, inference) if one is not None]
    if len(given) != 1:
        raise CommandError("give one of: a version, --trajectory, --user, --inference")
    settings = settings_from(data_dir, assignments)
    if version is not None:
        made = _read_version(settings, parse_version(version), whole, limit)
        print_json(made.model_dump()) if as_json else _show_version(made)
        return
    found = _read_data(settings, trajectory, user, inference, limit)
    print_json(found.model_dump()) if as_json else _show_data(found)


def parse_version(text: str) -> int:
    """``v12`` and ``12``. Raises CommandError."""
    number = text.removeprefix("v")
    if not (number.isascii() and number.isdigit() and int(number) < 2**31):
        raise CommandError(f"VERSION {text}: name a policy version as v12 or 12; `online-rl versions` lists them")
    return int(number)


def _read_version(settings: "Settings", version: int, whole: bool, limit: int) -> "VersionLineage":
    from online_rl.cli.operate import open_prepared
    from online_rl.dashboard.lineage import read_version

    return read_version(open_prepared(settings), version, whole=whole, limit=limit)


def _read_data(
    settings: "Settings", trajectory: str | None, user: str | None, inference: str | None, limit: int
) -> "DataLineage":
    from online_rl.cli.operate import open_prepared
    from online_rl.dashboard import lineage as record
    from serving.schemas import bare_inference_id

    engine = open_prepared(settings)
    if trajectory is not None:
        return record.read_trajectory(engine, trajectory)
    if inference is not None:
        return record.read_inference(engine, bare_inference_id(inference))
    from online_rl.service.rights import UserRights

    return record.read_user(engine, UserRights(engine, settings).names(user or ""), limit)


def _show_version(made: "VersionLineage") -> None:
    if made.update is None:
        typer.echo(f"version {made.version} ({made.state}) was made by no update")
        return
    since = "the base model" if made.whole or made.parent is None else f"version {made.parent}"
    typer.echo(
        f"version {made.version} ({made.state}) holds the weights of update {made.update}. Since {since}: "
        f"{len(made.updates)} updates, {made.trajectory_count} trajectories"
    )
    typer.echo()
    print_table(
        ("update", "made", "trajectories"),
        ((one.update, local_time(one.created_at), one.trajectories) for one in made.updates[-SHOWN:]),
    )
    typer.echo()
    print_table(("user", "trajectories"), ((one.user_id or "-", one.trajectories) for one in made.users[:SHOWN]))
    typer.echo()
    _show_trajectories(made.trajectories, made.trajectory_count)


def _show_data(found: "DataLineage") -> None:
    _show_trajectories(found.trajectories, found.trajectory_count)
    typer.echo()
    if found.versions:
        first, last = found.versions[0], found.versions[-1]
        typer.echo(
            f"{len(found.versions)} versions learned from it, from version {first.version} ({first.state}) "
            f"to version {last.version} ({last.state})"
        )
    else:
        typer.echo("no version learned from it")


def _show_trajectories(found: "list[TrajectoryLineage]", count: int) -> None:
    print_table(
        ("trajectory", "user", "answers", "feedback", "reward", "fate"),
        (
            (
                one.trajectory_id,
                one.user_id or "-",
                len(one.inference_ids),
                len(one.feedback),
                "" if one.reward is None else f"{one.reward:g}",
                _fate(one),
            )
            for one in found[:SHOWN]
        ),
        of_ids=True,
    )
    if count > SHOWN:
        typer.echo(f"… {count - min(SHOWN, len(found))} more; --json lists them")


def _fate(one: "TrajectoryLineage") -> str:
    erased = ", erased" if one.erased_at is not None else ""
    if one.update is not None:
        return f"update {one.update}{erased}"
    return f"dropped: {one.dropped}{erased}" if one.dropped is not None else f"not yet{erased}"


COMMANDS = (lineage,)
