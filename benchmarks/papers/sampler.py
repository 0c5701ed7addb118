"""Samples many episodes in one batch, each row from weights of its own.

::

    row 0   version 17   BEGIN FIND 2 7 GIVES CALL 7 END RESULT 3 …
    row 1   version 21   BEGIN FIND 1 4 GIVES CALL 4 …
                         ─────────────────────► one position a step

A linear layer is one batched product with ``[B, out, in]`` weights, so that any mix of versions costs the same. All
rows stand at the same position: a prompt or observation token is forced, any other is sampled. Where a row changes its
version, its cache is computed anew under the new weights, as an engine does that clears its cache at a swap; so every
logged probability is exactly that of the version that the span names. Sampling is at temperature 1, without truncation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
from transformers import LlamaConfig

from benchmarks.papers.tasks import Task, Token
from benchmarks.papers.tasks.episode import Episode

Weights = Mapping[str, Tensor]
"""All weights of a Llama by their name in transformers."""


@dataclass(slots=True)
class Sample:
    """One finished episode. `logprobs` and `versions` belong to the action tokens, in order."""

    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]
    reward: float


@dataclass(slots=True)
class _Row:
    """An episode under way."""

    episode: Episode
    versions: Sequence[int]
    """Of each turn."""
    tokens: list[int]
    mask: list[int]
    turn: int = 0
    action: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled_by: list[int] = field(default_factory=list)
    done: bool = False


class Sampler:
    """Decodes a Llama of `config`; the same generator state gives the same samples."""

    def __init__(self, config: LlamaConfig, max_length: int) -> None:
        """`max_length`: the longest sequence in tokens."""
        self._config = config
        self._heads = config.num_attention_heads
        self._width = config.hidden_size // self._heads
        if config.num_key_value_heads != self._heads or config.tie_word_embeddings:
            raise ValueError("config: the sampler knows neither grouped key-value heads nor tied embeddings")
        frequencies = 10_000.0 ** -(torch.arange(0, self._width, 2).float() / self._width)
        angles = torch.arange(max_length)[:, None] * frequencies
        self._cos, self._sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
        self._max_length = max_length

    @torch.no_grad()
    def sample(
        self,
        task: Task,
        episodes: Sequence[Episode],
        versions: Sequence[Sequence[int]],
        weights: Mapping[int, Weights],
        generator: torch.Generator,
    ) -> list[Sample]:
        """Play `episodes` to their ends. `versions[row][turn]` samples that turn; `weights` holds them by version."""
        rows = [_Row(e, v, list(e.prompt), [0] * len(e.prompt)) for e, v in zip(episodes, versions, strict=True)]
        own = {name: torch.stack([weights[v[0]][name] for v in versions]) for name in weights[versions[0][0]]}
        cache = self._empty_cache(len(rows))
        for position in range(self._max_length - 1):
            current = torch.tensor([[row.tokens[min(position, len(row.tokens) - 1)]] for row in rows])
            logprobs = self._forward(own, cache, current, position)[:, -1].log_softmax(-1)
            drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)
            picked = logprobs.gather(1, drawn)[:, 0].tolist()
            switched: list[int] = []
            for number, (row, token, logprob) in enumerate(zip(rows, drawn[:, 0].tolist(), picked, strict=True)):
                if row.done or position + 1 < len(row.tokens):
                    continue
                turn = row.turn
                _take(row, task, token, logprob)
                if not row.done and row.turn > turn and row.versions[row.turn] != row.versions[turn]:
                    switched.append(number)
            if all(row.done for row in rows):
                break
            self._switch(rows, switched, weights, own, cache, position + 1)
        else:
            raise RuntimeError(f"task {task.name}: an episode is longer than max_length {self._max_length}")
        return [Sample(row.tokens, row.mask, row.logprobs, row.sampled_by, row.episode.reward) for row in rows]

    def score(self, weights: Weights, tokens: Sequence[int]) -> Tensor:
        """Log-probabilities ``[L − 1]`` of tokens 1… given those before them, under one set of weights."""
        own = {name: tensor[None] for name, tensor in weights.items()}
        ids = torch.tensor([tokens])
        logits = self._forward(own, self._empty_cache(1), ids[:, :-1], 0)
        return logits.log_softmax(-1).gather(2, ids[:, 1:, None])[0, :, 0]

    def _switch(
        self,
        rows: Sequence[_Row],
        switched: Sequence[int],
        weights: Mapping[int, Weights],
        own: dict[str, Tensor],
        cache: Tensor,
        length: int,
    ) -> None:
        """Give the `switched` rows the weights of their new turn, and a cache of their first `length` tokens."""
        if not switched:
            return
        for number in switched:
            for name, tensor in weights[rows[number].versions[rows[number].turn]].items():
                own[name][number] = tensor
        part = {name: tensor[list(switched)] for name, tensor in own.items()}
        fresh = self._empty_cache(len(switched))
        self._forward(part, fresh, torch.tensor([rows[number].tokens[:length] for number in switched]), 0)
        cache[:, :, list(switched)] = fresh

    def _empty_cache(self, rows: int) -> Tensor:
        """Keys and values of each layer: ``[layers, 2, B, heads, max length, width]``."""
        return torch.zeros(self._config.num_hidden_layers, 2, rows, self._heads, self._max_length, self._width)

    def _forward(self, own: Weights, cache: Tensor, tokens: Tensor, start: int) -> Tensor:
        """Logits ``[B, n, V]`` after `tokens` ``[B, n]`` at positions `start`…, whose keys and values join `cache`."""
        rows, count = tokens.shape
        end = start + count
        cos, sin = self._cos[start:end], self._sin[start:end]
        epsilon = self._config.rms_norm_eps

        def norm(x: Tensor, name: str) -> Tensor:
            return rms_norm(x, x.shape[-1:], eps=epsilon) * own[name][:, None]

        def multiply(x: Tensor, name: str) -> Tensor:
            return torch.bmm(x, own[name].transpose(1, 2))

        def split(x: Tensor) -> Tensor:
            return x.view(rows, count, self._heads, self._width).transpose(1, 2)

        def rotate(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-second, first], dim=-1) * sin

        hidden = own["model.embed_tokens.weight"][torch.arange(rows)[:, None], tokens]
        mask = torch.ones(count, end, dtype=torch.bool).tril(start)
        for layer in range(self._config.num_hidden_layers):
            at = f"model.layers.{layer}."
            x = norm(hidden, f"{at}input_layernorm.weight")
            query, key, value = (split(multiply(x, f"{at}self_attn.{name}_proj.weight")) for name in "qkv")
            keys, values = cache[layer]
            keys[:, :, start:end], values[:, :, start:end] = rotate(key), value
            mixed = scaled_dot_product_attention(rotate(query), keys[:, :, :end], values[:, :, :end], attn_mask=mask)
            hidden = hidden + multiply(mixed.transpose(1, 2).flatten(2), f"{at}self_attn.o_proj.weight")
            x = norm(hidden, f"{at}post_attention_layernorm.weight")
            gated = silu(multiply(x, f"{at}mlp.gate_proj.weight")) * multiply(x, f"{at}mlp.up_proj.weight")
            hidden = hidden + multiply(gated, f"{at}mlp.down_proj.weight")
        return multiply(norm(hidden, "model.norm.weight"), "lm_head.weight")


def _take(row: _Row, task: Task, token: int, logprob: float) -> None:
    """Append a sampled token; where it ends the action, let the environment answer."""
    row.tokens.append(token)
    row.mask.append(1)
    row.action.append(token)
    row.logprobs.append(logprob)
    row.sampled_by.append(row.versions[row.turn])
    if token != Token.END and len(row.action) < task.max_action:
        return
    observation = row.episode.observe(row.action)
    row.turn += 1
    if observation is None or row.turn >= task.max_turns:
        row.done = True
        return
    row.action = []
    row.tokens += observation
    row.mask += [0] * len(observation)


QUESTIONS = 256
"""Questions of a task, as of a data set that training goes through many times."""


def draw_episodes(task: Task, rng: Random, count: int, group_size: int) -> list[Episode]:
    """`count` episodes; each `group_size` of them are the same question, its environment included.

    Raises ValueError where the groups do not fill the count.
    """
    if count % group_size:
        raise ValueError(f"batch of {count} cannot be split into groups of {group_size}")
    numbers = [rng.randrange(QUESTIONS) for _ in range(count // group_size)]
    return [task.make(Random(number)) for number in numbers for _ in range(group_size)]
