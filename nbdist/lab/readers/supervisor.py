"""The status of a cluster's tasks from its supervisor: living processes, ended ones, and how they ended.

`SupervisorConnection.read` returns a `SupervisorStatus`. Only the supervisor knows how a process ended,
and that a pid is still that of the task (it has not reaped it). The request is "watch", which does not keep a
cluster alive. A supervisor that hangs is not waited for: a later `read` takes in its reply. Events are not
interpreted: after any event the whole status is requested again.

`SupervisorConnection.usage` has what tasks on other hosts use; it is requested for a cluster
that a page shows.
"""

from __future__ import annotations

import json
import select
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from nbdist.cluster.description import LONGEST, parse_tasks
from nbdist.cluster.supervisor.process import short_path, socket_name
from nbdist.json_values import listed, mapping, number, text, whole
from nbdist.metrics.process_usage import Load, Usage
from nbdist.runtime.task import MOST_PID, TaskInfo

PATIENCE_SECONDS = 0.05  # for a reply, once per request: a living supervisor needs a thousandth of it
RETRY_SECONDS = 5.0  # between two attempts to connect
LIMIT_SECONDS = 5.0  # between two requests for the time until an unused cluster ends: a use is no event
MOST_HOSTS = 4096
GPU_FIGURES = ("use", "memory", "total", "power", "temperature")
MAX_LINE = 16 << 20  # bytes without an end of line
REQUEST = b'{"id": 1, "request": "watch"}\n'
USAGE_ID, USAGE_REQUEST = 2, b'{"id": 2, "request": "usage"}\n'
OLD_SECONDS = 10.0  # from which figures are no longer shown


@dataclass(frozen=True)
class SupervisorStatus:
    """The last reply of a supervisor."""

    pids: Mapping[int, int] = field(default_factory=dict)
    """The processes that live, by rank; -1 is the controller."""
    exits: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """How the others have ended, by rank."""
    stopping: bool = False
    tasks: tuple[TaskInfo, ...] | None = None
    """The roster after a membership change; it takes precedence over the cluster's file."""
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the other hosts with a supervisor say of themselves, by name."""
    ends: float | None = None
    """When the job of the other hosts ends, in seconds since 1970."""
    unused_ends: float | None = None
    """When the cluster ends if nothing uses it, in seconds since 1970."""
    lost: frozenset[str] = frozenset()
    """The names of hosts that had come, and are there no more."""


def parse_status(message: object) -> SupervisorStatus | None:
    """Return the status in a reply, or None if the message has none. Never raises.

    >>> parse_status({"reply": 1, "pids": {"0": 17}, "exits": {}, "stopping": False}).pids
    {0: 17}
    """
    if not isinstance(message, dict) or "reply" not in message:
        return None
    pids, exits, left = message.get("pids"), message.get("exits"), number(message.get("unused_left"))
    if not isinstance(pids, dict) or not isinstance(exits, dict):
        return None
    ranks = {str(key): rank for key in {*pids, *exits} if (rank := _rank(key)) is not None}
    return SupervisorStatus(
        {ranks[key]: pid for key in pids if key in ranks and (pid := whole(pids[key], MOST_PID))},
        {ranks[key]: exits[key] for key in exits if key in ranks and isinstance(exits[key], dict)},
        message.get("stopping") is True,
        parse_tasks(message.get("tasks")),
        dict(host for one in listed(message.get("hosts"))[:MOST_HOSTS] if (host := parse_host(one))),
        number(message.get("ends")),
        None if left is None else time.time() + left,
        frozenset(name for one in listed(message.get("lost"))[:MOST_HOSTS] if (name := text(one, LONGEST))),
    )


def parse_host(report: object) -> tuple[str, dict[str, Any]] | None:
    """Return the name of a host and its report; None without a name. Never raises.

    >>> parse_host({"name": "a", "cores": 8, "gpus": ["0", "1"], "address": ["?"]})
    ('a', {'hostname': '', 'address': '', 'cores': 8, 'gpus': ['0', '1']})
    """
    found = mapping(report)
    name = text(found.get("name"), LONGEST)
    if not name:
        return None
    said: dict[str, Any] = {key: text(found.get(key), LONGEST) for key in ("hostname", "address")}
    gpus = [gpu for one in listed(found.get("gpus")) if (gpu := text(one, LONGEST))]
    return name, {**said, "cores": whole(found.get("cores")), "gpus": gpus}


@dataclass(frozen=True)
class HostUsage:
    """What another host and its tasks use, as it has said last."""

    at: float
    """When it has said that, by `time.monotonic`."""
    loads: Mapping[int, Load] = field(default_factory=dict)
    """CPU and memory, by pid."""
    gpus: Mapping[int, Usage] = field(default_factory=dict)
    """The use of its GPU, by pid (see `GpuMonitor.poll`)."""
    problem: str | None = None
    """Why its GPUs cannot be measured."""
    machine: Mapping[str, int | None] = field(default_factory=dict)
    """The host's own "cpu" in percent of all cores, "memory" and "total" in bytes."""


def parse_usage(message: object, now: float) -> dict[str, HostUsage]:
    """Return the usage of hosts by name from a reply, without what is old or invalid. Never raises.

    >>> tasks = {"17": {"cpu": 99, "memory": 1 << 20, "frozen": False, "gpu": None}}
    >>> reply = {"reply": 2, "usage": [{"name": "a", "age": 0.5, "tasks": tasks, "machine": {"cpu": 50}}]}
    >>> parse_usage(reply, now=100.0)["a"].loads
    {17: Load(cpu=99, memory=1048576, frozen=False)}
    """
    found: dict[str, HostUsage] = {}
    for one in map(mapping, listed(mapping(message).get("usage"))[:MOST_HOSTS]):
        name, age = text(one.get("name"), LONGEST), number(one.get("age"))
        if not name or age is None:
            continue
        tasks = {pid: mapping(said) for key, said in mapping(one.get("tasks")).items() if (pid := _rank(key))}
        machine = mapping(one.get("machine"))
        found[name] = HostUsage(
            now - age,
            {
                pid: Load(whole(said.get("cpu")), whole(said.get("memory")), said.get("frozen") is True)
                for pid, said in tasks.items()
            },
            {pid: parse_gpu(gpu) for pid, said in tasks.items() if (gpu := mapping(said.get("gpu")))},
            text(one.get("problem"), LONGEST) or None,
            {key: whole(machine.get(key)) for key in ("cpu", "memory", "total")},
        )
    return found


def parse_gpu(usage: Mapping[str, Any]) -> Usage:
    """Return a GPU's use with whole numbers, None for what it does not have. Never raises."""
    figures: Usage = {key: whole(usage.get(key)) for key in GPU_FIGURES}
    return {
        **figures,
        "history": [use for one in listed(usage.get("history")) if (use := whole(one)) is not None],
    }


def _rank(key: object) -> int | None:
    with suppress(ValueError):
        if isinstance(key, str) and len(key) < 10:
            return int(key)
    return None


class SupervisorConnection:
    """A connection to one cluster's supervisor that waits only briefly for a reply."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._status: SupervisorStatus | None = None
        self._socket: socket.socket | None = None
        self._received = b""
        self._asked = self._fresh = False  # a request has no reply yet; that reply was not waited for
        self._retry_at = self._asked_at = 0.0
        self._usage: dict[str, HostUsage] = {}
        self._usage_asked = False

    @property
    def connected(self) -> bool:
        """Whether the supervisor holds the other end: then it lives."""
        return self._socket is not None

    def read(self, patience: float = PATIENCE_SECONDS) -> SupervisorStatus | None:
        """Return the present status; None if the supervisor does not answer, or cannot be reached."""
        self._receive()
        if self._socket is None and time.monotonic() >= self._retry_at:
            self._connect()
        if self._fresh:
            self._fresh = False  # if it hangs, the next call does not wait
            self._receive(patience)
        limited = self._status is not None and self._status.unused_ends is not None
        if limited and not self._asked and time.monotonic() >= self._asked_at + LIMIT_SECONDS:
            self._send()
        return self._status

    def usage(self) -> dict[str, HostUsage]:
        """Return what other hosts and their tasks use, by host, as far as it is known; never waits."""
        return {name: one for name, one in self._usage.items() if time.monotonic() - one.at < OLD_SECONDS}

    def ask_usage(self) -> None:
        """Request newer figures of other hosts, unless a request has no reply yet."""
        if self._socket is not None and not self._usage_asked:
            try:
                self._socket.sendall(USAGE_REQUEST)
                self._usage_asked = True
            except OSError:
                self.close()

    def close(self) -> None:
        """Disconnect, and drop the status."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._status, self._received = None, None, b""
        self._asked = self._fresh = self._usage_asked = False

    def __del__(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _connect(self) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)  # connecting blocks too, when a frozen supervisor's queue is full
        try:
            with short_path(self.folder) as short:
                name = socket_name(self.folder)
                if not stat.S_ISSOCK((self.folder / name).lstat().st_mode):
                    raise FileNotFoundError
                connection.connect(f"{short}/{name}")
        except OSError:
            connection.close()
            return
        self._socket = connection
        self._ask()

    def _ask(self) -> None:
        self._status = None
        self._send()
        self._fresh = self._asked

    def _send(self) -> None:
        """Request the status; the last one holds until the reply."""
        assert self._socket is not None
        self._asked_at = time.monotonic()
        try:
            self._socket.sendall(REQUEST)
            self._asked = True
        except OSError:  # BlockingIOError too: it has not read for a long time
            self.close()

    def _receive(self, patience: float = 0.0) -> None:
        """Take in the messages that have arrived; wait up to ``patience`` seconds for a reply."""
        deadline = time.monotonic() + patience
        while self._socket is not None:
            try:
                received = self._socket.recv(1 << 18)
            except BlockingIOError:
                if self._status is None and self._wait(deadline - time.monotonic()):
                    continue
                return
            except OSError:
                received = b""
            if not received or len(self._received) > MAX_LINE:
                self.close()
                return
            *lines, self._received = (self._received + received).split(b"\n")
            for line in lines:
                self._handle(line)

    def _wait(self, seconds: float) -> bool:
        if seconds <= 0 or self._socket is None:
            return False
        poll = select.poll()  # select() would fail in a process with more than 1,024 open files
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(ceil(seconds * 1000)))

    def _handle(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict) and message.get("reply") == USAGE_ID:
            self._usage, self._usage_asked = parse_usage(message, time.monotonic()), False
        elif isinstance(message, dict) and "reply" in message:
            self._asked = False
            self._status = parse_status(message)
        elif not self._asked and self._socket is not None:
            self._ask()
