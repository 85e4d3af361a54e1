"""Launcher "mpi": an MPI world of engines on one host, without mpiexec.

The supervisor forks the ranks and serves PMI to them (mpiexec does this elsewhere):

    manager = ProcessManager(4)             # before the ranks are forked
    manager.enter(rank)                     # in the forked process that becomes this rank
    manager.hand_over()                     # in the parent process, when all are forked
    manager.answer(connection)              # there, whenever one of `manager.connections` is readable

PMI is the protocol by which the processes of a world find each other (PMI-1 of MPICH: "cmd=... key=value"
lines, a key-value store and a barrier). mpiexec serves it too, but listens on 0.0.0.0 without authentication.
Here it is served over socket pairs that the ranks inherit (PMI_FD), so no other process can reach it. Engines
stay children of their parent process, each with its own environment, signals and exit code, and when one
dies, the others continue.

Within a host MPICH moves bytes through shared memory of mode 0600, whatever its network module is. That
module opens ports that accept every connection. The launcher therefore selects a module that opens none
(libfabric's "shm"), and an engine refuses to start if MPI has opened a listening socket in its process.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.spec import LauncherSpec, LaunchRequest
from nbdist.errors import FailedPreconditionError, MissingExtra
from nbdist.wire.collective.mpi.world import MpiWorld, enter_world

if TYPE_CHECKING:
    from nbdist.cluster.supervisor.process import SupervisorProcess

MAX_BYTES = 1 << 20  # of one request, and of all that the ranks publish
# MPICH without libfabric uses UCX. These settings leave only its abstract sockets, which are refused.
CLOSED = {
    "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "shm",
    "UCX_TLS": "self,sm", "UCX_VFS_ENABLE": "n",
}  # fmt: skip
ADVICE = "install the MPICH that nbdist is tested with: pip install mpich"


def require_mpi() -> None:
    """Raise MissingExtra without mpi4py."""
    if find_spec("mpi4py") is None:
        raise MissingExtra("mpi", "launcher 'mpi': it takes mpi4py and MPICH")


class MpiLauncher(ForkLauncher):
    """Forks the tasks of a cluster as the ranks of one MPI world, and serves PMI to them."""

    def __init__(self, request: LaunchRequest) -> None:
        super().__init__(request)
        self.manager = ProcessManager(request.ranks)
        self.complete = False  # an MPI world takes no ranks later

    def enter_child(self, rank: int) -> None:
        """Enter the world, unless this process replaces one of its ranks."""
        if not self.complete:
            self.manager.enter(rank)

    def all_started(self, supervisor: SupervisorProcess) -> None:
        """Answer the ranks from now on: all of them have inherited their connections."""
        self.complete = True
        self.manager.hand_over()

        def answer(connection: socket.socket) -> None:
            descriptor = connection.fileno()
            if not self.manager.answer(connection):
                supervisor.selector.unregister(descriptor)

        for connection in self.manager.connections.values():
            supervisor.selector.register(connection, selectors.EVENT_READ, answer)

    def close_in_child(self) -> None:
        """Close the supervisor's ends of the ranks' connections."""
        for connection in self.manager.connections.values():
            connection.close()


SPEC = LauncherSpec(
    "mpi",
    help="engines in one MPI world, on this host",
    make=MpiLauncher,
    fixed_size="an MPI world can neither add nor remove processes",
    one_host="between hosts MPI has ports without authentication or encryption (docs/security.md), at which "
    "others could change values and end ranks. Start workers on several hosts by launcher 'ssh' or 'slurm', "
    "whose collectives 'ring' and 'hierarchical' are encrypted; where no one else reaches the network, run a "
    "script under mpiexec or srun",
    lost_by_replacement="is no longer in the MPI world, which cannot add processes: collective 'mpi' needs a "
    "new cluster (%cluster stop, %cluster start --launcher mpi)",
    check=require_mpi,
)


class ProcessManager:
    """The process manager of one MPI world (PMI-1), for ranks that inherit their connections.

    ``connections`` are the parent process' ends, by rank. A rank's entries are bounded; one that breaks
    the protocol, or ends, loses its connection, and the others keep theirs.
    """

    def __init__(self, ranks: int) -> None:
        self.size = ranks
        self.connections: dict[int, socket.socket] = {}
        self._theirs: dict[int, socket.socket] = {}
        self._received = dict.fromkeys(range(ranks), b"")
        # MPICH derives the name of its shared memory from that of the store: a name is never used twice.
        self._name = f"nbdist_{secrets.token_hex(12)}"
        self._store = {"PMI_process_mapping": f"(vector,(0,1,{ranks}))"}  # all ranks are on one node
        self._stored = 0
        self._waiting: set[int] = set()
        for rank in range(ranks):
            self.connections[rank], self._theirs[rank] = socket.socketpair()

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables of a rank that inherits this descriptor."""
        own = {"PMI_FD": str(self.descriptor(rank)), "PMI_RANK": str(rank), "PMI_SIZE": str(self.size)}
        return {**CLOSED, **own}

    def descriptor(self, rank: int) -> int:
        """Return the descriptor that a rank inherits."""
        return self._theirs[rank].fileno()

    def hand_over(self, but: int | None = None) -> None:
        """Close the ranks' ends, which their processes have; all, or all but one."""
        for rank, connection in self._theirs.items():
            if rank != but:
                connection.close()

    def enter(self, rank: int) -> None:
        """Make this process, about to become an engine, a rank of the world; all ranks do so at once.

        MPI is not finalized when it ends: that would wait for engines that may have died. Raises
        FailedPreconditionError if this MPI does not join the world, or accepts connections of other users.
        """
        self.hand_over(but=rank)
        os.environ.update(self.environment(rank))
        before = reachable()
        world = enter_world(finalize=False)
        check_world(world, self.size, reachable() - before)

    def answer(self, connection: socket.socket) -> bool:
        """Answer the requests of a rank; return whether its connection is still open. Never blocks."""
        rank = next(rank for rank, one in self.connections.items() if one is connection)
        try:
            received = connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            received = b""
        try:
            *lines, rest = (self._received[rank] + received).split(b"\n")
            if not received or len(rest) > MAX_BYTES:
                raise ConnectionError
            self._received[rank] = rest
            for line in lines:
                self._handle(rank, fields_of(line))
        except (OSError, LookupError, ValueError):  # it ended, does not read, or speaks something else
            connection.close()
            del self.connections[rank]
            return False
        return True

    def _handle(self, rank: int, asked: Mapping[str, str]) -> None:
        match asked["cmd"]:
            case "init":
                self._reply(rank, "response_to_init", pmi_version=1, pmi_subversion=1, rc=0)
            case "get_maxes":
                self._reply(rank, "maxes", rc=0, kvsname_max=256, keylen_max=64, vallen_max=1024)
            case "get_appnum":
                self._reply(rank, "appnum", rc=0, appnum=0)
            case "get_my_kvsname":
                self._reply(rank, "my_kvsname", rc=0, kvsname=self._name)
            case "get_universe_size":
                self._reply(rank, "universe_size", rc=0, size=self.size)
            case "put":
                self._stored += len(asked["key"]) + len(asked["value"])
                if self._stored > MAX_BYTES * self.size:
                    raise ValueError("too much was published")
                self._store[asked["key"]] = asked["value"]
                self._reply(rank, "put_result", rc=0, msg="success")
            case "get":
                value = self._store.get(asked["key"])
                if value is None:
                    self._reply(rank, "get_result", rc=-1, msg="key_not_found", value="unknown")
                else:
                    self._reply(rank, "get_result", rc=0, msg="success", value=value)
            case "barrier_in":
                self._waiting.add(rank)
                if len(self._waiting) == self.size:
                    waiting, self._waiting = self._waiting, set()
                    for one in waiting:
                        with suppress(OSError):
                            self._reply(one, "barrier_out", rc=0)
            case "finalize":
                self._reply(rank, "finalize_ack", rc=0)
            case other:
                raise ValueError(f"no PMI command {other!r}")

    def _reply(self, rank: int, command: str, **values: object) -> None:
        text = " ".join([f"cmd={command}", *(f"{name}={value}" for name, value in values.items())])
        if rank in self.connections:
            self.connections[rank].send(f"{text}\n".encode(), socket.MSG_DONTWAIT)


def fields_of(line: bytes) -> dict[str, str]:
    """Return the fields of a PMI-1 line.

    >>> fields_of(b"cmd=put kvsname=a key=b value=c=d")
    {'cmd': 'put', 'kvsname': 'a', 'key': 'b', 'value': 'c=d'}
    """
    pairs = (word.partition("=") for word in line.decode("ascii").split())
    return {name: value for name, _, value in pairs}


def check_world(world: MpiWorld, size: int, opened: Iterable[str]) -> None:
    """Raise FailedPreconditionError if MPI has not found its world, or has opened sockets for other users."""
    if world.comm.size != size:
        raise FailedPreconditionError(
            f"launcher 'mpi': MPI started a world of {world.comm.size} instead of {size} ranks; it does not "
            f"speak PMI-1 over PMI_FD, as MPICH does. {ADVICE}"
        )
    if named := ", ".join(sorted(opened)):
        raise FailedPreconditionError(
            f"launcher 'mpi': this MPI listens on {named}, which other users can reach without "
            f"authentication. {ADVICE}"
        )


def reachable() -> set[str]:
    """Return the sockets of this process that other users of the host, or other hosts, can connect to.

    Those are TCP sockets that listen, and UNIX sockets of the abstract namespace, which have no mode (Linux).
    """
    import psutil

    found = set()
    process = psutil.Process()
    for entry in process.net_connections("inet"):
        if entry.status == psutil.CONN_LISTEN or (entry.type == socket.SOCK_DGRAM and entry.laddr):
            found.add(f"{entry.laddr.ip}:{entry.laddr.port}")
    for entry in process.net_connections("unix"):
        if str(entry.laddr).startswith(("@", "\0")):
            found.add(f"the abstract socket {entry.laddr}")
    return found
