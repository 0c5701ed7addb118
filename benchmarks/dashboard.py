"""How fast the dashboard is on a service with a long past: each question that the page asks, and its first paint.

    python -m benchmarks.dashboard --trajectories 100000 --json FILE

The database is SQLite and filled with a simulated past; the questions go over HTTP, one after the other.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from playwright.sync_api import sync_playwright
from sqlalchemy import Engine

from tests.browser.conftest import ARGUMENTS, CHROMIUM, serve
from tests.ops.history import TASTES

QUESTIONS = {
    "status": "/admin/status",
    "metrics": "/metrics",
    "versions": "/admin/versions",
    "version's lineage": "/admin/versions/100/lineage?limit=200",
    "updates": "/admin/updates?limit=2000",
    "rewards, all": "/admin/rewards?limit=500",
    "rewards, 15 min": "/admin/rewards?limit=500&since={since}",
    "drift": "/admin/drift",
    "dead letters": "/admin/dead-letters",
    "cohorts": "/admin/cohorts",
    "trajectories": "/admin/trajectories?limit=60",
    "worst trajectories": "/admin/trajectories?limit=60&worst=true",
    "one trajectory": "/admin/trajectories/t-inf-000700",
}
PAINTED = """() => performance.getEntriesByType("paint")
    .find((one) => one.name === "first-contentful-paint")?.startTime"""


def measure(url: str, repeats: int) -> dict[str, dict[str, float]]:
    """Question → median and largest milliseconds, and KiB of the answer. The first time of each is not counted."""
    found: dict[str, dict[str, float]] = {}
    with httpx.Client(base_url=url, timeout=60) as client:
        for name, path in QUESTIONS.items():
            times: list[float] = []
            size = 0
            for number in range(repeats + 1):
                time.sleep(1.0 if name in ("status", "metrics") else 0.0)  # what is shared for a second is asked anew
                started = time.perf_counter()
                answer = client.get(path.format(since=time.time() - 900)).raise_for_status()
                if number:
                    times.append(1000 * (time.perf_counter() - started))
                size = len(answer.content)
            found[name] = {"median_ms": statistics.median(times), "max_ms": max(times), "kib": size / 1024}
    return found


def paint(url: str, repeats: int) -> dict[str, float]:
    """Medians in milliseconds from the request of the page to its first paint, its first figures and its chart."""
    marks: dict[str, list[float]] = {"first paint": [], "figures shown": [], "chart shown": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for _ in range(repeats):
            page = browser.new_page(viewport={"width": 1360, "height": 900})
            page.goto(f"{url}/dashboard/", wait_until="commit")
            page.get_by_role("group", name="Live version").wait_for()
            marks["figures shown"].append(page.evaluate("performance.now()"))
            page.get_by_role("img", name="Reward over time").wait_for()
            marks["chart shown"].append(page.evaluate("performance.now()"))
            marks["first paint"].append(page.evaluate(PAINTED))
            page.close()
        browser.close()
    return {name: statistics.median(times) for name, times in marks.items()}


def count(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        tables = ("generations", "feedback", "trajectories", "updates", "policy_versions")
        return {name: connection.scalar(sa.select(sa.func.count()).select_from(sa.table(name))) or 0 for name in tables}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write what is printed to this file as well")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with serve(Path(folder), past=True, per_taste=wanted.trajectories // len(TASTES)) as service:
            rows = count(service.engine)
            print(f"filled in {time.perf_counter() - started:.0f} s: {rows}", flush=True)
            report: dict[str, Any] = {"rows": rows, "questions": measure(service.url, wanted.repeats)}
            for name, figures in report["questions"].items():
                times = f"{figures['median_ms']:>9.1f} ms{figures['max_ms']:>9.1f} max"
                print(f"{name:<20}{times}{figures['kib']:>9.1f} KiB")
            report["page"] = paint(service.url, wanted.repeats)
    for name, milliseconds in report["page"].items():
        print(f"{name:<20}{milliseconds:>9.1f} ms")
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
