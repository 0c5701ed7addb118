"""Erasing a user on both databases: content gone from record and log, ids left, nothing trains on it afterwards."""

import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from feedback import assembler as assembler_module
from feedback.assembler import Assembler
from feedback.dead_letters import CannotRetry, retry
from feedback.erasure import Erased, Eraser
from feedback.inbox import Submission, store_feedback
from feedback.log_contract import Record
from feedback.lookup import find_inference
from feedback.outbox import OutboxRelay
from feedback.schemas import FeedbackIn
from feedback.settings import FeedbackSettings
from feedback.tables import dead_letters, erasures, feedback, generations, outbox, trajectories
from feedback.tombstones import hash_sequence, name_erased
from online_rl.ledger import Ledger, stop_training
from online_rl.tables import drops, trainings
from tests.fakes.log import FakeLog
from tests.feedback.samples import as_record, make_generation

SECRET = b"s" * 32
SETTINGS = FeedbackSettings(wait_seconds=100, episode_idle_seconds=300, orphan_seconds=50)
WORDS = "a very private matter"


class World:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = 2000.0
        self.log = FakeLog()
        self.ledger = Ledger(engine)
        self.assembler = Assembler(engine, SETTINGS, lambda: self.now, secret=SECRET)
        self.relay = OutboxRelay(engine, self.log, lambda ids: self.ledger.handled(list(ids)), lambda: self.now)

    def answer(self, name: str, user: str | None = "ann", at: float = 1990.0, **more: Any) -> Record:
        generation = make_generation(name, at=at, user_id=user, text=WORDS, tags={"note": WORDS}, **more)
        self.log.send("generations.v1", [(generation.key, generation.model_dump_json().encode())])
        record = as_record(generation)
        self.assembler.store([record])
        return record

    def rate(
        self, name: str | None, value: float = 1.0, user: str | None = "ann", owner: str = "anonymous", **more: Any
    ) -> str:
        item = FeedbackIn(inference_id=name, value=value, user=user, comment=WORDS, tags={"a": WORDS}, **more)
        with self.engine.begin() as connection:
            found = store_feedback(connection, [Submission(item, value, owner)], self.now)[0].feedback_id
        self.assembler.join_new()
        return found

    def erase(self, user: str = "ann", key: str = "") -> Erased:
        return Eraser(self.engine, SECRET, stop_training, lambda: self.now).erase(user, key)

    def rows(self, table: sa.Table) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(table).order_by(table.primary_key.columns[0])))

    def on_the_log(self, topic: str) -> dict[str | None, bytes | None]:
        """What a compacted topic holds: the newest value of each key."""
        self.relay.publish()
        return {record.key: record.value for record in self.log.records(topic)}

    def dropped(self) -> dict[str, str]:
        return {row.trajectory_id: row.reason for row in self.rows(drops)}


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def everything(engine: Engine) -> str:
    """All that SQL holds, packed columns included."""
    text = ""
    with engine.connect() as connection:
        for table in (generations, feedback, trajectories, outbox, dead_letters, erasures):
            for row in connection.execute(sa.select(table)):
                for cell in row:
                    unpacked = cell
                    if isinstance(cell, bytes) and cell[:1] == b"x":
                        unpacked = zlib.decompress(cell)
                    text += f"{unpacked!r}\n"
    return text


def test_content_goes_and_ids_stay(world: World) -> None:
    world.answer("mine")
    feedback_id = world.rate("mine")
    world.answer("theirs", "bob")
    world.rate("theirs", user="bob")
    found = world.erase()
    assert (found.answers, found.feedback, found.trajectories, found.kept_from_training) == (1, 1, 1, 1)
    mine, theirs = world.rows(generations)
    assert (mine.inference_id, mine.state, mine.trajectory_id is not None) == ("mine", "released", True)
    assert (mine.prompt_token_ids, mine.token_ids, mine.behavior_logprobs) == (b"", b"", b"")
    assert mine.user_id == name_erased("ann", SECRET)
    assert mine.erased_at == 2000.0
    assert theirs.erased_at is None
    said = world.rows(feedback)[0]
    assert (said.feedback_id, said.value, said.status) == (feedback_id, 1.0, "used")
    assert (said.comment, said.tags, said.user_id) == (None, {}, mine.user_id)
    made = world.rows(trajectories)[0]
    assert (made.event, made.user_id, made.reward) == (b"", mine.user_id, 1.0)
    held = everything(world.engine)
    assert "'ann'" not in held
    assert '"ann"' not in held
    assert held.count(WORDS) == 5  # what is left is the other user's: text, tag, comment, tag, and the event's tag
    record = find_inference(world.engine, "mine", "anonymous")
    assert record is not None
    assert (record.generations[0].erased_at, record.feedback[0].erased_at) == (2000.0, 2000.0)
    assert record.trajectories[0].erased_at == 2000.0


def test_the_file_of_the_database_does_not_hold_it_either(tmp_path: Path) -> None:
    from feedback import tables
    from feedback.database import open_database
    from online_rl.tables import metadata

    engine = open_database(f"sqlite:///{tmp_path / 'file.db'}")
    tables.metadata.create_all(engine)
    metadata.create_all(engine)
    world = World(engine)
    for number in range(30):
        world.answer(f"i{number}", answer=tuple(range(1, 2000)))
        world.rate(f"i{number}")
    world.erase()
    engine.dispose()
    for file in tmp_path.iterdir():
        assert WORDS.encode() not in file.read_bytes(), file


def test_again_finds_nothing_more_and_knows_what_it_erased(world: World) -> None:
    world.answer("a")
    world.rate("a")
    first = world.erase()
    again = world.erase()
    assert (again.answers, again.feedback, again.trajectories, again.kept_from_training) == (0, 0, 0, 0)
    assert again.sequences == first.sequences == {hash_sequence((1, 2, 3, 10, 11), SECRET)}
    assert len(world.rows(erasures)) == 1


def test_what_waits_for_feedback_is_dropped(world: World) -> None:
    world.answer("a")
    world.erase()
    (row,) = world.rows(generations)
    assert (row.state, row.drop_reason) == ("dropped", "erased")
    world.rate("a")
    assert [row.status for row in world.rows(feedback)] == ["unused"]
    assert world.rows(trajectories) == []


def test_a_conversation_goes_as_a_whole(world: World) -> None:
    """Its later prompts repeat its earlier turns, whoever asked them."""
    world.answer("one", "ann", 1980.0, prompt=(1,), answer=(7,), episode_id="e")
    world.answer("two", "bob", 1985.0, prompt=(1, 7, 2), answer=(8,), episode_id="e")
    world.rate(None, user="bob", episode_id="e")
    assert world.erase().answers == 2
    assert [bytes(row.prompt_token_ids) for row in world.rows(generations)] == [b"", b""]
    assert [row.user_id for row in world.rows(generations)] == [name_erased("ann", SECRET), "bob"]
    assert [row.event for row in world.rows(trajectories)] == [b""]
    assert [row.comment for row in world.rows(feedback)] == [None]
    # Another key's episode of that name is another conversation.
    world.answer("other", "bob", 1980.0, episode_id="e", api_key_id="k2")
    assert world.erase().answers == 0


def test_what_others_said_about_the_answer_goes_and_what_the_user_said_about_others_does_not_count(
    world: World,
) -> None:
    world.answer("hers")
    world.rate("hers", user="bob")
    world.answer("his", "bob")
    used = world.rate("his", -1.0, user="ann")
    world.answer("waits", "bob", sampling=None)
    found = world.erase()
    assert (found.answers, found.feedback) == (1, 2)
    assert [(row.comment, row.tags) for row in world.rows(feedback)] == [(None, {})] * 2
    rated = next(row for row in world.rows(generations) if row.inference_id == "his")
    assert rated.erased_at is None
    # It is part of the reward of another's answer, which stays and does not train.
    assert world.dropped()[rated.trajectory_id] == "erased"
    assert next(row.status for row in world.rows(feedback) if row.feedback_id == used) == "used"


def test_feedback_that_was_not_used_yet_is_retracted(engine: Engine) -> None:
    from feedback.settings import MetricSettings

    world = World(engine)
    metrics = {"reward": MetricSettings(), "quality": MetricSettings()}
    world.assembler = Assembler(
        engine, SETTINGS.model_copy(update={"metrics": metrics}), lambda: world.now, secret=SECRET
    )
    world.answer("his", "bob")
    world.rate("his", -1.0, user="ann")
    world.erase()
    assert [(row.status, row.retracted_at) for row in world.rows(feedback)] == [("unused", 2000.0)]
    world.rate("his", 1.0, user="bob")
    world.rate("his", 1.0, user="bob", metric_name="quality")
    (made,) = world.rows(trajectories)
    assert made.metrics == {"reward": 1.0, "quality": 1.0}


def test_what_was_trained_on_stays_on_record_and_what_waits_does_not_train(world: World) -> None:
    for name in ("trained", "dropped", "waits"):
        world.answer(name)
        world.rate(name)
    ids = {row.inference_id: row.trajectory_id for row in world.rows(generations)}
    world.ledger.record_update(1, 0, [ids["trained"]], {}, 1.0)
    world.ledger.record_drops({ids["dropped"]: "stale"}, 1.0)
    assert world.erase().kept_from_training == 1
    assert world.dropped() == {ids["dropped"]: "stale", ids["waits"]: "erased"}
    assert world.ledger.handled(list(ids.values())) == set(ids.values())


def test_an_update_that_is_recorded_after_all_is_on_record_in_place_of_the_mark(world: World) -> None:
    """Its checkpoint was being written when the user was erased: the weights hold it, and that must be said."""
    world.answer("a")
    world.rate("a")
    (made,) = world.rows(trajectories)
    world.erase()
    world.ledger.record_update(7, 3, [made.trajectory_id], {}, 2.0)
    assert world.dropped() == {}
    assert [(row.trajectory_id, row.update) for row in world.rows(trainings)] == [(made.trajectory_id, 7)]


def test_every_message_is_followed_by_a_tombstone(world: World) -> None:
    world.answer("mine")
    said = world.rate("mine")
    (made,) = world.rows(trajectories)
    before = world.on_the_log("trajectories.v1")[made.trajectory_id]
    assert before is not None
    world.erase()
    for topic, key in (
        ("generations.v1", "mine/0/0/0"),
        ("trajectories.v1", made.trajectory_id),
        ("feedback.v1", said),
    ):
        held = world.on_the_log(topic)
        assert held[key] is None, topic
        assert WORDS not in repr(held)
    # Who reads the topics meets no message that says nothing.
    for topic in ("generations.v1", "trajectories.v1", "feedback.v1"):
        consumer = world.log.consumer(topic, group="g", offsets={})
        assert all(record.value for record in consumer.poll(100, 0.0))


def test_what_was_not_published_yet_is_never_published(world: World) -> None:
    world.answer("mine")
    world.rate("mine")
    world.erase()
    assert set(world.on_the_log("trajectories.v1").values()) == {None}
    assert all(record.value is None for record in world.log.records("trajectories.v1"))


def test_an_emptied_log_gets_nothing_of_it_again(world: World) -> None:
    world.answer("mine")
    world.rate("mine")
    world.relay.publish()
    world.relay.refill()
    world.erase()
    world.log.stop()
    world.log.start_empty()
    world.relay.refill()
    assert all(value is None for value in world.on_the_log("trajectories.v1").values())


def test_the_same_answer_again_is_not_stored_again_and_gets_another_tombstone(world: World) -> None:
    """As after the broker died: the replica sends its last minutes once more."""
    record = world.answer("mine")
    world.rate("mine")
    world.erase()
    world.on_the_log("generations.v1")
    world.log.send("generations.v1", [(str(record.key), record.value)])
    assert world.assembler.store([record]) == 0
    assert world.on_the_log("generations.v1")["mine/0/0/0"] is None
    assert [row.token_ids for row in world.rows(generations)] == [b""]


def test_an_answer_that_arrives_after_its_erasure_is_a_tombstone_from_the_start(world: World) -> None:
    world.rate("late")
    world.erase()
    world.answer("late", at=1999.0)
    (row,) = world.rows(generations)
    assert (row.state, row.drop_reason, row.token_ids, row.user_id) == (
        "dropped", "erased", b"", name_erased("ann", SECRET),
    )  # fmt: skip
    assert WORDS not in repr(row)
    assert world.on_the_log("generations.v1")["late/0/0/0"] is None
    assert world.rows(trajectories) == []


def test_a_late_turn_of_an_erased_conversation_is_a_tombstone_too(world: World) -> None:
    world.answer("one", "ann", 1980.0, episode_id="e")
    world.erase()
    world.answer("two", None, 1985.0, prompt=(1, 2, 3, 10, 11, 4), episode_id="e")
    assert [row.erased_at for row in world.rows(generations)] == [2000.0, 2000.0]


def test_who_comes_back_is_served_and_learned_from_as_ever(world: World) -> None:
    world.answer("before", episode_id="e")
    world.erase()
    world.now = 2100.0
    world.answer("late", at=1999.0, episode_id="e")
    world.answer("after", at=2050.0, episode_id="e")
    world.rate("after")
    held = {row.inference_id: row for row in world.rows(generations)}
    assert [held[name].erased_at for name in ("before", "late", "after")] == [2000.0, 2000.0, None]
    assert held["after"].state == "released"
    assert held["after"].user_id == "ann"
    assert world.erase().answers == 1


def test_of_one_key_only(world: World) -> None:
    world.answer("a", api_key_id="k1")
    world.answer("b", api_key_id="k2")
    world.rate("a", owner="k1")
    world.rate("b", owner="k2")
    world.rate("b", owner="token:b")
    assert world.erase(key="k1").answers == 1
    assert {row.inference_id: row.erased_at for row in world.rows(generations)} == {"a": 2000.0, "b": None}
    assert [row.erased_at for row in world.rows(feedback)] == [2000.0, None, None]
    assert world.erase(key="k2").feedback == 2


def test_dead_letters_that_name_the_user_are_emptied(world: World) -> None:
    messages = [b'{"user_id":"ann","text":"private"}', b'{"user_id":"annette"}', b"\xff"]
    world.assembler.store([Record("generations.v1", 0, at, None, value) for at, value in enumerate(messages)])
    world.now = 2100.0
    assert world.erase().dead_letters == 1
    held = {row.offset: row for row in world.rows(dead_letters)}
    assert [bytes(held[at].value) for at in range(3)] == [b"", messages[1], messages[2]]
    assert world.on_the_log("generations.v1.dlq")[held[0].dead_letter_id] is None
    with pytest.raises(CannotRetry, match="erased"):
        retry(world.engine, [held[0].dead_letter_id])


def test_the_same_feedback_sent_again_by_a_client_that_retries_is_told_that_it_was_stored(world: World) -> None:
    world.answer("a")
    first = world.rate("a", idempotency_key="k")
    world.erase()
    assert world.rate("a", idempotency_key="k") == first
    assert len(world.rows(feedback)) == 1


def test_without_the_key_nobody_finds_out_whom_a_name_stands_for() -> None:
    assert name_erased("ann", SECRET) != name_erased("ann", b"t" * 32)
    assert "ann" not in name_erased("ann", SECRET)
    assert hash_sequence((1, 2), SECRET) != hash_sequence((1, 2), b"t" * 32)


def test_erasing_waits_for_a_release_and_then_finds_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what the assembler reads and what it writes: both databases must let one of the two wait."""
    world.answer("a")
    erased: list[Erased] = []
    thread = threading.Thread(target=lambda: erased.append(world.erase()))
    original = assembler_module.read_signals

    def read_then_wait(connection: sa.Connection, opened: Any, watch: Any) -> Any:
        found = original(connection, opened, watch)
        if not thread.is_alive() and not erased:
            thread.start()
            thread.join(0.5)
        return found

    monkeypatch.setattr(assembler_module, "read_signals", read_then_wait)
    world.rate("a")
    thread.join(30)
    assert (erased[0].answers, erased[0].trajectories, erased[0].kept_from_training) == (1, 1, 1)
    assert [row.event for row in world.rows(trajectories)] == [b""]
    assert [row.token_ids for row in world.rows(generations)] == [b""]


def test_an_answer_that_is_being_stored_is_not_missed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL a transaction that has not committed is not seen: erasing has to wait for it."""
    erased: list[Erased] = []
    thread = threading.Thread(target=lambda: erased.append(world.erase()))
    original = assembler_module.erase_late

    def look_then_wait(*arguments: Any) -> Any:
        found = original(*arguments)
        thread.start()
        thread.join(0.5)
        return found

    monkeypatch.setattr(assembler_module, "erase_late", look_then_wait)
    world.answer("a")
    thread.join(30)
    assert erased[0].answers == 1
    assert [row.token_ids for row in world.rows(generations)] == [b""]


def test_many_episodes_take_several_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedback.erasure.EPISODES", 2)
    monkeypatch.setattr("feedback.erasure.BATCH", 2)
    for number in range(5):
        world.answer(f"i{number}")
        world.answer(f"his{number}", "bob")
        world.rate(f"his{number}", user="ann")
    found = world.erase()
    assert (found.answers, found.feedback) == (5, 5)
