"""The keeper: one process per cluster and host that forks the controller and the engines.

It imports what they need once and forks them, each with its own environment, before any of them starts a
thread. It stays single-threaded itself, so that it can fork again at any time. Clients talk to it over a
socket in the cluster's folder, which only their user can enter: one JSON object per line.

    requests    status, signal, stop, ready; end, grow, shrink, fork, roster (see `reforking`)
    events      started, forked, exit (who, pid, how), roster, stopping

When the last client has been gone for too long (see `orphan.py`), when who starts the cluster goes before it
is whole, when the controller dies, or when told to, it ends everything and removes the cluster's folder and
shared segments. If the keeper itself is killed,
the kernel kills its children (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.cluster.folder import is_busy

if TYPE_CHECKING:
    import socket

    from nbdist.cluster.mpi import ProcessManager

GRACE_SECONDS = 1.0  # between SIGTERM and SIGKILL
CONTROLLER = -1  # the "rank" of the controller in events
MAX_LINE = 1 << 20
LOG_TAIL = 4000  # characters of a dead child's log that its exit event carries
PR_SET_PDEATHSIG = 1
Reply = dict[str, Any]


class Keeper:
    """The loop of the keeper process; see the module's text."""

    def __init__(self, first: socket.socket, plan: dict[str, Any], lock: int = -1) -> None:
        self.plan = plan
        self.folder = Path(plan["folder"])
        self.pid = os.getpid()
        self.lock = lock
        self.selector = selectors.DefaultSelector()
        self.clients: dict[socket.socket, bytes] = {}
        self.watching: set[socket.socket] = set()  # clients that only look: the cluster is not theirs
        self.children: dict[int, int] = {}  # pid -> rank
        self.exits: dict[int, dict[str, Any]] = {}  # rank -> how it ended
        self.deadline: float | None = None  # when what still lives is killed
        self.orphan = Orphan(*plan.get("orphan") or (None, None))
        self.held_ports: list[socket.socket] = []
        self.world: ProcessManager | None = None  # of the engines' MPI world, if they are in one
        self.engine: Callable[[dict[str, Any]], Callable[[], None]] | None = (
            None  # what a task's fork becomes
        )
        self.reforking = Reforking()
        self.hub = -1  # where the controller hears whose engine is gone
        self.wake_in, self.wake_out = os.pipe()
        os.set_blocking(self.wake_in, False)
        os.set_blocking(self.wake_out, False)
        self.door = socket.socket(socket.AF_UNIX)
        with short_path(self.folder) as folder:
            self.door.bind(f"{folder}/keeper.sock")
        self.door.listen(16)
        self.selector.register(self.door, selectors.EVENT_READ, self._open_door)
        self.selector.register(self.wake_in, selectors.EVENT_READ, self._note_signals)
        self.starter = first
        self._welcome(first)
        signal.set_wakeup_fd(self.wake_out)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(
                number, lambda number, frame: self.stop("the cluster process was ended by a signal")
            )

    def fork(self, rank: int, become: Callable[[], None], log: str) -> Callable[[], None] | None:
        """Fork a child; return None in the keeper, and in the child what it is to become."""
        if threading.active_count() > 1:  # a lock that another thread holds would stay locked in the child
            raise RuntimeError(f"the cluster process must stay single-threaded: {threading.enumerate()}")
        pid = os.fork()
        if pid:
            self.children[pid] = rank
            self.exits.pop(rank, None)
            return None
        self._leave_to_parent(log)
        return become

    def run(self) -> Callable[[], None] | None:
        """Serve until everything has ended; in a child forked meanwhile, return what it is to become."""
        try:
            while self.deadline is None or self.children:
                timeout = self._until_due()
                for key, _ in self.selector.select(timeout):
                    key.data(key.fileobj)
                self._do_due()
        except Born as born:
            return born.become
        self.clean_up()
        return None

    def stop(self, reason: str) -> None:
        """Ask every child to end; they are killed when the grace is over."""
        if self.deadline is None:
            self.deadline = time.monotonic() + GRACE_SECONDS
            self.broadcast({"event": "stopping", "reason": reason})
            for pid in list(self.children):
                for number in (signal.SIGTERM, signal.SIGCONT):
                    send_signal(pid, number)

    def broadcast(self, message: Reply) -> None:
        """Tell every client."""
        for client in list(self.clients):
            self._tell(client, message)

    def release_ports(self) -> None:
        """Let go of the ports that were held for the controller."""
        while self.held_ports:
            self.held_ports.pop().close()

    def pids(self) -> dict[str, int]:
        """Return the processes that live, by rank."""
        return {str(rank): pid for pid, rank in self.children.items()}

    def serve_world(self) -> None:
        """Answer the ranks of the engines' MPI world from now on; all of them are forked."""
        assert self.world is not None
        self.world.hand_over()
        for connection in self.world.connections.values():
            self.selector.register(connection, selectors.EVENT_READ, self._answer_rank)

    def clean_up(self) -> None:
        """Remove what the cluster leaves on disk and in shared memory."""
        from nbdist.cluster.folder import remove_traces

        remove_traces(self.folder, self.plan["cluster_id"])

    def _leave_to_parent(self, log: str) -> None:
        """In a fresh child: keep nothing of the keeper's, and die with it."""
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self.selector.close()
        for one in (self.door, *self.clients, *self.held_ports):
            one.close()
        if self.world is not None:
            self.world.leave_to_parent()
        for descriptor in (self.wake_in, self.wake_out, self.lock, self.hub):
            if descriptor >= 0:
                os.close(descriptor)
        os.setpgid(0, 0)
        die_with_parent(self.pid)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)

    def _answer_rank(self, connection: socket.socket) -> None:
        assert self.world is not None
        descriptor = connection.fileno()
        if not self.world.answer(connection):
            self.selector.unregister(descriptor)

    def _open_door(self, door: socket.socket) -> None:
        client, _ = door.accept()
        self._welcome(client)
        self.watching.add(client)

    def _welcome(self, client: socket.socket) -> None:
        client.setblocking(False)
        self.clients[client] = b""
        self.selector.register(client, selectors.EVENT_READ, self._hear)

    def _hear(self, client: socket.socket) -> None:
        try:
            heard = client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        lines = (self.clients[client] + heard).split(b"\n")
        if not heard or len(lines[-1]) > MAX_LINE:
            self._forget(client)
            return
        self.clients[client] = lines.pop()
        for line in lines:
            try:
                request = json.loads(line)
                reply = self._answer(request, client)
            except Exception as error:
                request, reply = {}, {"error": f"{type(error).__name__}: {error}"}
            self._tell(client, {"reply": request.get("id"), **reply})

    def _answer(self, request: dict[str, Any], client: socket.socket) -> Reply:
        match request["request"]:
            case "status" | "watch":
                if request["request"] == "status":
                    self.watching.discard(client)
                exits = {str(rank): how for rank, how in self.exits.items()}
                roster = self.reforking.roster
                stopping = self.deadline is not None
                return {"pids": self.pids(), "exits": exits, "stopping": stopping, "tasks": roster}
            case "signal":
                rank, number = int(request["rank"]), int(request["signum"])
                pid = next((pid for pid, has in self.children.items() if has == rank), None)
                return {"sent": pid is not None and send_signal(pid, number)}
            case "ready":
                self.release_ports()
                return {}
            case "stop":
                self.stop(str(request.get("by") or "it was stopped by another process")[:200])
                return {}
            case "end" | "grow" | "shrink" | "fork" | "roster":
                return self.reforking.answer(self, request, client)
        return {"error": f"no request {request['request']!r}"}

    def _tell(self, client: socket.socket, message: Reply) -> None:
        try:
            client.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # gone, or it has not read a full buffer of events
            self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        self.watching.discard(client)
        if self.clients.pop(client, None) is not None:
            self.selector.unregister(client)
            self.reforking.leave(self, client)
            client.close()
            if client is self.starter and not (self.folder / "cluster.json").exists():
                self.stop(
                    "the process that was starting the cluster has died"
                )  # no process can use an incomplete cluster

    def _note_signals(self, descriptor: int) -> None:
        with suppress(BlockingIOError):
            os.read(descriptor, 4096)
        self._reap()

    def _reap(self) -> None:
        for pid in list(self.children):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                continue
            # While it is not reaped its group's number cannot be taken by another: end what it left running.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            rank = self.children.pop(pid)
            if rank != CONTROLLER and not self.reforking.is_task(self, rank):  # it has left, or never was one
                forget_memory(self, pid)
                self._tell_hub(rank)
                continue
            died_by = None if ended.si_code == os.CLD_EXITED else ended.si_status
            code = ended.si_status if died_by is None else None
            how: dict[str, Any] = {"rank": rank, "pid": pid, "code": code, "signal": died_by}
            how |= {"time": time.time(), "log": self._log_tail(rank)}
            self.exits[rank] = how
            self.broadcast({"event": "exit", **how})
            self._tell_hub(rank)
            if rank == CONTROLLER:
                self.stop(f"the controller (pid {pid}) has ended")

    def _tell_hub(self, rank: int) -> None:
        """Have the hub forget a dead engine: it would wait for its heartbeats for ever, and block its id."""
        if self.hub >= 0 and rank != CONTROLLER:
            with suppress(OSError):  # the controller has gone first
                os.write(self.hub, b"%d\n" % rank)

    def _log_tail(self, rank: int) -> str:
        name = "controller" if rank == CONTROLLER else f"engine-{rank}"
        try:
            return (self.folder / "log" / f"{name}.log").read_text(errors="replace")[-LOG_TAIL:]
        except OSError:
            return ""

    def _until_due(self) -> float | None:
        now = time.monotonic()
        end = None if self.deadline is None else max(0.0, self.deadline - now)
        look = self.orphan.wait(now, self._left())
        return min((wait for wait in (end, look) if wait is not None), default=None)

    def _left(self) -> bool:
        return self.clients.keys() <= self.watching and self.deadline is None

    def _do_due(self) -> None:
        now = time.monotonic()
        left = self._left()
        if self.orphan.look(now, left, left and is_busy(self.folder, self.children)):
            self.stop("no client was left")
        if self.deadline is not None and now >= self.deadline:
            for pid in list(self.children):
                send_signal(pid, signal.SIGKILL)
            self.deadline = now + GRACE_SECONDS
        if self.deadline is not None:
            self._reap()


def send_signal(pid: int, number: int) -> bool:
    """Send a signal to a child that is not reaped yet; whether it took it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux)."""
    if sys.platform.startswith("linux"):
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """A path to a folder that fits a socket's address (108 bytes), however long the real one is."""
    if len(os.fsencode(folder)) < 80:
        yield str(folder)
        return
    if not os.path.isdir("/proc/self/fd"):
        raise OSError(errno.ENAMETOOLONG, f"{folder} is too long for a socket; set NBDIST_HOME")
    descriptor = os.open(folder, os.O_DIRECTORY | os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def read_line(one: socket.socket) -> dict[str, Any]:
    """Return the first JSON line that comes over a blocking socket, and not a byte more."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = one.recv(1)
        if not byte or len(line) > MAX_LINE:
            raise EOFError("the process that was starting the cluster has died")
        line += byte
    result: dict[str, Any] = json.loads(line)
    return result


# How long a cluster without a client lives: a while if it is idle, longer while it works. Decides only.

IDLE_SECONDS, BUSY_SECONDS = 60.0, 3600.0
LOOK_SECONDS = 1.0  # between two looks whether a run is on an orphan still


@dataclass
class Orphan:
    """Tells when a cluster has to end; ``idle`` and ``busy`` are seconds, None stands for ever.

    An idle one has been without a client and without a run for so long, a busy one without a client.

    >>> orphan = Orphan(idle=60.0, busy=3600.0)
    >>> orphan.look(0.0, left=True, works=True), orphan.look(100.0, left=True, works=False)
    (False, False)
    >>> orphan.look(159.0, left=True, works=False), orphan.look(160.0, left=True, works=False)
    (False, True)
    """

    idle: float | None
    busy: float | None
    left_at: float | None = None
    idle_at: float | None = None

    @classmethod
    def of(cls, patience: float | None) -> Orphan:
        """Return the orphan for an ``orphan_timeout``: None is the ordinary one, a number holds for both.

        >>> Orphan.of(None).busy, Orphan.of(5).busy
        (3600.0, 5.0)
        """
        return cls(IDLE_SECONDS, BUSY_SECONDS) if patience is None else cls(float(patience), float(patience))

    def look(self, now: float, left: bool, works: bool) -> bool:
        """Take note that no client is left ``now``, that a run is on a task; whether it is time to end."""
        if not left or self.idle is None or self.busy is None:
            self.left_at = self.idle_at = None
            return False
        self.left_at = now if self.left_at is None else self.left_at
        if works:
            self.idle_at = None
            return now >= self.left_at + self.busy
        self.idle_at = now if self.idle_at is None else self.idle_at
        return now >= self.idle_at + self.idle

    def wait(self, now: float, left: bool) -> float | None:
        """Return the seconds until the next look that can matter; None if only another event can."""
        if not left or self.idle is None or self.busy is None:
            return None
        if self.left_at is None:
            return 0.0
        end = self.left_at + self.busy if self.idle_at is None else self.idle_at + self.idle
        return max(0.0, min(end - now, LOOK_SECONDS))


#     The keeper changes who is there: tasks get other processes under their ranks, come to be, or leave.
#
#     client                           keeper
#     end     rank: pid ─────────────► those that live are killed; from now on it is this turn's alone
#     grow    tasks ─────────────────► the same for tasks that are new, with their environments
#     fork    rank  ─────────────────► a process for the task, with its environment
#     roster  tasks ─────────────────► all clients are told (event "roster"), and it is anybody's turn
#
#     shrink  rank: pid ─────────────► a turn too; these tasks end when the roster without them has come
#
# Before it forks the client waits until the hub has no engine of that rank, which is the id that the new one
# asks for. There is one turn at a time, named by who takes it, so that two rosters never cross; a client that
# hangs up loses its turn, and what it has forked. A task that somebody else has replaced meanwhile is not
# ended. What becomes of a process that is no task (yet, or any more) only whose turn it is hears.

Reply_reforking = dict[str, Any]


class Born(BaseException):
    """Leaves the keeper's loop in a fresh child; ``become`` is what it is to be."""

    def __init__(self, become: Callable[[], None]) -> None:
        super().__init__()
        self.become = become


@dataclass
class Turn:
    """Who changes what: tasks by rank that get processes, of which some are new, or that leave."""

    client: socket.socket
    name: str
    ranks: frozenset[int]
    coming: dict[int, dict[str, Any]] = field(default_factory=dict)
    leaving: bool = False
    forked: set[int] = field(default_factory=set)
    """The pids of this turn."""


class Reforking:
    """Whose turn it is to change the tasks, and the roster that the last one has made."""

    def __init__(self) -> None:
        self.roster: list[dict[str, Any]] | None = None
        self._turn: Turn | None = None
        self._dropped: set[int] = set()  # pids of turns that came to nothing

    def answer(self, keeper: Keeper, request: dict[str, Any], client: socket.socket) -> Reply_reforking:
        """Do what a client asks; raises Born in a child."""
        turn, name = self._turn, str(request["turn"])
        match request["request"]:
            case "end" | "shrink":
                return self._end(keeper, request, client)
            case "grow":
                return self._grow(keeper, request, client)
        if turn is None or turn.client is not client or turn.name != name:
            return {"error": "it is not this client's turn to change the tasks"}
        if request["request"] == "fork":
            return self._fork(keeper, turn, int(request["rank"]))
        return self._roster(keeper, turn, request["tasks"])

    def leave(self, keeper: Keeper, client: socket.socket) -> None:
        """Note that a client is gone."""
        if self._turn is not None and self._turn.client is client:
            self._drop(keeper)

    def is_task(self, keeper: Keeper, rank: int) -> bool:
        """Whether a process of that rank is a task, or is becoming one."""
        return rank in _known(keeper) or (self._turn is not None and rank in self._turn.coming)

    def _why_not(self, keeper: Keeper) -> str | None:
        if keeper.deadline is not None:
            return "the cluster is ending"
        if self._turn is not None:
            busy = ", ".join(map(str, sorted(self._turn.ranks)))
            doing = "ended" if self._turn.leaving else "started" if self._turn.coming else "replaced"
            return f"the task of rank {busy} is being {doing} at this moment; try again"
        return None

    def _end(self, keeper: Keeper, request: dict[str, Any], client: socket.socket) -> Reply_reforking:
        pids = {int(rank): int(pid) for rank, pid in request["pids"].items()}
        ranks, known = frozenset(pids), _known(keeper)
        if keeper.engine is None or not ranks <= known:
            return {"error": f"the ranks are {sorted(known)}, not {sorted(ranks)}"}
        if why := self._why_not(keeper):
            return {"error": why}
        living = {pid: rank for pid, rank in keeper.children.items() if rank in ranks}
        for pid, rank in living.items():
            if pid != pids[rank] and pid not in self._dropped:
                return {"error": f"the task of rank {rank} is pid {pid} by now, not {pids[rank]}"}
        leaving = request["request"] == "shrink"
        self._turn = Turn(client, str(request["turn"]), ranks, leaving=leaving)
        if not leaving:
            _kill(living)
        return {}

    def _grow(self, keeper: Keeper, request: dict[str, Any], client: socket.socket) -> Reply_reforking:
        coming = {int(task["rank"]): task for task in request["tasks"]}
        taken = sorted(_known(keeper) & coming.keys())
        if why := self._why_not(keeper):
            return {"error": why}
        if keeper.world is not None:
            return {"error": "an MPI world cannot add processes"}
        if keeper.engine is None or taken or min(coming) < 0:
            return {"error": f"the ranks {taken or sorted(coming)} are not free; try again"}
        self._turn = Turn(client, str(request["turn"]), frozenset(coming), coming)
        return {}

    def _fork(self, keeper: Keeper, turn: Turn, rank: int) -> Reply_reforking:
        if rank not in turn.ranks or turn.leaving:
            return {"error": f"rank {rank} is not of this turn: {sorted(turn.ranks)}"}
        if keeper.deadline is not None or rank in keeper.children.values():
            return {"error": f"rank {rank} lives, or the cluster is ending"}
        assert keeper.engine is not None
        tasks = [*turn.coming.values(), *keeper.plan["tasks"]]
        task = next(task for task in tasks if task["rank"] == rank)
        if rank in keeper.exits:
            forget_memory(keeper, keeper.exits[rank]["pid"])
        log = f"{keeper.folder}/log/engine-{rank}.log"
        with suppress(OSError):  # how the new one ends is not to be read in the words of the old one
            os.replace(log, f"{keeper.folder}/log/engine-{rank}-before.log")
        become = keeper.fork(rank, keeper.engine(task), log)
        if become is not None:
            raise Born(become)
        pid = next(pid for pid, has in keeper.children.items() if has == rank)
        turn.forked.add(pid)
        keeper.broadcast({"event": "forked", "pids": keeper.pids()})
        return {"pid": pid, "outside_world": keeper.world is not None}

    def _roster(self, keeper: Keeper, turn: Turn, tasks: list[dict[str, Any]] | None) -> Reply_reforking:
        """Take the new roster, or None when there is none: then what was forked ends."""
        if tasks is None:
            self._drop(keeper)
            return {}
        self._turn, self.roster = None, tasks
        before = [task for task in keeper.plan["tasks"] if not (turn.leaving and task["rank"] in turn.ranks)]
        keeper.plan["tasks"] = [*before, *turn.coming.values()]
        keeper.broadcast({"event": "roster", "tasks": tasks})
        if turn.leaving:
            for rank in turn.ranks & keeper.exits.keys():
                forget_memory(keeper, keeper.exits.pop(rank)["pid"])
            _kill({pid: rank for pid, rank in keeper.children.items() if rank in turn.ranks})
        return {}

    def _drop(self, keeper: Keeper) -> None:
        """End a turn that came to nothing, and what was forked in it."""
        assert self._turn is not None
        turn, self._turn = self._turn, None
        _kill(turn.forked & keeper.children.keys())
        self._dropped |= turn.forked
        for rank in turn.coming.keys() & keeper.exits.keys():
            forget_memory(keeper, keeper.exits.pop(rank)["pid"])


def _known(keeper: Keeper) -> set[int]:
    return {task["rank"] for task in keeper.plan["tasks"]}


def _kill(pids: dict[int, int] | set[int]) -> None:
    for pid in pids:  # children that are not reaped: the numbers are their own
        os.kill(pid, signal.SIGKILL)


def forget_memory(keeper: Keeper, pid: int) -> None:
    """Remove the shared segments that a process has left."""
    from nbdist.runtime.task import segment_prefix
    from nbdist.wire.shm import remove_all

    remove_all(f"{segment_prefix(keeper.plan['cluster_id'])}-{pid}")
