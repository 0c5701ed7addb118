"""The documentation keeps up with the code: every setting, command, link and committed figure."""

import re
from pathlib import Path

import pytest
import typer

from feedback.topics_reference import describe_topics
from online_rl.cli.app import app
from online_rl.configuration_reference import describe_settings

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FUNCTION_LINK = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)")


def command_names() -> list[str]:
    """Every command as it is typed, e.g. ``db upgrade``."""
    names: list[str] = []

    def walk(command: object, path: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children is None:
            names.append(" ".join(path))
            return
        for name, child in children.items():
            walk(child, (*path, name))

    walk(typer.main.get_command(app), ())
    return names


def test_the_configuration_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == describe_settings(), "run: python -m online_rl.configuration_reference > docs/configuration.md"


def test_the_description_of_the_topics_is_up_to_date() -> None:
    page = (ROOT / "docs" / "asyncapi.json").read_text(encoding="utf-8")
    assert page == describe_topics(), "run: python -m feedback.topics_reference > docs/asyncapi.json"


def test_every_setting_says_what_it_is_for() -> None:
    rows = [line for line in describe_settings().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert not [row for row in rows if row.endswith("|  |")]


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    names = command_names()
    assert "up" in names
    assert "demo" in names
    assert [name for name in names if f"`online-rl {name}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_function_named_beside_an_equation_exists() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    links = [(name, path) for name, path in FUNCTION_LINK.findall(page) if not name.endswith(".py")]
    assert len(links) > 10
    for name, path in links:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(?:def|class) {name.split('.')[-1]}\b", source, re.MULTILINE), f"{name} in {path}"


def test_the_readme_names_the_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make test" in readme
    assert "make demo" in readme
