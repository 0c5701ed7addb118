"""How far a demo run has come, on disk, so that an interrupted run goes on where it was."""

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from online_rl.demo.judge import JudgedAnswer
from online_rl.demo.options import DemoError, DemoOptions
from online_rl.demo.report import write_json
from online_rl.service.processes import read_running

FILE = "demo-progress.json"


class RunKey(BaseModel):
    """What must be equal for an interrupted run to go on."""

    model_config = ConfigDict(frozen=True)

    seed: int
    phases: tuple[str, ...]
    per_phase: int
    answers: int = 1
    learning_rate: float | None
    report: str | None


def key_of(options: DemoOptions) -> RunKey:
    return RunKey(
        seed=options.seed,
        phases=options.phase_names,
        per_phase=options.trajectories,
        answers=options.answers,
        learning_rate=options.learning_rate,
        report=str(options.report.absolute()) if options.report else None,
    )


class Progress(BaseModel):
    """Written after every rating; small."""

    key: RunKey
    topic_prefix: str | None = None
    """Of the topics on a Kafka cluster that is not the embedded broker."""
    base_answers: list[JudgedAnswer] = []
    rewards: list[list[float]] = []
    """Of each phase begun, in the order of rating."""
    held_out: list[list[JudgedAnswer]] = []
    """Answers to the held-out questions at the end of each phase finished."""
    quality: list[dict[str, float]] = []
    """Of each phase judged."""
    requests: int = 0
    failed_requests: int = 0
    feedback_accepted: int = 0
    seconds: float = 0.0
    finished: bool = False

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, self.model_dump(mode="json"))


def open_progress(options: DemoOptions) -> tuple[Progress, bool]:
    """The progress to go on from, and whether it is an interrupted run's.

    A run resumes where it has a report, was not finished, and was asked for in the same way; any other demo's folder
    is emptied and starts again. Raises DemoError where the folder holds something that no demo made.
    """
    folder = options.folder
    fresh = Progress(key=key_of(options))
    if not folder.exists() or not any(folder.iterdir()):
        return fresh, False
    path = folder / FILE
    if not path.is_file():
        raise DemoError(f"{folder} holds data that no demo made; choose another --data-dir")
    try:
        found = Progress.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError:
        found = None
    if found is not None and options.report is not None and not found.finished and found.key == fresh.key:
        return found, True
    if (running := read_running(folder)) is not None:
        raise DemoError(
            f"a service runs on {folder} at {running.url} (process {running.pid}); "
            "stop it, or choose another --data-dir"
        )
    shutil.rmtree(folder)
    return fresh, False
