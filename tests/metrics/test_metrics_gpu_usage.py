"""The sampler of a task's GPU, with a fake pynvml, and what of it reaches logs, stores and pages."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_pynvml import FakeNvml, NVMLError, NVMLError_NotSupported
from waiting import PATIENCE, until

from nbdist.metrics.gpu_usage import GPU_SERIES, GpuSampler, load_nvml, own_gpu, read_devices
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.store import RunStore
from nbdist.run.task.reporting import ActiveRun, Output
from nbdist.train.context import Context
from nbdist.ui.gpus import fewer_points, gpu_rows, gpus_over_time, points_of

SECOND = "GPU-1"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    fake = FakeNvml()
    load_nvml.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", fake.module())
    yield fake
    load_nvml.cache_clear()


class Samples:
    """A sampler, with what it has shown and recorded."""

    def __init__(self, name: str = SECOND) -> None:
        self.shown: list[dict[str, Any]] = []
        self.recorded: dict[str, list[float]] = {}
        self.sampler = GpuSampler(name, self.shown.append, self._record, seconds=0.001)

    def _record(self, series: str, value: float) -> None:
        self.recorded.setdefault(series, []).append(value)


def test_a_sample_has_all_figures(nvml: FakeNvml) -> None:
    samples = Samples()
    assert samples.sampler.sample()
    figures = {"use": 90, "memory": 40 << 30, "power": 612.0, "temperature": 67}
    about = {"id": "GPU-1", "model": "NVIDIA H100 80GB HBM3", "total": 80 << 30}
    assert samples.shown == [about | figures]
    assert samples.recorded == {GPU_SERIES[name]: [value] for name, value in figures.items()}


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        ("nvmlDeviceGetUtilizationRates", {"use"}),
        ("nvmlDeviceGetMemoryInfo", {"memory", "total"}),
        ("nvmlDeviceGetPowerUsage", {"power"}),
        ("nvmlDeviceGetTemperature", {"temperature"}),
        ("nvmlDeviceGetName", {"model"}),
    ],
)
def test_a_figure_that_fails_is_left_out(nvml: FakeNvml, function: str, missing: set[str]) -> None:
    nvml.fails[function] = NVMLError_NotSupported("Not Supported")
    samples = Samples()
    samples.sampler.sample()
    names = {"id", "model", "total", "use", "memory", "power", "temperature"}
    assert samples.shown[0].keys() == names - missing
    assert samples.recorded.keys() == {GPU_SERIES[n] for n in GPU_SERIES} - {f"gpu/{n}" for n in missing}


@pytest.mark.parametrize("error", [NVMLError("GPU is lost"), OSError("the driver has failed")])
def test_a_sample_that_fails_is_none(nvml: FakeNvml, error: Exception) -> None:
    samples = Samples()
    nvml.fails["nvmlDeviceGetHandleByUUID"] = error
    assert samples.sampler.sample()
    assert not samples.shown
    nvml.fails.clear()
    assert samples.sampler.sample()
    assert samples.shown[0]["use"] == 90


def test_without_the_library_the_sample_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    load_nvml.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    samples = Samples()
    assert not samples.sampler.sample()
    assert samples.shown == [{"id": "GPU-1", "problem": load_nvml()[1]}]
    load_nvml.cache_clear()


def test_a_library_that_hangs_holds_up_neither_the_start_nor_the_end(nvml: FakeNvml) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang(handle: int) -> None:
        entered.set()
        leave.wait(PATIENCE)

    nvml.nvmlDeviceGetName = hang  # type: ignore[assignment,method-assign]
    samples = Samples()
    samples.sampler.start()
    assert entered.wait(PATIENCE)
    samples.sampler.stop()  # returns while the call hangs
    (thread,) = (one for one in threading.enumerate() if one.name == "nbdist GPU sampler")
    leave.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not samples.shown  # what came after the end is dropped


def test_it_measures_again_and_again(nvml: FakeNvml) -> None:
    samples = Samples()
    samples.sampler.start()
    until(lambda: len(samples.shown) > 3)
    samples.sampler.stop()


def test_a_number_is_measured_only_if_cuda_and_nvml_number_alike(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert read_devices(nvml.module(), ["1", "7"]).keys() == {"1"}
    nvml.models[0] = "Tesla T4"  # NVML's first, CUDA's last
    assert read_devices(nvml.module(), ["1", "GPU-1"]).keys() == {"GPU-1"}
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert read_devices(nvml.module(), ["1"])["1"].uuid == "GPU-1"


def test_the_own_gpu_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f3a, GPU-91bc")
    assert [own_gpu(device) for device in ("CPU:0", "GPU:0", "GPU:1", "GPU:2")] == [
        None, "GPU-8f3a", "GPU-91bc", "2",
    ]  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert own_gpu("GPU:0") == "0"


def active_run(folder: Path) -> ActiveRun:
    recorder = Recorder(folder / "metrics-0000.log", replica=0)
    return ActiveRun("r", Context(recorder=recorder), recorder, Output(folder / "output-0000.log"))


def test_a_task_records_its_gpu_once_it_trains(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", SECOND)
    monkeypatch.setattr("nbdist.metrics.gpu_usage.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("nbdist.run.task.reporting.GPU_SECONDS", 0.001)
    live, store, batches = active_run(tmp_path), RunStore(), []  # type: ActiveRun, RunStore, list[Batch]

    def progress() -> dict[str, Any]:
        ((_, said, batch),) = live.replicas()
        if batch is not None:
            batches.append(batch)
            store.extend_batch(batch)
        return said

    live.start_gpu_sampler("GPU:0")
    until(lambda: progress()["gpu"] is not None)
    assert not batches  # a plain cell has no metrics
    live.context.progress.trainings = 1
    until(lambda: (progress(), store.number("gpu/temperature"))[1] is not None)
    live.stop_gpu_sampler()
    live.close()
    point = store.last(0, "gpu/power")
    assert point is not None
    assert point.value == 612.0
    assert progress()["gpu"]["use"] == 90


def test_a_task_without_a_gpu_never_loads_the_library(nvml: FakeNvml, tmp_path: Path) -> None:
    live = active_run(tmp_path)
    live.start_gpu_sampler("CPU:0")
    live.stop_gpu_sampler()
    live.close()
    assert nvml.started == 0


def a_store(replicas: int, samples: int) -> RunStore:
    store, seconds = RunStore(), np.arange(samples, dtype=float)
    for replica in range(replicas):
        for name, value in (("use", 50.0 + replica), ("memory", 3e10)):
            store.extend(replica, f"gpu/{name}", np.arange(samples), np.full(samples, value), 1e9 + seconds)
    return store


def test_pages_get_each_figure_over_time() -> None:
    samples = {0: {"id": "GPU-8f3a91bc-12", "model": "NVIDIA H100", "total": 80 << 30}, 1: None}
    first, second = gpus_over_time(a_store(2, 5), samples)
    assert (first["id"], first["total"], second["replica"]) == ("GPU-8f3a91bc-12", 80 << 30, 1)
    assert first["use"] == {"seconds": "0 1 2 3 4", "values": "50 50 50 50 50", "mean": "50"}
    assert "power" not in first
    assert gpu_rows([first, second], ["/job:worker/task:0"])[1] == {
        "task": "replica 1", "GPU": "", "mean use": "51%", "peak use": "51%", "peak memory": "27.9 GB",
    }  # fmt: skip
    assert gpus_over_time(RunStore(), {0: None}) == []


def test_long_runs_and_many_gpus_are_thinned() -> None:
    store = a_store(40, 3000)
    shown = gpus_over_time(store, {})
    assert len(shown) == 40
    assert all(len(points_of(one, "use")[0]) <= 16 for one in shown)
    assert points_of(shown[0], "use")[0][-1] == 2999.0
    small = fewer_points(shown, 10_000)
    assert 0 < len(small) < 40
    assert len(json.dumps(small, indent=1)) <= 10_000
