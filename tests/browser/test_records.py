"""Trajectories, cohorts, a version's lineage, and two versions side by side."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from playwright.sync_api import Page, Route, expect

import feedback.tables
from tests.browser.conftest import Service, Watched, wait_until_live

pytestmark = pytest.mark.browser
Open = Callable[..., Page]


def test_a_trajectory_shows_what_was_asked_answered_and_rated(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#trajectories?id=t-inf-000700")
    wait_until_live(page)
    tokens = page.locator(".tokens .token")
    expect(tokens).to_have_count(82)
    expect(page.locator(".tokens .token.asked")).to_have_count(50)
    expect(page.get_by_role("region", name="Rated")).to_contain_text("taste: concise")
    expect(page.get_by_role("region", name="On record")).to_contain_text("update 44")
    page.get_by_role("button", name="Version", exact=True).click()
    expect(page.locator(".tokens .token.version-1")).to_have_count(32)  # version 43
    assert "v43" in (tokens.last.get_attribute("title") or "")


def test_tokens_are_written_out_where_the_policy_cuts_the_text_alike(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    page.route("**/detokenize", lambda route: route.fulfill(json={"prompt": "What of rivers? " * 5}))

    def tokenize(route: Route) -> None:
        route.fulfill(json={"tokens": sent[-1], "token_strs": ["Ġword"] * len(sent[-1])})

    sent: list[list[int]] = []
    page.on(
        "request",
        lambda request: sent.append(request.post_data_json["tokens"]) if request.url.endswith("/detokenize") else None,
    )
    page.route("**/tokenize", tokenize)
    page.goto(f"{service.url}/dashboard/#trajectories?id=t-inf-000700")
    expect(page.locator(".tokens")).to_contain_text("word word")
    expect(page.locator("main")).not_to_contain_text("Token ids:")


def test_the_worst_come_first_when_asked(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#trajectories")
    wait_until_live(page)
    page.get_by_role("button", name="Worst").click()
    expect(page.locator("tbody tr").first).to_contain_text("0.00")
    page.locator("tbody tr a").first.click()
    assert "order=worst" in page.url
    expect(page.locator(".tokens .token")).to_have_count(82)


def test_an_unknown_trajectory_is_said_to_be_one(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#trajectories?id=t-none")
    wait_until_live(page)
    expect(page.locator("main")).to_contain_text("no trajectory t-none is on record")


def test_an_erased_trajectory_shows_no_content(service: Service, open_page: Open) -> None:
    table = feedback.tables.trajectories
    with service.engine.begin() as connection:
        gone = sa.update(table).where(table.c.trajectory_id == "t-inf-000700").values(erased_at=1.0, event=b"")
        connection.execute(gone)
    page = open_page(f"{service.url}/dashboard/#trajectories?id=t-inf-000700")
    wait_until_live(page)
    expect(page.get_by_role("region", name="Asked and answered")).to_contain_text("Erased")
    expect(page.locator(".token")).to_have_count(0)


def test_a_version_tells_what_made_it_and_leads_to_it(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#versions?version=12")
    wait_until_live(page)
    made = page.get_by_role("region", name="Version 12", exact=True)
    expect(made).to_contain_text("1 update, 16 trajectories")
    expect(made).to_contain_text("policy@v12")
    made.get_by_role("link", name="t-inf-000180").click()
    expect(page.locator(".tokens .token")).to_have_count(82)


def test_two_versions_answer_side_by_side_and_are_not_trained_on(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#versions?version=60")
    wait_until_live(page)
    asked = []

    def answer(route: Route) -> None:
        asked.append((route.request.post_data_json["model"], route.request.headers.get("x-train")))
        if route.request.post_data_json["model"] == "policy@v60":
            route.fulfill(json={"choices": [{"message": {"content": "<b>Rivers</b> flow."}}]})
        else:
            route.fulfill(status=404, json={"error": {"message": "version 59 is not loaded"}})

    page.route("**/v1/chat/completions", answer)
    page.get_by_label("Prompt").fill("rivers?")
    page.get_by_role("button", name="Ask both").click()
    expect(page.get_by_role("region", name="v60", exact=True)).to_contain_text("<b>Rivers</b> flow.")
    expect(page.get_by_role("region", name="v59", exact=True)).to_contain_text("version 59 is not loaded")
    assert sorted(asked) == [("policy@v59", "false"), ("policy@v60", "false")]


def test_the_shifts_are_those_of_the_cohort(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/#adaptation")
    wait_until_live(page)
    expect(page.get_by_role("region", name="Changes", exact=True).get_by_role("row")).to_have_count(3)
    page.get_by_role("link", name="key=anonymous").click()
    expect(page.get_by_role("region", name="Changes of taste and of prompts")).to_contain_text("None in this cohort")


def test_the_ratios_are_a_histogram(service: Service, open_page: Open, watched: Watched) -> None:
    page = open_page(f"{service.url}/dashboard/#learner")
    wait_until_live(page)
    rows = page.get_by_role("region", name="Importance ratios").locator(".funnel-row")
    expect(rows).to_have_count(9)
    expect(rows.first).to_contain_text("0 to 0.5")
    expect(rows.last).to_contain_text("2 and more")
    assert watched.problems == []


def test_the_pace_is_shown(service: Service, open_page: Open) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    expect(page.get_by_role("group", name="Requests a minute")).to_contain_text("rated")
    expect(page.get_by_role("group", name="Latency")).to_contain_text(" s")
    page.goto(f"{service.url}/dashboard/#feedback")
    expect(page.get_by_role("group", name="Coverage")).to_contain_text("100%")
    expect(page.get_by_role("group", name="Feedback to weights")).to_contain_text(" s")
