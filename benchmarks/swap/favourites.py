"""Versions that each favour one token of their own, so that the text tells which weights spoke. As the learner ships
them: its own policy, adapters, merged weights and probes.

Every version is an adapter on all layers with a little noise, so that its key-value cache is its own too. In the last
MLP the noise makes way for one direction: with x the activations that enter its last projection, a row `a` is fitted by
ridge regression so that a·x ≈ 1 wherever an answer may stand, and the projection adds c·(a·x) times the direction
that raises the favourite's logit above all others. c is found by bisection, so that the favourite's odds are what
`Strength` says.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import RootModel
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.swap.judge import find_favourite
from benchmarks.swap.versions import RANK, Made
from online_rl.base_model import load_base
from online_rl.demo.topics import TRAINING_TOPICS
from online_rl.durable_files import hash_folder
from online_rl.merged_weights import served_dtype, write_merged
from online_rl.packing import TokenSequence
from online_rl.policy_model import PolicyModel
from online_rl.schemas import MERGED, PROBES, Probe
from online_rl.served_weights import score_served

ALPHA = 16.0
NOISE = 0.01
"""Standard deviation of the adapters' B."""
RIDGE = 1e-3
"""Of the mean square of the activations."""
ROWS_RIDGE = 0.1
"""Of the mean variance of the output layer's rows."""
CONTEXTS = 48
"""Of the bisection."""
STEPS = 10
RUN = 6
"""Times that a favourite stands in a row where the regression sees it."""
NEIGHBOURS = 3
"""Favourites that each one is seen together with."""
PROBES_MADE = 3
LEAST_LOGPROB = -1.5
"""Mean over the probes; below it too many tokens would tell nothing."""
LAST_PROJECTION = ".mlp.down_proj.weight"
_WORD = re.compile(r" [a-z]{5,12}")


class Unfavoured(RuntimeError):
    """The model cannot be made to favour a token this way. The message says how far it came."""


@dataclass(frozen=True, slots=True)
class Strength:
    """`margin`: log-odds of the favourite against all other tokens together, at this `quantile` of the contexts."""

    margin: float
    quantile: float


STRENGTHS: Mapping[str, Strength] = {
    # An answer keeps its version: some ordinary tokens are left, whose log-probabilities can be compared.
    "lora": Strength(2.0, 0.5),
    # An answer that spans versions has the former favourite many times in its context, and a model likes to repeat.
    "merged": Strength(16.0, 0.02),
}


def render_question(tokenizer: Any, text: str) -> list[int]:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])


def choose_favourites(tokenizer: Any, count: int) -> list[int]:
    """Rare whole words, far apart in the vocabulary, each one token."""
    found: list[int] = []
    for token in range(len(tokenizer) - 1, 0, -101):
        text = tokenizer.decode([token])
        if _WORD.fullmatch(text) and tokenizer.encode(text, add_special_tokens=False) == [token]:
            found.append(token)
            if len(found) == count:
                return found
    raise Unfavoured(f"the vocabulary has {len(found)} fitting words, not {count}")


class Workshop:
    """Makes the artifacts of one base model."""

    def __init__(self, base_folder: Path, count: int, strength: Strength) -> None:
        torch.manual_seed(0)
        self._base_folder = base_folder
        self._dtype = served_dtype(base_folder)
        self._strength = strength
        self._policy = PolicyModel(
            load_base(base_folder, torch.device("cpu"), torch.float32), rank=RANK, alpha=ALPHA, seed=0
        )
        self._tokenizer = AutoTokenizer.from_pretrained(base_folder)
        self.favourites = choose_favourites(self._tokenizer, count)
        self._prompts = [
            render_question(self._tokenizer, f"{index:06d} {topic}?")
            for index, topic in enumerate(TRAINING_TOPICS[:count])
        ]
        layers = [name for name, *_ in self._policy.adapted_weights() if name.endswith(LAST_PROJECTION)]
        if not layers:
            raise Unfavoured(f"the model has no layer named …{LAST_PROJECTION}")
        self._last = layers[-1]
        self._row: Tensor | None = None
        self._pushes: dict[int, float] = {}

    def make(self, folder: Path, *, merged: bool) -> list[Made]:
        """Artifacts 1 to K + 1, for K favourites. Raises Unfavoured."""
        self._fit()
        made: list[Made] = []
        parent: dict[str, Tensor] = {}
        for number in range(1, len(self.favourites) + 2):
            target = folder / f"{number:03d}"
            served = self._write(number, target, parent, merged=merged)
            made.append(Made(target, hash_folder(target)))
            parent = served
        return made

    @torch.no_grad()
    def _write(self, number: int, target: Path, parent: Mapping[str, Tensor], *, merged: bool) -> dict[str, Tensor]:
        favourite = find_favourite(number, self.favourites)
        assert favourite is not None
        self._set_adapter(self.favourites.index(favourite), favourite)
        served = self._policy.served_weights(self._dtype)
        self._policy.save(target)
        if merged:
            write_merged(target / MERGED, self._base_folder, served)
        sequences = [
            TokenSequence([*prompt, favourite], [0] * len(prompt) + [1]) for prompt in self._prompts[:PROBES_MADE]
        ]
        own = score_served(self._policy, served, sequences)
        former = score_served(self._policy, parent, sequences)
        mean = float(torch.cat(own).mean())
        if mean < LEAST_LOGPROB:
            raise Unfavoured(f"the favourite of artifact {number} has a mean log-probability of {mean:.2f} only")
        probes = [
            Probe(
                token_ids=tuple(sequence.token_ids),
                positions=tuple(sequence.action_positions),
                logprobs=tuple(new.tolist()),
                parent_logprobs=tuple(old.tolist()),
            )
            for sequence, new, old in zip(sequences, own, former, strict=True)
        ]
        (target / PROBES).write_text(RootModel[list[Probe]](probes).model_dump_json())
        return served

    @torch.no_grad()
    def _set_adapter(self, index: int, favourite: int) -> None:
        assert self._row is not None
        noise = torch.Generator().manual_seed(index + 1)
        for name, _, a, b, scale in self._policy.adapted_weights():
            if name != self._last:
                b.copy_(torch.randn(b.shape, generator=noise) * NOISE)
                continue
            size = self._row.norm()
            a.zero_()
            b.zero_()
            a[0] = self._row / size
            b[:, 0] = self._find_direction(favourite) * (self._pushes[favourite] * size / scale)

    @torch.no_grad()
    def _fit(self) -> None:
        entering, leaving = self._observe(self._make_contexts())
        x = entering.double()
        gram = x.T @ x
        ridge = RIDGE * gram.trace() / len(gram) * torch.eye(len(gram), dtype=torch.double)
        row = torch.linalg.solve(gram + ridge, x.sum(0)).float()
        self._row = row
        amounts = entering @ row
        chosen = torch.randperm(len(leaving), generator=torch.Generator().manual_seed(0))[:CONTEXTS]
        for favourite in self.favourites:
            self._pushes[favourite] = self._find_push(favourite, leaving[chosen], amounts[chosen])

    def _make_contexts(self) -> list[tuple[list[int], int]]:
        """(tokens, the first position before which an answer may stand): a question, words, then two favourites."""
        contexts: list[tuple[list[int], int]] = []
        count = len(self.favourites)
        for index, (prompt, topic) in enumerate(zip(self._prompts, TRAINING_TOPICS, strict=False)):
            words = self._tokenizer.encode(
                f"I like {topic} because it is good and I can think about it all day long.", add_special_tokens=False
            )
            for shift in range(1, min(count, NEIGHBOURS + 1)):
                first, second = self.favourites[index], self.favourites[(index + shift) % count]
                contexts.append(([*prompt, *words, *[first] * RUN, *[second] * RUN], len(prompt) - 1))
                contexts.append(([*prompt, *[second] * RUN, *[first] * RUN], len(prompt) - 1))
        return contexts

    def _observe(self, contexts: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
        """Of the base model, at each position of each context that a token may follow: what enters the last
        projection ``[N, I]``, and what leaves the last layer ``[N, H]``."""
        base = self._policy.base
        trunk = getattr(base, base.base_model_prefix)
        seen: dict[str, list[Tensor]] = {"entering": [], "leaving": []}

        def keep(name: str, first: int) -> Any:
            return lambda _module, inputs: seen[name].append(inputs[0][0, first:].clone())

        with self._policy.plain():
            for tokens, first in contexts:
                hooks = [
                    base.get_submodule(self._last.removesuffix(".weight")).register_forward_pre_hook(
                        keep("entering", first)
                    ),
                    trunk.norm.register_forward_pre_hook(keep("leaving", first)),
                ]
                trunk(input_ids=torch.tensor([tokens]), use_cache=False)
                for hook in hooks:
                    hook.remove()
        return torch.cat(seen["entering"]), torch.cat(seen["leaving"])

    def _find_direction(self, favourite: int) -> Tensor:
        """Unit ``[H]``: what raises the favourite's logit against those of all tokens together, by Fisher's
        discriminant. Along the favourite's own row of the output layer many other tokens' logits rise further."""
        base = self._policy.base
        norm = getattr(base, base.base_model_prefix).norm
        rows = base.get_output_embeddings().weight * norm.weight
        rows = rows - rows.mean(0)
        covariance = rows.T @ rows / len(rows)
        ridge = ROWS_RIDGE * covariance.trace() / len(covariance) * torch.eye(len(covariance))
        direction = torch.linalg.solve(covariance + ridge, rows[favourite])
        return direction / direction.norm()

    def _find_push(self, favourite: int, leaving: Tensor, amounts: Tensor) -> float:
        """c, by bisection. Raises Unfavoured where no c gives the margin."""
        base = self._policy.base
        trunk, head = getattr(base, base.base_model_prefix), base.get_output_embeddings()
        direction = self._find_direction(favourite)

        def find_margin(push: float) -> float:
            logits = head(trunk.norm(leaving + push * amounts[:, None] * direction))
            own = logits[:, favourite].clone()
            logits[:, favourite] = -torch.inf
            return float((own - logits.logsumexp(-1)).quantile(self._strength.quantile))

        low, high = 0.0, 2 * float(leaving.norm(dim=-1).median())
        if (best := find_margin(high)) < self._strength.margin:
            raise Unfavoured(f"the odds of token {favourite} reach {best:.1f} nats only")
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if find_margin(middle) < self._strength.margin else (low, middle)
        return high
