"""An in-graph cell in JupyterLab: the notebook's own process trains, and the page stays alive."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from browser_lab import LIVE, Lab, bring_into_view, wait_for_curve
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, ps=1, orphan_timeout=2)
x_train, y_train, x_test, y_test = nb.data.digits()"""
TRAIN = """%%distribute --replication in-graph --sync --seed 1 --name towers
import time
def slowly(*batch):
    time.sleep(0.02)  # the page needs the cores, too
    return batch
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.001), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x_train, y_train).batch(100).map(slowly), epochs=1_000_000)
"""
USE = "print(run.status, model is run.model, model.predict(x_test).shape, history.global_step > 0)"


def output_of(page: Page, cell: int) -> str:
    return str(page.locator(".jp-Notebook-cell").nth(cell).locator(".jp-Cell-outputArea").inner_text())


def steps_of_towers(page: Page) -> list[int]:
    """The steps that the cards of the replicas show."""
    texts = page.locator(f"{LIVE} .nbd-card .nbd-figures").all_inner_texts()
    return [int("".join(c for c in text.partition("·")[0] if c.isdigit()) or -1) for text in texts]


@pytest.mark.timeout(400)
def test_an_in_graph_cell_is_live_stops_and_freezes(lab: Lab) -> None:
    path = lab.write("towers.ipynb", [SETUP, TRAIN, USE, "%cluster stop"])
    page = lab.open("towers.ipynb", height=900)
    lab.run(0)
    lab.run(1, wait=False)
    page.wait_for_selector(LIVE, state="attached")
    bring_into_view(page.locator(LIVE))
    expect(page.locator(f"{LIVE} .nbd-card .nbd-name")).to_have_text(["worker 0", "worker 1"])
    wait_for_curve(page)
    page.locator(f"{LIVE} .nbd-data summary").click()
    for curve in ("loss, worker 0", "loss, worker 1", "accuracy, worker 0", "accuracy, worker 1"):
        expect(page.locator(f"{LIVE} .nbd-data tbody")).to_contain_text(curve)
    page.locator(f"{LIVE} .nbd-data summary").click()
    early = steps_of_towers(page)
    page.wait_for_function(
        f"early => [...document.querySelectorAll('{LIVE} .nbd-card .nbd-figures')].every((figures, i) =>"
        " Number(figures.innerText.split('·')[0].replace(/[^0-9]/g, '')) > early[i] + 20)",
        arg=early,
    )
    expect(page.locator(f"{LIVE} .nbd-output")).to_contain_text("one graph with 2 towers, one session")
    lab.screenshot("in-graph-running")

    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it", exact=True).click()
    expect(page.locator(LIVE)).to_have_count(0)
    lab.wait_done(1)
    shown = output_of(page, 1)
    assert "■ stopped" in shown
    assert "steps/s" in shown
    assert "worker 0" in shown
    assert "worker 1" in shown
    expect(page.locator(".jp-OutputArea img[src^='data:image/png']")).to_have_count(1)
    lab.screenshot("in-graph-stopped")
    lab.run(2)
    assert "stopped True (359, 10) True" in output_of(page, 2)
    lab.run(3)
    assert "is stopped" in output_of(page, 3)

    lab.save()
    saved: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(saved)
    assert "widgets" not in saved.metadata
    (frozen,) = [o for o in saved.cells[1].outputs if "application/vnd.nbdist.run+json" in o.get("data", {})]
    assert "application/vnd.jupyter.widget-view+json" not in frozen.data
    assert "image/png" in frozen.data
