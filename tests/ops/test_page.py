"""The page's files."""

import re

from online_rl.dashboard.http_app import STATIC


def test_every_module_is_asked_for_at_once() -> None:
    """Else each import waits for the module that names it, one after the other, before anything is drawn."""
    page = (STATIC / "index.html").read_text()
    preloaded = set(re.findall(r'rel="modulepreload" href="/dashboard/([^"]+)"', page))
    modules = {str(path.relative_to(STATIC)) for path in STATIC.glob("**/*.js")}
    assert preloaded == modules - {"js/theme-early.js", "js/main.js"}
