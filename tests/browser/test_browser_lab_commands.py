"""The lab extension's commands in a real JupyterLab: they need no kernel, and leave cells as they were."""

from __future__ import annotations

from typing import Any

import pytest
from browser_lab import Lab
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.engines]

RUN = "nbdist:run-cell-distributed"
BUTTON = "[data-jp-item-name='nbdist-run-distributed'] jp-button"
EDITOR = "window.jupyterapp.shell.currentWidget.content.activeCell.editor"
ATTACH = "%load_ext nbdist\n%cluster attach three"
TRAIN = """# a small network
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(50), epochs=2)"""
CELLS = "window.jupyterapp.shell.currentWidget.content.model.toJSON().cells"


def sources(page: Page) -> list[str]:
    """What the notebook's cells hold."""
    found = page.evaluate(f"{CELLS}.map(cell => [cell.source].flat().join(''))")
    return [str(source) for source in found]


def activate(page: Page, cell: int, kind: str | None = None) -> None:
    """Make a cell the active one, and turn it into another kind."""
    page.evaluate(
        "n => { const notebook = window.jupyterapp.shell.currentWidget.content; notebook.deselectAll();"
        " notebook.activeCellIndex = n; notebook.mode = 'command'; notebook.node.focus() }",
        cell,
    )
    if kind is not None:
        page.evaluate("kind => window.jupyterapp.commands.execute(`notebook:change-cell-to-${kind}`)", kind)


def execute(page: Page, name: str, **arguments: Any) -> str:
    """Execute a command as the panel does; return what it says went wrong."""
    return str(
        page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => '', e => e.message)",
            [name, {**arguments, "quiet": True}],
        )
    )


def toast(page: Page, text: str) -> None:
    """Wait for a notification with this text, and take it away."""
    found = page.locator(".Toastify__toast").filter(has_text=text)
    expect(found).to_be_visible()
    page.evaluate("window.jupyterapp.commands.execute('apputils:dismiss-notification').catch(() => null)")


def test_a_cell_runs_on_workers_by_button_and_by_key(lab: Lab) -> None:
    lab.write(
        "wrapped.ipynb", [TRAIN, "where = nb.task.name", "# notes", "print(len(history.epoch), run.status)"]
    )
    page = lab.open("wrapped.ipynb")
    activate(page, 0)
    page.evaluate(f"{EDITOR}.setCursorPosition({{line: 2, column: 7}})")
    page.locator(BUTTON).click()
    lab.wait_done(0)
    assert "Error" not in lab.output(0).inner_text()
    assert sources(page)[0] == f"%%distribute\n{TRAIN}"
    position = page.evaluate(f"{EDITOR}.getCursorPosition()")
    assert (position["line"], position["column"]) == (3, 7)
    lab.screenshot("commands-run-distributed")

    activate(page, 1)
    page.keyboard.press("Control+Shift+Enter")
    lab.wait_done(1)
    assert sources(page)[1] == "%%distribute\nwhere = nb.task.name"
    lab.run(3)
    assert "2 done" in lab.output(3).inner_text()
    # In a cell's editor the usual key takes the line away again.
    activate(page, 0)
    page.keyboard.press("Enter")
    page.keyboard.press("Control+z")
    assert sources(page)[0] == TRAIN


def test_attach_code_goes_below_the_active_cell_whatever_the_kernel_does(lab: Lab) -> None:
    lab.write("busy.ipynb", ["import time; time.sleep(1000)", "last = 1"])
    page = lab.open("busy.ipynb")
    lab.run(0, wait=False)
    page.wait_for_function(
        "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'busy'"
    )
    activate(page, 0)
    assert execute(page, "nbdist:insert-attach", code=ATTACH) == ""
    assert sources(page) == ["import time; time.sleep(1000)", ATTACH, "last = 1"]
    lab.command("notebook:undo-cell-action")
    assert sources(page) == ["import time; time.sleep(1000)", "last = 1"]
