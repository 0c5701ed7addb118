"""The verifiable tasks that the experiments train on."""

from benchmarks.papers.tasks.episode import Episode, Task, demonstrate
from benchmarks.papers.tasks.lookup import LOOKUP
from benchmarks.papers.tasks.sorting import SORTING
from benchmarks.papers.tasks.styles import STYLES, Style, make_style_task
from benchmarks.papers.tasks.vocabulary import VOCABULARY, Token

__all__ = [
    "LOOKUP",
    "SORTING",
    "STYLES",
    "TASKS",
    "VOCABULARY",
    "Episode",
    "Style",
    "Task",
    "Token",
    "demonstrate",
    "make_style_task",
]

TASKS: dict[str, Task] = {task.name: task for task in (SORTING, LOOKUP, make_style_task("cute"))}
