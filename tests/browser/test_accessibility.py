"""axe-core, the accessibility checker that browsers' own audits use, on every view. Vendored from the npm package
axe-core 4.14.1, unchanged."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import VIEWS, Service, serve, wait_until_live

pytestmark = pytest.mark.browser

AXE = Path(__file__).with_name("vendor") / "axe-core" / "axe.min.js"
Open = Callable[..., Page]


def findings(page: Page) -> list[str]:
    """What axe-core calls serious or critical, with the elements it means."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())  # not a script tag: the page's own policy would refuse one
    found: list[dict[str, Any]] = page.evaluate("axe.run().then((result) => result.violations)")
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {[node['target'] for node in one['nodes'][:4]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def visit(page: Page, view: str) -> None:
    page.locator(f'#tabs a[href^="#{view}"]').click()
    page.wait_for_function(
        "view => document.querySelector(`#tabs a[aria-current]`)?.hash.startsWith(`#${view}`)", arg=view
    )
    page.wait_for_timeout(400)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1360, 390], ids=["desk", "phone"])
def test_no_view_has_a_serious_finding(service: Service, open_page: Open, width: int, scheme: str) -> None:
    page = open_page(f"{service.url}/dashboard/", width=width, color_scheme=scheme)
    wait_until_live(page)
    found = []
    for view in VIEWS:
        visit(page, view)
        found += [f"{view}: {finding}" for finding in findings(page)]
    assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_neither_has_an_empty_service_or_a_dialog(tmp_path: Path, open_page: Open, scheme: str) -> None:
    with serve(tmp_path, past=False) as service:
        page = open_page(f"{service.url}/dashboard/", color_scheme=scheme)
        wait_until_live(page)
        found = []
        for view in VIEWS:
            visit(page, view)
            found += [f"{view}: {finding}" for finding in findings(page)]
        page.locator('#tabs a[href^="#versions"]').click()
        page.get_by_role("button", name="Freeze learning").click()
        found += [f"dialog: {finding}" for finding in findings(page)]
        page.context.close()
    assert found == []


def test_the_checker_finds_what_is_wrong(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    page.evaluate("document.getElementById('theme').replaceChildren()")
    page.evaluate("document.getElementById('theme').removeAttribute('aria-label')")
    page.evaluate("document.getElementById('theme').removeAttribute('title')")
    assert any(re.match("critical button-name", finding) for finding in findings(page))
