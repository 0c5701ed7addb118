"""Alembic's entry: one connection, the three packages' tables, batch mode for SQLite."""

from alembic import context

import feedback.tables
import online_rl.tables
import serving.tables
from feedback.database import open_database

METADATA = [serving.tables.metadata, feedback.tables.metadata, online_rl.tables.metadata]


def run() -> None:
    engine = context.config.attributes.get("engine")
    if engine is None:
        from online_rl.config import load_settings

        engine = open_database(load_settings().database_url)
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=METADATA,
            render_as_batch=True,
            compare_type=True,
            transactional_ddl=True,
        )
        with context.begin_transaction():
            context.run_migrations()


run()
