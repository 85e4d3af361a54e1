"""The table of batch systems, one row each: how a job is submitted, looked at, cancelled, and reached. Pure.

    system = SYSTEMS["pbs"]
    system.submit(BatchRequest("pbs", batch_nodes=2, batch_time="90"))      # qsub and its options
    system.read("7", what the commands of system.query print)               # the job

What a user asks for becomes options of the command that submits, which have precedence over the lines of a
script ("#PBS", "#$", "#BSUB"). So a template needs no placeholders.

A node is reached with ssh from a login host: none of these systems hands the standard input of a program on
a node to a process outside of the job, and a file would show the keys. HTCondor has an ssh of its own. Within
a job SGE and LSF start programs on its nodes, with their input: these belong to the job, as users expect.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nbdist.cluster.hosts import ssh_command
from nbdist.cluster.launchers.batch.formats import (
    HTCONDOR_FIELDS,
    LSF_FORMAT,
    clock_of,
    machine_of,
    processes_of_htcondor,
    read_htcondor,
    read_lsf,
    read_lsf_hosts,
    read_node_file,
    read_pbs,
    read_sge,
    seconds_in,
)
from nbdist.cluster.launchers.slurm.status import Job
from nbdist.errors import InvalidArgumentError

SCRIPT = """\
#!/bin/sh
# The job of an nbdist cluster. It only holds the nodes; nbdist starts its processes on them by itself. Lines
# that begin with {directive} set options of {submit}. What the cluster is started with (--queue, ...) has
# precedence.
# The job ends when its first node has had no process of nbdist for ten minutes: the notebook's host has died,
# say.
idle=0
while [ "$idle" -lt 20 ]; do
    sleep 30
    if pgrep -u "$(id -u)" -f 'nbdist[.]cluster[.]' > /dev/null; then idle=0; else idle=$((idle + 1)); fi
done
"""
DESCRIPTION = """\
# The job of an nbdist cluster: a process on each node, which only holds it. What the cluster is started with
# has precedence. There is no queue command: condor_submit gets the number of nodes as an option.
universe = vanilla
executable = /bin/sleep
arguments = infinity
transfer_executable = false
should_transfer_files = no
"""


@dataclass(frozen=True)
class BatchRequest:
    """What a user asks of a batch system; "" and 0 leave it to the template, or to the site.

    - ``batch_system``: a name in `SYSTEMS`
    - ``batch_nodes``: the number of nodes
    - ``batch_cores``: cores of each node
    - ``queue``: the queue
    - ``batch_account``: the account that is charged: one of PBS, a project of SGE or LSF, a group of HTCondor
    - ``batch_time``: the wall time, in Slurm's forms, whatever the system: "90" (minutes), "1:30:00"
    - ``parallel_environment``: of SGE, which needs it for several nodes or cores
    - ``batch_options``: more options of the command that submits, as in a shell: "-l mem=4gb"
    - ``batch_template``: the path of the job's script
    - ``name``: the job's name in the queue
    """

    batch_system: str = ""
    batch_nodes: int = 0
    batch_cores: int = 0
    queue: str = ""
    batch_account: str = ""
    batch_time: str = ""
    parallel_environment: str = ""
    batch_options: str = ""
    batch_template: str = ""
    name: str = "nbdist"


Reach = Callable[[str, str, Sequence[str], str], list[str]]
"""Of a job's number, a node, the program there and what the last query has printed: the command for it."""


def reach_ssh(job: str, node: str, program: Sequence[str], printed: str) -> list[str]:
    """Return an ssh to a node; the end of its input ends the program there."""
    return ssh_command(node, f"exec {shlex.join(program)}", options=("-o", "ServerAliveInterval=5"))


@dataclass(frozen=True)
class BatchSystem:
    """All that is asked of a batch system.

    - ``title``: its name, for the user
    - ``template``: the script of a job
    - ``submit(request)``: the command that submits, without the script
    - ``script_option``: whether the path of the script is the command's last word, else it is its input
    - ``number``: finds the job's number in what that command prints
    - ``query``: the commands that print a job, with {job} for its number
    - ``read(number, printed, now)``: that job
    - ``gone``: finds, in a complaint of the query, that there is no such job any more
    - ``cancel``: the command that cancels the job of the number that follows
    - ``job_variable``: has the number of the job around a process, "" if the system runs no job of this kind
    - ``nodes_variable``: has the nodes of that job, or the path of a file of them
    - ``nodes(text)``: the nodes in the text of that variable or file
    - ``reach``, ``reach_inside``: the command of a node's program, from a login host and within the job
    - ``spread``: what to do if it gives a job several places on one machine
    - ``refused``: settings that it does not have, and why
    """

    title: str
    template: str
    submit: Callable[[BatchRequest], list[str]]
    number: str
    query: tuple[tuple[str, ...], ...]
    read: Callable[[str, str, float], Job]
    gone: str
    cancel: str
    script_option: bool = True
    job_variable: str = ""
    nodes_variable: str = ""
    nodes: Callable[[str], tuple[str, ...]] = read_node_file
    reach: Reach = reach_ssh
    reach_inside: Reach = reach_ssh
    spread: str = "Ask for more cores of each (--batch-cores)"
    refused: tuple[tuple[str, str], ...] = (
        ("parallel_environment", "parallel environments are SGE's; leave it out"),
    )

    @property
    def program(self) -> str:
        """The command that submits, which tells whether the system is there."""
        return self.submit(BatchRequest())[0]


def given(*pairs: tuple[str, object]) -> list[str]:
    """Return options and their values, without those that have none.

    >>> given(("-q", "gpu"), ("-A", ""))
    ['-q', 'gpu']
    """
    return [word for option, value in pairs if value for word in (option, str(value))]


def submit_pbs(request: BatchRequest) -> list[str]:
    """Return qsub of PBS Professional, OpenPBS or Torque.

    >>> submit_pbs(BatchRequest("pbs", batch_nodes=2, batch_cores=4, batch_time="90"))[3:5]
    ['-l', 'nodes=2:ppn=4,walltime=1:30:00']
    """
    if request.batch_cores and "select=" in request.batch_options:
        raise InvalidArgumentError(
            f"batch_cores={request.batch_cores}: batch_options={request.batch_options!r} says it already: "
            "leave batch_cores out, and give select= its ncpus"
        )
    clock = clock_of(request.batch_time)
    resources = [f"walltime={clock}"] if clock else []
    # PBS takes either nodes= or select=; the template and the options may have the latter.
    if (request.batch_nodes or request.batch_cores) and "select=" not in request.batch_options:
        cores = f":ppn={request.batch_cores}" if request.batch_cores else ""
        resources.insert(0, f"nodes={request.batch_nodes or 1}{cores}")
    return [
        "qsub",
        *given(
            ("-N", request.name),
            ("-l", ",".join(resources)),
            ("-q", request.queue),
            ("-A", request.batch_account),
        ),
        *("-r", "n", "-j", "oe", "-o", "/dev/null"),
        *shlex.split(request.batch_options),
    ]


def submit_sge(request: BatchRequest) -> list[str]:
    """Return qsub of SGE, Open Grid Scheduler or Univa Grid Engine.

    >>> submit_sge(BatchRequest("sge", batch_nodes=2, batch_cores=4, parallel_environment="mpi"))[-3:]
    ['-pe', 'mpi', '8']
    """
    slots = (request.batch_nodes or 1) * (request.batch_cores or 1)
    if request.batch_cores and "-pe" in request.batch_options.split():
        raise InvalidArgumentError(
            f"batch_cores={request.batch_cores}: batch_options={request.batch_options!r} has the slots: "
            "leave batch_cores out, or name the parallel environment with parallel_environment="
        )
    if slots > 1 and not request.parallel_environment and "-pe" not in request.batch_options.split():
        raise InvalidArgumentError(
            f"SGE gives {slots} cores only in a parallel environment: name one with parallel_environment= "
            "(--parallel-environment). `qconf -spl` lists them; one with allocation_rule 1, or as many as "
            "batch_cores, spreads a job over nodes"
        )
    seconds = seconds_in(request.batch_time)
    parallel = ["-pe", request.parallel_environment, str(slots)] if request.parallel_environment else []
    return [
        *("qsub", "-terse", "-S", "/bin/sh", "-r", "n", "-j", "y", "-o", "/dev/null"),
        *given(
            ("-N", request.name),
            ("-l", f"h_rt={seconds}" if seconds else ""),
            ("-q", request.queue),
            ("-P", request.batch_account),
        ),
        *parallel,
        *shlex.split(request.batch_options),
    ]


def submit_lsf(request: BatchRequest) -> list[str]:
    """Return bsub of LSF.

    >>> submit_lsf(BatchRequest("lsf", batch_nodes=2, batch_cores=4, batch_time="1:30:00"))[6:]
    ['-W', '1:30', '-n', '8', '-R', 'span[ptile=4]']
    """
    cores = request.batch_cores or 1
    sized = request.batch_nodes or request.batch_cores
    minutes = -(-seconds_in(request.batch_time) // 60)
    return [
        *("bsub", "-rn", "-o", "/dev/null"),
        *given(
            ("-J", request.name),
            ("-W", f"{minutes // 60}:{minutes % 60:02}" if minutes else ""),
            ("-q", request.queue),
            ("-P", request.batch_account),
            ("-n", (request.batch_nodes or 1) * cores if sized else ""),
            ("-R", f"span[ptile={cores}]" if sized else ""),
        ),
        *shlex.split(request.batch_options),
    ]


def submit_htcondor(request: BatchRequest) -> list[str]:
    """Return condor_submit of HTCondor, whose job has one process for each node.

    >>> submit_htcondor(BatchRequest("htcondor", batch_nodes=2, batch_cores=4))[4:]
    ['-append', 'request_cpus = 4', '-queue', '2']
    """
    lines = [
        f"{name} = {value}"
        for name, value in (
            ("request_cpus", request.batch_cores),
            ("accounting_group", request.batch_account),
            ("allowed_job_duration", seconds_in(request.batch_time)),
        )
        if value
    ]
    return [
        *("condor_submit", "-terse", "-batch-name", request.name),
        *(word for line in lines for word in ("-append", line)),
        *shlex.split(request.batch_options),
        *("-queue", str(request.batch_nodes or 1)),
    ]


def reach_sge(job: str, node: str, program: Sequence[str], printed: str) -> list[str]:
    """Return a task of the job around this process; the user's shell there reads its command."""
    return ["qrsh", "-inherit", node, f"exec {shlex.join(program)}"]


def reach_lsf(job: str, node: str, program: Sequence[str], printed: str) -> list[str]:
    """Return a task of the job around this process; a shell there reads its command, as with rsh."""
    return ["blaunch", node, *map(shlex.quote, program)]


def reach_htcondor(job: str, node: str, program: Sequence[str], printed: str) -> list[str]:
    """Return an ssh into the process of the job on a machine, through HTCondor, which has keys of its own."""
    on = next(one for one in processes_of_htcondor(printed) if machine_of(one) == node)
    return ["condor_ssh_to_job", "-auto-retry", f"{job}.{on['ProcId']}", f"exec {shlex.join(program)}"]


SYSTEMS: Mapping[str, BatchSystem] = {
    "pbs": BatchSystem(
        title="PBS",
        template=SCRIPT.format(directive="#PBS", submit="qsub"),
        submit=submit_pbs,
        number=r"^(\d+\S*)$",
        query=(("qstat", "-f", "{job}"),),
        read=read_pbs,
        gone=r"Unknown Job|has finished|exit code 153",
        cancel="qdel",
        job_variable="PBS_JOBID",
        nodes_variable="PBS_NODEFILE",
    ),
    "sge": BatchSystem(
        title="SGE",
        template=SCRIPT.format(directive="#$", submit="qsub"),
        submit=submit_sge,
        number=r"^(\d+)",
        query=(("qstat", "-xml", "-g", "t"), ("qstat", "-j", "{job}")),
        read=read_sge,
        gone=r"do not exist",
        cancel="qdel",
        spread=(
            "Name a parallel environment whose allocation_rule is 1, or as many as --batch-cores (`qconf -sp "
            "NAME` shows it)"
        ),
        job_variable="JOB_ID",
        nodes_variable="PE_HOSTFILE",
        reach_inside=reach_sge,
        refused=(),
    ),
    "lsf": BatchSystem(
        title="LSF",
        template=SCRIPT.format(directive="#BSUB", submit="bsub"),
        submit=submit_lsf,
        script_option=False,
        number=r"Job <(\d+)>",
        query=(("bjobs", "-noheader", "-o", LSF_FORMAT, "{job}"),),
        read=read_lsf,
        gone=r"is not found",
        cancel="bkill",
        job_variable="LSB_JOBID",
        nodes_variable="LSB_MCPU_HOSTS",
        nodes=read_lsf_hosts,
        reach_inside=reach_lsf,
    ),
    "htcondor": BatchSystem(
        title="HTCondor",
        template=DESCRIPTION,
        submit=submit_htcondor,
        number=r"^(\d+)\.\d+",
        query=(("condor_q", "{job}", "-autoformat:t", *HTCONDOR_FIELDS),),
        read=read_htcondor,
        gone=r"(?!)",
        cancel="condor_rm",
        reach=reach_htcondor,
        refused=(
            ("parallel_environment", "parallel environments are SGE's; leave it out"),
            ("queue", "HTCondor has no queues; leave it out"),
        ),
    ),
}
