"""A widget writes a trial's parameters into the next cell, in JupyterLab and in Notebook 7."""

from __future__ import annotations

import nbformat
import pytest
from browser_lab import Lab
from browser_server import ROOT
from playwright.sync_api import Page
from tiers import matrix

pytestmark = pytest.mark.browser

SOURCE = (ROOT / "widget" / "src" / "sweep" / "cell.js").read_text()
TEXT = "lr = 0.01\nhidden = 64\n"
RENDER = """
export default { render({ el }) {
  const button = document.createElement("button");
  button.className = "fill";
  button.onclick = async () => {
    delete button.dataset.outcome;
    button.dataset.outcome = await fillNextCell(el, "lr = 0.01\\nhidden = 64\\n");
  };
  el.append(button);
} };
"""
CELLS = (
    "window.jupyterapp.shell.currentWidget.content.widgets.slice(1)"
    ".map(cell => cell.model.sharedModel.getSource())"
)
NO_BUTTONS = (
    "document.querySelectorAll('[data-command=\"notebook:insert-cell-below\"]').forEach(e => e.remove())"
)

PLACES = pytest.mark.parametrize(
    "place", matrix(["lab"], rest=["lab-without-subshells", "notebook"]), indirect=True
)


def probe(source: str = SOURCE) -> str:
    """Return a cell that shows a widget with a button that fills the next cell."""
    module = source + RENDER
    return f"import anywidget\nclass Probe(anywidget.AnyWidget):\n    _esm = {module!r}\nProbe()"


@PLACES
def test_the_next_cell_is_filled_or_one_is_inserted(place: Lab) -> None:
    place.write("fill.ipynb", [probe(), "", "kept = 1"])
    page = place.open("fill.ipynb")
    place.run(0)
    assert (fill(page), page.evaluate(CELLS)) == ("filled", [TEXT, "kept = 1"])
    assert (fill(page), page.evaluate(CELLS)) == ("inserted", [TEXT, TEXT, "kept = 1"])
    assert page.evaluate("document.activeElement.className") == "fill"  # the focus stays in the widget
    place.screenshot(f"sweep-cell-{place.application}")
    page.evaluate(NO_BUTTONS)  # then the notebook's own key does it
    assert (fill(page), page.evaluate(CELLS)) == ("inserted", [TEXT, TEXT, TEXT, "kept = 1"])


@PLACES
def test_a_cell_is_inserted_below_the_last_one_and_before_a_text_cell(place: Lab) -> None:
    path = place.write("last.ipynb", ["before = 1", probe()])
    page = place.open("last.ipynb")
    place.run(1)
    assert fill(page) == "inserted"
    assert page.evaluate(CELLS)[1:] == [TEXT]

    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [notebook.cells[1], nbformat.v4.new_markdown_cell("")]
    nbformat.write(notebook, path.with_name("text.ipynb"))
    page = place.open("text.ipynb")
    place.run(0)
    assert (fill(page), page.evaluate(CELLS)) == ("inserted", [TEXT, ""])


def test_the_notebooks_button_is_enough(lab: Lab) -> None:
    assert "[pressButton, pressKey]" in SOURCE
    lab.write("button.ipynb", [probe(SOURCE.replace("[pressButton, pressKey]", "[pressButton]")), "kept = 1"])
    page = lab.open("button.ipynb")
    lab.run(0)
    assert (fill(page), page.evaluate(CELLS)) == ("inserted", [TEXT, "kept = 1"])


def test_an_editor_without_its_properties_is_pasted_into(lab: Lab) -> None:
    lab.write("paste.ipynb", [probe(SOURCE.replace("cmTile", "unknown").replace("cmView", "unknown")), ""])
    page = lab.open("paste.ipynb")
    lab.run(0)
    assert (fill(page), page.evaluate(CELLS)) == ("filled", [TEXT])
    assert (fill(page), page.evaluate(CELLS)) == ("inserted", [TEXT, TEXT])


def test_the_widgets_own_notebook_is_written_to(lab: Lab) -> None:
    lab.write("other.ipynb", ["other = 1"])
    lab.write("own.ipynb", [probe(), "kept = 1"])
    page = lab.open("own.ipynb", fresh=True)  # a used tab has another layout for more than one document
    lab.run(0)
    lab.command("application:set-mode", {"mode": "multiple-document"})
    lab.command("docmanager:open", {"path": "other.ipynb", "options": {"mode": "split-right"}})
    page.wait_for_function("window.jupyterapp.shell.currentWidget.context.path === 'other.ipynb'")
    assert fill(page) == "inserted"
    assert page.evaluate(CELLS) == [TEXT, "kept = 1"]


def fill(page: Page) -> str:
    """Press the button, and return what became of it."""
    page.locator(".fill").evaluate("button => (button.focus(), button.click())")
    page.wait_for_function("document.querySelector('.fill').dataset.outcome")
    return str(page.evaluate("document.querySelector('.fill').dataset.outcome"))
