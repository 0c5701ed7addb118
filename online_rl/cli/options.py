"""Options that several commands share, and how they become settings."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from online_rl.cli.errors import CommandError

if TYPE_CHECKING:
    from online_rl.config import Settings

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the service's data.", show_default=False)]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting, e.g. --set learner.batch_size=32. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def overrides_from(assignments: list[str] | None, **named: Any) -> dict[str, Any]:
    """Nested settings of ``section.field=value`` texts and of options (``section__field=value``, None: not given)."""
    overrides: dict[str, Any] = {}
    for assignment in assignments or []:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"--set {assignment}: write it as NAME=VALUE, e.g. --set serving.port=9000")
        if name.split(".")[0].strip() == "api_keys":
            raise CommandError("api_keys: other users could read it in the process list; set ONLINE_RL_API_KEYS")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        _put(overrides, name.strip().split("."), value)
    for name, value in named.items():
        if value is not None:
            _put(overrides, name.split("__"), value)
    return overrides


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise CommandError(f"--set {'.'.join(path)}: {part} was given a value of its own")
    tree[path[-1]] = value


def settings_from(data_dir: Path | None, assignments: list[str] | None, **named: Any) -> "Settings":
    """Raises ConfigError or CommandError."""
    from online_rl.config import load_settings

    return load_settings(overrides_from(assignments, data_dir=data_dir, **named))
