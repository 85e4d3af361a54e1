"""Plans the tasks of hosts: name, share of the cores, GPU, memory limit. Starts nothing."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbdist.cluster.affinity import CORES_VARIABLE, format_cores, worker_cores
from nbdist.cluster.gpus import choose_gpus
from nbdist.errors import InvalidArgumentError
from nbdist.machine import count_cores
from nbdist.numbers import is_whole

# A library reads its variable when it is loaded, so the variable must be set before the process starts.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True)
class TaskPlan:
    """A task to start: its job, its index and rank, its device, and the environment of its process.

    ``host`` is its host's name, "" for the client's own, and ``gpus`` are those that the cluster uses there.
    """

    job: str
    index: int
    rank: int
    device: str
    environment: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    gpus: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The task's name, such as /job:worker/task:1."""
        return f"/job:{self.job}/task:{self.index}"

    def to_dict(self) -> dict[str, Any]:
        """Return what the supervisor needs to know of it, as plain values."""
        own = {"rank": self.rank, "host": self.host, "gpus": list(self.gpus)}
        return {**own, "environment": dict(self.environment)}

    @property
    def threads(self) -> int:
        """How many threads it computes on."""
        return int(self.environment[THREAD_VARIABLES[0]])


HERE = ""  # the name of the client's own host


@dataclass(frozen=True)
class HostResources:
    """What the tasks of a host share: its cores, its GPUs by CUDA's names, and the cores of each worker."""

    cores: int
    gpus: Sequence[str] = ()
    bound: Sequence[Sequence[int]] = ()


def resources_of(report: Mapping[str, Any], gpus: str | int, workers: int) -> HostResources:
    """Return what another host gives a cluster with so many workers there, by its supervisor's report.

    ``gpus`` are those to use. Raises InvalidArgumentError, with the host's name, for GPUs that it does not
    have.
    """
    try:
        use = choose_gpus(gpus, report["gpus"])
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"host {report['name']}: {error}") from None
    return HostResources(report["cores"], use, worker_cores(workers, use, report["topology"]))


def plan_tasks(
    workers: int,
    ps: int = 0,
    data: int = 0,
    *,
    cores: int,
    gpus: Sequence[str] = (),
    threads: int | None = None,
    gpu_memory: float | None = None,
    memory: int | None = None,
    bound: Sequence[Sequence[int]] = (),
) -> tuple[TaskPlan, ...]:
    """Return the tasks of one host by rank: workers 0..W-1, then parameter servers, then data tasks.

    Worker 0 is the chief. ``cores`` is the number of cores of the host. ``gpus`` are CUDA's names of its GPUs
    (numbers or UUIDs): each worker gets one, round-robin; other tasks get none. ``threads`` per task
    defaults to an equal share of the cores, at least one. ``gpu_memory`` is the share of a GPU's memory that
    a worker may take, in (0, 1]; ``memory`` is the limit for graphs, in bytes. None means no limit. ``bound``
    are the cores of each worker, none for one that is not bound (`nbdist.cluster.affinity`).

    Raises InvalidArgumentError for invalid numbers.

    >>> [task.name for task in plan_tasks(2, 1, cores=4)]
    ['/job:worker/task:0', '/job:worker/task:1', '/job:ps/task:0']
    """
    check_counts(workers, ps, threads, gpu_memory, data)
    return plan_placed(
        [HERE] * (workers + ps + data), workers, ps, data, {HERE: HostResources(cores, gpus, bound)},
        threads=threads, gpu_memory=gpu_memory, memory=memory,
    )  # fmt: skip


def plan_placed(
    places: Sequence[str],
    workers: int,
    ps: int,
    data: int,
    hosts: Mapping[str, HostResources],
    *,
    threads: int | None = None,
    gpu_memory: float | None = None,
    memory: int | None = None,
) -> tuple[TaskPlan, ...]:
    """Return the plans of all tasks by rank: workers, then parameter servers, then data tasks.

    ``places`` are their hosts, and ``hosts`` what each host has. The tasks of a host share its cores equally,
    and its workers have its GPUs in turn. The other arguments are those of `plan_tasks`.

    >>> plans = plan_placed(("a", "b", "b"), 2, 1, 0, {"a": HostResources(4), "b": HostResources(4, ("7",))})
    >>> [(plan.host, plan.threads, plan.device) for plan in plans]
    [('a', 4, 'CPU:0'), ('b', 2, 'GPU:0'), ('b', 2, 'CPU:0')]
    """
    counts = {"worker": workers, "ps": ps, "data": data}
    tasks = [(job, index) for job, count in counts.items() for index in range(count)]
    on_host, placed, plans = Counter(places), Counter[tuple[str, str]](), []
    for rank, ((job, index), host) in enumerate(zip(tasks, places, strict=True)):
        own = hosts[host]
        plans.append(
            plan_task(
                job, index, rank, share_of(own.cores, on_host[host], threads), host=host,
                slot=placed[host, job], gpus=own.gpus, threads=threads, gpu_memory=gpu_memory,
                memory=memory, bound=own.bound,
            )
        )  # fmt: skip
        placed[host, job] += 1
    return tuple(plans)


def share_of(cores: int, tasks: int, threads: int | None = None) -> int:
    """Return how many threads each task computes on: ``threads``, or else an equal share of the cores."""
    return threads or max(1, cores // tasks)


def plan_task(
    job: str,
    index: int,
    rank: int,
    share: int,
    *,
    host: str = "",
    slot: int,
    gpus: Sequence[str],
    threads: int | None,
    gpu_memory: float | None,
    memory: int | None,
    bound: Sequence[Sequence[int]],
) -> TaskPlan:
    """Return the plan of one task, whose ``share`` are threads; the rest is as for `plan_tasks`.

    ``slot`` is its number among the tasks of its job on its ``host``.

    Only its own GPU is visible to its process. A task that is bound to fewer cores has no more threads.
    """
    gpu = gpus[slot % len(gpus)] if gpus and job == "worker" else None
    cores = bound[slot] if job == "worker" and slot < len(bound) else ()
    own = min(share, len(cores)) if cores and threads is None else share
    environment = {
        **dict.fromkeys(THREAD_VARIABLES, str(own)),
        "CUDA_VISIBLE_DEVICES": "-1" if gpu is None else gpu,
        "NBDIST_JOB": job,
        "NBDIST_INDEX": str(index),
        "NBDIST_RANK": str(rank),
    }
    if cores:
        environment[CORES_VARIABLE] = format_cores(cores)
    if memory is not None:
        environment[MEMORY_VARIABLE] = str(memory)
    if gpu is not None and gpu_memory is not None:
        environment["CUPY_GPU_MEMORY_LIMIT"] = f"{100 * gpu_memory:g}%"  # rounded to 0% it would be no limit
    # A task sees only its own GPU, which is therefore number 0 to it.
    return TaskPlan(job, index, rank, "CPU:0" if gpu is None else "GPU:0", environment, host, tuple(gpus))


MOST_TASKS = 512
MOST_THREADS = 4096
MEMORY_VARIABLE = "NBDIST_MEMORY_LIMIT"
LEAST_MEMORY, MOST_MEMORY = 64 << 10, 1 << 50  # bytes
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_memory(asked: str | int | None) -> int | None:
    """Return a number of bytes, given one or a text such as 300M or 2.5G; None for None.

    Raises InvalidArgumentError for another text, for less than 64K, and for more than a petabyte.

    >>> parse_memory("1.5M")
    1572864
    """
    if asked is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?)i?B?", str(asked).strip(), re.IGNORECASE)
    if found is None or isinstance(asked, bool) or float(found[1]) <= 0:
        raise InvalidArgumentError(f"memory is a number of bytes or a text such as 300M or 2G, not {asked!r}")
    if float(found[1]) * UNITS[found[2].upper()] > MOST_MEMORY:
        raise InvalidArgumentError(
            f"memory is {str(asked)[:40]!r}, more than any host has; give the bytes that a task may take, "
            "such as 2G"
        )
    memory = int(float(found[1]) * UNITS[found[2].upper()])
    if memory < LEAST_MEMORY:
        raise InvalidArgumentError(
            f"memory is {str(asked)!r}, {memory:,} bytes, which hold no model: give at least 64K; M and G "
            "stand for megabytes and gigabytes, as in 300M or 2G"
        )
    return memory


def check_counts(
    workers: int, ps: int, threads: int | None, gpu_memory: float | None = None, data: int = 0
) -> None:
    """Raise InvalidArgumentError for invalid numbers of tasks of each job, threads or GPU memory."""
    counts = (("workers", workers, 1), ("ps", ps, 0), ("data", data, 0), ("threads", threads, 1))
    for name, value, least in counts:
        if value is None and name == "threads":
            continue
        if not is_whole(value, least):
            raise InvalidArgumentError(f"{name} is a whole number of {least} or more, not {value!r}")
    if threads is not None and threads > MOST_THREADS:
        raise InvalidArgumentError(f"threads is a whole number of 1 to {MOST_THREADS:,}, not {threads:,}")
    if workers + ps + data > MOST_TASKS:
        raise InvalidArgumentError(
            f"{workers + ps + data:,} tasks are more than the {MOST_TASKS} that a cluster may have; this "
            f"host has {count_cores()} cores"
        )
    if gpu_memory is not None and not (isinstance(gpu_memory, (int, float)) and 0 < gpu_memory <= 1):
        raise InvalidArgumentError(f"gpu_memory is a share of a GPU in (0, 1], not {gpu_memory!r}")


# How many threads the BLAS of this process computes on, once it is loaded.

# NumPy's wheels, builds with 64-bit integers, distributions.
SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
GETTERS = tuple(name.replace("_set_", "_get_") for name in SETTERS)


def set_blas_threads(threads: int) -> bool:
    """Set the number of threads of each OpenBLAS in this process; return whether one was found.

    OpenBLAS reads its environment variables once, when it is loaded. A process that was forked after that,
    with another share of the cores, must therefore call its function.
    """
    answers = [_call(library, SETTERS, threads) for library in _loaded()]  # each of them, not the first alone
    return any(answer is not None for answer in answers)


def blas_threads() -> int | None:
    """Return the number of threads of this process's OpenBLAS; None if it has none."""
    return next((found for library in _loaded() if (found := _call(library, GETTERS)) is not None), None)


def _loaded() -> list[ctypes.CDLL]:
    """Return the OpenBLAS libraries of this process (Linux)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "openblas" in line)
    found = []
    for path in paths:
        with suppress(OSError):
            found.append(ctypes.CDLL(path))
    return found


def _call(library: ctypes.CDLL, names: tuple[str, ...], *arguments: int) -> int | None:
    for name in names:
        if hasattr(library, name):
            return int(getattr(library, name)(*arguments))
    return None
