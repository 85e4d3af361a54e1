"""Hosts with an sshd each, and the host "head", which reaches them; `ssh host1` works on all of them.

    hosts = SshHosts(folder, 3)                              # "head", "host1", "host2", "host3"
    hosts.at("head", "ssh", "host1", "hostname").stdout      # "host1\n"
    client = hosts.run("head", "client_actor.py")            # a process on the head that executes orders
    hosts.restart_sshd("host2", environment={"PATH": "/"})   # see there: hosts that are broken on purpose
    hosts.power_off("host3")
    hosts.close()

Each host has its own processes, /dev/shm and network, and at one path, ``hosts.home``, a home folder of its
own: no disk is shared but what this machine has. `Hosts.path` finds a host's files from here. The head has
the process numbers of this machine, and no sshd.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from host_namespaces import Hosts, processes_in
from host_namespaces import why_not as why_no_hosts
from waiting import until

PORT = 2222
NETWORK = "10.91.8"
HEAD = "head"
SSHD = "/usr/sbin/sshd"
UP_SECONDS = 20.0  # until an sshd counts as not coming up
COMMAND_SECONDS = 60.0  # until a command counts as hanging

LISTENING = """
import json, psutil
found = psutil.net_connections("inet")
listening = [one for one in found if one.status == "LISTEN" or one.type.name == "SOCK_DGRAM"]
print(json.dumps(sorted({(one.laddr.ip, one.laddr.port) for one in listening})))
"""


@lru_cache(maxsize=1)
def why_not() -> str:
    """Return the reason why this process cannot create hosts with an sshd; empty if it can."""
    if not os.path.exists(SSHD) or not shutil.which("ssh"):
        return "no sshd here: apt-get install openssh-server"
    return why_no_hosts()


class SshHosts(Hosts):
    """The head, and ``count`` hosts with an sshd: "host1", "host2", ...

    All that they need is in ``folder``: ``config`` and ``known_hosts`` of ssh, a user's key ``id``, and a key
    and a log of each sshd. On the hosts ``config`` is the system's configuration of ssh.

    Each pair of hosts that talk takes two of this machine's 1,024 neighbours (gc_thresh3): of more than 30
    hosts that all talk to each other some find no route.
    """

    def __init__(self, folder: Path, count: int = 3) -> None:
        if why := why_not():
            raise RuntimeError(why)
        self.folder, self.home = folder, folder / "home"
        self.names = [f"host{number}" for number in range(1, count + 1)]
        addresses = {host: f"{NETWORK}.{number}" for number, host in enumerate(self.names, 1)}
        self._sshd: dict[str, subprocess.Popen[bytes]] = {}
        self._write_files(addresses | {HEAD: f"{NETWORK}.254"})
        prepare = [
            "hostname $host",
            f"mount -t tmpfs -o mode=700,size=256m tmpfs {self.home}",
            "mount -t tmpfs -o mode=755,size=16m tmpfs /run && mkdir /run/sshd",
            f"mount --bind {folder}/hosts /etc/hosts",
            f"mount --bind {folder}/config /etc/ssh/ssh_config",
        ]
        super().__init__(
            addresses | {HEAD: f"{NETWORK}.254"}, prepare=" && ".join(prepare), own_processes=self.names
        )
        try:
            for host in self.names:
                self.restart_sshd(host)
        except BaseException:
            self.close()
            raise

    def environment(self, host: str) -> dict[str, str]:
        """Return the variables of a host's processes that differ from those of this process."""
        return {
            "HOME": str(self.home),
            "NBDIST_HOME": str(self.home / "nbdist"),
            "IPYTHONDIR": str(self.home / "ipython"),
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        }

    def command(self, host: str, *command: str) -> list[str]:
        """Return the command of this machine that runs a command on a host; it dies with its parent."""
        variables = [f"{name}={value}" for name, value in self.environment(host).items()]
        return super().command(host, "env", *variables, *command)

    def at(self, host: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end, and return what it printed."""
        done = subprocess.run(
            self.command(host, *command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
        )
        assert not check or not done.returncode, f"{command} on {host}: {done.stderr}"
        return done

    def processes(self, host: str, seconds: float = 0.0) -> list[str]:
        """Return the command lines of a host's processes, those of its sshd's connections included.

        It waits up to ``seconds`` for there to be none.
        """
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while (found := self._processes(host)) and time.monotonic() < deadline:
            pause.wait(0.05)
        return found

    def open_ports(self, host: str) -> list[tuple[str, int]]:
        """Return where a host's processes, but its sshd, can be reached from others: addresses and ports."""
        found = json.loads(self.at(host, sys.executable, "-c", LISTENING).stdout)
        return [(ip, port) for ip, port in found if not ip.startswith("127.") and port != PORT]

    def up(self) -> list[str]:
        """Return the hosts that were not powered off."""
        return [host for host in self.addresses if self._holders[host].poll() is None]

    # Ways to break a host, beside `cut`.

    def restart_sshd(
        self,
        host: str,
        *,
        listen: str = "",
        key: str = "",
        authorized: str = "id.pub",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a host's sshd, again if it runs; its connections stay.

        - ``listen``: its address; "127.0.0.1" cannot be reached from other hosts
        - ``key``: a name of another host key: it is made if it is not there
        - ``authorized``: the file in the folder with the keys that may log in; "none" for no key
        - ``environment``: variables of the sessions, in place of ours
        """
        self.stop_sshd(host)
        key = key or host
        if not (self.folder / key).exists():
            self._make_key(key)
        variables = self.environment(host) | dict(environment or {})
        log = self.folder / f"{host}.log"
        (self.folder / f"{host}.conf").write_text(
            f"ListenAddress {listen or self.addresses[host]}\n"
            f"Port {PORT}\n"
            f"HostKey {self.folder / key}\n"
            f"AuthorizedKeysFile {'none' if authorized == 'none' else self.folder / authorized}\n"
            f"SetEnv {' '.join(f'{name}={value}' for name, value in variables.items())}\n"
            "PidFile none\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin yes\nUsePAM no\nPrintMotd no\nMaxStartups 200\n"
        )
        with log.open("wb") as file:
            self._sshd[host] = subprocess.Popen(
                Hosts.command(self, host, SSHD, "-D", "-e", "-f", f"{self.folder / host}.conf"),
                stdin=subprocess.DEVNULL,
                stderr=file,
            )
        sshd = self._sshd[host]
        until(lambda: "Server listening" in log.read_text() or sshd.poll() is not None, UP_SECONDS)
        assert sshd.poll() is None, f"sshd of {host}: {log.read_text()}"

    def stop_sshd(self, host: str) -> None:
        """End a host's sshd; its connections stay."""
        if sshd := self._sshd.pop(host, None):
            # nsenter, which has started it from outside, ends after it: then its port is free. It stops with
            # an sshd that is frozen.
            for pid in children(sshd.pid) or [sshd.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            sshd.send_signal(signal.SIGCONT)
            sshd.wait(UP_SECONDS)

    def refuse_dialing(self, host: str, towards: str) -> None:
        """Have a host get no answer from another that it dials, although that one reaches it through ssh."""
        there = f"to {self.addresses[host]} ipproto tcp"
        self._ip(towards, f"rule add pref 90 {there} dport {PORT} lookup main")
        self._ip(towards, f"rule add pref 100 {there} blackhole")

    def resize(self, host: str, folder: str | Path, size: str) -> None:
        """Give a host's ``/dev/shm`` or home another size, such as "64m"."""
        self.at(host, "mount", "-o", f"remount,size={size}", str(folder))

    def fill(self, host: str, folder: str | Path) -> None:
        """Fill the disk of a host's ``/dev/shm`` or home."""
        done = self.at(host, "dd", "if=/dev/zero", f"of={folder}/filled", "bs=64k", check=False)
        assert "No space left" in done.stderr, done.stderr

    def freeze(self, host: str) -> None:
        """Stop all of a host's processes; the kernel still accepts its connections."""
        self._signal(host, signal.SIGSTOP)

    def thaw(self, host: str) -> None:
        """Let a frozen host's processes continue."""
        self._signal(host, signal.SIGCONT)

    def power_off(self, host: str) -> None:
        """End a host at once: nobody receives a word of it. It does not come back."""
        self.cut(host)
        self.stop_sshd(host)
        holder = self._holders[host]
        holder.kill()
        holder.communicate()

    def close(self) -> None:
        """End all hosts and all of their processes, those of the head included."""
        for host in list(self._sshd):
            self.stop_sshd(host)
        if HEAD in self._holders:
            self._signal(HEAD, signal.SIGKILL)
        super().close()

    def _processes(self, host: str) -> list[str]:
        found = []
        for pid in self._pids(host):
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if line and "[listener]" not in line:
                    found.append(line)
        return found

    def _signal(self, host: str, number: signal.Signals) -> None:
        for pid in self._pids(host):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self, host: str) -> list[int]:
        """Return the processes on a host, but those that hold it or started its sshd from outside."""
        outside = self._held(host) | ({self._sshd[host].pid} if host in self._sshd else set())
        return sorted({int(line.split()[0]) for line in processes_in(self._namespaces(host), 0.0)} - outside)

    def _held(self, host: str) -> set[int]:
        """Return the processes that hold a host: unshare and its shell, or the shell, and the shell's cat."""
        holder = self._holders[host].pid
        (shell,) = children(holder) if host in self._own_processes else (holder,)
        # The host's orphans are the shell's children, too: cat is the first one.
        return {holder, shell, *children(shell)[:1]}

    def _write_files(self, addresses: Mapping[str, str]) -> None:
        self.home.mkdir(parents=True)
        for key in ("id", *self.names):
            self._make_key(key)
        folder, names = self.folder, self.names
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for host, address in addresses.items())
        )
        (folder / "known_hosts").write_text(
            "".join(f"[{addresses[host]}]:{PORT} {(folder / f'{host}.pub').read_text()}" for host in names)
        )
        (folder / "config").write_text(
            "".join(f"Host {host}\n  HostName {addresses[host]}\n" for host in names)
            + f"Host *\n  Port {PORT}\n  User root\n  IdentityFile {folder}/id\n  IdentitiesOnly yes\n"
            + f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        )
        for name in ("config", "known_hosts"):
            (folder / name).chmod(0o600)

    def _make_key(self, name: str) -> None:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def traces(hosts: SshHosts, host: str) -> list[str]:
    """Return what clusters have left in a host's folder of nbdist."""
    home = hosts.path(host, hosts.home / "nbdist")
    folders = [home / name for name in ("clusters", "hosts")]
    return [str(path) for folder in folders if folder.is_dir() for path in folder.iterdir()]


def children(pid: int) -> list[int]:
    """Return the children of a process of this machine."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
