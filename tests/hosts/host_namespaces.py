"""Hosts on this machine: namespaces on a bridge, each with a name and a /dev/shm of its own.

    hosts = Hosts({"a": "10.91.7.1", "b": "10.91.7.2"})
    task = hosts.run("a", "echo_actor.py")       # a process on host a that executes orders
    task.ask(do="add", one=1, other=2)
    task.answer()
    hosts.cut("b")                               # its link is down; heal("b") restores it
    hosts.close()

The bridge is in a network namespace of its own, so that this machine's own network is not touched. No
namespace has a name: each lives as long as a process in it, and all these processes die with the test's
process.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path

from actors import Actor

HERE = Path(__file__).parent
ADDRESSES = {"a": "10.91.7.1", "b": "10.91.7.2", "c": "10.91.7.3"}
DIES_WITH_TEST = ["setpriv", "--pdeathsig", "KILL"]
HOLD = "ip link set lo up && mount -t tmpfs -o mode=1777,size=256m tmpfs /dev/shm"
KINDS = ("net", "uts", "mnt")


@lru_cache(maxsize=1)
def why_not() -> str:
    """Return the reason why this process cannot create hosts; empty if it can."""
    missing = [name for name in ("ip", "tc", "unshare", "nsenter", "setpriv") if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)} here: apt-get install iproute2 util-linux"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "ip", "link", "add", "bridge", "type", "bridge"],
        capture_output=True,
        text=True,
    )
    return f"this process may make no hosts (root may): {tried.stderr.strip()}" if tried.returncode else ""


class NotHere(Exception):
    """This kernel lacks what a test needs; the test is skipped with this reason."""


class Hosts:
    """Hosts by name.

    - ``addresses``: the IPv4 address of each host, all of one network of 256
    - ``prepare``: a shell command that each host, ``$host``, runs before it is up, for mounts of its own
    - ``own_processes``: the hosts that have process numbers of their own. They see no other processes, and
      all of theirs end with the host
    """

    def __init__(
        self, addresses: Mapping[str, str], *, prepare: str = "true", own_processes: Collection[str] = ()
    ) -> None:
        self.addresses = dict(addresses)
        self._own_processes = frozenset(own_processes)
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._actors: list[Actor] = []
        try:
            self._hold("bridge", "ip link add bridge type bridge && ip link set bridge up")
            for host, address in self.addresses.items():
                self._hold(host, f"host={host} && {HOLD} && {prepare}")
                there = str(self._holders[host].pid)
                plug = f"link add port_{host} type veth peer name eth0 netns {there}"
                self._ip("bridge", plug, f"link set port_{host} up master bridge")
                self._ip(host, f"address add {address}/24 dev eth0", "link set eth0 up")
        except BaseException:
            self.close()
            raise

    def run(self, host: str, script: str, *arguments: str) -> Actor:
        """Start a Python script of this folder on a host."""
        command = self.command(host, sys.executable, str(HERE / script), *arguments)
        self._actors.append(Actor(command, f"{script} on host {host}"))
        return self._actors[-1]

    def command(self, host: str, *command: str) -> list[str]:
        """Return the command of this machine that runs a command on a host; it dies with its parent."""
        return [*self._inside(host), *DIES_WITH_TEST, *command]

    def cut(self, host: str) -> None:
        """Take a host off the bridge; its traffic is lost silently."""
        self._ip("bridge", f"link set port_{host} nomaster")

    def heal(self, host: str) -> None:
        """Put a host on the bridge again."""
        self._ip("bridge", f"link set port_{host} master bridge")

    def drop(self, host: str, towards: str, *, port: int = 0) -> None:
        """Have all that a host sends to another vanish; with ``port`` only what it sends from that TCP port.

        A port that never answers looks filtered: ``drop("host1", "head", port=PORT)``.
        """
        what = f"ipproto tcp sport {port}" if port else ""
        self._ip(host, f"rule add pref 100 to {self.addresses[towards]} {what} blackhole")

    def hear_again(self, host: str) -> None:
        """End `drop` of what a host sends."""
        self._ip(host, "rule del pref 100")

    def reset_connections(self, host: str) -> None:
        """Reset each TCP connection of a host, as a firewall or a NAT does that has lost its state."""
        # It says "Invalid argument" of those of a listening socket that are not accepted yet.
        command = [*self._inside(host), "ss", "-K", "state", "established"]
        subprocess.run(command, capture_output=True, check=False)

    def is_connected(self, host: str, address: str) -> bool:
        """Return whether a process of a host has a TCP connection to ``address``, "10.91.7.1:4242"."""
        command = [*self._inside(host), "ss", "-Htn", "state", "established", "dst", address]
        return bool(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def slow(self, host: str, *, rate: str = "", delay: str = "") -> None:
        """Limit what a host sends to a rate, such as "8mbit", or delay it, such as "40ms"."""
        limit = f"tbf rate {rate} burst 64kb latency 400ms" if rate else f"netem delay {delay}"
        self._limit(host, "eth0", limit)

    def link(self, host: str, rate: str) -> None:
        """Give a host a link of a rate, such as "1gbit", in each direction; its queue holds 50 ms."""
        # The burst lets packets that TCP has merged into 64 KB pass together; at 10 Gbit/s it is 0.2 ms.
        limit = f"tbf rate {rate} burst 256kb latency 50ms"
        self._limit(host, "eth0", limit)
        self._limit("bridge", f"port_{host}", limit)

    def _limit(self, name: str, device: str, limit: str) -> None:
        command = f"tc qdisc replace dev {device} root {limit}"
        done = subprocess.run(
            [*self._inside(name), *command.split()], capture_output=True, text=True, check=False
        )
        if "unknown" in done.stderr:
            raise NotHere(f"this kernel has no {limit.split()[0]}: {done.stderr.strip()}")
        assert not done.returncode, done.stderr

    def shared_files(self, host: str) -> list[str]:
        """Return the names of nbdist's files in a host's shared memory."""
        return sorted(path.name for path in self.path(host, "/dev/shm").glob("nbdist-*"))

    def path(self, host: str, path: str | Path) -> Path:
        """Return where this process finds an absolute path of a host."""
        return Path(f"/proc/{self._holders[host].pid}/root{path}")

    def close(self) -> None:
        """End all processes in the namespaces, and thereby the namespaces."""
        for actor in self._actors:
            actor.kill()
        inside = {number for name in self._holders for number in self._namespaces(name)}
        with ExitStack() as kept:
            # While a namespace is open, no new one gets its number.
            for holder in self._holders.values():
                for kind in KINDS:
                    with suppress(OSError):
                        kept.enter_context(open(f"/proc/{holder.pid}/ns/{kind}"))
            for holder in self._holders.values():
                holder.kill()
                holder.communicate()
            self._holders.clear()
            assert not (left := processes_in(inside)), f"processes left in the namespaces: {left}"

    def _hold(self, name: str, script: str) -> None:
        called = f"nbdist-{name}-{secrets.token_hex(3)}"
        spaces = ["unshare", "--net", "--uts", "--mount"]
        if name in self._own_processes:
            spaces += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        # The shell waits, and so reaps the orphans of a host that has process numbers of its own.
        shell = ["sh", "-c", f"hostname {called} && {script} && echo up && cat; exit"]
        holder = subprocess.Popen(
            [*DIES_WITH_TEST, *spaces, *shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._holders[name] = holder
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n", f"host {name} cannot be made"

    def _inside(self, name: str) -> list[str]:
        pid = self._holders[name].pid
        own = [f"--pid=/proc/{pid}/ns/pid_for_children"] if name in self._own_processes else []
        return ["nsenter", "--target", str(pid), "--net", "--uts", "--mount", *own]

    def _ip(self, name: str, *commands: str) -> None:
        for command in commands:
            subprocess.run([*self._inside(name), "ip", *command.split()], check=True)

    def _namespaces(self, name: str) -> set[str]:
        found = set()
        for kind in KINDS:
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{self._holders[name].pid}/ns/{kind}"))
        return found


class TwoHosts(Hosts):
    """Hosts "a" and "b", or as many of `ADDRESSES` as are named."""

    def __init__(self, names: str = "ab") -> None:
        super().__init__({name: ADDRESSES[name] for name in names})


def processes_in(namespaces: set[str], seconds: float = 5.0) -> list[str]:
    """Return the processes that are still in one of these namespaces after a while."""
    deadline = time.monotonic() + seconds
    while True:
        left = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if {os.readlink(path / "ns" / kind) for kind in KINDS} & namespaces:
                    left.append(f"{path.name} {(path / 'cmdline').read_text()}")
        if not left or time.monotonic() > deadline:
            return left
        select.select([], [], [], 0.05)
