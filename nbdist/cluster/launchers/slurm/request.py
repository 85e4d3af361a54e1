"""What a user asks of Slurm, and the command that submits it. Pure.

    request = JobRequest(nodes=2, partition="gpu", time="2:00:00")
    submit_command(request, "-")     # sbatch, with `TEMPLATE` on its standard input
    slurm_commands(settings, hosts)  # the launcher's own

Options of sbatch's command line have precedence over the lines of a script that begin with #SBATCH. So what a
user asks for here is obeyed whatever template is used, and a template needs no placeholders.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.slurm.status import Job, parse_duration
from nbdist.cluster.launchers.spec import HostCommand, LauncherSetting, LauncherSpec, command_of
from nbdist.errors import FailedPreconditionError, InvalidArgumentError

TEMPLATE = """\
#!/bin/sh
# The job of an nbdist cluster. It holds the nodes; nbdist starts its processes on them with srun, in the
# environment of the notebook, so that modules loaded here do not reach them. Lines that begin with #SBATCH
# set options of sbatch. What the cluster is started with (--partition, --time, ...) has precedence.
#SBATCH --no-kill
#SBATCH --output=/dev/null
# The job ends when it has had no step for ten minutes: the notebook's host has died, say.
idle=0
while [ "$idle" -lt 20 ]; do
    sleep 30
    steps=$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i) || continue
    if echo "$steps" | grep -q '\\.[0-9]'; then idle=0; else idle=$((idle + 1)); fi
done
"""
"""The script of a job, unless ``--template`` names another one."""


@dataclass(frozen=True)
class JobRequest:
    """What a user asks of Slurm; "" and 0 leave it to the template, or to the site.

    - ``nodes``: a number, or the smallest and the largest one: "2-4"
    - ``time``: the wall time, in Slurm's forms: "90" (minutes), "1:30:00", "2-12:00:00"
    - ``gres``: resources of each node, such as "gpu:2"
    - ``cores``: cores of each node
    - ``sbatch``: more options of sbatch, as in a shell: "--qos=high --constraint=a100"
    - ``template``: the path of the job's script
    - ``name``: the job's name in the queue
    """

    nodes: str | int = ""
    partition: str = ""
    account: str = ""
    time: str = ""
    gres: str = ""
    cores: int = 0
    sbatch: str = ""
    template: str = ""
    name: str = "nbdist"


def submit_command(request: JobRequest, script: str) -> list[str]:
    """Return the command that submits the job. ``script`` is a path, or "-" for the standard input.

    >>> submit_command(JobRequest(nodes=2, gres="gpu:1", sbatch="--qos=high"), "-")[3:]
    ['--job-name=nbdist', '--nodes=2', '--gres=gpu:1', '--no-requeue', '--qos=high']
    """
    smallest, largest = node_range(request.nodes or 1)
    options = {
        "job-name": request.name,
        "nodes": str(smallest) if smallest == largest else f"{smallest}-{largest}",
        "partition": request.partition,
        "account": request.account,
        "time": request.time,
        "gres": request.gres,
        "cpus-per-task": str(request.cores or ""),
    }
    return [
        "sbatch",
        "--parsable",
        "--ntasks-per-node=1",
        *(f"--{name}={value}" for name, value in options.items() if value),
        "--no-requeue",
        *shlex.split(request.sbatch),
        *([] if script == "-" else [script]),
    ]


def partitions_command(request: JobRequest) -> list[str]:
    """Return the command that prints how many nodes have how many cores, for `check_nodes_for`.

    >>> partitions_command(JobRequest(partition="gpu"))[2:]
    ['--exact', '--format=%P|%D|%c', '--partition=gpu']
    """
    which = f"--partition={request.partition}" if request.partition else "--all"
    return ["sinfo", "--noheader", "--exact", "--format=%P|%D|%c", which]


def check_nodes_for(request: JobRequest, printed: str, environ: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError if a partition has too few nodes with as many cores as a job asks for.

    Slurm lets such a job wait in the queue, without an end. ``printed`` is what `partitions_command` prints.

    >>> check_nodes_for(JobRequest(cores=8, nodes=2), "debug*|3|4" + chr(10) + "debug*|1|8", {})
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: nodes=2, cores=8: partition debug has 1 node with so many
    """
    rows = [line.strip().split("|") for line in printed.splitlines() if line.count("|") == 2]
    elsewhere = request.partition or request.sbatch or request.template or environ.get("SBATCH_PARTITION")
    if not elsewhere:
        rows = [row for row in rows if row[0].endswith("*")]  # the default partition
    nodes = [(int(count), int(cores)) for _, count, cores in rows if count.isdigit() and cores.isdigit()]
    if not nodes:
        return
    where = "partition " + (request.partition or rows[0][0].rstrip("*"))
    where = where if request.partition or not elsewhere else "this Slurm"
    smallest, _ = node_range(request.nodes or 1)
    most = max(cores for _, cores in nodes)
    enough = sum(count for count, cores in nodes if cores >= request.cores)
    if not enough:
        raise InvalidArgumentError(
            f"cores={request.cores}: no node of {where} has more than {most}; ask for {most} at most, or for "
            "another partition (sinfo lists them)"
        )
    if enough < smallest:
        raise InvalidArgumentError(
            f"nodes={request.nodes}, cores={request.cores}: {where} has {enough} node{'s' * (enough > 1)} "
            "with so many"
        )


def allocation_of(environ: Mapping[str, str], request: JobRequest) -> str:
    """Return the number of the job around this process, "" if there is none.

    Raises InvalidArgumentError for what only a new job can have, and for a heterogeneous job.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        return ""
    ours = ("partition", "account", "time", "gres", "cores", "sbatch", "template")
    if given := [name for name in ours if getattr(request, name)]:
        raise InvalidArgumentError(
            f"{', '.join(given)}: this process runs in job {job}, which has its nodes and limits already. "
            "Leave it out, or start from a login host"
        )
    if int(environ.get("SLURM_HET_SIZE", "1") or 1) > 1:
        raise InvalidArgumentError(
            f"job {job} is heterogeneous (SLURM_HET_SIZE={environ['SLURM_HET_SIZE']}), and a step has the "
            "nodes of one component only: start from a login host, or in a job of one component"
        )
    return job


def nodes_to_use(job: Job, request: JobRequest) -> tuple[str, ...]:
    """Return the nodes of an allocation on which a supervisor runs.

    >>> nodes_to_use(Job("12", "RUNNING", nodes=("n1", "n2", "n3")), JobRequest(nodes=2))
    ('n1', 'n2')
    """
    have = len(job.nodes)
    smallest, largest = node_range(request.nodes) if request.nodes else (1, have)
    if have < smallest:
        raise InvalidArgumentError(
            f"nodes={request.nodes}, and job {job.id} has {have}: {', '.join(job.nodes)}"
        )
    return job.nodes[:largest]


def node_range(text: str | int) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes.

    >>> node_range("2-4"), node_range(3)
    ((2, 4), (3, 3))
    """
    found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", str(text), re.ASCII)
    smallest, largest = (int(one or found[1]) for one in found.groups()) if found else (0, 0)
    if not 1 <= smallest <= largest or isinstance(text, bool):
        raise InvalidArgumentError(f"nodes is a number from 1, or a range such as 2-4, not {text!r}")
    return smallest, largest


def check_nodes(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a number or a range of nodes."""
    node_range(value)


def check_time(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a time in one of Slurm's forms, as text."""
    if not isinstance(value, str) or parse_duration(value) == 0:
        raise InvalidArgumentError(f"time is a text such as '1:30:00' or '90' (minutes), not {value!r}")


def check_cores(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a number of cores."""
    if type(value) is not int or value < 1:
        raise InvalidArgumentError(f"cores is the number of cores of each node, from 1, not {value!r}")


def check_text(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a name, a path or the like."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidArgumentError(f"partition, account, gres and template are texts, not {value!r}")


REFUSED = {
    **dict.fromkeys(("--array", "-a"), "a cluster is one job"),
    **dict.fromkeys(("--wait", "-W", "--wrap", "--test-only"), "the job only holds the nodes of the cluster"),
    **dict.fromkeys(("--nodes", "-N"), "nodes= is their number"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node"), "a node has one host supervisor"),
}
"""Options of sbatch, and why they are not taken."""


def check_sbatch(value: Any) -> None:
    """Raise InvalidArgumentError for options of sbatch that cannot be obeyed.

    >>> check_sbatch("--qos=high --arr=1-3")
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: sbatch='--qos=high --arr=1-3': leave --arr out, a cluster is one job
    """
    try:
        words = shlex.split(value) if isinstance(value, str) else []
    except ValueError:  # a quotation has no end
        words = []
    if not words:
        raise InvalidArgumentError(f"sbatch={value!r} is not a line of options such as '--qos=high'")
    for word in words:
        # Any other word would be taken for the job's script.
        if not word.startswith("-"):
            raise InvalidArgumentError(f"sbatch={value!r}: write options as --qos=high, not {word!r} alone")
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        for refused, reason in REFUSED.items():
            if name == refused or (len(name) > 3 and refused.startswith(name)):  # sbatch completes names
                raise InvalidArgumentError(f"sbatch={value!r}: leave {name} out, {reason}")


SETTINGS = (
    LauncherSetting(
        "nodes", "number of nodes (default 1; in an allocation, all)", str, "N|N-M", "", check_nodes
    ),
    LauncherSetting("partition", "partition", str, "NAME", "", check_text),
    LauncherSetting("account", "account that pays", str, "NAME", "", check_text),
    LauncherSetting("time", "wall time", str, "1:30:00", "", check_time),
    LauncherSetting("gres", "resources of each node", str, "gpu:2", "", check_text),
    LauncherSetting("cores", "cores of each node", int, "N", 0, check_cores),
    LauncherSetting(
        "sbatch", "more options of sbatch, as --sbatch=--qos=high", str, "OPTIONS", "", check_sbatch
    ),
    LauncherSetting("template", "script of the job", str, "FILE", "", check_text),
)
"""What a user can set, each of it a field of `JobRequest`."""


def slurm_hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return a host for each node, under a name that the job replaces; a GPU that is asked for is a worker.

    >>> slurm_hosts({"nodes": 2, "gres": "gpu:a100:4"})
    (Host(name='node1', slots=4), Host(name='node2', slots=4))
    """
    job = allocation_of(os.environ, JobRequest(**settings))
    inside = os.environ.get("SLURM_JOB_NUM_NODES", "1") if job else "1"
    _, largest = node_range(settings["nodes"] or inside)
    found = re.search(r"\bgpus?(?::[A-Za-z][\w.-]*)?:(\d{1,3})\b", settings.get("gres", ""))
    slots = int(found[1]) if found else None
    return tuple(Host(f"node{number}", slots) for number in range(1, largest + 1))


def slurm_commands(settings: Mapping[str, Any], hosts: Sequence[str]) -> tuple[HostCommand, ...]:
    """Return the command that holds the job of all hosts."""
    return (HostCommand(tuple(command_of("slurm", SETTINGS, settings)), tuple(hosts)),)


def slurm_fits(settings: Mapping[str, Any]) -> str:
    """Return why a cluster is to run in Slurm: in an allocation, or with its settings; "" for no reason."""
    if job := os.environ.get("SLURM_JOB_ID"):
        return f"this process is in job {job} of Slurm" if shutil.which("srun") else ""
    given = [setting.flag for setting in SETTINGS if settings.get(setting.name)]
    return f"{', '.join(given)} is given" if given else ""


def slurm_not_requeued(settings: Mapping[str, Any]) -> str:
    """Return why the job is not submitted again: it is that of this process; "" for no reason."""
    if job := allocation_of(os.environ, JobRequest(**settings)):
        return f"this process runs in job {job}, and ends with it: start the cluster from a login host"
    return ""


def require_slurm() -> None:
    """Raise FailedPreconditionError without the commands of Slurm."""
    if shutil.which("srun") is None:
        raise FailedPreconditionError(
            "launcher 'slurm' needs srun and sbatch on the PATH: they are on a login host of the cluster, "
            "perhaps after `module load slurm`"
        )


SPEC = LauncherSpec(
    "slurm",
    help="engines on the nodes of a job of Slurm",
    make=ForkLauncher,
    check=require_slurm,
    settings=SETTINGS,
    fits=slurm_fits,
    hosts=slurm_hosts,
    commands=slurm_commands,
    timed=True,
    not_requeued=slurm_not_requeued,
)
