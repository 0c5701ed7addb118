"""Commands that change what is live and whether it learns, by the database, which the running parts watch."""

from typing import TYPE_CHECKING, Annotated

import typer

from online_rl.cli.errors import CommandError
from online_rl.cli.options import Assignments, DataDir, settings_from

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from online_rl.config import Settings
    from online_rl.registry import Registry

Reason = Annotated[str, typer.Option(help="Kept in the record.")]


def open_prepared(settings: "Settings") -> "Engine":
    """The database, once it is known to answer and to have this version's tables. Raises CommandError."""
    from pathlib import Path

    from feedback.database import check_database, open_database
    from online_rl.service import database

    engine = open_database(settings.database_url)
    if engine.dialect.name == "sqlite" and not Path(engine.url.database or "").exists():
        raise CommandError(f"there is no database {engine.url.database} yet; `online-rl up` makes it")
    check_database(engine)
    present, needed = database.current(engine), database.head()
    if present != needed:
        raise CommandError(f"the database is at revision {present}, {needed} is needed; run `online-rl db upgrade`")
    return engine


def open_registry(settings: "Settings") -> "Registry":
    from online_rl.registry import Registry

    return Registry(open_prepared(settings))


def promote(
    version: Annotated[int, typer.Argument(help="Policy version to make live.")],
    reason: Reason = "by the operator",
    data_dir: DataDir = None,
    assignments: Assignments = None,
) -> None:
    """Have a version answer from now on. It is proved on every replica before it is live."""
    from online_rl.dashboard.deliveries import RegistryDeliveries

    result = RegistryDeliveries(open_registry(settings_from(data_dir, assignments))).promote(version, reason)
    typer.echo(f"version {result.version} is {result.state}")


def rollback(
    to: Annotated[int | None, typer.Argument(help="Version to go back to; empty: the one before.")] = None,
    reason: Reason = "by the operator",
    data_dir: DataDir = None,
    assignments: Assignments = None,
) -> None:
    """Go back to a former version, and mark the live one as rolled back."""
    from online_rl.dashboard.deliveries import RegistryDeliveries

    result = RegistryDeliveries(open_registry(settings_from(data_dir, assignments))).roll_back(to, reason)
    typer.echo(f"version {result.version} is {result.state}")


def freeze(reason: Reason = "by the operator", data_dir: DataDir = None, assignments: Assignments = None) -> None:
    """Stop learning. Answers and feedback go on, and are kept for later."""
    open_registry(settings_from(data_dir, assignments)).set_frozen(True, reason)
    typer.echo("learning is frozen; `online-rl resume` goes on")


def resume(reason: Reason = "by the operator", data_dir: DataDir = None, assignments: Assignments = None) -> None:
    """Go on learning after a freeze."""
    open_registry(settings_from(data_dir, assignments)).set_frozen(False, reason)
    typer.echo("learning goes on")


COMMANDS = (promote, rollback, freeze, resume)
