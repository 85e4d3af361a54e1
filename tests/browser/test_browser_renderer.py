"""Saved runs and sweeps as our extension draws them: with no kernel, untrusted, zoomed, brushed, by keys."""

from __future__ import annotations

import time
from xml.etree import ElementTree

import pytest
from browser_axe import violations
from browser_lab import LIVE, Lab, Notebook, bring_into_view
from browser_server import PATIENCE, LabServer
from playwright.sync_api import Browser, Page, expect
from saved_to_show import HOSTILE_RUN, run_bundle, sweep_bundle, write_saved
from sweeps_to_show import GRID
from tiers import matrix

pytestmark = pytest.mark.browser

RUN, SWEEP = "application/vnd.nbdist.run+json", "application/vnd.nbdist.sweep+json"
BUNDLE = ".jp-Notebook .nbd-Bundle"
SVG = "{http://www.w3.org/2000/svg}"
SOME = {"JupyterLab Light": (320, 1400), "JupyterLab Dark": (1100,)}
WIDTHS = {"JupyterLab Light": (320, 700, 1400), "JupyterLab Dark": (320, 1100)}
OUTSIDE = """view => { const {left, right} = view.getBoundingClientRect();
  return [...view.querySelectorAll('*')].filter(node => !node.closest('.nbd-scroll, .nbd-plot, .nbd-spoken, .nbs-across'))
    .filter(node => { const box = node.getBoundingClientRect();
      return box.width && (box.left < left - 1 || box.right > right + 1) })
    .map(node => node.outerHTML.slice(0, 160)) }"""  # noqa: E501
FILLED = """() => [...document.querySelectorAll('.nbd-Bundle .nbd-charts')].every(grid => {
  const plots = [...grid.querySelectorAll('.nbd-plot canvas')].map(canvas => canvas.getBoundingClientRect());
  return Math.abs(Math.max(...plots.map(box => box.right)) - grid.getBoundingClientRect().right) < 8 })"""


def opened(lab: Lab, name: str, bundles: list[dict[str, object]], **size: int) -> Page:
    """Open an unsigned notebook without a kernel."""
    write_saved(lab.server.notebooks / name, bundles)
    page = lab.open(name, kernel=False, **size)
    assert page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session") is None
    return page


def show(page: Page, number: int) -> None:
    """Scroll to an output."""
    bring_into_view(page.locator(BUNDLE).nth(number))


def test_a_run_is_zoomed_read_and_smoothed_without_a_kernel(drawing_lab: Lab) -> None:
    page = opened(drawing_lab, "run.ipynb", [run_bundle()])
    chart = page.locator(f"{LIVE} .nbd-plot").first
    expect(chart).to_have_attribute(
        "aria-label", "loss by step; at step 399: mean over replicas 0.1482, validation 0.2332"
    )
    expect(page.locator(f"{BUNDLE} img")).to_have_count(0)

    chart.press("Home")
    assert "at step 0:" in str(chart.get_attribute("aria-label"))
    chart.press("ArrowRight")
    expect(page.locator(".nbd-readout").first).to_be_visible()
    other = page.locator(f"{LIVE} .nbd-plot").nth(1)
    pixels = "plot => plot.querySelector('canvas').toDataURL()"
    differs = f"([plot, before]) => ({pixels})(plot) !== before"
    whole = other.evaluate(pixels)
    chart.press("+")
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    page.wait_for_function(differs, arg=[other.element_handle(), whole])
    near = other.evaluate(pixels)
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function(differs, arg=[other.element_handle(), near])
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 70, steps=3)
    page.mouse.up()
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    page.get_by_role("button", name="Log scale").click()
    page.get_by_label("Smoothing").fill("0.6")
    expect(page.get_by_role("button", name="Wall time")).to_be_visible()
    page.get_by_role("button", name="worker 1").click()
    expect(page.locator(".nbd-legend").first).to_contain_text("worker 1")
    page.locator(f"{LIVE} .nbd-data summary").click()
    expect(page.locator(f"{LIVE} .nbd-data tbody")).to_contain_text("loss, worker 1")
    drawing_lab.screenshot("drawn-run")

    # A second place for the same output, as "Create New View for Cell Output" makes one, is drawn by itself.
    drawing_lab.command("application:set-mode", {"mode": "multiple-document"})
    drawing_lab.command("notebook:create-output-view")
    expect(page.locator(f".jp-LinkedOutputView {LIVE} canvas")).to_have_count(2)
    expect(page.locator(f"{BUNDLE} {LIVE} canvas")).to_have_count(2)


def test_a_grid_is_brushed_and_chosen_in_and_has_no_commands(drawing_lab: Lab) -> None:
    page = opened(drawing_lab, "sweep.ipynb", [sweep_bundle()], height=2200)
    grid = page.locator(GRID)
    axis = grid.get_by_role("slider", name="lr", exact=True)
    axis.press("ArrowUp")
    expect(grid.locator(".nbs-brushing [role=status]")).to_contain_text("trials: lr")
    expect(grid.locator(".nbs-range")).to_contain_text("brushed")
    drawing_lab.screenshot("drawn-sweep-brushed")
    grid.get_by_label("Figure to save").select_option("Parallel coordinates")
    saved = {}
    for kind in ("SVG", "PNG", "CSV"):
        with page.expect_download() as download:
            grid.get_by_role("button", name=f"Save {kind}").click()
        saved[kind] = download.value.path().read_bytes()
    picture = ElementTree.fromstring(saved["SVG"])
    assert {"lr", "hidden"} <= {"".join(text.itertext()) for text in picture.iter(f"{SVG}text")}
    assert len(list(picture.iter(f"{SVG}path"))) > 3
    assert saved["PNG"].startswith(b"\x89PNG")
    assert saved["CSV"].startswith(b"trial,state,value,")
    axis.press("Escape")
    expect(grid.locator(".nbs-brushing [role=status]")).to_be_empty()
    grid.locator("tbody tr button").first.click()
    trial = grid.get_by_role("region", name="Chosen trial")
    expect(trial).to_contain_text("the best so far")
    for command in (
        "Stop",
        "Retry",
        "Clone…",
        "Promote…",
        "Insert parameters as cell",
        "Pause",
        "Stop sweep",
        "Add trials",
    ):
        expect(grid.get_by_role("button", name=command, exact=True)).to_have_count(0)
    output = page.locator(BUNDLE)
    expect(output).to_contain_text("nb.attach('261120-2130-mnist')")
    expect(output.locator(".nbs-facts, .nbs-header, section").first).to_contain_text("60 / 60")


def test_many_outputs_are_drawn_as_they_are_scrolled_to(drawing_lab: Lab) -> None:
    run = run_bundle()
    page = opened(drawing_lab, "many.ipynb", [run] * 20)
    drawn = page.locator(f"{BUNDLE} {LIVE}")
    expect(drawn.first).to_be_visible()
    expect(page.locator(BUNDLE)).to_have_count(20)
    assert drawn.count() < 6
    show(page, 19)
    expect(page.locator(BUNDLE).nth(19).locator("canvas")).to_have_count(2)
    assert drawn.count() < 12
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    expect(drawn).to_have_count(20)  # on paper all of them are seen
    # Clearing outputs leaves none of it: what listens to keys, to the theme and to widths has ended.
    page.evaluate("window.seen = [...document.querySelectorAll('.nbd-Bundle')].map(one => new WeakRef(one))")
    drawing_lab.command("notebook:clear-all-cell-outputs")
    expect(page.locator(BUNDLE)).to_have_count(0)
    session = page.context.new_cdp_session(page)
    deadline = time.monotonic() + PATIENCE
    while (left := page.evaluate("window.seen.filter(one => one.deref()).length")) > 2:
        assert time.monotonic() < deadline, f"{left} of 20 are still there"
        session.send("HeapProfiler.collectGarbage")
        page.wait_for_timeout(20)


def test_data_that_cannot_be_drawn_are_shown_as_saved(drawing_lab: Lab) -> None:
    run, sweep = run_bundle(), sweep_bundle(6)
    bundles = [
        {**run, RUN: {**run[RUN], "version": 2}},
        {**run, RUN: {"version": 1, "charts": [{"title": [], "train": 3}], "series": "1 2"}},
        {**sweep, SWEEP: {**sweep[SWEEP], "head": None}},
        {RUN: ["rubbish"], "text/plain": "in words"},
        HOSTILE_RUN,
    ]
    page = opened(drawing_lab, "bad.ipynb", bundles, height=2600)
    notes = page.locator(f"{BUNDLE} [role=note]")
    expect(notes.nth(0)).to_contain_text("saved by a newer nbdist (version 2")
    expect(notes).to_have_count(3)
    for number, pictures in enumerate([1, 0, 1, 0, 0]):
        show(page, number)
        output = page.locator(BUNDLE).nth(number)
        expect(output.locator("img[src^='data:image/png']")).to_have_count(pictures)
    expect(page.locator(BUNDLE).nth(1)).to_contain_text("val_accuracy")  # its tables are there
    expect(page.locator(BUNDLE).nth(3)).to_contain_text("in words")
    hostile = page.locator(BUNDLE).nth(4)
    expect(hostile.locator(".nbd-title")).to_have_text(HOSTILE_RUN[RUN]["title"])
    expect(hostile.locator("canvas")).to_have_count(1)
    assert hostile.locator("img, script, iframe, a, [onclick], [onerror]").count() == 0
    drawing_lab.screenshot("drawn-bad")


@pytest.mark.parametrize("looks", matrix([SOME], rest=[WIDTHS]), ids=["some looks", "all looks"])
def test_both_kinds_at_all_widths_in_both_themes_pass_axe(
    drawing_lab: Lab, looks: dict[str, tuple[int, ...]]
) -> None:
    page = opened(drawing_lab, "both.ipynb", [run_bundle(replicas=3), sweep_bundle(24)], height=2600)
    expect(page.locator(f"{GRID} canvas").first).to_be_visible()
    wrong: dict[str, object] = {}
    for theme, widths in looks.items():
        drawing_lab.theme(theme)
        for width in widths:
            drawing_lab.resize(width, 2600)
            page.wait_for_function(FILLED)
            name = f"{theme.split()[1].lower()}-{width}"
            drawing_lab.screenshot(f"drawn-both-{name}")
            for kind in (LIVE, GRID):
                wrong[f"{kind} {name}"] = page.locator(kind).evaluate(OUTSIDE)
        wrong[f"axe {theme}"] = violations(page, BUNDLE)
    drawing_lab.theme("JupyterLab Light")
    assert not {when: found for when, found in wrong.items() if found}


def test_notebook_7_draws_them_too(lab_server: LabServer, chromium: Browser) -> None:
    place = Notebook(lab_server, chromium)
    try:
        write_saved(lab_server.notebooks / "seven.ipynb", [run_bundle(), sweep_bundle(12)])
        page = place.open("seven.ipynb")
        page.locator(f"{LIVE} .nbd-plot").first.press("ArrowLeft")
        expect(page.locator(f"{LIVE} .nbd-readout").first).to_be_visible()
        page.locator(f"{LIVE} .nbd-plot").first.press("+")
        expect(page.get_by_role("button", name="Show all")).to_be_visible()
        place.screenshot("drawn-notebook")
        show(page, 1)
        page.locator(GRID).get_by_role("slider", name="lr", exact=True).press("ArrowUp")
        expect(page.locator(".nbs-brushing [role=status]")).to_contain_text("trials: lr")
        # A page is below the notebook, which has the main area for itself; it says if a run is not there.
        place.command("nbdist:open-run", {"id": "nothing"})
        expect(page.locator(".nbd-Page [role=status]")).to_contain_text("There is no run nothing")
        box = page.locator(".nbd-Page").bounding_box()
        assert box is not None
        assert box["height"] > 300
    finally:
        place.close()
    assert not place.errors, place.errors
