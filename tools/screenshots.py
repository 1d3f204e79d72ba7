#!/usr/bin/env python3
"""Take pictures of the dashboard, which shows the fleet that its tests build, and write them to docs/images/ for the
README.

    python tools/screenshots.py [FOLDER]   # all pages, light and dark, wide and narrow, go to FOLDER where one is given

This program needs Chromium at /usr/bin/chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import places  # noqa: E402, F401 - puts the tests' helpers on the module path
from playwright.sync_api import sync_playwright  # noqa: E402
from shown_fleet import shown  # noqa: E402

PAGES = {
    "fleet": "/",
    "jobs": "/jobs",
    "job": "/jobs/gbt-oracle",
    "job-failed": "/jobs/mlp-oracle",
    "host": "/hosts/spectral-desktop",
    "compare": "/compare?jobs=gbt-realistic,gbt-oracle,mlp-realistic",
    "models": "/models",
    "incidents": "/incidents",
    "events": "/events",
}
KEPT = {
    ("fleet", "light", 1280),
    ("fleet", "dark", 1280),
    ("fleet", "light", 360),
    ("job", "light", 1280),
    ("models", "light", 1280),
    ("compare", "light", 1280),
}
FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"


def main(argv: list[str]) -> int:
    """Write the pictures and return the exit code."""
    given = Path(argv[0]) if argv else None
    folder = given or ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, shown(Path(place)) as receiver, sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS.split())
        for name, path in PAGES.items():
            for scheme in ("light", "dark"):
                for width in (360, 1280):
                    if given is None and (name, scheme, width) not in KEPT:
                        continue
                    page = browser.new_page(viewport={"width": width, "height": 740}, color_scheme=scheme)
                    page.goto(receiver.url + path)
                    page.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=given is not None)
                    page.close()
        browser.close()
    print(f"{folder}: {len(list(folder.glob('*.png')))} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
