"""The assembler's steps on both databases: stored once, joined whenever, released once."""

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from feedback import assembler as assembler_module
from feedback import tables
from feedback.assembler import Assembler
from feedback.assembler_main import handled_by_learner
from feedback.database import open_database
from feedback.inbox import Submission, store_feedback
from feedback.log_contract import Record
from feedback.lookup import retract_feedback
from feedback.release import ReleasedElsewhere
from feedback.schemas import FeedbackIn, Trajectory
from feedback.settings import FeedbackSettings, MetricSettings
from feedback.tables import dead_letters, feedback, generations, outbox, trajectories
from serving.schemas import Sampling
from tests.feedback.samples import as_record, make_generation
from tests.plans import explain

SETTINGS = FeedbackSettings(wait_seconds=100, episode_idle_seconds=300, orphan_seconds=50)


class Clock:
    def __init__(self) -> None:
        self.now = 2000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self, engine: Engine, settings: FeedbackSettings = SETTINGS) -> None:
        self.engine = engine
        self.clock = Clock()
        self.assembler = Assembler(engine, settings, self.clock)

    def rate(self, value: float = 1.0, owner: str = "anonymous", **item: Any) -> str:
        one = FeedbackIn(value=value, **({"inference_id": "inf1"} | item))
        with self.engine.begin() as connection:
            return store_feedback(connection, [Submission(one, value, owner)], self.clock())[0].feedback_id

    def store(self, *made: Any) -> int:
        return self.assembler.store([as_record(generation, offset) for offset, generation in enumerate(made)])

    def rows(self, table: sa.Table) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(table).order_by(table.primary_key.columns[0])))

    def released(self) -> list[Trajectory]:
        return [Trajectory.model_validate_json(zlib.decompress(row.event)) for row in self.rows(trajectories)]

    def statuses(self) -> list[str]:
        return [row.status for row in self.rows(feedback)]


@pytest.fixture
def bench(engine: Engine) -> Bench:
    return Bench(engine)


def test_a_rated_answer_becomes_one_trajectory_with_its_outbox_row(bench: Bench) -> None:
    generation = make_generation(at=1990.0, user_id="u", tags={"topic": "sea"}, api_key_id="k")
    assert bench.store(generation) == 1
    bench.rate(0.5, owner="k")
    assert bench.assembler.join_new() == 1
    (found,) = bench.released()
    assert found.token_ids == (1, 2, 3, 10, 11)
    assert found.behavior_logprobs == generation.behavior_logprobs
    assert (found.reward, found.metrics) == (0.5, {"reward": 0.5})
    assert (found.user_id, found.api_key_id, found.tags, found.episode_id) == ("u", "k", {"topic": "sea"}, "inf1")
    assert [row.key for row in bench.rows(outbox) if row.topic == "trajectories.v1"] == [found.trajectory_id]
    assert bench.statuses() == ["used"]
    assert bench.rows(generations)[0].trajectory_id == found.trajectory_id


def test_the_same_generation_again_changes_nothing(bench: Bench) -> None:
    generation = make_generation(at=1990.0)
    bench.store(generation, generation)
    bench.rate()
    bench.assembler.join_new()
    assert bench.store(generation) == 0
    assert bench.assembler.join_new() == 0
    assert len(bench.released()) == 1
    assert len(bench.rows(generations)) == 1


def test_trap_12_feedback_before_its_answer_is_stored_is_joined_when_it_comes(bench: Bench) -> None:
    bench.rate()
    bench.assembler.join_new()
    assert bench.statuses() == ["waiting"]
    assert bench.released() == []
    bench.store(make_generation(at=1990.0))
    assert len(bench.released()) == 1
    assert bench.statuses() == ["used"]


def test_feedback_whose_answer_never_comes_is_an_orphan_but_joins_should_it_come_after_all(bench: Bench) -> None:
    bench.rate()
    bench.assembler.join_new()
    bench.clock.now += 49
    assert bench.assembler.count_orphans() == 0
    bench.clock.now += 2
    assert bench.assembler.count_orphans() == 1
    assert bench.statuses() == ["orphaned"]
    bench.store(make_generation(at=1990.0))
    assert bench.statuses() == ["used"]
    assert len(bench.released()) == 1


def test_late_feedback_is_stored_and_counted_and_trains_nothing(bench: Bench) -> None:
    bench.store(make_generation(at=1990.0))
    bench.rate(1.0)
    bench.assembler.join_new()
    bench.rate(-1.0)
    bench.assembler.join_new()
    assert bench.statuses() == ["used", "late"]
    assert [found.reward for found in bench.released()] == [1.0]


def test_an_unrated_answer_is_dropped_at_the_end_of_its_window(bench: Bench) -> None:
    bench.store(make_generation(at=1990.0))
    bench.clock.now = 2090.0
    assert bench.assembler.release_due() == 0
    bench.clock.now = 2092.0
    assert bench.assembler.release_due() == 1
    row = bench.rows(generations)[0]
    assert (row.state, row.drop_reason) == ("dropped", "unrated")
    assert bench.assembler.release_due() == 0
    bench.rate()
    bench.assembler.join_new()
    assert bench.statuses() == ["late"]
    assert bench.released() == []


def test_an_answer_not_for_training_is_kept_and_never_released(bench: Bench) -> None:
    bench.store(make_generation(at=1990.0, trainable=False, untrainable_reason="x-train: false"))
    bench.rate()
    bench.assembler.join_new()
    assert bench.released() == []
    assert bench.statuses() == ["unused"]
    assert bench.rows(generations)[0].drop_reason == "x-train: false"


def test_an_empty_answer_is_kept_and_never_released(bench: Bench) -> None:
    bench.store(make_generation(at=1990.0, answer=()))
    bench.rate()
    bench.assembler.join_new()
    assert bench.released() == []
    assert bench.rows(generations)[0].drop_reason == "empty"


def test_a_conversation_rated_as_a_whole_is_one_trajectory(bench: Bench) -> None:
    bench.store(make_generation("a", (1,), (7,), episode_id="e", at=1980.0))
    bench.store(make_generation("b", (1, 7, 2), (8,), episode_id="e", at=1985.0))
    bench.rate(inference_id=None, episode_id="e")
    bench.assembler.join_new()
    (found,) = bench.released()
    assert found.inference_ids == ("a", "b")
    assert found.token_ids == (1, 7, 2, 8)
    # Its next turn is a matter of its own, with the past as context only.
    bench.store(make_generation("c", (1, 7, 2, 8, 3), (9,), episode_id="e", at=2010.0))
    bench.clock.now = 2020.0
    bench.rate(inference_id="c", value=-1.0)
    bench.assembler.join_new()
    assert [(t.inference_ids, t.action_mask, t.reward) for t in bench.released()[1:]] == [
        (("c",), (0, 0, 0, 0, 0, 1), -1.0)
    ]


def test_an_idle_conversation_is_closed_when_its_last_turn_is_due(bench: Bench) -> None:
    bench.store(make_generation("a", (1,), (7,), episode_id="e", at=2000.0))
    bench.store(make_generation("b", (1, 7, 2), (8,), episode_id="e", at=2250.0))
    bench.clock.now = 2302.0  # the first turn alone would be due; it waits on with the last one
    assert bench.assembler.release_due() == 1
    assert [row.state for row in bench.rows(generations)] == ["open", "open"]
    assert bench.assembler.release_due() == 0
    assert {row.state for row in bench.rows(generations)} == {"open"}
    bench.clock.now = 2552.0
    bench.assembler.release_due()
    assert {row.state for row in bench.rows(generations)} == {"dropped"}


def test_trap_11_two_keys_that_use_one_episode_id_are_two_episodes(bench: Bench) -> None:
    bench.rate(owner="k1", inference_id=None, episode_id="e")
    bench.assembler.join_new()
    first = make_generation("a", (1,), (7,), episode_id="e", api_key_id="k1", at=1980.0)
    second = make_generation("b", (1, 7, 2), (8,), episode_id="e", api_key_id="k2", at=1985.0)
    bench.store(first, second)
    assert [(t.inference_ids, t.api_key_id) for t in bench.released()] == [(("a",), "k1")]


def test_choices_are_separate_trajectories_of_one_group(bench: Bench) -> None:
    choices = [make_generation(choice=i, answer=(7 + i,), at=1990.0, sampling=Sampling(n=2)) for i in range(2)]
    bench.store(*choices)
    bench.rate(1.0, choice_index=0)
    bench.rate(-1.0, choice_index=1)
    bench.assembler.join_new()
    found = bench.released()
    assert sorted((t.token_ids[-1], t.reward) for t in found) == [(7, 1.0), (8, -1.0)]
    assert {(t.group_id, t.group_size) for t in found} == {("inf1/0", 2)}


def test_feedback_of_another_key_that_came_before_the_answer_is_refused_when_it_comes(bench: Bench) -> None:
    bench.rate(owner="theirs")
    bench.assembler.join_new()
    bench.store(make_generation(api_key_id="mine", at=1990.0))
    assert bench.statuses() == ["refused"]
    assert bench.released() == []


def test_retracted_feedback_does_not_count(bench: Bench) -> None:
    settings = FeedbackSettings(
        metrics={"reward": MetricSettings(), "quality": MetricSettings()}, wait_seconds=100, episode_idle_seconds=300
    )
    bench = Bench(bench.engine, settings)
    bench.store(make_generation(at=1990.0))
    first = bench.rate(-1.0)
    bench.assembler.join_new()
    assert retract_feedback(bench.engine, first, "anonymous", bench.clock).effect == "removed"  # type: ignore[union-attr]
    bench.rate(1.0)
    second = bench.rate(0.0, metric_name="quality")
    bench.assembler.join_new()
    (found,) = bench.released()
    assert found.metrics == {"reward": 1.0, "quality": 0.0}
    assert retract_feedback(bench.engine, second, "anonymous", bench.clock).effect == "too_late"  # type: ignore[union-attr]
    assert retract_feedback(bench.engine, second, "somebody", bench.clock) is None


def test_a_retraction_during_a_release_is_told_the_truth(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between what the assembler reads and what it writes; both databases must let one of the two wait."""
    metrics = {"reward": MetricSettings(), "quality": MetricSettings()}
    bench = Bench(engine, FeedbackSettings(metrics=metrics, wait_seconds=100, episode_idle_seconds=300))
    bench.store(make_generation(at=1990.0))
    given = bench.rate(1.0)
    bench.assembler.join_new()
    assert bench.statuses() == ["joined"]  # it waits for the other metric, until its time is over
    bench.clock.now += 500
    answers: list[Any] = []
    retract = threading.Thread(
        target=lambda: answers.append(retract_feedback(bench.engine, given, "anonymous", bench.clock))
    )
    original = assembler_module.read_signals

    def read_then_wait(connection: sa.Connection, opened: Any, watch: Any) -> Any:
        found = original(connection, opened, watch)
        retract.start()
        retract.join(0.5)
        return found

    monkeypatch.setattr(assembler_module, "read_signals", read_then_wait)
    bench.assembler.release_due()
    retract.join(20)
    (answer,) = answers
    assert len(bench.released()) == 1
    assert answer.effect == "too_late"


def test_of_two_votes_stored_together_the_later_one_counts(engine: Engine) -> None:
    bench = Bench(engine)
    bench.store(*(make_generation(f"inf{number}", at=1990.0) for number in range(8)))
    votes = [
        Submission(FeedbackIn(inference_id=f"inf{number}", value=value), value, "anonymous")
        for number in range(8)
        for value in (-1.0, 1.0)
    ]
    with engine.begin() as connection:
        store_feedback(connection, votes, bench.clock())
    bench.assembler.join_new()
    assert [found.reward for found in bench.released()] == [1.0] * 8


def test_trap_14_a_message_that_makes_no_sense_is_a_dead_letter_and_the_rest_goes_on(bench: Bench) -> None:
    good = make_generation(at=1990.0)
    torn = as_record(make_generation("torn")).value[:40]
    # Trap 10: a missing log-probability is refused, never padded.
    padded = as_record(make_generation("padded")).value.replace(b"-0.1,-0.2", b"-0.1")
    messages = [
        Record("generations.v1", 0, 0, "k", b"\xff\x00"),
        as_record(good, 1),
        Record("generations.v1", 0, 2, None, torn),
        Record("generations.v1", 0, 3, "\0", padded),
    ]
    assert bench.assembler.store(messages) == 1
    assert bench.assembler.store(messages) == 0
    letters = {row.offset: row for row in bench.rows(dead_letters)}
    assert sorted(letters) == [0, 2, 3]
    assert "behavior_logprobs has 1 values for 2 token_ids" in letters[3].reason
    assert letters[2].value == torn
    waiting = [row.key for row in bench.rows(outbox) if row.topic == "generations.v1.dlq"]
    assert sorted(waiting) == sorted(row.dead_letter_id for row in letters.values())


def test_trap_14_a_message_that_the_database_refuses_is_a_dead_letter_too(bench: Bench) -> None:
    # Numbered across prompts, a choice beyond what any database holds as an integer.
    bad = make_generation("bad", prompt_index=1, sampling=Sampling(n=2**70), at=1990.0)
    assert bench.store(make_generation(at=1990.0), bad) == 1
    assert [row.offset for row in bench.rows(dead_letters)] == [1]


def test_a_reason_never_repeats_what_the_message_held(bench: Bench) -> None:
    value = as_record(make_generation(text="my secret")).value.replace(
        b'"created_at":1000.0', b'"created_at":"my secret"'
    )
    bench.assembler.store([Record("generations.v1", 0, 0, "k", value)])
    (letter,) = bench.rows(dead_letters)
    assert "created_at" in letter.reason
    assert "secret" not in letter.reason


def test_a_reason_may_name_a_field_that_the_message_made_up(bench: Bench) -> None:
    value = as_record(make_generation()).value.replace(b'"model":', rb'"made\u0000up": 1, "model":')
    bench.assembler.store([Record("generations.v1", 0, 0, "k", value)])
    (letter,) = bench.rows(dead_letters)
    assert letter.reason.startswith("made\ufffdup: ")


def test_a_second_assembler_cannot_release_what_the_first_did(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.store(make_generation(at=1990.0))
    bench.rate()
    import feedback.assembler as module

    read = module.read_open

    def slow(connection: Any, episodes: Any) -> Any:
        found = read(connection, episodes)
        connection.execute(sa.update(generations).values(state="released"))  # what the other one did meanwhile
        return found

    monkeypatch.setattr(module, "read_open", slow)
    with pytest.raises(ReleasedElsewhere):
        bench.assembler.join_new()
    assert bench.released() == []
    assert bench.statuses() == ["new"]


def test_many_at_once(bench: Bench) -> None:
    made = [make_generation(f"i{n}", at=1990.0) for n in range(300)]
    bench.store(*made)
    for n in range(300):
        bench.rate(inference_id=f"i{n}")
    assert bench.assembler.join_new() == 300
    assert len(bench.released()) == 300
    assert set(bench.statuses()) == {"used"}


@contextmanager
def few_parameters(engine: Engine, limit: int = 600) -> Iterator[None]:
    """Fails where a statement has more parameters; rows to insert are not counted, SQLAlchemy cuts those by itself."""

    def count(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        assert many or statement.startswith("INSERT") or len(parameters) <= limit, statement[:80]

    sa.event.listen(engine, "before_cursor_execute", count)
    yield
    sa.event.remove(engine, "before_cursor_execute", count)


def test_no_statement_grows_with_the_number_of_its_rows(engine: Engine) -> None:
    """SQLite and PostgreSQL take a limited number of parameters; beyond it a step would fail for ever."""
    bench = Bench(engine, SETTINGS.model_copy(update={"episode_answers": 2000}))
    votes = [FeedbackIn(value=1.0, inference_id="early", user=f"u{number}") for number in range(700)]
    votes += [FeedbackIn(value=1.0, inference_id=f"inf{number}") for number in range(700)]
    votes += [FeedbackIn(value=1.0, episode_id=f"e{number}") for number in range(700)]
    with few_parameters(engine):
        with engine.begin() as connection:
            submissions = [Submission(vote, 1.0, "anonymous") for vote in votes]
            assert {found.kind for found in store_feedback(connection, submissions, 2000.0)} == {"stored"}
            again = [
                replace(one, item=one.item.model_copy(update={"idempotency_key": f"k{number}"}))
                for number, one in enumerate(submissions[:700])
            ]
            store_feedback(connection, again, 2000.0)
            assert {found.kind for found in store_feedback(connection, again, 2000.0)} == {"again"}
        while bench.assembler.join_new():
            pass
        assert set(bench.statuses()) == {"waiting"}
        bench.store(make_generation("early", at=1990.0))
        assert bench.statuses().count("used") == 1400
        bench.store(*(make_generation(f"inf{number}", at=1990.0) for number in range(700)))
        bench.store(*(make_generation(f"in-e{number}", episode_id=f"e{number}", at=1990.0) for number in range(700)))
        assert set(bench.statuses()) == {"used"}
        bench.store(*(make_generation(f"unrated{number}", episode_id="long", at=1990.0) for number in range(700)))
        bench.clock.now = 3000.0
        while bench.assembler.release_due():
            pass
        states = [row.state for row in bench.rows(generations)]
        assert (states.count("released"), states.count("dropped")) == (1401, 700)
        everything = [row.trajectory_id for row in bench.rows(trajectories)]
        assert handled_by_learner(engine)(everything) == set()


def test_an_episode_without_end_keeps_a_bounded_number_of_answers_waiting(engine: Engine) -> None:
    """Each turn looks at what its episode has open; without a bound, thousands of turns would cost their square."""
    bench = Bench(engine, SETTINGS.model_copy(update={"episode_answers": 10}))
    for number in range(0, 60, 3):
        turns = range(number, number + 3)
        bench.store(*(make_generation(f"i{n:02d}", (1, n), episode_id="e", at=1900.0 + n) for n in turns))
        assert sum(row.state == "open" for row in bench.rows(generations)) <= 10
    rows = bench.rows(generations)
    # The newest stay, the oldest are dropped with a reason of their own, and what is rated in time is trained on.
    assert [row.state for row in rows] == ["dropped"] * 50 + ["open"] * 10
    assert {row.drop_reason for row in rows[:50]} == {"episode_too_long"}
    bench.rate(inference_id="i55")
    bench.rate(inference_id="i05")
    bench.assembler.join_new()
    assert [found.inference_ids for found in bench.released()] == [("i55",)]
    assert bench.statuses() == ["used", "late"]


def test_what_makes_room_is_released_with_what_there_is(engine: Engine) -> None:
    metrics = {"reward": MetricSettings(), "second": MetricSettings()}
    bench = Bench(engine, SETTINGS.model_copy(update={"episode_answers": 2, "metrics": metrics}))
    bench.store(make_generation("i0", episode_id="e", at=1990.0))
    bench.rate(0.5, inference_id="i0")
    bench.assembler.join_new()
    assert bench.released() == []
    bench.store(*(make_generation(f"i{n}", (n,), episode_id="e", at=1990.0 + n) for n in (1, 2)))
    assert [found.metrics for found in bench.released()] == [{"reward": 0.5}]


def test_every_question_is_answered_by_an_index(tmp_path: Path) -> None:
    """Asked inside the write lock, of tables that only grow."""
    engine = open_database(f"sqlite:///{tmp_path / 'plans.db'}")
    tables.metadata.create_all(engine)
    bench = Bench(engine)

    def work() -> None:
        bench.rate(inference_id="early")
        for _ in range(2):
            bench.rate(inference_id=None, episode_id="e", idempotency_key="k")
        bench.assembler.join_new()
        bench.store(make_generation("early", at=1990.0), make_generation("a", episode_id="e", at=1990.0))
        bench.store(make_generation("b", episode_id="e", at=2010.0), make_generation("c", at=1990.0))
        bench.clock.now = 5000.0
        bench.assembler.release_due()
        bench.assembler.count_orphans()

    steps = explain(engine, work)
    assert len(steps) > 20
    for step in steps:
        assert step.kind == "SEARCH", step
    # Of what is known by its state alone there may be much; only what is new is few.
    assert not [step for step in steps if step.how.endswith("(state=?)")]
    assert sum(step.how.endswith("(status=?)") for step in steps) == 2
    engine.dispose()


@pytest.mark.parametrize(("before", "after", "due"), [(100.0, 400.0, 2400.0), (400.0, 100.0, 2100.0)])
def test_a_changed_window_holds_for_what_waits_already(engine: Engine, before: float, after: float, due: float) -> None:
    waiting = Bench(engine, SETTINGS.model_copy(update={"wait_seconds": before, "episode_idle_seconds": 50.0}))
    waiting.store(make_generation("alone", at=1999.0), make_generation("turn", episode_id="e", at=1999.0))
    restarted = Bench(engine, SETTINGS.model_copy(update={"wait_seconds": after, "episode_idle_seconds": 50.0}))
    restarted.assembler.adopt_settings()
    restarted.clock.now = due - 1
    assert restarted.assembler.release_due() == 0
    restarted.clock.now = due
    assert restarted.assembler.release_due() == 2
    assert {row.drop_reason for row in restarted.rows(generations)} == {"unrated"}


def test_what_is_due_longest_comes_first_and_nothing_is_asked_for_ever(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembler_module, "BATCH", 2)
    bench = Bench(engine)
    bench.store(*(make_generation(f"i{n}", at=1990.0 + n) for n in range(4)))
    bench.clock.now = 3000.0
    # Their windows were made longer, and nobody adopted it: each is looked at once, and waits on.
    longer = Bench(engine, SETTINGS.model_copy(update={"wait_seconds": 2000.0}))
    longer.clock.now = 3000.0
    assert [longer.assembler.release_due() for _ in range(3)] == [2, 2, 0]
    assert {row.state for row in bench.rows(generations)} == {"open"}
