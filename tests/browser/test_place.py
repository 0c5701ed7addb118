"""A link to the page restores what was seen: view, time shown, cohort, what was chosen."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Service, wait_until_live

pytestmark = pytest.mark.browser
Open = Callable[..., Page]


def test_a_link_restores_view_range_and_cohort(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#adaptation?range=900&cohort=tag.taste%3Dconcise")
    wait_until_live(page)
    expect(page.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("tr.current")).to_contain_text("tag.taste=concise")
    expect(page.get_by_role("img", name="Reward of the cohort")).to_be_visible()


def test_what_is_chosen_is_in_the_address_and_goes_along(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    page.get_by_role("button", name="6 h").click()
    assert page.url.endswith("#now?range=21600")
    page.get_by_role("navigation").get_by_role("link", name="Adaptation").click()
    page.get_by_role("link", name="tag.taste=concise").click()
    assert page.url.endswith("#adaptation?range=21600&cohort=tag.taste%3Dconcise")
    page.reload()
    wait_until_live(page)
    expect(page.locator("tr.current")).to_contain_text("concise")
    page.get_by_role("button", name="All traffic").click()
    assert page.url.endswith("#adaptation?range=21600")
    page.get_by_role("navigation").get_by_role("link", name="Versions").click()
    assert page.url.endswith("#versions?range=21600")


def test_the_back_button_leads_to_the_view_before(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#versions")
    wait_until_live(page)
    page.get_by_role("link", name="v59", exact=True).click()
    expect(page.get_by_role("heading", name="Version 59")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Version 59")).to_have_count(0)


def test_the_time_shown_holds_for_the_learner_s_figures(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#learner")
    wait_until_live(page)
    figure = page.get_by_role("region", name="Mask ratio")
    expect(figure).to_contain_text("60 points")
    page.get_by_role("button", name="15 min").click()
    expect(figure).not_to_contain_text("60 points")
    expect(figure).to_contain_text("points")
