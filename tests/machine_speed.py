"""How fast this machine is now, beside a quiet one of the kind that CI has.

    python3 tests/machine_speed.py     # prints: machine speed: 0.97 of normal (2 cores)

The unit of work is a burst: some milliseconds of plain Python. `measure` runs bursts on all cores at once.
A `SpeedSampler` runs one twice a second beside the tests, so that `slowdown` says by how much everything took
longer in the last seconds: limits of tests follow it (`limit` in ``waiting.py``).

A thread that works for some milliseconds without a pause shows both causes of slowness: a slow processor, and
other processes on the same cores. The system's load average shows only the second one, a minute late.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

BURST = 20_000
"""Rounds of a burst."""
NORMAL_SECONDS = 0.0024
"""Time of a burst on a quiet machine of the kind that CI has (AMD EPYC, Python 3.11; 2026-11-28)."""
NORMAL = 0.8
"""A machine of at least this speed counts as normal."""
SAMPLE_SECONDS = 0.5
MEMORY_SECONDS = 400.0
BEFORE_SECONDS = 5.0
"""What slows a test down may have begun this long before it."""
LONGER = 4
"""What is slowed down lasts longer than its limit: the samples of so many limits count."""


def burst() -> float:
    """Do one burst of work; return the seconds that it took."""
    begun, x = time.perf_counter(), 0
    for i in range(BURST):
        x = (x * 1103515245 + i) & 0xFFFFFFFF
    return time.perf_counter() - begun


def measure(seconds: float = 1.0, cores: int | None = None) -> float:
    """Return the speed of all cores together, 1 for a quiet machine of CI's kind.

    - ``seconds``: how long each core is measured, above 0
    - ``cores``: how many processes work at once; None for one on each core of this process
    """
    count = cores or core_count()
    command = [sys.executable, "-S", __file__, "--core", str(seconds)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    bursts = [int(process.communicate()[0]) for process in started]
    return sum(bursts) * NORMAL_SECONDS / seconds / count


def bursts_in(seconds: float) -> int:
    """Return how many bursts this process does in some seconds."""
    until, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        burst()
        count += 1
    return count


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slowdown_of(samples: Iterable[tuple[float, float]], since: float) -> float:
    """Return by how much work took longer than normal; at least 1.

    - ``samples``: pairs of a time and of what a burst took then, in seconds
    - ``since``: the time from which samples count

    It is the mean of the slower half of the samples: a wait is as long as its slowest part.

    >>> slowdown_of([(0, NORMAL_SECONDS), (1, NORMAL_SECONDS), (2, 4 * NORMAL_SECONDS)], since=0)
    2.5
    >>> slowdown_of([], since=0)
    1.0
    """
    took = sorted(seconds for at, seconds in samples if at >= since)
    slower = took[len(took) // 2 :]
    return max(1.0, sum(slower) / len(slower) / NORMAL_SECONDS) if len(took) > 1 else 1.0


class SpeedSampler:
    """Does a burst twice a second on a thread, and remembers the last minutes' times."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=int(MEMORY_SECONDS / SAMPLE_SECONDS))
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sample until the end of a ``with`` statement."""
        self._stop.clear()
        thread = threading.Thread(target=self._run, name="machine-speed", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._samples.append((time.monotonic(), burst()))

    def slowdown(self, seconds: float) -> float:
        """Return the slowdown (1 or more) for something that began lately and has a limit of ``seconds``."""
        return slowdown_of(list(self._samples), time.monotonic() - LONGER * seconds - BEFORE_SECONDS)


SAMPLER = SpeedSampler()
"""The sampler of this process of the tests; ``conftest.py`` starts it."""


def main() -> None:
    if sys.argv[1:2] == ["--core"]:
        print(bursts_in(float(sys.argv[2])))
        return
    print(f"machine speed: {measure():.2f} of normal ({core_count()} cores)", flush=True)


if __name__ == "__main__":
    main()
