"""TRL's side: GRPOTrainer's own training step on the recorded trajectories, without generation.

Its best settings: no gradient checkpointing, no reference model (β = 0), its fused output layer, which is always on.
GRPOTrainer of TRL 1.16 has no padding-free mode; so the micro-batches are sorted by length and each is padded only to
its own longest member, which is less padding than TRL's own batching does.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from feedback.schemas import Trajectory


def make_trainer(folder: Path, dtype: torch.dtype, batch_size: int, micro_batch: int, scratch: str) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    class Recorded(GRPOTrainer):
        """Takes the prepared tensors as they are: nothing is generated."""

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            return generation_batch

    arguments = GRPOConfig(
        output_dir=scratch,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=batch_size // micro_batch,
        num_generations=2,
        loss_type="dapo",
        epsilon=EPSILON_LOW,
        epsilon_high=EPSILON_HIGH,
        beta=0.0,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_GRAD_NORM,
        bf16=dtype == torch.bfloat16,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    return Recorded(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=dtype),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["unused"] * batch_size}),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"),  # pyright: ignore[reportArgumentType]
    )


def make_inputs(trajectories: Sequence[Trajectory], advantages: Sequence[float], micro_batch: int) -> list[dict]:
    """Micro-batches as GRPOTrainer prepares them: prompts padded on the left, completions on the right."""
    order = sorted(range(len(trajectories)), key=lambda i: len(trajectories[i].token_ids))
    total = sum(sum(t.action_mask) for t in trajectories)
    found = []
    for at in range(0, len(order), micro_batch):
        columns: dict[str, list[list[float]]] = {}
        for index in order[at : at + micro_batch]:
            trajectory = trajectories[index]
            start = trajectory.action_mask.index(1)
            logprobs = iter(trajectory.behavior_logprobs or ())
            completion, mask = trajectory.token_ids[start:], trajectory.action_mask[start:]
            for name, values in {
                "prompt_ids": trajectory.token_ids[:start],
                "prompt_mask": [1] * start,
                "completion_ids": completion,
                "completion_mask": [1] * len(completion),
                "tool_mask": mask,
                "old_per_token_logps": [next(logprobs) if marked else 0.0 for marked in mask],
            }.items():
                columns.setdefault(name, []).append(list(values))
        inputs: dict[str, Any] = {name: pad(rows, left=name.startswith("prompt")) for name, rows in columns.items()}
        inputs["old_per_token_logps"] = inputs["old_per_token_logps"].float()
        inputs["advantages"] = torch.tensor([advantages[i] for i in order[at : at + micro_batch]])
        inputs["num_items_in_batch"] = torch.tensor(total)
        found.append(inputs)
    return found


def pad(rows: Sequence[Sequence[float]], *, left: bool) -> torch.Tensor:
    width = max(map(len, rows))
    padding = [[0] * (width - len(row)) for row in rows]
    return torch.tensor([[*p, *row] if left else [*row, *p] for row, p in zip(rows, padding, strict=True)])


def run_theirs(
    folder: Path, dtype: torch.dtype, batch_size: int, micro_batch: int, steps: int, warm_up: int
) -> Measured:
    set_up()
    trajectories = recorded.load(batch_size)
    advantages = choose_advantages(trajectories)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(folder, dtype, batch_size, micro_batch, scratch)
        trainer.create_optimizer_and_scheduler(num_training_steps=steps + warm_up)
        model, optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
        trainer.current_gradient_accumulation_steps = batch_size // micro_batch
        parameters = [p for p in model.parameters() if p.requires_grad]
        padded: list[int] = []

        def step() -> tuple[float, float]:
            optimizer.zero_grad()
            total = 0.0
            inputs = make_inputs(trajectories, advantages, micro_batch)
            padded.append(sum(i["prompt_ids"].numel() + i["completion_ids"].numel() for i in inputs))
            for part in inputs:
                total += float(trainer.training_step(model, part, None))
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM))
            optimizer.step()
            return total, norm

        seconds, found = measure(step, steps=steps, warm_up=warm_up)
    return Measured(
        side="trl",
        micro_batch=micro_batch,
        seconds=seconds,
        tokens=sum(len(t.token_ids) for t in trajectories),
        action_tokens=sum(sum(t.action_mask) for t in trajectories),
        computed_tokens=padded[0],
        peak_rss=peak_rss(),
        losses=[loss for loss, _ in found],
        grad_norms=[norm for _, norm in found],
    )
