"""The grid of a sweep that runs: all views, linked by what is chosen, and narrowed by brushing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browser_lab import Lab
from browser_server import LabServer
from playwright.sync_api import Browser, FloatRect, Locator, expect
from sweeps_to_show import SweepPage, choose, count, has_rows, panel, swept

pytestmark = [pytest.mark.browser, pytest.mark.engines]

SPACE = "n=[0, 1, 2, 3, 4, 5] x=uniform(0, 1, points=2)"
FIGURES = ("Parallel coordinates", "Heat map", "score by step", "Best score so far", "Engines")
PAINTED = """figure => { const canvas = figure.querySelector('canvas');
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size }"""


@pytest.fixture(scope="module")
def notebook(lab_server: LabServer, chromium: Browser) -> Iterator[SweepPage]:
    yield from swept(Lab(lab_server, chromium, draws=False, keeps=True), "sweep-grid")


@pytest.fixture
def at(notebook: SweepPage) -> Iterator[SweepPage]:
    yield notebook
    notebook.end()


@pytest.fixture
def grid(at: SweepPage) -> Locator:
    """A grid with six trials that are complete and two that run."""
    grid = at.gated("linked", SPACE, number="2 * n + round(x)")
    at.open("linked", 0, 1, 2, 3, 4, 5)
    expect(count(grid, "finished")).to_have_text("6")
    expect(count(grid, "running")).to_have_text("2")
    for number, score in ((6, "0.8"), (7, "0.75")):  # they have reported, and are drawn where they stay
        expect(grid.locator(f"tr[data-number='{number}'] td").nth(1)).to_have_text(score)
    return grid


def box_of(element: Locator) -> FloatRect:
    box = element.bounding_box()
    assert box is not None
    return box


def best_of_cell(heat: Locator) -> int:
    """The best trial of the cell that the heat map says it is at."""
    expect(heat).to_have_attribute("aria-label", re.compile(r"\(trial \d+\)"))
    found = re.search(r"\(trial (\d+)\)", heat.get_attribute("aria-label") or "")
    assert found
    return int(found[1])


def test_all_views_are_drawn_and_linked(at: SweepPage, grid: Locator) -> None:
    for title in FIGURES:
        figure = grid.get_by_role("figure").filter(has_text=title)
        expect(figure).to_be_visible()
        at.page.wait_for_function(f"figure => ({PAINTED})(figure) > 3", arg=figure.element_handle())
    expect(grid.get_by_role("progressbar")).to_have_attribute("aria-valuetext", "6 of 12 trials done")
    expect(grid.get_by_role("button", name="best score 1")).to_contain_text("trial 2")
    has_rows(grid, *range(8))
    expect(grid.locator("tbody tr").first).to_have_attribute("data-number", "2")  # best first

    trial = choose(grid, 4)
    expect(trial).to_contain_text("finished")
    expect(trial).to_contain_text("0.9")
    best = grid.get_by_role("button", name="best score 1")
    best.click()
    expect(panel(grid)).to_contain_text("Trial 2")
    expect(panel(grid)).to_contain_text("the best so far")
    pressed = grid.locator("tr[data-number='2'] button")
    expect(pressed).to_have_attribute("aria-pressed", "true")

    across, down = grid.get_by_label("Across"), grid.get_by_label("Down")
    across.select_option("n")
    down.select_option("x")
    heat = grid.get_by_role("application", name="x by n")
    box = box_of(heat)
    left = min(104, max(56, 0.2 * box["width"]))
    at.page.mouse.click(box["x"] + left + 3, box["y"] + 20 + 10)  # the first column's upper line
    chosen = {best_of_cell(heat)}
    expect(panel(grid)).to_contain_text(f"Trial {best_of_cell(heat)}")
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):
        heat.press(key)
        heat.press("Enter")
        chosen.add(best_of_cell(heat))
        expect(panel(grid)).to_contain_text(f"Trial {best_of_cell(heat)}")
    assert len(chosen) == 4

    axis = box_of(grid.get_by_role("slider", name="score", exact=True))
    # Trial 7 is the worst so far: its line ends at the foot of the last axis.
    lowest = at.page.evaluate(
        """([x, bottom]) => { for (let y = bottom; y > bottom - 120; y--) {
        const canvas = document.elementFromPoint(x, y);
        canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: y, bubbles: true}));
        if (canvas.style.cursor === 'pointer') return y; } }""",
        [axis["x"] - 20, axis["y"] + axis["height"]],
    )
    at.page.mouse.click(axis["x"] - 20, lowest)
    expect(panel(grid)).to_contain_text("Trial 7")
    expect(panel(grid)).to_contain_text("running")
    for title in ("score by step", "Best score so far", "Engines"):
        panel(grid).get_by_role("button", name="Close", exact=True).click()
        expect(panel(grid)).to_contain_text("No trial chosen")
        chart = grid.get_by_role("figure").filter(has_text=title).get_by_role("application")
        chart.focus()
        chart.press("Home")
        chart.press("Enter")
        expect(panel(grid)).to_contain_text("Trial ")
    at.lab.screenshot("sweep-running")


def test_brushing_narrows_all_views(at: SweepPage, grid: Locator) -> None:
    slider = grid.get_by_role("slider", name="x", exact=True)
    axis = box_of(slider)
    middle = axis["x"] + axis["width"] / 2
    at.page.mouse.move(middle, axis["y"] + 2)
    at.page.mouse.down()
    at.page.mouse.move(middle, axis["y"] + axis["height"] / 3, steps=4)
    at.page.mouse.up()
    status = grid.locator(".nbs-brushing [role=status]")
    expect(status).to_contain_text("4 of 8 trials: x ")
    has_rows(grid, 1, 3, 5, 7)
    expect(grid.locator(".nbs-range")).to_contain_text("of 4 brushed")
    expect(slider).to_have_attribute("aria-valuetext", "≥ 0.667, 4 trials brushed")
    at.lab.screenshot("sweep-brushed")
    heat = grid.get_by_role("figure").filter(has_text="Heat map").get_by_role("application")
    heat.focus()
    heat.press("ArrowDown")
    expect(heat).to_have_attribute("aria-label", re.compile("no brushed trials"))

    # What comes by then is brushed too, or not, by the same rule.
    at.open("linked", 6, 7)
    expect(count(grid, "finished")).to_have_text("8")
    expect(status).to_contain_text("5 of 10 trials: x ")

    slider.focus()
    slider.press("Escape")
    expect(status).to_have_text("")
    expect(grid.locator("tbody tr")).to_have_count(10)
    slider.press("ArrowUp")  # the lowest quarter
    expect(status).to_contain_text("5 of 10 trials: x ≤ 0.25")
    has_rows(grid, 0, 2, 4, 6, 8)
    slider.press("End")
    expect(status).to_contain_text("5 of 10 trials: x ≥ 0.75")
    second = grid.get_by_role("slider", name="n", exact=True)
    second.press("ArrowUp")
    expect(status).to_contain_text("1 of 10 trials")
    has_rows(grid, 1)
    second.press("Shift+ArrowUp")
    expect(status).to_contain_text("2 of 10 trials")
    has_rows(grid, 1, 3)
    second.press("Escape")
    expect(status).to_contain_text("5 of 10 trials")
    grid.get_by_role("button", name="Show all").click()
    expect(grid.locator("tbody tr")).to_have_count(10)
