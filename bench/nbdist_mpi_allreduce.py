"""P6 where values travel by MPI: all-reduce of kind "mpi", ranks under mpiexec. Prints µs a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.allreduce_work import measure, options


def main() -> None:
    given = options()
    if "PMI_RANK" in os.environ:
        work(given.bytes)
        return
    launcher = Path(sys.executable).parent / "mpiexec"  # which the package mpich brings
    subprocess.run(
        [launcher, "-n", str(given.ranks), sys.executable, "-m", "bench.nbdist_mpi_allreduce", *sys.argv[1:]],
        check=True,
    )


def work(nbytes: int) -> None:
    import numpy as np
    from mpi4py import MPI

    from nbdist.wire.collective.base import Member
    from nbdist.wire.collective.registry import form

    world = MPI.COMM_WORLD
    names = tuple(f"rank {rank}" for rank in range(world.size))
    member = Member(world.rank, ("here",) * world.size, names, 7, "nbdist-bench")
    with form(member, world.allgather, "mpi") as group:
        x = np.empty(nbytes // 4, np.float32)
        outcome = measure(
            lambda x: group.all_reduce(x, "sum", out=x), group.barrier, group.rank, group.size, x
        )
    if world.rank == 0:
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
