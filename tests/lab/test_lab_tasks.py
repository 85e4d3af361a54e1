"""Rows of tasks, from real processes in cluster folders of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psutil
import pytest
from fake_pynvml import FakeNvml
from freezing import freeze
from lab_clusters import FakeSupervisor, a_cluster, a_task
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import NotFoundError
from nbdist.lab.readers.clusters import Clusters
from nbdist.lab.readers.supervisor import parse_usage
from nbdist.lab.readers.tasks import NOT_REPORTED, ClusterTasks, usage_there
from nbdist.metrics.gpu_usage import load_nvml
from nbdist.metrics.process_usage import (
    MEGABYTE,
    WINDOW_SECONDS,
    Load,
    Measured,
    ProcessUsage,
    measure,
    steady,
)
from nbdist.runtime.task import TaskInfo

KEYS = {
    "cluster", "rank", "name", "job", "index", "host", "pid", "device", "state", "cpu", "memory", "gpu",
    "run", "step", "steps_per_second", "straggler", "note",
}  # fmt: skip


class FakeRuns:
    """Has one run, active on any cluster."""

    def __init__(self, replicas: dict[int, dict[str, Any]] | None = None, driven: bool = False) -> None:
        self.by_rank, self.driven = replicas or {}, driven

    def on_cluster(self, cluster_id: str) -> list[str]:
        return ["a_run"] if self.driven else []

    def tasks_of(self, run_id: str) -> dict[int, dict[str, Any]]:
        if run_id != "a_run":
            raise NotFoundError(f"no run {run_id!r}")
        return self.by_rank


@pytest.fixture(autouse=True)
def home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if "engines" not in request.keywords:
        folder = tmp_path_factory.mktemp("h")  # a short path: a socket's has at most 107 bytes
        folder.chmod(0o700)
        monkeypatch.setenv("NBDIST_HOME", str(folder / "home"))
        monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    clusters = Clusters()
    yield clusters
    clusters.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Start a waiting process, and wait until Python's start has ended and its memory is stable."""
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def test_a_row(clusters: Clusters, sleeper: subprocess.Popen[bytes]) -> None:
    replicas = {0: {"state": "running", "step": 5, "steps_per_second": 2.0, "straggler": 1.4}}
    with a_cluster("mine", [a_task(0, sleeper.pid), a_task(1, sleeper.pid)]) as folder:
        (folder / "busy").mkdir()
        (folder / "busy" / "0").write_text("a_run")
        clusters.poll()
        rows = ClusterTasks(FakeRuns(replicas), clusters).poll("mine")
    assert rows == json.loads(json.dumps(rows))
    row, other = rows
    assert row.keys() == other.keys() == KEYS
    assert (row["cluster"], row["rank"], row["name"]) == ("mine", 0, "/job:worker/task:0")
    assert (row["job"], row["index"], row["pid"], row["device"]) == ("worker", 0, sleeper.pid, "CPU:0")
    assert (row["state"], row["run"], row["step"]) == ("running", "a_run", 5)
    assert (row["steps_per_second"], row["straggler"]) == (2.0, 1.4)
    assert row["memory"] % MEGABYTE == 0
    assert row["memory"] > 0
    assert (row["cpu"], row["gpu"], row["note"]) == (None, None, None)
    assert (other["run"], other["step"]) == (None, None)


def test_an_in_graph_run_is_known_from_its_folder(
    clusters: Clusters, sleeper: subprocess.Popen[bytes]
) -> None:
    runs = FakeRuns({1: {"state": "paused", "step": 5}}, driven=True)
    tasks = [a_task(0, sleeper.pid, "ps"), a_task(1, sleeper.pid, index=0)]
    with a_cluster("mine", tasks):
        clusters.poll()
        ps, worker = ClusterTasks(runs, clusters).poll("mine")
        assert (ps["state"], ps["run"]) == ("idle", None)
        assert (worker["state"], worker["run"], worker["step"]) == ("paused", "a_run", 5)
        knowing = Clusters(runs.on_cluster)
        assert knowing.poll()[0]["runs"] == ["a_run"]
        knowing.close()


def test_rows_of_an_idle_cluster_do_not_change(
    clusters: Clusters, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nbdist.metrics.process_usage.WINDOW_SECONDS", float("inf")
    )  # after it, a row has its CPU
    with a_cluster("mine", [a_task(0, sleeper.pid)]):
        tasks = ClusterTasks(FakeRuns(), clusters)
        clusters.poll()
        assert tasks.poll("mine")[0]["state"] == "idle"
        assert tasks.poll("mine") == tasks.poll("mine")


def test_no_such_cluster_has_no_tasks(clusters: Clusters) -> None:
    with a_cluster("starting"), a_cluster("torn", []) as folder:
        (folder / "cluster.json").write_text("{")
        clusters.poll()
        tasks = ClusterTasks(FakeRuns(), clusters)
        assert [tasks.poll(name) for name in ("starting", "torn", "none", "../x", "ipp:a:b")] == [[]] * 5


def test_tasks_without_a_supervisor(sleeper: subprocess.Popen[bytes]) -> None:
    tasks = ClusterTasks(FakeRuns())
    assert tasks.poll("mine") == []
    with a_cluster("mine", [a_task(0, sleeper.pid)]):
        assert [row["state"] for row in tasks.poll("mine")] == ["idle"]
    assert [row["state"] for row in tasks.poll("mine")] == [
        "dead"
    ]  # the lock is free: its supervisor has ended


def test_a_frozen_and_a_dead_task(clusters: Clusters, sleeper: subprocess.Popen[bytes]) -> None:
    with a_cluster("mine", [a_task(0, sleeper.pid)]):
        clusters.poll()
        tasks = ClusterTasks(FakeRuns(), clusters)
        freeze(sleeper.pid)
        assert tasks.poll("mine")[0]["state"] == "frozen"
        sleeper.send_signal(signal.SIGCONT)
        assert tasks.poll("mine")[0]["state"] == "idle"
        sleeper.kill()
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        (row,) = tasks.poll("mine")
        assert (row["state"], row["cpu"], row["memory"]) == ("dead", None, None)
        assert row["note"] == "its process has ended"
        sleeper.wait()
        assert tasks.poll("mine") == [row]
        clusters.poll()
        assert "the cluster process does not answer" in tasks.poll("mine")[0]["note"]


def test_the_cause_of_death_is_the_note(clusters: Clusters, sleeper: subprocess.Popen[bytes]) -> None:
    with a_cluster("mine", [a_task(0, sleeper.pid)]) as folder:
        supervisor = FakeSupervisor(folder)
        try:
            supervisor.answer["exits"] = {"0": {"pid": sleeper.pid, "code": 3, "signal": None, "log": "no\n"}}
            tasks = ClusterTasks(FakeRuns(), clusters)
            (row,) = until(lambda: clusters.poll() and [row for row in tasks.poll("mine") if row["note"]])
        finally:
            supervisor.close()
    assert row["state"] == "dead"
    assert row["note"] == "exited with code 3; its log ends with: no"


def test_a_reused_pid(clusters: Clusters, sleeper: subprocess.Popen[bytes]) -> None:
    with a_cluster("mine", [a_task(0, sleeper.pid)]) as folder:
        os.utime(folder / "cluster.json", (1000.0, 1000.0))
        clusters.poll()
        assert ClusterTasks(FakeRuns(), clusters).poll("mine")[0]["state"] == "dead"
        supervisor = FakeSupervisor(folder)
        try:  # the supervisor knows its children, with any clock
            supervisor.answer["pids"] = {"0": sleeper.pid}
            with closing(Clusters()) as again:
                tasks = ClusterTasks(FakeRuns(), again)
                until(lambda: again.poll() and tasks.poll("mine")[0]["state"] == "idle")
        finally:
            supervisor.close()


def test_the_usage_of_another_host_is_that_of_the_same_process() -> None:
    figures = {"cpu": 70, "memory": MEGABYTE, "frozen": True, "gpu": {"use": 9, "history": [8, "?", 9]}}
    reply = {"usage": [{"name": "a", "age": 0.1, "tasks": {"7": figures, "-1": {}, "x": []}, "machine": 3}]}
    there = parse_usage(reply, 1.0)
    task = TaskInfo("worker", 0, 0, "0123", 7, "", "GPU:0", 1, node="a")
    usage = usage_there(task, there["a"])
    assert (usage.load, usage.reported) == (Load(70, MEGABYTE, frozen=True), True)
    assert usage.gpu is not None
    assert (usage.gpu["use"], usage.gpu["memory"], usage.gpu["history"]) == (9, None, [8, 9])
    replaced = TaskInfo("worker", 0, 0, "0123", 8, "", "GPU:0", 1, node="a")
    assert not usage_there(replaced, there["a"]).reported
    assert not usage_there(task, None).reported


def test_another_host_has_no_figures(clusters: Clusters) -> None:
    with a_cluster("mine", [a_task(0, os.getpid(), host="0123456789abcdef")]):
        clusters.poll()
        (row,) = ClusterTasks(FakeRuns(), clusters).poll("mine")
    assert (row["host"], row["state"]) == ("another host (01234567)", "idle")
    assert (row["cpu"], row["memory"], row["note"]) == (None, None, NOT_REPORTED)


def test_tasks_of_a_sweep_have_no_progress(clusters: Clusters, sleeper: subprocess.Popen[bytes]) -> None:
    with a_cluster("mine", [a_task(0, sleeper.pid)]) as folder:
        (folder / "busy").mkdir()
        (folder / "busy" / "0").write_text("a_sweep")
        clusters.poll()
        (row,) = ClusterTasks(FakeRuns(), clusters).poll("mine")
    assert (row["state"], row["run"], row["step"]) == ("busy", "a_sweep", None)


def test_gpus_of_tasks(
    clusters: Clusters, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(processes=[{}, {sleeper.pid: 64 * MEGABYTE}])
    load_nvml.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", fake.module())
    tasks = [a_task(0, sleeper.pid, device="GPU:0"), a_task(1, os.getpid(), "ps", index=0)]
    with a_cluster("mine", tasks, gpus=["1"]):
        clusters.poll()
        rows = ClusterTasks(FakeRuns(), clusters)
        used: dict[str, Any] = {
            "use": 90,
            "memory": 64 * MEGABYTE,
            "total": 80 << 30,
            "power": 610,
            "temperature": 67,
        }
        used["history"] = [90]
        assert [row["gpu"] for row in rows.poll("mine")] == [used, None]
        fake.fails["nvmlDeviceGetMemoryInfo"] = OSError("lost")
        failed, ps = rows.poll("mine")
        assert (failed["gpu"], failed["note"]) == (None, "its GPU cannot be measured: NVML failed: lost")
        assert ps["note"] is None
    load_nvml.cache_clear()


def test_cpu_usage_is_averaged() -> None:
    now, used = 0.0, 0.0
    measured: Measured | None = None

    def look(seconds: float, percent: float) -> int | None:
        nonlocal now, used, measured
        now += seconds
        used += seconds * percent / 100
        measured = measure(measured, ProcessUsage("sleeping", used, MEGABYTE), now)
        return measured.load.cpu

    assert look(0.0, 0.0) is None
    assert look(WINDOW_SECONDS / 2, 80.0) is None  # one clock tick would be visible
    assert look(WINDOW_SECONDS / 2, 20.0) == 50
    assert look(WINDOW_SECONDS / 2, 99.0) == 50
    assert look(WINDOW_SECONDS, 0.0) == 33
    assert look(WINDOW_SECONDS, 0.3) == 0
    assert look(WINDOW_SECONDS, 1.2) == 0  # like an idle engine
    assert look(WINDOW_SECONDS, 300.0) == 300


def test_small_changes_of_figures_are_not_sent() -> None:
    assert [steady(None, now) for now in (0.4, 1.6, 99.5)] == [0, 2, 100]
    assert [steady(98, now) for now in (97.0, 99.0, 99.4, 99.6)] == [98, 98, 98, 100]
    assert steady(10 * MEGABYTE, 11.4 * MEGABYTE, MEGABYTE) == 10 * MEGABYTE


@pytest.mark.engines
def test_a_real_cluster(start: Callable[..., Cluster], clusters: Clusters) -> None:
    cluster = start(workers=2, ps=1)

    def seen() -> dict[str, Any]:
        return next(item for item in clusters.poll() if item["id"] == cluster.id)

    item = seen()
    assert (item["state"], item["workers"], item["ps"], item["engines"]) == ("running", 2, 1, 3)
    assert item["owner"]["alive"]
    assert item["owner"]["pid"] == os.getpid()
    tasks = ClusterTasks(FakeRuns(), clusters)
    rows = tasks.poll(cluster.id)
    assert [row["name"] for row in rows] == [info.name for info in cluster.tasks]
    assert {row["state"] for row in rows} == {"idle"}
    assert seen()["dead"] == []

    freeze(cluster.tasks[0].pid)
    assert tasks.poll(cluster.id)[0]["state"] == "frozen"
    os.kill(cluster.tasks[0].pid, signal.SIGCONT)

    cluster.signal(1, signal.SIGKILL)
    assert until(lambda: seen()["dead"]) == [
        "worker:1"
    ]  # from its process, if the supervisor's report is late
    until(lambda: seen() and tasks.poll(cluster.id)[1]["note"].startswith("killed by SIGKILL"))
    row = tasks.poll(cluster.id)[1]
    assert row["state"] == "dead"

    cluster.restart("worker:1", report=lambda line: None)
    until(lambda: seen()["dead"] == [] and tasks.poll(cluster.id)[1]["pid"] == cluster.tasks[1].pid)
    assert cluster.tasks[1].pid != row["pid"]

    cluster.grow(1, report=lambda line: None)
    grown = until(lambda: seen()["workers"] == 3 and seen())
    assert (grown["workers"], grown["ps"], grown["engines"], grown["dead"]) == (3, 1, 4, [])
    assert [row["name"] for row in tasks.poll(cluster.id)] == [info.name for info in cluster.tasks]

    supervisor = psutil.Process(cluster.tasks[2].pid).parent()
    assert supervisor is not None
    freeze(supervisor.pid)
    try:
        os.kill(cluster.tasks[2].pid, signal.SIGKILL)
        with closing(Clusters()) as later:  # not yet connected to this supervisor
            until(lambda: [one for one in later.poll() if one["id"] == cluster.id and one["dead"]])
            row = ClusterTasks(FakeRuns(), later).poll(cluster.id)[2]
        assert (row["state"], "the cluster process does not answer" in row["note"]) == ("dead", True)
    finally:
        supervisor.resume()

    cluster.stop()
    assert [one for one in clusters.poll() if one["id"] == cluster.id] == []
    assert tasks.poll(cluster.id) == []
