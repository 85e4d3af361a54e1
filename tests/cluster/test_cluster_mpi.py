"""Engines in one MPI world: groups of kind "mpi", and the world after the death of a rank."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from tiers import exhaustive
from waiting import PATIENCE, limit, until

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.launchers import mpi
from nbdist.errors import FailedPreconditionError, MissingExtra, TaskDiedError, UnavailableError, WorkerError
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.wire.collective.mpi import world as mpi_world
from nbdist.wire.collective.mpi.world import MpiWorld

pytestmark = pytest.mark.engines


def sent_by_code(function: Any) -> Any:
    """Send a function by its code, like one of a notebook, not by the name of this module."""
    function.__module__ = "__main__"
    return function


@sent_by_code
def place() -> tuple[int, int, int, str]:
    import os

    from mpi4py import MPI

    from nbdist.runtime.task import current

    world = MPI.COMM_WORLD
    return current().rank, world.rank, world.size, os.environ["NBDIST_RANK"]


@sent_by_code
def in_group(ranks: tuple[int, ...], run: str, here: str, work: str) -> Any:
    """Form a group of some ranks, exchange their endpoint infos through a folder, and make calls."""
    import json
    import os
    import time

    import numpy as np

    from nbdist.runtime.task import current
    from nbdist.wire.collective.base import Member
    from nbdist.wire.collective.registry import form

    task = current()
    rank = ranks.index(task.rank)

    def exchange(info: dict[str, Any]) -> list[dict[str, Any]]:
        with open(f"{here}/{run}.{rank}.draft", "w") as file:
            json.dump(info, file)
        os.rename(f"{here}/{run}.{rank}.draft", f"{here}/{run}.{rank}")
        paths = [f"{here}/{run}.{other}" for other in range(len(ranks))]
        while not all(map(os.path.exists, paths)):
            time.sleep(0.001)
        return [json.load(open(path)) for path in paths]

    infos = [task.roster[one] for one in ranks]
    names, hosts = tuple(info.name for info in infos), tuple(info.host for info in infos)
    with form(
        Member(rank, hosts, names, int.from_bytes(run.encode()[:7], "big"), "none"), exchange, "mpi"
    ) as group:
        if work == "add":
            small = group.all_reduce(task.rank + 1, "sum")
            large = group.all_reduce(np.full(300_000, task.rank + 1.0, "f4"), "sum")
            assert (large == small).all()
            return group.kind, float(small)
        group.barrier()
        open(f"{here}/waits.{rank}", "w").close()
        while rank == len(ranks) - 1:
            pass
        return group.barrier()


@sent_by_code
def loaded() -> bool:
    import sys

    return any(name.split(".")[0] == "mpi4py" for name in sys.modules)


def sums(cluster: Cluster, ranks: tuple[int, ...], run: str, here: Path) -> Any:
    return cluster.submit(in_group, ranks, run, str(here), "add", on=ranks).results(PATIENCE)


def processes_below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.fixture
def world(own_home: Path) -> Iterator[Cluster]:
    """A world that a test may break."""
    cluster = start_cluster(3, launcher="mpi", report=None)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def kept_world(own_home: Path) -> Iterator[Cluster]:
    """A world for tests that leave it as it is."""
    cluster = start_cluster(3, launcher="mpi", report=None)
    yield cluster
    cluster.stop()


def test_engines_are_ranks_of_a_world_and_leave_nothing(own_home: Path, tmp_path: Path) -> None:
    cluster = start_cluster(2, 1, launcher="mpi", report=None)
    try:
        assert cluster.run(place) == [(rank, rank, 3, str(rank)) for rank in range(3)]
        assert sums(cluster, (0, 1, 2), "all", tmp_path) == [("mpi", 6.0)] * 3
        assert sums(cluster, (0, 1), "some", tmp_path) == [("mpi", 3.0)] * 2
        supervisor = psutil.Process(cluster.tasks[0].pid).ppid()
        processes = processes_below(supervisor)
        assert len(processes) == 4  # the controller and the engines: no mpiexec
        assert all(cluster.keys.secret not in " ".join(one.cmdline()) for one in processes)
        assert not mapped_names(cluster.tasks[0].pid)
    finally:
        cluster.stop()
    _, left = psutil.wait_procs(processes, limit(5))
    assert not left


def mapped_names(pid: int) -> list[str]:
    """Return the names of MPI's shared memory, which would stay if all processes were killed."""
    names = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    return [name for name in names if mpi_world.is_segment(name, pid) and Path(name).exists()]


@exhaustive
def test_a_killed_engine_is_reported_and_the_others_continue(world: Cluster, tmp_path: Path) -> None:
    calls = world.submit(in_group, (0, 1, 2), "killed", str(tmp_path), "wait")
    until(lambda: len(list(tmp_path.glob("waits.*"))) == 3)
    os.kill(world.tasks[2].pid, signal.SIGKILL)
    assert calls.wait(limit(4))
    assert isinstance(calls.outcome(2), TaskDiedError)
    assert "SIGKILL" in str(calls.outcome(2))
    for rank in (0, 1):
        assert isinstance(calls.outcome(rank), (TaskDiedError, UnavailableError)), calls.outcome(rank)
        assert "rank 2 (/job:worker/task:2)" in str(calls.outcome(rank))
    assert [info.rank for info in world.dead()] == [2]
    assert sums(world, (0, 1), "survivors", tmp_path) == [("mpi", 3.0)] * 2


def test_an_interrupt_ends_a_group_and_the_next_one_works(kept_world: Cluster, tmp_path: Path) -> None:
    world = kept_world
    calls = world.submit(in_group, (0, 1, 2), "interrupted", str(tmp_path), "wait")
    until(lambda: len(list(tmp_path.glob("waits.*"))) == 3)
    for rank in (0, 2):
        world.signal(rank, signal.SIGINT)
    assert calls.wait(limit(4))
    assert [type(calls.outcome(rank)).__name__ for rank in (0, 2)] == ["WorkerError"] * 2
    assert all("KeyboardInterrupt" in str(calls.outcome(rank)) for rank in (0, 2))
    assert "interrupted" in str(calls.outcome(1)) or "KeyboardInterrupt" in str(calls.outcome(1))
    assert sums(world, (0, 1, 2), "next", tmp_path) == [("mpi", 6.0)] * 3


def test_a_run_selects_it_by_name(kept_world: Cluster) -> None:
    body = """
import numpy as np
x = np.random.default_rng(0).random((90, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(1)])
model.compile("sgd", "mse")
model.fit(nb.data.Dataset.from_arrays(x, x[:, :1]).batch(30), epochs=2)
ends = nb.collective.all_gather(np.concatenate([w.ravel() for w in model.get_weights()]))
"""
    for strategy in ("mirrored", "multi_worker"):
        ends = {}
        for kind in ("mpi", "shm"):
            options = Options(seed=5, strategy=strategy, collective=kind, fetch=("ends",))
            ends[kind] = start_run(body, options, cluster=kept_world).wait().results["ends"]
        assert (ends["mpi"] == ends["mpi"][0]).all()
        np.testing.assert_array_equal(ends["mpi"], ends["shm"])


def test_plain_engines_never_load_it_and_say_how_to_get_it(cluster: Cluster) -> None:
    with pytest.raises(WorkerError, match=r"FailedPreconditionError: .*%cluster start --launcher mpi"):
        start_run(
            "nb.collective.barrier()", Options(strategy="mirrored", collective="mpi"), cluster=cluster
        ).wait()
    assert cluster.run(loaded) == [False] * 4


def test_missing_software_is_reported_before_the_start(own_home: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(mpi, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "nbdist\[mpi\]"'):
        start_cluster(1, launcher="mpi", report=None)


def test_sockets_that_other_users_reach_are_refused() -> None:
    world = MpiWorld(None, SimpleNamespace(size=2), "w")
    before = mpi.reachable()
    mpi.check_size(world, 2)
    mpi.check_closed(())
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0nbdist-test-{os.getpid()}")
        opened = mpi.reachable() - before
        number = port.getsockname()[1]
        with pytest.raises(FailedPreconditionError, match=rf"listens on 127\.0\.0\.1:{number}, the abstract"):
            mpi.check_closed(opened)
    with pytest.raises(FailedPreconditionError, match="a world of 1 instead of 2 ranks"):
        mpi.check_size(MpiWorld(None, SimpleNamespace(size=1), "w"), 2)


@exhaustive
def test_plain_ipyparallel_can_have_a_world_too(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPP_ENABLE_CURVE", "1")
    import ipyparallel
    from traitlets.config import Config

    from nbdist.cluster.ipyparallel_launcher import LocalTaskLauncher

    @sent_by_code
    def add_ranks() -> tuple[int, int]:
        from mpi4py import MPI

        return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)

    cluster = ipyparallel.Cluster(
        n=2, engines=LocalTaskLauncher, profile_dir=str(own_home / "profile"), delay=0, log_level=40,
        controller_args=["--HeartMonitor.period=200"], config=Config({"LocalTaskLauncher": {"mpi": True}}),
    )  # fmt: skip
    client = cluster.start_and_connect_sync()
    try:
        assert client[:].apply_sync(add_ranks) == [(0, 1), (1, 1)]
    finally:
        client.close()
        cluster.stop_cluster_sync()


def test_a_run_continues_in_the_world_after_a_death(world: Cluster) -> None:
    body = """
import os, signal
import numpy as np
x = np.random.default_rng(0).random((90, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(1)])
model.compile("sgd", "mse")
class Die(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        if nb.task.index == 1 and epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
model.fit(nb.data.Dataset.from_arrays(x, x[:, :1]).batch(30), epochs=4, callbacks=[Die()])
ends = nb.collective.all_gather(np.concatenate([w.ravel() for w in model.get_weights()]))
"""
    options = Options(seed=5, strategy="multi_worker", collective="mpi")
    run = start_run(body, options, cluster=world).wait()
    assert run.global_step == 12
    assert len(run.results["ends"]) == 2
    assert (run.results["ends"] == run.results["ends"][0]).all()
