"""What tasks use of their GPUs, as NVIDIA's own library (NVML, `pip install nbdist[gpu]`) tells it.

It is loaded once, when somebody asks for the first time. A host without it has no figures, and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from nbdist.lab.taskitems import MEGABYTE, steady

Usage = dict[str, int | None]


def nvml_problem() -> str | None:
    """Return why there are no figures of GPUs on this host; None if there are.

    Asks the system the first time, and remembers what it said.
    """
    return _nvml()[1]


@dataclass(frozen=True)
class Gpu:
    """A device: how busy it is in percent, its memory in bytes, and what each process has of that."""

    use: int | None
    total: int | None
    by_pid: Mapping[int, int | None]


class Gpus:
    """Tells what tasks use; figures that hardly change stay as they are from look to look."""

    def __init__(self) -> None:
        self._before: dict[int, Usage] = {}

    def look(self, wanted: Mapping[int, str]) -> tuple[dict[int, Usage], str | None]:
        """Return the usage by pid, given the GPU that each has been given; and why there is none, if so."""
        if not wanted:
            self._before = {}
            return {}, None
        nvml, problem = _nvml()
        if problem is not None:
            return {}, problem
        try:
            devices = read_devices(nvml, set(wanted.values()))
        except Exception as error:  # NVML's own, and whatever else its wrapper raises when a driver goes
            return {}, f"NVML failed: {error}"
        found = {}
        for pid, name in wanted.items():
            if (device := device_of(pid, name, devices)) is not None:
                found[pid] = self._steady(pid, device)
        self._before = found
        missing = sorted(set(wanted.values()) - devices.keys())
        return found, f"NVML knows no GPU {', '.join(missing)}" if missing else None

    def _steady(self, pid: int, device: Gpu) -> Usage:
        before = self._before.get(pid, {})
        memory = device.by_pid.get(pid)
        return {
            "use": None if device.use is None else steady(before.get("use"), device.use),
            "memory": None if memory is None else steady(before.get("memory"), memory, MEGABYTE),
            "total": device.total,
        }


def device_of(pid: int, name: str, devices: Mapping[str, Gpu]) -> Gpu | None:
    """Return the device that a process uses: the one it is seen on, else the one it was given.

    CUDA may number devices otherwise than NVML (the fastest first), so that what is seen comes first.

    >>> one, other = Gpu(5, 100, {}), Gpu(90, 200, {7: 50})
    >>> device_of(7, "0", {"0": one, "1": other}) is other, device_of(8, "0", {"0": one}) is one
    (True, True)
    """
    given = devices.get(name)
    if given is not None and pid in given.by_pid:
        return given
    return next((device for device in devices.values() if pid in device.by_pid), given)


def read_devices(nvml: Any, names: Iterable[str]) -> dict[str, Gpu]:
    """Return those devices by CUDA's names (numbers or UUIDs) that NVML knows."""
    found = {}
    for name in sorted(names):
        try:
            handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(name))
                if name.isdecimal()
                else nvml.nvmlDeviceGetHandleByUUID(name)
            )
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue
        use = _or_none(nvml, lambda one: int(nvml.nvmlDeviceGetUtilizationRates(one).gpu), handle)
        total = _or_none(nvml, lambda one: int(nvml.nvmlDeviceGetMemoryInfo(one).total), handle)
        listed = _or_none(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        found[name] = Gpu(use, total, {int(one.pid): one.usedGpuMemory for one in listed})
    return found


def _or_none(nvml: Any, ask: Any, handle: Any) -> Any:
    """Return what NVML says; None if the device has no such figure, as a part of a GPU has no use."""
    try:
        return ask(handle)
    except nvml.NVMLError_NotSupported:
        return None


@cache
def _nvml() -> tuple[Any, str | None]:
    try:
        import pynvml
    except ImportError:
        return None, 'pynvml is not installed: pip install "nbdist[gpu]"'
    try:
        pynvml.nvmlInit()
    except Exception as error:  # there is no driver, it does not fit, or it may not be used
        return None, f"NVML cannot be used here: {error}"
    return pynvml, None
