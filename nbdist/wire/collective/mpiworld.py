"""The MPI world that this process was started in; the only place that imports mpi4py.

    mpi = enter_world()             # mpi4py's MPI, initialised for several threads
    mpi.COMM_WORLD.rank

A world is the processes that one mpiexec (or srun) has started. MPI is initialised when it is first entered,
and that waits until every process of the world does so: engines of `--launcher mpi` all do as they start.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, MissingExtra
from nbdist.wire.collective.base import Member
from nbdist.wire.shm import shared_folder

WORLD_VARIABLE = "NBDIST_MPI_WORLD"  # the name of a world, where nbdist has started it
STARTED = ("PMI_RANK", "PMIX_RANK", "PMI_FD", "OMPI_COMM_WORLD_RANK")
SEGMENT = "mpich_shm_"
HOW = "start the ranks together: %cluster start --launcher mpi, or mpiexec -n 4 python script.py"


def enter_world(finalize: bool = True) -> Any:
    """Return mpi4py's MPI, initialised; whatever rank asks for it has to be one of a world.

    Without `finalize` this process ends without waiting for the others of its world, which may have died; all
    ranks come here at once then, and what MPI would have removed at the end is removed now.
    Raises FailedPreconditionError in a process that no mpiexec has started, MissingExtra without mpi4py.
    """
    if not is_started(os.environ):
        raise FailedPreconditionError(
            f"collective 'mpi': this process is not one that mpiexec started; {HOW}"
        )
    try:
        import mpi4py
    except ImportError:
        raise MissingExtra("mpi", "collective 'mpi': mpi4py is missing") from None
    if not finalize:
        mpi4py.rc.finalize = False
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    # One thread waits in a call, another reduces buckets, a third aborts: MPI has to bear that.
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise FailedPreconditionError(
            "collective 'mpi' needs MPI with THREAD_MULTIPLE, and here it was initialised with less; leave "
            "mpi4py.rc.thread_level as it is, or take another collective"
        )
    if mpi4py.rc.finalize is not False:
        # mpi4py would do it later, when Python has freed what messages may still come into.
        atexit.unregister(_finalize)
        atexit.register(_finalize, MPI)
    elif not finalize:
        MPI.COMM_WORLD.Barrier()
        _remove_names()
    return MPI


def _remove_names() -> None:
    """Take the name of MPICH's shared memory away, which all have open: it is gone when they have ended."""
    folder = str(shared_folder() / SEGMENT)
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.partition("/")[1] + line.partition("/")[2]
            if path.startswith(folder) and " " not in path:
                Path(path).unlink(missing_ok=True)


def _finalize(mpi: Any) -> None:
    if not mpi.Is_finalized():
        mpi.Finalize()


def is_started(environment: Mapping[str, str]) -> bool:
    """Return whether a process with this environment was started in an MPI world.

    >>> is_started({"PMI_RANK": "0"}), is_started({"HOME": "/root"})
    (True, False)
    """
    return any(name in environment for name in STARTED)


def world_name(environment: Mapping[str, str]) -> str:
    """Return what tells this world from others, "" if nothing does.

    >>> world_name({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}), world_name({})
    ('7.0', '')
    """
    for name in (WORLD_VARIABLE, "PMIX_NAMESPACE"):
        if environment.get(name):
            return environment[name]
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else ""


def world_ranks(member: Member, cards: Sequence[dict[str, Any]]) -> list[int]:
    """Return each rank's place in the world; FailedPreconditionError if they are not of one."""
    first = cards[0]
    for rank, card in enumerate(cards):
        for which in ("world", "world_size"):
            if card[which] != first[which]:
                raise FailedPreconditionError(
                    f"collective 'mpi' needs ranks of one MPI world, but {member.called[rank]} is in another "
                    f"one than {member.called[0]}; {HOW}"
                )
    ranks = [int(card["world_rank"]) for card in cards]
    for rank, place in enumerate(ranks):
        if ranks.index(place) != rank:
            one, other = member.called[ranks.index(place)], member.called[rank]
            raise FailedPreconditionError(
                f"collective 'mpi' needs ranks of one MPI world, but {one} and {other} are both number "
                f"{place} of theirs; {HOW}"
            )
    return ranks
