"""Real runs in a real JupyterLab: the stop button, and what else may happen while a cell trains."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import psutil
import pytest
from browser_lab import FAILED, LIVE, Lab, record, wait_for_curve
from browser_server import LabServer
from playwright.sync_api import Browser, Page, expect
from tiers import exhaustive

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import os
import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, ps=1, orphan_timeout=2)"""
TRAIN = """%%distribute --strategy ps --seed 1 --name long
import time
def slowly(*batch):
    time.sleep(0.02)  # the page needs the cores, too
    return batch
x_train, y_train, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.001), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x_train, y_train).batch(10).map(slowly), epochs=1_000_000)
"""
SLOW = """%%distribute --strategy ps --seed 1 --name one-is-slow
import time
import numpy as np
x, y = nb.data.digits()[:2]
def batches():
    while True:
        time.sleep(0.02 if nb.task.rank == 1 else 0.01)
        yield x[:20], y[:20]
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.001), "sparse_categorical_crossentropy")
model.fit(nb.data.Dataset.from_generator(batches), epochs=1, steps_per_epoch=1_000_000)
"""
USE = "print(run.status, model.predict(x_test).shape, len(history.history['loss']) >= 0)"


@pytest.fixture(scope="module")
def notebook(lab_server: LabServer, chromium: Browser) -> Iterator[Lab]:
    """The notebook of these tests; it has a cluster when its first cell was run."""
    lab = Lab(lab_server, chromium, draws=False, keeps=True)
    lab.write("long.ipynb", [SETUP, TRAIN, USE])
    yield lab
    lab.close()
    assert not lab.errors, lab.errors


@pytest.fixture
def training(notebook: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A notebook with a second cell that trains with a live view."""
    if notebook.tab is None:
        notebook.open("long.ipynb")
        notebook.run(0)
    notebook.command("notebook:clear-all-cell-outputs")
    expect(notebook.page.locator(LIVE)).to_have_count(0)
    notebook.run(1, wait=False)
    wait_for_curve(notebook.page)
    yield notebook
    notebook.end_tabs()
    if request.node.stash.get(FAILED, False):
        notebook.close(keep=False)


def output_of(page: Page, cell: int) -> str:
    return str(page.locator(".jp-Notebook-cell").nth(cell).locator(".jp-Cell-outputArea").inner_text())


def end_of(server: LabServer, shown: str) -> float:
    """When the run in an output ended, in seconds since 1970."""
    found = re.search(r"\b\d{6}-\d{6}-[\w-]+", shown)
    assert found, shown
    record = server.notebooks.parent / "nbdist_home" / "runs" / found[0] / "run.json"
    return float(json.loads(record.read_text())["ended"])


def check_usable(lab: Lab) -> None:
    """What was trained is in the notebook."""
    lab.run(2)
    assert "stopped (359, 10) True" in output_of(lab.page, 2)


@exhaustive  # test_controls_act_while_the_cell_is_running, test_every_end_is_shown_without_a_kernel
def test_the_stop_button_ends_a_real_run_and_freezes_its_view(training: Lab) -> None:
    page = training.page
    page.get_by_role("button", name="Stop", exact=True).click()
    # The page notes the press: before it, the test looks for the button and waits until it stands still.
    page.evaluate(
        "addEventListener('click', () => { window.pressed = Date.now() }, {capture: true, once: true})"
    )
    page.get_by_role("button", name="Stop it", exact=True).click()
    pressed = page.evaluate("window.pressed") / 1000
    expect(page.locator(LIVE)).to_have_count(0)
    training.wait_done(1)
    shown = output_of(page, 1)
    assert "■ stopped" in shown
    assert "updates/s" in shown
    expect(page.locator(".jp-OutputArea img[src^='data:image/png']")).to_have_count(1)
    assert pressed <= end_of(training.server, shown) <= time.time()
    training.screenshot("run-stopped")
    check_usable(training)


def test_an_interrupt_from_the_menu_ends_the_run_and_keeps_the_weights(training: Lab) -> None:
    training.command("notebook:interrupt-kernel")
    training.wait_done(1)
    assert "■ stopped" in output_of(training.page, 1)
    expect(training.page.locator(LIVE)).to_have_count(0)
    check_usable(training)


def test_a_reloaded_page_shows_the_run_again(training: Lab) -> None:
    training.save()
    page = training.page
    page.reload()
    training.settle("long.ipynb")
    ready = page.evaluate("Date.now()")
    wait_for_curve(page)
    record("reload: from the notebook to its curve, s", (page.evaluate("Date.now()") - ready) / 1000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it", exact=True).click()
    expect(page.locator(f"{LIVE} .nbd-chip")).to_contain_text("stopped")  # it has no other output
    training.wait_idle()
    training.screenshot("run-reloaded")
    check_usable(training)


def test_a_second_tab_shows_the_same_run(training: Lab) -> None:
    training.save()
    first = training.page
    second = training.open_again("long.ipynb")
    wait_for_curve(second)
    first.bring_to_front()
    before = first.locator(f"{LIVE} .nbd-plot").first.get_attribute("aria-label")
    expect(first.locator(f"{LIVE} .nbd-plot").first).not_to_have_attribute("aria-label", before or "")
    second.get_by_role("button", name="Stop", exact=True).click()
    second.get_by_role("button", name="Stop it", exact=True).click()
    expect(second.locator(f"{LIVE} .nbd-chip")).to_contain_text("stopped")
    expect(first.locator(LIVE)).to_have_count(0)
    expect(first.locator(".jp-OutputArea img[src^='data:image/png']")).to_have_count(1)
    check_usable(training)


@exhaustive  # the reattached run shows the view, and tests/cluster the end
def test_a_cluster_that_is_not_attached_again_ends(training: Lab) -> None:
    page = training.page
    running = training.server.engines()
    assert len(running) >= 3
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    _, alive = psutil.wait_procs(running, timeout=30)
    assert not alive
    expect(page.locator(f"{LIVE} .nbd-chip")).to_contain_text("disconnected")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    training.screenshot("run-restarted")
    training.run(0)  # the page still works, and a new cluster starts
    assert len(training.server.engines()) >= 3


@exhaustive  # test_themes_and_widths has one in its cards
def test_a_slow_worker_is_named(lab: Lab) -> None:
    lab.write("slow.ipynb", [SETUP.replace("workers=2", "workers=3"), SLOW, "%cluster stop"])
    page = lab.open("slow.ipynb")
    lab.run(0)
    lab.run(1, wait=False)
    wait_for_curve(page)
    card = page.locator(f"{LIVE} .nbd-card[data-state=straggler]", has_text="worker 1")
    expect(card).to_be_visible()
    steps = card.locator(".nbd-figures").inner_text()
    record("straggler: its step when seen to be named", int(re.sub(r"\D", "", steps.partition("·")[0])))
    lab.screenshot("run-straggler")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it", exact=True).click()
    lab.wait_done(1)
    lab.run(2)
    assert "is stopped" in output_of(page, 2)
