"""The Grafana dashboard against Grafana's own types: the foundation SDK is generated from its schema."""

import json
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.monitoring.conftest import Promtool
from tests.monitoring.exposition import exists, metrics_in

BOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs/monitoring/grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {
    f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]
} | {one["name"]: one["expr"] for one in BOARD["annotations"]["list"]}
UNTYPED = {"expr", "titleFormat", "textFormat"}
"""Of an annotation: what a data source adds to it is not part of the dashboard's schema."""


def lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """Where `kept` lacks what `given` says."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [place for key, value in given.items() for place in lost(value, kept.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [place for i, (a, b) in enumerate(zip(given, kept, strict=True)) for place in lost(a, b, f"{path}[{i}]")]
    return [] if given == kept else [f"{path}: {given!r} became {kept!r}"]


def through_grafana(board: dict[str, Any]) -> dict[str, Any]:
    """`board` read into Grafana's types and written again: a field that they do not have is gone."""
    register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


def test_grafana_knows_every_field() -> None:
    gone = lost(BOARD, through_grafana(BOARD))
    assert [place for place in gone if place.split(":")[0].rsplit(".", 1)[-1] not in UNTYPED] == []


@pytest.mark.parametrize("place", ["dashboard", "panel", "query", "options"])
def test_a_field_that_grafana_does_not_know_is_found(place: str) -> None:
    board = json.loads(json.dumps(BOARD))
    panel = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
    {"dashboard": board, "panel": panel, "query": panel["targets"][0], "options": panel["options"]}[place]["colour"] = 1
    assert any(".colour" in one for one in lost(board, through_grafana(board)))


def test_its_schema_is_the_current_one() -> None:
    assert BOARD["schemaVersion"] == Dashboard().schema_version


def test_the_data_source_is_a_variable() -> None:
    assert BOARD["templating"]["list"][0]["type"] == "datasource"
    used = {one["datasource"]["uid"] for panel in PANELS for one in (panel, *panel["targets"])}
    assert used == {"${datasource}"}


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_a_panel_asks_for_metrics_that_exist(expression: str) -> None:
    assert metrics_in(expression)
    assert [name for name in metrics_in(expression) if not exists(name)] == []


def test_every_query_is_promql(promtool: Promtool, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{i}", "expr": expression.replace("$job", ".*")}
        for i, expression in enumerate(EXPRESSIONS.values())
    ]
    file = tmp_path / "panels.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = promtool("check", "rules", "--lint=none", file)
    assert checked.returncode == 0, checked.stdout
