"""Processes polled repeatedly: those of a file, and no later ones with the same pids."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from nbdist.lab.readers.processes import CHECK_SECONDS, Processes
from nbdist.metrics.process_usage import CLOCK_SECONDS


def test_a_process_is_found_until_it_ends() -> None:
    processes = Processes()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        written = psutil.Process(process.pid).create_time()
        assert processes.find(process.pid, written) is not None
        assert processes.find(process.pid, written - CLOCK_SECONDS - 1) is None  # it started later than that
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert processes.find(process.pid, written) is None
    assert processes.find(process.pid, written) is None
    assert processes.find(1 << 30, written) is None


def test_a_reused_pid_is_noticed() -> None:
    now = [0.0]
    processes = Processes(now=lambda: now[0])
    mine = processes.find(os.getpid(), 1e12)
    assert mine is not None
    mine.is_running = lambda: False  # type: ignore[method-assign]  # as if the number had been given anew
    now[0] = CHECK_SECONDS / 2
    assert processes.find(os.getpid(), 1e12) is mine
    now[0] = CHECK_SECONDS * 2
    assert processes.find(os.getpid(), 1e12) is None
    assert processes.find(os.getpid(), 1e12) is None


def test_processes_no_longer_polled_are_dropped() -> None:
    processes = Processes()
    first = processes.find(os.getpid(), 1e12)
    processes.forget_unused()
    assert processes.find(os.getpid(), 1e12) is first
    processes.forget_unused()
    processes.forget_unused()
    assert processes.find(os.getpid(), 1e12) is not first
