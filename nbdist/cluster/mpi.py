"""An MPI world for engines that the keeper forks: mpiexec makes the world, its ranks hand over their seats.

    door = WorldDoor(folder)                # before mpiexec starts
    command = mpiexec_command(4)            # run it in the folder; it must live as long as the world
    seats = door.seats(4, timeout, check)   # by rank
    enter(seats, rank)                      # in the process that is to be that rank, a fork of this one

mpiexec starts small processes (`mpiseat`) that hand over their connection to it and wait. So engines stay
children of the keeper, like those of every cluster: each with its own environment, signals and exit code;
and when one dies, mpiexec does not see it, and the others live on.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from nbdist.cluster import mpiseat
from nbdist.cluster.keeper import short_path
from nbdist.errors import DeadlineExceededError, MissingExtra, UnavailableError
from nbdist.wire.collective.mpiworld import enter_world

LOOK_SECONDS = 0.1  # between two looks whether mpiexec still lives
MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class WorldSeat:
    """One rank's place in a world: its connection to mpiexec, and what its environment has to say."""

    descriptor: int
    environment: Mapping[str, str]
    holder: socket.socket
    """Keeps the process that mpiexec started waiting; the world ends with it."""


def mpiexec_command(ranks: int) -> list[str]:
    """Return the command that makes a world on this host; MissingExtra without mpi4py or mpiexec."""
    beside = Path(sys.executable).parent / "mpiexec"  # where the package mpich puts it
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None or find_spec("mpi4py") is None:
        raise MissingExtra("mpi", "launcher 'mpi': it takes mpi4py, and MPICH's mpiexec")
    # -S and -I: the seats need nothing but the standard library, and start in hundredths of a second.
    seat = [sys.executable, "-I", "-S", str(Path(mpiseat.__file__))]
    local = ["-launcher", "fork", "-rmk", "user"]  # also inside a job of Slurm's
    return [mpiexec, *local, "-disable-auto-cleanup", "-n", str(ranks), *seat]


class WorldDoor:
    """Where the ranks of a world hand over their seats; the folder is one that only this user can enter."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / mpiseat.DOOR
        self._door = socket.socket(socket.AF_UNIX)
        with short_path(folder) as short:
            self._door.bind(f"{short}/{mpiseat.DOOR}")
        self._door.listen(512)

    def seats(self, ranks: int, timeout: float, check: Callable[[], None]) -> dict[int, WorldSeat]:
        """Return all seats by rank, once they are there; `check` raises when they will not come."""
        deadline = time.monotonic() + timeout
        seats: dict[int, WorldSeat] = {}
        self._door.settimeout(LOOK_SECONDS)
        while len(seats) < ranks:
            try:
                holder, _ = self._door.accept()
            except TimeoutError:
                check()
                if time.monotonic() > deadline:
                    raise DeadlineExceededError(
                        f"mpiexec has started {len(seats)} of {ranks} processes within {timeout:g} s"
                    ) from None
                continue
            holder.settimeout(timeout)
            said, descriptors, _, _ = socket.recv_fds(holder, MOST_BYTES, 1)
            environment: dict[str, str] = json.loads(said)
            if not descriptors:
                raise UnavailableError(
                    "this mpiexec does not speak PMI by PMI_FD, as MPICH's does: pip install mpich"
                )
            environment["PMI_FD"] = str(descriptors[0])
            seats[int(environment["PMI_RANK"])] = WorldSeat(descriptors[0], environment, holder)
        return seats

    def close(self) -> None:
        """Take the door away; the seats that were handed over stay."""
        self._door.close()
        self._path.unlink(missing_ok=True)


def leave_seats(seats: Mapping[int, WorldSeat], but: int | None = None) -> None:
    """Close the connections to mpiexec of all ranks but one; the processes that hold the world stay."""
    for rank, seat in seats.items():
        if rank != but:
            os.close(seat.descriptor)


def enter(seats: Mapping[int, WorldSeat], rank: int) -> None:
    """Make this process, which is about to become an engine, a rank of the world; all ranks do so at once.

    MPI is not finalized when it ends: that would wait for engines that may have died.
    """
    leave_seats(seats, but=rank)
    for seat in seats.values():
        seat.holder.close()
    os.environ.update(seats[rank].environment)
    enter_world(finalize=False)
