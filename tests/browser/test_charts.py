"""Charts leave the page: as a picture and as numbers."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.browser.conftest import Service, Watched, wait_until_live

pytestmark = pytest.mark.browser
Open = Callable[..., Page]


def test_a_chart_is_saved_as_numbers(service: Service, open_page: Open, tmp_path: Path) -> None:
    page = open_page(f"{service.url}/dashboard/#learner")
    wait_until_live(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Mask ratio as CSV").click()
    assert saved.value.suggested_filename == "mask-ratio.csv"
    saved.value.save_as(tmp_path / "numbers.csv")
    rows = list(csv.reader((tmp_path / "numbers.csv").open()))
    assert rows[0] == ["update", "mask ratio"]
    assert [row[0] for row in rows[1:]] == [str(update) for update in range(1, 61)]
    assert all(0 <= float(row[1]) < 1 for row in rows[1:])


def test_a_time_is_one_that_spreadsheets_read(service: Service, open_page: Open, tmp_path: Path) -> None:
    page = open_page(f"{service.url}/dashboard/")
    wait_until_live(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Reward over time as CSV").click()
    saved.value.save_as(tmp_path / "numbers.csv")
    rows = list(csv.reader((tmp_path / "numbers.csv").open()))
    assert rows[0] == ["time", "rewards", "average of 32"]
    assert rows[1][0].endswith("Z")
    assert rows[1][2] == "", "an average of fewer than eight rewards is unknown, not 0"


def test_a_chart_is_saved_as_a_picture(service: Service, open_page: Open, watched: Watched, tmp_path: Path) -> None:
    page = open_page(f"{service.url}/dashboard/", color_scheme="dark")
    wait_until_live(page)
    expect(page.get_by_role("img", name="Reward over time")).to_be_visible()
    page.wait_for_timeout(500)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Reward over time as PNG").click()
    saved.value.save_as(tmp_path / "picture.png")
    picture = Image.open(tmp_path / "picture.png").convert("RGB")
    assert picture.width > 500
    assert picture.getpixel((1, 1)) == (22, 26, 33), "on the page's surface, not on nothing"
    colours = picture.getcolors(picture.width * picture.height)
    assert colours is not None
    assert len(colours) > 50
    assert watched.problems == []
