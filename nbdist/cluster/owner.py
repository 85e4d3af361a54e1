"""Who a cluster or a run belongs to: a process, and the notebook that it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from nbdist.wire.hosts import host_identity

SAME_SECONDS = 0.05  # start times of one process, read twice, may differ by a tick of its clock


def this_process() -> dict[str, Any]:
    """Return what tells this process from others: host, pid, start time; and its notebook, "" for none."""
    return {**_process(os.getpid()), "session": os.environ.get("JPY_SESSION_NAME", "")}


def lives(owner: Mapping[str, Any]) -> bool:
    """Return whether that process may still be there; one of another host counts as alive.

    >>> lives(this_process()), lives({**this_process(), "started": 1.0})
    (True, False)
    """
    if not owner or owner.get("host") != host_identity():
        return True
    started = _started(int(owner["pid"]))
    return started is not None and abs(started - float(owner["started"])) < SAME_SECONDS


def is_this(owner: Mapping[str, Any]) -> bool:
    """Return whether that is this very process."""
    return bool(owner) and owner.get("pid") == os.getpid() and lives(owner)


def called(process: Mapping[str, Any]) -> str:
    """Return the name of a process for messages: its notebook, if any, and its id.

    >>> called({"pid": 7, "session": "/home/ann/digits.ipynb"}), called({"pid": 7})
    ('notebook digits.ipynb (pid 7)', 'process 7')
    """
    name = os.path.basename(str(process.get("session", "")))
    return f"notebook {name} (pid {process.get('pid')})" if name else f"process {process.get('pid')}"


def caller() -> str:
    """Return the name of this process for the clients of a cluster that it stops: its notebook or its id."""
    return called({"pid": os.getpid(), "session": os.environ.get("JPY_SESSION_NAME", "")})


@cache
def _process(pid: int) -> dict[str, Any]:
    return {"host": host_identity(), "pid": pid, "started": _started(pid)}


def _started(pid: int) -> float | None:
    import psutil  # here, since engines need none of this

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None
