"""The live view in a real JupyterLab: what a user sees during a run and afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser_lab import LIVE, Lab, bring_into_view
from playwright.sync_api import Page, expect
from tiers import matrix

pytestmark = pytest.mark.browser

HERE = str(Path(__file__).parent)
SETUP = f"import sys; sys.path.insert(0, {HERE!r})\nfrom runs_to_show import *\nstore = RunStore()"
RUN = (
    "shown = LiveDisplay(store, workers({replicas}), {title!r}, total_steps={steps})\n"
    "shown.show()\n"
    "await looked_at(shown)\n"
    "await feed(shown, store, {replicas}, {steps}, seconds={seconds}, until=lambda: {until})\n"
)
DRAWN = "drawn(shown)"
FREEZE = "shown.finish(summary({title!r}, {replicas}, {steps}))"


def cells(
    replicas: int = 3,
    steps: int = 600,
    title: str = "digits, asynchronous",
    seconds: float = 2,
    until: str = DRAWN,
) -> list[str]:
    options = {"replicas": replicas, "steps": steps, "title": title, "seconds": seconds, "until": until}
    return [SETUP, RUN.format(**options), FREEZE.format(**options)]


# A pause between points, and after the first ones until the page is known to have drawn them.
HELD = """
from pathlib import Path
async def held(seconds):
    await asyncio.sleep(seconds)
    while not Path({begun!r}).exists():
        shown.tick(time.monotonic())
        await asyncio.sleep(0.02)
"""
MOVES = """() => {
  const at = /step ([\\d,]+)/.exec(document.querySelector('.nbd-plot')?.ariaLabel);
  if (!at) return false;
  const canvas = document.querySelector('.nbd-plot canvas');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let ink = 0;
  for (let i = 3; i < pixels.length; i += 4) if (pixels[i] > 40) ink++;
  const now = {step: Number(at[1].replace(',', '')), ink};
  window.first ??= now;
  return now.step > window.first.step + 200 && now.ink !== window.first.ink;
}"""
BEGINS = f"() => {{ ({MOVES})(); return window.first }}"


def show(page: Page) -> None:
    bring_into_view(page.locator(".jp-OutputArea-output").last)


def test_a_curve_moves_freezes_and_stays_without_a_kernel(lab: Lab) -> None:
    begun, seen = (lab.server.notebooks / name for name in ("moves-begun", "moves-seen"))
    for gate in (begun, seen):
        gate.unlink(missing_ok=True)
    setup, run, freeze = cells(until=f"Path({str(seen)!r}).exists()")
    run = run.replace("seconds=2", "seconds=2, pause=held")
    path = lab.write("moves.ipynb", [setup + HELD.format(begun=str(begun)), run + freeze])
    page = lab.open("moves.ipynb")
    lab.run(0)
    lab.run(1, wait=False)
    page.wait_for_function(BEGINS)
    begun.touch()
    page.wait_for_function(MOVES)
    expect(page.locator(f"{LIVE} .nbd-chip")).to_contain_text("running")
    show(page)
    lab.screenshot("live-running")

    seen.touch()
    lab.wait_done(1)
    picture = page.locator(".jp-OutputArea img[src^='data:image/png']")
    expect(picture).to_have_count(1)
    expect(page.locator(LIVE)).to_have_count(0)
    show(page)
    lab.screenshot("live-frozen")
    lab.save()
    check_saved(path)

    page = lab.open("moves.ipynb", kernel=False)
    expect(page.locator(".jp-OutputArea img[src^='data:image/png']")).to_be_visible()
    expect(page.locator(".jp-Notebook")).to_contain_text("✓ finished · 600 steps")
    assert page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session") is None
    lab.theme("JupyterLab Dark")
    show(page)
    lab.screenshot("live-reopened-dark")
    lab.theme("JupyterLab Light")


def check_saved(path: Path) -> None:
    """The file holds the frozen bundle, and nothing of a widget."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    assert "widgets" not in notebook.metadata
    [output] = notebook.cells[-1].outputs
    assert set(output.data) == {"image/png", "text/html", "text/plain", "application/vnd.nbdist.run+json"}
    assert path.stat().st_size < 150_000
    assert "jupyter.widget" not in path.read_text()


def in_colour(page: Page) -> None:
    """Wait until the charts are drawn in the theme's colours."""
    page.wait_for_function(
        "() => { const view = document.querySelector('section.nbdist-live');"
        " return getComputedStyle(view).getPropertyValue('--nbd-accent').trim()"
        " === view.querySelector('.nbd-key').style.getPropertyValue('--tone') }"
    )


SOME = {"JupyterLab Light": (1600, 320), "JupyterLab Dark": (700,)}
WIDTHS = {"JupyterLab Light": (2000, 1600, 700, 320), "JupyterLab Dark": (320, 400, 1100, 2000)}
OUTSIDE = """view => { const {left, right} = view.getBoundingClientRect();
  return [...view.querySelectorAll('*')].filter(node => !node.closest('.nbd-scroll, .nbd-plot, .nbd-spoken'))
    .filter(node => { const box = node.getBoundingClientRect();
      return box.width && (box.left < left - 1 || box.right > right + 1) })
    .map(node => node.outerHTML.slice(0, 120)) }"""


@pytest.mark.parametrize("looks", matrix([SOME], rest=[WIDTHS]), ids=["some looks", "all looks"])
def test_themes_and_widths(lab: Lab, looks: dict[str, tuple[int, ...]]) -> None:
    """Nothing sticks out of the view, from 320 to 2,000 pixels."""
    task = (
        "for task in workers(16): shown.output(task, 'a line of some length that a rank has printed ' * 3)\n"
    )
    setup, run, _ = cells(replicas=16, steps=1600)
    act = "shown.on_control(lambda kind, rate: None)\nshown.show()\nshown.progress({'learning_rate': 0.01})\n"
    lab.write("wide.ipynb", [setup, run.replace("shown.show()\n", act + task)])
    page = lab.open("wide.ipynb", width=1600)
    lab.run(0)
    lab.run(1)
    expect(page.locator(f"{LIVE} .nbd-card")).to_have_count(16)
    expect(page.locator(f"{LIVE} .nbd-card[data-state=straggler] .nbd-name")).to_have_text("worker 2")
    for theme, widths in looks.items():
        lab.theme(theme)
        for width in widths:
            lab.resize(width, 1100)
            page.wait_for_function(SETTLED)
            in_colour(page)
            show(page)
            lab.screenshot(f"live-16-{width}-{theme.split()[1].lower()}")
            assert page.locator(LIVE).evaluate(OUTSIDE) == [], width
            assert page.locator(LIVE).evaluate("node => node.scrollWidth - node.clientWidth") <= 0, width
    lab.theme("JupyterLab Light")


SETTLED = """() => { const grid = document.querySelector('.nbd-charts');
  const charts = [...grid.querySelectorAll('.nbd-plot canvas')].map(canvas => canvas.getBoundingClientRect());
  const {right} = grid.getBoundingClientRect();
  return Math.abs(Math.max(...charts.map(box => box.right)) - right) < 8 }"""  # charts fill the width


def test_names_and_output_are_text_never_html(lab: Lab) -> None:
    source = (
        "shown = LiveDisplay(store, [HOSTILE, '/job:ps/task:0'], HOSTILE, total_steps=100)\n"
        "shown.show()\n"
        "shown.output(HOSTILE, HOSTILE + '\\n')\n"
        "shown.progress({'note': HOSTILE, 'state': HOSTILE})\n"
        f"await feed(shown, store, 2, 100, seconds=1, metric=HOSTILE, until=lambda: {DRAWN})\n"
    )
    lab.write("hostile.ipynb", [SETUP, source, "shown.finish(summary(HOSTILE, 2, 100, HOSTILE))"])
    page = lab.open("hostile.ipynb")
    lab.run(0)
    lab.run(1)
    expect(page.locator(f"{LIVE} .nbd-title")).to_have_text("<img src=x onerror=alert(1)><b>bold</b>")
    page.locator(f"{LIVE} .nbd-data summary").click()
    expect(page.locator(f"{LIVE} .nbd-data table")).to_contain_text("<b>bold</b>")
    assert page.locator(f"{LIVE} img, {LIVE} .nbd-output b").count() == 0
    show(page)
    lab.screenshot("live-hostile")
    lab.run(2)
    expect(page.locator(".jp-OutputArea img")).to_have_count(1)  # the picture
    assert page.locator(".jp-OutputArea b, .jp-OutputArea img[src='x']").count() == 0


def test_the_stop_button_acts_while_the_cell_runs(lab: Lab) -> None:
    source = (
        "pressed = []\n"
        "shown = LiveDisplay(store, workers(2), 'a run', total_steps=5000)\n"
        "shown.on_control(lambda *_: pressed.append(True), ['stop'])\n"
        "shown.show()\n"
        "await feed(shown, store, 2, 200, until=lambda: bool(pressed))\n"
        "shown.finish(summary('a run', 2, 200, 'stopped'))\n"
    )
    lab.write("stop.ipynb", [SETUP, source])
    page = lab.open("stop.ipynb")
    lab.run(0)
    lab.run(1, wait=False)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it", exact=True).click()
    lab.wait_done(1)
    expect(page.locator(".jp-Notebook")).to_contain_text("■ stopped")


def test_an_spmd_cell_shows_headings_and_no_empty_charts(lab: Lab) -> None:
    source = (
        "shown = LiveDisplay(store, workers(3), 'cell')\n"
        "shown.show()\n"
        "for rank, task in enumerate(workers(3)):\n"
        "    shown.output(task, f'rank {rank} of 3\\n')\n"
        "shown.progress({'state': 'running'})\n"
        f"while not {DRAWN}:\n"
        "    shown.tick(); await asyncio.sleep(0.05)\n"
    )
    lab.write("spmd.ipynb", [SETUP, source, "shown.finish(summary('cell', 3, 0))"])
    page = lab.open("spmd.ipynb", height=700)
    lab.run(0)
    lab.run(1)
    expect(page.locator(f"{LIVE} .nbd-section:visible")).to_have_count(3)
    expect(page.locator(f"{LIVE} .nbd-task")).to_have_text(["worker 0", "worker 1", "worker 2"])
    expect(page.locator(f"{LIVE} .nbd-controls")).to_be_hidden()
    show(page)
    lab.screenshot("live-spmd")


def test_a_chart_is_used_by_keyboard_and_by_name(lab: Lab) -> None:
    source = (
        RUN.format(replicas=2, steps=100, title="keys", seconds=1, until=DRAWN)
        + "shown.view.finish('finished')"
    )
    lab.write("keys.ipynb", [SETUP, source])
    page = lab.open("keys.ipynb")
    lab.run(0)
    lab.run(1)
    chart = page.locator(f"{LIVE} .nbd-plot").first
    expect(chart).to_have_attribute("aria-label", starting_with("loss by step; at step 99:"))
    chart.focus()
    page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-label", starting_with("loss by step; at step 0:"))
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-label", starting_with("loss by step; at step 1:"))
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    page.keyboard.press("0")
    expect(page.get_by_role("button", name="Show all")).to_be_hidden()
    page.get_by_role("button", name="Log scale").click()
    page.get_by_role("button", name="Wall time").click()
    page.get_by_role("button", name="worker 1").click()
    expect(page.locator(f"{LIVE} .nbd-key-chosen").first).to_contain_text("worker 1")
    lab.screenshot("live-controls")


def starting_with(start: str) -> Any:
    return re.compile("^" + re.escape(start))
