"""A kernel restarted in mid-sweep, and a reloaded page: the sweep continues, and its grid is shown again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser_lab import Lab
from browser_server import LabServer
from playwright.sync_api import Browser, expect
from sweeps_to_show import GRID, SweepPage, choose, count, has_rows, swept

pytestmark = [pytest.mark.browser, pytest.mark.engines]


@pytest.fixture(scope="module")
def notebook(lab_server: LabServer, chromium: Browser) -> Iterator[SweepPage]:
    yield from swept(Lab(lab_server, chromium, draws=False, keeps=True), "sweep-outlives", orphan=600)


@pytest.fixture
def at(notebook: SweepPage) -> Iterator[SweepPage]:
    yield notebook
    notebook.end()


def test_a_reloaded_page_has_all_trials(at: SweepPage) -> None:
    grid = at.gated("reloaded")
    at.open("reloaded", 0, 1)
    expect(count(grid, "finished")).to_have_text("2")
    at.lab.save()
    at.page.reload()
    at.lab.settle(f"{at.name}.ipynb")
    at.lab.wait_idle()
    grid = at.page.locator(GRID)
    at.show(grid)
    expect(count(grid, "running")).to_have_text("2")
    has_rows(grid, 0, 1, 2, 3)
    trial = choose(grid, 2)
    trial.get_by_role("button", name="Stop", exact=True).click()
    expect(count(grid, "stopped")).to_have_text("1")
    expect(trial).not_to_contain_text("being stopped")
    at.open("reloaded")
    at.until("reloaded", lambda ledger: ledger.counts["finished"] == 5)
    expect(grid.locator(".nbd-chip")).to_contain_text("finished")  # this page has no other output
    has_rows(grid, *range(6))


def test_a_new_kernel_takes_over_the_sweep(at: SweepPage) -> None:
    grid = at.gated("restarted")
    at.open("restarted", 0, 1)
    expect(count(grid, "finished")).to_have_text("2")
    expect(count(grid, "running")).to_have_text("2")
    sweep_id = at.value("sweep.id")
    at.show(grid)
    at.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(grid.locator(".nbd-chip")).to_contain_text("disconnected")
    expect(grid).to_contain_text("nb.attach(")
    expect(grid.get_by_role("group", name="Sweep control")).to_be_hidden()
    at.lab.screenshot("sweep-disconnected")
    at.lab.wait_idle()
    cell = at.run(f"import nbdist as nb\n%load_ext nbdist\nsweep = nb.attach({sweep_id!r})")
    grid = at.lab.output(cell).locator(GRID)
    at.show(grid)
    expect(count(grid, "running")).to_have_text("2")
    has_rows(grid, 0, 1, 2, 3)
    at.lab.screenshot("sweep-attached")
    at.open("restarted")
    ledger = at.until("restarted", lambda ledger: ledger.counts["finished"] == 6)
    assert {trial.attempt for trial in ledger.trials.values()} == {1}  # adopted: none was run twice
    expect(at.lab.output(cell).locator("img[src^='data:image/png']")).to_be_visible()
