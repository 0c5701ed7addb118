"""How vLLM is started: what we choose of it, as its environment, its arguments and its processes.

Written against vLLM 0.32. The environment must be set before anything imports vLLM.
"""

import os
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving import engine_wait

GIB = 1 << 30
CPU_BLOCK = 32
"""Tokens of a block of the key-value cache on a CPU: the least that attention takes there. Only whole blocks of a
prompt are shared between requests: with the 128 that vLLM takes there, nothing of a system prompt of 60 tokens."""


class UnknownArgument(ValueError):
    """`serving.engine_args` holds what `vllm serve` does not take."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engine is started with."""

    model: Path
    model_name: str
    max_model_len: int
    max_num_seqs: int
    kv_cache_gib: float
    cpu_threads: str
    adapters: int = 0
    """Adapters that may be loaded together; 0 starts the engine without LoRA, which is faster on CPU."""
    adapter_rank: int = 16
    extra: dict[str, str | int | float | bool] = field(default_factory=dict)


def set_environment(options: EngineOptions) -> None:
    """Environment that vLLM reads at import or start: call before anything imports it."""
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "0"
    os.environ["VLLM_SERVER_DEV_MODE"] = "0"
    os.environ.pop("VLLM_API_KEY", None)
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # whole GiB only, and it would win over our own setting
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = options.cpu_threads


def runs_on_cpu() -> bool:
    """Whether this vLLM serves on the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def multiplies_bfloat16() -> bool:
    """Whether this CPU does it in hardware. Emulated it is slower than float32: 58 against 105 tokens/s at 12 streams
    on two cores with AVX-512 alone."""
    import torch

    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def parse_arguments(options: EngineOptions) -> Namespace:
    """The arguments of ``vllm serve`` for `options`. Raises UnknownArgument."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments: dict[str, str | int | float | bool] = {
        "model": str(options.model),
        "served-model-name": options.model_name,
        "max-model-len": options.max_model_len,
        "max-num-seqs": options.max_num_seqs,
        "disable-uvicorn-access-log": True,
    }
    if runs_on_cpu():
        os.environ.setdefault(engine_wait.VARIABLE, "0")
        arguments["dtype"] = "auto" if multiplies_bfloat16() else "float32"
        arguments["kv-cache-memory-bytes"] = int(options.kv_cache_gib * GIB)
        arguments["block-size"] = CPU_BLOCK
        arguments["enforce-eager"] = True  # reloading weights under a compiled model is unproven on CPU
    if options.adapters:
        arguments |= {
            "enable-lora": True,
            "max-loras": options.adapters,
            "max-cpu-loras": options.adapters,
            "max-lora-rank": options.adapter_rank,
        }
    arguments |= {name.replace("_", "-"): value for name, value in options.extra.items()}
    line: list[str] = []
    for name, value in arguments.items():
        if value is True:
            line.append(f"--{name}")
        elif value is False:
            line.append(f"--no-{name}")
        else:
            line += [f"--{name}", str(value)]
    try:
        return Namespace(**vars(make_arg_parser(FlexibleArgumentParser()).parse_args(line)))
    except SystemExit:
        raise UnknownArgument("serving.engine_args holds an argument that `vllm serve` does not take") from None


def use_one_process(config: Any) -> AbstractContextManager[None]:
    """Let an engine of one worker on a CPU run that worker in the process of its scheduler, started within the block.

    vLLM gives it a process of its own there, to set its threads before it loads OpenMP. Set around the start of the
    scheduler's process they are the same, and the third import of vLLM, a third of the start, is saved.
    """
    if not runs_on_cpu() or config.parallel_config.world_size_across_dp != 1:
        return nullcontext()
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    config.parallel_config.distributed_executor_backend = "uni"
    return OMPProcessManager(config).configure_omp_envs(0, 0)
