"""Launcher "ssh": the tasks are on hosts that the system's ssh reaches, `%cluster start --hosts a:2,b:2`.

Each host's supervisor runs in an ssh session of its own, so the user's configuration holds: names of hosts
and users, keys, agent, jump hosts, a connection that is shared (ControlMaster). ssh asks for nothing: a host
that wants a password is refused with a sentence. The cluster's keys travel on the session's standard input.
The session carries nothing else: supervisors and tasks connect to this host by sockets of their own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbdist.cluster.hosts import Host, read_hosts, shell_word, ssh_command, why_ssh_ended
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
    if settings.get("wheels") and not settings.get("sync_env"):
        raise InvalidArgumentError(
            "wheels= is for sync_env=True (--sync-env), which installs them: give both"
        )
    if not settings["hosts"]:
        raise InvalidArgumentError(
            "launcher 'ssh' needs hosts: hosts='a:2,b:2' (--hosts a:2,b:2), or the path of a file of hosts"
        )
    return read_hosts(settings["hosts"])


def ssh_commands(settings: Mapping[str, Any], hosts: Sequence[str]) -> tuple[HostCommand, ...]:
    """Return an ssh command for each host, or the command that makes its environment and becomes that one.

    >>> (command,) = ssh_commands({"python": "/opt/py/bin/python"}, ["ann@a"])
    >>> command.argv[-1], command.hosts
    ('exec /opt/py/bin/python -m nbdist.cluster.supervisor.host ann@a', ('ann@a',))
    """
    if sync := sync_options(settings):
        program = (sys.executable, "-m", "nbdist.cluster.environments")
        return tuple(HostCommand((*program, *sync, "--", host), (host,)) for host in hosts)
    python, module = settings["python"] or sys.executable, "nbdist.cluster.supervisor.host"
    found = []
    for host in hosts:
        command = f"exec {shell_word(python)} {shlex.join(('-m', module, host))}"
        found.append(HostCommand(tuple(ssh_command(host, command, options=OPTIONS)), (host,)))
    return tuple(found)


def sync_options(settings: Mapping[str, Any]) -> list[str]:
    """Return the options of `nbdist.cluster.environments`, none where nothing is sent to the hosts.

    >>> sync_options({"sync_env": True, "wheels": "~/wheels", "python": None})
    ['--env', '--wheels=~/wheels']
    """
    options = ["--env"] if settings.get("sync_env") else []
    if wheels := settings.get("wheels"):
        options.append(f"--wheels={wheels}")
    if settings.get("sync_modules"):
        options.append(f"--modules={os.getcwd()}")
    if options and settings["python"]:
        options.append(f"--python={settings['python']}")
    return options


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


def check_switch(value: Any) -> None:
    """Raise InvalidArgumentError unless a setting is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"sync_env and sync_modules are True or False, not {value!r}")


def check_wheels(value: Any) -> None:
    """Raise InvalidArgumentError unless a setting is a folder with wheels."""
    if value is None:
        return
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgumentError(f"wheels is the path of a folder with wheels, not {value!r}")
    if next(Path(value).expanduser().glob("*.whl"), None) is None:
        raise InvalidArgumentError(
            f"wheels={value!r} is no folder with wheels; fill one with `pip download -d FOLDER NAME==VERSION`"
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
        LauncherSetting(
            "sync_env",
            "make the notebook's environment on each host, with uv, unless it is there",
            read=None,
            shows="",
            default=False,
            check=check_switch,
        ),
        LauncherSetting(
            "wheels",
            "with --sync-env: a folder of wheels that are sent, for hosts without a network",
            shows="FOLDER",
            check=check_wheels,
        ),
        LauncherSetting(
            "sync_modules",
            "send the Python files below this folder to the hosts, for the tasks to import",
            read=None,
            shows="",
            default=False,
            check=check_switch,
        ),
    ),
    tries_again=True,
    fits=lambda settings: "hosts are given" if settings.get("hosts") else "",
    hosts=ssh_hosts,
    commands=ssh_commands,
    explain=why_ssh_ended,
)
