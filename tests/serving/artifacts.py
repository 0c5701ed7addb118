"""Versions for tests: a random LoRA on the base model, its merged weights and its probes, as the learner ships them."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from online_rl.schemas import Manifest, Probe
from serving.artifact import hash_file

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROBE_TEXTS = (
    "What do you think about the sea? I think the sea is wide and full of life.",
    "Rain fell on the old roof all night, and in the morning the garden was green.",
    "To bake bread you need flour, water, salt, yeast and some patience.",
)


@dataclass(frozen=True)
class Version:
    number: int
    folder: Path
    model: Any
    """The weights as they are served, computed in float32."""


class Workshop:
    """Makes versions of one base model."""

    def __init__(self, base: Path, folder: Path) -> None:
        self.base = base
        self.folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.base_sha256 = hash_file(base / "model.safetensors")
        self.probes = [self.tokenizer(text).input_ids for text in PROBE_TEXTS]
        self.base_model = self.load(base)

    @staticmethod
    def load(folder: Path) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float().eval()

    def logprobs(self, model: Any, tokens: Sequence[int]) -> list[float]:
        """log p(token i | tokens before) for i = 1 … n-1, in float32."""
        with torch.no_grad():
            logits = model(torch.tensor([list(tokens)])).logits[0, :-1].float()
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()

    def make(self, number: int, *, parent: Version | None = None, scale: float = 0.02, seed: int = 0) -> Version:
        """Version `number`: every LoRA B is normal noise of standard deviation `scale`."""
        folder = self.folder / f"v{number:06d}"
        torch.manual_seed(seed or number)
        model = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
        adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=scale)
        adapted.save_pretrained(folder / "adapter")
        merged = adapted.merge_and_unload().to(torch.bfloat16)
        merged.save_pretrained(folder / "merged")
        served = self.load(folder / "merged")
        before = self.base_model if parent is None else parent.model
        probes = [
            Probe(
                token_ids=tuple(tokens),
                positions=tuple(range(1, len(tokens))),
                logprobs=tuple(self.logprobs(served, tokens)),
                parent_logprobs=tuple(self.logprobs(before, tokens)),
            )
            for tokens in self.probes
        ]
        (folder / "probes.json").write_text(json.dumps([probe.model_dump() for probe in probes]))
        self.seal(folder, number, 0 if parent is None else parent.number)
        return Version(number, folder, served)

    def seal(self, folder: Path, number: int, parent: int) -> None:
        """Write the manifest, last."""
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
        manifest = Manifest(
            version=number,
            parent=parent,
            kind="lora",
            base_sha256=self.base_sha256,
            files={str(path.relative_to(folder)): hash_file(path) for path in files},
            lora_rank=8,
            created_at=time.time(),
        )
        (folder / "manifest.json").write_text(manifest.model_dump_json())
