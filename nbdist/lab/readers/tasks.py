"""The tasks of one cluster in the sidebar, from files and processes; no task receives a request."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from nbdist.errors import NbdistError
from nbdist.lab.readers.clusters import Clusters, ClusterStatus
from nbdist.lab.readers.processes import find_process
from nbdist.lab.readers.runs import Runs
from nbdist.metrics.gpu_usage import Gpu, load_nvml, read_devices
from nbdist.runtime.task import TaskInfo
from nbdist.wire.hosts import host_identity

ELSEWHERE = "it is on another host: its CPU and memory cannot be read from here"
Item = dict[str, Any]
TaskProgress = dict[int, dict[str, Any]]


class ClusterTasks:
    """Lists the tasks of a cluster; one thread at a time may poll.

    ``clusters`` is a reader that the caller polls just before; without it, `poll` polls one of its own.
    """

    def __init__(self, runs: Runs, clusters: Clusters | None = None) -> None:
        self._runs = runs
        self._clusters = clusters or Clusters()
        self._polls_clusters = clusters is None
        self._monitors: dict[str, tuple[LoadMonitor, GpuMonitor]] = {}

    def poll(self, cluster_id: str) -> list[Item]:
        """Return the rows of a cluster's tasks by rank, ready for JSON; [] for an unknown cluster."""
        if self._polls_clusters:
            self._clusters.poll()
        seen = self._clusters.one(cluster_id)
        if seen is None or seen.description is None:
            return []
        if cluster_id not in self._monitors:
            still = {one: kept for one, kept in self._monitors.items() if self._clusters.one(one) is not None}
            self._monitors = {**still, cluster_id: (LoadMonitor(), GpuMonitor())}
        loads, gpus = self._monitors[cluster_id]
        description, here = seen.description, host_identity()
        taken = {task.rank: _load_of(task, seen, loads) for task in description.tasks if task.host == here}
        loads.forget_others({task.pid for task in description.tasks})
        living = [task for task in description.tasks if taken.get(task.rank) is not None]
        assigned = {task.pid: description.gpu_of(task) for task in living}
        used, problem = gpus.poll({pid: gpu for pid, gpu in assigned.items() if gpu is not None})
        progress = {run: self._progress(run) for run in [*seen.runs, *self._runs.on_cluster(cluster_id)]}
        return [_row(cluster_id, task, seen, taken, progress, used, problem) for task in description.tasks]

    def _progress(self, run: str) -> TaskProgress:
        try:
            return self._runs.tasks_of(run)
        except NbdistError:  # a sweep, whose trials have no steps; or a run that was just removed
            return {}


def _load_of(task: TaskInfo, seen: ClusterStatus, loads: LoadMonitor) -> Load | None:
    """Return the load of a task's process; None if it has ended."""
    if task.rank in seen.dead or seen.state == "stale":
        return None
    return loads.poll(task.pid, None if task.pid in seen.confirmed else seen.written)


def run_of(task: TaskInfo, seen: ClusterStatus, progress: Mapping[str, TaskProgress]) -> str | None:
    """Return the run that a task works on: from its busy file, or an in-graph run with it as a replica.

    The body of an in-graph run is in the notebook's process, so its tasks have no busy file.
    """
    driven = (run for run in progress if run not in seen.runs and task.rank in progress[run])
    return seen.busy.get(task.rank) or next(driven, None)


def _row(
    cluster: str,
    task: TaskInfo,
    seen: ClusterStatus,
    taken: Mapping[int, Load | None],
    progress: Mapping[str, TaskProgress],
    used: Mapping[int, Usage],
    problem: str | None,
) -> Item:
    here, load = task.rank in taken, taken.get(task.rank)
    dead = seen.dead.get(task.rank)
    if dead is None and here and load is None:
        dead = seen.error or "its process has ended"
    alive, gpu, run = dead is None, used.get(task.pid), run_of(task, seen, progress)
    note = None if here else ELSEWHERE
    if here and problem is not None and gpu is None and task.device.startswith("GPU"):
        note = f"its GPU cannot be measured: {problem}"
    reached = progress.get(run, {}).get(task.rank, {}) if run is not None else {}
    return {
        "cluster": cluster,
        "rank": task.rank,
        "name": task.name,
        "job": task.job,
        "index": task.index,
        "host": task.node or (socket.gethostname() if here else f"another host ({task.host[:8]})"),
        "pid": task.pid,
        "device": task.device or None,
        "state": task_state(alive, load, run, reached.get("state")),
        "cpu": load.cpu if alive and load is not None else None,
        "memory": load.memory if alive and load is not None else None,
        "gpu": gpu if alive else None,
        "run": run,
        "step": reached.get("step"),
        "steps_per_second": reached.get("steps_per_second"),
        "straggler": reached.get("straggler"),
        "note": note if alive else dead,
    }


MEGABYTE = 1 << 20
BUSY_PERCENT = 50.0
"""CPU use from which a task without a run counts as busy, for example with an ipyparallel cell."""


@dataclass(frozen=True)
class Load:
    """The load of a process: CPU in percent, memory in bytes; None if not measured yet."""

    cpu: int | None = None
    memory: int | None = None
    frozen: bool = False


def task_state(alive: bool, load: Load | None, run: str | None, progress: object) -> str:
    """Return a task's state.

    >>> task_state(True, Load(cpu=3), None, None), task_state(True, Load(cpu=99), None, None)
    ('idle', 'busy')
    >>> task_state(True, Load(), "a_run", "paused"), task_state(True, Load(frozen=True), "a_run", "paused")
    ('paused', 'frozen')
    """
    if not alive:
        return "dead"
    if load is not None and load.frozen:
        return "frozen"
    if run is not None:
        return progress if isinstance(progress, str) and progress else "busy"
    return "busy" if load is not None and (load.cpu or 0) >= BUSY_PERCENT else "idle"


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
