"""Our side of P6: all-reduce of ranks that are processes of this host. Prints µs per call."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import secrets
from multiprocessing.connection import Connection
from typing import Any

from bench.allreduce_work import measure, options


def main() -> None:
    given = options()
    processes = multiprocessing.get_context("spawn")
    pipes = [processes.Pipe() for _ in range(given.ranks)]
    incarnation, prefix = secrets.randbits(60), f"nbdist-bench{os.getpid()}"
    ranks = [
        processes.Process(target=work, args=(rank, given, incarnation, prefix, there))
        for rank, (_, there) in enumerate(pipes)
    ]
    for one in ranks:
        one.start()
    ends = [here for here, _ in pipes]
    infos = [end.recv() for end in ends]
    for end in ends:
        end.send(infos)
    outcomes = [end.recv() for end in ends]
    for one in ranks:
        one.join()
    print(json.dumps(outcomes[0]))


def work(rank: int, given: argparse.Namespace, incarnation: int, prefix: str, pipe: Connection) -> None:
    import numpy as np

    from nbdist.wire.collective.base import Member
    from nbdist.wire.collective.registry import form

    def exchange(info: dict[str, Any]) -> list[dict[str, Any]]:
        pipe.send(info)
        infos: list[dict[str, Any]] = pipe.recv()
        return infos

    names = tuple(f"rank {number}" for number in range(given.ranks))
    with form(Member(rank, ("here",) * given.ranks, names, incarnation, prefix), exchange) as group:
        count = given.bytes // 4
        x = group.symmetric_buffer((count,), np.float32) if given.symmetric else np.empty(count, np.float32)
        pipe.send(measure(lambda x: group.all_reduce(x, "sum", out=x), group.barrier, rank, group.size, x))


if __name__ == "__main__":
    main()
