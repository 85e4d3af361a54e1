"""Where a training ran: from its replicas' reports to a line, a warning and run.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster.cluster import Cluster
from nbdist.errors import InvalidArgumentError
from nbdist.metrics.run_folder import read_run
from nbdist.metrics.store import RunStore, columns_from_logs
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
    if replication == "between-graph":  # the towers of an in-graph run share the client's reading
        found = run.input_pipeline()
        assert [stage.name for stage in found.stages] == ["from_arrays", "batch(20)"]
        assert found.elements == run.input_pipeline(1).elements == 4
        assert attach_run(run.id).input_pipeline().elements == 4
        with pytest.raises(InvalidArgumentError, match="replica is 9"):
            run.input_pipeline(9)


TESTS = str(Path(__file__).parents[1])
WITH_GPU = f"""
import dataclasses, os, sys
sys.path.append({TESTS!r})
from fake_pynvml import FakeNvml
from nbdist.metrics import gpu_usage
from nbdist.runtime import task as tasks
before = tasks.current().info, os.environ.get("CUDA_VISIBLE_DEVICES"), gpu_usage.FIRST_SECONDS
tasks.current().info = dataclasses.replace(before[0], device="GPU:0")
os.environ["CUDA_VISIBLE_DEVICES"], gpu_usage.FIRST_SECONDS = "GPU-1", 0.0
sys.modules["pynvml"] = FakeNvml().module()
gpu_usage.load_nvml.cache_clear()
"""
WITHOUT = f"""
tasks.current().info, os.environ["CUDA_VISIBLE_DEVICES"], gpu_usage.FIRST_SECONDS = before
del sys.modules["pynvml"]
gpu_usage.load_nvml.cache_clear()
sys.path.remove({TESTS!r})
del before, tasks, gpu_usage, FakeNvml, dataclasses
"""
ON_A_CPU = """
import time
class UntilMeasured(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        from nbdist.train.context import current
        while current().recorder.names.count("gpu/power") == 0:
            time.sleep(0.001)
with nb.distribute.MirroredStrategy(["CPU:0"]).scope():
    {body}
"""


@pytest.mark.engines
def test_a_task_with_a_gpu_records_it_and_is_warned_where_it_trains_on_the_cpu(cluster: Cluster) -> None:
    lines = BODY.strip().replace("epochs=2", "epochs=2, callbacks=[UntilMeasured()]").splitlines()
    body = ON_A_CPU.format(body="\n    ".join(lines))
    cluster.run(WITH_GPU, on=1)
    try:
        run = start_run(body, Options(on="worker:1"), cluster=cluster).wait()
    finally:
        cluster.run(WITHOUT, on=1)
    (only,) = run.replica_devices()
    assert (only.devices, only.gpu, only.model) == (("CPU:0",), "GPU-1", "NVIDIA H100 80GB HBM3")
    last = run.store.last(0, "gpu/power")
    assert last is not None
    assert last.value == 612.0
    assert "gpu/temperature" in columns_from_logs(run.folder)["series"]
    given = dataclasses.replace(only, assigned="GPU:0")  # the client has the task as it was started
    assert device_warning([given]).startswith("worker 1 has GPU-1 and trains on the CPU")
