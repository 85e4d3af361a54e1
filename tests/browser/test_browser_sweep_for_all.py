"""A running sweep for everyone: axe-core, keys alone; and what is hard to show of trials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser_axe import violations
from browser_lab import Lab
from browser_server import LabServer
from playwright.sync_api import Browser, expect
from sweeps_to_show import GATED, GRID, SweepPage, choose, count, panel, swept

from nbdist.sweep.events import Cloned

pytestmark = [pytest.mark.browser, pytest.mark.engines]

HOSTILE = "<img src=x onerror=alert(1)>"
WIDE = " ".join(f"p{number}=uniform(0, 1)" for number in range(28))


@pytest.fixture(scope="module")
def notebook(lab_server: LabServer, chromium: Browser) -> Iterator[SweepPage]:
    yield from swept(Lab(lab_server, chromium, draws=False, keeps=True), "sweep-for-all", height=2400)


@pytest.fixture
def at(notebook: SweepPage) -> Iterator[SweepPage]:
    yield notebook
    notebook.end()


def test_axe_finds_nothing_and_keys_reach_everything(at: SweepPage) -> None:
    grid = at.gated("keys", "n=[0, 1, 2, 3] kind=['a'] m=when([1, 2], kind='a')")
    page = at.page
    at.open("keys", 0)
    expect(count(grid, "finished")).to_have_text("2")

    # A trial is chosen in the table, cloned with changes, and the sweep paused: with keys alone.
    # The finished trials come first, whatever those that run have logged: the rows stay in this order.
    for row, state in enumerate(("finished", "finished", "running", "running")):
        expect(grid.locator("tbody tr").nth(row)).to_have_attribute("data-state", state)
    grid.locator("tbody tr button").first.focus()
    focused = grid.locator("tbody tr button:focus")
    first = focused.inner_text()
    page.keyboard.press("ArrowDown")
    number = int(focused.inner_text())
    assert str(number) != first
    page.keyboard.press("Enter")
    expect(focused).to_have_attribute("aria-pressed", "true")
    expect(panel(grid)).to_contain_text(f"Trial {number}")
    panel(grid).get_by_role("button", name="Clone…").focus()
    page.keyboard.press("Enter")
    form = panel(grid).get_by_role("form", name="Clone with changes")
    expect(form.get_by_label("n", exact=True)).to_be_focused()
    page.keyboard.press("3")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(form).to_contain_text(f"is a clone of trial {number}")
    [made] = [one for one in at.events("keys") if isinstance(one, Cloned)]
    assert made.parameters["n"] == 3
    pause = grid.get_by_role("button", name="Pause", exact=True)
    pause.focus()
    page.keyboard.press("Enter")
    expect(grid.locator(".nbd-chip")).to_contain_text("paused")
    assert at.ledger("keys").paused
    assert (
        len(page.locator(".jp-Notebook-cell").all()) == 2
    )  # none of it was the notebook's: no cell came or went

    grid.get_by_role("button", name="Edit the space").click()
    found = {}
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        at.lab.theme(theme)
        at.show(grid)
        found[theme] = violations(page, GRID)
        at.lab.screenshot(f"sweep-forms-{theme.split()[1].lower()}")
    panel(grid).get_by_role("button", name="Promote…").click()
    grid.get_by_role("button", name="Stop sweep", exact=True).click()
    found["promote, end"] = violations(page, GRID)
    wrong = {f"{when}: {text}" for when, texts in found.items() for text in texts}
    assert not wrong, "\n".join(sorted(wrong))


def test_extreme_values_and_names(at: SweepPage) -> None:
    # The first three trials are good: a sweep whose first ones have all failed ends.
    space = f"n=[0, 2, 1] kind=['{HOSTILE}', 'b'] m=when([1], kind='b') {WIDE}"
    then = (
        f"print({HOSTILE!r})\n"
        f"if number == 0:\n    raise ValueError({HOSTILE!r})\n"
        "score = float('nan') if number == 1 else 3"
    )
    at.gate("hard").touch()
    at.run(
        GATED.format(
            space=space, name="hard", flags="--trials 9", number="n", gate=str(at.gate("hard")), then=then
        )
    )
    ledger = at.until("hard", lambda ledger: ledger.counts["finished"] + ledger.counts["failed"] == 9)
    assert {trial.parameters["n"] for trial in ledger.trials.values()} == {0, 1, 2}
    assert {trial.parameters.get("m") for trial in ledger.trials.values()} == {1, None}
    cell = at.run("sweep.wait()\nsweep.show()")
    grid = at.lab.output(cell).locator(GRID)  # the first cell may still have one, too
    at.show(grid)
    expect(grid.locator("tbody tr")).to_have_count(9)
    wrong = {0: f"ValueError: {HOSTILE}", 1: "score"}
    for number, trial in ledger.trials.items():
        chosen = choose(grid, number)
        expect(chosen).to_contain_text(str(trial.parameters["kind"]))
        expect(chosen).to_contain_text("p27")
        n = int(trial.parameters["n"])
        assert trial.state == ("finished" if n == 2 else "failed")
        if n in wrong:
            expect(chosen.get_by_label("Error")).to_contain_text(wrong[n])
    chosen.get_by_text("Output").click()
    expect(chosen.get_by_label("Output")).to_contain_text(f"<b>trial</b> {n}")
    expect(chosen.get_by_label("Output")).to_contain_text(HOSTILE)
    chosen.get_by_role("button", name="Clone…").click()
    at.lab.screenshot("sweep-hard")
    assert grid.locator("img, b > b, .nbs-printed b").count() == 0
    assert grid.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
    assert not violations(at.page, GRID)
