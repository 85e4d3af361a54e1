"""The supervisor: one process per cluster and host that forks its tasks (and the controller), and ends them.

`SupervisorProcess` is its event loop. `python -m nbdist.cluster.supervisor` (`__main__.py`) starts it, and
`SupervisorClient` (`client.py`) is the other end of its socket.

**Fork server.** The process imports the libraries that every engine needs, once, and forks the engines from
that state, each with its own environment: an engine starts in milliseconds instead of a second, and the
children share the imported pages (`gc.freeze` keeps the collector from writing to them). Python's
``multiprocessing.forkserver`` works the same way.

A fork copies only the calling thread. A lock that another thread holds would stay locked in the child, so the
supervisor stays single-threaded, `fork` checks it, and the preloaded modules (`PRELOADED` in `__main__.py`)
must not start Python threads, open sockets or initialize a device when they are imported. (OpenBLAS starts
threads of its own, and restarts them in the child.) In particular they must not load CUDA or MPI: a CUDA
context does not survive a fork, and an MPI rank must be initialized in its own process. Each child gets its
own state where a copy would be wrong: NumPy's random state, the number of BLAS threads, signal handlers, the
process group. The supervisor can therefore fork again at any time, for a task that is replaced or added
(`ChangeLock`). The cluster's launcher (`nbdist/cluster/launchers`) decides how an engine's process starts;
one that does not fork adds its processes with `SupervisorProcess.add_child`.

**Protocol.** Clients connect to ``supervisor.sock`` in the cluster's folder, which only their user can enter.
A message is one JSON object per line.

    requests    status, watch, usage, used, signal, stacks, ready, stop; those that change the membership
                (`ChangeLock`); with other hosts (`Hosts`) bring_up, refuse_hosts, place, start
    events      started, forked, exit (rank, pid, code or signal, end of the log), roster, stopping; with
                other hosts hosts, host, host_lost, waiting, command_ended, next_job

The supervisor of another host is a client of the head's, with the request host, and answers the head's
requests start, signal, stacks, measure, launcher, ping and stop; its events are exit, busy and launcher.

**Failure detection.** Each process is watched by one other, and none of them polls:

    an engine or the controller dies    SIGCHLD. The supervisor kills what the process left in its process
                                        group, reports the exit to all clients, and writes an engine's rank to
                                        the hub's pipe, so that the hub frees its id. The exit of the
                                        controller ends the cluster.
    a host's relay freezes or dies      The supervisor of that host kills it, and ends: the head has lost it.
    the supervisor dies                 The kernel kills its children (PR_SET_PDEATHSIG, Linux; elsewhere they
                                        read the end of a pipe), and clients read the end of the stream. The
                                        next client that lists the clusters finds the lock free and removes
                                        the folder and the shared segments.
    no cell or run uses the cluster     `IdleTimeout` ends it after ``idle`` seconds, if that was asked for.
                                         With other hosts, what no client has copied of its runs is copied
                                         first, then and when the last client disconnects (`CopyProcess`).
    the last client disconnects         `OrphanTimeout` ends the cluster after a time: a minute while it is
                                        idle, an hour while a run uses it. An observer ("watch" instead of
                                        "status") does not count as a client.
    the starting client dies            The cluster ends at once while ``cluster.json`` does not exist yet:
                                        no other process could use an incomplete cluster. On another
                                        host the starting client is the relay: its end is the head's.

**End.** Children receive SIGTERM and SIGCONT (a stopped process would not react), and SIGKILL after
`GRACE_SECONDS`. Then the supervisor removes the cluster's folder and its shared segments, and exits.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.cluster.affinity import CORES_VARIABLE
from nbdist.cluster.folder import busy_tasks, is_busy, remove_traces, unmark_busy
from nbdist.cluster.parent import end_with_parent
from nbdist.cluster.supervisor.copies import CopyProcess
from nbdist.cluster.supervisor.hosts import Hosts, gpus_in_use
from nbdist.cluster.supervisor.stacks import StackProcess
from nbdist.cluster.supervisor.usage import UsageProcess
from nbdist.cluster.time_limits import SAVE_AT_VARIABLE, IdleTimeout
from nbdist.graph.gpu_errors import GPU_LOST_STATUS

if TYPE_CHECKING:
    from nbdist.cluster.launchers.spec import Launcher, LauncherSpec

RELAY_SECONDS = 6.0  # without a word of a host's relay: the head gives such a host up after 8 s
GRACE_SECONDS = 1.0  # between SIGTERM and SIGKILL
CONTROLLER = -1  # the "rank" of the controller in events
MAX_LINE = 1 << 20
LOG_TAIL = 4000  # characters of a dead child's log that its exit event carries
SOCKET = "supervisor.sock"
OLDER_SOCKET = "keeper.sock"  # its name in clusters of nbdist 0.1.0
Reply = dict[str, Any]


class SupervisorProcess:
    """The event loop of the supervisor process; the module's text gives the design.

    ``starter`` is the connection to the client that starts the cluster, ``plan`` is that client's first
    message, and ``lock`` is the descriptor of the cluster's lock, which this process holds while it lives.
    """

    def __init__(self, starter: socket.socket, plan: dict[str, Any], lock: int = -1) -> None:
        self.plan = plan
        self.folder = Path(plan["folder"])
        self.gpus = Gpus()
        self.pid = os.getpid()
        self.lock = lock
        self.selector = selectors.DefaultSelector()
        self.clients: dict[socket.socket, bytes] = {}  # connection -> the start of an incomplete line
        self.observers: set[socket.socket] = set()  # connections that do not keep the cluster alive
        self.children: dict[int, int] = {}  # pid -> rank, of this host
        self.forked: set[int] = set()  # the pids of all children that there were
        self.hosts = Hosts(self)
        self.usage = UsageProcess(self)
        self.stacks = StackProcess(self)
        self.copies = CopyProcess(self)
        self.engine_connection: dict[str, Any] = {}  # what an engine needs to connect to the controller
        self.exits: dict[int, dict[str, Any]] = {}  # rank -> how it ended
        self.kill_at: float | None = None  # once the cluster ends: when the remaining children are killed
        self.orphan_timeout = OrphanTimeout(*plan.get("orphan_timeout") or (None, None))
        self.idle_timeout = IdleTimeout(plan.get("idle"), time.monotonic())
        self.held_ports: list[socket.socket] = []
        self.launcher: Launcher | None = None  # starts the engines; None before the libraries are imported
        self.launcher_spec: LauncherSpec | None = None
        self.changes = ChangeLock(self)
        self.oom_kills = count_oom_kills()
        self.busy: dict[int, str] | None = {} if plan.get("host") else None
        """On a host of another's cluster: the run of each busy task, as the head knows it."""
        self.hub_pipe = -1  # the controller reads from it the ranks of engines that have ended
        self.wake_in, self.wake_out = os.pipe()
        self.alive_in, self.alive_out = os.pipe()  # for `die_with_parent`: no child can write to it
        os.set_blocking(self.wake_in, False)
        os.set_blocking(self.wake_out, False)
        self.listener = socket.socket(socket.AF_UNIX)
        with short_path(self.folder) as folder:
            self.listener.bind(f"{folder}/{SOCKET}")
        self.listener.listen(16)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.wake_in, selectors.EVENT_READ, self._drain_wakeup)
        self.starter = starter
        self.heard = time.monotonic()  # when the starter has last sent something
        self._add_client(starter)
        signal.set_wakeup_fd(self.wake_out)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(
                number, lambda number, frame: self.stop("the cluster process was ended by a signal")
            )

    def fork(self, rank: int, become: Callable[[], None], log: str) -> Callable[[], None] | None:
        """Fork a child; return None in the supervisor, and ``become`` in the child, which has to call it."""
        pid, child = self.fork_process(become, log)
        if pid:
            self.add_child(pid, rank)
        return child

    def fork_process(self, become: Callable[[], None], log: str) -> tuple[int, Callable[[], None] | None]:
        """Fork a process that ends with this one; return its pid and None, and 0 and ``become`` in it."""
        if threading.active_count() > 1:  # a lock that another thread holds would stay locked in the child
            raise RuntimeError(f"the cluster process must stay single-threaded: {threading.enumerate()}")
        pid = os.fork()
        if pid:
            return pid, None
        self._become_child(log)
        return 0, become

    def add_child(self, pid: int, rank: int) -> None:
        """Take a child process as the engine of a rank: report its exit, and end it with the cluster.

        The child leads a process group of its own, so that what it leaves there is killed too.
        """
        self.children[pid] = rank
        self.forked.add(pid)
        self.exits.pop(rank, None)

    def run(self) -> Callable[[], None] | None:
        """Serve until all children have ended; in a child that is forked here, return what it has to call."""
        try:
            while self.kill_at is None or self.children or not self.hosts.ended:
                timeout = self._next_timeout()
                for key, _ in self.selector.select(timeout):
                    key.data(key.fileobj)
                self._check_timeouts()
        except ChildProcess as child:
            return child.become
        self.hosts.end_relay()
        if self.plan.get("host"):  # the head, or another host, may be on this machine, too
            for pid in self.forked:
                remove_segments(self, pid)
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            remove_traces(self.folder, self.plan["cluster_id"])
        return None

    def stop(self, reason: str) -> None:
        """End every child: SIGTERM now, SIGKILL after the grace period."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + GRACE_SECONDS
            self.broadcast({"event": "stopping", "reason": reason})
            self.hosts.stop(reason)
            for pid in list(self.children):
                for number in (signal.SIGTERM, signal.SIGCONT):
                    send_signal(pid, number)

    def broadcast(self, message: Reply) -> None:
        """Send an event to all clients and observers."""
        for client in list(self.clients):
            if client not in self.hosts.by_connection:
                self.send(client, message)

    def pids(self) -> dict[str, int]:
        """Return the pids of the controller and of the living tasks, by rank."""
        here = {rank: pid for pid, rank in self.children.items()}
        return {str(rank): pid for rank, pid in (here | self.hosts.pids()).items()}

    def start_task(self, task: dict[str, Any], answered: Callable[[Reply], None]) -> None:
        """Start a task's process on its host; ``answered`` takes its pid, or the error.

        Raises ChildProcess in a child that is forked here.
        """
        if task.get("host"):
            self.hosts.start(task["host"], task, answered)
            return
        assert self.launcher is not None
        rank = int(task["rank"])
        if rank in self.exits:
            remove_segments(self, self.exits[rank]["pid"])
        unmark_busy(self.folder, rank)
        log = f"{self.folder}/log/engine-{rank}.log"
        with suppress(OSError):  # the new process's exit must not quote the old one's log
            os.replace(log, f"{self.folder}/log/engine-{rank}-before.log")
        become = self.launcher.start(self, rank, task["environment"], log)
        if become is not None:
            raise ChildProcess(become)
        answered({"pid": next(pid for pid, has in self.children.items() if has == rank)})

    def signal_task(self, rank: int, number: int, answered: Callable[[Reply], None]) -> None:
        """Send a signal to a task's process, or the controller; ``answered`` takes whether it exists."""
        if (host := self.hosts.find(rank)) is not None:
            self.hosts.ask(host, "signal", answered, rank=rank, signum=number)
            return
        pid = next((pid for pid, has in self.children.items() if has == rank), None)
        answered({"sent": pid is not None and send_signal(pid, number)})

    def tell_coordinator(self, message: Any) -> None:
        """Send a message of this host's launcher to the `Coordinator`, which the head has."""
        self.broadcast({"event": "launcher", "message": message})

    def kill_tasks(self, pids: Mapping[int, int]) -> None:
        """Kill the processes of tasks, by rank, that still have these pids."""
        living = self.pids()
        for rank, pid in pids.items():
            if living.get(str(rank)) == pid:  # a child that is not reaped: no other process has its pid
                self.signal_task(rank, signal.SIGKILL, lambda reply: None)

    def report_exit(self, rank: int, how: dict[str, Any]) -> None:
        """Take in how a process has ended, and report it to the clients and the hub."""
        unmark_busy(self.folder, rank)
        if rank == CONTROLLER or self.changes.is_member(rank):
            self.exits[rank] = how
            self.broadcast({**how, "event": "exit"})
        self._report_to_hub(rank)  # no client waits for the exit of a task that was removed

    def _become_child(self, log: str) -> None:
        """In a fresh child: close the supervisor's descriptors, die with it, and print to ``log``."""
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self.selector.close()
        for one in (self.listener, *self.clients, *self.held_ports):
            one.close()
        self.hosts.close_in_child()
        self.usage.close_in_child()
        self.stacks.close_in_child()
        if self.launcher is not None:
            self.launcher.close_in_child()
        for descriptor in (self.wake_in, self.wake_out, self.alive_out, self.lock, self.hub_pipe):
            if descriptor >= 0:
                os.close(descriptor)
        os.setpgid(0, 0)
        die_with_parent(self.pid, self.alive_in)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        self._add_client(client)
        self.observers.add(client)  # until it asks for "status"

    def _add_client(self, client: socket.socket) -> None:
        client.setblocking(False)
        self.clients[client] = b""
        self.selector.register(client, selectors.EVENT_READ, self._receive)

    def _receive(self, client: socket.socket) -> None:
        if client not in self.clients:  # removed by what was handled just before, in the same poll
            return
        try:
            received = client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if client is self.starter:
            self.heard = time.monotonic()
        lines = (self.clients[client] + received).split(b"\n")
        if not received or len(lines[-1]) > MAX_LINE:
            self.remove_client(client)
            return
        self.clients[client] = lines.pop()
        for line in lines:
            request: dict[str, Any] = {}
            answered = partial(self._reply, client, request)
            try:
                request.update(json.loads(line))
                if (host := self.hosts.by_connection.get(client)) is not None:
                    self.hosts.receive(host, request)
                else:
                    self._answer(request, client, answered)
            except Exception as error:
                traceback.print_exc()  # to the log: another host's supervisor reads no answer to its events
                answered({"error": f"{type(error).__name__}: {error}"})

    def _reply(self, client: socket.socket, request: dict[str, Any], reply: Reply) -> None:
        if client in self.clients:  # else it has disconnected since
            self.send(client, {**reply, "reply": request.get("id")})

    def _answer(
        self, request: dict[str, Any], client: socket.socket, answered: Callable[[Reply], None]
    ) -> None:
        """Answer a request, now or when another host has answered."""
        match request["request"]:
            case "used":
                self.idle_timeout.used = time.monotonic()
            case "signal":
                self.signal_task(int(request["rank"]), int(request["signum"]), answered)
            case "stacks":  # of ranks that are on one host
                ranks = [int(rank) for rank in request["ranks"]]
                if (host := self.hosts.find(ranks[0])) is not None:
                    self.hosts.ask(host, "stacks", answered, ranks=ranks)
                else:
                    self.stacks.read(ranks, answered)
            case "measure":  # of the head
                names = {int(rank): gpu for rank, gpu in request["gpus"].items()}
                gpus = {pid: names.get(rank) for pid, rank in self.children.items()}
                if (become := self.usage.measure(gpus, answered)) is not None:
                    raise ChildProcess(become)
            case "start":
                task = request["task"]
                if (left := task.pop("save_in", None)) is not None:
                    task["environment"][SAVE_AT_VARIABLE] = str(time.monotonic() + left)
                others = [one for one in self.plan["tasks"] if one["rank"] != task["rank"]]
                self.plan["tasks"] = [*others, task]
                self.hosts.note_tasks()
                self.start_task(task, answered)
            case "place":
                self.hosts.coordinate([str(host) for host in request["places"]], answered)
            case "launcher":  # of the head
                assert self.launcher is not None
                self.launcher.receive(self, request["message"])
                answered({})
            case "replace" | "scale_up" | "scale_down" | "fork" | "commit" | "abort":
                self.idle_timeout.used = time.monotonic()
                self.changes.answer(request, client, answered)
            case _:
                answered(self._answer_now(request, client))

    def _answer_now(self, request: dict[str, Any], client: socket.socket) -> Reply:
        match request["request"]:
            case "status" | "watch":
                if request["request"] == "status":
                    self.observers.discard(client)
                exits = {str(rank): how for rank, how in self.exits.items()}
                roster = self.changes.roster
                stopping = self.kill_at is not None
                hosts = [host.report for host in self.hosts.by_name.values()]
                now = {"pids": self.pids(), "exits": exits, "stopping": stopping, "tasks": roster}
                limits: Reply = {"ends": self.hosts.ends}
                limits |= {"unused_left": self.idle_timeout.left(time.monotonic())}
                limits |= {"awaits_job": self.hosts.awaits_job, "awaited": self.hosts.awaited()}
                limits |= {"late": self.hosts.late()}
                limits |= {"requeues": self.plan.get("requeue", False), "between": self.hosts.between_jobs}
                return {**now, "hosts": hosts, "lost": sorted(self.hosts.lost), **limits}
            case "usage":
                return {"usage": self.hosts.usage()}
            case "host":
                return self.hosts.join(request, client)
            case "ping":
                return {}
            case "bring_up":
                self.hosts.bring_up([str(name) for name in request["hosts"]])
                return {}
            case "refuse_hosts":  # they have joined, and cannot have tasks
                for name in request["hosts"]:
                    self.hosts.served.add(str(name))
                    if (host := self.hosts.by_name.get(str(name))) is not None:
                        host.refused = True
                        self.remove_client(host.connection)
                return {}
            case "ready":
                while self.held_ports:  # the controller listens on these ports now
                    self.held_ports.pop().close()
                return {}
            case "stop":
                self.stop(str(request.get("by") or "it was stopped by another process")[:200])
                return {}
        return {"error": f"no request {request['request']!r}"}

    def send(self, client: socket.socket, message: Reply) -> None:
        """Send a line to a client or to another host's supervisor."""
        try:
            client.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # it has disconnected, or a full buffer of events waits for it
            self.remove_client(client)

    def remove_client(self, client: socket.socket) -> None:
        """Disconnect a client or another host."""
        self.observers.discard(client)
        if self.clients.pop(client, None) is not None:
            self.selector.unregister(client)
            self.changes.disconnected(client)
            self.hosts.disconnected(client)
            client.close()
            if client is self.starter and not (self.folder / "cluster.json").exists():
                self.stop("the process that was starting the cluster has died")

    def _drain_wakeup(self, descriptor: int) -> None:
        with suppress(BlockingIOError):
            os.read(descriptor, 4096)
        self._reap()

    def _reap(self) -> None:
        self.hosts.reap()
        self.usage.reap()
        self.copies.reap()
        for pid in list(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            # No other process gets this number as long as the group has members: kill what it left there.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            rank = self.children.pop(pid)
            if rank != CONTROLLER and not self.changes.is_member(rank):
                remove_segments(self, pid)  # scaled down, or of a change that was aborted
            died_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            code = os.WEXITSTATUS(status) if died_by is None else None
            how: dict[str, Any] = {"rank": rank, "pid": pid, "code": code, "signal": died_by}
            how |= {"time": time.time(), "log": self._log_tail(rank)}
            if died_by == signal.SIGKILL:
                before, self.oom_kills = self.oom_kills, count_oom_kills()
                how["memory"] = out_of_memory(before, self.oom_kills)
            self.report_exit(rank, how)
            if rank == CONTROLLER:
                self.stop(f"the controller (pid {pid}) has ended")

    def _report_to_hub(self, rank: int) -> None:
        """Have the hub forget a dead engine: it would wait forever for its heartbeats, and block its id."""
        if self.hub_pipe >= 0 and rank != CONTROLLER:
            with suppress(OSError):  # the controller has already ended
                os.write(self.hub_pipe, b"%d\n" % rank)

    def _log_tail(self, rank: int) -> str:
        name = "controller" if rank == CONTROLLER else f"engine-{rank}"
        try:
            return (self.folder / "log" / f"{name}.log").read_text(errors="replace")[-LOG_TAIL:]
        except OSError:
            return ""

    def _next_timeout(self) -> float | None:
        now = time.monotonic()
        kill = None if self.kill_at is None else max(0.0, self.kill_at - now)
        orphan = self.orphan_timeout.next_check(now, self._without_client())
        busy = None if self.busy is None else CHECK_SECONDS
        idle = self.idle_timeout.next_check(now) if self.kill_at is None else None
        if self.copies.under_way:  # its end is a signal
            return CHECK_SECONDS
        return min((wait for wait in (kill, orphan, busy, idle) if wait is not None), default=None)

    def _without_client(self) -> bool:
        return self.clients.keys() <= self.observers and self.kill_at is None

    def _is_used(self) -> bool:
        """Return whether a run is under way, or the cluster, or its next job, has not started yet."""
        starts = not (self.folder / "cluster.json").exists() or self.hosts.awaits_job
        return starts or is_busy(self.folder)

    def _report_busy(self) -> None:
        """Report to the head which tasks have begun or ended their part of a run."""
        before, self.busy = self.busy or {}, busy_tasks(self.folder)
        for rank in before.keys() | self.busy.keys():
            if before.get(rank) != self.busy.get(rank):
                self.broadcast({"event": "busy", "rank": rank, "run": self.busy.get(rank, "")})

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        if self.busy is not None:
            self._report_busy()
        if self.starter in self.clients and self.plan.get("host") and now > self.heard + RELAY_SECONDS:
            send_signal(self.plan["relay"], signal.SIGKILL)
            self.remove_client(self.starter)
        without_client = self._without_client()
        busy = without_client and is_busy(self.folder)
        why = "no client was left" if self.orphan_timeout.expired(now, without_client, busy) else ""
        watched = self.idle_timeout.seconds is not None and self.kill_at is None
        if watched and self.idle_timeout.expired(now, self._is_used()):
            why = self.idle_timeout.reason
        if (become := self.stacks.begin()) is not None:
            raise ChildProcess(become)
        self.copies.reap()
        if not why:
            self.copies.forget()
        elif (become := self.copies.begin()) is not None:
            raise ChildProcess(become)
        elif not self.copies.under_way:
            self.stop(why)
        if self.kill_at is not None and now >= self.kill_at:
            for pid in list(self.children):
                send_signal(pid, signal.SIGKILL)
            self.hosts.kill()
            self.kill_at = now + GRACE_SECONDS
        if self.kill_at is not None:
            self._reap()


class ChildProcess(BaseException):
    """Leaves the supervisor's loop in a fresh child, which then calls ``become``."""

    def __init__(self, become: Callable[[], None]) -> None:
        super().__init__()
        self.become = become


# Membership changes: tasks get other processes under their ranks, are added, or are removed.
#
#     client                              supervisor
#     replace      rank: pid ───────────► takes the lock for the client; kills those processes that live
#     scale_up     tasks ───────────────► takes the lock for new tasks, with their environments
#     scale_down   rank: pid ───────────► takes the lock; the tasks end when the change is committed
#
#     fork         rank ────────────────► forks a process for the task, with its environment
#     commit       tasks (the roster) ──► sends the roster to all clients (event "roster"); frees the lock
#     abort ────────────────────────────► kills what was forked; frees the lock
#
# Between its first request and "commit" a client needs several messages to the hub, to the new engines and to
# all other tasks. Two such changes at once could give one rank to two processes, or commit two rosters that
# each leave out the other's task. So one client at a time holds the lock; another one is refused at once and
# tries again. The lock belongs to a connection and to the id that the client gave its change: when the
# connection closes, the change is aborted.
#
# "commit" decides. A client that dies before it leaves the cluster as it was (a replaced task stays dead).
#
# Before "fork" the client waits until the hub has no engine of that rank, because the new engine registers
# under the same id. "replace" and "scale_down" name pids, so that a task that another client has replaced
# since is not ended by mistake. Exits of processes that are not cluster members are reported only to
# the hub.


@dataclass
class MembershipChange:
    """A change that a client has begun: the ranks it is about, and the processes forked for it."""

    client: socket.socket
    id: str
    ranks: frozenset[int]
    new_tasks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rank and environment of tasks that are being added, by rank."""
    scale_down: bool = False
    forked: dict[int, int] = field(default_factory=dict)
    """The pids of the processes that were forked for it, by rank."""


class ChangeLock:
    """Which client may change the membership; holds the roster that the last change committed."""

    def __init__(self, supervisor: SupervisorProcess) -> None:
        self._supervisor = supervisor
        self.roster: list[dict[str, Any]] | None = None
        self._change: MembershipChange | None = None
        self._aborted: set[tuple[int, int]] = set()  # rank and pid, forked for changes that were aborted

    def answer(
        self, request: dict[str, Any], client: socket.socket, answered: Callable[[Reply], None]
    ) -> None:
        """Answer a client's request; raises ChildProcess in a child."""
        change = self._change
        held = change is not None and change.client is client and change.id == str(request["change"])
        match request["request"]:
            case "replace" | "scale_down":
                answered(self._end(request, client))
            case "scale_up":
                answered(self._add(request, client))
            case _ if change is None or not held:
                answered({"error": "this client does not hold the lock that a change of the tasks needs"})
            case "fork":
                self._fork(change, int(request["rank"]), answered)
            case "commit":
                answered(self._commit(change, request["tasks"]))
            case "abort":
                self._abort()
                answered({})

    def disconnected(self, client: socket.socket) -> None:
        """Abort the client's change, if it has one."""
        if self._change is not None and self._change.client is client:
            self._abort()

    def is_member(self, rank: int) -> bool:
        """Whether a task has that rank, or is being added under it."""
        return rank in self._ranks() or (self._change is not None and rank in self._change.new_tasks)

    def _refusal(self) -> str | None:
        if self._supervisor.kill_at is not None:
            return "the cluster is ending"
        if self._change is not None:
            ranks = ", ".join(map(str, sorted(self._change.ranks)))
            doing = (
                "ended" if self._change.scale_down else "started" if self._change.new_tasks else "replaced"
            )
            return f"the task of rank {ranks} is being {doing} at this moment; try again"
        return None

    def _end(self, request: dict[str, Any], client: socket.socket) -> Reply:
        """Begin to replace or to remove tasks."""
        supervisor = self._supervisor
        pids = {int(rank): int(pid) for rank, pid in request["pids"].items()}
        ranks, known = frozenset(pids), self._ranks()
        if not ranks <= known:
            return {"error": f"the ranks are {sorted(known)}, not {sorted(ranks)}"}
        if why := self._refusal():
            return {"error": why}
        living = {int(rank): pid for rank, pid in supervisor.pids().items() if int(rank) in ranks}
        for rank, pid in living.items():
            if pid != pids[rank] and (rank, pid) not in self._aborted:
                return {"error": f"the task of rank {rank} is pid {pid} by now, not {pids[rank]}"}
        scale_down = request["request"] == "scale_down"
        self._change = MembershipChange(client, str(request["change"]), ranks, scale_down=scale_down)
        if not scale_down:
            supervisor.kill_tasks(living)
        return {}

    def _add(self, request: dict[str, Any], client: socket.socket) -> Reply:
        """Begin to add tasks."""
        spec = self._supervisor.launcher_spec
        new_tasks = {int(task["rank"]): task for task in request["tasks"]}
        taken = sorted(self._ranks() & new_tasks.keys())
        if why := self._refusal():
            return {"error": why}
        if spec is not None and spec.fixed_size:
            return {"error": spec.fixed_size}
        if taken or min(new_tasks) < 0:
            return {"error": f"the ranks {taken or sorted(new_tasks)} are not free; try again"}
        self._change = MembershipChange(client, str(request["change"]), frozenset(new_tasks), new_tasks)
        return {}

    def _fork(self, change: MembershipChange, rank: int, answered: Callable[[Reply], None]) -> None:
        supervisor = self._supervisor
        if rank not in change.ranks or change.scale_down:
            answered({"error": f"rank {rank} is not part of this change: {sorted(change.ranks)}"})
            return
        if supervisor.kill_at is not None or str(rank) in supervisor.pids():
            answered({"error": f"rank {rank} lives, or the cluster is ending"})
            return
        tasks = [*change.new_tasks.values(), *supervisor.plan["tasks"]]
        task = next(task for task in tasks if task["rank"] == rank)
        try:
            note = supervisor.hosts.relocate(tasks, task) or supervisor.gpus.replace(
                tasks, task, supervisor.exits.get(rank, {}).get("code") == GPU_LOST_STATUS
            )
        except LookupError as error:
            answered({"error": str(error.args[0]), "final": True})
            return

        def forked(reply: Reply) -> None:
            if "pid" in reply:
                if self._change is not change:  # it was aborted since
                    self._aborted.add((rank, reply["pid"]))
                    supervisor.kill_tasks({rank: reply["pid"]})
                    return
                change.forked[rank] = reply["pid"]
                if not task.get("host"):
                    supervisor.broadcast({"event": "forked", "pids": supervisor.pids()})
                reply = {"pid": reply["pid"], "note": note, "host": task.get("host", "")}
            answered(reply)

        supervisor.start_task(task, forked)

    def _commit(self, change: MembershipChange, roster: list[dict[str, Any]]) -> Reply:
        supervisor = self._supervisor
        self._change, self.roster = None, roster
        removed = change.ranks if change.scale_down else frozenset()
        kept = [task for task in supervisor.plan["tasks"] if task["rank"] not in removed]
        supervisor.plan["tasks"] = [*kept, *change.new_tasks.values()]
        supervisor.hosts.note_tasks()
        supervisor.broadcast({"event": "roster", "tasks": roster})
        for rank in removed & supervisor.exits.keys():
            remove_segments(supervisor, supervisor.exits.pop(rank)["pid"])
        supervisor.kill_tasks({int(r): pid for r, pid in supervisor.pids().items() if int(r) in removed})
        return {}

    def _abort(self) -> None:
        assert self._change is not None
        supervisor = self._supervisor
        change, self._change = self._change, None
        supervisor.kill_tasks(change.forked)
        self._aborted |= set(change.forked.items())
        for rank in change.new_tasks.keys() & supervisor.exits.keys():
            remove_segments(supervisor, supervisor.exits.pop(rank)["pid"])

    def _ranks(self) -> set[int]:
        return {task["rank"] for task in self._supervisor.plan["tasks"]}


# A task whose GPU is lost (Xid, uncorrectable memory error, off the bus) ends its process with a status of
# its own. The next process gets another GPU, since the lost one would fail again at its first call.

NO_OTHER_GPU = (
    "GPU {gpu} is lost, and the cluster has no other that is free: see nvidia-smi and dmesg (Xid), continue "
    "without this worker (--on, or %cluster shrink), or reset the GPU or reboot, and start a new cluster"
)


@dataclass
class Gpus:
    """Which GPUs of the hosts are lost, by the name of the host and CUDA's name."""

    lost: set[tuple[str, str]] = field(default_factory=set)

    def replace(self, tasks: Sequence[dict[str, Any]], task: dict[str, Any], lost: bool) -> str:
        """Give a task another GPU of its host if its own is ``lost``, or was; return a note, "" for none.

        The GPUs of a task's host are in its "gpus". One is free if fewer workers have it than had the lost
        one. The task is no longer bound to cores, which were near the lost GPU. Raises LookupError with the
        reason if none is free.

        >>> task = {"rank": 0, "gpus": ["GPU-1", "GPU-2"], "environment": {"CUDA_VISIBLE_DEVICES": "GPU-1"}}
        >>> Gpus().replace([task], task, lost=True)
        'GPU GPU-1 is lost: its process has GPU-2 now'
        >>> Gpus().replace([task], task, lost=False)
        ''
        """
        host, own = task.get("host", ""), task["environment"].get("CUDA_VISIBLE_DEVICES")
        names = task.get("gpus", ())
        if own not in names or not (lost or (host, own) in self.lost):
            return ""
        used = gpus_in_use(tasks, host)
        self.lost.add((host, own))
        free = [name for name in names if (host, name) not in self.lost and used[name] < used[own]]
        if not free:
            raise LookupError(NO_OTHER_GPU.format(gpu=own))
        new = min(free, key=lambda name: used[name])
        task["environment"]["CUDA_VISIBLE_DEVICES"] = new
        task["environment"].pop(CORES_VARIABLE, None)
        return f"GPU {own} is lost: its process has {new} now"


def remove_segments(supervisor: SupervisorProcess, pid: int) -> None:
    """Remove the shared segments that a dead process has left."""
    from nbdist.runtime.task import segment_prefix
    from nbdist.wire.shm import remove_all

    remove_all(f"{segment_prefix(supervisor.plan['cluster_id'])}-{pid}")


# Whether the kernel has killed a process because memory was used up. It sends SIGKILL, as others may do, but
# counts it: for the cgroup of a container or a job (memory.events; v1: memory.oom_control), and for the host.


def count_oom_kills(root: Path = Path("/")) -> dict[str, int]:
    """Return how many processes the kernel has killed for their memory, by "cgroup" and "host" (Linux)."""
    own = {""}  # in a container its own cgroup is the root
    with suppress(OSError):
        own |= {line.split(":", 2)[2] for line in (root / "proc/self/cgroup").read_text().splitlines()}
    groups = [
        root / "sys/fs/cgroup" / kind.format(path.strip("/"))
        for path in own
        for kind in ("{}/memory.events", "memory/{}/memory.oom_control")
    ]
    found: dict[str, int] = {}
    for name, paths in (("cgroup", groups), ("host", [root / "proc/vmstat"])):
        for path in paths:
            with suppress(OSError, ValueError):
                lines = [line.split() for line in path.read_text().splitlines()]
                counts = [int(line[1]) for line in lines if line[:1] == ["oom_kill"]]
                found[name] = max([found.get(name, 0), *counts])
    return found


def out_of_memory(before: dict[str, int], after: dict[str, int]) -> str:
    """Return why a process was killed if the kernel has counted one more; empty if it has not.

    >>> out_of_memory({"cgroup": 0, "host": 3}, {"cgroup": 1, "host": 4})
    'the kernel has killed a process of this container or job for its memory, most likely this one'
    """
    grown = {name for name, count in after.items() if count > before.get(name, 0)}
    where = "this container or job" if "cgroup" in grown else "this host" if grown else ""
    return where and f"the kernel has killed a process of {where} for its memory, most likely this one"


# How long a cluster lives without a client. A pure decision: the time and the state are arguments.
#
# A notebook's kernel that dies or restarts must not leave processes behind that hold cores and GPUs, and must
# not end a run either. A minute is enough for a restarted kernel to adopt its cluster (`cluster/adopt.py`). A
# run may continue for an hour without a client, so that a laptop can be closed; then the cluster ends in any
# case, because a run that hangs would hold it forever.

IDLE_SECONDS, BUSY_SECONDS = 60.0, 3600.0
CHECK_SECONDS = 1.0  # between two checks whether a run still uses a cluster without a client


@dataclass
class OrphanTimeout:
    """Tells when a cluster without a client ends; ``idle`` and ``busy`` are seconds, None means never.

    It ends ``idle`` seconds after it had neither a client nor a run, and ``busy`` seconds after its last
    client in any case.

    >>> timeout = OrphanTimeout(idle=60.0, busy=3600.0)
    >>> timeout.expired(0.0, without_client=True, busy=True)
    False
    >>> timeout.expired(100.0, without_client=True, busy=False)
    False
    >>> timeout.expired(159.0, without_client=True, busy=False)
    False
    >>> timeout.expired(160.0, without_client=True, busy=False)
    True
    """

    idle: float | None
    busy: float | None
    without_client_since: float | None = None
    idle_since: float | None = None

    @classmethod
    def of(cls, seconds: float | None) -> OrphanTimeout:
        """Return the policy for an ``orphan_timeout``: a number is used for both, None is the default.

        >>> OrphanTimeout.of(None).busy, OrphanTimeout.of(5).busy
        (3600.0, 5.0)
        """
        return cls(IDLE_SECONDS, BUSY_SECONDS) if seconds is None else cls(float(seconds), float(seconds))

    def expired(self, now: float, without_client: bool, busy: bool) -> bool:
        """Take the present state, and return whether the cluster has to end ``now``."""
        if not without_client or self.idle is None or self.busy is None:
            self.without_client_since = self.idle_since = None
            return False
        if self.without_client_since is None:
            self.without_client_since = now
        if busy:
            self.idle_since = None
            return now >= self.without_client_since + self.busy
        if self.idle_since is None:
            self.idle_since = now
        return now >= self.idle_since + self.idle

    def next_check(self, now: float, without_client: bool) -> float | None:
        """Return the seconds until `expired` has to be called again; None if only an event can matter."""
        if not without_client or self.idle is None or self.busy is None:
            return None
        if self.without_client_since is None:
            return 0.0
        since, limit = self.without_client_since, self.busy
        if self.idle_since is not None:
            since, limit = self.idle_since, self.idle
        return max(0.0, min(since + limit - now, CHECK_SECONDS))


def send_signal(pid: int, number: int) -> bool:
    """Send a signal to a child that is not reaped yet; return whether the process exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def die_with_parent(parent: int, alive: int) -> None:
    """End this process, a group's leader, when its parent ends.

    On Linux the kernel does it. Elsewhere a thread reads ``alive``, a pipe that only the parent can write to.
    """
    if not end_with_parent(signal.SIGKILL):
        threading.Thread(target=_end_with, args=(alive,), name="nbdist-parent", daemon=True).start()
    elif os.getppid() != parent:  # it ended before the call above
        os._exit(1)


def _end_with(alive: int) -> None:
    os.read(alive, 1)  # returns at the end of the stream
    os.killpg(0, signal.SIGKILL)


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """A path to a folder that fits a socket's address (macOS: 104 bytes), however long the real one is."""
    if len(os.fsencode(folder)) < 80:
        yield str(folder)
    elif os.path.isdir("/proc/self/fd"):
        descriptor = os.open(folder, os.O_DIRECTORY | os.O_RDONLY)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory(prefix="nbdist-", dir="/tmp") as private:
            os.symlink(folder.absolute(), f"{private}/folder")
            yield f"{private}/folder"


def connect_supervisor(folder: Path) -> socket.socket:
    """Return a connection to the supervisor of a cluster's folder; OSError if none listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short_path(folder) as short:
            connection.connect(f"{short}/{socket_name(folder)}")
    except OSError:
        connection.close()
        raise
    return connection


def socket_name(folder: Path) -> str:
    """Return the name of the supervisor's socket in a cluster's folder; older clusters have another one."""
    older = not os.path.lexists(folder / SOCKET) and os.path.lexists(folder / OLDER_SOCKET)
    return OLDER_SOCKET if older else SOCKET


def read_line(connection: socket.socket) -> dict[str, Any]:
    """Return the first JSON line from a blocking socket, and read no byte after it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        seen = connection.recv(1 << 16, socket.MSG_PEEK)
        if not seen or len(line) > MAX_LINE:
            raise EOFError("the process that was starting the cluster has died")
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
    result: dict[str, Any] = json.loads(line)
    return result
