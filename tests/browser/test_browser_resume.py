"""A run whose every process has died is resumed: by the sidebar's button, and by a cell with --resume."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from browser_axe import violations
from browser_lab import LIVE, Lab, bring_into_view
from playwright.sync_api import Locator, Page, expect
from test_browser_pages import PAGE
from test_browser_reattach import kill as kill_kernel
from test_browser_sidebar import press, row, show_panel
from tiers import matrix
from waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import os
import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, report=lambda line: None)
print("pid of the kernel:", os.getpid())"""
STEPS, EVERY, EPOCHS = 18, 5, 5  # steps of an epoch, between two states, and epochs
BODY = """import os, time
x, y, x_test, y_test = nb.data.digits()
class Gate(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        while epoch == 2 and not os.path.exists({gate!r}): time.sleep(0.01)
model = nb.nn.Sequential([nb.nn.Dense(32, "tanh"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
def slowly(*batch):
    time.sleep(0.02)
    return batch
data = nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(80).map(slowly)
history = model.fit(data, epochs={epochs}, callbacks=[Gate()])"""
FLAGS = "%%distribute --strategy multi_worker --seed 1 --checkpoint-every {every} --name {name}"
AGAIN = "%%distribute --strategy multi_worker --resume {run} --name {name}"


def kill_cluster(lab: Lab) -> None:
    """End every process of the server's clusters by SIGKILL."""
    everyone = lab.server.engines()
    for one in everyone:
        one.suspend()  # none of them must end the others in an orderly way
    for one in everyone:
        one.send_signal(signal.SIGKILL)
    psutil.wait_procs(everyone, timeout=20)


def first_step(page: Page, chart: Locator) -> int:
    """The step at which the curves of a chart begin."""
    expect(chart).to_have_attribute("aria-label", re.compile(r"; at step [\d,]+"))  # it is drawn
    chart.press("Home")
    found = re.search(r"; at step ([\d,]+)", chart.get_attribute("aria-label") or "")
    assert found is not None
    return int(found[1].replace(",", ""))


def saved_step(folder: Path) -> int:
    """The step of the newest state, 0 if there is none."""
    return max((int(path.stem.split("-")[2]) for path in folder.glob("state-*.safetensors")), default=0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("themes", matrix([["Light"]], rest=[["Dark", "Light"]]), ids="-".join)
def test_a_run_whose_processes_all_died_is_resumed(
    drawing_lab: Lab, tmp_path: Path, themes: list[str]
) -> None:
    lab, gate = drawing_lab, tmp_path / "gate"
    name, by_hand = (f"{kind}-{len(themes)}" for kind in ("survivor", "by-hand"))
    body = BODY.format(gate=str(gate), epochs=EPOCHS)
    flags = FLAGS.format(every=EVERY, name=name)
    lab.write("survivor.ipynb", [SETUP, f"{flags}\n{body}", "pass"])
    page = lab.open("survivor.ipynb", height=1200)
    lab.run(0)
    lab.run(1, wait=False)
    page.wait_for_selector(LIVE, state="attached")
    [folder] = lab.server.home.glob(f"runs/*-{name}")
    until(lambda: saved_step(folder) >= 2 * STEPS)
    kill_kernel(lab)  # first: it would write into run.json that the run has failed
    kill_cluster(lab)
    until(lambda: not lab.server.engines())
    saved = saved_step(folder)

    # The sidebar's button: no kernel is needed for it.
    show_panel(lab)
    lost = row(page, "runs", name)
    expect(lost).to_have_attribute("data-state", "lost")
    button = lost.locator('[data-action="resume"]')
    expect(button).to_have_attribute("title", re.compile("Resume the run from its newest state"))
    for theme in themes:
        lab.theme(f"JupyterLab {theme}")
        lab.screenshot(f"resume-sidebar-{theme.lower()}")
        assert not violations(page, "#nbdist-panel")
    gate.touch()
    press(lost, "resume")
    rows = page.locator("#nbdist-runs .nbd-Row").filter(has_text=name)
    expect(rows).to_have_count(2)
    again = next(path for path in lab.server.home.glob(f"runs/*-{name}*") if path != folder)
    assert json.loads((again / "run.json").read_text())["resumed_from"] == folder.name
    until(lambda: len(list(again.glob("outcome-*"))) == 2)  # of both workers: the gate may close

    # The cell, in the new kernel; the gate is closed, so that its live view is seen.
    gate.unlink()
    lab.command("docmanager:open", {"path": "survivor.ipynb", "factory": "Notebook"})
    lab.run(0)
    cell = AGAIN.format(run=folder.name, name=by_hand)
    source = body.replace("epoch == 2", "epoch == 3")
    page.evaluate(
        "source => window.jupyterapp.shell.currentWidget.content.widgets[2].model.sharedModel"
        ".setSource(source)",
        f"{cell}\n{source}",
    )
    lab.run(2, wait=False)
    view = lab.output(2).locator(LIVE)
    view.wait_for(state="attached")
    bring_into_view(view)
    chart = view.locator(".nbd-plot").first
    expect(chart).to_have_attribute("aria-label", re.compile(f"; at step {4 * STEPS}"))
    assert first_step(page, chart) == saved + 1
    for theme in themes:
        lab.theme(f"JupyterLab {theme}")
        lab.screenshot(f"resume-cell-{theme.lower()}")
    gate.touch()
    lab.wait_done(2)
    expect(lab.output(2)).to_contain_text("finished")
    [second] = lab.server.home.glob(f"runs/*-{by_hand}")
    assert json.loads((second / "run.json").read_text())["resumed_from"] == folder.name
    os.unlink(gate)

    # The server takes the resumed run for finished some seconds after its last report: no client fetches it.
    expect(rows.first).to_have_attribute("data-state", "finished")
    expect(lost).not_to_have_attribute("data-state", "running")

    # The page of the new run: its curve begins after the saved step.
    lab.command("application:set-mode", {"mode": "multiple-document"})
    lab.command("nbdist:open-run", {"id": again.name})
    shown = page.locator(PAGE)
    expect(shown.locator(".nbd-chip")).to_contain_text("finished")
    assert first_step(page, shown.locator(".nbd-plot").first) == saved + 1
    expect(shown).to_contain_text(f"{EPOCHS * STEPS}")
    shown.get_by_text("Options", exact=True).click()
    expect(shown).to_contain_text("resumed from")
    for theme in themes:
        lab.theme(f"JupyterLab {theme}")
        lab.screenshot(f"resume-page-{theme.lower()}")
        assert not violations(page, ".nbd-Page")
    lab.command("application:set-mode", {"mode": "single-document"})
