"""Artifacts: complete, hashed, merged as they will be served, with probes that tell versions apart."""

import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from online_rl import publish
from online_rl.durable_files import hash_file
from online_rl.packing import TokenSequence
from online_rl.probes import COUNT, choose_probes
from online_rl.publish import Publisher, choose_write_merged
from online_rl.schemas import Manifest, Probe
from tests.learner.tiny import CPU, make_model_folder, make_models, make_trajectories


def make_publisher(tmp_path, folder):
    policy, _ = make_models(folder)
    return policy, Publisher(tmp_path / "versions", folder, policy, write_merged=True)


def change(policy, seed):
    torch.manual_seed(seed)
    for parameter in policy.parameters().values():
        parameter.data = torch.randn_like(parameter) * 0.1


def read_probes(folder):
    return [Probe.model_validate(probe) for probe in json.loads((folder / "probes.json").read_text())]


def plain_logprobs(folder, probe):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    table = model(torch.tensor([probe.token_ids])).logits[0].log_softmax(-1)
    return [float(table[at - 1, probe.token_ids[at]]) for at in probe.positions]


@pytest.mark.parametrize("tied", [False, True])
def test_an_artifact_is_what_it_says(tmp_path, tied):
    base = make_model_folder(tmp_path / "base", tied=tied)
    policy, publisher = make_publisher(tmp_path, base)
    recent = make_trajectories(8)
    change(policy, 1)
    first = publisher.publish(1, 0, update=5, recent=recent, created_at=1.0)
    change(policy, 2)
    second = publisher.publish(2, 1, update=6, recent=recent, created_at=2.0)

    manifest = Manifest.model_validate_json((second / "manifest.json").read_bytes())
    present = {str(p.relative_to(second)) for p in second.rglob("*") if p.is_file()} - {"manifest.json"}
    assert set(manifest.files) == present
    assert {"adapter/adapter_model.safetensors", "adapter/adapter_config.json", "merged/config.json"} <= present
    assert all(hash_file(second / name) == digest for name, digest in manifest.files.items())
    assert manifest.base_sha256 == hash_file(base / "model.safetensors")
    assert (manifest.version, manifest.parent, manifest.update, manifest.lora_rank) == (2, 1, 6, 2)

    # What plain transformers compute on the merged folders is what the probes say of both versions.
    probes = read_probes(second)
    assert len(probes) == COUNT
    for probe in probes:
        assert plain_logprobs(second / "merged", probe) == pytest.approx(list(probe.logprobs), abs=1e-4)
        assert plain_logprobs(first / "merged", probe) == pytest.approx(list(probe.parent_logprobs), abs=1e-4)
    for probe in read_probes(first):
        assert plain_logprobs(base, probe) == pytest.approx(list(probe.parent_logprobs), abs=1e-4)


def test_merged_weights_are_the_base_plus_the_adapter_rounded_once(tmp_path):
    base = make_model_folder(tmp_path / "base", tied=True)
    policy, publisher = make_publisher(tmp_path, base)
    change(policy, 1)
    publisher.publish(1, 0, update=1, recent=make_trajectories(2), created_at=1.0)
    folder = publisher.publish(2, 1, update=2, recent=make_trajectories(2), created_at=1.0)
    merged, original = load_file(folder / "merged" / "model.safetensors"), load_file(base / "model.safetensors")
    assert set(merged) == set(original) | {"lm_head.weight"}
    assert torch.equal(merged["lm_head.weight"], original["model.embed_tokens.weight"])
    assert json.loads((folder / "merged" / "config.json").read_text())["tie_word_embeddings"] is False
    assert json.loads((base / "config.json").read_text())["tie_word_embeddings"] is True
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}

    reference = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), str(folder / "adapter")
    ).merge_and_unload()
    expected = dict(reference.named_parameters())
    for name in original:
        assert torch.equal(merged[name], expected[name].to(torch.bfloat16)), name
    changed = [name for name in original if not torch.equal(merged[name], original[name])]
    assert len(changed) == 14


def test_the_parent_is_merged_again_after_a_restart(tmp_path, model_folder):
    policy, publisher = make_publisher(tmp_path, model_folder)
    change(policy, 1)
    first = publisher.publish(1, 0, update=1, recent=make_trajectories(4), created_at=1.0)
    expected = None
    for restart in ("merged there", "adapter only"):
        policy, publisher = make_publisher(tmp_path, model_folder)
        if restart == "adapter only":
            shutil.rmtree(first / "merged")
        change(policy, 2)
        folder = publisher.publish(3, 1, update=2, recent=make_trajectories(4), created_at=1.0)
        probes = read_probes(folder)
        expected = expected or probes
        for ours, theirs in zip(probes, expected, strict=True):
            assert ours.parent_logprobs == pytest.approx(theirs.parent_logprobs, abs=1e-5)


def test_an_interrupted_publish_leaves_nothing_that_looks_finished(tmp_path, model_folder, monkeypatch):
    _, publisher = make_publisher(tmp_path, model_folder)

    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publish, "write_merged", full)
        with pytest.raises(OSError, match="No space"):
            publisher.publish(1, 0, update=1, recent=make_trajectories(2), created_at=1.0)
    assert not publisher.folder(1).exists()
    assert publisher.publish(1, 0, update=1, recent=make_trajectories(2), created_at=1.0).is_dir()
    assert [path.name for path in (tmp_path / "versions").iterdir()] == ["v000001"]


def test_probes_are_the_sequences_that_differ_most():
    sequences = [TokenSequence([1, 2, 3 + i], [0, 1, 1]) for i in range(COUNT + 2)]
    old = [torch.tensor([-1.0, -2.0])] * len(sequences)
    new = [torch.tensor([-1.0, -2.0 - i / 10]) for i in range(len(sequences))]
    probes = choose_probes(sequences, new, old)
    assert [probe.token_ids[2] - 3 for probe in probes] == list(range(COUNT + 1, 1, -1))
    assert probes[0].positions == (1, 2)
    # Hardly possible tokens prove nothing.
    unlikely = choose_probes(sequences[:1], [torch.tensor([-30.0, -2.0])], [torch.tensor([-1.0, -2.0])])
    assert unlikely[0].positions == (2,)


def test_merged_weights_are_written_where_the_swap_needs_them():
    assert [choose_write_merged(mode, CPU) for mode in ("merged", "lora", "auto")] == [True, False, True]
    assert not choose_write_merged("auto", torch.device("cuda"))
