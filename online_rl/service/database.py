"""The database's schema: Alembic's migrations, run from code."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

import migrations


class SchemaTooNew(Exception):
    """The database was written by a newer version of the service."""


def alembic_config(engine: Engine | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["engine"] = engine
    return config


def current(engine: Engine) -> str | None:
    """The revision that the database is at; None: it is empty."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head() -> str:
    """The revision that this version of the service needs."""
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if revision is None:
        raise RuntimeError("the package migrations holds no revision; the installation is broken")
    return revision


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Raises SchemaTooNew where the database is at a revision that this version does not know."""
    known = {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    present = current(engine)
    if present is not None and present not in known:
        raise SchemaTooNew(
            f"the database is at revision {present}, which this version of online-rl does not know; "
            "install the version that wrote it, or use another database"
        )
    command.upgrade(alembic_config(engine), revision)


def downgrade(engine: Engine, revision: str) -> None:
    command.downgrade(alembic_config(engine), revision)
