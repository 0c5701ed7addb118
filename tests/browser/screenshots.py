"""Pictures of every view into ``docs/screenshots/``: ``python -m tests.browser.screenshots`` [FOLDER].

The service is real and its past is simulated (`tests.ops.history`), so that anybody gets the same pictures in a minute.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import ARGUMENTS, CHROMIUM, VIEWS, serve, wait_until_live

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
SHOTS = [
    *((view, "light", 1360, 940) for view in VIEWS),
    ("now", "dark", 1360, 940),
    ("now", "light", 390, 844),
]
CHOSEN = {
    "adaptation": "?cohort=tag.taste%3Dconcise",
    "trajectories": "?id=t-inf-000700",
    "versions": "?version=12",
}
"""What is chosen in a view, so that its details show."""


def shoot(browser: Browser, url: str, folder: Path) -> None:
    for view, scheme, width, height in SHOTS:
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(f"{url}/dashboard/#{view}{CHOSEN.get(view, '')}")
        wait_until_live(page)
        page.wait_for_timeout(1500)
        kind = "-phone" if width < 700 else "-dark" if scheme == "dark" else ""
        path = folder / f"{view}{kind}.png"
        page.screenshot(path=path)
        page.close()
        # 256 colours are all that these pictures need, at a third of the size.
        Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        serve(Path(data), past=True) as service,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        shoot(browser, service.url, folder)
        browser.close()


if __name__ == "__main__":
    main()
