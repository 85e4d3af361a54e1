"""The identity of this host, equal for exactly the processes that can share memory, and its address."""

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
    """Return a hash of this machine, its boot and its /dev/shm; it differs between two containers."""
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


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this host by which others may reach it, loopback last."""
    import psutil  # here, since engines need none of this

    entries = [one for entries in psutil.net_if_addrs().values() for one in entries]
    found = [one.address for one in entries if one.family == socket.AF_INET]
    return sorted(found, key=lambda address: address.startswith("127."))


def address_towards(tasks: Iterable[str]) -> str:
    """Return this host's address for tasks at these addresses (host:port); loopback if all are on this host.

    >>> address_towards(["127.0.0.1:4000"])
    '127.0.0.1'
    """
    for task in tasks:
        host, _, port = task.rpartition(":")
        with suppress(OSError):  # an unknown name or no route: try the next task
            family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as one:
                one.connect(where)  # sends nothing; the kernel chooses the route and with it the own address
                own = str(one.getsockname()[0])
            if own not in LOOPBACK:
                return own
    return LOOPBACK[0]
