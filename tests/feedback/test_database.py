"""What a database can refuse, and that loops which must go on take all of it and nothing else."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, exc

from feedback.database import ANY_FAULT, UNAVAILABLE, open_database
from online_rl.config import Settings
from online_rl.service import supervisor
from online_rl.service.supervisor import Supervisor
from online_rl.tables import parts
from tests.postgres import PostgresServer

DOWN = (exc.OperationalError, exc.InterfaceError)
REFUSED = (exc.InternalError, exc.ProgrammingError, exc.IntegrityError, exc.DataError, exc.NotSupportedError)


def make_fault(kind: type[exc.DBAPIError]) -> exc.DBAPIError:
    return kind("SELECT 1", None, Exception("no"))


def test_a_database_that_is_down_is_unavailable_and_a_refusal_is_a_fault_too():
    for kind in DOWN:
        assert isinstance(make_fault(kind), UNAVAILABLE)
        assert isinstance(make_fault(kind), ANY_FAULT)
    assert isinstance(exc.TimeoutError("the pool is empty"), UNAVAILABLE)
    for kind in REFUSED:
        assert not isinstance(make_fault(kind), UNAVAILABLE)
        assert isinstance(make_fault(kind), ANY_FAULT)


@pytest.mark.parametrize("error", [exc.InvalidRequestError("x"), exc.ArgumentError("x"), KeyError("x"), OSError("x")])
def test_a_mistake_of_our_own_is_no_fault_of_the_database(error: Exception):
    assert not isinstance(error, ANY_FAULT)


def write(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.insert(parts).values(name="x", pid=1, state="running", detail="", heartbeat_at=0.0))


def test_a_sqlite_file_that_cannot_be_written_is_a_fault(tmp_path: Path):
    path = tmp_path / "test.db"
    parts.create(open_database(f"sqlite:///{path}"))
    engine = open_database(f"sqlite:///file:{path}?mode=ro&uri=true")
    with pytest.raises(ANY_FAULT):
        write(engine)


@pytest.mark.postgres
@pytest.mark.parametrize("refusal", ["a standby", "revoked rights"])
def test_a_postgresql_that_refuses_to_write_is_a_fault_though_it_is_there(postgres: PostgresServer, refusal: str):
    url = postgres.create_database("refusing_" + refusal.replace(" ", "_"))
    owner = open_database(url)
    parts.create(owner)
    if refusal == "a standby":
        engine = open_database(f"{url}{'&' if '?' in url else '?'}options=-c%20default_transaction_read_only%3Don")
    else:
        with owner.begin() as connection:
            connection.execute(sa.text("DROP ROLE IF EXISTS reader"))
            connection.execute(sa.text("CREATE ROLE reader"))
        engine = open_database(f"{url}{'&' if '?' in url else '?'}options=-c%20role%3Dreader")
    with pytest.raises(ANY_FAULT) as caught:
        write(engine)
    assert not isinstance(caught.value, UNAVAILABLE)
    engine.dispose()
    owner.dispose()


@pytest.mark.parametrize("kind", [*DOWN, *REFUSED])
def test_the_supervisor_goes_on_whatever_the_database_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[exc.DBAPIError]
):
    def refuse(*_: object) -> None:
        raise make_fault(kind)

    monkeypatch.setattr(supervisor, "beat", refuse)
    watching = Supervisor(Settings(data_dir=tmp_path), lambda _line: None)
    watching._engine = open_database("sqlite://")
    watching._beat()


def test_the_supervisor_does_not_hide_a_mistake_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(supervisor, "beat", fail)
    watching = Supervisor(Settings(data_dir=tmp_path), lambda _line: None)
    watching._engine = open_database("sqlite://")
    with pytest.raises(KeyError):
        watching._beat()
