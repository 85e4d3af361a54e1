"""A JupyterLab in a headless Chromium with the feed of page_body.py running in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))  # for its JupyterLab and Chromium

NAME = "feed.ipynb"
SHOWN = "section.nbdist-live"
CELL = "%load_ext nbdist\nfrom bench import page_body\nawait page_body.feed({seconds}, {replicas}, {rate})"
STEP = (
    "() => Number(/step ([\\d,]+)/.exec(document.querySelector('.nbd-plot')?.ariaLabel)?.[1]"
    ".replaceAll(',', '') ?? 0)"
)  # that the first chart says it is at


@contextmanager
def feeding(folder: Path, seconds: float, replicas: int, rate: int) -> Iterator[Any]:
    """Yield a JupyterLab that shows the live view; it ends with the block."""
    from browser_lab import Lab, start_chromium
    from browser_server import LabServer
    from playwright.sync_api import sync_playwright

    server = LabServer(folder)
    try:
        with sync_playwright() as playwright:
            browser = start_chromium(playwright)
            lab = Lab(server, browser)
            lab.write(NAME, [CELL.format(seconds=seconds, replicas=replicas, rate=rate)])
            page = lab.open(NAME)
            lab.run(0, wait=False)
            page.wait_for_selector(f"{SHOWN} .nbd-plot")
            page.locator(SHOWN).evaluate("node => node.scrollIntoView({block: 'start'})")
            yield lab
            lab.close()
            browser.close()
    finally:
        server.close()
