"""A kernel that restarts or dies in mid-run: training continues, and a new kernel attaches to the run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from browser_axe import violations
from browser_lab import LIVE, Lab, bring_into_view, wait_for_curve
from playwright.sync_api import Page, expect
from test_browser_controls import run_folder, times_of_steps
from tiers import matrix
from waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import os
import nbdist as nb
import nbdist.run.follow as follow
follow.RESTART_SECONDS = 60.0  # what tells an end from an interrupt may come late
%load_ext nbdist
nb.start_cluster(workers=2, ps=1, orphan_timeout=600, report=lambda line: None)
print("pid of the kernel:", os.getpid())"""
TRAIN = """%%distribute --strategy ps --seed 1 --name outlives
import time
def slowly(*batch):
    time.sleep(0.02)  # the page needs the cores, too
    return batch
x_train, y_train, x_test, y_test = nb.data.digits()
print("begun by", nb.task.rank)
model = nb.nn.Sequential([nb.nn.Dense(64, "tanh"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x_train, y_train).batch(100).map(slowly), epochs=1_000_000)
"""
ATTACH = """import nbdist as nb
%load_ext nbdist
run = nb.attach()"""
USE = """x_train, y_train, x_test, y_test = nb.data.digits()
print(run.status, run.model.predict(x_test).shape, len(run.history.history["loss"]) > 0)"""


def restart(lab: Lab) -> None:
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")


def kill(lab: Lab) -> None:
    """Kill the kernel; the server starts another one, and JupyterLab says so."""
    os.kill(int(lab.output(0).inner_text().partition("kernel:")[2]), signal.SIGKILL)
    lab.page.get_by_role("dialog").get_by_role("button", name="Ok", exact=True).click()
    lab.wait_idle()


def latest(page: Page, view: str = LIVE) -> int:
    """The step at which the loss chart of a view says it is."""
    label = page.locator(f"{view} .nbd-plot").first.get_attribute("aria-label") or ""
    return int("".join(c for c in label.partition("; at ")[2].partition(":")[0] if c.isdigit()) or -1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", matrix([restart], rest=[kill]))
def test_a_run_outlives_its_kernel_and_is_attached_again(lab: Lab, end: Any) -> None:
    path = lab.write("outlives.ipynb", [SETUP, TRAIN, ATTACH, USE, "%cluster stop"])
    page = lab.open("outlives.ipynb", height=1000)
    lab.run(0)
    lab.run(1, wait=False)
    wait_for_curve(page)
    folder = run_folder(lab)
    end(lab)
    expect(lab.output(1).locator(f"{LIVE} .nbd-chip")).to_contain_text("disconnected")
    expect(lab.output(1).locator(f"{LIVE} .nbd-note")).to_contain_text("nb.attach(")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    assert not violations(page, LIVE)
    lab.screenshot(f"reattach-{end.__name__}-disconnected")
    seen = latest(page)
    left = max(float(times.max(initial=0.0)) for times in times_of_steps(folder))

    lab.run(2)
    view = lab.output(2).locator(LIVE)
    view.wait_for(state="attached")
    bring_into_view(view)
    page.wait_for_function(
        "seen => { const chart = [...document.querySelectorAll('section.nbdist-live')].at(-1)"
        ".querySelector('.nbd-plot'); const at = /at [a-z]+ ([\\d,]+)/.exec(chart?.ariaLabel);"
        " return at && Number(at[1].replaceAll(',', '')) > seen }",
        arg=seen,
    )
    until(lambda: (np.concatenate(times_of_steps(folder)) > left).any())  # it trained while no page showed it
    chart = view.locator(".nbd-plot").first
    chart.press("Home")
    page.wait_for_function("""() => /at [a-z]+ \\d{1,3}[,:]/.test(
        [...document.querySelectorAll('.nbd-plot')].at(-2).ariaLabel)""")  # from the start
    expect(view).to_contain_text("begun by 0")

    view.get_by_role("button", name="Pause", exact=True).click()
    expect(view.locator(".nbd-chip")).to_contain_text("paused")
    lab.screenshot(f"reattach-{end.__name__}")
    view.get_by_role("button", name="Resume", exact=True).click()
    expect(view.locator(".nbd-chip")).to_contain_text("running")
    view.get_by_role("button", name="Stop", exact=True).click()
    view.get_by_role("button", name="Stop it", exact=True).click()
    expect(view).to_have_count(0)
    expect(lab.output(2).locator("img[src^='data:image/png']")).to_have_count(1)
    assert "■ stopped" in lab.output(2).inner_text()
    lab.run(3)
    assert "stopped (359, 10) True" in lab.output(3).inner_text()
    lab.run(4)
    assert "is stopped" in lab.output(4).inner_text()
    lab.save()
    check_saved(path)
    lab.shut_kernel_down()
    lab.open("outlives.ipynb", kernel=False, height=1400)
    expect(lab.output(2).locator("img[src^='data:image/png']")).to_be_visible()
    lab.screenshot(f"reattach-{end.__name__}-reopened")


def test_the_view_of_a_kernel_that_ended_is_drawn_by_the_server(drawing_lab: Lab) -> None:
    lab = drawing_lab
    path = lab.write("left.ipynb", [SETUP, TRAIN, ATTACH + "\nrun.stop()", "%cluster stop"])
    page = lab.open("left.ipynb", height=1000)
    lab.run(0)
    lab.run(1, wait=False)
    wait_for_curve(page)
    restart(lab)
    view = lab.output(1).locator(f".nbd-Bundle {LIVE}")
    expect(view.locator(".nbd-chip")).to_contain_text("running")
    expect(lab.output(1)).to_contain_text("continues without a kernel of this notebook")
    expect(view.locator(".nbd-devices")).to_contain_text("trains on")
    seen = latest(page)
    page.wait_for_function(  # it follows the run
        f"seen => Number(/at [a-z]+ ([\\d,]+)/.exec(document.querySelector('{LIVE} .nbd-plot')?.ariaLabel)"
        "?.[1].replaceAll(',', '')) > seen",
        arg=seen,
    )
    lab.screenshot("left-under-way")
    lab.save()
    under_way = saved_output(path, 1)
    assert set(under_way) == {"application/vnd.nbdist.run+json", "text/plain"}  # no front end shows an error
    assert under_way["text/plain"].startswith("Live view of outlives")

    lab.run(2)
    bring_into_view(lab.output(1))
    expect(view.locator(".nbd-chip")).to_contain_text("stopped")
    expect(lab.output(1)).not_to_contain_text("continues without a kernel of this notebook")
    lab.screenshot("left-stopped")
    lab.save()
    assert "■ stopped" in saved_output(path, 1)["text/plain"]
    assert "<table>" in saved_output(path, 1)["text/html"]
    lab.run(3)


def saved_output(path: Path, cell: int) -> Any:
    """The data of a cell's output in a notebook file."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return notebook.cells[cell].outputs[0].data


def check_saved(path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert path.stat().st_size < 150_000
    dead = notebook.cells[1].outputs[-1]  # no kernel is left that could remove this view
    assert "nb.attach('" in dead.data["text/plain"]
    frozen = [output for output in notebook.cells[2].outputs if "data" in output]
    assert [set(output.data) for output in frozen] == [
        {"image/png", "text/html", "text/plain", "application/vnd.nbdist.run+json"}
    ]
