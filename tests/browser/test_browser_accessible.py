"""The live view for everyone: axe-core, keys alone, reduced motion, forced colours."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_axe import violations
from browser_lab import LIVE, Lab
from playwright.sync_api import Page, expect
from test_browser_live import in_colour

pytestmark = pytest.mark.browser

HERE = str(Path(__file__).parent)
SETUP = f"import sys; sys.path.insert(0, {HERE!r})\nfrom runs_to_show import *"
SHOW = """store = RunStore()
view = LiveView(store, workers({replicas}), "digits", total_steps=2000)
display(view)
await feed(view, store, {replicas}, 1000, seconds=0.5, until=lambda: settled(view))"""


def shown(lab: Lab, name: str, replicas: int, **size: int) -> Page:
    """A view of a run that is going on, of which nothing more comes."""
    lab.write(name, [SETUP, SHOW.format(replicas=replicas)])
    page = lab.open(name, **size)  # type: ignore[arg-type]
    lab.run(0)
    lab.run(1, wait=False)
    page.wait_for_selector(LIVE, state="attached")
    page.locator(LIVE).evaluate("node => node.scrollIntoView({block: 'start'})")
    lab.wait_done(1)
    expect(page.locator(f"{LIVE} .nbd-card")).to_have_count(replicas)
    return page


@pytest.mark.parametrize("replicas", [1, 3, 16])
def test_axe_finds_nothing_in_a_view(lab: Lab, replicas: int) -> None:
    page = shown(lab, f"axe-{replicas}.ipynb", replicas, height=1400)
    found = {"folded": violations(page, LIVE)}
    for summary in page.locator(f"{LIVE} details:not([open]) > summary").all():
        summary.click()
    page.locator(f"{LIVE} .nbd-card").last.click()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        lab.theme(theme)
        in_colour(page)
        found[theme] = violations(page, LIVE)
        lab.screenshot(f"accessible-{replicas}-{theme.split()[1].lower()}")
    wrong = {f"{when}: {text}" for when, texts in found.items() for text in texts}
    assert not wrong, "\n".join(sorted(wrong))
