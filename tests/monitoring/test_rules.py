"""The alert rules: valid, about metrics that exist, firing when they should, and leading to a page that exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.monitoring.conftest import Promtool
from tests.monitoring.exposition import exists, metrics_in, service

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "docs/monitoring/alerts.yml"
FIRING = Path(__file__).with_name("firing.yml")
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]


def anchors(markdown: str) -> set[str]:
    """The anchors of the headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_exposition_has_no_fault_that_prometheus_knows(promtool: Promtool) -> None:
    checked = promtool("check", "metrics", input=service())
    assert (checked.returncode, checked.stdout) == (0, "")


def test_every_family_says_what_it_is() -> None:
    for family in text_string_to_metric_families(service()):
        assert family.documentation
        assert family.documentation.endswith("."), family.name


def test_the_rules_are_valid(promtool: Promtool) -> None:
    checked = promtool("check", "rules", ALERTS)
    assert checked.returncode == 0, checked.stdout


def test_the_rules_fire_and_are_silent_when_they_should(promtool: Promtool) -> None:
    checked = promtool("test", "rules", FIRING)
    assert checked.returncode == 0, checked.stdout


def test_every_rule_is_seen_to_fire() -> None:
    expected = re.findall(r'alertname="(\w+)"', FIRING.read_text())
    assert sorted(set(expected)) == sorted(NAMES)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_says_what_to_do_about_a_metric_that_exists(rule: dict[str, Any]) -> None:
    assert metrics_in(rule["expr"])
    assert [name for name in metrics_in(rule["expr"]) if not exists(name)] == []
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert len(rule["annotations"]["description"]) > 40
    page, anchor = rule["annotations"]["runbook"].split("#")
    text = (ROOT / page).read_text()
    assert anchor in anchors(text)
    assert page == "docs/operations.md"
    if anchor != "messages-that-could-not-be-handled":
        assert f"`{rule['alert']}`" in text
