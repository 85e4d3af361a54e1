"""A client's end of the keeper: start one or reach a running one, ask it, and hear of deaths."""

from __future__ import annotations

import json
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

from nbdist.cluster.supervisor.process import CONTROLLER, short_path
from nbdist.errors import DeadlineExceededError, UnavailableError

KILL_SECONDS = 2.0  # limit for a killed process to end


class KeeperLink:
    """A connection to a cluster's keeper; any thread may use it.

    Nothing reads in the background: what the keeper has said is taken in whenever someone asks.
    """

    def __init__(
        self, one: socket.socket, folder: Path, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self.exits: dict[int, dict[str, Any]] = {}  # rank -> how it ended
        self.pids: dict[int, int] = {}
        self.roster: list[dict[str, Any]] | None = None  # the tasks, once they have changed
        self.gone = False
        self.stopping = ""
        """Why the cluster is ending, once it is."""
        self._socket = one
        self._process = process  # only the starter has the keeper as its child
        self._heard = b""
        self._replies: dict[int, dict[str, Any]] = {}
        self._next_id = 0
        self._lock = threading.RLock()
        one.setblocking(False)
        self._poll = select.poll()  # select() would fail in a process with more than 1,024 open files
        self._poll.register(one, select.POLLIN)

    @classmethod
    def start(cls, folder: Path, lock: int, plan: dict[str, Any], environment: dict[str, str]) -> KeeperLink:
        """Start a keeper for the folder and hand it the plan; returns at once."""
        ours, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "nbdist.cluster.supervisor",
            str(theirs.fileno()),
            str(lock),
        ]
        log = os.open(folder / "log" / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with theirs:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(), lock),
                start_new_session=True,  # the terminal's or the notebook's interrupts are not meant for it
            )
        os.close(log)
        with suppress(BrokenPipeError):  # it has failed already; whoever listens will hear that
            ours.sendall(json.dumps(plan).encode() + b"\n")
        return cls(ours, folder, process)

    @classmethod
    def reach(cls, folder: Path, *, watch: bool = False) -> KeeperLink:
        """Connect to the keeper of a living cluster; only to ``watch``, which does not keep it alive."""
        one = socket.socket(socket.AF_UNIX)
        try:
            with short_path(folder) as short:
                one.connect(f"{short}/keeper.sock")
        except OSError as error:
            one.close()
            raise UnavailableError(f"the cluster process of {folder.name} does not answer: {error}") from None
        link = cls(one, folder)
        status = link.ask("watch" if watch else "status")
        link.pids = {int(rank): pid for rank, pid in status["pids"].items()}
        link.exits = {int(rank): how for rank, how in status["exits"].items()}
        link.roster = status["tasks"]
        return link

    def ask(self, request: str, timeout: float = 5.0, **entries: Any) -> dict[str, Any]:
        """Send a request and return the reply."""
        with self._lock:
            self._next_id += 1
            number = self._next_id
            line = json.dumps({"id": number, "request": request, **entries}).encode() + b"\n"
            try:
                self._socket.sendall(line)
            except OSError:
                self.listen()
                self.gone = True
            deadline = time.monotonic() + timeout
            while number not in self._replies:
                if self.gone:
                    raise UnavailableError(f"the cluster process of {self.folder.name} has died")
                if not self.listen(deadline - time.monotonic()):
                    raise DeadlineExceededError(
                        f"the cluster process did not answer {request!r} in {timeout} s"
                    )
            reply = self._replies.pop(number)
        if "error" in reply:
            raise UnavailableError(f"the cluster process refused {request!r}: {reply['error']}")
        return reply

    def listen(self, timeout: float = 0.0) -> bool:
        """Take in what the keeper says within `timeout` seconds; False when it said nothing."""
        with self._lock:
            if self.gone:
                return False
            if not self._poll.poll(ceil(max(0.0, timeout) * 1000)):
                return False
            try:
                heard = self._socket.recv(1 << 16)
            except BlockingIOError:
                return False
            except OSError:
                heard = b""
            if not heard:
                self.gone = True
                return True
            *lines, self._heard = (self._heard + heard).split(b"\n")
            for line in lines:
                self._note(json.loads(line))
            return True

    def ended(self) -> dict[int, dict[str, Any]]:
        """Return rank -> how it ended, for every engine (and -1: the controller) that is gone by now."""
        while self.listen():
            pass
        if self.gone:
            by = self.stopping or "its cluster process died"
            lost = {"code": None, "signal": None, "time": time.time(), "log": "", "by": by}
            for rank, pid in {**self.pids}.items():
                self.exits.setdefault(rank, {"rank": rank, "pid": pid, **lost})
        return self.exits

    def event(self, name: str) -> dict[str, Any] | None:
        """Return the first event of that name that was heard, if any."""
        return next((event for event in self.events if event["event"] == name), None)

    def wait_gone(self, timeout: float) -> bool:
        """Wait until the keeper has ended (and been reaped, by its starter); whether it has."""
        deadline = time.monotonic() + timeout
        while not self.gone and time.monotonic() < deadline:
            self.listen(deadline - time.monotonic())
        if self._process is not None:
            try:
                self._process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return self.gone

    def kill(self) -> None:
        """Kill the keeper and all its children, for example if the keeper is frozen."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        elif self._process is None and not self.gone:  # open socket: its pid is not reused
            kill_peer(self._socket)
            self.wait_gone(KILL_SECONDS)

    def close(self) -> None:
        """Hang up; the cluster goes on unless this was its last client and the orphan timeout passes."""
        with self._lock:
            self._socket.close()
            self.gone = True

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    def keeper_log(self) -> str:
        """Return the end of what the keeper itself has printed."""
        try:
            return (self.folder / "log" / "keeper.log").read_text(errors="replace")[-4000:].strip()
        except OSError:
            return ""

    def _note(self, message: dict[str, Any]) -> None:
        if "reply" in message:
            self._replies[message["reply"]] = message
            return
        self.events.append(message)
        match message["event"]:
            case "stopping":
                self.stopping = str(message["reason"])
            case "exit":
                if self.stopping:
                    message["by"] = self.stopping
                self.exits[message["rank"]] = message
            case "forked":
                self.pids = {int(rank): pid for rank, pid in message["pids"].items()}
            case "roster":
                self.roster = message["tasks"]
                current = {entries["rank"]: entries["pid"] for entries in message["tasks"]}
                for rank, how in {
                    **self.exits
                }.items():  # those of processes that were replaced, or have left
                    if rank != CONTROLLER and how["pid"] != current.get(rank):
                        del self.exits[rank]
                for rank in {**self.pids}:
                    if rank != CONTROLLER and rank not in current:
                        del self.pids[rank]


def kill_peer(connection: socket.socket) -> None:
    """Kill the process at the other end of a Unix socket, which is this user's."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if pid > 0 and uid == os.getuid():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_frozen(folder: Path) -> None:
    """Kill the keeper of a cluster that does not answer, and all its children."""
    with socket.socket(socket.AF_UNIX) as one, suppress(OSError):
        with short_path(folder) as short:
            one.connect(f"{short}/keeper.sock")  # the kernel accepts even if the process is frozen
        kill_peer(one)
        one.settimeout(KILL_SECONDS)
        while one.recv(1 << 16):  # until it is dead
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
        return f"killed by {name}"
    return f"exited with code {how['code']}"


__all__ = ["CONTROLLER", "KeeperLink", "describe_exit", "end_frozen"]
