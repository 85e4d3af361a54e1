"""A graph's picture in a real JupyterLab: opened by mouse and keys, and reopened without a kernel."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
from browser_lab import Lab, bring_into_view, wait_for_picture
from playwright.sync_api import Locator, Page, expect

from nbdist.graph.layout.collapse import Box
from nbdist.graph.layout.stretch import spread
from nbdist.ui.graph.svg import live_svg
from nbdist.ui.graph.view import show_graph

pytestmark = pytest.mark.browser

GRAPHS = Path(__file__).parents[1] / "ui"
SETUP = f"import sys; sys.path.insert(0, {str(GRAPHS)!r})\nfrom graphs_to_show import *\n%load_ext nbdist"
DRAWN = ".nbdist-graph[data-drawn]"


def shown(lab: Lab, name: str, *cells: str, **size: int) -> Page:
    lab.write(name, [SETUP, *cells])
    page = lab.open(name, **size)  # type: ignore[arg-type]
    for number in range(len(cells) + 1):
        lab.run(number)
    page.wait_for_selector(DRAWN)
    return page


def scope(page: Page, label: str, number: int = 0) -> Locator:
    return page.locator(f'{DRAWN} .nbd-shut[aria-label^="{label}"]').nth(number)


def op(page: Page, name: str) -> Locator:
    """The first box of that name."""
    return page.locator(f"{DRAWN} text.nbd-name", has_text=re.compile(f"^{re.escape(name)}$")).first


def look(lab: Lab, name: str, number: int = 0) -> None:
    bring_into_view(lab.page.locator(".nbdist-graph").nth(number))
    lab.screenshot(name)


def numbers(svg: str) -> dict[str, list[float]]:
    """Where everything is: for each element that is shown, by its place in the document, its numbers."""
    found: dict[str, list[float]] = {}

    def visit(node: ElementTree.Element, path: str) -> None:
        kinds = (node.get("class") or "").split()
        for name in ("transform", "d", "width", "height", "viewBox"):
            if node.get(name):
                found[f"{path}@{name}"] = [float(n) for n in re.findall(r"-?\d+\.?\d*", node.get(name) or "")]
        for number, child in enumerate(node):
            part = (child.get("class") or "").split()
            hidden = (
                "nbd-open" in part if "nbd-box" in kinds and "nbd-opened" not in kinds else "nbd-shut" in part
            )
            if not (hidden and "nbd-box" in kinds):
                visit(child, f"{path}/{number}")

    visit(ElementTree.fromstring(svg), "")
    return found


def check_as_python_has_it(page: Page, opened: set[str]) -> None:
    """The page's script and `stretch.py` put everything in the same places."""
    view = show_graph(_perceptron())

    def is_open(box: Box) -> bool:
        return box.key in opened or box.open

    expected, _, _ = live_svg(spread(view._shown.sheet, is_open), "")
    there = page.locator(f"{DRAWN} svg").evaluate("node => new XMLSerializer().serializeToString(node)")
    mine, its = numbers(expected), numbers(there)
    assert mine.keys() == its.keys()
    wrong = {key: (mine[key], its[key]) for key in mine if mine[key] != pytest.approx(its[key], abs=0.31)}
    assert not wrong


def _perceptron() -> Any:
    sys.path.insert(0, str(GRAPHS))
    from graphs_to_show import perceptron

    return perceptron()


def test_scopes_open_by_mouse_and_keys_and_other_nodes_keep_their_positions(lab: Lab) -> None:
    page = shown(lab, "graph.ipynb", "graph = perceptron()\n%graph graph", width=1400, height=1000)
    check_as_python_has_it(page, set())
    look(lab, "graph-light")
    ps, worker = "/job:ps/task:0|hidden/", "/job:worker/task:0|replica_0/hidden/"
    expect(op(page, "w/assign_sub")).not_to_be_visible()
    scope(page, "hidden/").click()
    expect(op(page, "w/assign_sub")).to_be_visible()
    check_as_python_has_it(page, {ps})

    scope(page, "hidden/", 1).focus()
    page.keyboard.press("Enter")
    expect(page.locator(f'{DRAWN} .nbd-close[aria-label^="hidden/"]').nth(1)).to_be_focused()
    check_as_python_has_it(page, {ps, worker})
    look(lab, "graph-opened")
    page.keyboard.press(" ")
    expect(scope(page, "hidden/", 1)).to_be_focused()
    check_as_python_has_it(page, {ps})
    assert page.locator(".jp-Notebook.jp-mod-commandMode").count() == 1  # the keys were ours

    page.get_by_role("button", name="Open all scopes").click()
    expect(page.locator(f"{DRAWN} .nbd-shut:visible")).to_have_count(0)
    page.get_by_role("button", name="Close all scopes").click()
    expect(page.locator(f"{DRAWN} .nbd-close:visible")).to_have_count(0)


def test_themes_and_widths_of_graphs(lab: Lab) -> None:
    cells = "from nbdist.ui.graph.view import show_graph\nshow_graph(perceptron())", "show_graph(deep())"
    page = shown(lab, "graphs.ipynb", *cells, width=1500, height=1100)
    expect(page.locator(DRAWN)).to_have_count(2)
    look(lab, "graph-wide", 0)
    look(lab, "graph-200-wide", 1)
    lab.theme("JupyterLab Dark")
    look(lab, "graph-wide-dark", 0)
    look(lab, "graph-200-wide-dark", 1)
    ground = page.locator(f"{DRAWN} .nbd-device").first.evaluate("node => getComputedStyle(node).fill")
    assert ground == "rgb(24, 24, 28)"
    lab.resize(420, 1000)
    page.wait_for_function("document.querySelector('.nbd-view').clientWidth < 400")
    look(lab, "graph-narrow-dark", 0)
    lab.theme("JupyterLab Light")
    look(lab, "graph-narrow", 0)
    look(lab, "graph-200-narrow", 1)
    view = page.locator(f"{DRAWN} .nbd-view").first
    assert view.evaluate("node => node.scrollWidth > node.clientWidth")  # it scrolls, and stays readable
    size = page.locator(f"{DRAWN} .nbd-name").first.evaluate("node => node.getBoundingClientRect().height")
    assert size > 9


def test_a_reopened_notebook_shows_its_graph_without_a_kernel(lab: Lab) -> None:
    page = shown(lab, "kept.ipynb", "graph = perceptron()\n%graph graph --expand hidden")
    lab.save()
    path = lab.server.notebooks / "kept.ipynb"
    assert path.stat().st_size < 300_000
    page = lab.open("kept.ipynb", kernel=False, fresh=True)  # the server has signed it: its script may run
    page.wait_for_selector(DRAWN)
    expect(op(page, "w/assign_sub")).to_be_visible()
    scope(page, "update/").click()
    expect(page.locator(f"{DRAWN} .nbd-close[aria-label^='update/']")).to_be_visible()
    assert page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session") is None

    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    notebook.cells[0].source += "\n"  # no longer what was signed: no SVG and no script are shown
    nbformat.write(notebook, lab.server.notebooks / "untrusted.ipynb")  # type: ignore[no-untyped-call]
    page = lab.open("untrusted.ipynb", kernel=False)
    picture = page.locator(".jp-OutputArea img[src^='data:image/png']")
    expect(picture).to_be_visible()
    wait_for_picture(picture, 500)
    assert page.locator(".nbdist-graph svg").count() == 0
    expect(page.locator(".jp-OutputArea-output").last).to_contain_text("189 ops · 4 variables")
    expect(page.locator(".jp-OutputArea-output").last).not_to_contain_text("function")
    page.locator(".jp-OutputArea summary").click()
    expect(page.locator(".jp-OutputArea table")).to_contain_text("worker 1")
    lab.theme("JupyterLab Dark")
    look_at = page.locator(".jp-OutputArea-output").last
    bring_into_view(look_at)
    lab.screenshot("graph-untrusted-dark")
    lab.theme("JupyterLab Light")


def test_names_in_graphs_are_text(lab: Lab) -> None:
    source = (
        "from nbdist.graph.layout.nodes import Node\nfrom nbdist.ui.graph.view import GraphView\n"
        "bad = '</script><img src=x onerror=alert(1)><b>bold</b>&amp;\\x00'\n"
        "GraphView([Node(bad + '/a', 'exp'), Node(bad + '/b', 'exp'), Node('c', bad, '', (bad + '/a',))])"
    )
    page = shown(lab, "hostile-graph.ipynb", source)
    assert page.locator(f"{DRAWN} img, {DRAWN} b").count() == 0
    expect(page.locator(f"{DRAWN} svg")).to_contain_text("<img src=x")
    page.get_by_role("button", name="Open all scopes").click()
    assert page.locator(f"{DRAWN} img, {DRAWN} b").count() == 0
