"""Capture at the engine: what every choice of every route sampled, exactly, without touching the answer.

`Capture.generate` stands in for the engine's `generate`. It asks for the sampled token's log-probability where the
client did not (and hides it again), adds up the deltas, and hands one `Generation` a choice to the sink when the
request ends, however it ends. An error in here is logged and counted; the answer goes on.
"""

import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from serving.context import RequestContext, current_request
from serving.gate import Gate
from serving.schemas import Generation, Sampling, VersionSpan
from serving.weight_labels import Verdict, WeightLabels

logger = logging.getLogger(__name__)

_FAILED = "capture of inference %s failed"
_TURN = re.compile(r"_(\d+)$")
_PROMPT = re.compile(r"-(\d+)$")
_ADAPTER_VERSION = re.compile(r"@v(\d+)$")


@dataclass(frozen=True, slots=True)
class SampledSoFar:
    """What one choice had sampled when its request was aborted. `label_starts`: (weight label, first token index)."""

    index: int
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, Any]] | None
    label_starts: Sequence[tuple[str, int]]
    text: str


class VersionSource(Protocol):
    def label_of_first_token(self, request_id: str) -> str | None:
        """The weight label of the first token of a running request, None before it."""
        ...


@dataclass(slots=True)
class _Choice:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    label_spans: list[tuple[str, int, int]] | None = None


@dataclass(slots=True)
class Record:
    """One call of the engine while it runs."""

    context: RequestContext
    request_id: str
    sampling_params: Any
    adapter: str | None
    delta: bool
    prompt_index: int
    turn: int
    prompt_token_ids: Sequence[int] = ()
    choices: dict[int, _Choice] = field(default_factory=dict)
    first_token_at: float | None = None
    aborted: bool = False
    broken: bool = False

    def add(self, output: Any) -> None:
        """Take in one of the engine's outputs."""
        if output.prompt_token_ids:
            self.prompt_token_ids = output.prompt_token_ids
        for part in output.outputs:
            choice = self.choices.setdefault(part.index, _Choice())
            if not self.delta:
                choice.token_ids, choice.logprobs, choice.text = [], [], ""
            choice.token_ids.extend(part.token_ids)
            choice.logprobs.extend(_sampled_logprobs(part.token_ids, part.logprobs))
            choice.text += part.text
            if part.finish_reason is not None:
                choice.finish_reason = part.finish_reason
            if part.weight_versions is not None:
                choice.label_spans = [(span.version, span.start, span.end) for span in part.weight_versions]

    def add_aborted(self, sampled: SampledSoFar) -> None:
        """Take in what a choice had when the request was aborted, in place of what was seen of it so far."""
        self.aborted = True
        self.prompt_token_ids = sampled.prompt_token_ids
        starts = [*sampled.label_starts, ("", len(sampled.token_ids))]
        self.choices[sampled.index] = _Choice(
            token_ids=list(sampled.token_ids),
            logprobs=_sampled_logprobs(sampled.token_ids, sampled.logprobs),
            text=sampled.text,
            finish_reason="abort",
            label_spans=[(label, start, after) for (label, start), (_, after) in pairwise(starts)],
        )


def _sampled_logprobs(token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Any]] | None) -> list[float]:
    """The log-probability of each sampled token. Raises ValueError where the engine gave none: never padded."""
    if not token_ids:
        return []
    if logprobs is None or len(logprobs) != len(token_ids):
        raise ValueError(f"{0 if logprobs is None else len(logprobs)} log-probabilities for {len(token_ids)} tokens")
    return [float(by_token[token].logprob) for token, by_token in zip(token_ids, logprobs, strict=True)]


def split_request_id(request_id: str, inference_id: str) -> tuple[str, int, int]:
    """(the response's `id`, prompt index, turn) of the engine's `request_id`, which carries `inference_id`.

    The engine's routes name prompts ``cmpl-<id>-<prompt>`` and turns of a tool loop ``resp_<id>_<turn>``.
    """
    head, found, tail = request_id.partition(inference_id)
    if not found:
        raise ValueError("the engine's request id does not carry the inference id")
    prompt, turn = _PROMPT.fullmatch(tail), _TURN.fullmatch(tail)
    return head + inference_id, int(prompt[1]) if prompt else 0, int(turn[1]) if turn else 0


class Capture:
    """Stands between the engine's routes and the engine."""

    def __init__(
        self,
        generate: Callable[..., AsyncGenerator[Any, None]],
        sink: Callable[[Generation], None],
        *,
        gate: Gate,
        labels: WeightLabels,
        versions: VersionSource,
        model_name: str,
        in_train_share: Callable[[RequestContext], bool] = lambda _: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._generate = generate
        self._sink = sink
        self._gate = gate
        self._labels = labels
        self._versions = versions
        self._model_name = model_name
        self._in_train_share = in_train_share
        self._clock = clock
        self._running: dict[str, Record] = {}
        self.captured = 0
        self.failed = 0

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        """The engine's `generate`, captured where it serves a request. Outside of one (probes) it is the engine's."""
        context = current_request.get()
        if context is None:
            return self._generate(prompt, sampling_params, request_id, *args, **kwargs)
        return self._captured(context, prompt, sampling_params, request_id, *args, **kwargs)

    async def _captured(
        self, context: RequestContext, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        await enter_gate(context, self._gate)
        context.begin_call(request_id)
        hide_logprobs = sampling_params.logprobs is None
        if hide_logprobs:
            sampling_params = sampling_params.clone()
            sampling_params.logprobs = 0
        record = self._open(context, sampling_params, request_id, kwargs.get("lora_request"))
        inner = self._generate(prompt, sampling_params, request_id, *args, **kwargs)
        try:
            async for output in inner:
                self._note(record, output)
                context.engine_answered = True
                if hide_logprobs:
                    for part in output.outputs:
                        part.logprobs = None
                        part.cumulative_logprob = None
                yield output
        except Exception:
            context.engine_failed = True
            raise
        finally:
            try:
                await inner.aclose()
            finally:
                self._close(record)
                context.end_call(request_id)

    def on_abort(self, request_id: str, sampled: Sequence[SampledSoFar]) -> None:
        """The engine aborts `request_id`, which had sampled this."""
        record = self._running.get(request_id)
        if record is None or record.broken:
            return
        try:
            for one in sampled:
                record.add_aborted(one)
        except Exception:
            logger.exception(_FAILED, record.context.inference_id)
            self._fail(record)

    def _open(self, context: RequestContext, sampling_params: Any, request_id: str, adapter: Any) -> Record | None:
        try:
            context.response_id, prompt_index, turn = split_request_id(request_id, context.inference_id)
            if context.beam_search:
                return None  # its steps are requests of their own to the engine, and no sample of the policy
            record = Record(
                context=context,
                request_id=request_id,
                sampling_params=sampling_params,
                adapter=None if adapter is None else adapter.lora_name,
                delta=sampling_params.output_kind.name == "DELTA",
                prompt_index=prompt_index,
                turn=turn,
            )
        except Exception:
            self.failed += 1
            logger.exception("capture could not begin")
            return None
        self._running[request_id] = record
        return record

    def _note(self, record: Record | None, output: Any) -> None:
        if record is None or record.broken or record.aborted:  # an output still on its way was counted at the abort
            return
        try:
            record.add(output)
            if record.first_token_at is None and any(choice.token_ids for choice in record.choices.values()):
                record.first_token_at = self._clock()
                if record.context.policy_version is None:
                    record.context.policy_version = self._version_of_first_token(record)
        except Exception:
            logger.exception(_FAILED, record.context.inference_id)
            self._fail(record)

    def _version_of_first_token(self, record: Record) -> int | None:
        if record.adapter is not None:
            return adapter_version(record.adapter)
        finished = [choice.label_spans for choice in record.choices.values() if choice.label_spans]
        label = finished[0][0][0] if finished else self._versions.label_of_first_token(record.request_id)
        return None if label is None else WeightLabels.version(label)

    def _fail(self, record: Record) -> None:
        record.broken = True
        self.failed += 1

    def _close(self, record: Record | None) -> None:
        if record is None:
            return
        self._running.pop(record.request_id, None)
        if record.broken:
            return
        finished_at = self._clock()
        for index, choice in sorted(record.choices.items()):
            if not choice.token_ids:
                continue
            try:
                self._emit(record, index, choice, finished_at)
            except Exception:
                logger.exception(_FAILED, record.context.inference_id)
                self._fail(record)

    def _emit(self, record: Record, index: int, choice: _Choice, finished_at: float) -> None:
        """Hand the choice on, once the weights that sampled it are proved or known to be bad."""
        labels: list[str] = []
        if record.adapter is not None:
            spans: tuple[VersionSpan, ...] = (
                VersionSpan(start=0, end=len(choice.token_ids), version=adapter_version(record.adapter)),
            )
        else:
            if choice.label_spans is None:
                raise ValueError("the engine gave no version spans")
            labels = [label for label, _, _ in choice.label_spans]
            spans = tuple(
                VersionSpan(start=start, end=end, version=WeightLabels.version(label))
                for label, start, end in choice.label_spans
                if end > start
            )
        generation = self._generation(record, index, choice, spans, finished_at)

        def settle(verdict: Verdict) -> None:
            tainted = verdict is Verdict.TAINTED
            update = {"trainable": False, "untrainable_reason": "weights failed their proof"} if tainted else {}
            self._sink(generation.model_copy(update=update))
            self.captured += 1

        self._labels.when_decided(labels, settle)

    def _generation(
        self, record: Record, index: int, choice: _Choice, spans: tuple[VersionSpan, ...], finished_at: float
    ) -> Generation:
        context, params = record.context, record.sampling_params
        reason = None
        if not context.train:
            reason = "x-train: false"
        elif not self._in_train_share(context):
            reason = "outside serving.train_share"
        return Generation(
            inference_id=context.inference_id,
            prompt_index=record.prompt_index,
            turn=record.turn,
            choice=index,
            episode_id=context.episode_id,
            group_id=context.group_id,
            api_key_id=context.api_key_id,
            user_id=context.user_id,
            tags=dict(context.tags),
            client_request_id=context.client_request_id,
            model=self._model_name,
            adapter=record.adapter,
            prompt_token_ids=tuple(record.prompt_token_ids),
            token_ids=tuple(choice.token_ids),
            behavior_logprobs=tuple(choice.logprobs),
            spans=spans,
            sampling=Sampling(
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=max(params.top_k, 0),
                max_tokens=params.max_tokens,
                seed=params.seed,
                n=params.n,
                structured=params.structured_outputs is not None,
            ),
            finish_reason=choice.finish_reason or "abort",
            trainable=reason is None,
            untrainable_reason=reason,
            text=choice.text,
            created_at=context.created_at,
            first_token_at=record.first_token_at,
            finished_at=finished_at,
        )


async def enter_gate(context: RequestContext, gate: Gate) -> None:
    """Count `context` as running, once, waiting while the gate is shut."""
    if context.leave_gate is None:
        await gate.enter()
        if context.leave_gate is not None:  # another call of the same request (beam search makes several) was first
            gate.leave()
            return
        context.leave_gate = gate.leave


def adapter_version(name: str) -> int:
    """The policy version of an adapter ``policy@vN``. Raises ValueError for another name."""
    found = _ADAPTER_VERSION.search(name)
    if found is None:
        raise ValueError(f"adapter {name!r} is not named after a policy version")
    return int(found[1])
