"""Our side: packs of prefix trees, logits in chunks, lean adapter products."""

from pathlib import Path

import torch

from benchmarks.learner import recorded
from benchmarks.learner.side import (
    ALPHA,
    EPSILON_HIGH,
    EPSILON_LOW,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    RANK,
    WEIGHT_DECAY,
    Measured,
    choose_advantages,
    measure,
    peak_rss,
    set_up,
)
from online_rl.adam import NamedAdam
from online_rl.base_model import load_base
from online_rl.batch import Batch, make_batch
from online_rl.objectives.ppo import ppo_loss
from online_rl.policy_model import PolicyModel
from online_rl.trainer import objective_inputs


def run_ours(folder: Path, dtype: torch.dtype, batch_size: int, micro_batch: int, steps: int, warm_up: int) -> Measured:
    set_up()
    trajectories = recorded.load(batch_size)
    advantages = torch.tensor(choose_advantages(trajectories))
    policy = PolicyModel(load_base(folder, torch.device("cpu"), dtype), rank=RANK, alpha=ALPHA, seed=0)
    adam = NamedAdam(policy.parameters(), learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches: list[Batch] = []

    def step() -> tuple[float, float]:
        # Packing belongs to the step, as padding does to TRL's.
        batch = make_batch(trajectories, max_tokens=micro_batch, gamma=1.0)
        batches.append(batch)
        adam.zero_grad()
        total = 0.0
        for part in batch.packs:
            each = advantages[list(part.pack.members)].repeat_interleave(part.pack.lengths)
            inputs = objective_inputs(part, policy.score(part.pack).logprobs, each, batch)
            loss, _ = ppo_loss(inputs, clip_low=EPSILON_LOW, clip_high=EPSILON_HIGH)
            loss.backward()
            total += loss.item()
        norm = adam.clip(MAX_GRAD_NORM)
        adam.step()
        return total, norm

    seconds, found = measure(step, steps=steps, warm_up=warm_up)
    return Measured(
        side="ours",
        micro_batch=micro_batch,
        seconds=seconds,
        tokens=sum(len(t.token_ids) for t in trajectories),
        action_tokens=batches[0].total_tokens,
        computed_tokens=sum(part.pack.token_ids.numel() for part in batches[0].packs),
        peak_rss=peak_rss(),
        losses=[loss for loss, _ in found],
        grad_norms=[norm for _, norm in found],
    )
