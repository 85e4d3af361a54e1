"""The sidebar in a real JupyterLab: clusters and runs are looked after while no kernel can answer."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
from browser_lab import Lab, until
from browser_server import PATIENCE
from playwright.sync_api import Locator, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.engines]

PANEL = "#nbdist-panel"
BUSY = "import time\nprint('sleeping')\ntime.sleep(600)"
TRAIN = """%load_ext nbdist
%cluster start --workers 2
"""
RUN = """%%distribute --seed 1 --name endless
import time
def slowly(*batch):
    time.sleep(0.02)  # the page needs the cores, too
    return batch
x_train, y_train, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(32, "tanh"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x_train, y_train).batch(100).map(slowly), epochs=1_000_000)"""


SWEEP = """%%sweep n=[1, 2, 3] --metric score --name gated
import os, time
while not os.path.exists({gate!r}): time.sleep(0.01)
score = n"""


def show_panel(lab: Lab) -> Locator:
    lab.command("nbdist:show-panel")
    panel = lab.page.locator(PANEL)
    expect(panel).to_be_visible()
    return panel


def row(page: Page, section: str, text: str = "") -> Locator:
    """The first row of a section that has a text in it."""
    return page.locator(f"#nbdist-{section} :is(.nbd-Row, .nbd-Task)").filter(has_text=text).first


def press(found: Locator, action: str) -> None:
    found.locator(f'[data-action="{action}"]').click()


def pid_of(task: Locator) -> int:
    """The process that a task's row names; 0 if it names none yet."""
    found = re.search(r" · (\d+) · ", task.get_attribute("title") or "")
    return int(found[1]) if found else 0


def test_a_cluster_is_managed_while_the_kernel_is_busy_and_after_its_end(lab: Lab) -> None:
    lab.write("busy.ipynb", [BUSY])
    page = lab.open("busy.ipynb")
    lab.run(0, wait=False)
    expect(lab.output(0)).to_contain_text("sleeping")
    panel = show_panel(lab)
    # By the keyboard alone: the form's fields have what they need, and Enter sends it.
    panel.get_by_role("button", name="Start a cluster…").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#nbd-start-workers")).to_be_focused()
    page.keyboard.type("2")
    page.locator("#nbd-start-memory").focus()
    page.keyboard.type("1G")  # "1" alone is a fault, which must not outlive the letter that mends it
    expect(page.locator(".jp-Dialog .jp-mod-accept")).to_be_enabled()
    page.keyboard.press("Enter")
    cluster = row(page, "clusters")
    expect(cluster).to_have_attribute("data-state", "running")
    expect(page.locator(".nbd-Task")).to_have_count(2)
    expect(page.locator(".nbd-Status")).to_contain_text("1 cluster")

    until(page, lambda: pid_of(row(page, "tasks", "worker 1")))
    psutil.Process(old := pid_of(row(page, "tasks", "worker 1"))).kill()
    expect(row(page, "tasks", "worker 1")).to_have_attribute("data-state", "dead")
    expect(cluster).to_contain_text("worker:1")
    lab.shut_kernel_down()
    press(row(page, "tasks", "worker 1"), "restart")
    expect(row(page, "tasks", "worker 1")).not_to_have_attribute("data-state", "dead")
    until(page, lambda: pid_of(row(page, "tasks", "worker 1")) not in (0, old))

    press(cluster, "attach")
    expect(page.locator(".jp-Notebook-cell")).to_have_count(2)
    expect(page.locator(".jp-Notebook-cell").nth(1)).to_contain_text("%cluster attach")
    press(cluster, "stop")
    expect(page.locator("#nbdist-clusters .nbd-Empty")).to_be_visible()
    expect(page.locator(".nbd-Status")).to_be_hidden()
    _, left = psutil.wait_procs(lab.server.engines(), timeout=PATIENCE)
    assert not left  # the process that has stopped it may still have been on its way out


def test_a_run_and_a_sweep_are_followed_and_controlled_while_their_kernel_is_busy(
    lab: Lab, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    lab.write("endless.ipynb", [TRAIN, RUN, SWEEP.format(gate=str(gate)), BUSY])
    page = lab.open("endless.ipynb")
    lab.run(0)
    lab.run(1, wait=False)
    show_panel(lab)
    run = row(page, "runs", "endless")
    expect(run).to_have_attribute("data-state", "running")
    expect(run.get_by_role("progressbar")).to_be_visible()
    expect(run.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"loss [\d.]+"))
    expect(row(page, "tasks", "worker 0")).to_contain_text("running")
    press(run, "stop")
    page.locator(".jp-Dialog").get_by_role("button", name="Stop", exact=True).click()
    expect(run).to_have_attribute("data-state", "stopped")
    lab.wait_done(1)

    lab.run(2)
    lab.run(3, wait=False)
    expect(lab.output(3)).to_contain_text("sleeping")
    sweep = row(page, "sweeps", "gated")
    expect(sweep).to_have_attribute("data-state", "running")
    grid = lab.output(2).locator(".nbd-chip")  # it came when the kernel was busy already, or nearly so
    expect(grid).to_contain_text("running")
    expect(sweep).to_contain_text("2 running")  # or it would be paused before two have started
    press(sweep, "pause")
    expect(sweep).to_have_attribute("data-state", "paused")
    expect(grid).to_contain_text("paused")
    gate.touch()  # running trials continue; no new trial starts
    expect(sweep).to_contain_text("2 of 3 trials")
    press(sweep, "resume")
    expect(sweep).to_contain_text("3 of 3 trials")
    expect(sweep).to_have_attribute("data-state", "finished")
