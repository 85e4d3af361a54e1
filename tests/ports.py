"""Ports for processes that a test starts: each stays free until its process listens, which takes seconds."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

RANDOM = random.SystemRandom()  # processes of the tests whose generators have one seed draw different ports
ASSIGNED = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a free port below those that the system assigns by itself."""
    first = int(ASSIGNED.read_text().split()[0]) if ASSIGNED.exists() else 32_768
    while True:
        port = RANDOM.randrange(10_000, max(first, 20_000))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
