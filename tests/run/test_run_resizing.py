"""Workers are added to a cluster and removed from it during a run, and join and leave between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from recording_view import RecordingView
from test_run_recovery import kill, until_all_reach
from test_run_recovery_all_reduce import STEPS, assert_as_one_device, body, train, weights
from tiers import matrix
from waiting import until

from nbdist.cluster.resize import ScaleDown
from nbdist.errors import FailedPreconditionError
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.recovery.member import State
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.recovery.resizing import Resize

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines


def ignore(line: str) -> None: ...


def shrink_back(cluster: Cluster, workers: int) -> None:
    """Remove workers that a test has added, so that the next one can have the cluster."""
    cluster.shrink(workers, report=ignore)


def resizes(run: Run) -> list[Resize]:
    growth = run._monitor.changes.growth
    assert growth is not None
    return growth.resizes


def until_resized(run: Run, number: int) -> None:
    """Wait until so many workers have joined or left."""
    until(lambda: len([one for one in resizes(run) if one.step is not None]) == number, during=run)


def until_behind(run: Run, resize: Resize, workers: Sequence[int]) -> None:
    """Wait until replicas have made two epochs more than when a worker joined or left."""
    step = (resize.step or 0) + 2 * STEPS
    until(lambda: all(run.standing().replicas[worker].step >= step for worker in workers), during=run)


@pytest.mark.parametrize("strategy", matrix(["multi_worker"], rest=["mirrored"]))
def test_workers_join_and_leave_between_two_steps(start: Start, tmp_path: Path, strategy: str) -> None:
    cluster, view, over = start(workers=2), RecordingView(), tmp_path / "over"
    lines: list[str] = []
    options = Options(strategy=strategy, seed=3)
    run = start_run(body(over), options, cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, 3 * STEPS)
    cluster.grow(2, report=lines.append)
    assert f"run {run.id} continues; the new ones join it between two steps of its training" in lines[0]
    until_resized(run, 2)
    until_behind(run, resizes(run)[-1], (0, 1, 2, 3))
    cluster.shrink(1, report=lines.append)
    assert f"run {run.id} continues without it" in lines[1]
    assert len(cluster.tasks) == 3
    until_resized(run, 3)
    until_behind(run, resizes(run)[-1], (0, 1, 2))
    over.touch()
    run.wait()
    assert run.status == "finished"
    assert [one.state for one in run.standing().replicas] == ["finished"] * 3 + ["left"]
    assert "/job:worker/task:3 left: training continues on 3 replicas" in view.text["/job:worker/task:0"]
    recorded = read_run(run.id).resizes
    assert [(one["task"], one["change"], one["step"]) for one in recorded] == [
        (one.new.name, "grown" if one.grown else "shrunk", one.step) for one in resizes(run)
    ]
    assert [one["change"] for one in recorded] == ["grown", "grown", "shrunk"]
    assert sorted(one.kind for one in run.events) == ["joined", "joined", "left"]
    assert run.history is not None
    assert len(run.history.history["loss"]) == run.outcomes[0]["step"] // STEPS - 1
    assert_as_one_device(cluster, run, over, (0, 1, 2))
    shrink_back(cluster, 1)


@pytest.mark.parametrize("follows", [False, True])
def test_a_worker_that_dies_while_it_leaves_has_left(start: Start, tmp_path: Path, follows: bool) -> None:
    cluster, over, hold = start(workers=3), tmp_path / "over", tmp_path / "hold"
    run = start_run(body(over), Options(strategy="multi_worker", seed=3), cluster=cluster)
    until_all_reach(run, 3 * STEPS)
    hold.touch()  # no worker reaches the step after which it would leave
    change = ScaleDown(cluster, cluster._supervisor, cluster.tasks[2:])
    assert not change.poll()  # the worker is asked to leave
    kill(cluster, 2)
    if follows:
        until(lambda: run.members.worker(2).state is State.REPLACING, during=run)
    until(change.poll)
    assert [info.index for info in cluster.tasks] == [0, 1]
    hold.unlink()
    until_resized(run, 1)
    until_behind(run, resizes(run)[-1], (0, 1))
    over.touch()
    run.wait()
    assert [one.state for one in run.standing().replicas] == ["finished", "finished", "left"]
    assert [one["change"] for one in read_run(run.id).resizes] == ["shrunk"]
    assert_as_one_device(cluster, run, over, (0, 1))


def test_workers_of_elastic_averaging_join_and_leave(start: Start, tmp_path: Path) -> None:
    cluster, over = start(workers=1), tmp_path / "over"
    run = start_run(body(over), Options(strategy="elastic", seed=3, every=3), cluster=cluster)
    until_all_reach(run, 3 * STEPS)
    cluster.grow(2, report=ignore)
    until_resized(run, 2)
    until_behind(run, resizes(run)[-1], (0, 1, 2))
    cluster.shrink(2, report=ignore)
    until_resized(run, 4)
    until_behind(run, resizes(run)[-1], (0,))
    cluster.grow(1, report=ignore)  # under the rank of one that has left
    until_resized(run, 5)
    until_behind(run, resizes(run)[-1], (0, 1))
    over.touch()
    run.wait()
    assert run.status == "finished"
    assert [one.state for one in run.standing().replicas] == ["finished", "finished", "left"]
    ours, theirs = weights(cluster, (0, 1))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    shrink_back(cluster, 1)


def test_workers_join_elastic_averaging_at_the_end_of_an_epoch(start: Start, tmp_path: Path) -> None:
    """The last step of each epoch is the only one with an exchange."""
    cluster, over = start(workers=2), tmp_path / "over"
    run = start_run(body(over), Options(strategy="elastic", seed=3, every=STEPS), cluster=cluster)
    until_all_reach(run, 3 * STEPS)
    cluster.grow(1, report=ignore)
    until_resized(run, 1)
    until_behind(run, resizes(run)[-1], (0, 1, 2))
    over.touch()
    run.wait()
    steps = {outcome["step"] for outcome in run.outcomes.values()}
    assert len(steps) == 1
    assert steps.pop() % STEPS == 0
    shrink_back(cluster, 1)


@pytest.mark.parametrize("servers", matrix([2], rest=[1]))
def test_workers_of_asynchronous_servers_join_and_leave(start: Start, tmp_path: Path, servers: int) -> None:
    cluster, over = start(workers=2, ps=servers), tmp_path / "over"
    run = start_run(body(over), Options(strategy="ps", seed=3), cluster=cluster)
    until_all_reach(run, 3 * STEPS)
    cluster.grow(2, report=ignore)
    until_resized(run, 2)
    until_behind(run, resizes(run)[-1], (0, 1, 2, 3))
    slowest = min(one.step for one in run.standing().replicas)
    assert all((one.step or 0) >= 3 * STEPS for one in resizes(run))  # next to the others
    cluster.shrink(3, report=ignore)
    until_resized(run, 5)
    until_behind(run, resizes(run)[-1], (0,))
    cluster.grow(1, report=ignore)
    until_resized(run, 6)
    assert (resizes(run)[-1].step or 0) >= slowest  # where the one that has left was
    until_behind(run, resizes(run)[-1], (0, 1))
    over.touch()
    run.wait()
    assert run.status == "finished"
    assert [one.state for one in run.standing().replicas] == ["finished", "finished", "left", "left"]
    made = [one.step - one.begun for one in run.standing().replicas]
    assert [one.begun > 0 for one in run.standing().replicas] == [False, False, True, True]
    assert run.global_step == run.standing().step == sum(made)


def test_workers_that_cannot_join_or_leave_are_named(start: Start, tmp_path: Path) -> None:
    cluster, over = start(workers=2), tmp_path / "over"
    start_run("scale = 1.0", Options(), cluster=cluster).wait()
    needs = body(over).replace("x = random.random((93, 5), np.float32)", "x = scale * np.ones((93, 5), 'f')")
    options = Options(strategy="multi_worker", seed=3, min_workers=2)
    run = start_run(needs, options, cluster=cluster)
    until_all_reach(run, STEPS)
    with pytest.raises(FailedPreconditionError, match=r"would have 1 workers left, and needs 2"):
        cluster.shrink(1, report=ignore)
    cluster.grow(1, report=ignore)
    until(lambda: resizes(run) and resizes(run)[0].problem, during=run)
    assert "has no 'scale', which an earlier cell has defined" in resizes(run)[0].problem
    assert any("task:2 (pid" in note and "it was not added: " in note for note in run.notes)
    cluster.shrink(1, report=ignore)  # it is in no run
    step = run.standing().step
    until(lambda: run.standing().step >= step + STEPS, during=run)
    over.touch()
    run.wait()
    assert run.status == "finished"
    assert [one.state for one in run.standing().replicas] == ["finished", "finished", "left"]


def test_a_run_is_stopped_and_loses_workers_while_it_is_resized(start: Start, tmp_path: Path) -> None:
    cluster = start(workers=3)
    run = start_run(body(tmp_path / "over"), Options(strategy="multi_worker", seed=3), cluster=cluster)
    until_all_reach(run, STEPS)
    kill(cluster, 2)
    cluster.grow(1, report=ignore)  # before the run has noticed the death
    until_resized(run, 1)
    until(lambda: not run.members.away, during=run)
    until(lambda: train(run), during=run)
    kill(cluster, 3)
    until(lambda: 3 in run.members.away, during=run)
    until(lambda: not run.members.away, during=run)  # an added worker is replaced like any other
    until(lambda: train(run), during=run)
    cluster.grow(1, report=ignore)
    run.stop()
    run.wait()
    assert run.status == "stopped"
    assert start_run("n = nb.task.index", Options(), cluster=cluster).wait().results == {"n": 0}
    shrink_back(cluster, 2)
