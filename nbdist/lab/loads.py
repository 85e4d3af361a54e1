"""What the processes of tasks take of their host: cores and memory, by the system."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import psutil

from nbdist.lab.processes import find_process
from nbdist.lab.taskitems import MEGABYTE, Load, steady

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
