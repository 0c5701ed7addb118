"""New weights into a running engine, proved before any traffic meets them.

In place: shut the gate → drain → pause → reload → label → resume → probe → open the gate. When anything fails the
former version is loaded again behind the same shut gate, and tokens that the bad weights sampled are marked.
Side by side (`AdapterSwap`): load under a new name → probe → make it the default; the former ones stay for a while.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from serving.artifact import Artifact
from serving.gate import Gate
from serving.probe import ProbeVerdict, judge_delivery
from serving.weight_labels import WeightLabels

logger = logging.getLogger(__name__)


class WeightEngine(Protocol):
    """The engine as the swap sees it."""

    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def reload_weights(self, folder: Path) -> None: ...
    async def set_weight_label(self, label: str) -> None: ...
    async def reset_prefix_cache(self) -> None: ...
    async def add_adapter(self, name: str, folder: Path) -> None: ...
    async def remove_adapter(self, name: str) -> None: ...
    async def logprobs_at(
        self, queries: Sequence[tuple[Sequence[int], Sequence[int]]], adapter: str | None = None
    ) -> list[list[float]]: ...


class SwapFailed(RuntimeError):
    """The version was not delivered; the former one answers again. The message says why."""


class ReplicaUnusable(RuntimeError):
    """Neither the new nor the former weights could be proved: the replica must start again."""


@dataclass(frozen=True, slots=True)
class SwapReport:
    """How a delivery went. `stalled_seconds`: how long new requests waited, of which `stages` says for what."""

    version: int
    seconds: float
    stalled_seconds: float
    drained: bool
    verdict: ProbeVerdict | None
    """None where the version has no probes (the base model)."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds of ``drain``, ``pause``, ``reload`` and ``prove``."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def prove(
    engine: WeightEngine, artifact: Artifact, tolerance: float, adapter: str | None = None
) -> ProbeVerdict | None:
    """Ask the engine for the probes' log-probabilities and judge them; None where the artifact has no probes."""
    if not artifact.probes:
        return None
    rows = await engine.logprobs_at([(probe.token_ids, probe.positions) for probe in artifact.probes], adapter)
    learner = [value for probe in artifact.probes for value in probe.logprobs]
    parent = [value for probe in artifact.probes for value in probe.parent_logprobs]
    return judge_delivery([value for row in rows for value in row], learner, parent, tolerance)


class InPlaceSwap:
    """One version at a time (`swap.mode` merged or full)."""

    def __init__(
        self,
        engine: WeightEngine,
        gate: Gate,
        labels: WeightLabels,
        *,
        drain_seconds: float,
        tolerance: float,
        model_name: str,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._labels = labels
        self._drain_seconds = drain_seconds
        self._tolerance = tolerance
        self._model_name = model_name
        self.current: Artifact | None = None
        self._stages: dict[str, float] = {}

    @property
    def version(self) -> int | None:
        return None if self.current is None else self.current.version

    def servable(self) -> list[Artifact]:
        return [] if self.current is None else [self.current]

    def hold(self, version: int | None) -> tuple[str, None] | None:
        """(the engine's model name, nothing to give back) for `version` (None: the live one); None if it is absent."""
        return (self._model_name, None) if version in (None, self.version) else None

    async def swap(self, target: Artifact) -> SwapReport:
        """Deliver `target`. Raises SwapFailed (the former version answers) or ReplicaUnusable."""
        begun = time.monotonic()
        async with self._gate.shut():
            drained = await self._gate.drain(self._drain_seconds)
            self._stages = {"drain": time.monotonic() - begun}
            problem, verdict = await self._load(target)
            if problem is not None:
                await self._go_back(problem)
                raise SwapFailed(f"version {target.version} was refused: {problem}")
            self.current = target
        seconds = time.monotonic() - begun
        return SwapReport(target.version, seconds, seconds, drained, verdict, self._stages)

    async def _load(self, artifact: Artifact) -> tuple[str | None, ProbeVerdict | None]:
        """(what is wrong or None, the proof). The gate is shut."""
        if artifact.weights is None:
            return "it has no merged weights", None
        label = self._labels.new(artifact.version)
        verdict: ProbeVerdict | None = None
        problem: str | None = None
        paused_at = time.monotonic()
        await self._engine.pause()
        reloaded_at = time.monotonic()
        try:
            await self._engine.reload_weights(artifact.weights)
            await self._engine.set_weight_label(label)
            await self._engine.reset_prefix_cache()
        except Exception as error:
            logger.exception("loading version %d failed", artifact.version)
            self._labels.decide(label, proved=False)
            return str(error), None  # still paused: nothing is sampled by weights half exchanged
        await self._engine.resume()
        resumed_at = time.monotonic()
        try:
            verdict = await prove(self._engine, artifact, self._tolerance)
        except Exception as error:
            logger.exception("probing version %d failed", artifact.version)
            problem = f"the probes could not be computed: {error}"
        if verdict is not None and not verdict.accepted:
            problem = verdict.reason
        self._labels.decide(label, proved=problem is None)
        proved_at = time.monotonic()
        self._stages |= {
            "pause": reloaded_at - paused_at,
            "reload": resumed_at - reloaded_at,
            "prove": proved_at - resumed_at,
        }
        return problem, verdict

    async def _go_back(self, problem: str) -> None:
        former = self.current
        if former is None:
            raise ReplicaUnusable(f"the first version could not be loaded: {problem}")
        worse, _ = await self._load(former)
        if worse is not None:
            raise ReplicaUnusable(f"{problem}; and going back to version {former.version} failed: {worse}")


@dataclass(slots=True)
class _Loaded:
    artifact: Artifact
    name: str | None
    """The adapter's name; None for the base model."""
    holds: int = 0
    doomed: bool = False


@dataclass(slots=True)
class _Hold:
    """Given back once."""

    swap: "AdapterSwap"
    loaded: _Loaded
    given_back: bool = field(default=False)

    def __call__(self) -> None:
        if not self.given_back:
            self.given_back = True
            self.loaded.holds -= 1


class AdapterSwap:
    """Several versions side by side, each an adapter with a name of its own (`swap.mode` lora).

    A name is never reused for other weights, so no cached prefix can come from them.
    """

    def __init__(self, engine: WeightEngine, *, keep: int, tolerance: float, model_name: str) -> None:
        self._engine = engine
        self._keep = keep
        self._tolerance = tolerance
        self._model_name = model_name
        self._loaded: dict[int, _Loaded] = {}
        self._current: int | None = None

    @property
    def version(self) -> int | None:
        return self._current

    def servable(self) -> list[Artifact]:
        return [loaded.artifact for _, loaded in sorted(self._loaded.items()) if not loaded.doomed]

    def hold(self, version: int | None) -> tuple[str, _Hold] | None:
        """(the engine's model name, what ends the hold) for `version` (None: the live one); None if not loaded."""
        loaded = self._loaded.get(self._current if version is None else version) if self._current is not None else None
        if loaded is None or loaded.doomed:
            return None
        loaded.holds += 1
        return loaded.name or self._model_name, _Hold(self, loaded)

    async def swap(self, target: Artifact) -> SwapReport:
        """Deliver `target` as the new default. Raises SwapFailed; the former default then goes on."""
        begun = time.monotonic()
        verdict: ProbeVerdict | None = None
        loaded = self._loaded.get(target.version)
        if loaded is None:
            loaded, verdict = await self._load(target)
            self._loaded[target.version] = loaded
        loaded.doomed = False
        self._current = target.version
        await self.unload_old()
        return SwapReport(target.version, time.monotonic() - begun, 0.0, True, verdict)

    async def _load(self, target: Artifact) -> tuple[_Loaded, ProbeVerdict | None]:
        if target.adapter is None:
            if target.version != 0:
                raise SwapFailed(f"version {target.version} was refused: it has no adapter")
            return _Loaded(target, None), None
        name = f"{self._model_name}@v{target.version}"
        try:
            await self._engine.add_adapter(name, target.adapter)
        except Exception as error:
            raise SwapFailed(f"version {target.version} was refused: {error}") from error
        try:
            verdict = await prove(self._engine, target, self._tolerance, name)
            problem = None if verdict is None or verdict.accepted else verdict.reason
        except Exception as error:
            logger.exception("probing version %d failed", target.version)
            verdict, problem = None, f"the probes could not be computed: {error}"
        if problem is not None:
            await self._engine.remove_adapter(name)
            raise SwapFailed(f"version {target.version} was refused: {problem}")
        return _Loaded(target, name), verdict

    async def unload_old(self) -> None:
        """Take out adapters beyond the newest `keep` that no request names any more."""
        adapters = sorted(version for version, loaded in self._loaded.items() if loaded.name is not None)
        keep = {*adapters[-self._keep :], self._current}
        for version in adapters:
            loaded = self._loaded[version]
            loaded.doomed = version not in keep
            if loaded.doomed and loaded.holds == 0 and loaded.name is not None:
                await self._engine.remove_adapter(loaded.name)
                del self._loaded[version]
