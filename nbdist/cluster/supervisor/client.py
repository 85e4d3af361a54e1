"""SupervisorClient: a client's connection to a cluster's supervisor.

    client = SupervisorClient.start(folder, lock, plan, environment)     # or .connect(folder)
    client.ask("signal", rank=2, signum=signal.SIGINT)                   # a request and its reply
    client.ended()                                                       # rank -> how it ended

No thread reads in the background. `listen`, `ask` and `ended` take in the events that have arrived: exits,
new processes, and the roster after a membership change.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

from nbdist.cluster.supervisor.process import CONTROLLER, connect_supervisor
from nbdist.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError
from nbdist.graph.gpu_errors import GPU_LOST_STATUS

USED_SECONDS = 0.25  # between two messages that the cluster is used
FRESH_SECONDS = 1e-3
TURN_SECONDS = 0.01  # between two looks for a reply, which another thread may receive
LONGEST_WAIT = 3600.0  # seconds of one wait for messages, which may be asked to have no limit
KILL_SECONDS = 2.0  # limit for a killed process to end
SUPERVISOR_LOG = "supervisor.log"
TAKEN = ("started", "hosts", "host_lost", "waiting", "command_ended", "next_job", "left")
"""The events that a client keeps until `SupervisorClient.take`; of others it has the state that follows."""


class SupervisorClient:
    """A connection to a cluster's supervisor; any thread may use it."""

    def __init__(
        self, connection: socket.socket, folder: Path, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.folder = folder
        self.exits: dict[int, dict[str, Any]] = {}  # rank -> how it ended
        self.pids: dict[int, int] = {}
        self.hosts: dict[str, dict[str, Any]] = {}  # the other hosts' reports, by name
        self.lost_hosts: set[str] = set()  # the names of those that had joined, and are there no more
        self.requeues = False  # whether the hosts' job is submitted again when it is over
        self.awaits_job = False  # whether that was done, and no host of it has joined
        self.ends: float | None = None  # when the hosts' job ends, in seconds since 1970
        self.roster: list[dict[str, Any]] | None = None  # the tasks, once they have changed
        self.closed = False
        self.left = False  # whether this client has closed the connection
        self.stopping = ""
        """Why the cluster is ending, once it is."""
        self.lost = "its cluster process died"
        """What it means that the connection ends."""
        self.may_run_on = False
        """Whether the cluster may run on when the connection ends, as behind a tunnel."""
        self._socket = connection
        self._process = process  # only the starter has the supervisor as its child
        self._received = b""
        self._events: dict[str, list[dict[str, Any]]] = {}  # those of `TAKEN`, by name
        self._replies: dict[int, dict[str, Any]] = {}
        self._next_id = 0
        self._looked = -math.inf
        self._lock = threading.RLock()
        self._used = -math.inf  # when the supervisor was told last
        connection.setblocking(False)

    @classmethod
    def start(
        cls, folder: Path, lock: int, plan: dict[str, Any], environment: dict[str, str]
    ) -> SupervisorClient:
        """Start a supervisor for the folder and send it the plan; returns at once."""
        ours, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "nbdist.cluster.supervisor",
            str(theirs.fileno()),
            str(lock),
        ]
        log = os.open(folder / "log" / SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with theirs:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), lock),
                start_new_session=True,  # interrupts of the terminal or the notebook must not reach it
            )
        os.close(log)
        with suppress(BrokenPipeError):  # it has already failed, which the next `listen` finds
            ours.sendall(json.dumps(plan).encode() + b"\n")
        return cls(ours, folder, process)

    @classmethod
    def connect(cls, folder: Path, *, observe: bool = False) -> SupervisorClient:
        """Connect to the supervisor of a running cluster; as an observer the connection keeps nothing alive.

        Raises UnavailableError if it cannot be reached, DeadlineExceededError if it does not answer.
        """
        try:
            connection = connect_supervisor(folder)
        except OSError as error:
            raise UnavailableError(f"the cluster process of {folder.name} does not answer: {error}") from None
        client = cls(connection, folder)
        status = client.ask("watch" if observe else "status")
        client.pids = {int(rank): pid for rank, pid in status["pids"].items()}
        client.exits = {int(rank): how for rank, how in status["exits"].items()}
        client.roster = status["tasks"]
        client.ends, client.awaits_job = status.get("ends"), bool(status.get("awaits_job"))
        client.requeues = bool(status.get("requeues"))
        client.hosts = {one["name"]: one for one in status.get("hosts", ())}
        client.lost_hosts = set(status.get("lost", ()))
        return client

    def ask(self, request: str, timeout: float = 5.0, **entries: Any) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises UnavailableError if the supervisor refuses it or has died, FailedPreconditionError if it will
        refuse it again, DeadlineExceededError if no reply arrives within `timeout` seconds.
        """
        with self._lock:
            self._next_id += 1
            number = self._next_id
            line = json.dumps({"id": number, "request": request, **entries}).encode() + b"\n"
            try:
                self._socket.sendall(line)
            except OSError:
                self.listen()
                self.closed = True
        reply = self._await_reply(number, request, timeout)
        if reply.get("error") == f"no request {request!r}":
            raise UnavailableError(
                f"cluster {self.folder.name} was started by an older version of nbdist, which has no request "
                f"{request!r}: stop it (%cluster stop) and start a new one"
            )
        if reply.get("final"):
            raise FailedPreconditionError(str(reply["error"]))
        if "error" in reply:
            raise UnavailableError(f"the cluster process refused {request!r}: {reply['error']}")
        return reply

    def _await_reply(self, number: int, request: str, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            closed = self.closed  # before the look: another thread may receive the reply, and then the end
            if (reply := self._replies.pop(number, None)) is not None:
                return reply
            if closed:
                raise UnavailableError(f"the cluster process of {self.folder.name} has died")
            if (left := deadline - time.monotonic()) <= 0:
                raise DeadlineExceededError(f"the cluster process did not answer {request!r} in {timeout} s")
            self.listen(min(left, TURN_SECONDS))

    def note_use(self) -> None:
        """Tell the supervisor that the cluster is used, at most four times a second; it does not answer."""
        if (now := time.monotonic()) - self._used < USED_SECONDS or self.closed:
            return
        self._used = now
        with self._lock, suppress(OSError):  # a supervisor that has ended is found by `listen`
            self._socket.sendall(b'{"request": "used"}\n')

    def listen(self, timeout: float = 0.0) -> bool:
        """Take in messages that arrive within `timeout` seconds; return whether there were any.

        Another thread may receive them: then this one returns False, perhaps before the time.
        """
        # It waits without the lock: a thread that polls a run must not wait for the reply of another thread's
        # request, which may take seconds. select() would fail with more than 1,024 open files.
        if timeout > 0 and not self.closed:
            poll = select.poll()
            with suppress(ValueError):  # another thread has closed the connection
                poll.register(self._socket, select.POLLIN)
                poll.poll(ceil(min(timeout, LONGEST_WAIT) * 1000))
        with self._lock:
            if self.closed:
                return False
            try:
                received = self._socket.recv(1 << 16)
            except BlockingIOError:
                return False
            except OSError:
                received = b""
            if not received:
                self.closed = True
                return True
            *lines, self._received = (self._received + received).split(b"\n")
            for line in lines:
                self._handle(json.loads(line))
            return True

    def ended(self) -> dict[int, dict[str, Any]]:
        """Return rank -> how it ended, for every engine (and -1: the controller) that has ended.

        What has arrived in the last `FRESH_SECONDS` may be left to the next call: a poll of a run asks dozens
        of times, and each look at the socket is a system call.
        """
        if (now := time.monotonic()) - self._looked < FRESH_SECONDS and not self.closed:
            return self.exits
        self._looked = now
        while self.listen():
            pass
        if self.closed:
            by = self.stopping or self.lost
            lost = {"code": None, "signal": None, "time": time.time(), "log": "", "by": by}
            for rank, pid in {**self.pids}.items():
                self.exits.setdefault(rank, {"rank": rank, "pid": pid, **lost})
        return self.exits

    @property
    def cut_off(self) -> bool:
        """Whether the connection has ended, and the cluster may run on."""
        return self.closed and self.may_run_on and not self.stopping

    def place_of(self, host: str) -> dict[str, str]:
        """Return the arguments of `open_task` for a task on a host: the address of its Server, its name.

        Raises UnavailableError for a host that is lost.
        """
        if not host:
            return {}
        if (report := self.hosts.get(host)) is None:
            raise UnavailableError(f"host {host} was lost before its tasks had started; try again")
        return {"host": report["address"], "node": host}

    def take(self, name: str) -> list[dict[str, Any]]:
        """Return the events of that name, one of `TAKEN`, that have arrived, once."""
        with self._lock:
            return self._events.pop(name, [])

    def wait_closed(self, timeout: float) -> bool:
        """Wait until the supervisor has ended (and its starter has reaped it); return whether it has."""
        deadline = time.monotonic() + timeout
        while not self.closed and time.monotonic() < deadline:
            self.listen(deadline - time.monotonic())
        if self._process is not None:
            try:
                self._process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return self.closed

    def lead_through(self, host: str) -> None:
        """Note that the connection leads through a tunnel to ``host``: the cluster may outlive it."""
        self.may_run_on = True
        self.lost = (
            f"the tunnel to {host} has ended; if its network failed, the cluster runs on: connect again with "
            f"%cluster attach --tunnel {host} {self.folder.name}"
        )

    def end(self, timeout: float, by: str = "") -> None:
        """End the cluster and disconnect; its clients receive ``by`` as the reason.

        A supervisor that does not answer within ``timeout`` seconds, or does not end in as many, is killed.
        Raises UnavailableError for one behind a tunnel that does not answer, which cannot be killed from
        here, and if the command of a launcher could not end a job.
        """
        told = False
        if not self.closed:
            with suppress(UnavailableError, DeadlineExceededError):  # it has died, or is frozen
                self.ask("stop", timeout, by=by)
                told = True
        if not self.wait_closed(timeout) and not self.may_run_on:
            self.kill()
        self.close()
        if self.may_run_on and not told and not self.stopping:
            raise UnavailableError(
                f"cluster {self.folder.name} was not stopped, because it does not answer: {self.lost}, and "
                "stop it then"
            )
        if left := [one["reason"] for one in self.take("left")]:
            raise UnavailableError(f"cluster {self.folder.name} has ended, but {'; '.join(left)}")

    def kill(self) -> None:
        """Kill the supervisor and all its children, for example if the supervisor is frozen."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        elif self._process is None and not self.closed:  # open socket: its pid is not reused
            kill_peer(self._socket)
            self.wait_closed(KILL_SECONDS)

    def close(self) -> None:
        """Disconnect; the cluster continues until the orphan timeout, if this was its last client."""
        with self._lock:
            self._socket.close()
            self.closed = self.left = True

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    def log_tail(self) -> str:
        """Return the end of the supervisor's own log."""
        try:
            return (self.folder / "log" / SUPERVISOR_LOG).read_text(errors="replace")[-4000:].strip()
        except OSError:
            return ""

    def _handle(self, message: dict[str, Any]) -> None:
        if "reply" in message:
            self._replies[message["reply"]] = message
            return
        if message["event"] in TAKEN:
            self._events.setdefault(message["event"], []).append(message)
        match message["event"]:
            case "stopping":
                self.stopping = str(message["reason"])
            case "exit":
                if self.stopping:
                    message["by"] = self.stopping
                self.exits[message["rank"]] = message
            case "host":
                self.awaits_job = False
                self.hosts[message["name"]] = message
                self.lost_hosts.discard(message["name"])
            case "hosts":
                self.ends = message["ends"]
            case "next_job":
                self.awaits_job, self.ends = True, None
            case "command_ended":
                self.awaits_job = False
            case "host_lost":
                self.hosts.pop(message["name"], None)
                if not message.get("refused"):
                    self.lost_hosts.add(message["name"])
            case "forked":
                self.pids = {int(rank): pid for rank, pid in message["pids"].items()}
            case "roster":
                self.roster = message["tasks"]
                current = {entries["rank"]: entries["pid"] for entries in message["tasks"]}
                for rank, how in {**self.exits}.items():  # of processes that were replaced or removed
                    if rank != CONTROLLER and how["pid"] != current.get(rank):
                        del self.exits[rank]
                for rank in {**self.pids}:
                    if rank != CONTROLLER and rank not in current:
                        del self.pids[rank]


def kill_peer(connection: socket.socket) -> None:
    """Kill the process at the other end of a Unix socket, which is this user's."""
    pid = peer_of(connection)
    if pid > 0:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


LOCAL_PEERPID = (0, 2)  # level and option of macOS, which Python does not name


def peer_of(connection: socket.socket) -> int:
    """Return the pid of the process at the other end of a Unix socket, 0 if it is another user's."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return int(pid) if uid == os.getuid() else 0
    with suppress(OSError):  # the socket is in a folder that only this user can enter
        return connection.getsockopt(*LOCAL_PEERPID)
    return 0


def end_frozen(folder: Path) -> None:
    """Kill the supervisor of a cluster that does not answer, and all its children."""
    # The kernel accepts the connection for a frozen one.
    with suppress(OSError), connect_supervisor(folder) as connection:
        kill_peer(connection)
        connection.settimeout(KILL_SECONDS)
        while connection.recv(1 << 16):  # until it is dead
            pass


def describe_exit(how: dict[str, Any]) -> str:
    """Return how a process ended, in words."""
    if how.get("by"):
        return str(how["by"])
    if how["signal"] is not None:
        try:
            name = signal.Signals(how["signal"]).name
        except ValueError:
            name = str(how["signal"])
        return f"killed by {name}{f': {why}' if (why := how.get('memory')) else ''}"
    if how["code"] == GPU_LOST_STATUS:
        return f"ended because its GPU is lost (code {GPU_LOST_STATUS})"
    return f"exited with code {how['code']}"


__all__ = ["CONTROLLER", "SupervisorClient", "describe_exit", "end_frozen"]
