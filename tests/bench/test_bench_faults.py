"""``bench faults``: a fault with real tasks, and a fault whose bounds are not kept."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tiers import exhaustive

from bench.faults import FAULTS, Injection, cost_of, line
from bench.kills import Outcome
from bench.recovery_work import Figures


def test_bounds_that_are_not_kept_are_named() -> None:
    fault = next(one for one in FAULTS if one.refuses and not one.ends)
    injection = Injection(fault, workers=4)
    injection.signalled = [100.0]
    injection.figures = Figures(3.0, 40.0, lost=7)
    restarts = [{"task": name, "lost_at": 101.0} for name in fault.victims]
    outcome = Outcome(0.90, "", left=["process 7"], restarts=restarts)
    cost = cost_of(fault, injection, outcome, calm=0.97)
    assert cost.wrong == [
        "process 7",
        "the restart budget was not spent",
        "all train after 40.0 s",
        "7 steps lost",
        "accuracy -7.0 points",
    ]
    assert line(fault, [cost]).endswith("NOT MET: " + "; ".join(cost.wrong))


@exhaustive
@pytest.mark.engines
def test_a_worker_of_asynchronous_servers_dies() -> None:
    """The command with one fault: its bounds hold."""
    command = [sys.executable, "-m", "bench", "faults", "--rows", "1", "--program", "async-ps"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker:1 killed" in done.stdout
    assert done.stdout.rstrip().endswith("met")
