"""Sweeps in a real notebook: trials that wait for a file, on one page and one cluster for a module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from browser_lab import Lab, bring_into_view
from browser_server import PATIENCE
from playwright.sync_api import Locator, Page, expect

from nbdist.sweep.event_log import read_events
from nbdist.sweep.events import Event
from nbdist.sweep.state import Ledger

GRID = "section.nbdist-sweep"
SETUP = """import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, orphan_timeout={orphan}, report=lambda line: None);"""
GATED = """%%sweep {space} --metric score --seed 1 --name {name} {flags}
import os, time
number = {number}
print("<b>trial</b>", number)
while True:
    nb.log(score=1 - 0.05 * abs(number - 2))
    if os.path.exists({gate!r}) or os.path.exists(f"{gate}-{{number}}"):
        break
    time.sleep(0.1)  # so that a machine with few cores draws its pages as well
{then}"""
END = """if "sweep" in globals():
    sweep.close()
    sweep.wait()"""


class SweepPage:
    """One notebook with one cluster, to which cells are added."""

    def __init__(
        self, lab: Lab, name: str, *, height: int = 1700, width: int = 1100, orphan: int = 5
    ) -> None:
        self.lab = lab
        self.name = name
        self.path = lab.write(f"{name}.ipynb", [SETUP.format(orphan=orphan)])
        lab.open(f"{name}.ipynb", height=height)
        lab.run(0)

    @property
    def page(self) -> Page:
        """The tab."""
        return self.lab.page

    def add(self, source: str) -> int:
        """Append a cell; returns its place."""
        return int(self.page.evaluate(
            "source => { const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel;"
            " cells.addCell({cell_type: 'code', source}); return cells.cells.length - 1 }",
            source,
        ))  # fmt: skip

    def run(self, source: str, *, wait: bool = True) -> int:
        """Append a cell and run it; returns its place."""
        cell = self.add(source)
        self.lab.run(cell, wait=wait)
        return cell

    def value(self, expression: str) -> str:
        """Return what an expression prints in the kernel."""
        cell = self.run(f"print({expression})")
        return self.lab.output(cell).inner_text().strip()

    def gated(
        self,
        name: str,
        space: str = "n=[0, 1, 2, 3, 4, 5]",
        flags: str = "",
        *,
        number: str = "n",
        then: str = "",
    ) -> Locator:
        """Start a sweep whose trials end when their `gate` is there, and return its grid once two run.

        ``number`` works out a trial's number from its parameters; ``then`` is what a trial does at its end.
        """
        gate = str(self.gate(name))
        cell = self.run(
            GATED.format(space=space, name=name, flags=flags, number=number, gate=gate, then=then)
        )
        grid = self.lab.output(cell).locator(GRID)
        self.show(grid)
        expect(count(grid, "running")).to_have_text("2")
        return grid

    def gate(self, name: str, number: object = None) -> Path:
        """The file that ends the trials of a sweep, or one of them, when it is there."""
        return self.path.parent / (f"gate-{name}" if number is None else f"gate-{name}-{number}")

    def open(self, name: str, *numbers: object) -> None:
        """Let trials end; all of them without a number."""
        for number in numbers or (None,):
            self.gate(name, number).touch()

    def show(self, grid: Locator) -> None:
        """Bring a grid onto the screen, without which it is sent nothing."""
        expect(grid).to_be_attached()
        bring_into_view(grid)

    def events(self, name: str) -> list[Event]:
        """What the log of a sweep says by now."""
        [log] = self.lab.server.home.glob(f"sweeps/*-{name}/sweep.log")
        return list(read_events(log).events)

    def ledger(self, name: str) -> Ledger:
        """What has become of a sweep by now, by its log."""
        return Ledger.of(self.events(name))

    def until(self, name: str, holds: Callable[[Ledger], bool]) -> Ledger:
        """Wait until something is so by a sweep's log."""
        deadline = time.monotonic() + PATIENCE
        while not holds(ledger := self.ledger(name)):
            assert time.monotonic() < deadline, ledger.counts
            self.page.wait_for_timeout(20)
        return ledger

    def end(self) -> None:
        """End the sweep that the notebook calls ``sweep``, and take all cells but the first off the page."""
        for gate in self.path.parent.glob("gate-*"):
            gate.unlink()
        self.run(END)
        self.page.evaluate(
            "() => { const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel;"
            " cells.deleteCellRange(1, cells.cells.length) }"
        )


def swept(lab: Lab, name: str, **options: int) -> Iterator[SweepPage]:
    """Hand out a page for a module's tests; its kernel and its cluster end with them."""
    try:
        yield SweepPage(lab, name, **options)
    finally:
        lab.close()
    assert not lab.errors, lab.errors


def count(grid: Locator, state: str) -> Locator:
    """How many trials are in a state, in the grid's header."""
    return grid.locator(f".nbs-count[data-state='{state}'] b")


def panel(grid: Locator) -> Locator:
    """The text of the chosen trial's panel."""
    return grid.get_by_role("region", name="Chosen trial")


def choose(grid: Locator, number: int) -> Locator:
    """Choose a trial in the table; returns its panel."""
    row = f"tr[data-number='{number}'] button"
    grid.locator(row).wait_for()
    # In one script: reports of trials change the order of the table.
    grid.evaluate("(grid, row) => grid.querySelector(row).click()", row)
    expect(panel(grid)).to_contain_text(f"Trial {number}")
    return panel(grid)


def has_rows(grid: Locator, *trials: int) -> None:
    """Wait until the table shows these trials, in whatever order."""
    grid.page.wait_for_function(
        "([grid, wanted]) => JSON.stringify([...grid.querySelectorAll('tbody tr')]"
        ".map(row => Number(row.dataset.number)).sort((a, b) => a - b)) === JSON.stringify(wanted)",
        arg=[grid.element_handle(), sorted(trials)],
    )
