"""What the stand-in for a Mac takes away, from nbdist's modules and from others."""

from __future__ import annotations

import os
import socket
import tempfile
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil

from nbdist.wire import hosts, shm


def main() -> None:
    missing = ("pidfd_open", "memfd_create", "sched_yield", "sched_getaffinity", "posix_fallocate", "waitid")
    assert not [name for name in missing if hasattr(os, name)]
    assert not hasattr(socket, "SO_PEERCRED")
    assert shm.shared_folder() == Path(tempfile.gettempdir())
    assert hosts.host_identity()
    print("missing")
    for refused in (long_socket, long_name):
        try:
            refused()
        except OSError:
            continue
        raise AssertionError(refused.__name__)
    print("refused")
    assert psutil.Process().status() == psutil.STATUS_RUNNING  # it reads /proc, as nbdist cannot
    assert Path("/proc/self").exists()
    print("kept")


def long_socket() -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(Path.cwd() / ("x" * (104 - len(str(Path.cwd()))))))


def long_name() -> None:
    SharedMemory("x" * 31, create=True, size=1)  # with its slash 32 characters


if __name__ == "__main__":
    main()
