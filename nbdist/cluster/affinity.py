"""The cores of each worker: those of its GPU's NUMA node, shared fairly between the workers of a node.

    near = cores_near(("GPU-8f3a...", "GPU-91bc..."))        # by NVML: {"GPU-8f3a...": frozenset({0, 1})}
    bound = bind_cores([near.get(gpu) for gpu in of_each_worker], allowed_cores(), siblings_of)
    format_cores(bound[0])                                    # "0-1", for the worker's environment

A copy between a GPU and memory of another socket crosses the link between the sockets, and so does each
launch from a core there. A process that is bound before it allocates has its memory on the near node, too:
Linux places a page where it is written first.

A worker is bound only where that selects something: to a proper part of the cores that this process may use
(its cgroup's and taskset's limits), and to none that it may not use. Parameter servers and workers without a
GPU are not bound. The supervisor of another host reports its topology; the division is made on the head.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from nbdist.metrics.gpu_usage import find_device

Cores = frozenset[int]
Topology: TypeAlias = Mapping[str, Any]
"""The cores near each GPU of a host, those that it may use, and the threads of each physical core."""
CORES_VARIABLE = "NBDIST_CORES"
MASK_WORDS, WORD_BITS = 64, 64  # of NVML's mask: 4,096 cores
TOPOLOGY = Path("/sys/devices/system/cpu")


def bind_cores(
    near: Sequence[Cores | None], allowed: Cores, siblings: Callable[[int], Cores]
) -> list[tuple[int, ...]]:
    """Return the cores of each worker, an empty tuple for one that is not bound. Pure.

    ``near`` are the cores near each worker's GPU, None if they are unknown; ``siblings`` returns the hardware
    threads of the physical core that a core belongs to. Workers with the same near cores divide the physical
    ones evenly; if there are fewer of them than workers, each worker has all.

    >>> alone = lambda core: frozenset([core])
    >>> node = [frozenset(range(4)), frozenset(range(4, 8))]
    >>> bind_cores([node[0], node[1], node[0]], frozenset(range(8)), alone)
    [(0, 1), (4, 5, 6, 7), (2, 3)]
    >>> bind_cores([frozenset(range(8)), None], frozenset(range(8)), alone)
    [(), ()]
    """
    usable = [(cores or frozenset()) & allowed for cores in near]
    bound: list[tuple[int, ...]] = [() for _ in near]
    for cores in set(usable) - {frozenset(), allowed}:
        workers = [number for number, own in enumerate(usable) if own == cores]
        physical = sorted({tuple(sorted(siblings(core) & cores | {core})) for core in cores})
        for place, number in enumerate(workers):
            share = physical
            if len(physical) >= len(workers):
                first, end = (len(physical) * n // len(workers) for n in (place, place + 1))
                share = physical[first:end]
            bound[number] = tuple(sorted(core for threads in share for core in threads))
    return bound


def worker_cores(
    workers: int, gpus: Sequence[str], topology: Topology | None = None
) -> list[tuple[int, ...]]:
    """Return the cores of each of the workers of a host, which have its GPUs in turn; see `bind_cores`.

    ``topology`` is the host's, as its supervisor reports it; None for this host.

    >>> topology = {"near": {"GPU-1": "0-3"}, "allowed": "0-7", "threads": ["0,2", "1,3"]}
    >>> worker_cores(2, ["GPU-1"], topology)
    [(0, 2), (1, 3)]
    """
    if not gpus:
        return [()] * workers
    found = describe_topology(gpus) if topology is None else topology
    near = {gpu: parse_cores(cores) for gpu, cores in found["near"].items()}
    physical = {core: threads for threads in map(parse_cores, found["threads"]) for core in threads}
    return bind_cores(
        [near.get(gpus[i % len(gpus)]) for i in range(workers)],
        parse_cores(found["allowed"]),
        lambda core: physical.get(core, frozenset([core])),
    )


def describe_topology(gpus: Sequence[str]) -> dict[str, Any]:
    """Return what `worker_cores` has to know of this host, as plain values."""
    near = cores_near(gpus) if gpus else {}
    return {
        "near": {gpu: format_cores(cores) for gpu, cores in near.items()},
        "allowed": format_cores(allowed_cores()),
        "threads": sorted({format_cores(siblings_of(core)) for cores in near.values() for core in cores}),
    }


def cores_near(gpus: Iterable[str]) -> dict[str, Cores]:
    """Return the cores of the NUMA node of each GPU, by its CUDA name, as far as NVML knows them."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # no library, no driver: the start of the cluster checks both
        return {}
    try:
        found = {}
        for gpu in dict.fromkeys(gpus):
            with suppress(nvml.NVMLError):  # an abbreviated UUID, or a host that has no such figure
                if (device := find_device(nvml, gpu)) is None:
                    continue
                if gpu.startswith("MIG-"):
                    device = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
                found[gpu] = cores_in(nvml.nvmlDeviceGetCpuAffinity(device, MASK_WORDS))
        return found
    finally:
        nvml.nvmlShutdown()


def cores_in(mask: Iterable[int]) -> Cores:
    """Return the cores of a mask of words with 64 bits, the lowest first.

    >>> sorted(cores_in([0b101, 1]))
    [0, 2, 64]
    """
    return frozenset(
        WORD_BITS * place + bit
        for place, word in enumerate(mask)
        for bit in range(WORD_BITS)
        if int(word) >> bit & 1
    )


def allowed_cores() -> Cores:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def siblings_of(core: int, folder: Path = TOPOLOGY) -> Cores:
    """Return the hardware threads of a core's physical core, itself alone if the system does not say."""
    try:
        return parse_cores((folder / f"cpu{core}/topology/thread_siblings_list").read_text())
    except (OSError, ValueError):
        return frozenset([core])


def parse_cores(text: str) -> Cores:
    """Return the cores of a list as Linux writes it.

    >>> sorted(parse_cores("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_cores(cores: Iterable[int]) -> str:
    """Return cores as a list as Linux writes it.

    >>> format_cores([8, 0, 1, 2]), format_cores([])
    ('0-2,8', '')
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and runs[-1][-1] == core - 1:
            runs[-1][1:] = [core]
        else:
            runs.append([core])
    return ",".join("-".join(map(str, run)) for run in runs)


def describe_binding(environments: Mapping[str, Mapping[str, str]]) -> str:
    """Return a line of a bring-up's report from the environments of tasks, empty if none is bound.

    >>> describe_binding({"worker:0": {"NBDIST_CORES": "0-7"}, "ps:0": {}})
    'cores near the GPUs: worker:0 0-7'
    """
    bound = [f"{name} {env[CORES_VARIABLE]}" for name, env in environments.items() if CORES_VARIABLE in env]
    return f"cores near the GPUs: {'; '.join(bound)}" if bound else ""


def bind_this_process(cores: str) -> None:
    """Bind this process, which has one thread, to the cores of its CORES_VARIABLE that it may still use."""
    with suppress(OSError):  # all of them were taken off since the start
        os.sched_setaffinity(0, parse_cores(cores) & allowed_cores())


def bound_cores(pid: int) -> str:
    """Return the cores of a process of this host if they are fewer than this process may use, else "".

    A process that has ended has none.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ""
    try:
        cores = frozenset(os.sched_getaffinity(pid))
    except OSError:
        return ""
    return format_cores(cores) if cores < allowed_cores() else ""
