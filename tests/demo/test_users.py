"""The users against a stub of the service over real HTTP."""

import asyncio

import pytest

from online_rl.demo import users as users_module
from online_rl.demo.options import DemoError
from online_rl.demo.pacing import Pace, ServiceStatus
from online_rl.demo.users import MalformedAnswer, Rating, ServiceClient, Users, read_answers
from tests.demo.stub_service import StubService


async def run_phase(
    stub: StubService, count: int, start: int = 0, limit: int = 32, answers: int = 1
) -> tuple[list[Rating], ServiceClient]:
    client = ServiceClient(stub.url)
    users = Users(client, Pace(limit=limit), seed=0, answers=answers)
    ratings: list[Rating] = []
    try:
        async with users.watching():
            await users.run_phase(0, "enthusiastic", start, count, ratings.append)
    finally:
        await client.close()
    return ratings, client


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(users_module, "BACKOFF_S", 0.001)
    monkeypatch.setattr(users_module, "ASK_AGAIN_S", 0.01)


async def test_every_answer_is_rated_once_by_its_own_text() -> None:
    stub = StubService()
    async with stub.serving():
        ratings, client = await run_phase(stub, 64)
    assert len(ratings) == len(stub.feedback) == client.feedback_accepted == 64
    assert client.requests == 64
    assert client.failed_requests == 0
    for body in stub.feedback.values():
        number = int(body["inference_id"].removeprefix("id-"))
        assert body["value"] == (1.0 if number % 2 == 0 else 0.0)
    assert {bool(chat.get("stream")) for chat in stub.chats} == {True, False}
    assert sum(rating.reward for rating in ratings) == 32


async def test_each_of_several_answers_is_rated_by_its_own_text() -> None:
    stub = StubService()
    async with stub.serving():
        ratings, client = await run_phase(stub, 64, answers=4)
    assert len(ratings) == len(stub.feedback) == 64
    assert client.requests == 16
    assert {chat["n"] for chat in stub.chats} == {4}
    assert {bool(chat.get("stream")) for chat in stub.chats} == {True, False}
    for body in stub.feedback.values():
        number, choice = int(body["inference_id"].removeprefix("id-")), body.get("choice_index", 0)
        assert body["value"] == (1.0 if (number + choice) % 2 == 0 else 0.0)


async def test_pace_keeps_two_batches_open_at_most() -> None:
    stub = StubService(polls_per_update=20)
    async with stub.serving():
        await run_phase(stub, 128, limit=32)
    assert 16 < stub.most_outstanding <= 32


async def test_a_failed_request_is_counted_and_asked_again() -> None:
    stub = StubService(fail_chats=2, cut_streams=1)
    async with stub.serving():
        ratings, client = await run_phase(stub, 32)
    assert len(ratings) == 32
    assert client.failed_requests == 3
    assert client.requests == 35


async def test_feedback_is_retried_with_the_same_key() -> None:
    stub = StubService(fail_feedback=3)
    async with stub.serving():
        ratings, client = await run_phase(stub, 32)
    assert stub.posts == 35
    assert len(stub.feedback) == len(ratings) == client.feedback_accepted == 32


async def test_refused_feedback_ends_the_demo_with_its_reason() -> None:
    stub = StubService(refuse_feedback=True)
    async with stub.serving():
        with pytest.raises(DemoError, match=r"422.*out of range"):
            await run_phase(stub, 32)


async def test_a_learner_that_takes_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "STALL_SECONDS", 0.2)
    stub = StubService(learning=False)
    async with stub.serving():
        with pytest.raises(DemoError, match="took no trajectory"):
            await run_phase(stub, 64)
    assert len(stub.feedback) == 32


async def test_a_dead_service_is_a_failed_request_not_an_exception() -> None:
    client = ServiceClient("http://127.0.0.1:9")
    assert await client.ask("rivers", user="u", stream=True) is None
    assert await client.read_status() is None
    assert not await client.is_ready()
    assert client.failed_requests == 1
    await client.close()


async def test_same_seed_same_questions() -> None:
    asked: list[list[str]] = []
    for _ in range(2):
        stub = StubService()
        async with stub.serving():
            await run_phase(stub, 32)
        asked.append(sorted(chat["messages"][-1]["content"] for chat in stub.chats))
    assert asked[0] == asked[1]


async def test_held_out_questions_stay_out_of_training() -> None:
    stub = StubService()
    async with stub.serving() as url:
        client = ServiceClient(url)
        await asyncio.gather(client.ask("lakes", user="judge", stream=False, train=False))
        await client.close()
    assert stub.untrained == ["What do you think about lakes?"]


def test_an_answer_without_its_headers_is_malformed() -> None:
    with pytest.raises(MalformedAnswer, match="x-inference-id"):
        read_answers({"x-policy-version": "0"}, {0: ("text", "stop")}, 1)
    with pytest.raises(MalformedAnswer, match="not a number"):
        read_answers({"x-inference-id": "a", "x-policy-version": "v1"}, {0: ("text", "stop")}, 1)


def test_answers_that_are_missing_or_unfinished_are_malformed() -> None:
    headers = {"x-inference-id": "a", "x-policy-version": "3"}
    with pytest.raises(MalformedAnswer, match=r"2 answers were asked for, choices \[0\] came"):
        read_answers(headers, {0: ("text", "stop")}, 2)
    with pytest.raises(MalformedAnswer, match="finish reason"):
        read_answers(headers, {0: ("text", None)}, 1)


def test_pace_counts_what_the_learner_is_not_done_with() -> None:
    pace = Pace(limit=4, consumed_before=10, rated=5, in_flight=1)
    pace.status = ServiceStatus(trajectories_trained=11, trajectories_dropped={"stale": 2})
    assert pace.outstanding == 3  # 5 rated − 3 consumed + 1 in flight
    assert pace.may_ask
    pace.in_flight = 2
    assert not pace.may_ask
