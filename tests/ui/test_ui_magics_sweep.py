"""%%sweep inside a real kernel: it runs beside other cells, is waited for, interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from ui_kernel import Kernel
from waiting import until

from nbdist.sweep.event_log import read_events
from nbdist.sweep.events import Started

pytestmark = pytest.mark.engines

GATED = """%%sweep x=[1, 2, 3, 4, 5] --metric value --name {name} {flags}
import os
while not os.path.exists({gate!r}): nb.log(value=x)
value = 10 * x
"""


def gated(kernel: Kernel, name: str, flags: str = "") -> tuple[str, Path]:
    """A sweep whose trials end when a file is there."""
    gate = kernel.home / f"gate-{name}"
    return GATED.format(name=name, flags=flags, gate=str(gate)), gate


def started(kernel: Kernel, name: str) -> None:
    """Wait until both workers have a trial of a sweep, by its log."""

    def have_both() -> bool:
        logs = kernel.home.glob(f"sweeps/*-{name}/sweep.log")
        found = [event for log in logs for event in read_events(log).events if isinstance(event, Started)]
        return len(found) >= 2

    until(have_both)


def test_it_runs_beside_other_cells(kernel: Kernel) -> None:
    code, gate = gated(kernel, "beside")
    assert kernel.run(code)["status"] == "ok"
    started(kernel, "beside")
    assert kernel.value("sweep.state") == "'running'"
    # A start is written down, then begun.
    both_busy = "import time\nwhile {one.state for one in sweep.engines()} != {'busy'}: time.sleep(0.005)"
    assert kernel.run(both_busy)["status"] == "ok"
    busy = kernel.run("%%distribute\n1")
    assert busy["status"] == "error"
    assert "is busy with run" in busy["evalue"]
    gate.touch()
    assert kernel.run("sweep.wait()")["status"] == "ok"
    assert kernel.value("sweep.best.value, sweep.best.parameters, sweep.ledger.counts['finished']") == (
        "(50.0, {'x': 5}, 5)"
    )
    assert kernel.value("'value' in globals(), 'x' in globals()") == "(False, False)"
    assert kernel.run("%%distribute\nassert 'value' not in globals()")["status"] == "ok"
    assert kernel.run("again = sweep.rerun(3); assert again.results['value'] == 40")["status"] == "ok"


def test_a_cell_that_waits_is_ended_by_an_interrupt(kernel: Kernel) -> None:
    code, _ = gated(kernel, "ended", "--wait")
    request = kernel.start(code)
    started(kernel, "ended")
    kernel.manager.interrupt_kernel()
    reply = kernel.reply(request)
    assert reply["ename"] == "KeyboardInterrupt"
    assert "its trials are in `sweep`" in reply["evalue"]
    assert kernel.value("sweep.state, sweep.ledger.counts['running'], sweep.ledger.counts['stopped']") == (
        "('stopped', 0, 2)"
    )


def test_a_cell_that_waits_raises_what_all_trials_raise(kernel: Kernel) -> None:
    reply = kernel.run("%%sweep x=[1, 2, 3, 4, 5] --metric value --wait --no-live\nvalue = missing")
    assert reply["ename"] == "WorkerError"
    assert "NameError: name 'missing' is not defined" in reply["evalue"]
    assert kernel.value("sweep.state") == "'failed'"


def test_a_cell_that_waits_says_so_when_no_engine_is_left(kernel: Kernel) -> None:
    assert kernel.run("import nbdist.trials.sweep as s; s.TROUBLE_SECONDS = 0.1")["status"] == "ok"
    # Each engine dies of its first trial, so that neither is left for the second attempts.
    reply = kernel.run("%%sweep x=[1, 2] --metric value --wait --no-live\nimport os; os._exit(1)")
    assert reply["ename"] == "UnavailableError"
    assert "0 are alive: bring back the others (%cluster restart)" in reply["evalue"]
    assert kernel.value("sweep.state") == "'running'"
    assert kernel.run("sweep.close(); sweep.wait()\n%cluster restart")["status"] == "ok"
    assert kernel.run("%%distribute\n1")["status"] == "ok"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("%%sweep x=[1]\n1", "the metric is missing: add --metric NAME"),
        ("%%sweep --metric m\n1", "the line names no parameters"),
        ("%%sweep x=log(0, 1) --metric m --trials 2\n1", "x=log(0, 1)"),
        ("%%sweep x=log(1, 2) --metric m --sampler random\n1", "--trials N"),
        ("%%sweep x=[1] --metric m --per-trial 3\n1", "--per-trial 3"),
        ("%%sweep x=[1] --metric m --sampler best\n1", "no sampler 'best'; choose from"),
        ("%%sweep x=[1] --metric m --space other\n1", "this notebook has no 'other'"),
        ("%%sweep x=[1] --metric m\n  ", "the trial is empty"),
        ("%%sweep x=[1] --metric m\ny = (", "SyntaxError"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(
    kernel: Kernel, code: str, wanted: str
) -> None:
    before = set(kernel.home.glob("sweeps/*"))
    reply = kernel.run(code)
    assert reply["status"] == "error"
    assert wanted in reply["ename"] + reply["evalue"]
    assert set(kernel.home.glob("sweeps/*")) == before


def test_a_space_of_the_notebook(kernel: Kernel) -> None:
    assert kernel.run("import nbdist as nb\nmy_space = nb.sweep.Space({'x': [2, 3]})")["status"] == "ok"
    assert kernel.run("%%sweep --space my_space --metric m --wait\nm = -x")["status"] == "ok"
    assert kernel.value("sweep.best.parameters") == "{'x': 2}"
