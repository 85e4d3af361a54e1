"""Dead, frozen and living tasks that get a new process with their rank."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from freezing import freeze
from tiers import exhaustive, matrix
from waiting import PATIENCE, until

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.description import read_description
from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    TaskDiedError,
    UnavailableError,
    WorkerError,
)
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.runtime.session.session import Session

pytestmark = pytest.mark.engines
Start = Callable[..., Cluster]

IDENTITY = """
import json, os, nbdist
known = [info.pid for info in nbdist.task.roster]
met = [nbdist.task.peer(info.rank).call("ping").meta["pid"] for info in nbdist.task.roster]
config = json.loads(os.environ["TF_CONFIG"])
(nbdist.task.rank, os.getpid(), known, met, config["cluster"], os.environ["NBDIST_INDEX"])
"""


def ignore(line: str) -> None:
    """Ignore a report."""


def check_cluster_is_consistent(cluster: Cluster) -> None:
    pids = [info.pid for info in cluster.tasks]
    spec = {job: [info.address for info in cluster.tasks if info.job == job] for job in cluster.spec.jobs}
    for info, answer in zip(cluster.tasks, cluster.run(IDENTITY), strict=True):
        assert answer == (info.rank, info.pid, pids, pids, spec, str(info.index))
    assert [cluster.peer(info.rank).call("ping").meta["incarnation"] for info in cluster.tasks] == [
        info.incarnation for info in cluster.tasks
    ]
    assert [cluster.spec.task_address(info.job, info.index) for info in cluster.tasks] == [
        info.address for info in cluster.tasks
    ]
    described = read_description(cluster.folder)
    assert list(described.tasks) == cluster.tasks
    assert {row["state"] for row in cluster.status()} == {"running"}
    assert sorted(cluster.client.ids) == [info.rank for info in cluster.tasks]


def test_a_living_task_gets_an_empty_namespace_and_the_others_keep_theirs(start: Start) -> None:
    cluster = start(2, 1)
    cluster.run("x = 5")
    before = cluster.tasks
    cluster.peer(1).call("ping")
    lines: list[str] = []
    (new,) = cluster.restart("worker:1", report=lines.append)
    old = before[1]
    assert (new.name, new.rank, new.device, new.host) == (old.name, old.rank, old.device, old.host)
    assert new.pid != old.pid
    assert new.incarnation != old.incarnation
    assert not psutil.pid_exists(old.pid)
    assert cluster.tasks == [before[0], new, before[2]]
    assert re.match(r"restarted in \d+\.\d\d s: ", lines[0])
    assert f"/job:worker/task:1 (pid {old.pid} -> {new.pid})" in lines[0]
    assert cluster.run("'x' in globals()") == [True, False, True]
    check_cluster_is_consistent(cluster)


def test_dead_frozen_and_busy_tasks_are_restarted(start: Start) -> None:
    cluster = start(3, 1)
    old = [info.pid for info in cluster.tasks]
    os.kill(old[1], signal.SIGKILL)
    os.kill(old[3], signal.SIGKILL)
    until(lambda: len(cluster.dead()) == 2)
    assert [info.rank for info in cluster.restart(report=ignore)] == [1, 3]
    freeze(old[0])  # the chief
    cluster.restart("/job:worker/task:0", report=ignore)
    calls = cluster.submit("import signal; signal.pause()".__len__, on=2)  # a finished call
    assert calls.results(PATIENCE) == [29]
    spins = cluster.submit(exec, "while True: pass", on=2)
    cluster.restart(2, report=ignore)
    assert spins.wait(PATIENCE)
    assert isinstance(spins.outcome(2), TaskDiedError)
    assert not any(map(psutil.pid_exists, old))
    assert cluster.target == f"nbdist://{cluster.tasks[0].address}"
    check_cluster_is_consistent(cluster)
    lines: list[str] = []
    assert cluster.restart(report=lines.append) == []
    assert "no task of cluster" in lines[0]


def test_a_task_can_be_replaced_repeatedly(start: Start) -> None:
    cluster = start(1)
    pids = {cluster.tasks[0].pid}
    for _ in range(2):
        pids.add(cluster.restart(0, report=ignore)[0].pid)
    assert len(pids) == 3
    check_cluster_is_consistent(cluster)
    os.kill(cluster.tasks[0].pid, signal.SIGKILL)
    until(cluster.dead)
    (row,) = cluster.status()
    assert row["ended"] == "killed by SIGKILL"
    with pytest.raises(TaskDiedError, match="killed by SIGKILL"):
        cluster.run("1")


def test_a_call_to_a_replaced_process_raises(start: Start) -> None:
    cluster = start(2, 1)
    calls = cluster.submit(exec, "while True: pass", on=1)
    pid = cluster.tasks[1].pid
    (new,) = cluster.restart(1, report=ignore)
    with pytest.raises(TaskDiedError, match=rf"\(pid {pid}\) was replaced by pid {new.pid}"):
        calls.results(PATIENCE)


def test_the_error_for_an_unknown_task_lists_the_tasks(cluster: Cluster) -> None:
    for task in ("worker:7", "chief", 9, "-1", "/job:worker"):
        with pytest.raises(InvalidArgumentError, match=r"worker:0 \(rank 0\), .*, ps:0 \(rank 3\)"):
            cluster.restart(task)


def test_shared_memory_of_the_old_process_is_freed(start: Start) -> None:
    cluster = start(2, 1)
    make = (
        "from nbdist.wire.shm import Segment; import nbdist\n"
        "segment = Segment.create(nbdist.task.segment_prefix, 1000); segment.name"
    )
    names = cluster.run(make)
    paths = [Path(f"/dev/shm/{name}") for name in names]
    assert all(path.exists() for path in paths)
    cluster.restart(1, report=ignore)
    assert paths[0].exists()
    assert not paths[1].exists()


def test_another_client_sees_the_new_task(start: Start) -> None:
    cluster = start(2, 1)
    other = Cluster.attach(cluster.id)
    try:
        assert other.peer(1).call("ping").meta["pid"] == cluster.tasks[1].pid
        (new,) = other.restart("worker:1", report=ignore)
        assert cluster.tasks[1] == new
        assert cluster.dead() == []
        check_cluster_is_consistent(cluster)
        check_cluster_is_consistent(other)
        os.kill(new.pid, signal.SIGKILL)
        until(lambda: cluster.dead() and other.dead())
        (newer,) = cluster.restart(report=ignore)
        assert other.tasks[1] == newer
        check_cluster_is_consistent(other)
    finally:
        other.close()
        other._supervisor.close()
    third = Cluster.attach(cluster.id)
    try:
        assert third.tasks == cluster.tasks
        assert third.dead() == []
    finally:
        third.close()
        third._supervisor.close()


def test_two_clients_do_not_replace_together(start: Start) -> None:
    cluster = start(2, 1)
    other = Cluster.attach(cluster.id)
    replacement = other.replace(other.tasks[:1])
    with pytest.raises(UnavailableError, match="rank 0 is being replaced at this moment"):
        cluster.restart(1)
    until(replacement.poll)
    cluster.restart(1, report=ignore)
    other.replace(other.tasks[:1])  # its lock ends with its connection, and the task is dead
    other.close()
    other._supervisor.close()
    until(cluster.dead)
    until(lambda: restarted(cluster))
    check_cluster_is_consistent(cluster)


def restarted(cluster: Cluster) -> bool:
    try:
        return bool(cluster.restart(report=ignore))
    except UnavailableError:  # the supervisor has not yet noticed the closed connection
        return False


@exhaustive
def test_a_stale_client_does_not_end_the_new_process(start: Start) -> None:
    cluster = start(2, 1)
    other = Cluster.attach(cluster.id)
    (new,) = cluster.restart(1, report=ignore)
    with pytest.raises(UnavailableError, match=f"rank 1 is pid {new.pid} by now"):
        other.replace([replace(new, pid=new.pid - 1)])
    assert cluster.run(os.getpid, on=1) == [new.pid]
    other.close()
    other._supervisor.close()


def test_a_replacement_that_does_not_start_leaves_a_dead_task(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(2, 1)
    with monkeypatch.context() as patch:
        patch.setattr("nbdist.cluster.calls.open_task", refuse)
        with pytest.raises(NbdistError, match="no room for another"):
            cluster.restart(1)
    until(cluster.dead)
    assert [info.rank for info in cluster.dead()] == [1]
    with pytest.raises(TaskDiedError):
        cluster.run("1")
    cluster.restart(report=ignore)
    check_cluster_is_consistent(cluster)


def refuse(*arguments: object, **named: object) -> None:
    raise OSError("no room for another")


refuse.__module__ = "__main__"


def test_a_session_on_the_old_process_ends_and_a_new_one_works(start: Start) -> None:
    import nbdist as nb

    cluster = start(2, 1)
    with nb.Graph().as_default(), nb.device("/job:ps"):
        v = nb.Variable(3.0, name="v")
        with Session(cluster.target) as session:
            session.run(v.initializer)
            assert session.run(v) == 3.0
            cluster.restart("ps:0", report=ignore)
            with pytest.raises((UnavailableError, AbortedError), match="/job:ps/task:0"):
                session.run(v)
        with Session(cluster.target) as session:
            session.run(v.initializer)
            assert session.run(v) == 3.0


def test_a_task_that_a_run_is_using_is_not_restarted(start: Start) -> None:
    cluster = start(2, 1)
    wait = "import threading\nwhile True: threading.Event().wait(0.01)"
    run = start_run(wait, Options(on="worker:1", strategy="ps"), cluster=cluster)
    for task in ("worker:1", "ps:0"):
        with pytest.raises(FailedPreconditionError, match=rf"run {run.id} is using /job:{task[:-2]}/task"):
            cluster.restart(task)
    cluster.restart("worker:0", report=ignore)
    run.stop()
    run.wait()
    assert run.status == "stopped"
    cluster.restart("ps:0", report=ignore)
    check_cluster_is_consistent(cluster)


TRAIN = """
import numpy as np
x = np.random.default_rng(0).random((96, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, activation="tanh"), nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.1), "mse")
history = model.fit(nb.data.Dataset.from_arrays(x, x[:, :1]).batch(24), epochs=3)
weights = [w for w in model.get_weights()]
"""


@pytest.mark.parametrize("strategy", matrix(["ps"], rest=["multi_worker"]))
def test_training_on_replaced_tasks_equals_one_device(start: Start, strategy: str) -> None:
    import numpy as np

    cluster = start(2, 1)
    options = Options(strategy=strategy, synchronous=True, seed=3, fetch=("weights",))
    first = start_run(TRAIN, options, cluster=cluster).wait().results["weights"]
    os.kill(cluster.tasks[1].pid, signal.SIGKILL)
    until(cluster.dead)
    cluster.restart(report=ignore)
    cluster.restart("ps:0", report=ignore)
    cluster.restart("worker:0", report=ignore)
    again = start_run(TRAIN, options, cluster=cluster).wait().results["weights"]
    alone = Options(strategy="one_device", on="worker:0", seed=3, fetch=("weights",))
    one = start_run(TRAIN, alone, cluster=cluster).wait().results["weights"]
    for a, b, c in zip(first, again, one, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(b, c, rtol=1e-5, atol=1e-6)


@exhaustive
def test_a_new_process_is_not_in_the_mpi_world(own_home: object) -> None:
    from nbdist.cluster.launch import start_cluster

    cluster = start_cluster(2, launcher="mpi", report=None)
    try:
        lines: list[str] = []
        cluster.restart(1, report=lines.append)
        assert "/job:worker/task:1 is no longer in the MPI world" in lines[0]
        check_cluster_is_consistent(cluster)
        start_run(TRAIN, Options(strategy="multi_worker"), cluster=cluster).wait()
        with pytest.raises(WorkerError, match="collective 'mpi'"):
            start_run(TRAIN, Options(strategy="multi_worker", collective="mpi"), cluster=cluster).wait()
    finally:
        cluster.stop()


def test_only_processes_of_the_supervisor_are_killed(start: Start) -> None:
    """The supervisor kills only its own child with the given pid and start time."""
    bystander = psutil.Popen(["sleep", "100"])
    try:
        cluster = start(1)
        description = json.loads((cluster.folder / "cluster.json").read_text())
        description["tasks"][0]["pid"] = bystander.pid
        (cluster.folder / "cluster.json").write_text(json.dumps(description))
        other = Cluster.attach(cluster.id)
        pid = cluster.tasks[0].pid
        with pytest.raises(UnavailableError, match=f"rank 0 is pid {pid} by now, not {bystander.pid}"):
            other.restart(0, report=ignore)
        assert bystander.poll() is None
        assert cluster.run(os.getpid) == [pid]
        other.close()
        other._supervisor.close()
    finally:
        bystander.kill()
        bystander.wait()
