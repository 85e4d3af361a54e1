"""The live view for everyone: axe-core, keys alone, reduced motion, forced colours."""

from __future__ import annotations

import pytest
from browser_axe import violations
from browser_lab import LIVE, Lab, bring_into_view
from playwright.sync_api import Page, expect
from test_browser_live import SETUP, in_colour
from tiers import matrix

pytestmark = pytest.mark.browser

SHOW = """store = RunStore()
commands, STATES = [], {{"pause": "paused"}}
view = LiveView(store, workers({replicas}), "digits", total_steps=2000)
def act(kind, rate):
    commands.append((kind, rate))
    view.progress({{"learning_rate": rate}} if rate else {{"state": STATES.get(kind, "running")}})
view.on_control(act)
display(view)
view.progress({{"learning_rate": 0.01}})
for task in workers({replicas}):
    view.output(task, "begun\\n")
"""
PAUSED = "await shown_whole(view, 'paused')"
CONTINUE = "await feed(view, store, {replicas}, 1000, seconds=0.5, until=lambda: {until})"


def shown(lab: Lab, name: str, replicas: int, until: str = "settled(view)") -> Page:
    """A view of a run that is going on: of which nothing more comes, or until something is the case."""
    cells = (
        SHOW.format(replicas=replicas),
        CONTINUE.format(replicas=replicas, until=until),
        "print(*commands)",
        PAUSED,
    )
    lab.write(name, [SETUP, *cells])
    page = lab.open(name, height=1400)
    lab.run(0)
    lab.run(1)
    bring_into_view(page.locator(LIVE))
    lab.run(2, wait=until == "settled(view)")
    expect(page.locator(f"{LIVE} .nbd-card")).to_have_count(replicas)
    return page


@pytest.mark.parametrize("replicas", matrix([3], rest=[1, 16]))
def test_axe_finds_nothing_in_a_view(lab: Lab, replicas: int) -> None:
    page = shown(lab, f"axe-{replicas}.ipynb", replicas)
    found = {"folded": violations(page, LIVE)}
    lab.run(4)
    expect(page.locator(f"{LIVE} .nbd-chip")).to_contain_text("paused")
    folded = page.locator(f"{LIVE} details:not([open]) > summary:visible")
    while folded.count():
        folded.first.click()
    page.locator(f"{LIVE} .nbd-card").last.click()
    page.locator(f"{LIVE} [role=tab]").last.click()
    page.get_by_role("button", name="Charts", exact=True).click()
    page.locator(f"{LIVE} .nbd-plot").first.hover()
    expect(page.get_by_role("searchbox", name="Filter charts")).to_be_visible()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        lab.theme(theme)
        in_colour(page)
        found[theme] = violations(page, LIVE)
        lab.screenshot(f"accessible-{replicas}-{theme.split()[1].lower()}")
    wrong = {f"{when}: {text}" for when, texts in found.items() for text in texts}
    assert not wrong, "\n".join(sorted(wrong))


NAMED = """() => { const node = document.activeElement; if (!node.closest('section.nbdist-live')) return null;
  return node.ariaLabel?.split(';')[0] ?? node.querySelector('.nbd-name')?.textContent
    ?? node.textContent.replace(/[0-9+]*new lines?$/, '') }"""


def stops(page: Page) -> list[str]:
    """The names of what Tab goes to, from the first one in the view to its last."""
    page.get_by_role("button", name="Pause", exact=True).focus()
    names = []
    while (name := page.evaluate(NAMED)) is not None:
        names.append(name)
        page.keyboard.press("Tab")
    return names


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


@pytest.mark.parametrize("place", matrix(["lab"], rest=["notebook"]), indirect=True)
def test_everything_works_by_keyboard(place: Lab) -> None:
    page = shown(place, "keys.ipynb", 2, until="('stop', None) in commands")
    view, chart = page.locator(LIVE), page.locator(f"{LIVE} .nbd-plot").first
    expect(view.locator(".nbd-facts")).to_contain_text("1,000 / 1,000")
    assert stops(page) == [
        "Pause", "Checkpoint", "Stop", "Learning rate", "Learning rate value", "Charts", "Wall time",
        "Log scale", "Smoothing", "loss by step", "accuracy by step", "Data table", "worker 0", "worker 1",
        "worker 0", "output of worker 0",
    ]  # fmt: skip
    page.get_by_role("button", name="Pause", exact=True).focus()
    press(page, "Enter")
    expect(view.locator(".nbd-chip")).to_contain_text("paused")
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_focused()
    press(page, " ")
    expect(view.locator(".nbd-chip")).to_contain_text("running")
    press(page, "Tab", "Enter", "Tab", "Tab", "ArrowRight", "Tab")  # over Stop, to the number
    page.keyboard.type("0.5")
    press(page, "Enter", "Tab", "Enter")
    expect(page.get_by_role("searchbox", name="Filter charts")).to_be_focused()
    press(page, "Escape", "Tab")
    expect(page.get_by_role("button", name="Wall time")).to_be_focused()
    press(page, "Tab", " ")
    expect(page.get_by_role("button", name="Log scale")).to_have_attribute("aria-pressed", "true")
    press(page, "Tab", "ArrowRight", "Tab")
    expect(chart).to_be_focused()
    press(page, "Home")
    expect(view.locator(".nbd-readout").first).to_be_visible()
    press(page, "ArrowRight", "+")
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    press(page, "0")
    expect(page.get_by_role("button", name="Show all")).to_be_hidden()
    press(page, "Tab", "Tab", "Enter")
    expect(view.locator(".nbd-data table")).to_be_visible()
    view.locator(".nbd-card").first.focus()
    press(page, "Enter")
    expect(view.locator(".nbd-card").first).to_have_attribute("aria-pressed", "true")
    view.get_by_role("tab").first.focus()
    press(page, "ArrowRight")
    expect(view.get_by_role("tab", name="worker 1")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="Stop", exact=True).focus()
    press(page, "Enter")  # asks
    expect(page.get_by_role("button", name="No", exact=True)).to_be_focused()
    press(page, "Shift+Tab", "Enter")
    place.wait_done(2)
    place.run(3)
    printed = place.output(3).inner_text()
    set_by_keys = "('checkpoint', None) ('set', 0.011) ('set', 0.5)"
    assert printed.strip() == f"('pause', None) ('resume', None) {set_by_keys} ('stop', None)"
    assert page.locator(".jp-Notebook-cell").count() == 5  # no key of ours was one of the notebook's


MOVING = """root => [root, ...root.querySelectorAll('*')].filter(
  node => ['', '::before', '::after'].some(part => {
    const {transitionDuration, animationName} = getComputedStyle(node, part);
    return animationName !== 'none' || transitionDuration.split(', ').some(time => parseFloat(time) > 0);
  })).map(node => node.outerHTML.slice(0, 100))"""


def test_reduced_motion_and_forced_colours_are_respected(lab: Lab) -> None:
    page = shown(lab, "calm.ipynb", 3)
    page.emulate_media(reduced_motion="reduce")
    assert page.locator(LIVE).evaluate(MOVING) == []
    page.emulate_media(forced_colors="active", color_scheme="dark")
    page.locator(f"{LIVE} .nbd-card").nth(1).click()
    lab.screenshot("accessible-forced-colours")
    assert not violations(page, LIVE)
