"""The held-out judge: how good the answers still are, by a measure that the users' reward does not use.

On prompts that are never trained on, ``quality_last = min(likelihood, diversity)`` with

- ``likelihood = min(1, exp(l − l_base))``: `l` the mean log-probability per token of the answers under the frozen
  base model, `l_base` the same of the base model's own answers to the same prompts. Gibberish is unlikely: it falls.
- ``diversity = min(1, d / d_base)``: `d` the share of distinct bigrams among all bigrams of all answers. One phrase
  said about everything repeats itself: it falls.
"""

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

NICENESS = 10


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

    def judge(self, answers: Sequence[JudgedAnswer], base_answers: Sequence[JudgedAnswer]) -> dict[str, float]:
        """The two parts of the quality. Run it in a thread of its own: it lowers the thread's priority."""
        lower_priority()
        return {
            "likelihood": judge_likelihood(self.mean_logprob(answers), self.mean_logprob(base_answers)),
            "diversity": judge_diversity([a.text for a in answers], [a.text for a in base_answers]),
        }

    def mean_logprob(self, answers: Sequence[JudgedAnswer]) -> float:
        """Log-probability of all tokens of all answers under the base model, over their number. Nats a token."""
        total, tokens = 0.0, 0
        for answer in answers:
            logprobs = self._logprobs(answer)
            total += sum(logprobs)
            tokens += len(logprobs)
        if tokens == 0:
            raise ValueError("there is no token to judge")
        return total / tokens

    def _logprobs(self, answer: JudgedAnswer) -> list[float]:
        import torch

        from online_rl.demo.styles import build_messages

        model, tokenizer = self._load()
        prompt = tokenizer.apply_chat_template(build_messages(answer.topic), tokenize=False, add_generation_prompt=True)
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
        answer_ids = tokenizer.encode(answer.text, add_special_tokens=False)
        if answer.ended:
            answer_ids.append(tokenizer.eos_token_id)
        if not answer_ids:
            return []
        ids = torch.tensor([prompt_ids + answer_ids])
        with torch.inference_mode():
            logits = model(ids, logits_to_keep=len(answer_ids) + 1).logits[0, :-1].float()
        picked = torch.log_softmax(logits, -1).gather(-1, torch.tensor(answer_ids)[:, None])
        return picked[:, 0].tolist()

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            torch.set_num_threads(1)  # the service needs the cores more
            tokenizer = AutoTokenizer.from_pretrained(self._folder)
            model = AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.bfloat16).eval()
            self._loaded = model, tokenizer
        return self._loaded


def lower_priority() -> None:
    """Of the calling thread alone: on Linux a niceness belongs to a thread. Elsewhere nothing happens."""
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
