"""What this process may use of its machine: cores and memory, within the limits of its container or job.

    count_cores()            # 2 in a pod with a limit of 1500m, on a node with 64 cores
    memory_limit()           # 8 GiB there; None without a limit
    available_memory()       # what the limit leaves, or the machine, whichever is less

Slurm binds the processes of a job to cores (the affinity). Docker, Kubernetes and systemd limit the time of
all cores together (the quota of a cgroup), which the affinity does not show: with a thread for each core of
the machine a process uses its quota up early in each period, and rests for the remainder of it. A limit of a
cgroup holds for all below it, so each from the process's own to the root counts (Linux, cgroups v1 and v2).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60  # bytes; v1 writes a number near 2**63 for no limit


def count_cores(root: Path = ROOT, others: Iterable[int] = ()) -> int:
    """Return how many cores this process may use; a part of one that a quota leaves counts as one.

    With ``others``, the numbers of processes of this host, how many all of them may use together: a launcher
    may have bound each to cores of its own.
    """
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = os.sched_getaffinity(0)
        for process in others:
            with suppress(OSError):  # it has ended, or is in another PID namespace
                cores |= os.sched_getaffinity(process)
        allowed = len(cores)
    return min(allowed, max(1, math.ceil(quota))) if (quota := cpu_quota(root)) is not None else allowed


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return how many cores' time all processes of this one's cgroup may take; None without a limit."""
    found = []
    for group in cgroups("cpu", root):
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, (group / "cpu.max").read_text().split())
            found.append(quota / period)
        with suppress(OSError, ValueError):
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            found += [quota / period] if quota > 0 else []  # -1 for no limit
    return min(found, default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return how many bytes of memory this process's cgroup may take; None without a limit."""
    return min((limit for limit, _ in _memory(root)), default=None)


def available_memory(root: Path = ROOT) -> int:
    """Return how many bytes of memory this process can get: within each limit, and of the machine."""
    import psutil

    return min([int(psutil.virtual_memory().available), *(left for _, left in _memory(root))])


def cgroups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders of a controller's cgroups that this process is in, from its own to the root.

    A container may see its own cgroup as the root, though the process's path is that of its host.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = mount / path.strip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(mount))


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit of each cgroup that has one, and how much of it is left; the file cache is free."""
    for group in cgroups("memory", root):
        for names in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # no such file, or "max"
                limit, used = (int((group / name).read_text()) for name in names[:2])
                if limit < UNLIMITED:
                    yield limit, max(0, limit - used + _cached(group, names[2]))


def _cached(group: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        return next((int(value) for key, value in lines if key == name), 0)
    return 0
