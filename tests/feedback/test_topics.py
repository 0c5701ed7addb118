"""What lies on the topics is what ``docs/asyncapi.json`` says: read by a client of other make, checked by another
implementation of JSON Schema, against the file that is in the repository."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

import online_rl.tables
from feedback import tables
from feedback.assembler_main import run_assembler
from feedback.database import open_database
from feedback.erasure import Eraser
from feedback.inbox import Submission, store_feedback
from feedback.kafka_log import KafkaLog
from feedback.log_contract import LogUnavailable, MessageTooLarge, Record
from feedback.lookup import retract_feedback
from feedback.schemas import FeedbackIn
from online_rl.config import Settings
from online_rl.learner import bury_message
from online_rl.ledger import stop_training
from serving.inference_ids import load_or_create_secret
from serving.schemas import GENERATIONS_TOPIC, Generation, Sampling, VersionSpan
from serving.spool import Spool
from tests.feedback.brokers import Broker
from tests.feedback.samples import make_generation
from tests.kcat import KcatMessage, require_kcat

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "asyncapi.json").read_text(encoding="utf-8"))
UNREADABLE = b'\xff\x00{"schema_version": 2}\n'
READABLE = ("generations.v1", "trajectories.v1", "feedback.v1")


def resolve(reference: str) -> Any:
    found = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def require_described(topic: str, message: KcatMessage) -> None:
    """Raises ValidationError or ValueError where `message` is not what the document says of `topic`."""
    (reference,) = DOCUMENT["channels"][topic]["messages"].values()
    described = resolve(reference["$ref"])
    assert message.key is not None
    jsonschema.validate(message.key.decode(), described["bindings"]["kafka"]["key"], jsonschema.Draft7Validator)
    if message.value is None or described["contentType"] != "application/json":
        return
    schema = described["payload"] | {"components": DOCUMENT["components"]}
    value = json.loads(message.value, parse_constant=refuse_constant)
    jsonschema.validate(value, schema, jsonschema.Draft7Validator)


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


@dataclass
class World:
    settings: Settings
    engine: Engine
    broker: Broker
    log: KafkaLog

    def answer(self, *answers: Generation) -> None:
        """As a replica does: by way of its spool."""
        spool = Spool(
            self.settings.data_dir / "spool",
            self.log,
            GENERATIONS_TOPIC,
            unavailable=LogUnavailable,
            too_large=MessageTooLarge,
        )
        spool.start()
        for one in answers:
            spool.put(one.key, one.model_dump_json().encode())
        assert spool.close(20)

    def rate(self, *items: FeedbackIn) -> list[str]:
        with self.engine.begin() as connection:
            submissions = [Submission(item, float(item.value), "anonymous") for item in items]
            return [outcome.feedback_id for outcome in store_feedback(connection, submissions, time.time())]

    def settle(self, answers: int) -> None:
        """Until so many answers are stored, and the assembler and its relay have nothing left to do."""
        left = {
            tables.outbox: tables.outbox.c.state == "waiting",
            tables.feedback: tables.feedback.c.status == "new",
        }
        deadline = time.monotonic() + 30
        while self.count(tables.generations) < answers or any(self.count(*one) for one in left.items()):
            assert time.monotonic() < deadline, "did not settle in time"
            time.sleep(0.05)

    def count(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        with self.engine.connect() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(table).where(*where)) or 0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    settings = Settings(data_dir=tmp_path)
    engine = open_database(settings.database_url)
    tables.metadata.create_all(engine)
    online_rl.tables.metadata.create_all(engine)
    with Broker() as broker:
        log = KafkaLog(broker.bootstrap_servers, client_id="test")
        stop = threading.Event()
        assembler = threading.Thread(target=run_assembler, args=(settings, broker.bootstrap_servers, stop))
        assembler.start()
        yield World(settings, engine, broker, log)
        stop.set()
        assembler.join(timeout=30)
        log.close()
    engine.dispose()


def some_answers() -> list[Generation]:
    """One of each kind that a replica captures."""
    now = time.time()
    spans = (VersionSpan(start=0, end=1, version=3), VersionSpan(start=1, end=2, version=4))
    choices = Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=16, seed=7, n=2)
    return [
        make_generation("plain", at=now),
        make_generation("told", at=now, user_id="zoë", tags={"plan": "prö"}, text="größer ✓", finish_reason="stop"),
        make_generation("choices", at=now, choice=0, sampling=choices, group_id="group"),
        make_generation("choices", at=now, choice=1, sampling=choices, group_id="group"),
        make_generation("swapped", at=now, spans=spans, first_token_at=now + 0.1, adapter="policy@v4"),
        make_generation("greedy", at=now, sampling=Sampling(temperature=0, structured=True), episode_id="talk"),
        make_generation("aborted", (1, 2), (), at=now, finish_reason="abort"),
        make_generation("private", at=now, trainable=False, untrainable_reason="x-train: false", client_request_id="r"),
        make_generation("erased", at=now, user_id="ann"),
    ]


@pytest.mark.kcat
def test_every_message_on_every_topic_is_as_it_is_described(world: World, tmp_path: Path) -> None:
    (tmp_path / "kcat").mkdir()
    kcat = require_kcat(tmp_path / "kcat")
    answers = some_answers()
    world.answer(*answers)
    world.log.send(GENERATIONS_TOPIC, [("no/0/0/0", UNREADABLE)])
    said = FeedbackIn(inference_id="told", value=True, user="zoë", comment="schön ✓", tags={"a": "b"})
    rated = [FeedbackIn(inference_id=one.inference_id, value=0.5, choice_index=one.choice) for one in answers]
    first, *_ = world.rate(said, *rated, FeedbackIn(episode_id="talk", value=-1))
    world.settle(len(answers))
    assert retract_feedback(world.engine, first, "anonymous") is not None
    secret = load_or_create_secret(world.settings.signing_key_file)
    assert Eraser(world.engine, secret, stop_training).erase("ann").answers == 1
    bury_message(world.engine, Record("trajectories.v1", 0, 0, "traj", UNREADABLE), "not a trajectory")
    world.settle(len(answers))

    assert kcat.topics(world.broker.bootstrap_servers) == set(DOCUMENT["channels"])
    found = {topic: kcat.consume(world.broker.bootstrap_servers, topic) for topic in DOCUMENT["channels"]}
    assert found["generations.v1"][-1].value is None  # of what was erased
    (unreadable,) = [one for one in found["generations.v1"] if one.value == UNREADABLE]
    found["generations.v1"].remove(unreadable)
    for topic, messages in found.items():
        for message in messages:
            require_described(topic, message)
    readable = {topic: [one for one in found[topic] if one.value is not None] for topic in READABLE}
    assert {topic: len(messages) for topic, messages in readable.items()} == {
        "generations.v1": 9,
        "trajectories.v1": 7,
        "feedback.v1": 12,
    }
    assert [one.value for one in found["generations.v1.dlq"]] == [UNREADABLE]
    assert [one.value for one in found["trajectories.v1.dlq"]] == [UNREADABLE]


def alter(value: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(value), **changes}).encode()


def test_a_message_that_is_not_as_described_is_noticed() -> None:
    good = make_generation()
    value = good.model_dump_json().encode()
    require_described("generations.v1", KcatMessage(good.key.encode(), value))
    missing = {name: found for name, found in json.loads(value).items() if name != "spans"}
    for key, altered in (
        (b"inf1", value),
        (good.key.encode(), alter(value, schema_version=2)),
        (good.key.encode(), alter(value, added=1)),
        (good.key.encode(), alter(value, token_ids=["ten"])),
        (good.key.encode(), alter(value, finished_at=float("nan"))),
        (good.key.encode(), json.dumps(missing).encode()),
        (good.key.encode(), UNREADABLE),
    ):
        with pytest.raises((jsonschema.ValidationError, ValueError)):
            require_described("generations.v1", KcatMessage(key, altered))
