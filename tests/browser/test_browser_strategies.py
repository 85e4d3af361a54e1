"""Training with copies on every worker, as a user sees it: a worker that dies, and what is left of it."""

from __future__ import annotations

import os
import re
import signal

import nbformat
import pytest
from browser_lab import LIVE, Lab, wait_for_curve
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import nbdist as nb
%load_ext nbdist
cluster = nb.start_cluster(workers=3, report=lambda line: None)
print("pid of worker 1:", next(task.pid for task in cluster.tasks if task.index == 1))"""
TRAIN = """%%distribute --strategy multi_worker --max-restarts 0 --seed 1 --name survived
import time
def slowly(*batch):
    time.sleep(0.02)  # the page needs the cores, too
    return batch
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(30).map(slowly), epochs=1_000_000)
"""
USE = "print(run.status, model.predict(x_test).shape)"


def output_of(page: Page, cell: int) -> str:
    return str(page.locator(".jp-Notebook-cell").nth(cell).locator(".jp-Cell-outputArea").inner_text())


def step_of(page: Page, card: int) -> int:
    """The step that a replica's card shows."""
    figures = page.locator(f"{LIVE} .nbd-card .nbd-figures").nth(card).inner_text()
    found = re.search(r"step\s([\d,]+)", figures)
    return int(found[1].replace(",", "")) if found else -1


def test_a_dead_worker_is_marked_in_the_live_and_the_frozen_view(lab: Lab) -> None:
    path = lab.write("dies.ipynb", [SETUP, TRAIN, USE, "%cluster stop"])
    page = lab.open("dies.ipynb")
    lab.run(0)
    pid = int(output_of(page, 0).partition("worker 1:")[2])
    lab.run(1, wait=False)
    wait_for_curve(page)

    os.kill(pid, signal.SIGKILL)
    expect(page.locator(f"{LIVE} .nbd-card[data-state=lost] .nbd-name")).to_have_text("worker 1")
    expect(page.locator(f"{LIVE} .nbd-note")).to_have_text(
        "worker 1 was lost; training continues on 2 replicas"
    )
    expect(page.locator(f"{LIVE} .nbd-chip")).to_contain_text("running")
    expect(page.locator(f"{LIVE} .nbd-parts")).to_contain_text("compute")
    # The others continue without it: its own last points may come after the word of its end.
    page.wait_for_function(
        "() => { const [, lost, other] = [...document.querySelectorAll('.nbd-card .nbd-figures')]"
        ".map(one => Number(/step\\s([\\d,]+)/.exec(one.textContent)?.[1].replaceAll(',', '')));"
        " return other > lost + 30 }"
    )
    last = step_of(page, 1)
    lab.screenshot("strategies-dead")

    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it", exact=True).click()
    lab.wait_done(1)
    expect(page.locator(LIVE)).to_have_count(0)
    shown = output_of(page, 1)
    assert re.search(r"■ stopped · .*[\d,]+ steps · .* · worker 1 was lost", shown)
    left = re.search(r"worker 1\s+lost\s+≥ ([\d,]+)", shown)
    assert left is not None
    assert int(left[1].replace(",", "")) >= last  # its last points may come after the word of its end
    assert "killed by SIGKILL; training continues on 2 workers" in shown
    lab.screenshot("strategies-dead-frozen")
    lab.run(2)
    assert "stopped (359, 10)" in output_of(page, 2)
    lab.run(3)
    lab.save()
    saved = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    assert "widgets" not in saved.metadata
    assert "worker 1 was lost" in saved.cells[1].outputs[0].data["text/plain"]
