"""What a launcher is: a `Launcher`, which starts the tasks' processes, and its row, a `LauncherSpec`.

    client (start_cluster)              supervisor process
    spec.check()      installed?
    plan: the launcher's name ────────► launcher = spec.make(LaunchRequest(...))
                                        launcher.start(supervisor, rank, environment, log)   once per task
    restart, grow ────────────────────► launcher.start(...) again

The launcher decides how a process starts. The supervisor is its parent: it reaps the process, reports its
exit, signals it, and ends it with the cluster. With other hosts, `commands` bring up a supervisor on each,
which makes a launcher of this row for the tasks there. Where these launchers have to agree on something, such
as who the ranks of an MPI world are, the head has a `Coordinator`, with which they exchange messages.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra

if TYPE_CHECKING:
    from nbdist.cluster.hosts import Host
    from nbdist.cluster.supervisor.process import SupervisorProcess


@dataclass(frozen=True)
class LaunchRequest:
    """What the processes of a cluster's tasks have in common.

    - ``ranks``: the number of tasks that the cluster starts with; their ranks are 0 to ``ranks - 1``. On a
      host of a head elsewhere it is 0: the tasks are not known yet
    - ``connection``: ipyparallel's connection information for an engine. It has the cluster's key, so it must
      not be an argument of a process, which other users could read
    - ``folder``: the cluster's folder on this host
    - ``timeout``: seconds that an engine may take to register with the controller
    - ``settings``: the values of the launcher's own settings, by name
    - ``address``: the address of this host in the cluster; "" without other hosts
    """

    ranks: int
    connection: Mapping[str, Any]
    folder: str
    timeout: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""


class Launcher(ABC):
    """Starts the processes of one cluster's tasks. The supervisor process makes one and calls it."""

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request

    @abstractmethod
    def start(
        self, supervisor: SupervisorProcess, rank: int, environment: Mapping[str, str], log: str
    ) -> Callable[[], None] | None:
        """Start the process that becomes the engine of a rank, and print its output to the file ``log``.

        It is called for each task of a new cluster, and again for a task that is replaced or added. The
        process is a child of this one. It leads a process group of its own, ends when this process ends, and
        has the variables of ``environment`` before it imports NumPy. Add it with
        `SupervisorProcess.add_child`; `SupervisorProcess.fork` does all of this. Returns None, and in a
        forked child the function that the child has to call.
        """

    def receive(self, supervisor: SupervisorProcess, message: Any) -> None:  # noqa: B027 - see below
        """Take a message of the `Coordinator`; `SupervisorProcess.tell_coordinator` sends it one."""

    def close_in_child(self) -> None:  # noqa: B027 - nothing, unless overridden
        """Run in a child that the supervisor has just forked: close what only the supervisor uses."""


class Coordinator(ABC):
    """What the launchers on the hosts of one cluster agree with, in the head's supervisor. Pure.

    Messages are plain JSON values, of less than 1 MB each. What a method returns is sent: messages, by the
    name of the host.
    """

    @abstractmethod
    def begin(self) -> Mapping[str, Any]:
        """Return the messages that each host's launcher has to have before its first task starts."""

    @abstractmethod
    def receive(self, host: str, message: Any) -> Mapping[str, Any]:
        """Take a message of a host's launcher. An error that it raises ends the cluster."""


@dataclass(frozen=True)
class HostCommand:
    """A command that brings up the supervisors of one or more hosts, and runs as long as they do.

    It is a process on the head's host. On its standard input it gets one line, which the command
    ``python -m nbdist.cluster.supervisor.host`` has to get on each of the ``hosts`` (their names). What it
    has printed to its standard error is the cause if it ends early. SIGTERM makes it end what it has started.
    The line holds the cluster's keys: pass it on through encrypted channels only, never in a file, an
    argument or a variable. It may print lines of JSON to its standard output:

    - ``{"waiting": "job 12 is pending: Resources"}``: why the hosts do not come yet; no limit holds meanwhile
    - ``{"hosts": ["n1", "n2"], "seconds_left": 7200}``: the real names of its hosts, which come now, and the
      time that they have
    - ``{"lost": ["n2"], "reasons": ["host n2: no space is left"]}``: hosts that have ended or do not come,
      and why, each in a sentence
    - ``{"left": "job 12 may still run"}``: what it could not end; the stop of the cluster says so

    It ends with status `JOB_OVER` if its job has no time left or was preempted, say: with ``requeue`` it is
    run again then.
    """

    argv: tuple[str, ...]
    hosts: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


NO_REQUEUE = "it submits no job a second time, as 'slurm' does"
JOB_OVER = 75  # EX_TEMPFAIL: how a command ends whose job is over through no fault of its own


def why_command_ended(host: str, code: int, errors: str) -> str:
    """Return why the command of a host has ended: the last line of its errors.

    >>> why_command_ended("n1", 9, "")
    'the command that holds host n1 ended with exit code 9'
    """
    lines = errors.strip().splitlines() or [f"the command that holds host {host} ended with exit code {code}"]
    return lines[-1].strip()


def no_commands(settings: Mapping[str, Any], hosts: Sequence[str]) -> tuple[HostCommand, ...]:
    """Return no command: all tasks are on the client's host."""
    return ()


@dataclass(frozen=True)
class LauncherSetting:
    """A setting of one launcher: a keyword of `start_cluster` and a flag of ``%cluster start``.

    ``read`` makes a value of a flag's text, ``shows`` stands for the value in the help; a flag whose ``read``
    is None takes no value and means True. ``check`` raises InvalidArgumentError for an invalid value. Values
    and ``default`` are plain JSON values.
    """

    name: str
    help: str
    read: Callable[[str], Any] | None = str
    shows: str = "VALUE"
    default: Any = None
    check: Callable[[Any], None] = field(default=lambda value: None)

    @property
    def flag(self) -> str:
        """Its flag, such as "--host-file"."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def names_file(self) -> bool:
        """Whether its value is, or may be, the path of a file, which the head's host reads."""
        return "FILE" in self.shows.split("|")


def command_of(name: str, settings: Sequence[LauncherSetting], values: Mapping[str, Any]) -> list[str]:
    """Return the command of a launcher, with the values of its settings that are not the defaults.

    >>> command_of("slurm", [LauncherSetting("time", "wall time")], {"time": "30"})[1:]
    ['-m', 'nbdist.cluster.launchers.slurm', '--time=30']
    """
    options = [f"{one.flag}={values[one.name]}" for one in settings if values[one.name] != one.default]
    return [sys.executable, "-m", f"nbdist.cluster.launchers.{name}", *options]


@dataclass(frozen=True)
class LauncherSpec:
    """All that the rest of the system asks about a launcher.

    - ``help``: what the tasks are, in a few words, for ``%cluster --help``
    - ``make(request)`` returns the launcher of one cluster, in its supervisor process
    - ``forks``: whether the supervisor forks the tasks; it then imports the tasks' libraries first
    - ``fixed_size``: why tasks can be neither added nor removed; "" if they can
    - ``coordinate(places)`` returns the `Coordinator` of a new cluster on other hosts, from the host of each
      task by rank; None if the launchers there have nothing to agree on
    - ``notice``: what the user has to know where the tasks are on several hosts, in a sentence
    - ``one_host``: how its tasks come to other nodes of the job around this process, which it does not know
    - ``not_replaced``: why the process of a task cannot be replaced; "" if it can
    - ``lost_by_replacement``: what a replaced task can no longer do, for the user; "" for nothing
    - ``check()`` raises MissingExtra if a package that it needs is not installed, FailedPreconditionError if
      a program is not
    - ``needs``: the packages of extras of nbdist that hosts need, by extra, in the versions of the client's
    - ``settings``: what a user can set of it
    - ``fits(settings)`` returns why launcher "auto" takes it with these settings, in this environment; "" if
      it does not
    - ``tries_again``: whether the command of a host that did not come may be run again. Not where one command
      brings up several hosts, since it would take all of their job a second time
    - ``timed``: whether its commands report when the job of their hosts ends (``seconds_left``)
    - ``not_requeued(settings)`` returns why its command cannot be run again when the job of its hosts is
      over; "" if it can
    - ``hosts(settings)`` returns the hosts that the tasks are placed on, and how many workers each may have;
      none for the client's own
    - ``commands(settings, names)`` returns the commands that bring up the supervisors of these hosts
    - ``explain(host, code, errors)`` returns a sentence with the cause and the next step for such a command,
      which ended with that exit code and these errors
    """

    name: str
    help: str
    make: Callable[[LaunchRequest], Launcher]
    forks: bool = True
    fixed_size: str = ""
    coordinate: Callable[[Sequence[str]], Coordinator] | None = None
    notice: str = ""
    one_host: str = ""
    not_replaced: str = ""
    lost_by_replacement: str = ""
    check: Callable[[], None] = field(default=lambda: None)
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings: tuple[LauncherSetting, ...] = ()
    tries_again: bool = False
    timed: bool = False
    not_requeued: Callable[[Mapping[str, Any]], str] = field(default=lambda settings: NO_REQUEUE)
    fits: Callable[[Mapping[str, Any]], str] = field(default=lambda settings: "")
    hosts: Callable[[Mapping[str, Any]], tuple[Host, ...]] = field(default=lambda settings: ())
    commands: Callable[[Mapping[str, Any], Sequence[str]], tuple[HostCommand, ...]] = no_commands
    explain: Callable[[str, int, str], str] = why_command_ended

    @property
    def packages(self) -> list[str]:
        """The names of the packages of ``needs``."""
        return [name for names in self.needs.values() for name in names]

    def is_installed(self) -> bool:
        """Return whether this host has the packages that the launcher needs."""
        try:
            self.check()
        except (MissingExtra, FailedPreconditionError):
            return False
        return True

    def needs_settings(self) -> bool:
        """Return whether it cannot start without settings, such as the names of hosts."""
        try:
            self.hosts(self.read_settings({}))
        except InvalidArgumentError:
            return True
        return False

    def is_elsewhere(self) -> bool:
        """Return whether the tasks are on other hosts than the client's."""
        try:
            return bool(self.hosts(self.read_settings({})))
        except InvalidArgumentError:  # it needs their names
            return True

    def read_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all its settings: those given, or their defaults.

        Raises InvalidArgumentError for an invalid value, and for a setting of another launcher.
        """
        own = {setting.name: setting for setting in self.settings}
        for name in given.keys() - own.keys():
            raise InvalidArgumentError(
                f"{name} is not a setting of launcher {self.name!r}, which has {', '.join(own) or 'none'}: "
                "leave it out, or choose another launcher"
            )
        for name, value in given.items():
            own[name].check(value)
        return {name: given.get(name, setting.default) for name, setting in own.items()}
