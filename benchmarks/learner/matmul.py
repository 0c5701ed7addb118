"""The machine's matrix product peak, and what share of it a train step reaches."""

import os
import time

import torch
from transformers import AutoConfig

SIZES = (512, 1024, 2048)


def measure_peak(dtype: torch.dtype, *, repeats: int = 5) -> float:
    """The best of square products of several sizes, floating-point operations a second."""
    torch.set_num_threads(int(os.environ.get("BENCHMARK_THREADS", len(os.sched_getaffinity(0)))))
    best = 0.0
    for size in SIZES:
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        torch.matmul(a, b)
        for _ in range(repeats):
            began = time.perf_counter()
            torch.matmul(a, b)
            best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def count_step(folder: str, tokens: int, action_tokens: int) -> float:
    """Floating-point operations of the matrix products that one LoRA step on `tokens` needs.

    Linear layers: 2 a weight and token forwards, 2 backwards (towards the input only: the weights are frozen).
    Output layer: the same, at action tokens only. Attention scores, adapters and all else are left out, so the share
    of the peak is understated.
    """
    config = AutoConfig.from_pretrained(folder)
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    linear = layers * (2 * hidden * queries + 2 * hidden * keys + 3 * hidden * inner)
    return 4.0 * (linear * tokens + config.vocab_size * hidden * action_tokens)
