"""Measures the simulation's costs on this machine: ``python -m bench.calibrate``. Two processes, two cores.

Each figure is the best of many batches, because other load on the machine only makes them worse.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

BYTES, SECONDS = 16 << 20, 1.0


def main() -> None:
    ring, shm = ranks("ring"), ranks("shm")
    copied = 2 * 5 * BYTES - 2 * BYTES  # Cost.shared_memory_s: what two ranks read and write
    print(f"message_s           {ring['barrier'] / 2:.2g}   half a letter to the neighbour, same host")
    print(f"socket_s_per_byte   {ring['all_reduce'] / BYTES / 2:.2g}   sent and received, encrypted, added")
    print(f"meeting_s           {shm['barrier']:.2g}   two ranks that spin")
    print(f"memory_bytes_per_s  {copied / shm['all_reduce']:.2g}   all-reduce of {BYTES >> 20} MB")
    print(f"apply_s_per_byte    {apply():.2g}   SGD, {BYTES >> 20} MB")


def best(work: Callable[[], object], calls: int) -> float:
    """Return the seconds of a call, in the best of many batches."""
    work()
    least, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        least = min(least, (time.perf_counter() - begin) / calls)
    return least


def apply() -> float:
    """Return the seconds that a byte of gradients takes to be applied."""
    from nbdist.optim import SGD

    parameters, gradient, rule = np.zeros(BYTES // 4, "f4"), np.ones(BYTES // 4, "f4"), SGD(0.1)
    slots = rule.new_slots(parameters)
    return best(lambda: rule.apply(parameters, gradient, slots, 1), 1) / BYTES


def ranks(kind: str) -> dict[str, float]:
    """Return the seconds of a barrier and of an all-reduce of two processes."""
    processes = multiprocessing.get_context("spawn")
    pipes = [processes.Pipe() for _ in range(2)]
    from nbdist.wire.keys import ClusterKeys

    member = (kind, secrets.randbits(60), f"nbdist-bench{os.getpid()}", ClusterKeys.create().to_dict())
    everyone = [
        processes.Process(target=rank, args=(n, *member, there)) for n, (_, there) in enumerate(pipes)
    ]
    for one in everyone:
        one.start()
    infos = [here.recv() for here, _ in pipes]
    for here, _ in pipes:
        here.send(infos)
    times = [here.recv() for here, _ in pipes]
    for one in everyone:
        one.join()
    found: dict[str, float] = times[0]
    return found


def rank(
    number: int, kind: str, incarnation: int, prefix: str, keys: dict[str, str], pipe: Connection
) -> None:
    from nbdist.runtime.heap import keep_freed_memory
    from nbdist.wire.collective.base import Member
    from nbdist.wire.collective.registry import form
    from nbdist.wire.keys import ClusterKeys

    def exchange(info: dict[str, Any]) -> list[dict[str, Any]]:
        pipe.send(info)
        infos: list[dict[str, Any]] = pipe.recv()
        return infos

    hosts = ("here",) * 2 if kind == "shm" else ("here", "there")
    member = Member(number, hosts, ("rank 0", "rank 1"), incarnation, prefix, ClusterKeys.from_dict(keys))
    keep_freed_memory()  # as tasks do
    with form(member, exchange) as group:
        x = np.zeros(BYTES // 4, np.float32)
        pipe.send(
            {
                "barrier": together(group, group.barrier, 2),
                "all_reduce": together(group, lambda: group.all_reduce(x, "sum", out=x), 1),
            }
        )


def together(group: Any, work: Callable[[], object], calls: int) -> float:
    """Return the seconds of a call; both ranks stop after the same batch."""
    least, spent = float("inf"), 0.0
    while float(group.all_reduce(np.array(spent), "max")) < SECONDS:
        group.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        took = time.perf_counter() - begin
        least, spent = min(least, took / calls), spent + took
    return least


if __name__ == "__main__":
    main()
