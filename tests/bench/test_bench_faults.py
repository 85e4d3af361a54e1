"""``bench faults``: a fault with real tasks, and a fault whose bounds are not kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiers import exhaustive

from bench.faults import FAULTS, TESTED, Injection, cost_of, line, main, scenario_line
from bench.kills import Outcome
from bench.recovery_work import Figures
from bench.scenarios import SCENARIOS
from bench.scenarios.frame import Found, Scenario, Settings, measured
from bench.script import NotThere


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


def test_every_row_is_shown_by_the_bench_or_by_a_test() -> None:
    shown = {one.row for one in (*FAULTS, *SCENARIOS)}
    assert shown.isdisjoint(TESTED)
    assert shown | set(TESTED) == set(range(1, 32))
    tests = Path(__file__).parents[1]
    for name in TESTED.values():
        file, _, function = name.partition("::")
        assert f"def {function}(" in (tests / file).read_text(), name


def test_a_scenario_that_fails_or_cannot_be_shown_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(found: Found, settings: Settings) -> None:
        found.within("back", 4.0, 3.0)
        raise AssertionError("no next cell")

    def missing(found: Found, settings: Settings) -> None:
        raise NotThere("no g++ here")

    found = measured(Scenario(18, "late", late), Settings())
    assert scenario_line(Scenario(18, "late", late), found).endswith(
        "back 4.00 s  NOT MET: back after 4.0 s; AssertionError: no next cell"
    )
    monkeypatch.setattr("bench.faults.SCENARIOS", (Scenario(23, "saves", missing),))
    assert main(["--rows", "23"]) == 0
    assert capsys.readouterr().out.endswith("NOT SHOWN: no g++ here\nnot shown here: row 23\n")


@exhaustive
@pytest.mark.engines
def test_calls_of_collectives_that_differ() -> None:
    """The command with one scenario: its bounds hold."""
    command = [sys.executable, "-m", "bench", "faults", "--rows", "17"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("met")


@exhaustive
@pytest.mark.engines
def test_a_worker_of_asynchronous_servers_dies() -> None:
    """The command with one fault: its bounds hold."""
    command = [sys.executable, "-m", "bench", "faults", "--rows", "1", "--program", "async-ps"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker:1 killed" in done.stdout
    assert done.stdout.rstrip().endswith("met")
