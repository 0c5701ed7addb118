"""``online-rl erase``: what a user asked, got and said leaves the record."""

from typing import TYPE_CHECKING, Annotated

import typer

from online_rl.cli.options import AsJson, Assignments, DataDir, settings_from
from online_rl.cli.output import print_json

if TYPE_CHECKING:
    from online_rl.service.rights import ErasureReport


def erase(
    user: Annotated[str, typer.Option(help="The user's id, as in the requests' field `user`.")],
    key: Annotated[
        str, typer.Option(help="Only under this API key (its id, as `online-rl lineage --user` shows it); empty: all.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: what is erased cannot be brought back.")] = False,
    data_dir: DataDir = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Erase what a user asked, got and said, and name the versions that learned from it. It may be done again."""
    settings = settings_from(data_dir, assignments)
    from online_rl.cli.operate import open_prepared
    from online_rl.service.rights import UserRights

    rights = UserRights(open_prepared(settings), settings)
    answers, said = rights.count(user)
    if not yes:
        where = f" under API key {key}" if key else ""
        typer.confirm(
            f"{answers} answers and {said} feedback are stored of user {user}. Erase them{where} for ever?",
            abort=True,
            err=True,
        )
    report = rights.erase(user, key)
    if as_json:
        print_json(report.model_dump())
    else:
        _show(report)


def _show(report: "ErasureReport") -> None:
    typer.echo(
        f"erased: {report.answers} answers, {report.feedback} feedback, {report.trajectories} trajectories, "
        f"{report.dead_letters} dead letters, {report.probes} probes; {report.user_name} stands for the user now"
    )
    typer.echo(f"{report.kept_from_training} trajectories that waited for the learner will not train")
    if report.probes_kept:
        typer.echo(
            f"in use, and proved by the user's answers alone: {_list(report.probes_kept)}; "
            "erase again once another version is live"
        )
    if report.undeliverable:
        typer.echo(f"can be promoted no more, as nothing is left to prove them by: {_list(report.undeliverable)}")
    if not report.versions:
        typer.echo("no version learned from the user")
        return
    live = next((one.version for one in report.versions if one.state == "live"), None)
    typer.echo(f"{len(report.versions)} versions learned from the user: {_list([v.version for v in report.versions])}")
    if live is not None and report.unaffected is not None:
        typer.echo(
            f"version {live} is live and one of them; `online-rl rollback {report.unaffected}` goes back to the newest "
            "that is not. What the learner goes on from holds the user's share either way"
        )


def _list(versions: list[int]) -> str:
    """``3, 5–9``."""
    spans: list[list[int]] = []
    for number in sorted(versions):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in spans)


COMMANDS = (erase,)
