"""The commands that show, erase, put back and replay, on a database and a data folder as the service leaves them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import Result
from sqlalchemy import Engine
from typer.testing import CliRunner

from feedback.assembler import Assembler
from feedback.database import open_database
from feedback.inbox import Submission, store_feedback
from feedback.log_contract import Record
from feedback.schemas import FeedbackIn
from feedback.settings import FeedbackSettings
from feedback.tables import feedback, generations, outbox, replays, trajectories
from online_rl.cli.app import app
from online_rl.cli.erase import _list
from online_rl.cli.errors import CommandError
from online_rl.cli.letters import printable
from online_rl.cli.lineage import parse_version
from online_rl.cli.replay import parse_start
from online_rl.ledger import Ledger
from online_rl.registry import Registry
from online_rl.schemas import VersionState
from online_rl.service import database
from serving.inference_ids import load_or_create_secret
from tests.feedback.samples import as_record, make_generation

Command = Callable[..., Result]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Ann's answer and Bob's: hers trained in update 1 (version 1), his in update 2 (version 2, live)."""
    engine = open_database(f"sqlite:///{tmp_path / 'online_rl.db'}")
    database.upgrade(engine)
    assembler = Assembler(engine, FeedbackSettings(), secret=load_or_create_secret(tmp_path / "signing.key"))
    registry, ledger = Registry(engine), Ledger(engine)
    registry.ensure_base("base")
    for number, name in enumerate(("ann", "bob"), 1):
        assembler.store([as_record(make_generation(f"of-{name}", user_id=name, text="private", at=time.time()))])
        with engine.begin() as connection:
            said = FeedbackIn(inference_id=f"of-{name}", value=1, user=name, comment="private")
            store_feedback(connection, [Submission(said, 1.0, "anonymous")], time.time())
        assembler.join_new()
        with engine.connect() as connection:
            made = sa.select(trajectories.c.trajectory_id).where(trajectories.c.user_id == name)
            trajectory_id = connection.execute(made).scalar_one()
        ledger.record_update(number, number - 1, [trajectory_id], {}, time.time())
        registry.add_candidate(number, number - 1, f"v{number}", {"update": float(number)})
        registry.transition(number, VersionState.LIVE)
    assembler.store([Record("generations.v1", 0, 5, "k", b'{"a": "\x1b[31mred"}')])
    return engine


@pytest.fixture
def command(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "ONLINE_RL_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, **more: Any) -> Result:
        return CliRunner().invoke(app, [*arguments, "--data-dir", str(tmp_path)], **more)

    return run


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def rows(engine: Engine, table: sa.Table) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(table).order_by(table.primary_key.columns[0])))


def test_lineage_of_a_version(command: Command) -> None:
    found = json.loads(ok(command("lineage", "v2", "--json")))
    assert (found["update"], found["trajectory_count"]) == (2, 1)
    assert [user["user_id"] for user in found["users"]] == ["bob"]
    assert found["trajectories"][0]["inference_ids"] == ["of-bob"]
    assert json.loads(ok(command("lineage", "2", "--whole", "--json")))["trajectory_count"] == 2
    shown = ok(command("lineage", "v2"))
    assert "holds the weights of update 2" in shown
    assert "update 2" in shown.splitlines()[-1]
    assert found["trajectories"][0]["trajectory_id"] in shown
    assert "was made by no update" in ok(command("lineage", "v0"))


def test_lineage_of_data(command: Command, engine: Engine) -> None:
    trajectory = rows(engine, trajectories)[0].trajectory_id
    for arguments in (("--user", "ann"), ("--inference", "chatcmpl-of-ann"), ("--trajectory", trajectory)):
        found = json.loads(ok(command("lineage", *arguments, "--json")))
        assert [one["version"] for one in found["versions"]] == [1, 2]
    assert "2 versions learned from it, from version 1 (retired) to version 2 (live)" in ok(
        command("lineage", "--user", "ann")
    )
    for arguments in ((), ("v1", "--user", "ann"), ("v1x",), ("--user", "eve"), ("--trajectory", "t"), ("v9",)):
        assert command("lineage", *arguments).exit_code == 1, arguments


def test_erasing_asks_first(command: Command, engine: Engine) -> None:
    asked = command("erase", "--user", "ann", input="n\n")
    assert asked.exit_code == 1
    assert "1 answers and 1 feedback are stored of user ann" in asked.output
    assert rows(engine, generations)[0].erased_at is None


def test_erasing_says_what_went_and_who_learned_from_it(command: Command, engine: Engine) -> None:
    shown = ok(command("erase", "--user", "ann", "--yes"))
    assert "erased: 1 answers, 1 feedback, 1 trajectories" in shown
    assert "2 versions learned from the user: 1–2" in shown
    assert "`online-rl rollback 0`" in shown
    assert [row.token_ids == b"" for row in rows(engine, generations)] == [True, False]
    assert [row.comment for row in rows(engine, feedback)] == [None, "private"]
    again = json.loads(ok(command("erase", "--user", "ann", "--yes", "--json")))
    assert (again["answers"], again["unaffected"]) == (0, 0)
    assert [one["version"] for one in again["versions"]] == [1, 2]
    found = json.loads(ok(command("lineage", "--user", "ann", "--json")))
    assert found["trajectories"][0]["user_id"] == again["user_name"]


def test_erasing_a_user_nobody_knows_is_said_and_kept_for_what_is_on_its_way(command: Command) -> None:
    assert "no version learned from the user" in ok(command("erase", "--user", "eve", "--yes"))
    for user in ("", "a\0b"):
        assert command("erase", "--user", user, "--yes").exit_code == 1


def test_erasing_needs_the_key_that_names_are_made_with(command: Command, tmp_path: Path) -> None:
    (tmp_path / "signing.key").unlink()
    result = command("erase", "--user", "ann", "--yes")
    assert result.exit_code == 1
    assert "signing_key_file" in str(result.exception)


def test_dead_letters(command: Command, engine: Engine) -> None:
    (listed,) = json.loads(ok(command("dlq", "list", "--json")))
    name = listed["dead_letter_id"]
    assert "value" not in listed
    assert name in ok(command("dlq", "list"))
    shown = ok(command("dlq", "show", name))
    assert "\\x1b[31mred" in shown
    assert "\x1b" not in shown
    whole = json.loads(ok(command("dlq", "show", name, "--json")))
    assert whole["value"] == '{"a": "\x1b[31mred"}'
    assert json.loads(ok(command("dlq", "retry", name, "--json"))) == {"put_back": [name]}
    assert "0 dead letters" in ok(command("dlq", "retry", name))
    assert [(row.topic, row.key) for row in rows(engine, outbox) if row.topic == "generations.v1"] == [
        ("generations.v1", name)
    ]
    assert json.loads(ok(command("dlq", "list", "--json"))) == []
    assert len(json.loads(ok(command("dlq", "list", "--all", "--json")))) == 1
    assert json.loads(ok(command("dlq", "retry", "--all", "--json"))) == {"put_back": []}
    for arguments in (("show", "dl_none"), ("retry", "dl_none"), ("retry",), ("retry", name, "--all")):
        assert command("dlq", *arguments).exit_code == 1


def test_replay_is_asked_for_in_the_database(command: Command, engine: Engine) -> None:
    assert "as soon as the service runs" in ok(command("replay", "--from", "3", "--wait", "0"))
    moment = "2026-05-01T12:00:00+00:00"
    found = json.loads(ok(command("replay", "--from", moment, "--topic", "trajectories.v1", "--wait", "0", "--json")))
    assert (found["topic"], found["from_offset"], found["from_time"]) == ("trajectories.v1", None, 1777636800.0)
    assert [row.from_offset for row in rows(engine, replays)] == [3, None]
    for arguments in (("--from", "soon"), ("--from", "1", "--topic", "feedback.v1"), ("--from", str(2**64))):
        assert command("replay", *arguments, "--wait", "0").exit_code == 1


def test_quarantine(command: Command, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.update(feedback).where(feedback.c.user_id == "bob").values(status="quarantined"))
    (listed,) = json.loads(ok(command("quarantine", "list", "--json")))
    assert listed["feedback_id"] in ok(command("quarantine", "list"))
    assert "1 released" in ok(command("quarantine", "release", listed["feedback_id"]))
    assert "0 released" in ok(command("quarantine", "release", "--all"))
    assert command("quarantine", "release").exit_code == 1


def test_where_reading_begins() -> None:
    assert parse_start("17") == (17, None)
    assert parse_start("2026-05-01T12:00:00Z") == (None, 1777636800.0)
    assert parse_start("2026-05-01")[1] == pytest.approx(1777593600, abs=15 * 3600)
    for text in ("", "-1", "1.5", "yesterday", "٣"):
        with pytest.raises(CommandError):
            parse_start(text)


def test_names_of_versions() -> None:
    assert (parse_version("v12"), parse_version("12")) == (12, 12)
    for text in ("", "v", "vv1", "-1", "v1.5", str(2**31)):
        with pytest.raises(CommandError):
            parse_version(text)
    assert _list([3, 5, 6, 7, 9]) == "3, 5–7, 9"


def test_what_a_terminal_would_obey_is_shown_only() -> None:
    assert printable(b"a\x1b[2J\xff\nb") == "a\\x1b[2J\\xff\nb"
