"""Freeze a process: SIGSTOP takes a moment to stop every thread."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from waiting import PATIENCE


def freeze(pid: int) -> None:
    """Stop a process, and wait until all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline, pause = time.monotonic() + PATIENCE, threading.Event()
    while not is_frozen(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        pause.wait(0.001)


def is_frozen(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    with suppress(OSError):  # a thread ended while it was looked at
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
    return False
