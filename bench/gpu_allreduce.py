"""Both sides of G2: the bus bandwidth of an all-reduce of ranks with a GPU each, on one host. Prints GB/s.

    python -m bench.gpu_allreduce --side nbdist --bytes 64000000      # nbdist's group of kind "nccl"
    python -m bench.gpu_allreduce --side cupy --bytes 64000000        # NCCL itself, through CuPy
    python -m bench.gpu_allreduce --side nccl-tests --bytes 64000000  # all_reduce_perf, if it is installed

The bus bandwidth is that of nccl-tests: bytes / time * 2 (n - 1) / n for n ranks (its PERFORMANCE.md).
``--rehearse`` runs two ranks on NumPy arrays, nbdist's own collective on both sides.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from bench.script import not_measured

CALLS, BATCHES = 20, 5  # calls by one clock, as in nccl-tests; the best of several batches counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", choices=["nbdist", "cupy", "nccl-tests"], required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    gpus = ("", "") if options.rehearse else gpus_here()
    if options.side == "nccl-tests":
        print(json.dumps(nccl_tests(options.bytes, len(gpus))))
        return
    run = cupy_rank if options.side == "cupy" and not options.rehearse else nbdist_rank
    print(json.dumps(in_processes(run, gpus, options.bytes)))


def gpus_here() -> Sequence[str]:
    from nbdist.cluster.gpus import list_gpus

    gpus = list_gpus()
    if len(gpus) < 2:
        raise not_measured(f"an all-reduce needs 2 GPUs, and this host has {len(gpus)}")
    return gpus


Exchange = Callable[[Any], list[Any]]
Rank = Callable[[int, int, int, Exchange, int, bool], dict[str, Any]]


def in_processes(run: Rank, gpus: Sequence[str], nbytes: int) -> dict[str, Any]:
    """Run a rank in a process for each GPU; return the outcome of the first."""
    processes = multiprocessing.get_context("spawn")
    pipes = [processes.Pipe() for _ in gpus]
    incarnation = secrets.randbits(60)
    ranks = [
        processes.Process(target=rank_process, args=(run, rank, gpu, len(gpus), nbytes, incarnation, there))
        for rank, (gpu, (_, there)) in enumerate(zip(gpus, pipes, strict=True))
    ]
    for one, (_, there) in zip(ranks, pipes, strict=True):
        one.start()
        there.close()  # so that nothing is waited for when a rank has failed
    ends = [here for here, _ in pipes]
    infos = [end.recv() for end in ends]
    for end in ends:
        end.send(infos)
    outcomes = [end.recv() for end in ends]
    for one in ranks:
        one.join()
    return {**outcomes[0], "check": {"correct": all(one["check"]["correct"] for one in outcomes)}}


def rank_process(
    run: Rank, rank: int, gpu: str, size: int, nbytes: int, incarnation: int, pipe: Connection
) -> None:
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before CuPy is loaded

    def exchange(info: Any) -> list[Any]:
        pipe.send(info)
        infos: list[Any] = pipe.recv()
        return infos

    pipe.send(run(rank, size, nbytes, exchange, incarnation, bool(gpu)))


def nbdist_rank(
    rank: int, size: int, nbytes: int, exchange: Exchange, incarnation: int, on_gpu: bool
) -> dict[str, Any]:
    """Measure nbdist's group: of kind "nccl" with a GPU, else the host's."""
    import numpy as np

    from nbdist.wire.collective.base import Member
    from nbdist.wire.collective.registry import form

    names, prefix = tuple(f"rank {number}" for number in range(size)), f"nbdist-bench{incarnation:x}"
    xp: Any = np
    if on_gpu:
        import cupy

        xp = cupy
    member = Member(rank, ("here",) * size, names, incarnation, prefix)
    with form(member, exchange, "nccl" if on_gpu else "auto") as ours:
        return measure(xp, lambda x: ours.all_reduce(x, "sum", out=x), ours.barrier, rank, size, nbytes)


def cupy_rank(
    rank: int, size: int, nbytes: int, exchange: Exchange, incarnation: int, on_gpu: bool
) -> dict[str, Any]:
    """Measure NCCL itself: calls are launched one after the other, as in nccl-tests."""
    import importlib

    import cupy

    nccl = importlib.import_module("cupy.cuda.nccl")
    first = exchange(nccl.get_unique_id() if rank == 0 else b"")[0]
    communicator = nccl.NcclCommunicator(size, first, rank)
    stream = cupy.cuda.get_current_stream()

    def all_reduce(x: Any) -> None:
        there = x.data.ptr
        communicator.allReduce(there, there, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)

    return measure(cupy, all_reduce, stream.synchronize, rank, size, nbytes)


def measure(
    xp: Any,
    all_reduce: Callable[[Any], object],
    wait: Callable[[], object],
    rank: int,
    size: int,
    nbytes: int,
) -> dict[str, Any]:
    """Return the bus bandwidth in GB/s, and whether a sum is right. All ranks make the same calls."""
    x = xp.full(nbytes // 4, rank + 1, "f4")
    all_reduce(x)
    wait()
    correct = bool((x == size * (size + 1) / 2).all())
    x.fill(0)  # repeated sums do not change zeros
    best = float("inf")
    for _ in range(BATCHES + 1):  # the first one warms up
        wait()
        begin = time.perf_counter()
        for _ in range(CALLS):
            all_reduce(x)
        wait()
        best = min(best, (time.perf_counter() - begin) / CALLS)
    return {"value": bus_bandwidth(nbytes, best, size), "check": {"correct": correct}}


def bus_bandwidth(nbytes: int, seconds: float, size: int) -> float:
    """Return GB/s.

    >>> bus_bandwidth(10**9, 0.1, 2)
    10.0
    """
    return nbytes / seconds * 2 * (size - 1) / size / 1e9


def nccl_tests(nbytes: int, gpus: int) -> dict[str, Any]:
    """Return what nccl-tests measures, in one process with a thread of NCCL for each GPU."""
    program = perf_program()
    if program is None:
        raise not_measured("nccl-tests is not installed: all_reduce_perf is not in PATH")
    command = [program, "-b", str(nbytes), "-e", str(nbytes), "-g", str(gpus), "-n", str(CALLS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return read_perf(ended.stdout, nbytes)


def perf_program() -> str | None:
    """Return the path of nccl-tests' program, None if it is not installed."""
    return shutil.which(os.environ.get("NBDIST_NCCL_TESTS", "all_reduce_perf"))


def read_perf(output: str, nbytes: int) -> dict[str, Any]:
    """Return the in-place bus bandwidth that all_reduce_perf prints, and whether its results were right.

    A line is: size count type redop root, then time algbw busbw #wrong, out of place and in place.
    """
    for line in output.splitlines():
        words = line.split()
        if len(words) == 13 and re.fullmatch(r"\d+", words[0]) and abs(int(words[0]) - nbytes) < 64:
            return {"value": float(words[11]), "check": {"correct": words[8] == words[12] == "0"}}
    raise not_measured(f"all_reduce_perf printed no line for {nbytes} bytes:\n{output[-500:]}")


if __name__ == "__main__":
    main()
