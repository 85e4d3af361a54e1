"""Which host this is: equal for those, and only those, that can share memory; and where others reach it."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

LOOPBACK = ("127.0.0.1", "::1")


@lru_cache(maxsize=1)
def host_identity() -> str:
    """Return what names this machine, its boot and its /dev/shm; two containers of one machine differ."""
    parts = [socket.gethostname()]
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        try:
            parts.append(Path(path).read_text().strip())
        except OSError:
            parts.append("")
    try:
        status = os.stat("/dev/shm")
        parts.append(f"{status.st_dev}:{status.st_ino}")
    except OSError:
        parts.append("no shared memory")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def address_towards(tasks: Iterable[str]) -> str:
    """Return this host's address as tasks at these addresses (host:port) see it; loopback if all are here.

    >>> address_towards(["127.0.0.1:4000"])
    '127.0.0.1'
    """
    for task in tasks:
        host, _, port = task.rpartition(":")
        with suppress(OSError):  # a name that is not known here, or no way there: then it is not asked
            family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as one:
                one.connect(where)  # sends nothing, but the kernel says which way it would
                own = str(one.getsockname()[0])
            if own not in LOOPBACK:
                return own
    return LOOPBACK[0]
