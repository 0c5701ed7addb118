"""Trap 14 at large: whatever lies on a topic that the service reads, no consumer stops, every good message is handled,
and every other one is kept with a reason. On both databases, over the real broker."""

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from kafka import KafkaProducer
from sqlalchemy import Engine

from feedback.assembler import Assembler
from feedback.assembler_main import AssemblerLoop
from feedback.dead_letters import DLQ_SUFFIX
from feedback.inbox import Submission, store_feedback
from feedback.kafka_log import KafkaLog
from feedback.outbox import OutboxRelay
from feedback.schemas import TRAJECTORIES_TOPIC, FeedbackIn, Trajectory
from feedback.settings import FeedbackSettings
from feedback.tables import dead_letters, generations, outbox, trajectories
from online_rl.admission import AdmissionRules, find_refusal
from online_rl.buffer import Buffer
from online_rl.intake import Intake
from online_rl.learner import bury_message
from online_rl.ledger import Ledger
from online_rl.objectives import Needs
from online_rl.tables import drops
from serving.schemas import GENERATIONS_TOPIC, Sampling, VersionSpan
from tests.feedback.brokers import Broker
from tests.feedback.fuzzed import NAME, Fuzzed, every_odd, messages, send
from tests.feedback.samples import make_generation

FEW = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    # A list of messages that is made smaller says no more, and takes minutes.
    phases=(Phase.explicit, Phase.generate),
    # The fixtures live on from one example to the next, as a service does.
    suppress_health_check=list(HealthCheck),
)
prefixes = itertools.count()
LATER = 4e9
"""When nothing is due yet."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


class Topic:
    """A topic of one test's own."""

    def __init__(self, broker: Broker, name: str) -> None:
        prefix = f"fuzzed-{next(prefixes)}."
        self.name = name
        self.log = KafkaLog(broker.bootstrap_servers, client_id="test", topic_prefix=prefix)
        self.log.ensure_topics([name])
        self._producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, max_request_size=1 << 24)
        self._full_name = prefix + name

    def send(self, found: list[Fuzzed]) -> dict[int, Fuzzed]:
        """By offset."""
        return send(self._producer, self._full_name, found)

    def close(self) -> None:
        self._producer.close()
        self.log.close()


def rows(engine: Engine, table: sa.Table) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(table)))


def letters(engine: Engine) -> dict[int, Any]:
    """By offset."""
    return {row.offset: row for row in rows(engine, dead_letters)}


def require_accounted(sent: dict[int, Fuzzed], buried: dict[int, Any]) -> list[Fuzzed]:
    """Each message is where it belongs; returns those that were handled."""
    for offset, one in sent.items():
        if one.kind == "bad":
            assert offset in buried, one
        if one.kind in ("good", "tombstone"):
            assert offset not in buried, (one, buried[offset].reason)
        if offset in buried:
            assert buried[offset].value == one.value
            assert buried[offset].reason.strip()
    return [one for offset, one in sent.items() if one.value is not None and offset not in buried]


GENERATION = (
    make_generation(
        NAME.decode(),
        at=LATER,
        sampling=Sampling(top_k=3, max_tokens=8, seed=1),
        tags={"plan": "a"},
        group_id="group",
    )
    .model_dump_json()
    .encode()
)
TRAJECTORY = (
    Trajectory(
        trajectory_id=NAME.decode(),
        episode_id="episode",
        inference_ids=("inference",),
        token_ids=(1, 2, 3),
        action_mask=(0, 1, 1),
        behavior_logprobs=(-0.5, -1.5),
        spans=(VersionSpan(start=0, end=2, version=1),),
        reward=1.0,
        metrics={"reward": 1.0},
        tags={"plan": "a"},
        generated_at=LATER,
        rated_at=LATER,
        released_at=LATER,
    )
    .model_dump_json()
    .encode()
)
GENERATIONS = messages(
    GENERATION,
    ("inference_id", "model", "prompt_token_ids", "token_ids", "spans", "sampling", "finished_at"),
)
TRAJECTORIES = messages(TRAJECTORY, ("trajectory_id", "token_ids", "action_mask", "reward", "rated_at"))


def test_whatever_lies_among_generations_is_stored_and_released_or_a_dead_letter(
    engine: Engine, broker: Broker
) -> None:
    topic = Topic(broker, GENERATIONS_TOPIC)
    relay = OutboxRelay(engine, topic.log, lambda _ids: set())
    loop = AssemblerLoop(topic.log, Assembler(engine, FeedbackSettings()), relay)

    @FEW
    @example(every_odd(GENERATION))
    @given(st.lists(GENERATIONS, min_size=20, max_size=40))
    def read(found: list[Fuzzed]) -> None:
        sent = topic.send(found)
        assert loop.drain(30)
        stored = {(row.inference_id, row.prompt_index, row.turn, row.choice) for row in rows(engine, generations)}
        handled = [json.loads(one.value or b"") for one in require_accounted(sent, letters(engine))]
        for one in handled:
            assert (one["inference_id"], one["prompt_index"], one["turn"], one["choice"]) in stored
        rate(engine, [one["inference_id"] for one in handled], [one["choice"] for one in handled])
        assert loop.round()
        released = {row.episode_id for row in rows(engine, trajectories)}
        good = {json.loads(one.value or b"")["inference_id"] for one in sent.values() if one.kind == "good"}
        assert good <= released
        assert not [row for row in rows(engine, outbox) if row.state == "waiting"]
        assert topic.log.end_offsets(GENERATIONS_TOPIC + DLQ_SUFFIX)[0] == len(letters(engine))

    try:
        read()
        assert len(letters(engine)) > 20
    finally:
        loop.close()
        topic.close()


def rate(engine: Engine, inference_ids: list[str], choices: list[int]) -> None:
    said = [
        Submission(FeedbackIn.model_construct(inference_id=name, choice_index=choice, value=1), 1.0, "anonymous")
        for name, choice in zip(inference_ids, choices, strict=True)
    ]
    with engine.begin() as connection:
        store_feedback(connection, said, time.time())


def test_whatever_lies_among_trajectories_is_taken_or_a_dead_letter(engine: Engine, broker: Broker) -> None:
    topic = Topic(broker, TRAJECTORIES_TOPIC)
    ledger = Ledger(engine)
    source = topic.log.consumer(TRAJECTORIES_TOPIC, group="learner", offsets={})
    rules = AdmissionRules(
        max_staleness=4, max_tokens=64, vocabulary=100, objective="sao", needs=Needs(behavior_logprobs=True)
    )

    @FEW
    @example(every_odd(TRAJECTORY))
    @given(st.lists(TRAJECTORIES, min_size=20, max_size=40))
    def read(found: list[Fuzzed]) -> None:
        sent = topic.send(found)
        buffer = Buffer(batch_size=10_000, min_batch=1, batch_seconds=60)
        intake = Intake(
            source,
            buffer,
            ledger,
            lambda record, reason: bury_message(engine, record, reason),
            batch_size=10_000,
            offsets=source.position(),
        )
        deadline = time.monotonic() + 30
        while source.position()[0] <= max(sent):
            assert time.monotonic() < deadline, "did not read all in time"
            intake.consume()
        intake.commit()
        taken = {one.trajectory_id: one for one in buffer}
        handled = [json.loads(one.value or b"") for one in require_accounted(sent, letters(engine))]
        assert {one["trajectory_id"] for one in handled} == set(taken)
        refused = {name: find_refusal(one, rules, current_version=1) for name, one in taken.items()}
        good = {json.loads(one.value or b"")["trajectory_id"] for one in sent.values() if one.kind == "good"}
        assert not [refused[name] for name in good if refused[name] is not None]
        # What the learner is done with, one way or the other, it writes down.
        ledger.record_drops(dict.fromkeys(taken, "stale"), time.time())
        assert set(taken) <= {row.trajectory_id for row in rows(engine, drops)}

    try:
        read()
        assert len(letters(engine)) > 20
    finally:
        source.close()
        topic.close()
