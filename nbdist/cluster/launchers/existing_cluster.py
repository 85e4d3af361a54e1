"""What the launchers have in common whose hosts are those of a cluster that is up: dask, ray, ipyparallel.

    python -m nbdist.cluster.launchers.dask --scheduler=tcp://10.0.0.1:8786               # prints the hosts
    python -m nbdist.cluster.launchers.dask --scheduler=tcp://10.0.0.1:8786 n1 n2 < plan  # the command

    the command, on the head's host           host n1
    start()  ───────────── Dask ────────────► a worker of Dask: SupervisorActor ──► actor_process n1
             ◄──────────── Dask ───────────── its public key
    dial()   ───────────── Dask ────────────► the command's addresses
    the plan ═════════════ CURVE ═══════════► actor_process ──► python -m nbdist.cluster.supervisor.host n1

Each host goes through these steps by itself: one whose worker is busy does not hold back the others.

The supervisor of a host is a process of its own there, not a thread of a worker. The worker holds the
standard input of its parent `actor_process`, which ends it when the worker, or what the command has put into
it, ends.

Dask, Ray and ipyparallel need not encrypt what they carry, so the cluster's keys do not travel there. A host
makes a fresh CURVE key, and its public half travels: a reader of the network learns nothing. A user
with commands to the cluster that is up is not stopped, and could run programs on its hosts anyway.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.command import check_settings, command_line, end_at_signals, exit_code
from nbdist.cluster.launchers.command import run_command as run_with_plan
from nbdist.cluster.launchers.spec import HostCommand, LauncherSetting
from nbdist.errors import UnavailableError
from nbdist.wire.hosts import host_identity

FIND_SECONDS = 40.0  # for a cluster that is up to say which hosts it has
ANSWER_SECONDS = 10.0  # for its workers to say where they are
CONNECT_SECONDS = 5.0  # for a port to accept a connection
JOIN_SECONDS = 20.0  # for a host to connect, once its worker has the addresses
END_SECONDS = 8.0  # for all supervisors to end, before they are left to their workers
BUSY_SECONDS = 2.0  # until a worker that does not begin is reported as busy
LOOK_SECONDS = 0.2  # between two looks at the workers that have not begun
LONGEST_PLAN = 1 << 16  # bytes
STOP = b"stop"
ENDED_AT_ONCE = "its process for the supervisor ended at once; the log of its worker says why"
MODULE = "nbdist.cluster.launchers"


class ExistingCluster(ABC):
    """The hosts of a cluster that is up, through a connection to it."""

    worker = "worker"
    """What runs a `SupervisorActor` there, in the words of that cluster."""
    notice = ""
    """What the user has to know about this cluster, in one sentence."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the hosts, each once."""

    @abstractmethod
    def start(self, name: str) -> Future[str]:
        """Make a `SupervisorActor` on a host, and return its public key, which is there when it has begun.

        Raises UnavailableError for a host that the cluster does not have any more.
        """

    @abstractmethod
    def dial(self, name: str, addresses: Sequence[str]) -> Future[str]:
        """Give a host's `SupervisorActor` the addresses of this command; see `SupervisorActor.dial`."""

    @abstractmethod
    def busy(self, names: Sequence[str]) -> str:
        """Return what these hosts wait for, in a sentence."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all `SupervisorActor` objects, and of the connection."""


class SupervisorActor:
    """The process that runs a host's supervisor; an object in a worker of a cluster that is up.

    The process ends with this object, and so with the worker.
    """

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{MODULE}.actor_process", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt of the worker's terminal is not for it
        )
        # It has no reference to this object, which would keep the process alive.
        threading.Thread(target=reap, args=(self._process.pid,), name=f"nbdist {name}", daemon=True).start()

    def public_key(self) -> str:
        """Return the public key of the process, "" if it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline(LONGEST_PLAN).decode().strip()

    def dial(self, addresses: Sequence[str]) -> str:
        """Let the process connect to one of these addresses; return why it could not, or ""."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(list(addresses)).encode() + b"\n")
            self._process.stdin.flush()
            return str(json.loads(self._process.stdout.readline(LONGEST_PLAN)))
        except (OSError, ValueError):
            return ENDED_AT_ONCE

    def __del__(self) -> None:
        if (process := getattr(self, "_process", None)) is not None and process.stdin is not None:
            process.returncode = 0  # `reap` has its status
            with suppress(OSError):  # it has ended, with a line in the pipe
                process.stdin.close()


def reap(pid: int) -> None:
    """Wait for a child of this process, so that no entry of it is left in the table of processes."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def machine() -> tuple[str, str]:
    """Return the name and the identity of the machine of this process."""
    return socket.gethostname(), host_identity()


def one_for_each(
    machines: Mapping[str, tuple[str, str]], load: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Return one worker for each machine, by the machine's name. Names that two machines have get a number.

    ``load`` is what the workers have to do: of a machine's workers it is the one with the least.

    >>> machines = {"tcp://a:1": ("n1", "x"), "tcp://a:2": ("n1", "x"), "tcp://b:1": ("n1", "y")}
    >>> one_for_each(machines), one_for_each(machines, {"tcp://a:1": 3})["n1"]
    ({'n1': 'tcp://a:1', 'n1-2': 'tcp://b:1'}, 'tcp://a:2')
    """
    load = load or {}
    found: dict[str, str] = {}
    known: dict[str, str] = {}
    for worker, (name, identity) in sorted(machines.items()):
        if identity in known:
            other = found[known[identity]]
            found[known[identity]] = min(other, worker, key=lambda one: load.get(one, 0))
            continue
        number = 1
        while (own := name if number == 1 else f"{name}-{number}") in found:
            number += 1
        known[identity], found[own] = own, worker
    return found


class Supervisors:
    """Runs the supervisors of hosts to their end; ``plan`` is the line that each has to get."""

    def __init__(self, cluster: ExistingCluster, plan: bytes) -> None:
        import zmq

        self._zmq = zmq
        self.cluster, self.plan = cluster, plan
        self.hosts: list[str] = []
        """The hosts that are not lost, in the order of the command."""
        self.starting: dict[str, Future[str]] = {}
        """The public keys of hosts that have not begun."""
        self.dialing: dict[str, Future[str]] = {}
        """Why hosts could not connect, or "", as soon as they have tried."""
        self.given_up: dict[str, float] = {}
        """Until when hosts that have begun may connect."""
        self.links: dict[Any, str] = {}
        """The connections to the hosts that have not ended, with their names."""
        self.begun: set[str] = set()
        """The hosts whose supervisors have the plan, or had joined the cluster when they ended."""
        self.why = "no host was named"
        self.context: zmq.Context[Any] = zmq.Context()

    def run(self, names: Sequence[str]) -> None:
        """Return when the supervisors have ended; UnavailableError if none has joined the cluster."""
        try:
            heads = json.loads(self.plan)["heads"]
            if self.cluster.notice:
                report(waiting=self.cluster.notice)
            self.hosts = list(names)
            for name in names:
                try:
                    self.starting[name] = self.cluster.start(name)
                except UnavailableError as error:
                    self._lose(name, str(error))
            busy_at = time.monotonic() + BUSY_SECONDS
            named = waits = False
            while self.starting or self.links:
                self._advance(heads)
                if self.links and (not named or (waits and not self.starting)):
                    # The first host names them all, so that a cluster can start with those that are there.
                    report(hosts=self.hosts)
                    named, waits = True, False
                if self.starting and not waits and time.monotonic() > busy_at:
                    report(waiting=self.cluster.busy([*self.starting]))
                    waits = True
                if self.links:
                    self._take(self._receive(LOOK_SECONDS))
                else:
                    wait(self.starting.values(), LOOK_SECONDS, FIRST_COMPLETED)
            if not self.begun:
                raise UnavailableError(self.why)
        finally:
            self._end()

    def _advance(self, heads: Sequence[str]) -> None:
        """Let the hosts that have begun connect, and take in which could not."""
        for name in [name for name, key in self.starting.items() if key.done()]:
            key = self._result(name, self.starting.pop(name))
            if key == "":
                self._lose(name, ENDED_AT_ONCE)
            elif key is not None:
                port = self._bind(name, key)
                self.dialing[name] = self.cluster.dial(name, [f"{head}:{port}" for head in heads])
                self.given_up[name] = time.monotonic() + JOIN_SECONDS
        for name in [name for name, why in self.dialing.items() if why.done()]:
            if why := self._result(name, self.dialing.pop(name)):
                self._lose(name, why)
        late = [name for name, at in self.given_up.items() if time.monotonic() > at]
        for name in late:
            did = f"its {self.cluster.worker} did not connect within {JOIN_SECONDS:g} s"
            self._lose(name, f"{did}: it is busy, or its log says why")

    def _result(self, name: str, call: Future[str]) -> str | None:
        """Return what a worker answers; None if it fails, and its host is lost."""
        try:
            return call.result()
        except Exception as error:  # whatever a worker raises
            self._lose(name, f"its {self.cluster.worker} {why_not(error)}")
            return None

    def _lose(self, name: str, why: str) -> None:
        """Report that a host has no supervisor, or none any more."""
        for link in [link for link, own in self.links.items() if own == name]:
            del self.links[link]
            link.close()
        self.dialing.pop(name, None)
        self.given_up.pop(name, None)
        self.hosts.remove(name)
        self.why = f"host {name}: {why}"
        report(lost=[name], reasons=[self.why])

    def _bind(self, name: str, key: str) -> int:
        """Return the port at which a host reaches this command; only the holder of the key can read there."""
        zmq = self._zmq
        link = self.context.socket(zmq.DEALER)
        self.links[link] = name  # whatever fails from here on, `_end` closes it
        link.linger = 500
        link.maxmsgsize = LONGEST_PLAN
        link.curve_publickey, link.curve_secretkey = zmq.curve_keypair()
        link.curve_serverkey = key.encode()
        link.bind("tcp://0.0.0.0:*")
        return int(link.last_endpoint.rpartition(b":")[2].rstrip(b"\0"))

    def _receive(self, seconds: float) -> list[tuple[Any, dict[str, Any]]]:
        poller = self._zmq.Poller()
        for link in self.links:
            poller.register(link, self._zmq.POLLIN)
        found = []
        for link, _ in poller.poll(int(seconds * 1000)):
            with suppress(ValueError):
                message = json.loads(link.recv())
                if isinstance(message, dict):
                    found.append((link, message))
        return found

    def _take(self, messages: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        for link, message in messages:
            name = self.links[link]
            if "ready" in message:
                link.send(self.plan)
                self.begun.add(name)
                self.given_up.pop(name, None)
            elif "ended" in message:
                ended = message["ended"]
                if not ended["joined"]:
                    self.begun.discard(name)
                if ended["code"] or not ended["joined"]:
                    said = last_line(ended["errors"]).removeprefix(f"host {name}: ")
                    self._lose(name, said or f"its supervisor ended with {ended['code']}")
                else:
                    del self.links[link]
                    link.close()

    def _end(self) -> None:
        """End the supervisors that are left, then their processes."""
        for link in self.links:
            with suppress(self._zmq.ZMQError):  # it has not connected
                link.send(STOP, self._zmq.NOBLOCK)
        deadline = time.monotonic() + END_SECONDS
        while self.links and time.monotonic() < deadline:
            for link, message in self._receive(0.2):
                if "ended" in message:
                    del self.links[link]
                    link.close()
                elif "ready" in message:
                    link.send(STOP)
            if not any(link.poll(0, self._zmq.POLLOUT) for link in self.links):
                break  # none has connected
        for link in self.links:
            link.close()
        self.context.term()


def why_not(error: BaseException) -> str:
    """Return why a worker did not do what it was asked.

    >>> why_not(ModuleNotFoundError("No module named 'nbdist'"))
    'has no nbdist: install the same version there'
    """
    if "No module named 'nbdist" in str(error):
        return "has no nbdist: install the same version there"
    return f"failed ({said(error)})"


def said(error: BaseException) -> str:
    """Return an error's own words, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def require_port(what: str, address: str, command: str) -> None:
    """Raise UnavailableError if nothing accepts a connection at an address: Dask and Ray find it out late.

    ``command`` is what shows the cluster's state.
    """
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise UnavailableError(
            f"{what} at {address} cannot be reached ({why}): check its address, and that it runs ({command})"
        ) from None


def report(**progress: Any) -> None:
    """Print a line of progress."""
    print(json.dumps(progress), flush=True)


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty, "" without any."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def run_command(
    name: str,
    settings: Sequence[LauncherSetting],
    connect: Callable[[Mapping[str, Any]], ExistingCluster],
    arguments: Sequence[str],
) -> int:
    """Be the command of a launcher; return its exit code.

    Without hosts it prints them. With some it runs their supervisors until they, or this process, end.
    """
    parser = command_line(name, settings)
    parser.add_argument("hosts", nargs="*", help="hosts that get a supervisor (default: print the hosts)")
    given = vars(parser.parse_args(arguments))
    hosts = given.pop("hosts")

    def with_cluster(use: Callable[[ExistingCluster], None]) -> None:
        cluster = connect(given)
        end_at_signals()  # Ray has handlers of its own
        try:
            use(cluster)
        finally:
            cluster.close()

    def print_hosts() -> None:
        check_settings(settings, given)
        end_at_signals()
        with_cluster(lambda cluster: report(hosts=cluster.names()))

    if not hosts:
        return exit_code(print_hosts)
    return run_with_plan(
        settings,
        given,
        lambda plan: lambda: with_cluster(lambda cluster: Supervisors(cluster, plan).run(hosts)),
    )


def command_of(name: str, settings: Sequence[LauncherSetting], values: Mapping[str, Any]) -> list[str]:
    """Return the command of a launcher, without hosts."""
    options = [f"{one.flag}={values[one.name]}" for one in settings if values[one.name] != one.default]
    return [sys.executable, "-m", f"{MODULE}.{name}", *options]


def find_hosts(name: str, settings: Sequence[LauncherSetting], values: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return the hosts of a cluster that is up.

    Another process asks it: the notebook may use a cluster of that kind, of which a process can have one.
    Raises UnavailableError with its reason.
    """
    command = command_of(name, settings, values)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FIND_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            f"launcher {name!r}: the cluster has not answered within {FIND_SECONDS:.0f} s; look at its state"
        ) from None
    if done.returncode:
        said = last_line(done.stderr) or f"its command ended with exit code {done.returncode}"
        raise UnavailableError(f"launcher {name!r}: {said}")
    return tuple(Host(one) for one in json.loads(last_line(done.stdout))["hosts"])


def host_command(
    name: str, settings: Sequence[LauncherSetting], values: Mapping[str, Any], hosts: Sequence[str]
) -> tuple[HostCommand, ...]:
    """Return the command that brings up the supervisors of these hosts."""
    return (HostCommand((*command_of(name, settings, values), *hosts), tuple(hosts)),)
