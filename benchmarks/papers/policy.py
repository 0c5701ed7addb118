"""The small policy: a Llama of 0.1 million parameters whose weights are rebuilt by whoever needs them.

It is warmed up by imitating an expert that errs, so that its rewards begin well above 0 and well below 1. The result is
kept in a folder that git ignores, under a hash of everything it depends on: the recipe and the code of the tasks.
"""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.papers.tasks import VOCABULARY, Task, demonstrate
from online_rl.base_model import choose_threads
from online_rl.durable_files import finish_folder, hash_file, start_folder
from online_rl.models import build_models
from online_rl.settings import LearnerSettings
from online_rl.trainer import Trainer

CACHE = Path(__file__).parents[2] / ".cache" / "papers"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Shape and warm start of the policy."""

    hidden: int = 64
    mlp: int = 128
    layers: int = 2
    heads: int = 4
    steps: int = 600
    batch: int = 64
    learning_rate: float = 3e-3
    seed: int = 0


def prepare_base(task: Task, recipe: Recipe | None = None, cache: Path = CACHE) -> Path:
    """The folder of the warm policy, as transformers writes it; made where it is not there yet."""
    recipe = recipe or Recipe()
    folder = cache / f"{task.name}-{_hash(task, recipe)}"
    if not (folder / "model.safetensors").is_file():
        draft = start_folder(folder)
        warm_up(task, recipe).save_pretrained(draft)
        finish_folder(draft, folder)
    return folder


def warm_up(task: Task, recipe: Recipe) -> LlamaForCausalLM:
    """A policy that imitates the task's expert; the same recipe gives the same weights."""
    torch.manual_seed(recipe.seed)
    rng = Random(recipe.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=recipe.hidden,
            intermediate_size=recipe.mlp,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=128,
            initializer_range=0.1,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps)
    for _ in range(recipe.steps):
        tokens, targets = draw_demonstrations(task, rng, recipe.batch)
        logits = model(input_ids=tokens).logits[:, :-1]
        optimizer.zero_grad()
        cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten()).backward()
        optimizer.step()
        schedule.step()
    return model


def draw_demonstrations(task: Task, rng: Random, count: int) -> tuple[Tensor, Tensor]:
    """Tokens ``[B, L]``, filled up with 0, and targets ``[B, L]``: the token where the expert acted, else −100."""
    shown = [demonstrate(task, rng, task.error_rate)[:2] for _ in range(count)]
    length = max(len(tokens) for tokens, _ in shown)
    tokens = torch.zeros(count, length, dtype=torch.long)
    targets = torch.full((count, length), -100)
    for row, (ids, mask) in enumerate(shown):
        tokens[row, : len(ids)] = torch.tensor(ids)
        targets[row, : len(ids)] = torch.where(torch.tensor(mask) == 1, tokens[row, : len(ids)], -100)
    return tokens, targets


def make_trainer(folder: Path, settings: LearnerSettings) -> Trainer:
    """The service's trainer on the warm policy, with the models that the settings ask for."""
    torch.set_num_threads(choose_threads(settings))
    # The bars of transformers would tear the experiment's own.
    disable_progress_bar()
    return Trainer(*build_models(folder, torch.device("cpu"), torch.float32, settings), settings)


def _hash(task: Task, recipe: Recipe) -> str:
    sources = sorted([Path(__file__), *(Path(__file__).parent / "tasks").glob("*.py")])
    parts = [repr(sorted(asdict(recipe).items())), task.name, *(hash_file(path) for path in sources)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
