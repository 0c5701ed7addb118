"""One way to open the database, SQLite or PostgreSQL, with the same promises from both."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine, event, exc, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

T = TypeVar("T")

BUSY_SECONDS = 30.0
CONNECT_SECONDS = 5

IN_LIST = 500
"""Values in one IN list: a statement has a limited number of parameters, as few as 999 in some builds of SQLite."""

UNAVAILABLE = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError)
"""What SQLAlchemy raises when the database is down, locked for long, full or unreachable."""


ANY_FAULT = (*UNAVAILABLE, exc.DBAPIError)
"""Whatever a database can refuse, a read-only standby and revoked rights included: for loops that must go on anyway."""


class DatabaseUnavailable(Exception):
    """The database cannot be used; the message says which one and what to do."""


def open_database(url: str) -> Engine:
    """An engine for `url`. Nothing is connected yet; `check_database` does that.

    SQLite: write-ahead log, foreign keys on, every commit on disk, and every transaction takes the write lock when
    it begins, so that none fails half-way because another wrote meanwhile. What only reads should go through
    `read_only(engine)`, which takes no lock. PostgreSQL: psycopg, dead connections replaced.
    Raises DatabaseUnavailable where the folder of the SQLite file cannot be made.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(url)
    if parsed.drivername in {"postgres", "postgresql"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "postgresql":
        raise ValueError(f"database.url names {parsed.drivername}; give a sqlite:/// or postgresql:// URL")
    return create_engine(
        parsed, pool_pre_ping=True, pool_timeout=BUSY_SECONDS, connect_args={"connect_timeout": CONNECT_SECONDS}
    )


def read_only(engine: Engine) -> Engine:
    """The same engine and pool for reading: on SQLite its transactions take no write lock."""
    return engine.execution_options(online_rl_read_only=True)


def check_database(engine: Engine) -> None:
    """Raises DatabaseUnavailable, naming the database (without its password) and the remedy."""
    try:
        with read_only(engine).connect() as connection:
            connection.execute(text("SELECT 1"))
    except UNAVAILABLE as error:
        url = engine.url.render_as_string(hide_password=True)
        raise DatabaseUnavailable(
            f"cannot use the database {url}: {error.orig if isinstance(error, exc.DBAPIError) else error}. "
            "Is the server running, or the folder writable? Set database.url or DATABASE_URL."
        ) from error


def _open_sqlite(url: str) -> Engine:
    path = make_url(url).database
    if path and path != ":memory:":
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseUnavailable(f"cannot make the folder of the database {path}: {error}") from error
    # isolation_level None: the driver's own BEGIN would come too late for a lock taken at the start.
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "isolation_level": None})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: SqliteConnection, _record: Any) -> None:
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={int(BUSY_SECONDS * 1000)}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    read = connection.get_execution_options().get("online_rl_read_only", False)
    connection.exec_driver_sql("BEGIN" if read else "BEGIN IMMEDIATE")


def chunked(values: Iterable[T], size: int = IN_LIST) -> Iterator[list[T]]:
    """`values` in lists of at most `size`, in their order; nothing for none."""
    listed = list(values)
    for start in range(0, len(listed), size):
        yield listed[start : start + size]


def insert_ignoring(connection: Connection, table: Table, *columns: str) -> SqliteInsert | PostgresInsert:
    """An INSERT that leaves a row out where it exists already, by the unique `columns` or (none given) by any."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return make(table).on_conflict_do_nothing(index_elements=columns or None)
