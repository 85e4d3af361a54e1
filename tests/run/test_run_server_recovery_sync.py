"""Parameter servers of synchronous replicas that die are replaced, and no step is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from recording_view import RecordingView
from test_run_recovery import until_all_reach
from test_run_recovery_sync_servers import EPOCHS, STEPS, assert_as_one_device, body, until_joined
from test_run_server_recovery import kill, pid_of
from tiers import matrix
from waiting import until

from nbdist.checkpoint.manager import state_files
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines


def plain(gate: Path) -> str:
    """Return a body whose optimizer keeps nothing, so that the weights can be exact."""
    return body(gate).replace("nb.optim.Adam(0.005)", "nb.optim.SGD(0.05)")


def notes_of(run: Run) -> list[str]:
    return [note for note in run.notes if " by pid " in note]


@pytest.mark.parametrize(("servers", "transport"), matrix([(2, "auto")], rest=[(1, "auto"), (2, "socket")]))
def test_a_dead_server_is_restored_at_its_step(
    start: Start, tmp_path: Path, servers: int, transport: str
) -> None:
    cluster, view, gate = start(workers=3, ps=servers), RecordingView(), tmp_path / "gate"
    options = Options(strategy="ps", synchronous=True, seed=3, transport=transport)
    run = start_run(plain(gate), options, cluster=cluster, make_view=lambda run: view)
    step = STEPS
    for number in range(2):
        until_all_reach(run, step)
        name = f"/job:ps/task:{(number + 1) % servers}"
        pid = kill(cluster, name)
        until(lambda: len(notes_of(run)) > number, during=run)  # noqa: B023
        note = notes_of(run)[-1]
        assert note.startswith(f"{name} (pid {pid}) died: killed by SIGKILL; replaced after ")
        assert note.endswith(f" by pid {pid_of(cluster, name)}; 0 updates lost")
        step = read_run(run.id).restarts[-1]["step"] + 3
    gate.touch()
    run.wait()
    assert_as_one_device(cluster, run, gate, plain)


def test_a_server_and_a_worker_die_together(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=3, ps=2), tmp_path / "gate"
    options = Options(strategy="ps", synchronous=True, seed=3, max_restarts=4)
    run = start_run(plain(gate), options, cluster=cluster)
    until_all_reach(run, STEPS)
    kill(cluster, "/job:ps/task:1")
    kill(cluster, "/job:worker/task:2")
    until(lambda: notes_of(run), during=run)
    until_joined(run)
    kill(cluster, "/job:worker/task:0")  # the chief
    kill(cluster, "/job:ps/task:0")
    until(lambda: len(notes_of(run)) == 2, during=run)
    until_joined(run, 1)
    gate.touch()
    run.wait()
    assert_as_one_device(cluster, run, gate, plain)


def test_slots_of_the_optimizer_are_those_of_the_newest_state(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=3, ps=1), tmp_path / "gate"
    options = Options(strategy="ps", synchronous=True, seed=3, checkpoint_every=4)
    run = start_run(body(gate), options, cluster=cluster)
    until_all_reach(run, STEPS)
    until(lambda: state_files(run.folder), during=run)  # a busy disk may be late
    kill(cluster, "/job:ps/task:0")
    until(lambda: notes_of(run), during=run)
    gate.touch()
    run.wait()
    assert "0 updates lost; its slots of the optimizer (mean and square) are those after" in notes_of(run)[0]
    assert run.global_step == STEPS * EPOCHS


@pytest.mark.parametrize("servers", matrix([1], rest=[2]))
def test_a_dead_server_with_backups(start: Start, tmp_path: Path, servers: int) -> None:
    cluster, gate = start(workers=3, ps=servers), tmp_path / "gate"
    options = Options(strategy="ps", synchronous=True, backups=1, seed=3)
    run = start_run(plain(gate), options, cluster=cluster)
    until(lambda: run.standing().step >= STEPS, during=run)
    kill(cluster, "/job:ps/task:0")
    until(lambda: notes_of(run), during=run)
    gate.touch()
    run.wait()
    assert run.status == "finished"
    assert max(outcome["step"] for outcome in run.outcomes.values()) == STEPS * EPOCHS
