"""Cells as people run them: in the wrong order, two at once, and again after an interrupt."""

from __future__ import annotations

import pytest
from browser_lab import LIVE, Lab, wait_for_curve
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.engines]

LOAD = "import nbdist as nb\n%load_ext nbdist"
TRAIN = """%%distribute --seed 1 --name {name} {flags}
import time
def slowly(*batch):
    time.sleep(0.02)  # the page needs the cores, too
    return batch
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(100).map(slowly), epochs={epochs})"""
LONG = TRAIN.format(name="long", flags="", epochs=1_000_000)
SHORT = TRAIN.format(name="short", flags="", epochs=3)
BACKGROUND = TRAIN.format(name="behind", flags="--background", epochs=1_000_000)
CELLS = [
    "%cluster stop", LOAD, "nb.attach('never')", "print(run.status)", LONG, SHORT,
    "%cluster start --workers 3", BACKGROUND, "run.stop(); run.wait(); print(run.status)", "%cluster stop",
]  # fmt: skip


def output_text(lab: Lab, cell: int) -> str:
    return str(lab.output(cell).inner_text())


@pytest.mark.timeout(240)
def test_cells_in_the_wrong_order_together_and_again(lab: Lab) -> None:
    lab.write("order.ipynb", CELLS)
    page = lab.open("order.ipynb", height=1000)
    lab.run(0)
    assert "`%cluster` not found" in output_text(lab, 0)  # IPython's message: the extension is not loaded
    lab.run(1)
    lab.run(0)
    assert output_text(lab, 0).startswith("NotFoundError: this process has no cluster; start one")
    lab.run(2)
    assert "NotFoundError: no run 'never'" in output_text(lab, 2)
    lab.run(3)
    assert "name 'run' is not defined" in output_text(lab, 3)

    # With no cluster one is started. A cell that is queued behind a run does not run after its stop.
    lab.run(4, wait=False)
    lab.run(5, wait=False)
    wait_for_curve(page)
    assert output_text(lab, 5) == ""
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it", exact=True).click()
    lab.wait_done(4)
    assert "■ stopped" in output_text(lab, 4)
    page.wait_for_function(
        "!window.jupyterapp.shell.currentWidget.content.widgets[5].node"
        ".querySelector('.jp-InputPrompt').textContent.includes('*')"
    )
    assert output_text(lab, 5) == ""
    lab.run(1)  # the kernel drops cells for a moment still

    # Again after an interrupt, and once more while its output is still there.
    lab.run(4, wait=False)
    expect(lab.output(4).locator(LIVE)).to_have_count(1)
    wait_for_curve(page)
    lab.command("notebook:interrupt-kernel")
    lab.wait_done(4)
    assert "■ stopped" in output_text(lab, 4)
    lab.run(5)
    assert "✓ finished" in output_text(lab, 5)
    lab.run(5)
    assert output_text(lab, 5).count("✓ finished") == 1
    expect(page.locator(LIVE)).to_have_count(0)

    # Two together: the second fails and names the run that has the workers, and the first continues.
    lab.run(6)
    assert "is up already" in output_text(lab, 6)
    lab.run(7)
    wait_for_curve(page)
    lab.run(5)
    assert "behind" in output_text(lab, 5)
    expect(page.locator(f"{LIVE} .nbd-chip")).to_contain_text("running")
    lab.screenshot("cells-two-at-once")
    lab.run(8)
    assert "stopped" in output_text(lab, 8)
    expect(page.locator(LIVE)).to_have_count(0)
    assert "■ stopped" in output_text(lab, 7)
    lab.run(5)
    assert "✓ finished" in output_text(lab, 5)
    lab.run(9)
    assert "is stopped" in output_text(lab, 9)
