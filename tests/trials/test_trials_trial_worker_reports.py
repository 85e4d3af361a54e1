"""Reports of a trial: all of them reach the sweep, including those made without a connected driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trials_tools import finished
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.trials.start import attach_sweep
from nbdist.trials.sweep import Sweep
from nbdist.trials.trial_worker import MOST_STEPS, TrialReports

COUNTING = """
import os, time
def wait_for(name):
    while not os.path.exists(os.path.join({folder!r}, name)): time.sleep(0.005)
nb.log(m=1.0)
wait_for("first")
for i in range(2, 10): nb.log(m=float(i))
open(os.path.join({folder!r}, f"logged-{{x}}"), "w").close()
wait_for("last")
"""


def test_many_reports_are_thinned_and_the_last_one_is_kept() -> None:
    reports = TrialReports()
    assert reports.frame({}) is None
    for start in range(0, 5 * MOST_STEPS, 100):
        steps = np.arange(start, start + 100)
        reports.add(steps, steps / 2)
    frame = reports.frame({"number": 3})
    assert frame is not None
    assert frame.meta == {"number": 3, "again": True}
    steps, values = frame.arrays
    assert len(steps) <= MOST_STEPS
    assert steps[-1] == start + 99
    assert (np.diff(steps) > 0).all()
    np.testing.assert_array_equal(values, steps / 2)


@pytest.mark.engines
@pytest.mark.parametrize("ends", [False, True], ids=["it runs", "it is over"])
def test_reports_without_a_driver_arrive_later(
    start: Callable[..., Cluster],
    begin: Callable[..., Sweep],
    held: list[Sweep],
    tmp_path: Path,
    ends: bool,
) -> None:
    sweep = begin(COUNTING.format(folder=str(tmp_path)), "x=[1, 2]", metric="m", cluster=start(workers=2))
    until(lambda: all(sweep.ledger.curve(n) for n in (0, 1)))
    sweep.leave()
    (tmp_path / "first").touch()
    until(lambda: all((tmp_path / f"logged-{x}").exists() for x in (1, 2)))
    if ends:
        (tmp_path / "last").touch()
    held.append(attach_sweep(sweep.id, report=lambda line: None))
    (tmp_path / "last").touch()
    taken = finished(held[-1])
    assert [trial.value for trial in taken.trials] == [9.0, 9.0]
    assert {trial.attempt for trial in taken.trials} == {1}
    for number in (0, 1):
        curve = taken.ledger.curve(number)
        assert curve is not None
        assert (curve.steps, curve.values) == (list(range(9)), [float(i) for i in range(1, 10)])
