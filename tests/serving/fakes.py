"""An engine without weights that passes the same conformance suite as the real one."""

import asyncio
import copy
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from online_rl.schemas import Probe
from serving.artifact import Artifact
from serving.capture import SampledSoFar


class Kind(Enum):
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class Params:
    """Shaped like the engine's sampling parameters."""

    max_tokens: int = 4
    logprobs: int | None = None
    output_kind: Kind = Kind.DELTA
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    n: int = 1
    structured_outputs: Any = None

    def clone(self) -> "Params":
        return copy.deepcopy(self)


@dataclass
class Logprob:
    logprob: float


@dataclass
class Span:
    version: str
    start: int
    end: int


@dataclass
class Part:
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    weight_versions: list[Span] | None = None


@dataclass
class Output:
    prompt_token_ids: list[int]
    outputs: list[Part]
    finished: bool


@dataclass
class _Running:
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    starts: list[tuple[str, int]] = field(default_factory=list)
    aborted: bool = False


def fake_logprob(weights: str, index: int) -> float:
    """The log-probability that weights of this name give to token `index` of any sequence."""
    return -2.0 + math.sin(sum(weights.encode()) + index)


def fake_artifact(version: int, parent: int | None, *, claims: str | None = None) -> Artifact:
    """Version `version`, with probes of the weights named `claims` (its own unless told otherwise)."""
    own, former = claims or f"v{version}", f"v{parent}"
    positions = tuple(range(1, 30))
    probe = Probe(
        token_ids=tuple(range(30)),
        positions=positions,
        logprobs=tuple(fake_logprob(own, index) for index in positions),
        parent_logprobs=tuple(fake_logprob(former, index) for index in positions),
    )
    if version == 0:
        return Artifact(0, None, Path("v0"), None, ())
    return Artifact(version, parent, Path(f"v{version}"), Path(f"v{version}"), (probe,))


class FakeEngine:
    """Samples the tokens 100, 101 … one a loop turn, and pauses, reloads and labels as the real engine does."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weights = "v0"
        self.label = "default"
        self.broken: set[str] = set()
        self.adapters: dict[str, str] = {}
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._running: dict[str, _Running] = {}
        self._on_abort: Callable[[str, Sequence[SampledSoFar]], None] = lambda *_: None

    def intercept(self, wrap_generate: Callable[..., Any], on_abort: Callable[..., None]) -> None:
        self._on_abort = on_abort
        self.captured_generate = wrap_generate(self.generate)

    async def generate(
        self, prompt: dict[str, list[int]], params: Params, request_id: str, **_: Any
    ) -> AsyncGenerator[Output, None]:
        tokens = prompt["prompt_token_ids"]
        state = self._running[request_id] = _Running(tokens)
        try:
            for step in range(params.max_tokens):
                await self._unpaused.wait()
                await asyncio.sleep(0)
                if state.aborted:
                    part = self._part(state, params, slice(0, 0), last=False)
                    part.finish_reason = "abort"
                    yield Output(tokens, [part], True)
                    return
                if not state.starts or state.starts[-1][0] != self.label:
                    state.starts.append((self.label, step))
                state.tokens.append(100 + step)
                state.logprobs.append({100 + step: Logprob(fake_logprob(self.weights, step))})
                last = step == params.max_tokens - 1
                if params.output_kind is Kind.DELTA:
                    yield Output(tokens, [self._part(state, params, slice(step, step + 1), last)], last)
                elif last:
                    yield Output(tokens, [self._part(state, params, slice(0, None), last)], True)
        except (asyncio.CancelledError, GeneratorExit):
            self._tell_abort(request_id, state)
            raise
        finally:
            del self._running[request_id]

    def _tell_abort(self, request_id: str, state: _Running) -> None:
        sampled = SampledSoFar(0, state.prompt, list(state.tokens), list(state.logprobs), list(state.starts), "x")
        self._on_abort(request_id, [sampled])

    async def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if (state := self._running.get(request_id)) is not None and not state.aborted:
                self._tell_abort(request_id, state)
                state.aborted = True

    def _part(self, state: _Running, params: Params, which: slice, last: bool) -> Part:
        ends = [start for _, start in state.starts[1:]] + [len(state.tokens)]
        spans = [Span(label, start, end) for (label, start), end in zip(state.starts, ends, strict=True)]
        part = Part(0, "x" * len(state.tokens[which]), state.tokens[which], None)
        if params.logprobs is not None:
            part.logprobs, part.cumulative_logprob = state.logprobs[which], -1.0
        if last:
            part.finish_reason, part.weight_versions = "length", spans
        return part

    def label_of_first_token(self, request_id: str) -> str | None:
        state = self._running.get(request_id)
        return state.starts[0][0] if state and state.starts else None

    async def pause(self) -> None:
        self.calls.append("pause")
        self._unpaused.clear()

    async def resume(self) -> None:
        self.calls.append("resume")
        self._unpaused.set()

    async def reload_weights(self, folder: Path) -> None:
        self.calls.append(f"reload {folder.name}")
        if folder.name in self.broken:
            raise RuntimeError(f"cannot load {folder.name}")
        self.weights = folder.name

    async def set_weight_label(self, label: str) -> None:
        self.calls.append("label")
        self.label = label

    async def reset_prefix_cache(self) -> None:
        self.calls.append("reset cache")

    async def add_adapter(self, name: str, folder: Path) -> None:
        self.calls.append(f"add {name}")
        if folder.name in self.broken:
            raise RuntimeError(f"cannot load {folder.name}")
        self.adapters[name] = folder.name

    async def remove_adapter(self, name: str) -> None:
        self.calls.append(f"remove {name}")
        del self.adapters[name]

    async def logprobs_at(
        self, queries: Sequence[tuple[Sequence[int], Sequence[int]]], adapter: str | None = None
    ) -> list[list[float]]:
        self.calls.append("probe")
        assert self._unpaused.is_set(), "a paused engine answers no probe"
        weights = self.weights if adapter is None else self.adapters[adapter]
        return [[fake_logprob(weights, index) for index in positions] for _, positions in queries]
