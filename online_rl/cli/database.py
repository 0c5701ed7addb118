"""``online-rl db``: the schema of the database."""

from typing import TYPE_CHECKING, Annotated

import typer

from online_rl.cli.options import AsJson, Assignments, DataDir, settings_from
from online_rl.cli.output import print_json

if TYPE_CHECKING:
    from sqlalchemy import Engine

app = typer.Typer(help="The database's schema.", no_args_is_help=True)


def _open(data_dir: DataDir, assignments: Assignments) -> "Engine":
    from feedback.database import check_database, open_database

    engine = open_database(settings_from(data_dir, assignments).database_url)
    check_database(engine)
    return engine


@app.command()
def current(data_dir: DataDir = None, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Show the revision that the database is at, and the one that is needed."""
    from online_rl.service import database

    present, needed = database.current(_open(data_dir, assignments)), database.head()
    if as_json:
        print_json({"current": present, "needed": needed})
    else:
        typer.echo(f"current {present or '(empty)'}, needed {needed}")


@app.command()
def upgrade(data_dir: DataDir = None, assignments: Assignments = None) -> None:
    """Bring the database to the newest revision. `online-rl up` does it by itself."""
    from online_rl.service import database

    database.upgrade(_open(data_dir, assignments))
    typer.echo(f"the database is at revision {database.head()}")


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="Revision, -1 for one back, base for an empty database.")],
    data_dir: DataDir = None,
    assignments: Assignments = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: what the later tables hold is lost.")] = False,
) -> None:
    """Take the database back to an older revision. What the later tables hold is lost."""
    from online_rl.service import database

    if not yes:
        typer.confirm("What the later tables hold will be lost. Go on?", abort=True)
    database.downgrade(_open(data_dir, assignments), revision)
    typer.echo(f"the database is at revision {revision}")
