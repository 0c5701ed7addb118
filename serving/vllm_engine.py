"""The engine: vLLM's own, its OpenAI application, what is captured of it, and the verbs the swap needs.

Written against vLLM 0.32. What it reads of the engine's insides (the output processor's running requests) is guarded
by `check_engine_internals`, so that another version fails at start and not in the data. What is hung into the
application's routes is in `serving.vllm_routes`.
"""

import asyncio
import os
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from serving.capture import SampledSoFar
from serving.vllm_options import EngineOptions, parse_arguments, set_environment, use_one_process

_INTERNALS = ("request_states", "external_req_ids")


class EngineError(RuntimeError):
    """The engine refused a verb. The message says which and why."""


class VllmEngine:
    """One engine. Use `start`; every method is for the event loop that started it."""

    def __init__(self, engine: Any, arguments: Namespace) -> None:
        self._engine = engine
        self._arguments = arguments
        self._raw_generate: Callable[..., AsyncGenerator[Any, None]] = engine.generate
        self._adapters: dict[str, Any] = {}
        """Name → what the engine's routes must be told of a loaded adapter."""
        self._next_adapter_id = 1
        self._probes = 0
        self._models: Any = None

    @classmethod
    async def start(cls, options: EngineOptions) -> "VllmEngine":
        """Load the model and start the engine's processes (tens of seconds)."""
        set_environment(options)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = parse_arguments(options)
        usage = UsageContext.OPENAI_API_SERVER
        config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(usage)
        with use_one_process(config):
            engine = AsyncLLM.from_vllm_config(config, usage_context=usage)
        check_engine_internals(engine)
        await engine.reset_mm_cache()
        return cls(engine, arguments)

    async def build_app(self) -> Any:
        """vLLM's own FastAPI application on this engine."""
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app

        tasks = await self._engine.get_supported_tasks()
        app = build_app(self._arguments, tasks, self._engine.model_config)
        await init_app_state(self._engine, app.state, self._arguments, tasks)
        # vLLM's handler for a dead engine stops its own HTTP server; here Ray Serve's health check replaces all.
        app.state.server = Namespace(should_exit=False)
        self._models = app.state.openai_serving_models
        self._models.lora_requests.update(self._adapters)  # those that were loaded before there were routes
        return app

    # --- capture -----------------------------------------------------------------------------------------------------

    def intercept(
        self,
        wrap_generate: Callable[[Callable[..., AsyncGenerator[Any, None]]], Callable[..., AsyncGenerator[Any, None]]],
        on_abort: Callable[[str, Sequence[SampledSoFar]], None],
    ) -> None:
        """Put a capture in front of `generate`, and tell it what an aborted request had sampled before it is gone."""
        abort = self._engine.abort

        async def observed_abort(request_id: Any, internal: bool = False) -> None:
            names = {request_id} if isinstance(request_id, str) else set(request_id)
            for external, sampled in self._sampled_so_far(names, internal).items():
                on_abort(external, sampled)
            await abort(request_id, internal)

        self._engine.generate = wrap_generate(self._raw_generate)
        self._engine.abort = observed_abort

    async def abort(self, request_ids: Iterable[str]) -> None:
        """End these calls of `generate`; they end as aborted, with what they had sampled. An ended one is no error."""
        await self._engine.abort(list(request_ids))

    def _sampled_so_far(self, names: set[str], internal: bool) -> dict[str, list[SampledSoFar]]:
        found: dict[str, list[SampledSoFar]] = {}
        for state in self._engine.output_processor.request_states.values():
            parent = state.parent_req
            external = state.external_req_id if parent is None else parent.external_req_id
            own = {state.request_id, parent.request_id if parent else None} if internal else {external}
            if state.detokenizer is None or not own & names:
                continue
            found.setdefault(external, []).append(
                SampledSoFar(
                    index=state.request_index,
                    prompt_token_ids=list(state.prompt_token_ids or ()),
                    token_ids=list(state.detokenizer.output_token_ids),
                    logprobs=state.logprobs_processor.logprobs,
                    label_starts=list(state.weight_version_starts),
                    text=getattr(state.detokenizer, "output_text", ""),
                )
            )
        return found

    def label_of_first_token(self, request_id: str) -> str | None:
        """The weight label of the first token that the running request `request_id` (of any choice) sampled."""
        processor = self._engine.output_processor
        for internal in processor.external_req_ids.get(request_id, ()):
            starts = processor.request_states[internal].weight_version_starts
            if starts:
                return starts[0][0]
        return None

    # --- weights -----------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Freeze what runs, keeping it; its key-value cache is dropped, so that nothing of the old weights is read."""
        await self._engine.pause_generation(mode="keep", clear_cache=True)

    async def resume(self) -> None:
        await self._engine.resume_generation()

    async def reload_weights(self, folder: Path) -> None:
        """Load the complete model in `folder` in place. Raises EngineError; the weights are then undefined."""
        try:
            await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        except Exception as error:
            raise EngineError(f"the engine could not load {folder}: {error}") from error

    async def set_weight_label(self, label: str) -> None:
        """Label of all tokens sampled from now on. Call it while paused."""
        await self._engine.update_weight_version(label)

    async def reset_prefix_cache(self) -> None:
        """Drop cached prefixes. Raises EngineError where blocks are still in use."""
        if not await self._engine.reset_prefix_cache():
            raise EngineError("the engine could not drop its prefix cache: blocks are still in use")

    async def add_adapter(self, name: str, folder: Path) -> None:
        """Load the adapter in `folder` under the new name `name`. Raises EngineError; nothing is loaded then."""
        from vllm.lora.request import LoRARequest

        request = LoRARequest(lora_name=name, lora_int_id=self._next_adapter_id, lora_path=str(folder))
        self._next_adapter_id += 1
        try:
            loaded = await self._engine.add_lora(request)
        except Exception as error:
            raise EngineError(f"the engine could not load the adapter {name}: {error}") from error
        if not loaded:
            raise EngineError(f"the engine did not load the adapter {name}")
        self._adapters[name] = request
        if self._models is not None:
            self._models.lora_requests[name] = request

    async def remove_adapter(self, name: str) -> None:
        """Unload `name`. Raises EngineError where the engine still holds it afterwards."""
        if self._models is not None:
            self._models.lora_requests.pop(name, None)
        number = self._adapters[name].lora_int_id
        await self._engine.remove_lora(number)
        if number in await self._engine.list_loras():
            raise EngineError(f"the engine still holds the adapter {name} after removing it")
        del self._adapters[name]

    @property
    def takes_adapters(self) -> bool:
        return bool(self._arguments.enable_lora)

    def routable(self) -> set[str]:
        """The adapters that the engine's routes take requests for."""
        return set() if self._models is None else set(self._models.lora_requests)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def logprobs_at(
        self, queries: Sequence[tuple[Sequence[int], Sequence[int]]], adapter: str | None = None
    ) -> list[list[float]]:
        """For each (token ids, positions ≥ 1) of `queries`, log p(token | tokens before) at each position.

        Nothing is read from a prefix cache, and nothing is captured.
        """
        ask = self._forced_logprobs if self.takes_adapters else self._prompt_logprobs
        return list(await asyncio.gather(*(ask(tokens, positions, adapter) for tokens, positions in queries)))

    async def _prompt_logprobs(
        self, tokens: Sequence[int], positions: Sequence[int], adapter: str | None
    ) -> list[float]:
        output = await self._ask(list(tokens), self._parameters(prompt_logprobs=0), adapter)
        return [float(output.prompt_logprobs[position][tokens[position]].logprob) for position in positions]

    async def _forced_logprobs(
        self, tokens: Sequence[int], positions: Sequence[int], adapter: str | None
    ) -> list[float]:
        """One request a position, with that token forced: `prompt_logprobs` kills an engine with LoRA
        (`serving.vllm_routes.LORA_LIMIT`).

        The log-probability is of the raw model, from before the mask that forces the token.
        """

        async def at(position: int) -> float:
            token = tokens[position]
            params = self._parameters(logprobs=0, allowed_token_ids=[token], skip_reading_prefix_cache=True)
            part = (await self._ask(list(tokens[:position]), params, adapter)).outputs[0]
            return float(part.logprobs[0][token].logprob)

        return list(await asyncio.gather(*map(at, positions)))

    async def generate_token(self, tokens: Sequence[int], adapter: str | None = None) -> int:
        """One greedy token after `tokens`, uncaptured: whether the engine still generates. Raises EngineError."""
        return (await self._ask(list(tokens), self._parameters(), adapter)).outputs[0].token_ids[0]

    @staticmethod
    def _parameters(**others: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        kind = RequestOutputKind.FINAL_ONLY
        return SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, output_kind=kind, **others)

    async def _ask(self, tokens: list[int], params: Any, adapter: str | None) -> Any:
        from vllm import TokensPrompt
        from vllm.lora.request import LoRARequest

        self._probes += 1
        lora = None
        if adapter is not None:
            lora = LoRARequest(lora_name=adapter, lora_int_id=self._adapters[adapter].lora_int_id, lora_path="loaded")
        last = None
        async for output in self._raw_generate(
            TokensPrompt(prompt_token_ids=tokens), params, f"probe-{os.getpid()}-{self._probes}", lora_request=lora
        ):
            last = output
        if last is None:
            raise EngineError("the engine ended a request without an output")
        return last

    @property
    def running(self) -> int:
        """Requests in the engine, probes included."""
        return self._engine.get_num_unfinished_requests()

    @property
    def dead(self) -> bool:
        return bool(self._engine.errored)

    @property
    def vocabulary_start(self) -> int:
        """A token id that begins a text."""
        tokenizer = self._engine.get_tokenizer()
        return tokenizer.bos_token_id if tokenizer.bos_token_id is not None else 0

    def stop(self) -> None:
        self._engine.shutdown()


def check_engine_internals(engine: Any) -> None:
    """Raise EngineError unless the engine's output processor is shaped as `VllmEngine` reads it."""
    missing = [name for name in _INTERNALS if not hasattr(engine.output_processor, name)]
    if missing:
        raise EngineError(f"this vLLM's output processor has no {', '.join(missing)}; install vLLM 0.32")
