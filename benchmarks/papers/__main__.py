"""Run one of the experiments.

    .venv/bin/python -m benchmarks.papers stability --quick --json s.json

The rows are appended to the file: a later command makes only the runs that are missing, so more seeds are added by a
larger --seeds, and an interrupted command goes on where it stopped.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from benchmarks.papers.ablations import ABLATIONS
from benchmarks.papers.asympo import ASYMPO
from benchmarks.papers.drift import DRIFT
from benchmarks.papers.experiment import Experiment, Options
from benchmarks.papers.lags import Lag
from benchmarks.papers.policy import prepare_base
from benchmarks.papers.report import tabulate_claims, tabulate_rows
from benchmarks.papers.response import RESPONSE
from benchmarks.papers.runs import PROCESSES, OtherSetup, run_jobs
from benchmarks.papers.stability import STABILITY
from benchmarks.papers.tasks import TASKS
from benchmarks.papers.throughput import THROUGHPUT
from benchmarks.papers.training import Setup, make_settings
from online_rl.demo.report import write_json

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (STABILITY, ABLATIONS, DRIFT, ASYMPO, THROUGHPUT, RESPONSE)}
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def parse_lag(text: str) -> Lag:
    """``uniform:24``; ``constant:8:single`` where one version samples a whole trajectory."""
    kind, _, rest = text.partition(":")
    most, _, mixing = rest.partition(":")
    if kind not in ("constant", "uniform", "geometric") or not most.isdigit() or mixing not in ("", "single"):
        raise argparse.ArgumentTypeError(f"{text!r} is not constant|uniform|geometric:N, e.g. uniform:24")
    try:
        return Lag(kind, int(most), mixed=not mixing)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_setting(text: str) -> tuple[str, object]:
    """``learning_rate=0.001``; numbers are taken as numbers."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, e.g. learning_rate=0.001")
    try:
        return name, float(value)
    except ValueError:
        return name, value


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--quick", action="store_true", help="2 seeds and short runs: at most 5 minutes")
    parser.add_argument("--seeds", type=int, help="seeds 0 to N−1 (default 5, with --quick 2)")
    parser.add_argument("--json", type=Path, help="rows and claims (default docs/results/papers-EXPERIMENT.json)")
    parser.add_argument("--objectives", type=lambda text: tuple(text.split(",")), default=(), metavar="A,B")
    parser.add_argument("--task", choices=TASKS, help="another task than the experiment's own")
    parser.add_argument("--lag", type=parse_lag, metavar="KIND:N", help="another lag, e.g. constant:24")
    parser.add_argument("--updates", type=int, help="another number of updates")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="runs at a time, of one thread each")
    parser.add_argument("--set", type=parse_setting, action="append", default=[], metavar="NAME=VALUE", dest="settings")
    return parser


def main() -> int:
    arguments = make_parser().parse_args()
    experiment = EXPERIMENTS[arguments.experiment]
    options = Options(
        quick=arguments.quick,
        seeds=arguments.seeds or (2 if arguments.quick else 5),
        objectives=arguments.objectives,
        updates=arguments.updates,
        task=arguments.task,
        lag=arguments.lag,
        settings=dict(arguments.settings),
    )
    name = f"papers-{experiment.name}{'-quick' if options.quick else ''}.json"
    path = arguments.json or RESULTS / name
    console = Console()
    if not console.is_terminal:
        console.width = 150
    disable_progress_bar()
    try:
        jobs = experiment.plan(options)
        for job in jobs:
            if isinstance(job.setup, Setup):
                make_settings(job.setup, job.seed)
        with console.status("warm start of the small policy"):
            for task in {job.setup.task for job in jobs if job.setup.task}:
                prepare_base(TASKS[task])
        rows = run_jobs(experiment.name, jobs, experiment.work, path, arguments.processes)
    except (ValueError, OtherSetup) as error:
        console.print(f"error: {error}", style="red", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on with the runs that are missing")
        return 130
    claims = experiment.judge(rows)
    write_json(path, {"experiment": experiment.name, "rows": rows, "claims": [asdict(claim) for claim in claims]})
    figure = path.with_suffix(".png")
    experiment.draw(rows, figure)
    console.print(tabulate_rows(rows, experiment.columns, f"{experiment.name}: {options.seeds} seeds"))
    console.print(tabulate_claims(claims))
    console.print(f"{path} and {figure}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
