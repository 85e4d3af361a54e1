"""Workers are added to a cluster and removed from it during a run, and join and leave between two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from recording_view import RecordingView
from test_runs_rejoin import until_all_reach
from test_runs_rejoin_sync import STEPS, assert_as_one_device, body
from waiting import until

from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.resizing import Resize

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines


def resizes(run: Run) -> list[Resize]:
    growth = run._monitor._growth
    assert growth is not None
    return growth.resizes


def until_resized(run: Run, number: int) -> None:
    until(
        lambda: len(resizes(run)) >= number and all(one.step is not None for one in resizes(run)), during=run
    )


def test_workers_join_between_two_steps(start: Start, tmp_path: Path) -> None:
    cluster, view, over = start(workers=2), RecordingView(), tmp_path / "over"
    options = Options(strategy="multi_worker", seed=3)
    run = start_run(body(over), options, cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, 3 * STEPS)
    cluster.grow(2, report=print)
    until_resized(run, 2)
    until_all_reach(run, max(one.step or 0 for one in resizes(run)) + 2 * STEPS)
    over.touch()
    run.wait()
    assert run.status == "finished"
    assert [one.state for one in run.standing().replicas] == ["finished"] * 4
    assert [one["step"] for one in read_run(run.id).resizes] == [one.step for one in resizes(run)]
    assert_as_one_device(cluster, run, over, (0, 1, 2, 3))
