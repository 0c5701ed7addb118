"""``online-rl pretrain-value``: the value model learns from stored trajectories before the policy does."""

import os
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from online_rl.cli.errors import CommandError
from online_rl.cli.operate import open_prepared
from online_rl.cli.options import AsJson, Assignments, DataDir, settings_from
from online_rl.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedback.schemas import Trajectory
    from online_rl.config import Settings
    from online_rl.pretraining import Epoch, Pretraining
    from online_rl.settings import LearnerSettings


def pretrain_value(
    data_dir: DataDir = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Trajectories: a .jsonl file, or another data folder. Default: this service's."),
    ] = None,
    held_out: Annotated[float, typer.Option(min=0.05, max=0.5, help="Share of episodes held out.")] = 0.2,
    max_epochs: Annotated[int, typer.Option(min=1, help="Most passes over the rest.")] = 30,
    patience: Annotated[int, typer.Option(min=1, help="Passes without a rise after which it stops.")] = 3,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Teach the value model what stored trajectories returned; the learner begins with it at its next start."""
    settings = settings_from(data_dir, assignments)
    from online_rl.service.processes import ServiceLock

    settings.data_dir.mkdir(parents=True, exist_ok=True)
    lock = ServiceLock(settings.data_dir).acquire("(pretrain-value)")
    try:
        began = time.monotonic()
        found, path = _run(settings, source, held_out, max_epochs, patience)
    finally:
        lock.release()
    if as_json:
        print_json(_describe(found, path, time.monotonic() - began))
        return
    print_table(
        ("epoch", "loss", "held-out explained variance"),
        [(e.epoch, "" if e.loss is None else f"{e.loss:.4f}", f"{e.explained_variance:+.3f}") for e in found.curve],
    )
    before, after = found.before.explained_variance, found.best.explained_variance
    typer.echo(
        f"held-out explained variance {before:+.3f} → {after:+.3f} (epoch {found.best.epoch}), "
        f"{found.train} trajectories trained on, {found.held_out} held out"
    )
    typer.echo(f"written to {path}; the learner begins with it at its next start" if path else _NOTHING)


_NOTHING = "nothing is written: no epoch was better than the start"


def _run(
    settings: "Settings", source: Path | None, held_out: float, max_epochs: int, patience: int
) -> "tuple[Pretraining, Path | None]":
    import torch

    from online_rl.base_model import choose_device, choose_dtype, find_model
    from online_rl.durable_files import hash_file
    from online_rl.models import build_models
    from online_rl.pretrained_value import save_pretrained
    from online_rl.pretraining import pretrain

    trajectories = read_trajectories(settings, source)
    learner = settings.learner
    device = choose_device(learner)
    torch.set_num_threads(learner.threads or len(os.sched_getaffinity(0)))
    folder = find_model(settings.model_path)
    policy, value = build_models(folder, device, choose_dtype(learner, device), learner)
    if value is None:
        raise CommandError(f"learner.objective = {learner.objective} keeps no value model; sao and ppo do")
    usable = admit(trajectories, learner, policy.vocabulary)
    with progress(max_epochs) as (on_batch, on_epoch):
        found = pretrain(
            value,
            usable,
            learner,
            device=device,
            held_out=held_out,
            max_epochs=max_epochs,
            patience=patience,
            on_batch=on_batch,
            on_epoch=on_epoch,
        )
    if found.best.epoch == 0:
        return found, None
    try:
        return found, save_pretrained(settings.data_dir, found.weights, hash_file(folder / "model.safetensors"))
    except OSError as error:
        raise CommandError(f"data_dir: the weights cannot be written, make room and try again: {error}") from error


def read_trajectories(settings: "Settings", source: Path | None) -> "list[Trajectory]":
    """Those that the service stored, or those of a JSONL file or of another data folder. Raises CommandError."""
    from pydantic import ValidationError

    from feedback.schemas import Trajectory

    if source is None or source.is_dir():
        if source is not None:
            from feedback.settings import DatabaseSettings

            settings = settings.model_copy(update={"data_dir": source, "database": DatabaseSettings()})
        return [Trajectory.model_validate_json(event) for event in _read_events(settings)]
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        raise CommandError(f"--from {source}: {error.strerror}; give a .jsonl file or a data folder") from error
    found: list[Trajectory] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Trajectory.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "line"
            raise CommandError(f"--from {source}, line {number}: no trajectory: {field}: {first['msg']}") from error
    return found


def _read_events(settings: "Settings") -> list[bytes]:
    import sqlalchemy as sa

    from feedback.tables import trajectories

    engine = open_prepared(settings).execution_options(online_rl_read_only=True)
    with engine.connect() as connection:
        kept = sa.select(trajectories.c.event).where(trajectories.c.erased_at.is_(None))
        rows = connection.scalars(kept.order_by(trajectories.c.seq))
        return [zlib.decompress(event) for event in rows]


def admit(trajectories: "list[Trajectory]", settings: "LearnerSettings", vocabulary: int) -> "list[Trajectory]":
    """Those whose return V may learn. Age and log-probabilities do not matter: V is regressed, not weighted."""
    from online_rl.admission import AdmissionRules, find_refusal
    from online_rl.objectives import Needs

    rules = AdmissionRules(
        max_staleness=10**9,
        max_tokens=settings.max_tokens,
        vocabulary=vocabulary,
        objective=settings.objective,
        needs=Needs(),
        train_greedy=settings.train_greedy,
        train_structured=settings.train_structured,
    )
    return [t for t in trajectories if find_refusal(t, rules, current_version=0) is None]


@contextmanager
def progress(max_epochs: int) -> "Iterator[tuple]":
    """A bar on stderr, so that stdout stays the result alone; yields what `pretrain` calls."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("scoring held-out episodes", total=None)

        def on_batch(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        def on_epoch(epoch: "Epoch") -> None:
            bar.update(
                task,
                description=f"epoch {epoch.epoch + 1} of at most {max_epochs}, "
                f"held-out explained variance {epoch.explained_variance:+.3f}",
                completed=0,
            )

        yield on_batch, on_epoch


def _describe(found: "Pretraining", path: Path | None, seconds: float) -> dict[str, object]:
    return {
        "trajectories": {"train": found.train, "held_out": found.held_out},
        "explained_variance": {
            "before": found.before.explained_variance,
            "after": found.best.explained_variance,
        },
        "best_epoch": found.best.epoch,
        "curve": [{"epoch": e.epoch, "loss": e.loss, "explained_variance": e.explained_variance} for e in found.curve],
        "file": None if path is None else str(path),
        "seconds": round(seconds, 1),
    }


COMMANDS = (pretrain_value,)
