"""A running cluster gets more workers, and fewer."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from freezing import freeze
from tiers import exhaustive, matrix
from waiting import PATIENCE, until

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.description import read_description
from nbdist.cluster.hub import is_engine_death
from nbdist.cluster.resize import ScaleUp, plan_more
from nbdist.cluster.resources import HERE, MOST_TASKS, HostResources, blas_threads
from nbdist.cluster.supervisor.client import CONTROLLER
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    TaskDiedError,
    UnavailableError,
)
from nbdist.runtime.task import TaskInfo

pytestmark = pytest.mark.engines
MODULES = {"open_task": "nbdist.cluster.calls", "join_roster": "nbdist.cluster.task_setup"}
"""Where a client looks up what it runs on a new engine."""
Start = Callable[..., Cluster]

IDENTITY = """
import json, os, nbdist
known = [info.pid for info in nbdist.task.roster]
met = [nbdist.task.peer(info.rank).call("ping").meta["pid"] for info in nbdist.task.roster]
config = json.loads(os.environ["TF_CONFIG"])
(nbdist.task.rank, os.getpid(), known, met, config["cluster"], config["task"], nbdist.task.is_chief)
"""

TWO_CORES, ROOM = {HERE: HostResources(2)}, {HERE: 9}


def ignore(line: str) -> None:
    """Ignore a report."""


@contextmanager
def attached(cluster: Cluster) -> Iterator[Cluster]:
    other = Cluster.attach(cluster.id)
    try:
        yield other
    finally:
        other.close()
        other._supervisor.close()


def check_cluster_is_consistent(cluster: Cluster) -> None:
    """Check that all tasks, the supervisor, the hub, the files and new clients agree on the cluster."""
    tasks = cluster.tasks
    pids = [info.pid for info in tasks]
    spec = {
        job: [i.address for i in sorted(tasks, key=lambda i: i.index) if i.job == job]
        for job in cluster.spec.jobs
    }
    for info, answer in zip(tasks, cluster.run(IDENTITY), strict=True):
        task = {"type": info.job, "index": info.index}
        chief = (info.job, info.index) == ("worker", 0)
        assert answer == (info.rank, info.pid, pids, pids, spec, task, chief)
    assert cluster.spec.as_dict() == spec
    described = read_description(cluster.folder)
    assert list(described.tasks) == tasks
    assert described.workers == len(spec["worker"])
    listed = json.loads((cluster.folder / "security" / f"cluster-{cluster.id}.json").read_text())
    assert listed["cluster"]["n"] == len(tasks)
    assert [one["n"] for one in listed["engines"]["sets"].values()] == [len(tasks)]
    assert cluster.dead() == []
    assert {row["state"] for row in cluster.status()} == {"running"}
    # A killed process that is not a task may take a moment to end.
    until(lambda: sorted(cluster.client.ids) == [info.rank for info in tasks])
    until(lambda: kept_pids(cluster) == {str(info.rank): info.pid for info in tasks})
    assert cluster._supervisor.ask("status")["exits"] == {}
    with attached(cluster) as other:
        assert other.tasks == tasks
        assert other.dead() == []


def kept_pids(cluster: Cluster) -> dict[str, int]:
    """Return the supervisor's processes by rank, without the controller's."""
    pids: dict[str, int] = cluster._supervisor.ask("status")["pids"]
    return {rank: pid for rank, pid in pids.items() if rank != str(CONTROLLER)}


def names(tasks: list[TaskInfo]) -> list[tuple[int, str]]:
    return [(info.rank, f"{info.job}:{info.index}") for info in tasks]


@pytest.mark.parametrize("workers", [0, -1, True, 1.0, "2", None, MOST_TASKS - 3, 10**9])
def test_invalid_numbers_are_refused(cluster: Cluster, workers: Any) -> None:
    before = cluster.tasks
    with pytest.raises(
        InvalidArgumentError, match=rf"whole number of 1 to {MOST_TASKS - 4}, not {workers!r}"
    ):
        cluster.grow(workers)
    with pytest.raises(InvalidArgumentError, match=r"whole number of 1 to 2, not .* the chief, stays"):
        cluster.shrink(workers)
    assert cluster.tasks == before


def test_a_cluster_grows_and_shrinks_and_grows(start: Start) -> None:
    cluster = start(2, 1)
    cluster.run("x = 5")
    before = cluster.tasks
    lines: list[str] = []
    new = cluster.grow(report=lines.append)
    assert names(new) == [(3, "worker:2")]
    assert cluster.tasks == [*before, *new]
    assert re.match(r"grown in \d+\.\d\d s by ", lines[0])
    assert f"by /job:worker/task:2 (rank 3, pid {new[0].pid}): 3 workers, 1 ps" in lines[0]
    assert cluster.run("'x' in globals()") == [True, True, True, False]
    check_cluster_is_consistent(cluster)
    assert names(cluster.grow(2, report=ignore)) == [(4, "worker:3"), (5, "worker:4")]
    check_cluster_is_consistent(cluster)
    removed = cluster.shrink(2, report=lines.append)
    assert names(removed) == [(4, "worker:3"), (5, "worker:4")]
    assert re.match(r"shrunk in \d+\.\d\d s", lines[1])
    assert "3 workers, 1 ps" in lines[1]
    until(lambda: not any(psutil.pid_exists(info.pid) for info in removed))
    check_cluster_is_consistent(cluster)
    cluster.shrink(2, report=ignore)
    assert names(cluster.tasks) == [(0, "worker:0"), (2, "ps:0")]
    check_cluster_is_consistent(cluster)
    assert names(cluster.grow(2, report=ignore)) == [(1, "worker:1"), (3, "worker:2")]
    check_cluster_is_consistent(cluster)
    assert cluster.run("'x' in globals()") == [True, False, True, False]
    with pytest.raises(InvalidArgumentError, match="no task has rank"):
        cluster.peer(5)


def test_an_added_task_is_like_the_others(start: Start) -> None:
    """It is reported dead, is restarted, serves sessions, and ends with the cluster."""
    import nbdist as nb

    cluster = start(1)
    (new,) = cluster.grow(report=ignore)
    os.kill(new.pid, signal.SIGKILL)
    until(cluster.dead)
    assert cluster.dead() == [new]
    with pytest.raises(TaskDiedError, match="killed by SIGKILL"):
        cluster.run("1", on=new.rank)
    (newer,) = cluster.restart(report=ignore)
    assert (newer.name, newer.rank) == (new.name, new.rank)
    check_cluster_is_consistent(cluster)
    with nb.Graph().as_default():
        with nb.device("/job:worker/task:1"):
            v = nb.Variable(3.0, name="v")
        with nb.Session(cluster.target) as session:
            session.run(v.initializer)
            assert session.run(v * 2.0) == 6.0
    cluster.stop()
    until(lambda: not psutil.pid_exists(newer.pid))


def test_a_dead_worker_can_leave(start: Start) -> None:
    cluster = start(3)
    os.kill(cluster.tasks[2].pid, signal.SIGKILL)
    until(cluster.dead)
    assert names(cluster.shrink(report=ignore)) == [(2, "worker:2")]
    check_cluster_is_consistent(cluster)
    with pytest.raises(InvalidArgumentError, match="1 to 1, not 2: the cluster has 2 workers"):
        cluster.shrink(2)
    cluster.shrink(report=ignore)
    with pytest.raises(FailedPreconditionError, match="one worker, the chief, which stays"):
        cluster.shrink()


def test_calls_to_a_removed_task_raise(start: Start) -> None:
    cluster = start(2, 1)
    removed = cluster.tasks[1]
    calls = cluster.submit(exec, "while True: pass", on=1)
    cluster.shrink(report=ignore)
    with pytest.raises(
        TaskDiedError, match=rf"task:1 \(pid {removed.pid}\) was removed: the cluster was made small"
    ):
        calls.results(PATIENCE)


def test_shared_memory_of_a_removed_task_is_freed(start: Start) -> None:
    cluster = start(2, 1)
    make = (
        "from nbdist.wire.shm import Segment; import nbdist\n"
        "segment = Segment.create(nbdist.task.segment_prefix, 1000); segment.name"
    )
    paths = [Path(f"/dev/shm/{name}") for name in cluster.run(make)]
    assert all(path.exists() for path in paths)
    cluster.shrink(report=ignore)
    assert paths[0].exists()
    until(lambda: not paths[1].exists())


def test_another_client_sees_added_and_removed_tasks(start: Start) -> None:
    cluster = start(1)
    with attached(cluster) as other:
        (new,) = other.grow(report=ignore)
        assert cluster.tasks[1] == new
        check_cluster_is_consistent(cluster)
        check_cluster_is_consistent(other)
        os.kill(new.pid, signal.SIGKILL)
        until(lambda: cluster.dead() and other.dead())
        cluster.restart(report=ignore)
        cluster.shrink(report=ignore)
        assert other.tasks == cluster.tasks
        assert len(other.tasks) == 1
        check_cluster_is_consistent(other)


def test_two_clients_do_not_change_a_cluster_together(start: Start) -> None:
    cluster = start(2, 1)
    with attached(cluster) as other:
        scale_up = ScaleUp(other, other._supervisor, plan_more(other.tasks, 1, {}, TWO_CORES, ROOM))
        scale_up.poll()
        for change in (cluster.grow, cluster.shrink, lambda: cluster.restart(1)):
            with pytest.raises(UnavailableError, match="rank 3 is being started at this moment; try again"):
                change()
        until(scale_up.poll)
        assert names(cluster.tasks) == [(0, "worker:0"), (1, "worker:1"), (2, "ps:0"), (3, "worker:2")]
        late = ScaleUp(other, other._supervisor, plan_more(other.tasks[:3], 1, {}, TWO_CORES, ROOM))
        with pytest.raises(UnavailableError, match=r"ranks \[3\] are not free"):
            late.wait()
        check_cluster_is_consistent(cluster)
        half = ScaleUp(other, other._supervisor, plan_more(other.tasks, 1, {}, TWO_CORES, ROOM))
        until(lambda: half.poll() or half._forked)
        (pid,) = half._forked.values()
    until(lambda: not psutil.pid_exists(pid))  # the change is aborted, and its new processes are killed
    check_cluster_is_consistent(cluster)
    assert names(cluster.grow(report=ignore)) == [(4, "worker:3")]
    check_cluster_is_consistent(cluster)


@pytest.mark.parametrize("step", matrix(["open_task"], rest=["start", "join_roster"]))
def test_a_task_that_dies_during_its_start_changes_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    cluster = start(1)
    before = cluster.tasks
    scale_up = ScaleUp(cluster, cluster._supervisor, plan_more(before, 1, {}, TWO_CORES, ROOM))
    with monkeypatch.context() as patch:
        if step == "start":
            until(lambda: scale_up.poll() or scale_up._forked)
        else:
            patch.setattr(f"{MODULES[step]}.{step}", hanging(tmp_path / "there"))
            until(lambda: scale_up.poll() or (tmp_path / "there").exists())
    (pid,) = scale_up._forked.values()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(
        UnavailableError, match=rf"new /job:worker/task:1 \(pid {pid}\) did not start: killed"
    ):
        scale_up.wait()
    assert cluster.tasks == before
    check_cluster_is_consistent(cluster)
    cluster.grow(report=ignore)
    check_cluster_is_consistent(cluster)


def test_a_death_that_the_hub_notices_first_is_named_by_the_supervisor(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster, by_the_hub = start(1), list[BaseException]()
    supervisor = cluster._supervisor
    ended = supervisor.ended
    with monkeypatch.context() as patch:
        patch.setattr(
            "nbdist.cluster.resize.is_engine_death",
            lambda error: by_the_hub.append(error) or is_engine_death(error),  # type: ignore[func-returns-value]
        )
        patch.setattr(supervisor, "ended", lambda: ended() if by_the_hub else {})
        patch.setattr("nbdist.cluster.calls.open_task", hanging(tmp_path / "there"))
        scale_up = ScaleUp(cluster, supervisor, plan_more(cluster.tasks, 1, {}, TWO_CORES, ROOM))
        until(lambda: scale_up.poll() or (tmp_path / "there").exists())
        (pid,) = scale_up._forked.values()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(UnavailableError, match=rf"task:1 \(pid {pid}\) did not start: killed"):
            scale_up.wait()
    assert len(by_the_hub) == 1
    check_cluster_is_consistent(cluster)


def test_a_task_that_cannot_start_has_a_reason(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start(2, 1)
    before = cluster.tasks
    with monkeypatch.context() as patch:
        patch.setattr("nbdist.cluster.calls.open_task", refuse)
        with pytest.raises(UnavailableError, match=r"task:2: the Server did not start.*no room for another"):
            cluster.grow()
    assert cluster.tasks == before
    check_cluster_is_consistent(cluster)
    late = ScaleUp(cluster, cluster._supervisor, plan_more(before, 1, {}, TWO_CORES, ROOM), timeout=0.0)
    with pytest.raises(DeadlineExceededError, match="the cluster is as it was; try again with %cluster grow"):
        late.wait()
    check_cluster_is_consistent(cluster)


def refuse(*arguments: object, **named: object) -> None:
    raise OSError("no room for another")


refuse.__module__ = "__main__"


def hanging(there: Path) -> Callable[..., None]:
    """Return a function that never returns; it creates a file when it starts."""
    path = str(there)

    def hang(*arguments: object, **named: object) -> None:
        import pathlib
        import threading

        pathlib.Path(path).touch()
        threading.Event().wait()

    hang.__module__ = "__main__"
    return hang


@pytest.mark.parametrize("when", matrix(["join_roster"], rest=[1, 3, "open_task"]))
def test_an_interrupt_during_the_change_changes_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: int | str
) -> None:
    """At the first polls, or at a given step of the new task's start."""
    cluster, there = start(1), tmp_path / "there"
    poll, seen = ScaleUp.poll, []

    def interrupted(scale_up: ScaleUp) -> bool:
        seen.append(scale_up)
        if len(seen) == when or there.exists():
            signal.raise_signal(signal.SIGINT)
        return poll(scale_up)

    with monkeypatch.context() as patch:
        if isinstance(when, str):
            patch.setattr(f"{MODULES[when]}.{when}", hanging(there))
        patch.setattr(ScaleUp, "poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cluster.grow()
    assert len(cluster.tasks) == 1
    check_cluster_is_consistent(cluster)
    cluster.grow(report=ignore)
    check_cluster_is_consistent(cluster)


@exhaustive
def test_a_rank_just_given_up_can_be_used_again(start: Start) -> None:
    """The killed process may still exist when the next one needs its rank."""
    cluster = start(1)
    for _ in range(5):
        scale_up = ScaleUp(cluster, cluster._supervisor, plan_more(cluster.tasks, 1, {}, TWO_CORES, ROOM))
        until(lambda scale_up=scale_up: scale_up.poll() or scale_up._forked)
        scale_up.abort()
        assert names(cluster.grow(report=ignore)) == [(1, "worker:1")]
        cluster.shrink(report=ignore)


def test_an_interrupt_during_the_announcement_is_delayed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(1)
    tell = ScaleUp._send_roster

    def interrupted(scale_up: ScaleUp, roster: Any, but: set[int]) -> None:
        signal.raise_signal(signal.SIGINT)
        tell(scale_up, roster, but)

    with monkeypatch.context() as patch:
        patch.setattr(ScaleUp, "_send_roster", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cluster.grow()
    assert names(cluster.tasks) == [(0, "worker:0"), (1, "worker:1")]
    check_cluster_is_consistent(cluster)


def test_a_new_worker_computes_on_its_share_of_the_cores(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbdist.cluster.launch.count_cores", lambda: 2)
    monkeypatch.setattr("nbdist.cluster.resize.count_cores", lambda: 2)
    cluster = start(1, report=None)  # not one that was started with another number of cores
    lines: list[str] = []
    cluster.grow(report=lines.append)
    assert cluster.run(blas_threads) == [2, 1]
    assert "compute on 1 thread each (cores / tasks); the others keep what they have" in lines[0]
    cluster.grow(report=lines.append)
    assert "keep what they have" not in lines[1]
    (new,) = cluster.restart(1, report=ignore)
    assert cluster.run(blas_threads, on=new.rank) == [1]


def test_ipyparallels_panel_has_added_and_removed_tasks(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ipyparallel

    (tmp_path / "profile_default").mkdir()
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cluster = start(1)
    found = ipyparallel.Cluster.from_file(cluster_id=cluster.id, profile_dir=str(cluster.folder))
    (engines,) = found.engines.values()
    cluster.grow(2, report=ignore)
    listed = tmp_path / "profile_default" / "security" / f"cluster-{cluster.id}.json"
    assert json.loads(listed.read_text())["cluster"]["n"] == 3
    code = f"import os, time; os.mkdir({str(tmp_path)!r} + f'/at-{{os.getpid()}}'); time.sleep(60)"
    calls = cluster.submit(exec, code)
    until(lambda: len(list(tmp_path.glob("at-*"))) == 3)
    engines.signal(signal.SIGINT)
    assert calls.wait(PATIENCE)
    assert {type(error).__name__ for error in calls.errors().values()} == {"WorkerError"}
    cluster.shrink(report=ignore)
    assert json.loads(listed.read_text())["cluster"]["n"] == 2
    assert engines.state == "running"
    engines.supervisor.close()
    found.controller._stop_waiting.set()
    cluster.stop()
    assert not listed.exists()


def test_growing_an_ended_cluster_does_not_wait(start: Start) -> None:
    cluster = start(1)
    scale_up = ScaleUp(cluster, cluster._supervisor, plan_more(cluster.tasks, 1, {}, TWO_CORES, ROOM))
    scale_up.poll()
    os.kill(cluster._supervisor.pids[CONTROLLER], signal.SIGKILL)
    with pytest.raises(UnavailableError, match=r"has died|has ended"):
        scale_up.wait()


def test_dead_tasks_do_not_block_a_change(start: Start) -> None:
    cluster = start(3)
    os.kill(cluster.tasks[1].pid, signal.SIGKILL)
    freeze(cluster.tasks[2].pid)
    until(cluster.dead)
    assert names(cluster.grow(report=ignore)) == [(3, "worker:3")]
    assert [info.rank for info in cluster.dead()] == [1]
    os.kill(cluster.tasks[2].pid, signal.SIGCONT)
    cluster.restart(report=ignore)
    check_cluster_is_consistent(cluster)


@exhaustive
def test_many_retrying_clients_all_succeed(start: Start) -> None:
    cluster = start(1)
    wrong: list[BaseException] = []

    def retry(client: Cluster) -> None:
        until(lambda: changed(lambda: client.grow(report=ignore)), 60)
        until(lambda: changed(lambda: client.restart(0, report=ignore)), 60)
        until(lambda: changed(lambda: client.shrink(report=ignore)), 60)
        until(lambda: changed(lambda: client.grow(report=ignore)), 60)

    def changed(change: Callable[[], object]) -> bool:
        try:
            change()
        except UnavailableError:  # another client has the lock, or was faster
            return False
        except BaseException as error:
            wrong.append(error)
        return True

    with attached(cluster) as second, attached(cluster) as third:
        # Two threads of one client beside two other clients.
        threads = [
            threading.Thread(target=retry, args=(client,)) for client in (cluster, cluster, second, third)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        for client in (cluster, second, third):
            assert len(client.tasks) == 5
            check_cluster_is_consistent(client)


@exhaustive
def test_an_mpi_world_does_not_grow(start: Start) -> None:
    pytest.importorskip("mpi4py", reason="needs the extra mpi")
    cluster = start(2, launcher="mpi")
    with pytest.raises(
        FailedPreconditionError, match=r"cannot grow: an MPI world .* --launcher mpi --workers 3\)"
    ):
        cluster.grow()
    with pytest.raises(
        FailedPreconditionError, match="cannot shrink: an MPI world can neither add nor remove processes"
    ):
        cluster.shrink()
    with pytest.raises(NbdistError, match="an MPI world can neither add nor remove processes"):
        ScaleUp(cluster, cluster._supervisor, plan_more(cluster.tasks, 1, {}, TWO_CORES, ROOM)).wait()
    check_cluster_is_consistent(cluster)
