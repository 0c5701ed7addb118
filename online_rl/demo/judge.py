"""The held-out judge: how good the answers still are, by a measure that the users' reward does not use.

On prompts that are never trained on, ``quality_last = min(likelihood, diversity)`` with

- ``likelihood = min(1, exp(l − l_base))``: `l` the mean log-probability per token of the answers under the frozen
  base model, `l_base` the same of the base model's own answers to the same prompts. Gibberish is unlikely: it falls.
- ``diversity = min(1, d / d_base)``: `d` the share of distinct bigrams among all bigrams of all answers. One phrase
  said about everything repeats itself: it falls.
"""

import asyncio
import math
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from online_rl.demo.options import DemoError
from online_rl.demo.styles import build_messages

BATCH = 20
"""Answers in one forward pass."""
NICENESS = 5
"""Behind the engine, before the learner."""


@dataclass(frozen=True)
class JudgedAnswer:
    """A held-out prompt and what was answered to it."""

    topic: str
    text: str
    ended: bool
    """The model ended the answer itself (else the token limit did)."""


def judge_likelihood(mean_logprob: float, base_mean_logprob: float) -> float:
    """``min(1, exp(l − l_base))``, both in nats a token."""
    return min(1.0, math.exp(mean_logprob - base_mean_logprob))


def distinct_bigram_share(texts: Sequence[str]) -> float:
    """Distinct pairs of neighbouring words over all pairs of all texts, in lower case; 0 where there is no pair."""
    pairs = [pair for text in texts for pair in pairwise(text.lower().split())]
    return len(set(pairs)) / len(pairs) if pairs else 0.0


def judge_diversity(texts: Sequence[str], base_texts: Sequence[str]) -> float:
    """The ratio of the two shares of distinct bigrams, at most 1. Raises ValueError where the base has no bigram."""
    base = distinct_bigram_share(base_texts)
    if base == 0.0:
        raise ValueError("the base model's answers hold no pair of words to compare with")
    return min(1.0, distinct_bigram_share(texts) / base)


class Judge:
    """Scores answers under the frozen base model, on one low-priority thread of this process. Not thread-safe."""

    def __init__(self, model_folder: Path) -> None:
        self._folder = model_folder
        self._loaded: tuple[Any, Any] | None = None
        self._means: dict[tuple[JudgedAnswer, ...], float] = {}

    def judge(self, answers: Sequence[JudgedAnswer], base_answers: Sequence[JudgedAnswer]) -> dict[str, float]:
        """The two parts of the quality. Run it in a thread of its own: it lowers the thread's priority."""
        lower_priority()
        return {
            "likelihood": judge_likelihood(self.mean_logprob(answers), self.mean_logprob(base_answers)),
            "diversity": judge_diversity([a.text for a in answers], [a.text for a in base_answers]),
        }

    def mean_logprob(self, answers: Sequence[JudgedAnswer]) -> float:
        """Log-probability of all tokens of all answers under the base model, over their number. Nats a token."""
        key = tuple(answers)
        if key not in self._means:
            logprobs: list[float] = []
            for start in range(0, len(key), BATCH):
                logprobs += self._logprobs(key[start : start + BATCH])
            if not logprobs:
                raise ValueError("there is no token to judge")
            self._means[key] = sum(logprobs) / len(logprobs)
        return self._means[key]

    def _logprobs(self, answers: Sequence[JudgedAnswer]) -> list[float]:
        """Of all tokens of `answers`, in one forward pass, padded on the right, where a causal model ignores it."""
        import torch

        model, _ = self._load()
        sequences = [self._encode(answer) for answer in answers]
        shared, cache = self._shared_prefix([prompt for prompt, _ in sequences])
        longest = max(len(prompt) + len(sampled) for prompt, sampled in sequences) - shared
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)
        context = torch.zeros(len(sequences), longest, dtype=torch.bool)
        for row, (prompt, sampled) in enumerate(sequences):
            rest, end = prompt[shared:], len(prompt) - shared + len(sampled)
            ids[row, :end] = torch.tensor(rest + sampled)
            context[row, len(rest) - 1 : end - 1] = True
        targets = torch.tensor([token for _, sampled in sequences for token in sampled], dtype=torch.long)
        with torch.inference_mode():
            hidden = model.get_decoder()(input_ids=ids, past_key_values=cache).last_hidden_state[context]
            logprobs = torch.log_softmax(model.get_output_embeddings()(hidden).float(), -1)
        return logprobs.gather(-1, targets[:, None])[:, 0].tolist()

    def _shared_prefix(self, prompts: Sequence[list[int]]) -> tuple[int, Any]:
        """How many tokens all `prompts` begin with, and the model's cache of them for each prompt.

        The long system prompt is the same in all questions; computing it once makes judging three times as fast.
        """
        import torch

        model, _ = self._load()
        columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)  # one token must be left to predict from
        prefix = [tokens[0] for tokens in takewhile(lambda tokens: len(set(tokens)) == 1, columns)]
        if not prefix:
            return 0, None
        with torch.inference_mode():
            cache = model.get_decoder()(input_ids=torch.tensor([prefix]), use_cache=True).past_key_values
            cache.batch_repeat_interleave(len(prompts))
        return len(prefix), cache

    def _encode(self, answer: JudgedAnswer) -> tuple[list[int], list[int]]:
        """Token ids of the prompt and of the answer, its end included where the model ended it."""
        _, tokenizer = self._load()
        prompt = tokenizer.apply_chat_template(build_messages(answer.topic), tokenize=False, add_generation_prompt=True)
        ending = [tokenizer.eos_token_id] if answer.ended else []
        return (
            tokenizer.encode(prompt, add_special_tokens=False),
            tokenizer.encode(answer.text, add_special_tokens=False) + ending,
        )

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            from online_rl.base_model import best_dtype

            torch.set_num_threads(1)  # the service needs the cores more
            tokenizer = AutoTokenizer.from_pretrained(self._folder)
            model = AutoModelForCausalLM.from_pretrained(self._folder, dtype=best_dtype(torch.device("cpu"))).eval()
            self._loaded = model, tokenizer
        return self._loaded


def lower_priority() -> None:
    """Of the calling thread alone: on Linux a niceness belongs to a thread. Elsewhere nothing happens."""
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


async def judge_apart(
    judge: Judge, answers: Sequence[JudgedAnswer], base_answers: Sequence[JudgedAnswer]
) -> dict[str, float]:
    """`Judge.judge` on a thread that an interrupted program does not wait for."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[dict[str, float]] = loop.create_future()

    def finish(parts: dict[str, float] | None) -> None:
        if result.done():
            return
        if parts is None:
            result.set_exception(DemoError("the held-out judge failed; its traceback is above"))
        else:
            result.set_result(parts)

    def work() -> None:
        parts = None
        try:
            parts = judge.judge(answers, base_answers)
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finish, parts)

    threading.Thread(target=work, name="judge", daemon=True).start()
    return await result
