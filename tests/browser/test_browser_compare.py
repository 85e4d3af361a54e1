"""The output of nb.compare as our extension draws it: without a kernel, by mouse and keys, in both themes."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_axe import violations
from browser_lab import Lab
from playwright.sync_api import Page, expect
from runs_to_compare import compared
from saved_to_show import write_saved
from tiers import matrix

from nbdist.ui.compare.saved import COMPARISON

pytestmark = pytest.mark.browser

VIEW = "section.nbd-comparison"
SOME = {"JupyterLab Light": (320, 1100), "JupyterLab Dark": (1100,)}
WIDTHS = {"JupyterLab Light": (320, 700, 1400), "JupyterLab Dark": (320, 1100)}
OUTSIDE = """view => { const {left, right} = view.getBoundingClientRect();
  return [...view.querySelectorAll('*')].filter(node => !node.closest('.nbd-scroll, .nbd-plot, .nbd-spoken'))
    .filter(node => { const box = node.getBoundingClientRect();
      return box.width && (box.left < left - 1 || box.right > right + 1) })
    .map(node => node.outerHTML.slice(0, 160)) }"""
PIXELS = "plot => plot.querySelector('canvas').toDataURL()"


def opened(lab: Lab, tmp_path: Path, count: int = 3) -> Page:
    """Open an unsigned notebook with a comparison, without a kernel."""
    write_saved(lab.server.notebooks / "compared.ipynb", [compared(tmp_path, count)._repr_mimebundle_()])
    return lab.open("compared.ipynb", kernel=False)


def test_curves_are_read_and_hidden_over_each_axis_without_a_kernel(drawing_lab: Lab, tmp_path: Path) -> None:
    page = opened(drawing_lab, tmp_path)
    view = page.locator(VIEW)
    chart = view.locator(".nbd-plot").first
    expect(chart).to_be_visible()
    label = str(chart.get_attribute("aria-label"))
    assert all(name in label for name in ("baseline", "two workers, larger batches", "no decay"))
    before = chart.evaluate(PIXELS)
    view.get_by_role("button", name="no decay").click()
    expect(chart).not_to_have_attribute("aria-label", label)
    assert "no decay" not in str(chart.get_attribute("aria-label"))
    page.wait_for_function(
        f"([plot, before]) => ({PIXELS})(plot) !== before", arg=[chart.element_handle(), before]
    )
    view.get_by_role("button", name="no decay").press("Enter")
    expect(chart).to_have_attribute("aria-label", label)

    view.get_by_role("button", name="Epoch").click()
    chart.press("Home")
    chart.press("ArrowRight")
    readout = view.locator(".nbd-readout").first
    expect(readout).to_contain_text("epoch 0.0")
    expect(readout.locator(".nbd-key")).to_have_count(6)  # of all runs, and of their validation data
    view.get_by_role("button", name="Time").click()
    chart.press("End")
    expect(readout).to_contain_text("s, step ")
    chart.press("+")
    expect(view.get_by_role("button", name="Show all")).to_be_visible()
    view.get_by_role("button", name="Log scale").click()
    view.get_by_label("Smoothing").fill("0.6")
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    expect(readout.locator(".nbd-key")).to_have_count(6)
    view.get_by_role("button", name="Show all").click()

    table = view.get_by_role("group", name="What differs, and metrics")
    expect(table.locator("thead th").first).to_have_text("what differs")
    expect(table.locator("tr", has_text="--strategy")).to_contain_text("multi_worker")
    expect(table.locator("tr", has_text="val_accuracy (best)")).to_contain_text("★")
    output = page.locator(".nbd-Bundle")
    expect(output).to_contain_text("nb.compare('261120-digits', '261121-digits', '261122-digits')")
    expect(output.locator("details", has_text="code: baseline")).to_have_count(2)
    view.locator("summary", has_text="Save figures").click()
    with page.expect_download() as download:
        view.get_by_role("button", name="Save CSV").click()
    head, *rows = download.value.path().read_text().splitlines()
    assert head == "chart,curve,kind,step,value"
    assert any(row.startswith("loss,● baseline,run,") for row in rows)
    drawing_lab.screenshot("compared")


def test_what_cannot_be_drawn_and_hostile_names(drawing_lab: Lab, tmp_path: Path) -> None:
    bundle = compared(tmp_path, 4)._repr_mimebundle_()
    newer = {**bundle, COMPARISON: {**bundle[COMPARISON], "version": 2}}
    live = {**bundle, COMPARISON: {"version": 1, "live": "r1"}}
    write_saved(drawing_lab.server.notebooks / "odd.ipynb", [bundle, newer, live])
    page = drawing_lab.open("odd.ipynb", kernel=False, height=3000)
    expect(page.locator(VIEW).first.get_by_role("button", name="<b>bold</b>")).to_be_visible()
    assert page.locator(f"{VIEW} thead b").count() == 0
    expect(page.locator(".nbd-Bundle [role=note]").first).to_contain_text(
        "saved by a newer nbdist (version 2"
    )


@pytest.mark.parametrize("looks", matrix([SOME], rest=[WIDTHS]), ids=["some looks", "all looks"])
def test_it_fits_at_all_widths_in_both_themes_and_passes_axe(
    drawing_lab: Lab, tmp_path: Path, looks: dict[str, tuple[int, ...]]
) -> None:
    page = opened(drawing_lab, tmp_path)
    view = page.locator(VIEW)
    expect(view.locator("canvas").first).to_be_visible()
    wrong: dict[str, object] = {}
    for theme, widths in looks.items():
        drawing_lab.theme(theme)
        for width in widths:
            drawing_lab.resize(width, 1600)
            name = f"{theme.split()[1].lower()}-{width}"
            drawing_lab.screenshot(f"compared-{name}")
            wrong[name] = view.evaluate(OUTSIDE)
        wrong[f"axe {theme}"] = violations(page, VIEW)
    drawing_lab.theme("JupyterLab Light")
    assert not {when: found for when, found in wrong.items() if found}
