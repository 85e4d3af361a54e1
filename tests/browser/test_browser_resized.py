"""A cluster that grows and shrinks during a run, as the live view and the saved output show it."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_lab import LIVE, Lab, bring_into_view
from playwright.sync_api import expect
from tiers import matrix

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import nbdist as nb
%load_ext nbdist
cluster = nb.start_cluster(workers=2, report=lambda line: None)"""
TRAIN = """%%distribute --strategy multi_worker --background --seed 1 --name resized
import os, threading
x, y, x_test, y_test = nb.data.digits()
class Gate(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.stop_training = os.path.exists({gate!r})
def slowly(*batch):
    threading.Event().wait(0.02)
    return batch
model = nb.nn.Sequential([nb.nn.Dense(32, "tanh"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
data = nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(80).map(slowly)
history = model.fit(data, epochs=1_000_000, callbacks=[Gate()])"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("themes", matrix([["Light"]], rest=[["Dark", "Light"]]), ids="-".join)
def test_workers_that_are_added_and_leave_are_seen(lab: Lab, tmp_path: Path, themes: list[str]) -> None:
    gate = tmp_path / "gate"
    cells = [SETUP, TRAIN.format(gate=str(gate)), "cluster.grow(1)", "cluster.shrink(1)", "%cluster stop"]
    lab.write("resized.ipynb", cells)
    page = lab.open("resized.ipynb", height=1300)
    lab.run(0)
    lab.run(1)
    view = lab.output(1).locator(LIVE)
    cards = view.locator(".nbd-card")
    expect(cards).to_have_count(2)
    lab.run(2)
    expect(cards).to_have_count(3)
    expect(cards.nth(2)).to_contain_text("joined at step")
    for theme in themes:
        lab.theme(f"JupyterLab {theme}")
        bring_into_view(view)
        lab.screenshot(f"resized-grown-{theme.lower()}")
    lab.run(3)
    expect(cards.nth(2)).to_contain_text("left at step")
    for theme in themes:
        lab.theme(f"JupyterLab {theme}")
        bring_into_view(view)
        lab.screenshot(f"resized-left-{theme.lower()}")
    gate.touch()
    expect(lab.output(1)).to_contain_text("finished")
    expect(lab.output(1)).to_contain_text("left at step")
    lab.screenshot("resized-saved")
    page.set_viewport_size({"width": 620, "height": 1100})
    lab.screenshot("resized-saved-narrow")
    lab.run(4)
