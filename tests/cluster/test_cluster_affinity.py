"""Cores near a GPU: the division, with fakes of NVML and of sysfs, and what reaches a worker."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.cluster import affinity
from nbdist.cluster.affinity import (
    bind_cores,
    bind_this_process,
    cores_near,
    describe_binding,
    format_cores,
    parse_cores,
    siblings_of,
    worker_cores,
)
from nbdist.cluster.resize import plan_more
from nbdist.cluster.resources import HERE, HostResources, plan_placed, plan_tasks, resources_of
from nbdist.cluster.supervisor.hosts import Hosts, RemoteHost
from nbdist.runtime.task import TaskInfo

SETS = st.frozensets(st.integers(0, 15))


@given(st.lists(st.none() | SETS, max_size=6), SETS, st.sampled_from([1, 2]))
def test_each_worker_has_a_fair_part_of_its_near_and_allowed_cores(
    near: list[frozenset[int] | None], allowed: frozenset[int], threads: int
) -> None:
    bound = bind_cores(near, allowed, lambda core: frozenset([core, core ^ (threads - 1)]))
    for own, cores in zip(near, bound, strict=True):
        usable = (own or frozenset()) & allowed
        if not usable or usable == allowed:
            assert cores == ()
            continue
        assert cores
        assert set(cores) <= usable
        beside = [c for o, c in zip(near, bound, strict=True) if (o or frozenset()) & allowed == usable]
        assert set().union(*beside) == usable
        physical = {core // threads for core in usable}
        shares = [{core // threads for core in other} for other in beside]
        if len(physical) >= len(beside):
            assert sum(map(len, shares)) == len(physical)  # each core has one owner
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
        else:
            assert all(share == physical for share in shares)


@given(SETS)
def test_lists_of_cores(cores: frozenset[int]) -> None:
    assert parse_cores(format_cores(cores)) == cores


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """Two cards on two NUMA nodes of four cores; the second has a MIG slice."""

    NVMLError = NVMLError
    CARDS = ("GPU-0", "GPU-1")
    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda number: number)
    nvmlDeviceGetName = staticmethod(lambda card: "A100")
    nvmlDeviceGetCpuAffinity = staticmethod(lambda card, words: [0xF << 4 * card] + [0] * (words - 1))
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle = staticmethod(lambda device: 1)
    nvmlInit = nvmlShutdown = staticmethod(lambda: None)

    @staticmethod
    def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
        if uuid == "MIG-2":
            return 20
        if uuid not in FakeNvml.CARDS:
            raise NVMLError("Not Found")
        return FakeNvml.CARDS.index(uuid)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(affinity, "allowed_cores", lambda: frozenset(range(8)))
    monkeypatch.setattr(affinity, "siblings_of", lambda core: frozenset([core]))


@pytest.mark.usefixtures("nvml")
def test_the_cores_near_a_gpu_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = frozenset(range(4)), frozenset(range(4, 8))
    assert cores_near(["GPU-1", "GPU-0", "MIG-2", "GPU-"]) == {"GPU-1": high, "GPU-0": low, "MIG-2": high}
    assert cores_near(["1"]) == {"1": high}
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetName", staticmethod(str))
    assert cores_near(["1"]) == {}, "CUDA numbers unlike cards from the fastest on"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert cores_near(["1"]) == {"1": high}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert cores_near(["GPU-0"]) == {}


@pytest.mark.usefixtures("nvml")
def test_workers_have_their_cores_from_the_start_and_added_ones_too() -> None:
    gpus = ("GPU-0", "GPU-1")
    plans = plan_tasks(3, 1, cores=16, gpus=gpus, bound=worker_cores(3, gpus))
    tasks = {f"{plan.job}:{plan.index}": plan.environment for plan in plans}
    assert describe_binding(tasks) == "cores near the GPUs: worker:0 0-1; worker:1 4-7; worker:2 2-3"
    assert [plan.threads for plan in plans] == [2, 4, 2, 4]
    infos = [TaskInfo("worker", i, i, "here", 7, "127.0.0.1:80", "GPU:0", i) for i in range(2)]
    here = {HERE: HostResources(16, gpus, worker_cores(3, gpus))}
    (more,) = plan_more(infos, 1, {}, here, {HERE: 3})
    assert (more.environment["NBDIST_CORES"], more.threads) == ("2-3", 2)
    assert [plan.threads for plan in plan_tasks(1, cores=16, threads=9, gpus=gpus, bound=[(0, 1)])] == [9]


@pytest.mark.usefixtures("nvml")
def test_workers_of_another_host_have_the_cores_that_it_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for core in range(8):
        (tmp_path / f"cpu{core}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}/topology/thread_siblings_list").write_text(f"{core & 5},{core & 5 | 2}\n")
    monkeypatch.setattr(affinity, "siblings_of", lambda core: siblings_of(core, tmp_path))
    gpus = ["GPU-0", "GPU-1"]
    report = {"name": "b", "cores": 8, "gpus": gpus, "versions": {}}
    report["topology"] = json.loads(json.dumps(affinity.describe_topology(gpus)))
    monkeypatch.setattr(affinity, "cores_near", None)  # this host's is not asked
    assert resources_of(report, "auto", 4).bound == [(0, 2), (4, 6), (1, 3), (5, 7)]
    assert resources_of(report, 1, 2).bound == [(0, 2), (1, 3)]
    assert resources_of(report, "none", 2).bound == [(), ()]
    # A process that comes from a lost host is bound to the cores of its new GPU.
    hosts = Hosts(SimpleNamespace(plan={"versions": {}, "hosts": ["a", "b"]}))  # type: ignore[arg-type]
    with socket.socket() as connection:
        hosts.by_name["b"] = RemoteHost("b", report, connection)
    plans = plan_placed(
        ("a", "b", "a"), 2, 0, 1, {"a": HostResources(8, ["GPU-7"]), "b": HostResources(8, gpus)}
    )
    moved, stayed, data = tasks = [plan.to_dict() for plan in plans]
    for task in (moved, data):
        assert hosts.relocate(tasks, task) == "its host a was lost: its process is on b now"
    assert (moved["environment"]["CUDA_VISIBLE_DEVICES"], moved["environment"]["NBDIST_CORES"]) == (
        "GPU-1",
        "4-7",
    )
    assert data["environment"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "NBDIST_CORES" not in data["environment"] | stayed["environment"]
    hosts.by_name["b"].report["gpus"], stayed["host"] = [], "c"
    with pytest.raises(LookupError, match="no other host with a GPU is left"):
        hosts.relocate(tasks, stayed)


def test_the_threads_of_a_physical_core_by_sysfs(tmp_path: Path) -> None:
    (tmp_path / "cpu3/topology").mkdir(parents=True)
    (tmp_path / "cpu3/topology/thread_siblings_list").write_text("3,67\n")
    assert siblings_of(3, tmp_path) == {3, 67}
    assert siblings_of(4, tmp_path) == {4}


def test_a_process_is_bound_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: asked.append(cores))
    monkeypatch.setattr(affinity, "allowed_cores", lambda: frozenset([0, 1, 2]))
    bind_this_process("1-5")
    assert asked == [{1, 2}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2}, raising=False)
    assert affinity.bound_cores(1) == "0,2"
