"""Examines hosts through ssh, all at the same time and in both directions, and reports.

    report = examine(read_hosts("a:2,b:2"))      # within 10 s, whatever the hosts do
    print(report)                                # a table of versions, and a sentence for each problem host
    report.passed

Each host runs `observe.py`, which it receives through ssh's standard input. When all have said what they are,
or `FACTS_LIMIT` has passed, those that have are told where the others listen, and dial them.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from nbdist.cluster.doctor import observe
from nbdist.cluster.doctor.judge import (
    NO_PYTHON,
    Examined,
    Finding,
    Wanted,
    is_loopback,
    judge,
    readable,
    sentence,
)
from nbdist.cluster.gpus import parse_gpus
from nbdist.cluster.hosts import Host, find_cause, shell_word, ssh_command
from nbdist.errors import InvalidArgumentError, NotFoundError, choices
from nbdist.json_values import mapping, number, object_in, text, whole
from nbdist.wire.hosts import own_addresses

FACTS_LIMIT = 6.5  # seconds until a host must have said what it is
LIMIT = 8.5  # seconds until the hosts must have dialed each other
CONNECT_SECONDS = 5
DIAL_SECONDS = 4.0  # for the hosts to dial each other: two lost packets are no reason
END_SECONDS = 1.0  # for ssh to end after its host has
MOST_BYTES = 1 << 20  # that a host may print
MOST_ADDRESSES = 16
LEAST_PYTHON = (3, 11)

# Runs under any Python: it reads the program, and executes it if this Python can.
BOOT = (
    "import sys,json; p=json.loads(sys.stdin.readline()); "
    'exec(p["program" if sys.version_info>=tuple(p["least"]) else "otherwise"])'
)
OTHERWISE = f"""
import platform
python = {{"version": platform.python_version(), "executable": sys.executable}}
print({observe.MARK!r} + json.dumps({{"python": python}}))
"""


@dataclass(frozen=True)
class Report:
    """What was found.

    - ``hosts``: this host, and then the others in the order of the list
    - ``wanted``: what they were examined for
    """

    hosts: tuple[Examined, ...]
    wanted: Wanted

    @cached_property
    def findings(self) -> dict[str, list[Finding]]:
        """The problems of each host that has one, by its name; that of this host is ""."""
        found = {host.name: judge(host, self.hosts[0], self.wanted) for host in self.hosts}
        return {name: problems for name, problems in found.items() if problems}

    @property
    def passed(self) -> bool:
        """Whether every host can have tasks."""
        return not self.findings

    @property
    def sentences(self) -> list[str]:
        """One sentence for each host that has a problem."""
        return [sentence(host, self.findings[host.name]) for host in self.hosts if host.name in self.findings]

    def __str__(self) -> str:
        """Return the table of the hosts, and the sentences."""
        rows = [["host", "python", *self.wanted.packages, "GPUs", "/dev/shm", "disk", "result"]]
        rows += [self._row(host) for host in self.hosts]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *self.sentences])

    def _row(self, host: Examined) -> list[str]:
        problems = self.findings.get(host.name)
        versions = [host.version(name) or "-" for name in ("python", *self.wanted.packages)]
        gpus = host.fact("gpus").get("names")
        sizes = [number(host.fact("shm").get("total")), number(host.fact("home").get("free"))]
        return [
            host.name or "this host",
            *versions,
            str(len(gpus)) if isinstance(gpus, list) else "-",
            *("-" if size is None else readable(size) for size in sizes),
            problems[0].name if problems else "ok",
        ]


def examine(
    hosts: Sequence[Host] = (),
    *,
    python: str | None = None,
    gpus: str | int = "none",
    extras: Sequence[str] = (),
) -> Report:
    """Examine this host and others before a cluster starts on them; nothing is changed or left there.

    - ``hosts``: see `read_hosts`; none examines this host alone
    - ``python``: the command of Python there; by default the path of this process's one
    - ``gpus``: as for `start_cluster`: a number or names ask for GPUs, "auto" takes those that are there
    - ``extras``: extras of nbdist, such as ("torch",), whose packages are asked for

    Raises InvalidArgumentError for an extra that does not exist, NotFoundError if this host has no ssh.
    """
    needed = {extra: packages_of(extra) for extra in extras}
    asked = parse_gpus(gpus) not in (0, "auto", "none")
    wanted = Wanted(asked, needed, python or sys.executable, len(hosts))
    plan = {"packages": wanted.packages}
    with ThreadPoolExecutor(1) as pool:
        local = pool.submit(observe.facts, plan)
        found = _examine_others(hosts, wanted, plan) if hosts else []
        here = Examined("", local.result())
    return Report((here, *with_twins(found)), wanted)


def _examine_others(hosts: Sequence[Host], wanted: Wanted, plan: Mapping[str, Any]) -> list[Examined]:
    token = secrets.token_hex(32)
    server = observe.TokenServer(token)
    try:
        reachable = [address for address in own_addresses() if not is_loopback(address)]
        head = {"addresses": reachable[:MOST_ADDRESSES], "port": server.port}
        return _Examination(hosts, wanted, {**plan, "token": token, "head": head}).run()
    finally:
        server.close()


def packages_of(extra: str) -> list[str]:
    """Return the distributions that an extra of the nbdist here needs.

    >>> packages_of("sweep")
    ['optuna']
    """
    from packaging.requirements import Requirement

    try:
        known = distribution("nbdist")
    except PackageNotFoundError:
        raise InvalidArgumentError(
            f"extra {extra!r}: this nbdist is not installed, so its extras are unknown; pip install -e ."
        ) from None
    extras = known.metadata.get_all("Provides-Extra") or []
    if extra not in extras:
        raise InvalidArgumentError(f"no extra {extra!r}; {choices(extra, extras)}")
    found: list[str] = []
    for one in map(Requirement, known.requires or []):
        if one.marker and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""}):
            own = one.name == "nbdist"  # an extra that is other extras
            found += (
                [name for part in sorted(one.extras) for name in packages_of(part)] if own else [one.name]
            )
    return list(dict.fromkeys(found))


def with_twins(found: Sequence[Examined]) -> list[Examined]:
    """Return the hosts, each that is the same machine as an earlier one with its name."""
    first: dict[str, str] = {}
    hosts = []
    for host in found:
        identity = text(host.fact("identity").get("hash"))
        hosts.append(replace(host, twin=first.get(identity, "")))
        if identity:
            first.setdefault(identity, host.name)
    return hosts


class _Examination:
    """The connections to all hosts: one loop, because a host that is frozen must not delay another."""

    def __init__(self, hosts: Sequence[Host], wanted: Wanted, plan: Mapping[str, Any]) -> None:
        self._begun = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._wanted = wanted
        command = f"{shell_word(wanted.python)} -c {shlex.quote(BOOT)}"
        program = {
            "program": Path(observe.__file__).read_text(encoding="utf-8"),
            "least": LEAST_PYTHON,
            "otherwise": OTHERWISE,
        }
        self._hosts: list[_Connection] = []
        try:
            for host in hosts:
                self._hosts.append(_Connection(host.name, command, self._selector))
                self._hosts[-1].send(program, plan)
        except BaseException:
            self._close()
            raise

    def run(self) -> list[Examined]:
        """Return what is known of each host, in their order."""
        try:
            self._receive(self._hosts, 1, FACTS_LIMIT)
            there = [host for host in self._hosts if host.answers and not host.ended]
            listening = {host.name: at for host in there if (at := host.listens_at)}
            seconds = min(DIAL_SECONDS, LIMIT - 0.5 - (time.monotonic() - self._begun))
            for host in there:
                peers = {name: at for name, at in listening.items() if name != host.name}
                host.asked = time.time()
                host.send({"peers": peers, "seconds": seconds})
            self._receive(there, 2, LIMIT)
        finally:
            self._close()
        return [host.examined(self._wanted) for host in self._hosts]

    def _receive(self, hosts: Sequence[_Connection], answers: int, limit: float) -> None:
        """Wait until each of some hosts has answered so often, or ended."""
        while any(not host.ended and len(host.answers) < answers for host in hosts):
            left = self._begun + limit - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(left):
                key.data()

    def _close(self) -> None:
        for host in self._hosts:
            host.end_input()
        deadline = time.monotonic() + END_SECONDS
        for host in self._hosts:
            host.close(max(0.0, deadline - time.monotonic()))
        self._selector.close()


class _Connection:
    """The ssh process of one host: lines of JSON to it and from it, without ever waiting for it."""

    def __init__(self, name: str, command: str, selector: selectors.BaseSelector) -> None:
        self.name = name
        self.answers: list[Mapping[str, Any]] = []
        self.ended = False
        self.asked = self.received = 0.0
        self._selector = selector
        self._unsent, self._unread = b"", b""
        self._taken = 0  # bytes that it has printed
        # A file: a process that ssh leaves in the background (ControlPersist) may keep it open.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        try:
            self._process = subprocess.Popen(
                ssh_command(name, command, connect_seconds=CONNECT_SECONDS),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,  # an interrupt of this process is not one of ssh
            )
        except FileNotFoundError:
            self._stderr.close()
            raise NotFoundError(
                "this host has no ssh in its PATH; install openssh-client, or put it into PATH"
            ) from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        selector.register(self._stdout, selectors.EVENT_READ, self._read)
        self._status: int | None = None
        self._said = ""

    def send(self, *lines: Mapping[str, Any]) -> None:
        """Send lines, now or when ssh reads."""
        if self._stdin.closed:
            return
        if not self._unsent:
            self._selector.register(self._stdin, selectors.EVENT_WRITE, self._write)
        self._unsent += b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            # It has ended; why is in its output.
            self.end_input()
            return
        if not self._unsent:
            self._selector.unregister(self._stdin)

    def _read(self) -> None:
        chunk = os.read(self._stdout.fileno(), 1 << 16)
        self._taken += len(chunk)
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            if line.startswith(observe.MARK.encode()):
                self.received = time.time()
                self.answers.append(object_in(line[len(observe.MARK) :]))
        if not chunk or self._taken > MOST_BYTES:
            self._selector.unregister(self._stdout)
            self.ended = True

    @property
    def listens_at(self) -> str:
        """Where its `TokenServer` listens, "" if that is unknown."""
        facts = self.answers[0] if self.answers else {}
        own, port = text(mapping(facts.get("head")).get("own")), whole(facts.get("port"), 1 << 16)
        return f"{own}:{port}" if own and port and not is_loopback(own) else ""

    def end_input(self) -> None:
        """End the input of the program there, and thereby the program."""
        if not self._stdin.closed:
            with suppress(KeyError):
                self._selector.unregister(self._stdin)
            self._unsent = b""
            self._stdin.close()

    def close(self, seconds: float) -> None:
        """Wait up to ``seconds`` for ssh to end, then end it and what it has started (ProxyCommand)."""
        try:
            status = self._process.wait(seconds)
            self._status = status if self.ended else None  # else it has ended with its input
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stdout.close()
        self._stderr.seek(0)
        self._said = self._stderr.read(MOST_BYTES).decode(errors="replace")
        self._stderr.close()

    def examined(self, wanted: Wanted) -> Examined:
        """Return what is known of the host, after `close`."""
        if len(self.answers) == 1 and "versions" not in self.answers[0]:
            return Examined(self.name, self.answers[0])  # a Python that is too old for more
        if len(self.answers) < 2:
            return Examined(self.name, failure=self._failure(wanted))
        facts, second = self.answers[:2]
        peers = {name: text(error) for name, error in mapping(second.get("peers")).items() if error}
        return Examined(self.name, facts, None, peers, self._ahead(number(second.get("clock"))))

    def _failure(self, wanted: Wanted) -> Finding:
        cause, values = find_cause(self._status, self._said)
        if cause.name == "command":
            said = values["said"]
            return Finding(NO_PYTHON.name, NO_PYTHON.text.format(python=wanted.python, said=said))
        return Finding(cause.name, cause.text.format_map(values | {"host": self.name}))

    def _ahead(self, clock: float | None) -> float:
        """Return by how much its clock is ahead: it was read between the question and the answer."""
        if clock is None or self.asked <= clock <= self.received:
            return 0.0
        return clock - (self.received if clock > self.received else self.asked)
