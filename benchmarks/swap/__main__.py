"""Hundreds of swaps under eight steady streams: no request may fail, and every recorded version must be true.

::

    .venv/bin/python -m benchmarks.swap --swaps 500 --json w.json
    .venv/bin/python -m benchmarks.swap --swaps 20 --modes lora

For each of `swap.mode` lora and merged one replica runs in a process of its own: real vLLM, and the service's own
routes, capture, spool, verification, swap and proof, over HTTP (uvicorn; Ray Serve's proxy, the registry and the
deployer are left out). Streams ask and ask again, and version follows version. Each favours a token of its own, so
the text tells which weights spoke:

- `failed`, `hung`: requests without a complete answer, and without any end within a minute;
- `wrong_version`: tokens that are the favourite of another version than the recorded span names, and answers whose
  header names another version than the one recorded for the first token;
- `uncaptured`: answers without a record, or with one of another text;
- `rss_growth`: resident memory of the process and its engine, the last tenth of the swaps against the second tenth;
- `swap_ms_p50`, `swap_ms_p99`: of one swap as the replica reports it, drain included;
- `longest_gap_ms`: the longest time between two chunks of a stream, as a client met it;
- `distances` (lora): mean |difference| of the captured log-probabilities to those of the idle engine for the same
  tokens, of answers in flight during swaps, and of a control without one. In mode merged an answer may span versions,
  and has no undisturbed run.

Before the swaps each version answers for a while without one: the control. Exits with 1 where something is not as it
must be.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.swap.report import find_misses, print_rows

DEFAULTS = {"lora": (16, 0.2), "merged": (24, 0.2)}
"""Mode → tokens of an answer, seconds between swaps."""


def run_here(chosen: argparse.Namespace) -> None:
    """In a process of its own, so that its memory is its own: one mode, its row into a file."""
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # standard output is for progress
    from benchmarks.swap.run import Options, run_mode

    tokens, pause = DEFAULTS[chosen.only]
    options = Options(
        mode=chosen.only,
        model=Path(chosen.model),
        swaps=chosen.swaps,
        streams=chosen.streams,
        tokens=chosen.tokens or tokens,
        favourites=chosen.favourites,
        pause=pause if chosen.pause is None else chosen.pause,
        drain=chosen.drain,
        samples=chosen.samples,
    )
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{chosen.only:>6} {time.monotonic() - began:5.0f} s  {text}", flush=True)

    row = run_mode(options, say)
    row["seconds"] = round(time.monotonic() - began)
    chosen.result.write_text(json.dumps(row), encoding="utf-8")


def run_apart(arguments: Sequence[str], mode: str, folder: Path) -> dict[str, Any]:
    """Raises SystemExit with the end of its log where the run fails."""
    result, log = folder / f"{mode}.json", folder / f"{mode}.log"
    command = [sys.executable, "-m", "benchmarks.swap", *arguments, "--only", mode, "--result", str(result)]
    with log.open("wb") as errors:
        code = subprocess.run(command, stderr=errors, check=False).returncode
    if code:
        end = log.read_text("utf-8", "replace").splitlines()[-40:]
        raise SystemExit("\n".join(end) + f"\nmode {mode} ended with exit code {code}; its log is {log}")
    return json.loads(result.read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    from online_rl.config import load_settings

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--swaps", type=int, default=500, help="of each mode")
    parser.add_argument("--modes", choices=tuple(DEFAULTS), nargs="+", default=list(DEFAULTS))
    parser.add_argument("--model", default=load_settings().model_path, help="folder of the base model")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, help=f"of each answer; by default {DEFAULTS['lora'][0]} (lora) or "
                        f"{DEFAULTS['merged'][0]} (merged)")  # fmt: skip
    parser.add_argument("--favourites", type=int, default=8, help="versions made, each for a token of its own")
    parser.add_argument("--pause", type=float, help="seconds between one swap and the next")
    parser.add_argument(
        "--drain", type=float, default=0.2, help="swap.drain_seconds: short, so that answers span versions"
    )
    parser.add_argument("--samples", type=int, default=24, help="answers of each kind whose distance is taken (lora)")
    parser.add_argument("--logs", type=Path, help="keep the logs here; default: a temporary folder")
    parser.add_argument("--only", choices=tuple(DEFAULTS), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = parser.parse_args(given)
    if chosen.only:
        run_here(chosen)
        return
    from benchmarks.learner.__main__ import describe_machine
    from online_rl.demo.report import describe_commit, write_json

    folder = chosen.logs or Path(tempfile.mkdtemp(prefix="swap-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    rows = [run_apart(given, mode, folder) for mode in chosen.modes]
    misses = find_misses(rows)
    print_rows(rows)
    if chosen.json:
        content = {"rows": rows, "misses": misses, "commit": describe_commit(), "machine": describe_machine()}
        write_json(chosen.json, content)
    for miss in misses:
        print(f"missed: {miss}")
    if misses:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
