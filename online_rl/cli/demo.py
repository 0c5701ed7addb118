"""``online-rl demo``: the service with simulated users who change their taste."""

from pathlib import Path
from typing import Annotated

import typer

from online_rl.cli.options import DataDir


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="One taste, at most 192 trajectories: some minutes.")] = False,
    phases: Annotated[
        str | None, typer.Option(help="Tastes in order, e.g. enthusiastic,question,concise.", show_default=False)
    ] = None,
    per_phase: Annotated[int | None, typer.Option(help="Trajectories of each taste.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of topics, users and the learner.")] = 0,
    port: Annotated[int | None, typer.Option(help="Port of the service.", show_default=False)] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running at the end.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Write the figures to this JSON file; an interrupted run with the same file goes on.",
            show_default=False,
        ),
    ] = None,
    answers: Annotated[
        int, typer.Option(help="Answers to each question, all rated; groups for the objectives that compare answers.")
    ] = 1,
    learning_rate: Annotated[
        float | None, typer.Option(help="Of the policy; 0 is the control arm.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Start the service and simulated users who rate its answers and change their taste; end with a table."""
    from online_rl.demo.options import DemoOptions
    from online_rl.demo.runner import run_demo

    names = tuple(name.strip() for name in phases.split(",") if name.strip()) if phases is not None else None
    run_demo(
        DemoOptions(
            quick=quick,
            phases=names,
            per_phase=per_phase,
            seed=seed,
            port=port,
            keep=keep,
            report=report,
            answers=answers,
            learning_rate=learning_rate,
            data_dir=data_dir,
        )
    )


COMMANDS = (demo,)
