"""The dashboard in Chromium, against the real operations application on a database with a past."""

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

import pytest
import sqlalchemy as sa
from playwright.sync_api import Page, expect

import online_rl.tables
from online_rl.registry import Registry
from online_rl.schemas import VersionState
from tests.browser.conftest import VIEWS, Service, Watched, serve, wait_until_live
from tests.ops.history import Rated
from tests.ops.seed import add_rated

pytestmark = pytest.mark.browser

Open = Callable[..., Page]


def paint(page: Page) -> int:
    """Pixels of the first chart that are drawn on."""
    return page.locator("main canvas").first.evaluate(
        """canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
            .filter((value, i) => i % 4 === 3 && value > 0).length"""
    )


@pytest.mark.parametrize("past", [True, False], ids=["full", "empty"])
@pytest.mark.parametrize("width", [1360, 700, 390], ids=["desk", "tablet", "phone"])
def test_every_view_loads_without_a_problem_and_fits(
    tmp_path: Path, open_page: Open, watched: Watched, past: bool, width: int
) -> None:
    with serve(tmp_path, past=past) as service:
        page = open_page(f"{service.url}/dashboard/", width=width)
        wait_until_live(page)
        for view in VIEWS:
            page.locator(f'#tabs a[href="#{view}"]').click()
            expect(page.locator("main section").first).to_be_visible()
            page.wait_for_timeout(400)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{view} scrolls sideways"
        page.context.close()
    assert watched.problems == []
    assert {urlparse(url).hostname for url in watched.requested if not url.startswith("data:")} == {"127.0.0.1"}


def test_the_reward_chart_is_drawn_and_described(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    expect(page.get_by_role("img", name="Reward over time")).to_be_visible()
    expect(page.locator("section", has=page.get_by_role("img", name="Reward over time"))).to_contain_text(
        "average of 32"
    )
    page.wait_for_timeout(500)
    assert paint(page) > 1000


def test_a_new_reward_arrives_without_reloading(service: Service, open_page: Open, watched: Watched) -> None:
    page = open_page(f"{service.url}/dashboard/#feedback")
    wait_until_live(page)
    released = page.locator(".funnel-row", has_text="Trajectories released").locator(".count")
    expect(released).to_have_text("960")
    with service.engine.begin() as connection:
        add_rated(connection, Rated(5000, "concise", 60, 1.0, time.time()))
    expect(released).to_have_text("961")
    assert sum(url.endswith("/dashboard/") for url in watched.requested) == 1


def test_a_new_version_arrives_without_reloading(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#versions")
    wait_until_live(page)
    registry = Registry(service.engine)
    registry.add_candidate(61, 60, "versions/v000061", {"kl_to_base": 0.9})
    expect(page.get_by_role("row", name="v61")).to_contain_text("candidate")
    registry.transition(61, VersionState.LIVE)
    expect(page.locator("#top-state")).to_contain_text("v61 live")
    expect(page.get_by_role("row", name="v61")).to_contain_text("live")


def test_only_the_new_end_of_the_rewards_is_fetched(service: Service, open_page: Open, watched: Watched) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    expect(page.get_by_role("img", name="Reward over time")).to_be_visible()
    with service.engine.begin() as connection:
        add_rated(connection, Rated(5000, "concise", 60, 1.0, time.time()))
    with page.expect_request(lambda request: "/admin/rewards?since=" in request.url):
        pass
    assert sum("/admin/rewards?limit=" in url for url in watched.requested) == 1


def test_an_answer_for_an_older_range_that_comes_late_is_not_shown(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    expect(page.get_by_role("img", name="Reward over time")).to_be_visible()
    held = []
    # The two ranges are told apart by how far back they ask; the answer to the shorter one is empty, and comes last.
    page.route(
        lambda url: "/admin/rewards?limit=" in url and "since=" in url,
        lambda route: held.append(route) if not held else route.continue_(),
    )
    with page.expect_request(lambda request: "/admin/rewards?limit=" in request.url):
        page.get_by_role("button", name="15 min").click()
    with page.expect_response(lambda response: "/admin/rewards?limit=" in response.url):
        page.get_by_role("button", name="6 h").click()
    empty = {"window": 32, "bucket_seconds": 1, "at": [], "count": [], "mean": [], "average": []}
    (late,) = held
    late.fulfill(json=empty)
    page.wait_for_timeout(500)
    expect(page.get_by_role("img", name="Reward over time")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("Nothing was rated in this time")


def test_promoting_by_click_asks_first_and_calls_the_route(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#versions")
    wait_until_live(page)
    page.get_by_role("button", name="Promote version 58").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Promote version 58?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert Registry(service.engine).get(58).state is VersionState.RETIRED

    page.get_by_role("button", name="Promote version 58").click()
    dialog.get_by_label("Reason").fill("58 reads better")
    with page.expect_response(lambda response: response.url.endswith("/admin/versions/58/promote")) as called:
        dialog.get_by_role("button", name="Promote v58").click()
    assert called.value.status == 200
    expect(page.locator("#top-state")).to_contain_text("v58 live")
    assert Registry(service.engine).get(58).reason == "58 reads better"


def test_a_refusal_is_shown_in_the_service_s_words(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#versions")
    wait_until_live(page)
    page.get_by_role("button", name="Promote version 58").click()
    Registry(service.engine).transition(58, VersionState.LIVE)  # somebody else was faster
    page.get_by_role("dialog").get_by_label("Reason").fill("mine")
    page.get_by_role("button", name="Promote v58").click()
    expect(page.locator("#toasts")).to_contain_text("version 58 is live")


def test_rolling_back_and_freezing_with_the_keyboard(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#versions")
    wait_until_live(page)
    roll_back = page.get_by_role("button", name="Roll back")
    expect(roll_back).to_be_enabled()  # it is once the versions are read, and takes no focus before
    roll_back.focus()
    page.keyboard.press("Enter")
    page.keyboard.type("worse")
    page.keyboard.press("Enter")
    expect(page.locator("#top-state")).to_contain_text("v59 live")
    page.get_by_role("button", name="Freeze learning").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert not Registry(service.engine).frozen()
    page.get_by_role("button", name="Freeze learning").press("Enter")
    page.keyboard.type("audit")
    page.keyboard.press("Enter")
    expect(page.locator("#top-state")).to_contain_text("learning frozen")
    expect(page.get_by_role("button", name="Resume learning")).to_be_visible()


def test_the_tabs_can_be_reached_with_the_keyboard(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.locator('#tabs a[href="#learner"]').focus()
    page.keyboard.press("Enter")
    expect(page).to_have_title("Learner · Online RL")
    expect(page.locator("#view")).to_be_focused()


def test_dark_follows_the_system_and_the_toggle_is_remembered(service: Service, open_page: Open) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page = open_page(f"{service.url}/dashboard/", color_scheme="dark")
    wait_until_live(page)
    dark = page.evaluate(background)
    page.get_by_role("button", name="Use the light theme").click()
    light = page.evaluate(background)
    assert light != dark
    page.reload()
    assert page.evaluate(background) == light
    page.get_by_role("button", name="Use the dark theme").click()
    assert page.evaluate(background) == dark


def test_a_silent_part_is_called_silent(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    with service.engine.begin() as connection:
        parts = online_rl.tables.parts
        connection.execute(sa.update(parts).where(parts.c.name == "learner").values(heartbeat_at=time.time() - 90))
    parts_card = page.get_by_role("region", name="Parts", exact=True)
    expect(parts_card.get_by_role("listitem").filter(has_text="learner")).to_contain_text("silent")
    expect(page.get_by_role("region", name="Alarms", exact=True)).to_contain_text("learner is silent")


def test_text_of_the_service_never_becomes_markup(service: Service, open_page: Open, watched: Watched) -> None:
    registry = Registry(service.engine)
    registry.add_candidate(61, 60, "versions/v000061", {})
    registry.transition(61, VersionState.REJECTED, reason="<img src=x onerror=alert(1)>")
    page = open_page(f"{service.url}/dashboard/#versions")
    expect(page.get_by_role("row", name="v61")).to_contain_text("<img src=x")
    assert page.locator("main img").count() == 0
    assert watched.problems == []


def test_the_key_is_asked_for_and_kept_in_the_tab_only(tmp_path: Path, open_page: Open) -> None:
    with serve(tmp_path, past=True, api_keys={"operator": ["admin"], "user": ["inference"]}) as service:
        page = open_page(f"{service.url}/dashboard/")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Admin key")
        dialog.get_by_label("API key").fill("user")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_contain_text("lacks the scope")
        dialog.get_by_label("API key").fill("operator")
        page.keyboard.press("Enter")
        wait_until_live(page)
        assert page.evaluate("Object.values(localStorage).includes('operator')") is False
        page.reload()
        wait_until_live(page)
        page.context.close()


def test_a_lost_connection_is_said_and_comes_back(tmp_path: Path, open_page: Open) -> None:
    with serve(tmp_path, past=True) as service:
        page = open_page(f"{service.url}/dashboard/")
        wait_until_live(page)
    expect(page.locator("#banner")).to_contain_text("The connection is lost")
    expect(page.locator("#connection")).to_have_text("Reconnecting")
    expect(page.get_by_role("group", name="Live version")).to_contain_text("v60")
    with serve(tmp_path, past=False, port=urlparse(service.url).port or 0) as again:
        assert again.url == service.url
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator("#banner")).to_be_hidden()
        page.context.close()
