"""From the generations of one episode to trajectories: pure, and true to what was sampled.

A trajectory is one flat token sequence. Turn 2 joins turn 1 only where the token ids of its prompt begin with exactly
the prompt and answer of turn 1; a chat template that rewrites the past breaks that, and then the turn starts a
trajectory of its own rather than train on tokens that nobody sampled. Nothing is decoded or encoded here.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from feedback.packing import pack_tokens
from serving.schemas import Generation, VersionSpan


@dataclass(frozen=True, slots=True)
class Draft:
    """A trajectory without its reward. ``N = sum(action_mask)`` action tokens, ``L = len(token_ids)``."""

    generations: tuple[Generation, ...]
    token_ids: tuple[int, ...]
    action_mask: tuple[Literal[0, 1], ...]
    behavior_logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]

    @property
    def trajectory_id(self) -> str:
        """Named by what it is made of, so that assembling the same again gives the same trajectory."""
        keys = "\n".join(generation.key for generation in self.generations)
        return f"traj_{hashlib.sha256(keys.encode()).hexdigest()[:32]}"

    @property
    def greedy(self) -> bool:
        return any(generation.sampling.greedy for generation in self.generations)

    @property
    def structured(self) -> bool:
        return any(generation.sampling.structured for generation in self.generations)

    @property
    def generated_at(self) -> float:
        return max(generation.finished_at for generation in self.generations)


def group_of(generation: Generation) -> tuple[str | None, int]:
    """(group id, size): the request's own group, or the `n` choices of one prompt, or none."""
    if generation.group_id is not None:
        return generation.group_id, generation.sampling.n
    if generation.sampling.n > 1:
        return f"{generation.inference_id}/{generation.prompt_index}", generation.sampling.n
    return None, 1


def unusable_reason(generation: Generation) -> str | None:
    """Why a generation can be in no trajectory, or None."""
    if not generation.trainable:
        return generation.untrainable_reason or "untrainable"
    if not generation.token_ids:
        return "empty"
    if not generation.prompt_token_ids:
        # The first sampled token would have no context to be sampled from.
        return "no_prompt"
    return None


def assemble(generations: Sequence[Generation]) -> list[Draft]:
    """The trajectories of one episode's generations, in the order they began.

    `generations` must all be usable (`unusable_reason` is None). Each ends up in exactly one trajectory.
    """
    drafts: list[Draft] = []
    # Every turn is compared with every draft, so the tokens are compared as bytes: a hundred times faster than tuples.
    packed: list[bytes] = []
    for generation in sorted(generations, key=_order):
        prompt = pack_tokens(generation.prompt_token_ids)
        past = _longest_past(drafts, packed, generation, prompt)
        whole = prompt + pack_tokens(generation.token_ids)
        if past is None:
            drafts.append(_begin(generation))
            packed.append(whole)
        else:
            drafts[past] = _continue(drafts[past], generation)
            packed[past] = whole
    return drafts


def crowded_out(drafts: Sequence[Draft], limit: int) -> set[int]:
    """Which of `drafts` must go for at most `limit` generations to stay: those that ended first."""
    excess = sum(len(draft.generations) for draft in drafts) - limit
    gone: set[int] = set()
    for index in sorted(range(len(drafts)), key=lambda index: drafts[index].generated_at):
        if excess <= 0:
            break
        gone.add(index)
        excess -= len(drafts[index].generations)
    return gone


def _order(generation: Generation) -> tuple[float, str, int, int, int]:
    return (
        generation.created_at,
        generation.inference_id,
        generation.prompt_index,
        generation.turn,
        generation.choice,
    )


def _longest_past(
    drafts: Sequence[Draft], packed: Sequence[bytes], generation: Generation, prompt: bytes
) -> int | None:
    """The trajectory that `generation` goes on with: of those its prompt begins with, the longest.

    `packed` are the drafts' tokens and `prompt` those of the generation's prompt, as bytes of one width. Choices of one
    prompt never join each other: each was sampled without the other in sight.
    """
    best: int | None = None
    for index, past in enumerate(packed):
        longer = best is None or len(past) > len(packed[best])
        if longer and prompt.startswith(past) and not _parallel(drafts[index], generation):
            best = index
    return best


def _parallel(draft: Draft, generation: Generation) -> bool:
    last = draft.generations[-1]
    return last.inference_id == generation.inference_id and (
        last.turn == generation.turn or (last.prompt_index, last.choice) != (generation.prompt_index, generation.choice)
    )


def _begin(generation: Generation) -> Draft:
    return Draft(
        generations=(generation,),
        token_ids=generation.prompt_token_ids + generation.token_ids,
        action_mask=(0,) * len(generation.prompt_token_ids) + (1,) * len(generation.token_ids),
        behavior_logprobs=generation.behavior_logprobs,
        spans=generation.spans,
    )


def _continue(past: Draft, generation: Generation) -> Draft:
    observed = generation.prompt_token_ids[len(past.token_ids) :]
    actions = len(past.behavior_logprobs)
    moved = tuple(
        VersionSpan(start=span.start + actions, end=span.end + actions, version=span.version)
        for span in generation.spans
    )
    return Draft(
        generations=(*past.generations, generation),
        token_ids=past.token_ids + observed + generation.token_ids,
        action_mask=past.action_mask + (0,) * len(observed) + (1,) * len(generation.token_ids),
        behavior_logprobs=past.behavior_logprobs + generation.behavior_logprobs,
        spans=past.spans + moved,
    )
