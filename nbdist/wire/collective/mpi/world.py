"""The MPI world that this process was started in; the only module that imports mpi4py.

    world = enter_world()
    world.comm.rank, world.comm.size, world.mpi.BYTE

A world consists of the processes that one mpiexec, one srun or one cluster with the launcher "mpi" has
started. MPI's initialisation waits for all of them, so all enter the world at the same point of their
program: engines of `--launcher mpi` enter it when they start.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, MissingExtra
from nbdist.wire.collective.base import Member
from nbdist.wire.collective.mpi.links import Links
from nbdist.wire.collective.mpi.transport import stop_receiving
from nbdist.wire.shm import shared_folder

STARTED = ("PMI_RANK", "PMIX_RANK", "PMI_FD", "OMPI_COMM_WORLD_RANK")
SEGMENT = "mpich_shm_"
HOW = "start the ranks together: %cluster start --launcher mpi, or mpiexec -n 4 python script.py"
_entered: list[MpiWorld] = []
_entering = threading.Lock()


@dataclass(frozen=True)
class MpiWorld:
    """The world that this process has entered: mpi4py's MPI, our communicator of all ranks, and a name.

    ``links`` are watched connections to other hosts, in a world of launcher "mpi".
    """

    mpi: Any
    comm: Any
    name: str
    links: Links = field(default_factory=Links)


def enter_world(finalize: bool = True) -> MpiWorld:
    """Return this process's world; the first call waits until all processes of the world enter it.

    Without `finalize` this process does not wait at its end for the others, which may have died; the files
    that MPI_Finalize would remove are removed now. Raises FailedPreconditionError in a process that mpiexec
    has not started, MissingExtra without mpi4py.
    """
    with _entering:
        if not _entered:
            _entered.append(_enter(finalize))
        return _entered[0]


def _enter(finalize: bool) -> MpiWorld:
    if not is_started(os.environ):
        raise FailedPreconditionError(f"collective 'mpi': mpiexec has not started this process; {HOW}")
    try:
        import mpi4py
    except ImportError:
        raise MissingExtra("mpi", "collective 'mpi': mpi4py is missing") from None
    if not finalize:
        mpi4py.rc.finalize = False
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    # Several threads use MPI: one waits in a call, another reduces buckets, a third aborts.
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise FailedPreconditionError(
            "collective 'mpi' needs MPI with THREAD_MULTIPLE, but MPI was initialised with a lower level; "
            "do not change mpi4py.rc.thread_level, or use another collective"
        )
    # Messages of other code on COMM_WORLD, with any tag, must not mix with ours. One communicator serves all
    # groups, because Dup blocks until all ranks call it, and neither interrupts nor aborts can end that.
    comm = MPI.COMM_WORLD.Dup()
    name = bytearray(secrets.token_bytes(8))
    comm.Bcast(name)  # not `bcast`, which unpickles what it receives
    if not finalize:
        for path in segments_of(os.getpid()):  # all ranks have it open, and it is freed when they end
            Path(path).unlink(missing_ok=True)
    elif mpi4py.rc.finalize is not False:
        # mpi4py would finalize later, after Python has freed memory that messages may still arrive in.
        atexit.register(_finalize, MPI)
    return MpiWorld(MPI, comm, name.hex())


def segments_of(pid: int) -> set[str]:
    """Return the paths of the shared memory that MPI has opened in a process; none of one that has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        paths = {f"/{line.partition('/')[2]}" for line in lines if "/" in line}
        return {path for path in paths if is_segment(path, pid)}
    return set()


def is_segment(path: str, pid: int) -> bool:
    """Return whether a mapped file is shared memory of MPI: MPICH's or libfabric's.

    >>> is_segment("/dev/shm/mpich_shm_6f4da9a5_0", 7), is_segment("/dev/shm/7:0:0", 7)
    (True, True)
    >>> is_segment("/dev/shm/8:0:0", 7), is_segment("/usr/lib/libmpi.so", 7)
    (False, False)
    """
    folder, _, name = path.rpartition("/")
    return folder == str(shared_folder()) and name.startswith((SEGMENT, f"{pid}:"))


def _finalize(mpi: Any) -> None:
    if not mpi.Is_finalized():
        stop_receiving()
        mpi.Finalize()


def is_started(environment: Mapping[str, str]) -> bool:
    """Return whether a process with this environment was started in an MPI world.

    >>> is_started({"PMI_RANK": "0"}), is_started({"HOME": "/root"})
    (True, False)
    """
    return any(name in environment for name in STARTED)


def world_ranks(member: Member, infos: Sequence[dict[str, Any]]) -> list[int]:
    """Return the ranks' numbers in the world; FailedPreconditionError if they are not in one world."""
    for rank, info in enumerate(infos):
        if info["world"] != infos[0]["world"]:
            raise FailedPreconditionError(
                f"collective 'mpi' needs ranks of one MPI world, but {member.labels[rank]} is in another one "
                f"than {member.labels[0]}; {HOW}"
            )
    ranks = [int(info["world_rank"]) for info in infos]
    if len(set(ranks)) < len(ranks):
        raise FailedPreconditionError(
            f"collective 'mpi' needs one rank of each process, but the ranks in the world are {ranks}"
        )
    return ranks
