"""Launcher "ssh": the tasks are on hosts that the system's ssh reaches, `%cluster start --hosts a:2,b:2`.

Each host's supervisor runs in an ssh session of its own, so the user's configuration holds: names of hosts
and users, keys, agent, jump hosts, a connection that is shared (ControlMaster). ssh asks for nothing: a host
that wants a password is refused with a sentence. The cluster's keys travel on the session's standard input.
The session carries nothing else: supervisors and tasks connect to this host by sockets of their own.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nbdist.cluster.hosts import Host, read_hosts, ssh_command, why_ssh_ended
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.spec import HostCommand, LauncherSetting, LauncherSpec
from nbdist.errors import FailedPreconditionError, InvalidArgumentError

# ssh notices that the network fails; supervisors notice it by themselves, too.
OPTIONS = ("-o", "ServerAliveInterval=5", "-o", "ClearAllForwardings=yes", "-o", "ForwardX11=no")


def require_ssh() -> None:
    """Raise FailedPreconditionError without an ssh client."""
    if shutil.which("ssh") is None:
        raise FailedPreconditionError("launcher 'ssh' needs an ssh client: install OpenSSH (openssh-client)")


def ssh_hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return the hosts of the settings; InvalidArgumentError without any."""
    if not settings["hosts"]:
        raise InvalidArgumentError(
            "launcher 'ssh' needs hosts: hosts='a:2,b:2' (--hosts a:2,b:2), or the path of a file of hosts"
        )
    return read_hosts(settings["hosts"])


def ssh_commands(settings: Mapping[str, Any], hosts: Sequence[str]) -> tuple[HostCommand, ...]:
    """Return an ssh command for each host.

    >>> (command,) = ssh_commands({"python": "/opt/py/bin/python"}, ["ann@a"])
    >>> command.argv[-1], command.hosts
    ('exec /opt/py/bin/python -m nbdist.cluster.supervisor.host ann@a', ('ann@a',))
    """
    python, module = settings["python"] or sys.executable, "nbdist.cluster.supervisor.host"
    found = []
    for host in hosts:
        command = f"exec {shlex.join((python, '-m', module, host))}"
        found.append(HostCommand(tuple(ssh_command(host, command, options=OPTIONS)), (host,)))
    return tuple(found)


def check_hosts(value: Any) -> None:
    """Raise InvalidArgumentError unless a setting names hosts."""
    if value is not None and not isinstance(value, (str, list, tuple)):
        raise InvalidArgumentError(f"hosts are text such as 'a:2,b:2', or a list of them, not {value!r}")
    if value is not None:
        read_hosts(value)


def check_python(value: Any) -> None:
    """Raise InvalidArgumentError unless a setting is the path of a Python."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise InvalidArgumentError(
            f"python is the path of the hosts' Python, such as '/opt/venv/bin/python', not {value!r}"
        )


SPEC = LauncherSpec(
    "ssh",
    help="engines on other hosts, by ssh",
    make=ForkLauncher,
    check=require_ssh,
    settings=(
        LauncherSetting(
            "hosts",
            "the hosts, and how many workers each has; or a file that lists them",
            shows="A:2,B:2|FILE",
            check=check_hosts,
        ),
        LauncherSetting(
            "python",
            "the Python of the hosts, which has nbdist; without it, the path of this one",
            shows="PATH",
            check=check_python,
        ),
    ),
    hosts=ssh_hosts,
    commands=ssh_commands,
    explain=why_ssh_ended,
)
