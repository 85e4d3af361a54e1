"""Live view and grid in Notebook 6 with Google Colab's versions of ipykernel, ipywidgets and anywidget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook6 import Notebook6
from playwright.sync_api import Browser, expect

pytestmark = [pytest.mark.browser, pytest.mark.engines]

TRAIN = """
%%distribute --strategy multi_worker
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(100), epochs=100000)
""".strip()
SWEEP = """
%%sweep lr=[0.01, 0.1, 0.5] --metric accuracy --wait
import os, time
x, y, _, _ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=100, epochs=3)
while not os.path.exists("grid-seen"):
    time.sleep(0.02)
""".strip()
LIVE = "section.nbdist-live"


@pytest.fixture
def notebook(tmp_path: Path, chromium: Browser) -> Iterator[Notebook6]:
    opened = Notebook6(tmp_path, chromium)
    yield opened
    opened.close()


@pytest.mark.timeout(300)
def test_view_and_grid_are_drawn_and_steer_with_the_versions_of_colab(notebook: Notebook6) -> None:
    start = "import nbdist as nb\n%load_ext nbdist\n%cluster start --workers 2"
    sweep = SWEEP.replace("grid-seen", str(notebook.folder / "grid-seen"))
    page = notebook.open("colab.ipynb", [start, TRAIN, sweep, "pass"])
    notebook.run(0)
    notebook.run(1, wait=False)
    page.locator(LIVE).wait_for(state="attached")
    page.locator(LIVE).first.scroll_into_view_if_needed()
    page.wait_for_function(
        f"() => /at [a-z]+ [1-9]/.test(document.querySelector('{LIVE} .nbd-plot')?.ariaLabel)"
    )
    # The buttons act while the cell runs, which this ipykernel does not do by itself.
    live = page.locator(LIVE)
    live.get_by_role("button", name="Pause", exact=True).click()
    expect(live.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    live.get_by_role("button", name="Resume", exact=True).click()
    expect(live.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    live.get_by_role("button", name="Stop", exact=True).click()
    live.get_by_role("button", name="Stop it", exact=True).click()
    page.wait_for_function("() => Jupyter.notebook.get_cell(1).input_prompt_number !== '*'")
    expect(page.locator(".cell").nth(1).locator("img")).to_have_count(1)  # the picture that stays
    notebook.run(3)  # the kernel drops cells for a moment after the run that was stopped
    notebook.run(2, wait=False)
    page.locator("section.nbdist-sweep").first.wait_for(state="attached")
    (notebook.folder / "grid-seen").touch()
    page.wait_for_function("() => Jupyter.notebook.get_cell(2).input_prompt_number !== '*'")
    expect(page.locator(".cell").nth(2).locator("img").first).to_be_visible()
    assert "Error displaying widget" not in page.inner_text("body")
    saved = notebook.save("colab.ipynb")
    assert "image/png" in saved
    assert "widget-view" not in saved  # a widget without its kernel is an error in the page
    assert not notebook.errors
