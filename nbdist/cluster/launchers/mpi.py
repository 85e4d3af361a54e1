"""Launcher "mpi": an MPI world of engines, on one host or on several (``--hosts``), without mpiexec.

The supervisor of a host forks its ranks and serves PMI to them (mpiexec does this elsewhere):

    manager = ProcessManager(HostRanks.alone(4))    # before the ranks are forked
    manager.enter(rank)                     # in the forked process that becomes this rank
    manager.hand_over(rank)                 # in the parent process
    manager.answer(connection)              # there, whenever one of `manager.connections` is readable

PMI is the protocol by which the processes of a world find each other (PMI-1 of MPICH: "cmd=... key=value"
lines, a key-value store and a barrier). mpiexec serves it too, but listens on 0.0.0.0 without authentication.
Here it is served over socket pairs that the ranks inherit (PMI_FD), so no other process can reach it. Engines
stay children of their parent process, each with its own environment, signals and exit code, and when one
dies, the others continue.

    host a                                   head                      host b
    ranks ─ PMI ─ ProcessManager ══ CURVE ══ PmiBarrier ══ CURVE ══ ProcessManager ─ PMI ─ ranks
    ranks ──────────────────────── MPI: TCP, open ──────────────────────────────────────── ranks

With several hosts, what ranks have published reaches the other hosts at the world's next barrier: when all
ranks of a host wait, its entries go to the head, and when all hosts wait, the head sends the entries of all
to each, which releases its ranks.

Within a host MPICH moves bytes through shared memory of mode 0600, whatever its network module is. That
module opens ports that accept every connection. On one host the launcher therefore selects a module that
opens none (libfabric's "shm"). Between hosts it is libfabric's "tcp", which has neither authentication nor
encryption. It listens on the cluster's interface only, and only until each rank is connected to all others
(`Links`): later processes cannot connect, but who can read or change the packets of the network
can read and change values. In both cases an engine refuses to start if a listening socket of MPI is left.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers import ssh
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.spec import Coordinator, LauncherSpec, LaunchRequest
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra, UnavailableError
from nbdist.wire.collective.mpi.world import MpiWorld, enter_world, segments_of
from nbdist.wire.sockets import sockets

if TYPE_CHECKING:
    from nbdist.cluster.supervisor.process import SupervisorProcess

MAX_LINE = 1 << 20  # bytes of one request
MAX_PUBLISHED = 1 << 19  # bytes of all that the ranks of a world publish, encoded: they fit into one message
LONGEST_VALUE = 1000  # characters; a line of PMI-1 has 1,024
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


def mpi_hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return the hosts of the settings, none for a world on this host.

    Raises InvalidArgumentError for a setting that is for hosts, without any.
    """
    if settings["hosts"]:
        ssh.require_ssh()
        return ssh.ssh_hosts(settings)
    for one in ssh.SPEC.settings:
        if settings[one.name] != one.default:
            raise InvalidArgumentError(
                f"{one.name} ({one.flag}) is for other hosts, and launcher 'mpi' starts its tasks on this "
                "one unless it gets hosts='a:2,b:2' (--hosts a:2,b:2): leave it out, or give hosts"
            )
    return ()


class MpiLauncher(ForkLauncher):
    """Forks the tasks of a host as ranks of one MPI world, and serves PMI to them.

    On a host of a head elsewhere the head says who the ranks are, before it starts the first one. Processes
    that replace one of them are outside of the world.
    """

    def __init__(self, request: LaunchRequest) -> None:
        super().__init__(request)
        self.manager = ProcessManager(HostRanks.alone(request.ranks)) if request.ranks else None

    def receive(self, supervisor: SupervisorProcess, message: Any) -> None:
        """Take in who the ranks are, or what all have published when all wait in a barrier."""
        if self.manager is not None:
            self.manager.release(message)
            return
        ranks = HostRanks.from_dict(message)
        interface = interface_of(self.request.address) if ranks.hosts > 1 else ""
        self.manager = ProcessManager(ranks, interface, supervisor.tell_coordinator)

    def start(
        self, supervisor: SupervisorProcess, rank: int, environment: Mapping[str, str], log: str
    ) -> Callable[[], None] | None:
        """Fork the process of a rank, and answer it from now on; see `Launcher.start`."""
        become, manager = super().start(supervisor, rank, environment, log), self.manager
        if become is None and manager is not None and manager.awaits(rank):
            manager.hand_over(rank)
            pid = next(pid for pid, has in supervisor.children.items() if has == rank)
            segments: set[str] = set()  # a rank removes them when it has started; one that is killed does not

            def answer(connection: socket.socket) -> None:
                descriptor = connection.fileno()
                segments.update(segments_of(pid))
                if not manager.answer(connection):
                    supervisor.selector.unregister(descriptor)
                    for path in segments:
                        Path(path).unlink(missing_ok=True)

            supervisor.selector.register(manager.connections[rank], selectors.EVENT_READ, answer)
        return become

    def enter_child(self, rank: int) -> None:
        """Enter the world, unless this process replaces one of its ranks."""
        if self.manager is not None and self.manager.awaits(rank):
            self.manager.enter(rank)

    def close_in_child(self) -> None:
        """Close the supervisor's ends of the ranks' connections."""
        for connection in self.manager.connections.values() if self.manager is not None else ():
            connection.close()


@dataclass(frozen=True)
class HostRanks:
    """What a host has to know of a world.

    - ``size``: the number of its ranks
    - ``ranks``: those on this host
    - ``hosts``: how many hosts it is on
    - ``mapping``: which ranks share a host, see `process_mapping`
    - ``name``: the name of the store. MPICH derives the name of its shared memory from it: none is used twice
    """

    size: int
    ranks: Sequence[int]
    hosts: int
    mapping: str
    name: str

    @classmethod
    def alone(cls, size: int) -> HostRanks:
        """Return a world on one host."""
        return PmiBarrier([""] * size).begin_ranks()[""]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HostRanks:
        """Return what `dataclasses.asdict` has made."""
        return cls(**values)


class PmiBarrier(Coordinator):
    """Merges what the ranks of all hosts have published at each barrier of their world.

    ``places`` are the hosts of the ranks. Raises InvalidArgumentError if they mix too much for PMI-1.

    >>> barrier = PmiBarrier(["a", "a", "b"])
    >>> barrier.begin()["b"]["mapping"]
    '(vector,(0,1,2),(1,1,1))'
    >>> barrier.receive("a", {"key": "1"})
    {}
    >>> barrier.receive("b", {})
    {'a': {'key': '1'}, 'b': {'key': '1'}}
    """

    def __init__(self, places: Sequence[str]) -> None:
        self._places = tuple(places)
        self._mapping = process_mapping(places)
        self._name = f"nbdist_{secrets.token_hex(12)}"
        self._arrived: dict[str, Mapping[str, str]] = {}

    def begin(self) -> dict[str, Any]:
        """Return what each host has to know of the world."""
        return {host: asdict(ranks) for host, ranks in self.begin_ranks().items()}

    def begin_ranks(self) -> dict[str, HostRanks]:
        """Return the same as objects."""
        hosts = dict.fromkeys(self._places)
        ranks = {
            host: tuple(rank for rank, place in enumerate(self._places) if place == host) for host in hosts
        }
        size, mapping = len(self._places), self._mapping
        return {host: HostRanks(size, ranks[host], len(hosts), mapping, self._name) for host in hosts}

    def receive(self, host: str, message: Any) -> dict[str, Any]:
        """Take a host's entries, as all its ranks wait; when all hosts wait, return those of all to each."""
        if host not in self._places or host in self._arrived:
            raise ValueError("its ranks of the MPI world are in a barrier that they have left")
        self._arrived[host] = message
        if len(self._arrived) < len(set(self._places)):
            return {}
        merged = {key: value for entries in self._arrived.values() for key, value in entries.items()}
        arrived, self._arrived = self._arrived, {}
        return dict.fromkeys(arrived, merged)


def process_mapping(places: Sequence[str]) -> str:
    """Return PMI's text of which ranks share a host: blocks of first host, number of hosts, ranks of each.

    Raises InvalidArgumentError if it is longer than a value of PMI-1 may be.

    >>> process_mapping(["a", "a", "b", "b", "c", "a"])
    '(vector,(0,2,2),(2,1,1),(0,1,1))'
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(places))}
    blocks: list[list[int]] = []
    for host, ranks in groupby(places):
        number, count = numbers[host], len(list(ranks))
        if blocks and blocks[-1][2] == count and sum(blocks[-1][:2]) == number:
            blocks[-1][1] += 1
        else:
            blocks.append([number, 1, count])
    text = ",".join(["(vector", *("({},{},{})".format(*block) for block in blocks)]) + ")"
    if len(text) > LONGEST_VALUE:
        raise InvalidArgumentError(
            f"launcher 'mpi': PMI-1 cannot describe which of the {len(places)} ranks share a host; give all "
            "hosts the same number of workers, or list those with equal numbers next to each other"
        )
    return text


class ProcessManager:
    """The process manager of one host's ranks of an MPI world (PMI-1), which inherit their connections.

    ``connections`` are the parent process' ends, by rank. A rank's entries are bounded; one that breaks
    the protocol, or ends, loses its connection, and the others keep theirs.

    - ``world``: the world, and the ranks that are here
    - ``interface``: the network interface that MPI uses between hosts; "" for a world on one host
    - ``meet``: called with what was published since the last barrier once all ranks here wait; `release` then
      takes what the ranks of all hosts have published. None if all ranks are here
    """

    def __init__(
        self,
        world: HostRanks,
        interface: str = "",
        meet: Callable[[dict[str, str]], None] | None = None,
    ) -> None:
        self.world, self.interface = world, interface
        self._meet = meet or self.release
        self.connections: dict[int, socket.socket] = {}
        self._theirs: dict[int, socket.socket] = {}
        self._received = dict.fromkeys(world.ranks, b"")
        self._store = {"PMI_process_mapping": world.mapping}
        self._published: dict[str, str] = {}
        self._stored = dict.fromkeys(world.ranks, 0)
        self._waiting: set[int] = set()
        for rank in world.ranks:
            self.connections[rank], self._theirs[rank] = socket.socketpair()

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables of a rank that inherits this descriptor."""
        size = self.world.size
        own = {"PMI_FD": str(self.descriptor(rank)), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
        if self.interface:
            own |= {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": self.interface}
        return {**CLOSED, **own}

    def descriptor(self, rank: int) -> int:
        """Return the descriptor that a rank inherits."""
        return self._theirs[rank].fileno()

    def awaits(self, rank: int) -> bool:
        """Return whether a rank of this host has not started yet."""
        return rank in self._theirs

    def hand_over(self, rank: int) -> None:
        """Close a rank's end, which its process has."""
        self._theirs.pop(rank).close()

    def enter(self, rank: int) -> None:
        """Make this process, about to become an engine, a rank of the world; all ranks do so at once.

        MPI is not finalized when it ends: that would wait for engines that may have died. Raises
        FailedPreconditionError if this MPI does not join the world, or accepts connections of other users.
        """
        os.environ.update(self.environment(rank))
        for other in [one for one in self._theirs if one != rank]:
            self.hand_over(other)
        before, inodes = reachable(), set(sockets())
        world = enter_world(finalize=False)
        check_size(world, self.world.size)
        if self.interface:
            check_interface(reachable() - before, self.interface)
            world.links.connect(world.mpi, world.comm, inodes)
        check_closed(reachable() - before)

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
            if not received or len(rest) > MAX_LINE:
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
                self._reply(rank, "my_kvsname", rc=0, kvsname=self.world.name)
            case "get_universe_size":
                self._reply(rank, "universe_size", rc=0, size=self.world.size)
            case "put":
                entry = {asked["key"]: asked["value"]}
                self._stored[rank] += len(json.dumps(entry))
                if self._stored[rank] > MAX_PUBLISHED // self.world.size:
                    raise ValueError("too much was published")
                self._store |= entry
                self._published |= entry
                self._reply(rank, "put_result", rc=0, msg="success")
            case "get":
                value = self._store.get(asked["key"])
                if value is None:
                    self._reply(rank, "get_result", rc=-1, msg="key_not_found", value="unknown")
                else:
                    self._reply(rank, "get_result", rc=0, msg="success", value=value)
            case "barrier_in":
                self._waiting.add(rank)
                if len(self._waiting) == len(self.world.ranks):
                    published, self._published = self._published, {}
                    self._meet(published)
            case "finalize":
                self._reply(rank, "finalize_ack", rc=0)
            case other:
                raise ValueError(f"no PMI command {other!r}")

    def release(self, published: Mapping[str, str]) -> None:
        """End the barrier in which all ranks of the world wait, with what they have published before it."""
        self._store |= published
        waiting, self._waiting = self._waiting, set()
        for rank in waiting:
            with suppress(OSError):
                self._reply(rank, "barrier_out", rc=0)

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


def check_size(world: MpiWorld, size: int) -> None:
    """Raise FailedPreconditionError if MPI has not found its world."""
    if world.comm.size != size:
        raise FailedPreconditionError(
            f"launcher 'mpi': MPI started a world of {world.comm.size} instead of {size} ranks; it does not "
            f"speak PMI-1 over PMI_FD, as MPICH does. {ADVICE}"
        )


def check_closed(opened: Iterable[str]) -> None:
    """Raise FailedPreconditionError if MPI listens on sockets, of those it has opened, for other users."""
    if named := ", ".join(sorted(opened)):
        raise FailedPreconditionError(
            f"launcher 'mpi': this MPI listens on {named}, which other users can reach without "
            f"authentication. {ADVICE}"
        )


def check_interface(opened: Iterable[str], interface: str) -> None:
    """Raise FailedPreconditionError if MPI listens on others than the addresses of an interface."""
    own = addresses_of(interface)
    check_closed(one for one in opened if one.rpartition(":")[0] not in own)


def interface_of(address: str) -> str:
    """Return the network interface that has an address; UnavailableError if none has."""
    import psutil

    for name in psutil.net_if_addrs():
        if address in addresses_of(name):
            return name
    raise UnavailableError(
        f"launcher 'mpi': no network interface has {address}, the address of this host in the cluster; name "
        "the host by an address that one of its interfaces has"
    )


def addresses_of(interface: str) -> set[str]:
    """Return the IP addresses of a network interface.

    >>> "127.0.0.1" in addresses_of(interface_of("127.0.0.1"))
    True
    """
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    entries = psutil.net_if_addrs().get(interface, ())
    return {entry.address.partition("%")[0] for entry in entries if entry.family in families}


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


SPEC = LauncherSpec(
    "mpi",
    help="engines in one MPI world, on this host or by ssh on others",
    make=MpiLauncher,
    fixed_size="an MPI world can neither add nor remove processes",
    coordinate=PmiBarrier,
    notice="launcher mpi: MPI's connections between hosts are neither encrypted nor authenticated, so "
    "a host that can change packets of this network can change values (docs/security.md); the "
    "collectives 'ring' and 'hierarchical' are encrypted",
    one_host="launcher 'mpi' takes them with --hosts, where ssh reaches them",
    lost_by_replacement="is no longer in the MPI world, which cannot add processes: collective 'mpi' needs a "
    "new cluster (%cluster stop, %cluster start --launcher mpi)",
    check=require_mpi,
    needs={"mpi": ("mpi4py", "mpich")},
    settings=ssh.SPEC.settings,
    hosts=mpi_hosts,
    commands=ssh.ssh_commands,
    explain=ssh.SPEC.explain,
)
