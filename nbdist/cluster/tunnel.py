"""A cluster whose head is on a host that this one reaches by ssh only, as from a laptop behind NAT.

    laptop                                            login1
    Cluster ─ supervisor.sock ──┐   one ssh       ┌── the supervisor's socket
            ─ controller, tasks ┼═════════════════┼── 127.0.0.1, a:…, b:…
    Tunnel ◄─ cluster.json ─────┘                 └── python -m nbdist.cluster.tunnel_end watch

`open_tunnel` makes a folder for the cluster in this host's ``clusters``, as if it ran here: `Cluster.attach`,
the sidebar and ``nb.clusters()`` find it there. Its supervisor.sock leads to the supervisor's (``ssh -L``).
The connections to the controller and to the tasks go through ssh's SOCKS proxy (``ssh -D``), which dials the
addresses that the cluster itself uses, so no address is translated. They are encrypted by CURVE from end to
end. Keys come on ssh's output, and no task dials the client.

The tunnel ends with this process. The cluster is a detached one: it ends by ``stop`` only.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist import errors
from nbdist.cluster.description import write_description
from nbdist.cluster.folder import claim, living, mark_busy, remove_traces, unmark_busy, write_json
from nbdist.cluster.hosts import read_hosts, shell_word, ssh_command, why_ssh_ended
from nbdist.cluster.hub import check_versions
from nbdist.cluster.launchers.registry import all_settings
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.cluster.supervisor.process import SOCKET
from nbdist.errors import InvalidArgumentError, NbdistError, UnavailableError
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.proxy import check_proxy

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Report = Callable[[str], object]
OWN_PORT = "127.0.0.1"
LONGEST_LINE = 1 << 24  # bytes: a description with 4,096 tasks has some 2 MB
ANSWER_SECONDS = 30.0  # for the other end to find a cluster, and for its connections to open
LONGEST_SAID = 4000  # bytes of what ssh prints, its last ones
LONGEST_SOCKET = 100  # bytes of a Unix socket's path that all systems take; the other end links a longer one
REFUSED = re.compile(r"^.*(?:channel \d+|[Ff]orward).*$", re.MULTILINE)
MODULE = "nbdist.cluster.tunnel_end"
# ssh notices within 45 s that the network fails. A connection that the user's other sessions share could not
# be closed without them.
OPTIONS = ("-o", "ServerAliveInterval=15", "-o", "ForwardX11=no", "-o", "ControlPath=none")
HERE_ONLY = {
    "orphan_timeout": "a cluster behind a tunnel lives until it is stopped",
    "sync_env": "its environment would be that of the tunnel's host; make it there",
    "sync_modules": "its modules would be those of the tunnel's host; copy them there",
    "wheels": "its wheels would be on the tunnel's host; make the environment there",
}
"""Options of a start that cannot be had through a tunnel, and why."""


def start_through(
    host: str, options: Mapping[str, Any], report: Report, attach: Callable[[str], Cluster]
) -> Cluster:
    """Start a cluster whose head is on ``host``, and attach to it.

    - ``host``: what ssh takes, as "login1" or "ann@login1"
    - ``options``: those of `start_cluster`; None and False are left out. ``python`` is the Python of ``host``
      and of its hosts
    - ``report``, ``attach``: called with each line of the start, and with the id of the cluster

    Raises InvalidArgumentError for an option that cannot be had so, UnavailableError if ssh does not reach
    the host, and what `start_cluster` raises there.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    given.pop("detached", None)  # it always is
    if refused := next((name for name in HERE_ONLY if name in given), None):
        flag = f"--{refused.replace('_', '-')}"
        raise InvalidArgumentError(f"{flag} does not go with --tunnel: {HERE_ONLY[refused]}")
    python = given.pop("python", None)
    _look_for_files(host, given)
    for name, value in given.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{name}={value!r:.80} does not go through a tunnel: pass a text, a number or a list of them"
            ) from None
    host = tunnel_host(host)
    found = _ask(host, python, "start", report, options=given)
    try:
        return attach(open_tunnel(host, python, found))
    except NbdistError as error:
        raise UnavailableError(
            f"cluster {found['id']} runs on {host}, and cannot be used from here: {error}; stop it there "
            "with %cluster attach and %cluster stop"
        ) from error


def _look_for_files(host: str, given: dict[str, Any]) -> None:
    """Put the hosts of a file in its place; refuse other files here, which the head would look for."""
    if isinstance(given.get("hosts"), str | list | tuple):
        given["hosts"] = [str(one) for one in read_hosts(given["hosts"])]
    for setting in (setting for setting, _ in all_settings().values() if setting.names_file):
        path = Path(str(given.get(setting.name, "")))
        if path.parts and not path.is_absolute() and path.is_file():
            raise InvalidArgumentError(
                f"{setting.flag} {path}: with --tunnel the head reads this file, on {host}: copy it there, "
                f"and give its whole path there, such as /home/ann/{path.name}"
            )


def lead_to(host: str, name: str | None = None, python: str | None = None) -> str:
    """Open a tunnel to a cluster whose head is on ``host``: the one called ``name``, or the newest.

    Returns its id: `Cluster.attach` finds it here then. Raises UnavailableError if ssh does not reach the
    host, and what `Cluster.attach` raises there.
    """
    host = tunnel_host(host)
    return open_tunnel(host, python, _ask(host, python, "find", print, name))


def tunnel_host(value: object) -> str:
    """Return what ssh takes for the host of a tunnel; raises InvalidArgumentError for what is no host.

    >>> tunnel_host("ann@login1"), tunnel_host("[fe80::1]")
    ('ann@login1', 'fe80::1')
    """
    if isinstance(value, str):
        with suppress(InvalidArgumentError):
            (host,) = read_hosts([value])
            if host.slots is None:
                return host.name
    raise InvalidArgumentError(
        f"tunnel is a host that ssh reaches, such as login1 or ann@login1, not {value!r:.80}"
    )


def open_tunnel(host: str, python: str | None, found: Mapping[str, Any]) -> str:
    """Return the id of a cluster that a tunnel leads to; ``found`` is what its host says of it."""
    check_versions(found["versions"])
    if found["id"] not in living():  # else a tunnel of this host leads there
        Tunnel(host, python, found).begin()
    return str(found["id"])


class Tunnel(threading.Thread):
    """One ssh, and the folder that stands for the cluster here; the thread keeps both alike."""

    def __init__(self, host: str, python: str | None, found: Mapping[str, Any]) -> None:
        super().__init__(name=f"nbdist tunnel {found['id']}", daemon=True)
        self._host, self._python, self._found = host, python, found
        self._busy: set[int] = set()
        self._proxy = f"{OWN_PORT}:{_free_port()}"

    def begin(self) -> None:
        """Make the folder and the connection; raises UnavailableError if that fails."""
        found = self._found
        self._folder, self._lock = claim(found["id"])
        try:
            ClusterKeys.from_dict(found["keys"]).save(self._folder / "keys")
            # ipyparallel would warn of a controller that listens on another host's loopback.
            connection = {**found["connection"], "location": socket.gethostname()}
            name = f"ipcontroller-{self._folder.name}-client.json"
            write_json(self._folder / "security" / name, connection)
            self._take(found)
            there, link = str(found["socket"]), ""
            if len(os.fsencode(there)) > LONGEST_SOCKET:
                link = f"/tmp/nbdist-{secrets.token_hex(8)}"
                there = f"{link}/folder/{SOCKET}"
            forward = ("-o", "ExitOnForwardFailure=yes", "-D", self._proxy, "-L", f"./{SOCKET}:{there}")
            names = (found["id"], *([link] if link else []))
            self._ssh = _Ssh(self._host, self._python, ("watch", *names), forward, self._folder)
            self._take(_parsed(self._host, self._ssh.answer(ANSWER_SECONDS)))
            self._check_forwarding(found["connection"])
        except BaseException:
            self._end()
            raise
        self.start()

    def run(self) -> None:
        """Take in what changes, until the cluster has ended or the connection is broken."""
        while line := self._ssh.stdout.readline(LONGEST_LINE):
            with suppress(OSError, ValueError):  # the cluster was stopped here
                self._take(json.loads(line))
        self._end()

    def _check_forwarding(self, connection: Mapping[str, Any]) -> None:
        """Raise UnavailableError with what ssh says if it does not carry connections to the head."""
        try:
            SupervisorClient.connect(self._folder, observe=True).close()
            head = str(connection["interface"]).removeprefix("tcp://")
            check_proxy(self._proxy, head, int(connection["registration"]), ANSWER_SECONDS)
        except (OSError, NbdistError) as error:
            why = f"{error}; look at the host's load, and try again"
            if said := self._ssh.refusal():
                why = (
                    f"ssh says {said!r}; have its sshd allow them (AllowTcpForwarding yes, "
                    "AllowStreamLocalForwarding yes, DisableForwarding no), or start the cluster in a "
                    f"notebook on {self._host}"
                )
            raise UnavailableError(
                f"host {self._host}: the tunnel to it carries no connections: {why}"
            ) from None

    def _take(self, state: Mapping[str, Any]) -> None:
        tunnel = {"host": self._host, "proxy": self._proxy}
        write_description(self._folder, {**state["description"], "listing": "", "tunnel": tunnel})
        busy = {int(rank): run for rank, run in state["busy"].items()}
        for rank, run in busy.items():
            mark_busy(self._folder, rank, run)
        for rank in self._busy - busy.keys():
            unmark_busy(self._folder, rank)
        self._busy = set(busy)

    def _end(self) -> None:
        if (ssh := getattr(self, "_ssh", None)) is not None:
            ssh.end()
        remove_traces(self._folder, self._folder.name)
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)


def _ask(
    host: str,
    python: str | None,
    verb: str,
    report: Report,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what the other end says of a cluster; raises the error that it has met."""
    ssh = _Ssh(host, python, (verb, *([name] if name else [])))
    try:
        if options is not None:
            ssh.write(json.dumps(options).encode() + b"\n")
        # A start may wait in the queue of a batch system, and says so; an interrupt ends it.
        while True:
            said = _parsed(host, ssh.answer(None if options is not None else ANSWER_SECONDS))
            if "report" in said:
                report(str(said["report"]))
            elif "error" in said:
                kind, text = said["error"]
                found = getattr(errors, str(kind), UnavailableError)
                proper = isinstance(found, type) and issubclass(found, NbdistError)
                raise (found if proper else UnavailableError)(f"on {host}: {text}")
            else:
                return said
    finally:  # an interrupt, too, ends a start there: its input ends
        ssh.close()


def _parsed(host: str, line: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(said := json.loads(line), dict):
            return said
    raise UnavailableError(
        f"host {host} wrote {line[:80]!r} where nbdist's answer was expected: have its shell's startup files "
        "print nothing for commands of ssh"
    )


class _Ssh:
    """An ssh that runs the other end of a tunnel; what it prints to its standard error is kept."""

    def __init__(
        self,
        host: str,
        python: str | None,
        words: Sequence[str],
        forward: tuple[str, ...] = (),
        folder: Path | None = None,
    ) -> None:
        self._host = host
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        command = f"exec {shell_word(python or sys.executable)} {shlex.join(('-m', MODULE, *words))}"
        self._process = subprocess.Popen(
            ssh_command(host, command, options=(*OPTIONS, *forward)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=folder,
            start_new_session=True,  # the notebook's interrupt must not reach it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self.stdout = self._process.stdin, self._process.stdout

    def write(self, line: bytes) -> None:
        """Write to the other end's input."""
        with suppress(BrokenPipeError):  # `answer` says why it has ended
            self._stdin.write(line)
            self._stdin.flush()

    def answer(self, seconds: float | None) -> bytes:
        """Return the next line of the other end; UnavailableError if it ends, or writes none in time.

        ``seconds`` is the limit, None for none.
        """
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds or 0.0, end)
        if seconds is not None:
            timer.start()
        try:
            line = self.stdout.readline(LONGEST_LINE)
        finally:
            timer.cancel()
        if line and not late.is_set():
            return line
        status = self._process.wait()
        raise UnavailableError(why_ssh_ended(self._host, None if late.is_set() else status, self._read()))

    def refusal(self) -> str:
        """Return what ssh has said last of a connection that it could not forward; "" for nothing."""
        refused: list[str] = REFUSED.findall(self._read())
        return refused[-1].strip() if refused else ""

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self.close()

    def close(self) -> None:
        """Wait for its end: its input ends. What a shell still prints must not keep it."""
        self._process.communicate()
        self._errors.close()

    def _read(self) -> str:
        descriptor = self._errors.fileno()  # ssh writes where the file's own position is: leave that
        begin = max(0, os.fstat(descriptor).st_size - LONGEST_SAID)
        return os.pread(descriptor, LONGEST_SAID, begin).decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((OWN_PORT, 0))
        return int(one.getsockname()[1])
