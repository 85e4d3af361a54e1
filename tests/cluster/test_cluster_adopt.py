"""Clusters without a client: the orphan timeout, adoption by a notebook, and the clean-up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from nbdist.cluster import adopt as adoption
from nbdist.cluster.adopt import (
    AbandonedCluster,
    abandoned_clusters,
    adopt,
    choose,
    start_or_adopt,
    why_not,
)
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.description import ClusterDescription, read_description
from nbdist.cluster.folder import (
    busy_tasks,
    busy_with,
    clusters_folder,
    is_busy,
    is_process_alive,
    is_this_process,
    mark_busy,
    runs_on,
    this_process,
    unmark_busy,
)
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.cluster.supervisor.process import CHECK_SECONDS, OrphanTimeout
from nbdist.errors import InvalidArgumentError

TIMES = st.lists(st.tuples(st.floats(0, 30), st.booleans(), st.booleans()), max_size=20)


# Decisions, without processes.


@given(TIMES, st.floats(1, 20), st.floats(1, 60))
def test_a_cluster_without_clients_ends_after_its_idle_timeout(
    times: list[tuple[float, bool, bool]], idle: float, busy: float
) -> None:
    """Compared with a decision from the whole history."""
    timeout, now = OrphanTimeout(idle, busy), 0.0
    seen: list[tuple[float, bool, bool]] = []
    for passed, left, works in times:
        now += passed
        ends = timeout.expired(now, left, works)
        seen.append((now, left, works))
        alone = seen[max((i + 1 for i, (_, left, _) in enumerate(seen) if not left), default=0) :]
        quiet = alone[max((i + 1 for i, (_, _, works) in enumerate(alone) if works), default=0) :]
        since = (quiet or alone)[0][0] if alone else now
        assert ends == bool(alone and now >= since + (idle if quiet else busy))
        wait = timeout.next_check(now, left)
        assert (wait is None) == (not left)
        assert wait is None or 0 <= wait <= CHECK_SECONDS


def test_a_detached_cluster_never_ends_by_itself() -> None:
    timeout = OrphanTimeout(None, None)
    assert not timeout.expired(0.0, True, False)
    assert not timeout.expired(1e9, True, False)
    assert timeout.next_check(0.0, True) is None


def test_busy_tasks_are_marked_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_CLUSTER_FOLDER", str(tmp_path))
    monkeypatch.setenv("NBDIST_RANK", "3")
    with busy_with("r1"):
        mark_busy(tmp_path, 12, "r1")
        mark_busy(tmp_path, 4, "r2")
        assert busy_tasks(tmp_path) == {3: "r1", 4: "r2", 12: "r1"}
        assert runs_on(tmp_path) == ["r1", "r2"]
        assert is_busy(tmp_path)
        assert (tmp_path / "busy" / "3").stat().st_mode & 0o777 == 0o600
        unmark_busy(tmp_path, 4)
        unmark_busy(tmp_path, 12)
    assert not is_busy(tmp_path)
    monkeypatch.setenv("NBDIST_CLUSTER_FOLDER", str(tmp_path / "nowhere"))  # the cluster has ended
    with busy_with("r1"):
        assert not (tmp_path / "nowhere").exists()
    monkeypatch.delenv("NBDIST_CLUSTER_FOLDER")  # an engine of plain ipyparallel has no cluster folder
    with busy_with("r1"):
        assert not is_busy(tmp_path)


def test_a_later_process_with_the_same_pid_is_distinguished() -> None:
    me = this_process()
    assert is_this_process(me)
    assert is_process_alive(me)
    assert not is_process_alive({**me, "started": me["started"] - 5})
    assert is_process_alive({**me, "host": "elsewhere", "started": 1.0})  # unknown counts as alive
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert not is_process_alive({**me, "pid": done.pid})


SMALL = ClusterDescription(1.0, 2, 1, "local", (), asked=adoption.REQUESTED)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (None, ""),
        ({"workers": 2, "ps": 1}, ""),
        ({"ps": 1}, ""),
        ({"workers": 2}, "it has 1 ps and not 0"),
        ({"ps": 1, "threads": 3}, "its threads is None and not 3"),
        ({"ps": 1, "cluster_id": "b"}, "its id is not 'b'"),
        ({"ps": 1, "cluster_id": "a", "timeout": 3.0}, ""),
        ({"ps": 1, "orphan_timeout": 9.0}, "its orphan timeout is None and not 9.0"),
        ({"ps": 1, "idle": "30m"}, "its idle is None and not 1800.0"),
        ({"ps": 1, "save_before": "5m"}, ""),
        ({"ps": 1, "save_before": 0}, "its save before is 300.0 and not 0.0"),
        ({"ps": 1, "requeue": True}, "its requeue is False and not True"),
    ],
)
def test_a_cluster_fits_or_has_a_reason(wanted: dict[str, object] | None, why: str) -> None:
    assert why_not(AbandonedCluster("a", SMALL), wanted) == why


def test_a_cluster_with_a_run_is_adopted_with_any_shape() -> None:
    idle, working = AbandonedCluster("a", SMALL), AbandonedCluster("b", SMALL, ("r1",))
    other = AbandonedCluster("c", SMALL, ("r2",), same_versions=False)
    assert choose([idle, working], {"workers": 7}) is working
    assert choose([idle], {"workers": 2, "ps": 1}) is idle
    assert choose([idle, other], {"workers": 7}) is None
    assert choose([], None) is None
    assert why_not(other, None) == "it runs other versions than this process"


def test_orphan_timeout_is_a_number_above_zero() -> None:
    from nbdist.cluster.launch import start_cluster

    with pytest.raises(InvalidArgumentError, match="orphan_timeout is a number of seconds above 0, not 0"):
        start_cluster(orphan_timeout=0)


# With real clusters.

ELSEWHERE = """
import os, sys, time
from nbdist.cluster.launch import start_cluster
cluster = start_cluster(workers=1, report=None, orphan_timeout=float(sys.argv[1]))
if sys.argv[2]:
    from nbdist.run.options import Options
    from nbdist.run.start import start_run
    run = start_run(sys.argv[2], Options(), cluster=cluster)
    from nbdist.cluster.folder import runs_on
    while not runs_on(cluster.folder):
        time.sleep(0.01)
print(cluster.id, cluster.tasks[0].pid, flush=True)
if sys.argv[3] == "killed":
    os.kill(os.getpid(), 9)
"""
WAITS = "import os\nwhile not os.path.exists({gate!r}): pass"


@pytest.fixture
def start_and_leave(elsewhere: Callable[..., str]) -> Callable[..., tuple[str, int]]:
    """Start a cluster in a process that then ends; return the cluster's id and its worker's pid."""

    def start_one(patience: float, body: str = "", end: str = "killed", session: str = "") -> tuple[str, int]:
        name, pid = elsewhere(ELSEWHERE, str(patience), body, end, JPY_SESSION_NAME=session).split()
        return name, int(pid)

    return start_one


StartAndLeave = Callable[..., tuple[str, int]]


def nothing_left(name: str, pid: int) -> bool:
    segments = list(Path("/dev/shm").glob(f"nbdist-{name}*"))
    return not (psutil.pid_exists(pid) or segments or (clusters_folder() / name).exists())


@pytest.mark.engines
def test_a_busy_cluster_ends_after_its_timeout(start_and_leave: StartAndLeave, tmp_path: Path) -> None:
    name, pid = start_and_leave(0.5, WAITS.format(gate=str(tmp_path / "never")))
    until(lambda: nothing_left(name, pid))


@pytest.mark.engines
def test_an_observer_does_not_keep_a_cluster_alive(start_and_leave: StartAndLeave) -> None:
    """Like ipyparallel's panel in the Jupyter server of an open page."""
    name, pid = start_and_leave(3.0)
    watching = SupervisorClient.connect(clusters_folder() / name, observe=True)
    until(lambda: nothing_left(name, pid))
    watching.close()


@pytest.mark.engines
def test_a_run_continues_after_its_clients_end(start_and_leave: StartAndLeave, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    name, pid = start_and_leave(60.0, WAITS.format(gate=str(gate)), end="normal")
    cluster = Cluster.attach(name)
    assert len(runs_on(cluster.folder)) == 1
    gate.touch()
    until(lambda: not runs_on(cluster.folder))
    cluster.stop()
    until(lambda: nothing_left(name, pid))


@pytest.mark.engines
def test_a_notebook_adopts_its_abandoned_cluster(
    start_and_leave: StartAndLeave, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    name, _ = start_and_leave(60.0, WAITS.format(gate=str(gate)), session="mine.ipynb")
    lines: list[str] = []
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert abandoned_clusters() == []
    monkeypatch.setenv("JPY_SESSION_NAME", "other.ipynb")
    assert adopt(None, lines.append) is None
    assert not lines
    monkeypatch.setenv("JPY_SESSION_NAME", "mine.ipynb")
    cluster = start_or_adopt(report=lines.append, workers=2)
    try:
        assert cluster.id == name
        (run,) = runs_on(cluster.folder)
        assert lines == [
            f"cluster {name} from before the kernel's restart is running and is used again",
            "it has 1 workers and not 2; %cluster stop ends the cluster and its runs",
            f"run {run} is under way on it; to follow it: nb.attach('{run}')",
        ]
        assert is_this_process(read_description(cluster.folder).owner)
        assert abandoned_clusters() == []  # the owner lives
        gate.touch()
    finally:
        cluster.stop()


@pytest.mark.engines
def test_a_cluster_that_does_not_fit_is_ended(
    start_and_leave: StartAndLeave, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, pid = start_and_leave(60.0, session="mine.ipynb")
    monkeypatch.setenv("JPY_SESSION_NAME", "mine.ipynb")
    lines: list[str] = []
    cluster = start_or_adopt(report=lines.append, workers=1, threads=1)
    try:
        assert cluster.id != name
        assert lines[0] == (
            f"cluster {name}, which this notebook left behind, was ended: its threads is None and not 1"
        )
        until(lambda: nothing_left(name, pid))
    finally:
        cluster.stop()


def test_a_python_is_named_only_for_the_host_of_a_tunnel() -> None:
    with pytest.raises(InvalidArgumentError, match="goes with a tunnel"):
        Cluster.attach(python="/opt/bin/python")


def test_an_option_that_is_no_text_is_refused_before_ssh_starts() -> None:
    with pytest.raises(InvalidArgumentError, match=r"hosts=.* does not go through a tunnel"):
        start_cluster(tunnel="login1", launcher="ssh", hosts=object())
