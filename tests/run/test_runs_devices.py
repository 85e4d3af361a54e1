"""Where a training ran: from its replicas' reports to a line, a warning and run.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nbdist.cluster.cluster import Cluster
from nbdist.metrics.run_folder import read_run
from nbdist.metrics.store import RunStore
from nbdist.run.attach import attach_run
from nbdist.run.control import progress_message
from nbdist.run.devices import ReplicaDevice, device_warning, replica_devices, trained_on
from nbdist.run.options import Options
from nbdist.run.progress import ProgressTracker
from nbdist.run.start import start_run
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import Context

TASKS = ["/job:worker/task:0", "/job:worker/task:1"]
H100 = {"id": "GPU-8f3a91bc-0000", "model": "NVIDIA H100", "total": 80 << 30, "use": 87}


def said(devices: Sequence[str] = (), gpu: dict[str, Any] | None = None, cores: int = 8) -> dict[str, Any]:
    context = Context(devices=list(devices), gpu=gpu)
    return {**progress_message(context), "cores": cores}


def infos(*devices: str, hosts: Sequence[str] = ("a", "a")) -> list[TaskInfo]:
    return [TaskInfo("worker", i, i, hosts[i], 0, "", device, 0) for i, device in enumerate(devices)]


def found(infos: list[TaskInfo], *messages: dict[str, Any]) -> list[ReplicaDevice]:
    tally = ProgressTracker(2, synchronous=True)
    for replica, message in enumerate(messages):
        tally.update(replica, message, 1.0)
    return replica_devices(TASKS, infos, tally.standing(1.0, RunStore()).replicas)


def test_gpus_are_named_and_cpus_are_counted() -> None:
    both = found(infos("GPU:0", "CPU:0"), said(["GPU:0"], H100), said(["CPU:0"]))
    assert trained_on(both) == "worker 0: NVIDIA H100 GPU-8f3a… (GPU:0), 1 worker on CPU (8 cores)"
    assert device_warning(both) == ""
    assert both[0].known_gpu == {name: H100[name] for name in ("id", "model", "total")}
    assert [ReplicaDevice.from_config(one.to_config()) for one in both] == both


def test_cores_of_each_host_count_once() -> None:
    replicas = found(infos("CPU:0", "CPU:0", hosts="ab"), said(["CPU:0"]), said(["CPU:0"], cores=4))
    assert trained_on(replicas) == "2 workers on CPU (12 cores on 2 hosts)"


def test_a_gpu_that_was_not_used_is_a_warning_with_the_remedy() -> None:
    replicas = found(infos("GPU:0", "GPU:0"), said(["CPU:0"], H100), said(["GPU:0"]))
    assert trained_on(replicas) == "worker 1: GPU:0, 1 worker on CPU (8 cores)"
    assert device_warning(replicas) == (
        "worker 0 has GPU-8f3a… and trains on the CPU: the body or its strategy names a CPU. Name GPU:0 "
        "there, or no device; a cluster with --gpus none leaves the GPU to others"
    )


def test_what_has_not_trained_is_in_no_line() -> None:
    replicas = found(infos("GPU:0", "GPU:0"), said(), said())
    assert (trained_on(replicas), device_warning(replicas)) == ("", "")


def test_many_gpus_are_counted_by_model() -> None:
    many = [ReplicaDevice(f"/job:worker/task:{i}", ("GPU:0",), "GPU:0", model="H100") for i in range(16)]
    assert trained_on(many) == "16 workers on H100"


@pytest.mark.parametrize("entries", [None, {}, {"devices": "GPU:0"}, {"devices": [], "cores": "8"}])
def test_invalid_entries_of_a_file_are_left_out(entries: object) -> None:
    assert ReplicaDevice.from_config(entries) is None


BODY = """
import numpy as np
x, y = np.ones((40, 4), np.float32), np.zeros(40, int)
model = nb.nn.Sequential([nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
model.fit(nb.data.Dataset.from_arrays(x, y).batch(20), epochs=2)
"""


@pytest.mark.engines
@pytest.mark.parametrize("replication", ["between-graph", "in-graph"])
def test_a_run_knows_its_devices_and_its_record_too(cluster: Cluster, replication: str) -> None:
    options = Options(strategy="ps", synchronous=True, replication=replication)
    run = start_run(BODY, options, cluster=cluster).wait()
    workers = [info.name for info in cluster.tasks if info.job == "worker"]
    assert run.devices == {name: ["CPU:0"] for name in workers}
    assert run.trained_on.startswith(f"{len(workers)} workers on CPU (")
    assert f"trained on {run.trained_on}" in repr(run)
    assert [one["devices"] for one in read_run(run.id).devices] == [["CPU:0"]] * len(workers)
    assert attach_run(run.id).trained_on == run.trained_on
