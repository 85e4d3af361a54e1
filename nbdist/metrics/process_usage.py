"""What processes use: CPU and memory, from the operating system, and their GPUs', from NVIDIA's library.

    loads, gpus = LoadMonitor(), GpuMonitor()
    loads.poll(pid, None)                   # Load(cpu=None, memory=52428800, frozen=False)
    gpus.poll({pid: "GPU-8f3a..."})         # ({pid: {"use": 87, "memory": 3221225472, ...}}, None)

The sidebar measures the tasks of its own host so, and a host's supervisor those of another one
(`nbdist.cluster.supervisor.usage`). Figures have hysteresis: what has not really changed is the same value.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from nbdist.metrics.gpu_usage import Gpu, load_nvml, read_devices

MEGABYTE = 1 << 20
CLOCK_SECONDS = 3.0  # start times are off by a second or two while the clock is being adjusted


@dataclass(frozen=True)
class Load:
    """The load of a process: CPU in percent, memory in bytes; None if not measured yet."""

    cpu: int | None = None
    memory: int | None = None
    frozen: bool = False


def steady(before: int | None, now: float, step: float = 1.0) -> int:
    """Return a value rounded to whole steps, with hysteresis of one and a half steps.

    Without hysteresis, noise would change (and send) the value at every poll. Zero is always shown as 0.

    >>> [steady(40, now) for now in (38.6, 40.9, 41.4, 42.0)], steady(1, 0.3), steady(None, 2.5 * 8, 8)
    ([40, 40, 40, 42], 0, 16)
    """
    rounded = int(round(now / step) * step)
    if before is None or rounded == 0 or abs(now - before) >= 1.5 * step:
        return rounded
    return before


# CPU and memory use of the tasks' processes, from the operating system.

WINDOW_SECONDS = 1.5  # CPU time has a resolution of 10 ms: a shorter window shows single ticks
FROZEN = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


@dataclass(frozen=True)
class ProcessUsage:
    """The operating system's figures of a process: status, CPU seconds since its start, bytes of memory."""

    status: str
    used: float
    memory: int


@dataclass(frozen=True)
class Measured:
    """The load of a process, and the start of the current CPU window."""

    load: Load
    used: float
    at: float


class LoadMonitor:
    """Measures processes; keeps their handles, so that a poll costs some 20 microseconds per process."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[psutil.Process, Measured]] = {}

    def poll(self, pid: int, written: float | None) -> Load | None:
        """Return the load of a process; None if it has ended.

        ``written`` is the time of the file that names the pid: a younger process has reused the pid. None if
        the pid is certain.
        """
        process, before = self._known.pop(pid, (None, None))
        if process is None or (written is not None and not process.is_running()):
            process, before = find_process(pid, written), None
        taken = None if process is None else read_process(process)
        if process is None or taken is None:
            return None
        measured = measure(before, taken, time.monotonic())
        self._known[pid] = (process, measured)
        return measured.load

    def forget_others(self, pids: Collection[int]) -> None:
        """Forget all processes but these."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}


def measure(before: Measured | None, taken: ProcessUsage, now: float) -> Measured:
    """Return a process's measurement: CPU over a window of `WINDOW_SECONDS`, all else immediately.

    >>> first = measure(None, ProcessUsage("running", 7.0, 3 << 20), now=100.0)
    >>> measure(first, ProcessUsage("running", 8.0, 3 << 20), now=102.0).load
    Load(cpu=50, memory=3145728, frozen=False)
    """
    load = Load() if before is None else before.load
    cpu, used, at = load.cpu, taken.used, now
    if before is not None and now - before.at < WINDOW_SECONDS:
        used, at = before.used, before.at
    elif before is not None:
        cpu = steady(cpu, max(0.0, 100 * (taken.used - before.used) / (now - before.at)))
    memory = steady(load.memory, taken.memory, MEGABYTE)
    return Measured(Load(cpu, memory, taken.status in FROZEN), used, at)


def read_process(process: psutil.Process) -> ProcessUsage | None:
    """Return the figures of a process; None if it has ended, also for a zombie."""
    with suppress(psutil.Error, OSError):
        with process.oneshot():  # one file is read for the first two
            status, times = process.status(), process.cpu_times()
            memory = process.memory_info().rss
        if status != psutil.STATUS_ZOMBIE:
            return ProcessUsage(status, times.user + times.system, memory)
    return None


# GPU use of the tasks, from NVIDIA's library (NVML, see nbdist.metrics.gpu_usage).

HISTORY, HISTORY_SECONDS = 30, 2.0  # points of the small curve of a GPU's use, and the seconds between two
Usage = dict[str, Any]


class GpuMonitor:
    """Measures the GPU use of tasks, with the hysteresis of `steady`, and keeps a minute of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: dict[int, Usage] = {}
        self._due = -math.inf

    def poll(self, wanted: Mapping[int, str]) -> tuple[dict[int, Usage], str | None]:
        """Return (usage by pid, problem) for pids with their assigned GPUs.

        A usage has "use" (percent), "memory" (bytes of the process), "total", "power" (watts) and
        "temperature" (degrees Celsius), None where the device has no such figure; "history" has the use at
        intervals of `HISTORY_SECONDS`.
        """
        if not wanted:
            self._before = {}
            return {}, None
        nvml, problem = load_nvml()
        if problem is not None:
            return {}, problem
        try:
            devices = read_devices(nvml, set(wanted.values()))
        except Exception as error:  # NVML's errors, and others of its wrapper when a driver fails
            return {}, f"NVML failed: {error}"
        due = self._clock() >= self._due
        if due:
            self._due = self._clock() + HISTORY_SECONDS
        found = {}
        for pid, name in wanted.items():
            if (device := device_of(pid, name, devices)) is not None:
                found[pid] = self._steady(pid, device, due)
        self._before = found
        missing = sorted(set(wanted.values()) - devices.keys())
        return found, f"NVML knows no GPU {', '.join(missing)}" if missing else None

    def _steady(self, pid: int, device: Gpu, due: bool) -> Usage:
        before = self._before.get(pid, {})
        memory = device.by_pid.get(pid)
        use = None if device.use is None else steady(before.get("use"), device.use)
        history = before.get("history", [])
        if due and use is not None:
            history = [*history, use][-HISTORY:]
        return {
            "use": use,
            "memory": None if memory is None else steady(before.get("memory"), memory, MEGABYTE),
            "total": device.total,
            "power": None if device.power is None else steady(before.get("power"), device.power, 5.0),
            "temperature": None
            if device.temperature is None
            else steady(before.get("temperature"), device.temperature),
            "history": history,
        }


def device_of(pid: int, name: str, devices: Mapping[str, Gpu]) -> Gpu | None:
    """Return the device of a process: the one where NVML lists it, else the assigned one.

    CUDA may number devices in another order than NVML (fastest first), so the listing takes precedence.

    >>> one, other = Gpu(use=5), Gpu(use=90, by_pid={7: 50})
    >>> device_of(7, "0", {"0": one, "1": other}) is other, device_of(8, "0", {"0": one}) is one
    (True, True)
    """
    given = devices.get(name)
    if given is not None and pid in given.by_pid:
        return given
    return next((device for device in devices.values() if pid in device.by_pid), given)


def find_process(pid: int, written: float | None) -> psutil.Process | None:
    """Return the process of a pid if it started before a file was ``written``; None accepts any start."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if written is None or process.create_time() <= written + CLOCK_SECONDS:
            return process
    return None
