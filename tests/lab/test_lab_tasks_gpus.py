"""GPU usage of tasks, with a fake pynvml."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from fake_pynvml import FakeNvml, NVMLError, NVMLError_NotSupported

from nbdist.metrics.gpu_usage import load_nvml
from nbdist.metrics.process_usage import HISTORY, GpuMonitor

MB = 1 << 20


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Reset the cached NVML module for each test."""
    load_nvml.cache_clear()
    yield
    load_nvml.cache_clear()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake.module())
    return fake


def test_without_pynvml_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert load_nvml()[1] == 'pynvml is not installed: pip install "nbdist[gpu]"'
    assert GpuMonitor().poll({7: "0"}) == ({}, load_nvml()[1])
    assert GpuMonitor().poll({}) == ({}, None)  # no task has a GPU: nothing is missing


def test_without_a_driver_there_is_a_reason(nvml: FakeNvml) -> None:
    nvml.fails["nvmlInit"] = NVMLError("NVML Shared Library Not Found")
    assert load_nvml()[1] == "NVML cannot be used here: NVML Shared Library Not Found"
    nvml.fails.clear()
    assert load_nvml()[1] is not None  # one attempt
    assert nvml.started == 0


def test_each_process_has_its_device_and_its_own_memory(nvml: FakeNvml) -> None:
    nvml.processes = [{7: 500 * MB + 1, 9: 3 * MB}, {8: None}]
    used, problem = GpuMonitor().poll({7: "0", 8: "GPU-1", 9: "0", 10: "1"})
    assert problem is None
    first = {"use": 10, "total": 80 << 30, "power": 100, "temperature": 41, "history": [10]}
    second = {"use": 90, "total": 80 << 30, "power": 610, "temperature": 67, "history": [90]}
    assert used[7] == first | {"memory": 500 * MB}
    assert used[8] == second | {"memory": None}  # unknown to the driver
    assert used[9]["memory"] == 3 * MB
    assert used[10] == second | {"memory": None}  # not used yet
    assert nvml.started == 1


def test_the_device_of_a_process_overrides_its_number(nvml: FakeNvml) -> None:
    nvml.processes = [{8: 5 * MB}, {7: 6 * MB}]  # CUDA has another order of devices
    used, _ = GpuMonitor().poll({7: "0", 8: "1"})
    assert (used[7]["use"], used[7]["memory"]) == (90, 6 * MB)
    assert (used[8]["use"], used[8]["memory"]) == (10, 5 * MB)


def test_small_changes_are_not_reported(nvml: FakeNvml) -> None:
    gpus = GpuMonitor()
    nvml.processes[0] = {7: 500 * MB}
    first, _ = gpus.poll({7: "0"})
    nvml.use[0], nvml.processes[0] = 11, {7: 501 * MB}
    assert gpus.poll({7: "0"})[0] == first
    nvml.use[0] = 12
    assert gpus.poll({7: "0"})[0][7]["use"] == 12


def test_the_use_of_the_last_minute_is_kept(nvml: FakeNvml) -> None:
    now = 0.0
    gpus = GpuMonitor(clock=lambda: now)
    for use in range(0, 100, 2):
        nvml.use[0] = use
        used, _ = gpus.poll({7: "0"})
        now += 1.0  # a point for every second poll
    assert used[7]["history"] == list(range(0, 100, 4))
    for _ in range(100):
        used, _ = gpus.poll({7: "0"})
        now += 1.0
    assert used[7]["history"] == [98] * HISTORY


def test_a_missing_device_is_named(nvml: FakeNvml) -> None:
    used, problem = GpuMonitor().poll({7: "0", 8: "5", 9: "MIG-x"})
    assert used.keys() == {7}
    assert problem == "NVML knows no GPU 5, MIG-x"


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("nvmlDeviceGetUtilizationRates", "use"),
        ("nvmlDeviceGetMemoryInfo", "total"),
        ("nvmlDeviceGetComputeRunningProcesses", "memory"),
        ("nvmlDeviceGetPowerUsage", "power"),
        ("nvmlDeviceGetTemperature", "temperature"),
    ],
)
def test_a_figure_that_a_device_does_not_have(nvml: FakeNvml, name: str, missing: str) -> None:
    nvml.processes[0] = {7: 5 * MB}
    nvml.fails[name] = NVMLError_NotSupported("Not Supported")
    used, problem = GpuMonitor().poll({7: "0"})
    assert problem is None
    assert [key for key, value in used[7].items() if value is None] == [missing]


def test_a_temporary_failure_is_reported(nvml: FakeNvml) -> None:
    gpus = GpuMonitor()
    assert gpus.poll({7: "0"})[1] is None
    nvml.fails["nvmlDeviceGetMemoryInfo"] = OSError("the driver has failed")
    assert gpus.poll({7: "0"}) == ({}, "NVML failed: the driver has failed")
    nvml.fails.clear()
    assert gpus.poll({7: "0"})[0][7]["use"] == 10


def test_a_lost_device_hides_no_others(nvml: FakeNvml) -> None:
    nvml.fails["nvmlDeviceGetHandleByIndex"] = NVMLError("GPU is lost")
    used, problem = GpuMonitor().poll({7: "0", 8: "GPU-1"})
    assert (used[8]["use"], problem) == (90, "NVML knows no GPU 0")
    nvml.fails = {"nvmlDeviceGetUtilizationRates": NVMLError("GPU is lost")}
    assert GpuMonitor().poll({7: "0"})[0][7]["use"] is None
