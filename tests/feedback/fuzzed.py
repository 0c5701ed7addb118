"""Messages as nobody should send them, mixed with good ones."""

import itertools
import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypothesis import strategies as st
from kafka import KafkaProducer

Path = tuple[str | int, ...]
Kind = Literal["good", "bad", "odd", "tombstone"]


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """One message. `bad` can be nothing that its topic holds; `odd` has the right form and strange content, so that the
    database may refuse it."""

    kind: Kind
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


NAME = b"@@@@@@@@"
numbers = itertools.count()

NUMBERS_THAT_ARE_NONE = ("NaN", "Infinity", "-Infinity", "1e999")
WRONG_VERSIONS = (0, 2, -1, 1.5, None, "2", [1], 2**70)
HUGE = st.integers(8, 400).flatmap(lambda power: st.sampled_from([10**power, -(10**power)]))
LARGE = (0, -1, 2**31, 2**63, 1e308)
ODD_TEXTS = ("", "a\0b", "\ud800", "x" * 65, "x" * 257)
HEADERS = st.lists(st.tuples(st.text("abc-é", min_size=1, max_size=5), st.binary(max_size=8)), max_size=2).map(tuple)
KEYS = st.one_of(st.none(), st.just(b""), st.binary(max_size=40), st.text(max_size=20).map(lambda key: key.encode()))


def encode(content: Any) -> bytes:
    """As JSON, half a surrogate pair and numbers of any size included."""
    return json.dumps(content, ensure_ascii=True).encode()


def messages(good: bytes, required: tuple[str, ...]) -> st.SearchStrategy[Fuzzed]:
    """`good` is a good value, with `NAME` where its id is; `required` are fields without a default."""

    @st.composite
    def draw_message(draw: st.DrawFn) -> Fuzzed:
        kind: Kind = draw(st.sampled_from(["good", "bad", "bad", "odd", "tombstone"]))
        headers = draw(HEADERS)
        if kind == "good":
            return Fuzzed(kind, draw(KEYS), good, headers)
        if kind == "tombstone":
            return Fuzzed(kind, draw(KEYS.filter(lambda found: found is not None)), None, headers)
        value = draw(_bad(good, required) if kind == "bad" else _odd(good))
        return Fuzzed(kind, draw(KEYS), value, headers)

    return draw_message()


def _bad(good: bytes, required: tuple[str, ...]) -> st.SearchStrategy[bytes]:
    content = json.loads(good)
    numbers = [name for name, value in content.items() if isinstance(value, float)]
    # An object where none belongs, a list where one does.
    wrong = {name: [[1]] if isinstance(value, dict) else {"a": [None]} for name, value in content.items()}
    return st.one_of(
        st.binary(max_size=100),
        st.integers(0, len(good) - 1).map(lambda end: good[:end]),
        st.integers(1, len(good) - 1).map(lambda at: good[:at] + b"\xff" + good[at:]),
        st.sampled_from(required).map(lambda name: encode({key: content[key] for key in content if key != name})),
        st.sampled_from(sorted(wrong)).map(lambda name: encode(content | {name: wrong[name]})),
        st.sampled_from(WRONG_VERSIONS).map(lambda version: encode(content | {"schema_version": version})),
        st.text(min_size=1, max_size=8).map(lambda name: encode(content | {f"made up {name}": 1})),
        st.tuples(st.sampled_from(numbers), st.sampled_from(NUMBERS_THAT_ARE_NONE)).map(
            lambda found: encode(content | {found[0]: "HERE"}).replace(b'"HERE"', found[1].encode())
        ),
        st.sampled_from([good.decode().encode("utf-16"), b"\xef\xbb\xbf" + good, good + good, b"[" + good + b"]"]),
        st.sampled_from([b"[" * 100_000, b'{"a":' * 5_000, b"null", b"0", b'""', b"1e400", b"-"]),
    )


def _odd(good: bytes) -> st.SearchStrategy[bytes]:
    content = json.loads(good)
    numbers, texts = _odd_places(content)
    return st.one_of(
        st.tuples(st.sampled_from(numbers), st.one_of(st.sampled_from(LARGE), HUGE)),
        st.tuples(st.sampled_from(texts), st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=20))),
    ).map(lambda found: encode(_replaced(content, *found)))


def every_odd(good: bytes) -> list[Fuzzed]:
    """Each strange value at each place."""
    content = json.loads(good)
    numbers, texts = _odd_places(content)
    found = [*itertools.product(numbers, LARGE), *itertools.product(texts, ODD_TEXTS)]
    return [Fuzzed("odd", None, encode(_replaced(content, *one))) for one in found]


def _odd_places(content: Any) -> tuple[list[Path], list[Path]]:
    """Where numbers stand, and where texts do."""
    places = [(path, value) for path, value in _leaves(content, ()) if path[0] != "schema_version"]
    numbers = [path for path, value in places if isinstance(value, int | float) and not isinstance(value, bool)]
    return numbers, [path for path, value in places if value is None or isinstance(value, str)]


def _leaves(content: Any, path: Path) -> list[tuple[Path, Any]]:
    """Of a list the first one stands for all."""
    if isinstance(content, list):
        return _leaves(content[0], (*path, 0))
    if isinstance(content, dict):
        return [leaf for name, value in content.items() for leaf in _leaves(value, (*path, name))]
    return [(path, content)]


def _replaced(content: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    copy = content.copy()
    copy[path[0]] = _replaced(content[path[0]], path[1:], value)
    return copy


def send(producer: KafkaProducer, topic: str, found: list[Fuzzed]) -> dict[int, Fuzzed]:
    """By offset, each as it was sent: with an id that nothing had before."""
    named = [
        one if one.value is None else replace(one, value=one.value.replace(NAME, b"%08d" % next(numbers)))
        for one in found
    ]
    sent = [producer.send(topic, key=one.key, value=one.value, headers=list(one.headers)) for one in named]
    producer.flush(timeout=20)
    return {future.get(timeout=1).offset: one for future, one in zip(sent, named, strict=True)}
