"""Our train step against TRL's GRPOTrainer: tokens a second, peak memory, and the share of the matrix product peak.

    .venv/bin/python -m benchmarks.learner --json l.json

Both train the same LoRA adapter of the same model with the same clipped GRPO loss on the same recorded trajectories of
a demo, train step only, in bfloat16 (`--dtype float32` too: where the CPU has no bfloat16 products, they are emulated
and slow for both sides). Each side runs in processes of its own, in turns; TRL with several micro-batch sizes, of which
the fastest counts for speed and the leanest for memory. `--tiny` tries the benchmark itself on a random small model.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from online_rl.config import load_settings

CPU_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the report goes")
    parser.add_argument("--model", default=load_settings().model_path, help="folder of the model")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--batch-size", type=int, default=16, help="trajectories in one step")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 4, 16], help="TRL's, trajectories")
    parser.add_argument("--pack-tokens", type=int, nargs="+", default=[512, 1024, 2048], help="ours, distinct tokens")
    parser.add_argument("--steps", type=int, default=3, help="timed steps a process")
    parser.add_argument("--warm-up", type=int, default=1, help="steps before them")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each kind; the best counts")
    parser.add_argument("--tiny", action="store_true", help="a random small model: tries the benchmark itself")
    parser.add_argument("--side", choices=("ours", "trl", "peak"), help=argparse.SUPPRESS)
    parser.add_argument("--micro-batch", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments)
        return
    if bad := [size for size in arguments.micro_batches if arguments.batch_size % size]:
        parser.error(f"--micro-batches {bad[0]} does not divide --batch-size {arguments.batch_size}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_tiny(Path(scratch), Path(arguments.model)) if arguments.tiny else Path(arguments.model)
        report = compare(arguments, folder)
    print_report(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))


def run_side(arguments: argparse.Namespace) -> None:
    """In a process of its own: print one JSON line."""
    import torch

    from benchmarks.learner.matmul import measure_peak

    dtype = getattr(torch, arguments.dtype)
    if arguments.side == "peak":
        print(json.dumps({"flops": measure_peak(dtype)}))
        return
    if arguments.side == "ours":
        from benchmarks.learner.ours import run_ours as run
    else:
        from benchmarks.learner.theirs import run_theirs as run
    size, micro_batch = arguments.batch_size, arguments.micro_batch
    measured = run(Path(arguments.model), dtype, size, micro_batch, arguments.steps, arguments.warm_up)
    print(json.dumps(measured.report()))


def compare(arguments: argparse.Namespace, folder: Path) -> dict:
    from benchmarks.learner.matmul import count_step

    peak = start(arguments, folder, "peak", 0)["flops"]
    runs: list[dict] = []
    for _ in range(arguments.rounds):
        # In turns, so that other work on the machine meets both sides.
        for ours, theirs in zip_longest_last(arguments.pack_tokens, arguments.micro_batches):
            runs += [start(arguments, folder, "ours", ours)] if ours else []
            runs += [start(arguments, folder, "trl", theirs)] if theirs else []
    peak = max(peak, start(arguments, folder, "peak", 0)["flops"])
    ours, theirs = ([run for run in runs if run["side"] == side] for side in ("ours", "trl"))
    fastest, trl = (max(side, key=lambda run: run["tokens_per_second"]) for side in (ours, theirs))
    flops = count_step(str(folder), fastest["computed_tokens"], fastest["action_tokens"])
    return {
        "model": "tiny" if arguments.tiny else folder.name,
        "dtype": arguments.dtype,
        "machine": describe_machine(),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "trl")},
        "ratio_tokens_per_s": fastest["tokens_per_second"] / trl["tokens_per_second"],
        # Ours at the setting whose speed counts, against the leanest of theirs.
        "ratio_peak_rss": fastest["peak_rss"] / min(run["peak_rss"] for run in theirs),
        "fraction_of_matmul_peak": flops / min(fastest["seconds"]) / peak,
        "matmul_peak_gflops": peak / 1e9,
        # Both computed the same: before the first step the loss and the gradient's norm are those of the same weights.
        "first_loss": {"ours": fastest["losses"][0], "trl": trl["losses"][0]},
        "first_grad_norm": {"ours": fastest["grad_norms"][0], "trl": trl["grad_norms"][0]},
        "runs": runs,
    }


def zip_longest_last(left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """Pairs; 0 where one list is shorter."""
    size = max(len(left), len(right))
    return list(zip(left + [0] * (size - len(left)), right + [0] * (size - len(right)), strict=True))


def start(arguments: argparse.Namespace, folder: Path, side: str, micro_batch: int) -> dict:
    """One side in a fresh process, so that its peak memory is its own."""
    options = {
        "--side": side,
        "--micro-batch": micro_batch,
        "--model": folder,
        "--dtype": arguments.dtype,
        "--batch-size": arguments.batch_size,
        "--steps": arguments.steps,
        "--warm-up": arguments.warm_up,
    }
    command = [sys.executable, "-m", "benchmarks.learner", *(str(part) for pair in options.items() for part in pair)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} with micro-batches of {micro_batch} failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if side != "peak":
        print(
            f"{side:4} {micro_batch:5} {found['tokens_per_second']:8.1f} tokens/s {found['peak_rss'] / 2**20:8.0f} MiB",
            flush=True,
        )
    return found


def make_tiny(folder: Path, model: Path) -> Path:
    """A random Llama of two layers with the vocabulary and the tokenizer of `model`."""
    import shutil

    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    vocabulary = AutoConfig.from_pretrained(model).vocab_size
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for source in (*model.glob("tokenizer*"), *model.glob("special*"), *model.glob("*.jinja"), *model.glob("vocab*")):
        shutil.copy(source, folder / source.name)
    return folder


def describe_machine() -> dict[str, object]:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "load": os.getloadavg(),
    }


def print_report(report: dict) -> None:
    print(
        f"\n{report['model']}, {report['dtype']}, {report['machine']['processor']}, {report['machine']['cores']} cores"
    )
    print(f"first loss            ours {report['first_loss']['ours']:+.6f}  trl {report['first_loss']['trl']:+.6f}")
    norms = report["first_grad_norm"]
    print(f"first gradient norm   ours {norms['ours']:.6f}  trl {norms['trl']:.6f}")
    print(f"matmul peak           {report['matmul_peak_gflops']:.1f} GFLOP/s")
    for name, aim in (
        ("ratio_tokens_per_s", "at least 1.5"),
        ("ratio_peak_rss", "at most 1"),
        ("fraction_of_matmul_peak", "0.5 is the aim"),
    ):
        print(f"{name:24} {report[name]:.2f}   ({aim})")


if __name__ == "__main__":
    main()
