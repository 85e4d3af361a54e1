"""The quickstart as a newcomer meets it: JupyterLab, a cluster, a curve that moves and then stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from browser_lab import LIVE, Lab, bring_into_view
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


def steps_drawn(page: Page) -> int:
    label = page.locator(f"{LIVE} .nbd-plot").first.get_attribute("aria-label") or ""
    return int("".join(c for c in label.partition("; at ")[2].partition(":")[0] if c.isdigit()) or -1)


def shortened(source: str) -> str:
    """The quickstart with a tenth of its epochs, and ten times its learning rate."""
    assert (source.count("epochs=400"), source.count("SGD(0.00007)")) == (3, 1)
    return source.replace("epochs=400", "epochs=40").replace("SGD(0.00007)", "SGD(0.0007)")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("written", matrix([shortened], rest=[str]))
def test_the_quickstart_is_live_and_its_figures_stay(lab: Lab, written: Callable[[str], str]) -> None:
    path = lab.server.notebooks / "quickstart.ipynb"
    path.write_text(written(NOTEBOOK.read_text()))
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
    page.wait_for_function(
        f"() => /at [a-z]+ \\d/.test(document.querySelector('{LIVE} .nbd-plot')?.ariaLabel)"
    )
    early = steps_drawn(page)
    page.wait_for_function(
        "early => { const at = /at [a-z]+ ([\\d,]+)/.exec(document.querySelector('.nbd-plot')?.ariaLabel);"
        " return at && Number(at[1].replaceAll(',', '')) > early + 200 }",
        arg=early,
    )
    lab.screenshot("quickstart-running")
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
    assert figures.count() == 4  # three runs and the figure of the experiment
    lab.save()
    saved = nbformat.read(path, as_version=4)
    nbformat.validate(saved)
    assert "widgets" not in saved.metadata
    lab.shut_kernel_down()
    page = lab.open("quickstart.ipynb", width=1200, height=1300, kernel=False)
    figures = page.locator(".jp-OutputArea img[src^='data:image/png']")
    expect(figures).to_have_count(4)
    assert figures.nth(2).evaluate("image => image.naturalWidth") > 300
    bring_into_view(figures.nth(2), "center")
    lab.screenshot("quickstart-reopened")
