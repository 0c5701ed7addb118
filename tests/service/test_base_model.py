"""Preparing the default model: once, whole or not at all."""

import json
from pathlib import Path

import pytest

from online_rl.config import DEFAULT_MODEL, Settings
from online_rl.service import base_model
from online_rl.service.base_model import BaseModelError, check_model_folder, prepare_default_model


def fake_convert(gguf: Path, out: Path, say) -> None:
    (out / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (out / "tokenizer.json").write_text("{}")
    (out / "model.safetensors").write_bytes(b"weights")


def test_it_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_model, "convert", fake_convert)
    folder = prepare_default_model(tmp_path, lambda line: None)
    assert folder == tmp_path / DEFAULT_MODEL
    check_model_folder(folder)
    monkeypatch.setattr(base_model, "convert", None)  # a second conversion would fail
    assert prepare_default_model(tmp_path, lambda line: None) == folder


def test_an_interruption_leaves_nothing_that_looks_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(gguf: Path, out: Path, say) -> None:
        fake_convert(gguf, out, say)
        raise KeyboardInterrupt

    monkeypatch.setattr(base_model, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_default_model(tmp_path, lambda line: None)
    assert not (tmp_path / DEFAULT_MODEL).exists()
    (tmp_path / f".{DEFAULT_MODEL}.killed").mkdir()  # what kill -9 leaves
    monkeypatch.setattr(base_model, "convert", fake_convert)
    prepare_default_model(tmp_path, lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == [DEFAULT_MODEL]


def test_a_changed_recipe_makes_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_model, "convert", fake_convert)
    folder = prepare_default_model(tmp_path, lambda line: None)
    (folder / "model.safetensors").write_bytes(b"old")
    monkeypatch.setattr(base_model, "RECIPE", base_model.RECIPE + 1)
    prepare_default_model(tmp_path, lambda line: None)
    assert (folder / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused(tmp_path: Path, missing: str) -> None:
    fake_convert(tmp_path, tmp_path, None)
    (tmp_path / missing).unlink()
    with pytest.raises(BaseModelError, match=r"serving\.model"):
        check_model_folder(tmp_path)


def test_the_prepared_model_names_its_head() -> None:
    """An engine that reloads in place keeps a tied head, so the served base must carry one of its own."""
    from safetensors import safe_open

    folder = Path(Settings().model_path)
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" in weights.keys()  # noqa: SIM118
