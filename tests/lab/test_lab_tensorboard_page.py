"""TensorBoard in a browser that is logged in to the Jupyter server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from labserver import BASE, TOKEN, serving
from playwright.sync_api import Page, sync_playwright
from tensorboard_runs import make_run

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
PATIENCE = 60_000  # ms for whatever the page is to show: a limit for a busy machine, and no promise
FETCH = "path => fetch(path).then(answer => answer.status, error => String(error))"

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("own", [True, False])
def test_the_page_shows_the_runs_curves(tmp_path: Path, own: bool) -> None:
    run = make_run(own=own, steps=400)
    with serving(tmp_path) as server, sync_playwright() as playwright:
        path = server.ask("POST", f"nbdist/api/v1/runs/{run}/tensorboard").json["url"]
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            page = chromium.new_page(viewport={"width": 1200, "height": 900})
            page.set_default_timeout(PATIENCE)
            look_at(page, f"http://127.0.0.1:{server.port}{BASE}{path}?token={TOKEN}")
            ARTIFACTS.mkdir(exist_ok=True)
            page.screenshot(path=ARTIFACTS / f"tensorboard-{'own' if own else 'made'}.png")
            assert "Failed to fetch" in page.evaluate(
                FETCH, f"{BASE}api/contents"
            )  # Jupyter is out of its reach
            assert page.evaluate(FETCH, "data/runs") == 200
        finally:
            chromium.close()


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
