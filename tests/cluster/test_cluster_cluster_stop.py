"""Stopping and leaving a cluster that another process uses, or that has a frozen cluster process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psutil
import pytest
from freezing import freeze
from tiers import matrix
from waiting import until

import nbdist as nb
from nbdist.cluster.adopt import end
from nbdist.cluster.cluster import Cluster, set_current
from nbdist.cluster.folder import clusters_folder, living
from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NotFoundError, TaskDiedError
from nbdist.graph.ops.accumulators import ConditionalAccumulator
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.run.stop import stop_cluster
from nbdist.ui.magics import DistributedMagics

pytestmark = pytest.mark.engines
Start = Callable[..., Cluster]

OTHER = """
import json, sys
import nbdist as nb
cluster = nb.Cluster.attach(sys.argv[1])
for line in sys.stdin:
    try:
        exec(line)
        print(json.dumps(""), flush=True)
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
"""


@contextmanager
def other_process(cluster: Cluster) -> Iterator[Callable[[str], str]]:
    """Run another process that is attached to a cluster; it executes lines and returns their errors."""
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(sys.path),
        "JPY_SESSION_NAME": "/home/ann/other.ipynb",
    }
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, cluster.id],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None

        def run(line: str) -> str:
            process.stdin.write(line + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return str(json.loads(process.stdout.readline()))  # type: ignore[union-attr]

        try:
            yield run
        finally:
            process.kill()


def busy(cluster: Cluster, run: str) -> Any:
    """Mark a task as busy with a run, as other processes see it."""
    path = cluster.folder / "busy" / str(cluster.tasks[0].pid)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(run)
    return path


def test_another_process_needs_force_to_end_a_run(start: Start) -> None:
    cluster = start(workers=1)
    path = busy(cluster, "20261122-digits")
    with other_process(cluster) as run:
        error = run("cluster.stop()")
        assert error.startswith("FailedPreconditionError: ")
        assert f"cluster {cluster.id} was started from process {os.getpid()}" in error
        assert "run 20261122-digits is under way" in error
        assert "%cluster stop --force" in error
        assert cluster.run("6 * 7") == [42]
        path.unlink()
        assert run("cluster.detach()") == ""
        assert "was stopped or closed here" in run("cluster.run('1')")
        assert run("cluster = nb.Cluster.attach(sys.argv[1])") == ""
        busy(cluster, "20261122-digits")
        assert run("cluster.stop(force=True)") == ""
    until(lambda: cluster.controller_died() is not None)
    assert "it was stopped from another notebook other.ipynb (pid " in str(cluster.controller_died())
    with pytest.raises(FailedPreconditionError, match=r"was stopped from another notebook.*%cluster start"):
        cluster.restart("worker:0")
    with pytest.raises(FailedPreconditionError, match=r"was stopped from another notebook.*%cluster start"):
        start_run("n = 1", Options(), cluster=cluster)


def test_the_owner_and_an_idle_cluster_need_no_force(start: Start) -> None:
    cluster = start(workers=1)
    busy(cluster, "20261122-digits")
    cluster.active_runs.add("20261122-digits")
    with pytest.raises(FailedPreconditionError, match="is followed here: wait for it or stop it first"):
        cluster.detach()
    stop_cluster(cluster)
    assert cluster.id not in living()
    set_current(None)
    with pytest.raises(NotFoundError, match="this process has no cluster"):
        stop_cluster()


@pytest.mark.parametrize("way", matrix(["here", "panel"], rest=["attached"]))
def test_a_frozen_cluster_process_is_stopped(start: Start, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start(workers=1)
    pids = [*(info.pid for info in cluster.tasks), psutil.Process(cluster.tasks[0].pid).ppid()]
    attached = Cluster.attach(cluster.id) if way == "attached" else cluster
    freeze(pids[-1])
    try:
        if way == "panel":
            end(clusters_folder() / cluster.id)
        else:
            attached.stop(timeout=0.5)
        until(lambda: all(not psutil.pid_exists(p) or is_zombie(p) for p in pids))
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert not (clusters_folder() / cluster.id).exists()


def is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_cluster_ends_when_nothing_uses_it_and_says_so(start: Start) -> None:
    cluster = start(workers=1, idle="1s")
    with nb.Graph().as_default() as graph:
        value, taken = nb.constant(1.0), ConditionalAccumulator(np.float32).take_grad(1)
    with nb.Session(cluster.target, graph=graph, operation_timeout=1.5) as session:
        with pytest.raises(DeadlineExceededError):  # longer than the cluster may be unused
            session.run(taken)
        assert cluster.run("6 * 7") == [42]
        ended = rf"cluster {cluster.id} has ended: stopped after 1 s without use .--idle.. Start another one"
        until(lambda: cluster.controller_died() is not None)
        with pytest.raises(FailedPreconditionError, match=ended):
            session.run(value)
        with pytest.raises(FailedPreconditionError, match=ended):
            nb.Session(cluster.target)
        with pytest.raises(FailedPreconditionError, match=ended):
            cluster.client  # noqa: B018
        with pytest.raises(FailedPreconditionError, match=ended):
            DistributedMagics()._status("")
        with pytest.raises(TaskDiedError, match=ended):
            cluster.run("1")
