"""The tasks of one cluster as the sidebar lists them: from files and processes, no task is asked anything."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import psutil

from nbdist.errors import NbdistError
from nbdist.lab.readers.cluster_file import TaskSeen
from nbdist.lab.readers.clusters import Clusters, Seen
from nbdist.lab.readers.processes import find_process
from nbdist.wire.hosts import host_identity

ELSEWHERE = "it is on another host: its CPU and memory cannot be read from here"
Item = dict[str, Any]
Told = dict[int, dict[str, Any]]


class TellsOfTasks(Protocol):
    """What knows how far the tasks of a run are, such as `Runs`."""

    def tasks_of(self, run_id: str, /) -> Told:
        """Return by rank: state, step, steps_per_second, straggler."""

    def on_cluster(self, cluster_id: str, /) -> list[str]:
        """Return the runs that go on on a cluster."""


class Tasks:
    """Lists tasks; made once and looked at again and again, by one thread at a time.

    ``clusters`` are those that somebody looks at already, just before; without them it looks itself.
    """

    def __init__(self, runs: TellsOfTasks, clusters: Clusters | None = None) -> None:
        self._runs = runs
        self._clusters = clusters or Clusters()
        self._looks_itself = clusters is None
        self._figures: dict[str, tuple[Loads, Gpus]] = {}

    def look(self, cluster_id: str) -> list[Item]:
        """Return the rows of a cluster's tasks by rank, ready for JSON; [] for one that is not there."""
        if self._looks_itself:
            self._clusters.look()
        seen = self._clusters.one(cluster_id)
        if seen is None or seen.description is None:
            return []
        if cluster_id not in self._figures:
            still = {one: kept for one, kept in self._figures.items() if self._clusters.one(one) is not None}
            self._figures = {**still, cluster_id: (Loads(), Gpus())}
        loads, gpus = self._figures[cluster_id]
        tasks = seen.description.tasks
        taken = {task.rank: look_at(loads, task, seen) for task in tasks if is_here(task)}
        loads.forget_others({task.pid for task in tasks})
        used, problem = gpus.look(wanted_gpus(seen, taken))
        told = {run: self._told(run) for run in [*seen.runs, *self._runs.on_cluster(cluster_id)]}
        return [_row(cluster_id, task, seen, taken, told, used, problem) for task in tasks]

    def _told(self, run: str) -> Told:
        try:
            return self._runs.tasks_of(run)
        except NbdistError:  # a sweep, whose trials tell nothing of the kind; or a run that was just removed
            return {}


def is_here(task: TaskSeen) -> bool:
    """Return whether a task's process is one of this host."""
    return task.host == host_identity()


def look_at(loads: Loads, task: TaskSeen, seen: Seen) -> Load | None:
    """Return what a task takes; None if it has ended."""
    if task.rank in seen.dead or seen.state == "stale":
        return None
    return loads.look(task.pid, None if task.pid in seen.vouched else seen.written)


def wanted_gpus(seen: Seen, taken: Mapping[int, Load | None]) -> dict[int, str]:
    """Return which GPU each living process of this host has been given, by pid."""
    wanted = {}
    for task in seen.description.tasks if seen.description is not None else ():
        gpu = seen.description.gpu_of(task) if seen.description is not None else None
        if gpu is not None and taken.get(task.rank) is not None:
            wanted[task.pid] = gpu
    return wanted


def run_of(task: TaskSeen, seen: Seen, told: Mapping[str, Told]) -> str | None:
    """Return the run that a task works on: its process says so, or an in-graph run that has it as a replica.

    The body of an in-graph run is in the notebook's process, so that the tasks themselves know of no run.
    """
    driven = (run for run in told if run not in seen.runs and task.rank in told[run])
    return seen.busy.get(task.pid) or next(driven, None)


def _row(
    cluster: str,
    task: TaskSeen,
    seen: Seen,
    taken: Mapping[int, Load | None],
    told: Mapping[str, Told],
    used: Mapping[int, Usage],
    problem: str | None,
) -> Item:
    here, load = task.rank in taken, taken.get(task.rank)
    dead = seen.dead.get(task.rank)
    if dead is None and here and load is None:
        dead = seen.error or "its process has ended"
    gpu, run = used.get(task.pid), run_of(task, seen, told)
    note = None if here else ELSEWHERE
    if here and problem is not None and gpu is None and (task.device or "").startswith("GPU"):
        note = f"no figures of its GPU: {problem}"
    return task_item(
        cluster,
        task,
        socket.gethostname() if here else f"another host ({task.host[:8]})",
        load=load,
        dead=dead,
        run=run,
        told=told.get(run, {}).get(task.rank) if run is not None else None,
        gpu=gpu,
        note=note,
    )


MEGABYTE = 1 << 20
BUSY_PERCENT = 50.0
"""What a process without a run computes that is at work all the same, on a cell of ipyparallel's say."""


@dataclass(frozen=True)
class Load:
    """What a process takes of its host; None is not known (yet)."""

    cpu: int | None = None
    memory: int | None = None
    frozen: bool = False


def task_item(
    cluster: str,
    task: TaskSeen,
    host: str,
    *,
    load: Load | None,
    dead: str | None = None,
    run: str | None = None,
    told: Mapping[str, Any] | None = None,
    gpu: Mapping[str, Any] | None = None,
    note: str | None = None,
) -> Item:
    """Return a task's row; ``load`` is None for one that cannot be looked at from here."""
    told = told or {}
    alive = dead is None
    return {
        "cluster": cluster,
        "rank": task.rank,
        "name": task.name,
        "job": task.job,
        "index": task.index,
        "host": host,
        "pid": task.pid,
        "device": task.device,
        "state": state_of(alive, load, run, told.get("state")),
        "cpu": load.cpu if alive and load is not None else None,
        "memory": load.memory if alive and load is not None else None,
        "gpu": dict(gpu) if alive and gpu is not None else None,
        "run": run,
        "step": told.get("step"),
        "steps_per_second": told.get("steps_per_second"),
        "straggler": told.get("straggler"),
        "note": note if alive else dead,
    }


def state_of(alive: bool, load: Load | None, run: str | None, told: object) -> str:
    """Return a task's state in one word.

    >>> state_of(True, Load(cpu=3), None, None), state_of(True, Load(cpu=99), None, None)
    ('idle', 'busy')
    >>> state_of(True, Load(), "a_run", "paused"), state_of(True, Load(frozen=True), "a_run", "paused")
    ('paused', 'frozen')
    """
    if not alive:
        return "dead"
    if load is not None and load.frozen:
        return "frozen"
    if run is not None:
        return told if isinstance(told, str) and told else "busy"
    return "busy" if load is not None and (load.cpu or 0) >= BUSY_PERCENT else "idle"


def steady(before: int | None, now: float, step: float = 1.0) -> int:
    """Return a figure in whole steps that stays as it is while it changes by less than one and a half.

    What changes at every look would be sent at every look. Nothing is shown as nothing.

    >>> [steady(40, now) for now in (38.6, 40.9, 41.4, 42.0)], steady(1, 0.3), steady(None, 2.5 * 8, 8)
    ([40, 40, 40, 42], 0, 16)
    """
    rounded = int(round(now / step) * step)
    if before is None or rounded == 0 or abs(now - before) >= 1.5 * step:
        return rounded
    return before


# CPU and memory use of the tasks' processes, from the operating system.

WINDOW_SECONDS = 1.5  # processor time is counted in hundredths of a second: over less, one of them shows
FROZEN = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


@dataclass(frozen=True)
class Taken:
    """What the system says of a process: its status, processor seconds since it began, bytes of memory."""

    status: str
    used: float
    memory: int


@dataclass(frozen=True)
class Measured:
    """What is shown of a process, and since when its processor time is counted."""

    load: Load
    used: float
    at: float


class Loads:
    """Remembers processes and what they used, so that a look costs some twenty microseconds each."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[psutil.Process, Measured]] = {}

    def look(self, pid: int, written: float | None) -> Load | None:
        """Return what a process takes; None if it has ended.

        ``written`` is when the file was that names it: a process that is younger is another one. None says
        that the number is known to be its own.
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


def measure(before: Measured | None, taken: Taken, now: float) -> Measured:
    """Return what to show of a process: its processor time is taken over a while, the rest at once.

    >>> first = measure(None, Taken("running", 7.0, 3 << 20), now=100.0)
    >>> measure(first, Taken("running", 8.0, 3 << 20), now=102.0).load
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


def read_process(process: psutil.Process) -> Taken | None:
    """Return what a process has taken; None if it has ended, also when nobody has reaped it yet."""
    with suppress(psutil.Error, OSError):
        with process.oneshot():  # one file is read for the first two
            status, times = process.status(), process.cpu_times()
            memory = process.memory_info().rss
        if status != psutil.STATUS_ZOMBIE:
            return Taken(status, times.user + times.system, memory)
    return None


# GPU use of the tasks, from NVIDIA's library (NVML, `pip install nbdist[gpu]`).
#
# It is loaded once, when somebody asks for the first time. A host without it has no figures, and says why.

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
