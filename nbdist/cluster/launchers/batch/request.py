"""What a user can set of the launcher "batch", and its row in the table of launchers. Pure but for the PATH.

    %cluster start --workers 4 --launcher batch --batch-nodes 2 --queue gpu --batch-time 2:00:00

Within a job (PBS_JOBID is set, say) nothing is submitted: the cluster has the nodes of that job.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.batch.systems import SYSTEMS, BatchRequest, BatchSystem
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.slurm.status import parse_duration
from nbdist.cluster.launchers.spec import HostCommand, LauncherSetting, LauncherSpec, command_of
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, choices


def find_system(request: BatchRequest, environ: Mapping[str, str] = os.environ) -> BatchSystem:
    """Return the row of a system: the one asked for, that of the job around this process, or the one here.

    Raises InvalidArgumentError for an unknown name, and FailedPreconditionError if there is none.
    """
    if name := request.batch_system:
        check_system(name)
        return SYSTEMS[name]
    if inside := system_around(environ):
        return SYSTEMS[inside]
    found = [name for name in SYSTEMS if is_here(name, environ)]
    if not found:
        raise FailedPreconditionError(NO_SYSTEM)
    return SYSTEMS[found[0]]


NO_SYSTEM = (
    "launcher 'batch' needs qsub (PBS, SGE), bsub (LSF) or condor_submit (HTCondor) on the PATH: they "
    "are on a login host of the cluster, perhaps after `module load`"
)


def is_here(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether this host has the commands of a system. PBS and SGE both have a qsub; SGE has qconf."""
    if shutil.which(SYSTEMS[name].program) is None:
        return False
    sge = bool(environ.get("SGE_ROOT")) or shutil.which("qconf") is not None
    return sge == (name == "sge") if name in ("pbs", "sge") else True


def system_around(environ: Mapping[str, str]) -> str:
    """Return the name of the system that runs the job around this process, "" if there is none.

    >>> system_around({"PBS_JOBID": "7.head", "PBS_NODEFILE": "/var/spool/pbs/aux/7.head"})
    'pbs'
    """
    for name, system in SYSTEMS.items():
        variables = (system.job_variable, system.nodes_variable)
        if all(variable and environ.get(variable) for variable in variables):
            return name
    return ""


def allocation_of(
    environ: Mapping[str, str], request: BatchRequest, system: BatchSystem
) -> tuple[str, tuple[str, ...]]:
    """Return the number and the nodes of the job around this process, "" and none if there is no such job.

    Raises InvalidArgumentError for what only a new job can have, and for more nodes than the job has.
    """
    around = system_around(environ)
    if not around or SYSTEMS[around] is not system:
        return "", ()
    job = environ[system.job_variable]
    ours = [one.name for one in SETTINGS if one.name not in ("batch_system", "batch_nodes")]
    if asked := [name for name in ours if getattr(request, name)]:
        raise InvalidArgumentError(
            f"{', '.join(asked)}: this process runs in job {job}, which has its nodes and limits already. "
            "Leave it out, or start from a login host"
        )
    text = environ[system.nodes_variable]
    if text.startswith("/"):
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise FailedPreconditionError(
                f"the nodes of job {job} cannot be read from {system.nodes_variable}={text}: "
                f"{error.strerror}; start in the first node of the job"
            ) from None
    nodes = system.nodes(text)
    if not nodes or len(nodes) < request.batch_nodes:
        raise InvalidArgumentError(
            f"batch_nodes={request.batch_nodes}, and job {job} has {len(nodes)}: {', '.join(nodes)}"
        )
    return job, nodes[: request.batch_nodes or len(nodes)]


def check_request(request: BatchRequest, system: BatchSystem) -> None:
    """Raise InvalidArgumentError for what a system does not have."""
    for name, why in system.refused:
        if value := getattr(request, name):
            raise InvalidArgumentError(f"{name}={value!r}: {why}")
    words = shlex.split(request.batch_options)
    several = "-pe" in words  # it takes a name and a number
    for before, word in zip(["", *words], words):
        # It would be taken for the job's script.
        if not word.startswith("-") and not before.startswith("-") and not several:
            raise InvalidArgumentError(
                f"batch_options={request.batch_options!r}: leave {word!r} out, or give it to an option"
            )


def check_system(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is the name of a batch system."""
    if value not in tuple(SYSTEMS):
        raise InvalidArgumentError(f"no batch_system {value!r}; {choices(value, SYSTEMS)}")


def check_number(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a number of nodes or cores."""
    if type(value) is not int or not 1 <= value < 100_000:
        raise InvalidArgumentError(f"batch_nodes and batch_cores are numbers from 1, not {value!r}")


def check_time(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a wall time above 0, as text."""
    if not isinstance(value, str) or not parse_duration(value):
        raise InvalidArgumentError(f"batch_time is a text such as '1:30:00' or '90' (minutes), not {value!r}")


def check_word(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a name."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or value.startswith("-"):
        raise InvalidArgumentError(f"queue, batch_account and parallel_environment are names, not {value!r}")


def check_options(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a line of options."""
    try:
        words = shlex.split(value) if isinstance(value, str) else []
    except ValueError as error:
        raise InvalidArgumentError(f"batch_options={value!r} cannot be read: {error}") from None
    if not words or not words[0].startswith("-"):
        raise InvalidArgumentError(f"batch_options={value!r} is not a line of options such as '-l mem=4gb'")


def check_template(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is the path of a file."""
    if not isinstance(value, str) or not Path(value).is_file():
        raise InvalidArgumentError(f"batch_template {value!r} is not a file; --print-template prints one")


SETTINGS = (
    LauncherSetting(
        "batch_system", "batch system (default: the one here)", str, "|".join(SYSTEMS), "", check_system
    ),
    LauncherSetting(
        "batch_nodes", "number of nodes (default 1; in a job, all of it)", int, "N", 0, check_number
    ),
    LauncherSetting("batch_cores", "cores of each node", int, "N", 0, check_number),
    LauncherSetting("queue", "queue", str, "NAME", "", check_word),
    LauncherSetting("batch_account", "account or project that pays", str, "NAME", "", check_word),
    LauncherSetting("batch_time", "wall time", str, "1:30:00", "", check_time),
    LauncherSetting("parallel_environment", "SGE: parallel environment", str, "NAME", "", check_word),
    LauncherSetting(
        "batch_options",
        "more options of the command that submits, as '--batch-options=-l mem=4gb'",
        str,
        "OPTIONS",
        "",
        check_options,
    ),
    LauncherSetting("batch_template", "script of the job", str, "FILE", "", check_template),
)
"""What a user can set, each of it a field of `BatchRequest`."""


def batch_hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return a host for each node, under a name that the job replaces.

    >>> batch_hosts({"batch_system": "pbs", "batch_nodes": 2})
    (Host(name='node1', slots=None), Host(name='node2', slots=None))
    """
    request = BatchRequest(**settings)
    around = request.batch_system or system_around(os.environ)
    if around:
        check_system(around)
        check_request(request, SYSTEMS[around])
    inside = allocation_of(os.environ, request, SYSTEMS[around])[1] if around else ()
    return tuple(Host(f"node{number + 1}") for number in range(len(inside) or request.batch_nodes or 1))


def batch_commands(settings: Mapping[str, Any], hosts: Sequence[str]) -> tuple[HostCommand, ...]:
    """Return the command that holds the job of all hosts."""
    return (HostCommand(tuple(command_of("batch", SETTINGS, settings)), tuple(hosts)),)


def batch_fits(settings: Mapping[str, Any]) -> str:
    """Return why a cluster is to run in a batch system: in a job, or with its settings; "" for no reason."""
    if name := system_around(os.environ):
        return f"this process is in job {os.environ[SYSTEMS[name].job_variable]} of {SYSTEMS[name].title}"
    asked = [setting.flag for setting in SETTINGS if settings.get(setting.name)]
    return f"{', '.join(asked)} is given" if asked else ""


def require_batch() -> None:
    """Raise FailedPreconditionError without a batch system."""
    if not system_around(os.environ) and not any(shutil.which(row.program) for row in SYSTEMS.values()):
        raise FailedPreconditionError(NO_SYSTEM)


SPEC = LauncherSpec(
    "batch",
    help="engines on the nodes of a job of PBS, SGE, LSF or HTCondor",
    make=ForkLauncher,
    check=require_batch,
    settings=SETTINGS,
    fits=batch_fits,
    hosts=batch_hosts,
    commands=batch_commands,
    timed=True,
)
