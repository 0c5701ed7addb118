"""Each reason for which an artifact must not be loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from online_rl.schemas import Manifest, Probe
from serving.artifact import ArtifactRefused, BaseModel, describe_base, hash_file, verify_artifact

PROBE = Probe(token_ids=(1, 2), positions=(1,), logprobs=(-1.0,), parent_logprobs=(-1.1,))


def tensors(fill: float = 1.0) -> dict[str, torch.Tensor]:
    return {
        "embed.weight": torch.full((4, 2), fill, dtype=torch.bfloat16),
        "lm_head.weight": torch.full((4, 2), fill, dtype=torch.bfloat16),
    }


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    folder = tmp_path / "base"
    folder.mkdir()
    save_file(tensors(), folder / "model.safetensors")
    return describe_base(folder)


def seal(folder: Path, base: BaseModel, **changes) -> None:
    files = {
        str(path.relative_to(folder)): hash_file(path)
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    manifest = Manifest(version=3, parent=2, kind="lora", base_sha256=base.sha256, files=files, created_at=0.0)
    (folder / "manifest.json").write_text(manifest.model_copy(update=changes).model_dump_json())


@pytest.fixture
def folder(tmp_path: Path, base: BaseModel) -> Path:
    folder = tmp_path / "v3"
    for part in ("merged", "adapter"):
        (folder / part).mkdir(parents=True)
    save_file(tensors(2.0), folder / "merged" / "model.safetensors")
    save_file({"lora_A": torch.ones(2, 2)}, folder / "adapter" / "adapter_model.safetensors")
    (folder / "probes.json").write_text(json.dumps([PROBE.model_dump()]))
    seal(folder, base)
    return folder


def test_a_good_artifact_is_verified(folder: Path, base: BaseModel):
    artifact = verify_artifact(folder, 3, base, needs="merged")
    assert (artifact.version, artifact.parent, artifact.probes) == (3, 2, (PROBE,))
    assert artifact.weights == folder / "merged"
    assert verify_artifact(folder, 3, base, needs="adapter").adapter == folder / "adapter"


def rewrite(name: str, content: dict[str, torch.Tensor]) -> Callable[[Path], None]:
    return lambda folder: save_file(content, folder / name)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


MERGED = "merged/model.safetensors"
WITHOUT_HEAD = {name: value for name, value in tensors().items() if name != "lm_head.weight"}


@pytest.mark.parametrize(
    ("damage", "needs", "message"),
    [
        (
            rewrite(MERGED, tensors() | {"embed.weight": torch.ones(4, 3, dtype=torch.bfloat16)}),
            "merged",
            "the base model has",
        ),
        (rewrite(MERGED, tensors() | {"embed.weight": torch.ones(4, 2)}), "merged", "the base model has"),
        (rewrite(MERGED, tensors(float("nan"))), "merged", "NaN or infinity"),
        (rewrite(MERGED, tensors(float("inf"))), "merged", "NaN or infinity"),
        (rewrite(MERGED, WITHOUT_HEAD), "merged", "lm_head.weight"),
        (rewrite("adapter/adapter_model.safetensors", {"lora_A": torch.full((2, 2), torch.nan)}), "adapter", "NaN"),
        (
            lambda folder: (folder / MERGED).write_bytes(b"no safetensors at all"),
            "merged",
            "not a safetensors file|cut off",
        ),
        (lambda folder: (folder / MERGED).write_bytes((folder / MERGED).read_bytes()[:20]), "merged", "cut off"),
        (lambda folder: (folder / "merged/evil.bin").write_bytes(b"x"), "merged", "can hold code"),
        (lambda folder: (folder / "probes.json").write_text("[]"), "merged", "probes nothing"),
        (lambda folder: (folder / "probes.json").write_text("{"), "merged", "not valid"),
        (
            lambda folder: (folder / "probes.json").write_text(
                json.dumps([PROBE.model_copy(update={"positions": (0,)}).model_dump()])
            ),
            "merged",
            "no context",
        ),
        (remove("probes.json"), "merged", "could not be proved"),
        (remove(MERGED), "merged", "has no model.safetensors"),
    ],
)
def test_what_is_wrong_is_refused_by_name(folder: Path, base: BaseModel, damage, needs: str, message: str):
    damage(folder)
    seal(folder, base)
    with pytest.raises(ArtifactRefused, match=message):
        verify_artifact(folder, 3, base, needs=needs)


def test_a_byte_that_changed_after_sealing_is_refused(folder: Path, base: BaseModel):
    path = folder / MERGED
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactRefused, match="hash"):
        verify_artifact(folder, 3, base, needs="merged")


def test_an_unfinished_artifact_is_refused(folder: Path, base: BaseModel):
    (folder / "manifest.json").unlink()
    with pytest.raises(ArtifactRefused, match="unfinished"):
        verify_artifact(folder, 3, base, needs="merged")


def test_a_file_that_the_manifest_does_not_list_is_refused(folder: Path, base: BaseModel):
    (folder / "merged" / "extra.json").write_text("{}")
    with pytest.raises(ArtifactRefused, match="does not list"):
        verify_artifact(folder, 3, base, needs="merged")


def test_a_missing_file_is_refused(folder: Path, base: BaseModel):
    (folder / "probes.json").unlink()
    with pytest.raises(ArtifactRefused, match="missing"):
        verify_artifact(folder, 3, base, needs="merged")


def test_another_base_or_version_is_refused(folder: Path, base: BaseModel):
    seal(folder, base, base_sha256="0" * 64)
    with pytest.raises(ArtifactRefused, match="another base model"):
        verify_artifact(folder, 3, base, needs="merged")
    with pytest.raises(ArtifactRefused, match="not 4"):
        verify_artifact(folder, 4, base, needs="merged")


def test_a_path_that_leads_outside_is_refused(folder: Path, base: BaseModel):
    outside = folder.parent / "outside.json"
    outside.write_text("{}")
    seal(
        folder,
        base,
        files={**json.loads((folder / "manifest.json").read_text())["files"], "../outside.json": hash_file(outside)},
    )
    with pytest.raises(ArtifactRefused, match="outside the artifact"):
        verify_artifact(folder, 3, base, needs="merged")
