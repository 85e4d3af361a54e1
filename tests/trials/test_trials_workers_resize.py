"""Sweeps on a cluster that grows or shrinks while they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from trials_tools import GATED, began, finished, kill, states
from waiting import until

from nbdist.errors import FailedPreconditionError
from nbdist.trials.start import attach_sweep

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.trials.sweep import Sweep

pytestmark = pytest.mark.engines
Begin = Callable[..., "Sweep"]
Start = Callable[..., "Cluster"]


def quiet(line: str) -> None: ...


def test_new_workers_are_given_trials(start: Start, begin: Begin, marks: Path) -> None:
    cluster = start(workers=1, ps=1)
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(6))}, cluster=cluster)
    until(lambda: len(began(marks)) == 1)
    cluster.grow(2, report=quiet)
    until(lambda: len(began(marks)) == 3)
    assert [(one.rank, one.name, one.state) for one in sweep.engines()] == [
        (0, "/job:worker/task:0", "busy"),
        (2, "/job:worker/task:1", "busy"),
        (3, "/job:worker/task:2", "busy"),
    ]
    assert sweep.engine_names[3] == "/job:worker/task:2"
    with pytest.raises(FailedPreconditionError, match=rf"{sweep.id}.* is using /job:worker/task:2"):
        cluster.shrink()
    kill(sweep, 3)
    until(lambda: [one.state for one in sweep.engines()].count("gone") == 1)
    cluster.shrink(report=quiet)  # removes the dead engine; another retries its trial
    (marks / "open").touch()
    finished(sweep)
    assert states(sweep) == ["finished"] * 6
    assert {rank for trial in sweep.trials for rank in trial.ranks} == {0, 2}


def test_a_sweep_on_some_workers_uses_only_them(start: Start, begin: Begin, marks: Path) -> None:
    cluster = start(workers=2)
    space = {"number": list(range(4))}
    sweep = begin(GATED.format(folder=str(marks)), space, cluster=cluster, on="worker:1")
    until(lambda: len(began(marks)) == 1)
    cluster.grow(report=quiet)
    cluster.shrink(report=quiet)
    cluster.grow(report=quiet)
    (marks / "open-0").touch()
    until(lambda: len(began(marks)) == 2)
    assert [one.rank for one in sweep.engines()] == [1]
    (marks / "open").touch()
    finished(sweep)
    assert {rank for trial in sweep.trials for rank in trial.ranks} == {1}


def test_a_new_driver_uses_the_new_workers(
    start: Start, begin: Begin, held: list[Sweep], marks: Path
) -> None:
    cluster = start(workers=1)
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(4))}, cluster=cluster)
    until(lambda: len(began(marks)) == 1)
    sweep.leave()
    cluster.grow(report=quiet)
    held.append(attach_sweep(sweep.id, cluster=cluster, report=quiet))
    until(lambda: len(began(marks)) == 2)
    (marks / "open").touch()
    finished(held[-1])
    assert states(held[-1]) == ["finished"] * 4
    assert {rank for trial in held[-1].trials for rank in trial.ranks} == {0, 1}
    cluster.shrink(report=quiet)
    held[-1].clone(0)  # continues, with the present engines
    finished(held[-1])
    assert held[-1].trials[-1].ranks == (0,)
