"""What the measuring client reads out of an answer, and what it calls a failure."""

import json

import pytest

from benchmarks.chat import Question, Reply, RequestFailed, read_answer, read_stream


def chunk(delta: dict[str, str] | None, **others: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta}]
    return b"data: " + json.dumps({"choices": choices, **others}).encode() + b"\n"


ROLE = chunk({"role": "assistant", "content": ""})
USAGE = chunk(None, usage={"completion_tokens": 3})
DONE = b"data: [DONE]\n"


def test_a_stream_is_timed_by_the_chunks_that_bring_tokens() -> None:
    lines = [(1.0, ROLE), (1.1, chunk({"content": "a"})), (1.4, chunk({"content": "bc"})), (1.5, USAGE), (1.5, DONE)]
    assert read_stream(lines) == ((1.1, 1.4), 3, "abc")


def test_a_token_without_text_of_its_own_counts_as_one() -> None:
    lines = [(1.0, ROLE), (1.1, chunk({"content": ""})), (1.2, chunk({"content": "é"})), (1.3, USAGE), (1.3, DONE)]
    assert read_stream(lines) == ((1.1, 1.2), 3, "é")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "broke off"),
        ([(1.0, ROLE), (1.1, chunk({"content": "a"}))], "broke off"),
        ([(1.0, ROLE), (1.1, b'data: {"error": {"message": "the engine is dead"}}\n'), (1.1, DONE)], "engine is dead"),
        ([(1.0, b"data: <html>\n"), (1.1, DONE)], "not JSON"),
    ],
)
def test_a_stream_that_is_no_answer_fails(lines: list[tuple[float, bytes]], reason: str) -> None:
    with pytest.raises(RequestFailed, match=reason):
        read_stream(lines)


def test_a_whole_answer() -> None:
    body = {"usage": {"completion_tokens": 5}, "choices": [{"message": {"content": "hello"}}]}
    assert read_answer(json.dumps(body).encode()) == (5, "hello")


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"usage": {"completion_tokens": 1}, "choices": []}'])
def test_a_body_that_is_no_answer_fails(body: bytes) -> None:
    with pytest.raises(RequestFailed):
        read_answer(body)


def test_times_of_a_reply() -> None:
    reply = Reply(began=10.0, ended=11.0, arrivals=(10.5, 10.75, 11.0), tokens=3, text="", headers={})
    assert reply.first_token == 0.5
    assert reply.gaps == [0.25, 0.25]
    whole = Reply(began=10.0, ended=11.0, arrivals=(), tokens=3, text="", headers={})
    assert whole.first_token is None
    assert whole.gaps == []


def test_a_question_asks_for_exactly_so_many_tokens() -> None:
    body = Question("hello", tokens=7, stream=True).body()
    assert (body["min_tokens"], body["max_tokens"], body["ignore_eos"]) == (7, 7, True)
    assert body["stream_options"] == {"include_usage": True}
    assert "stream" not in Question("hello", tokens=7, stream=False).body()
