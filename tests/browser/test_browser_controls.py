"""A real run, controlled while its cell is running: JupyterLab, the same without subshells, Notebook 7."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from browser_lab import LIVE, Lab, record, wait_for_curve
from playwright.sync_api import Page, expect
from test_browser_runs import SETUP, TRAIN
from tiers import matrix
from waiting import limit

from nbdist.metrics.log import logs_in, read_log

pytestmark = [pytest.mark.browser, pytest.mark.engines]

# The page's own clock for what is pressed and what is shown; it is the engines' clock too.
CLOCK = """() => {
  window.pressed = {}; window.seen = {};
  const press = event => { const name = event.target.textContent || event.target.ariaLabel;
    window.pressed[name] ??= Date.now() / 1000 };
  for (const kind of ['click', 'keydown']) addEventListener(kind, press, {capture: true});
  const look = () => { for (const part of ['chip', 'rate', 'saved']) {
    const node = document.querySelector(`.nbd-${part}`); if (!node) continue;
    const text = part === 'rate' ? node.title : node.textContent;
    window.seen[`${part} ${text}`] ??= Date.now() / 1000; } };
  new MutationObserver(look).observe(document.querySelector('section.nbdist-live'),
    {subtree: true, childList: true, characterData: true, attributes: true});
}"""


def times_of_steps(folder: Path) -> list[np.ndarray]:
    """When each replica made its steps so far, by its own log."""
    return [read_log(path).points["time"] for path in logs_in(folder)]


def step_shown(page: Page) -> int:
    facts = page.locator(f"{LIVE} .nbd-facts b").first.inner_text()
    return int(re.sub(r"\D", "", facts.partition("/")[0]) or -1)


def continues(page: Page) -> None:
    """Wait until more steps are shown than now."""
    page.wait_for_function(
        "before => { const shown = document.querySelector('.nbd-facts b').textContent.split('/')[0];"
        " return Number(shown.replace(/\\D/g, '')) > before }",
        arg=step_shown(page),
    )


def clock(page: Page, kind: str, name: str) -> float:
    """When something was pressed, or was first seen; seconds since 1970."""
    found = page.evaluate("([kind, name]) => window[kind][name]", [kind, name])
    assert found is not None, page.evaluate("kind => window[kind]", kind)
    return float(found)


def in_force(page: Page) -> str:
    """The learning rate that the view shows."""
    title = page.locator(f"{LIVE} .nbd-rate").get_attribute("title") or ""
    return title.removeprefix("in force: ")


@pytest.fixture
def training(place: Lab) -> Lab:
    place.write("controlled.ipynb", [SETUP, TRAIN, "print(run.status, model.predict(x_test).shape)"])
    page = place.open("controlled.ipynb")
    place.run(0)
    place.run(1, wait=False)
    wait_for_curve(page)
    page.evaluate(CLOCK)
    return place


def run_folder(lab: Lab) -> Path:
    """The folder of the newest active run; another test may have left an older one under way."""
    found = [path.parent for path in (lab.server.home / "runs").glob("*/run.json")
             if json.loads(path.read_text())["status"] == "running"]  # fmt: skip
    return max(found)


@pytest.mark.parametrize("place", matrix(["lab", "lab-without-subshells"], rest=["notebook"]), indirect=True)
def test_controls_act_while_the_cell_is_running(training: Lab, request: pytest.FixtureRequest) -> None:
    page, folder, latencies = training.page, run_folder(training), {}
    chip, where = page.locator(f"{LIVE} .nbd-chip"), request.node.callspec.id

    # Pause: no replica makes a step between the state "paused" and the command to resume.
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(chip).to_contain_text("paused")
    paused = page.evaluate("Date.now() / 1000")
    training.screenshot(f"controls-paused-{where}")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(chip).to_contain_text("running")
    resumed = clock(page, "pressed", "Resume")
    # A replica may have been paused before its first step.
    while min(times.max(initial=0.0) for times in times_of_steps(folder)) < resumed:
        continues(page)
    steps = np.concatenate(times_of_steps(folder))
    assert not ((steps > paused) & (steps < resumed)).any()
    latencies["pause"] = float(steps[steps < paused].max()) - clock(page, "pressed", "Pause")
    latencies["resume"] = float(steps[steps > resumed].min()) - resumed

    # The learning rate, as a number and by the slider's keys.
    field = page.get_by_role("spinbutton", name="Learning rate value")
    expect(field).to_have_value("0.001")
    field.fill("0.002")
    field.press("Enter")
    expect(page.locator(f"{LIVE} .nbd-rate")).to_have_attribute("title", "in force: 0.002")
    slider = page.get_by_role("slider", name="Learning rate")
    slider.press("ArrowRight")
    expect(page.locator(f"{LIVE} .nbd-rate")).not_to_have_attribute("title", "in force: 0.002")
    assert float(in_force(page)) > 0.002
    latencies["learning rate"] = clock(page, "seen", "rate in force: 0.002") - clock(
        page, "pressed", "Learning rate value"
    )

    # A checkpoint, there when the page says so.
    page.get_by_role("button", name="Checkpoint", exact=True).click()
    saved = page.locator(f"{LIVE} .nbd-saved")
    expect(saved).to_contain_text("checkpoint at step")
    path = Path(saved.locator(".nbd-path").inner_text())
    assert path.is_file()
    assert path.is_relative_to(folder)
    latencies["checkpoint"] = path.stat().st_mtime - clock(page, "pressed", "Checkpoint")
    training.screenshot(f"controls-{where}")

    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop it", exact=True).click()
    expect(page.locator(LIVE)).to_have_count(0)
    training.wait_done(1)
    ended = float(json.loads((folder / "run.json").read_text())["ended"])
    latencies["stop"] = ended - clock(page, "pressed", "Stop it")
    training.run(2)
    assert "stopped (359, 10)" in training.output(2).inner_text()
    for what, seconds in latencies.items():
        record(f"controls, {where}: {what}, s", round(seconds, 3))
        assert seconds < limit(10)
