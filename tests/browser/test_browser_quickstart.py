"""The quickstart as a newcomer meets it: JupyterLab, a cluster, a curve that moves and then stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from browser_lab import LIVE, Lab, bring_into_view, wait_for_picture
from browser_server import ROOT
from playwright.sync_api import Page, expect
from tiers import matrix

pytestmark = [pytest.mark.browser, pytest.mark.engines]

NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"
TRAINED = 400.0  # seconds for the cell with the most steps, on a machine of a fifth of the usual speed


def code_cells(path: Path) -> dict[str, int]:
    """The number of each code cell, by its first line."""
    cells = nbformat.read(path, as_version=4).cells
    return {cell.source.splitlines()[0]: i for i, cell in enumerate(cells) if cell.cell_type == "code"}


def output_of(page: Page, cell: int) -> str:
    text = page.locator(".jp-Notebook-cell").nth(cell).locator(".jp-Cell-outputArea").inner_text()
    return str(text)


STEPS = """least => {
    const at = /; at [a-z]+ ([\\d,]+)/.exec(document.querySelector('%s .nbd-plot')?.ariaLabel)
    const steps = at ? Number(at[1].replaceAll(',', '')) : 0
    return steps > least && steps
}"""
GATE = """


class Gate(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        while epoch in (10, 20) and not pathlib.Path(f"{FOLDER}/seen-{epoch}").exists():
            time.sleep(0.02)  # the page needs the cores, too
"""


def shortened(source: str, folder: Path) -> str:
    """A tenth of the epochs, ten times the learning rate, and a last run that waits until it is seen."""
    assert (source.count("epochs=400"), source.count("SGD(0.00007)")) == (3, 1)
    source = source.replace("epochs=400", "epochs=40").replace("SGD(0.00007)", "SGD(0.0007)")
    book = nbformat.reads(source, as_version=4)
    for cell in book.cells:
        if "def new_model" in cell.source:
            gate = GATE.replace("{FOLDER}", str(folder))
            cell.source = (
                cell.source.replace("%%distribute\n", "%%distribute\nimport pathlib\nimport time\n\n") + gate
            )
        if "three-workers" in cell.source:
            assert ", epochs=40," in cell.source
            cell.source = cell.source.replace(", epochs=40,", ", epochs=40, callbacks=[Gate()],")
    return str(nbformat.writes(book))


def as_it_is(source: str, folder: Path) -> str:
    return source


@pytest.mark.timeout(600)
@pytest.mark.parametrize("written", matrix([shortened], rest=[as_it_is]))
def test_the_quickstart_is_live_and_its_figures_stay(lab: Lab, written: Callable[[str, Path], str]) -> None:
    path = lab.server.notebooks / "quickstart.ipynb"
    path.write_text(written(NOTEBOOK.read_text(), path.parent))
    cells = code_cells(path)
    page = lab.open("quickstart.ipynb", width=1200, height=1300)
    numbers = list(cells.values())
    three = next(i for line, i in cells.items() if "three-workers" in line)
    for number in numbers[: numbers.index(three)]:
        lab.run(number, timeout=TRAINED)
        assert "Error" not in output_of(page, number)
    assert "3 workers, 1 ps" in output_of(page, cells["%cluster start --workers 3 --ps 1"])

    lab.run(three, wait=False)
    live = page.locator(LIVE)
    live.wait_for(state="attached")
    bring_into_view(live)  # a view that is not visible receives no frames
    drawn = 0
    for epoch in (10, 20):
        drawn = page.wait_for_function(STEPS % LIVE, arg=drawn + 200).json_value()
        lab.screenshot("quickstart-running")
        (path.parent / f"seen-{epoch}").touch()
    lab.wait_done(three, timeout=TRAINED)
    for number in numbers[numbers.index(three) + 1 :]:
        lab.run(number)
        assert "Error" not in output_of(page, number)
    table = output_of(page, cells['print("workers  accuracy  updates  steps/s")']).split()
    accuracy = [float(table[4 + 4 * row + 1]) for row in range(3)]
    updates = [int(table[4 + 4 * row + 2].replace(",", "")) for row in range(3)]
    assert accuracy == sorted(accuracy)
    assert accuracy[2] > accuracy[0] + 0.1
    assert updates == [updates[0], 2 * updates[0], 3 * updates[0]]

    expect(page.locator(LIVE)).to_have_count(0)
    figures = page.locator(".jp-OutputArea img[src^='data:image/png']")
    expect(figures).to_have_count(4)  # three runs and the figure of the experiment
    lab.save()
    saved = nbformat.read(path, as_version=4)
    nbformat.validate(saved)
    assert "widgets" not in saved.metadata
    lab.shut_kernel_down()
    page = lab.open("quickstart.ipynb", width=1200, height=1300, kernel=False)
    figures = page.locator(".jp-OutputArea img[src^='data:image/png']")
    expect(figures).to_have_count(4)
    wait_for_picture(figures.nth(2), 300)
    bring_into_view(figures.nth(2), "center")
    lab.screenshot("quickstart-reopened")
