"""What stays of a run in the notebook, however it ended: without a kernel, trusted or not, and as HTML."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser_axe import violations
from browser_lab import LIVE, Lab, bring_into_view, wait_for_curve, wait_for_picture
from nbconvert import HTMLExporter
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SETUP = """import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, ps=1, orphan_timeout=2, report=lambda line: None);"""
TRAIN = """%%distribute --strategy ps --seed 1 --name {name}
import time
def slowly(*batch):
    time.sleep(0.02)  # the page needs the cores, too
    return batch
x, y, x_test, y_test = nb.data.digits()
print("<b>output</b> of", nb.task.rank)
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
data = nb.data.Dataset.from_arrays(x, y).batch(50).map(slowly)
history = model.fit(data, epochs={epochs}, validation_data=(x_test, y_test))
{then}"""
CELLS = [
    SETUP,
    TRAIN.format(name="ends-by-itself", epochs=2, then=""),
    TRAIN.format(name="is-stopped", epochs=1_000_000, then=""),
    TRAIN.format(name="fails", epochs=1, then="if nb.task.rank == 1: raise ValueError('lost <i>it</i>')"),
    "%cluster stop",
]
HEADLINES = {1: "✓ finished", 2: "■ stopped", 3: "✕ failed"}
FROZEN = {"image/png", "text/html", "text/plain", "application/vnd.nbdist.run+json"}
FRAMED = ".jp-Notebook .jp-RenderedHTML"


@pytest.fixture
def ended(lab: Lab) -> Path:
    """A saved notebook with a run that finished, one that was stopped, and one that failed."""
    path = lab.write("ended.ipynb", CELLS)
    page = lab.open("ended.ipynb")
    lab.run(0)
    lab.run(1)
    lab.run(2, wait=False)
    wait_for_curve(page)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it", exact=True).click()
    lab.wait_done(2)
    lab.run(3)
    lab.run(4)
    expect(page.locator(LIVE)).to_have_count(0)
    lab.save()
    lab.shut_kernel_down()
    return path


def look(lab: Lab, name: str, *, fresh: bool = False) -> None:
    """Every run shows its end as a picture and as text."""
    page = lab.open(name, kernel=False, height=2600, fresh=fresh)
    assert page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session") is None
    for number, headline in HEADLINES.items():
        picture = lab.output(number).locator("img[src^='data:image/png']")
        expect(picture).to_be_visible()
        wait_for_picture(picture, 500)
        shown = lab.output(number).inner_text()
        assert headline in shown
        assert "<b>output</b> of 0" in shown
        assert "worker 1" in shown
        expect(lab.output(number)).not_to_contain_text("widget")
    expect(lab.output(3)).to_contain_text("lost <i>it</i>")
    assert page.locator(".jp-OutputArea i, .jp-OutputArea b").count() == 0


def test_every_end_is_shown_without_a_kernel(lab: Lab, ended: Path, drawing_lab: Lab) -> None:
    notebook: Any = nbformat.read(ended, as_version=4)  # type: ignore[no-untyped-call]
    check_file(ended, notebook)
    look(lab, "ended.ipynb", fresh=True)  # in a page that has shown none of it live
    wrong = violations(lab.page, FRAMED)
    lab.screenshot("frozen-trusted")
    lab.theme("JupyterLab Dark")
    wrong += violations(lab.page, FRAMED)
    lab.screenshot("frozen-trusted-dark")
    lab.theme("JupyterLab Light")
    assert not wrong, "\n".join(sorted(set(wrong)))

    notebook.cells[0].source += "\n"  # no longer what the server has signed
    nbformat.write(notebook, ended.parent / "untrusted.ipynb")  # type: ignore[no-untyped-call]
    look(lab, "untrusted.ipynb")
    lab.screenshot("frozen-untrusted")
    lab.close()

    look_drawn(drawing_lab, "ended.ipynb")


def look_drawn(lab: Lab, name: str) -> None:
    """Every run shows its curves, the output of its tasks and the reason of its failure."""
    lab.open(name, kernel=False, height=2600)
    for number, headline in HEADLINES.items():
        output = lab.output(number)
        bring_into_view(output)
        expect(output.locator(f"{LIVE} .nbd-chip")).to_contain_text(headline.split()[1])
        expect(output.locator(f"{LIVE} canvas")).to_have_count(2)
        expect(output.locator("img")).to_have_count(0)
        details = output.locator(".nbd-details")
        expect(details).to_contain_text("<b>output</b> of 0")
        expect(details).to_contain_text("worker 1")
        expect(details.locator("i, b")).to_have_count(0)
    expect(lab.output(3)).to_contain_text("lost <i>it</i>")
    lab.screenshot("frozen-drawn")


def check_file(path: Path, notebook: Any) -> None:
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert "jupyter.widget" not in path.read_text()
    for number in HEADLINES:
        [frozen] = [output.data for output in notebook.cells[number].outputs if "data" in output]
        assert set(frozen) == FROZEN
        assert len(nbformat.writes(notebook)) < 150_000 * len(HEADLINES)
        assert len(str(frozen)) < 150_000
        assert base64.b64decode(frozen["image/png"]).startswith(b"\x89PNG")
    page, _ = HTMLExporter().from_filename(str(path))
    assert len(re.findall(r"<img[^>]*src=.?data:image/png;base64", page)) == len(HEADLINES)
    assert all(headline in page for headline in HEADLINES.values())
    assert "<i>it</i>" not in page
    assert "widget-view" not in page
