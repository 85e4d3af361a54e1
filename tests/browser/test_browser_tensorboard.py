"""TensorBoard in a browser that is logged in to the Jupyter server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from browser_lab import ARTIFACTS
from browser_server import PATIENCE, ROOT
from playwright.sync_api import Browser, Page
from tiers import matrix

sys.path.append(str(ROOT / "tests" / "lab"))

from labserver import BASE, TOKEN, serving
from tensorboard_runs import make_run

FETCH = "path => fetch(path).then(answer => answer.status, error => String(error))"

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("own", matrix([True], rest=[False]))
def test_the_page_shows_the_runs_curves(tmp_path: Path, chromium: Browser, own: bool) -> None:
    run = make_run(own=own, steps=400)
    with serving(tmp_path) as server:
        path = server.ask("POST", f"nbdist/api/v1/runs/{run}/tensorboard").json["url"]
        page = chromium.new_page(viewport={"width": 1200, "height": 900})
        try:
            page.set_default_timeout(PATIENCE * 1000)
            look_at(page, f"http://127.0.0.1:{server.port}{BASE}{path}?token={TOKEN}")
            ARTIFACTS.mkdir(exist_ok=True)
            page.screenshot(path=ARTIFACTS / f"tensorboard-{'own' if own else 'made'}.png")
            assert "Failed to fetch" in page.evaluate(
                FETCH, f"{BASE}api/contents"
            )  # Jupyter is out of its reach
            assert page.evaluate(FETCH, "data/runs") == 200
        finally:
            page.close()


def look_at(page: Page, address: str) -> None:
    """Open the page, and wait for its curves."""
    errors: list[str] = []
    posted: list[int] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "response", lambda answer: posted.append(answer.status) if answer.request.method == "POST" else None
    )
    page.goto(address)
    for name in ("worker-0", "worker-0/validation", "worker-1"):
        page.get_by_text(name, exact=True).first.wait_for()
    last = (
        page.locator("scalar-card").get_by_text("0.0025").first
    )  # the loss at the last step, under its curve
    last.wait_for()
    assert set(posted) == {200}
    assert not errors, errors
