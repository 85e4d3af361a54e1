"""A job of Slurm, and a step of srun on each of its nodes."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nbdist.cluster.launchers.job import JobLauncher, call
from nbdist.cluster.launchers.slurm.request import (
    TEMPLATE,
    JobRequest,
    allocation_of,
    check_nodes_for,
    nodes_to_use,
    partitions_command,
    submit_command,
)
from nbdist.cluster.launchers.slurm.status import JOB_FORMAT, Job, job_fields, parse_job, time_left
from nbdist.errors import InvalidArgumentError, UnavailableError

OVERLAP = (20, 11)  # the first version whose steps can share a node's cores with other steps
BUSY_SECONDS = 10  # that a step which cannot share cores waits for another one to end

# Variables by which a user chooses the Slurm to talk to. All others that begin with SLURM describe the job
# around this process, or change what the options of a command mean.
KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER", "SLURM_JWT")
JOB_VARIABLES = ("SLURM", "SRUN_", "SQUEUE_", "SALLOC_", "SCANCEL_", "SBATCH_ARRAY_INX", "SBATCH_WAIT")


class SlurmLauncher(JobLauncher):
    """Submits with sbatch, unless it runs in an allocation, and reaches the nodes with srun."""

    def __init__(self, request: JobRequest, plan: bytes, program: Sequence[str]) -> None:
        super().__init__(plan, allocation_of(os.environ, request))
        self.environment = slurm_environment(os.environ)
        self.request = request
        self.program = program
        self.step = f"{request.name}-{secrets.token_hex(4)}"
        self.version = parse_version(self._call("srun", "--version"))

    def submit(self) -> str:
        """Run sbatch."""
        script = self.request.template
        if script and not Path(script).is_file():
            raise InvalidArgumentError(f"template {script!r} is not a file; --print-template prints one")
        if self.request.cores:
            with suppress(UnavailableError):  # sbatch says the same, or is content
                check_nodes_for(self.request, self._call(*partitions_command(self.request)), self.environment)
        command = submit_command(self.request, script or "-")
        answer = self._call(*command, text="" if script else TEMPLATE)
        number = answer.strip().partition(";")[0]
        if not number.isdigit():
            raise UnavailableError(f"sbatch printed {answer[:200]!r} instead of the number of a job")
        return number

    def look(self) -> Job:
        """Run squeue."""
        try:
            line = self._call(
                "squeue", "--noheader", "--states=all", f"--jobs={self.job}", f"--format={JOB_FORMAT}"
            )
        except UnavailableError as error:
            if "Invalid job id" not in str(error):
                raise
            line = ""
        return parse_job(self.job, line) if line.strip() else Job(self.job, "UNKNOWN")

    def cancel(self) -> None:
        """Run scancel. In an allocation the step is sent SIGTERM: its cancellation would be a SIGKILL."""
        if not self.allocation:
            self._call("scancel", self.job)
            return
        steps = self._call("squeue", "--noheader", "--steps", f"--jobs={self.job}", "--format=%i|%j")
        for line in steps.splitlines():
            number, _, name = line.strip().partition("|")
            if name == self.step:
                self._call("scancel", "--signal=TERM", number)

    def commands(self, nodes: Sequence[str]) -> list[list[str]]:
        """Return one command for all nodes: a step of srun."""
        return [step_command(self.job, self.step, len(nodes), self.version, self.program)]

    def nodes_of(self, job: Job) -> tuple[str, ...]:
        """Return the job's nodes, in an allocation as many as were asked for."""
        return nodes_to_use(job, self.request) if self.allocation else job.nodes

    def _call(self, *command: str, text: str = "") -> str:
        return call(*command, environment=self.environment, text=text)


def step_command(
    job: str, name: str, nodes: int, version: tuple[int, int], program: Sequence[str]
) -> list[str]:
    """Return the command that runs a program once on each node, with all that the job has there.

    It goes on when a node or a program fails, and labels each line with the number of its node.
    """
    return [
        "srun",
        f"--jobid={job}",
        f"--job-name={name}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--overlap" if version >= OVERLAP else f"--immediate={BUSY_SECONDS}",
        "--input=all",
        "--label",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--export=ALL",
        *program,
    ]


def parse_version(text: str) -> tuple[int, int]:
    """Return the version of Slurm that ``srun --version`` prints, (0, 0) if it prints none.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("slurm 20.11.9-1")
    ((22, 5), (20, 11))
    """
    found = re.search(r"\b(\d{1,4})\.(\d{1,4})\b", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def slurm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command of Slurm: without those of the job around this process.

    >>> slurm_environment({"SLURM_CONF": "/c", "SLURM_MEM_PER_CPU": "1", "SBATCH_ACCOUNT": "a"})
    {'SLURM_CONF': '/c', 'SBATCH_ACCOUNT': 'a'}
    """
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT_VARIABLES or not name.startswith(JOB_VARIABLES)
    }


def wall_time_left(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the seconds until Slurm ends the job of this process (task or supervisor, or client in a job).

    None outside of a job, and in one without a limit. It asks Slurm, because a limit can be changed while the
    job runs: once a minute is enough. Raises UnavailableError if Slurm does not answer.
    """
    job = environ.get("SLURM_JOB_ID", "")
    return (
        time_left(job_fields(call("scontrol", "show", "job", job, environment=slurm_environment(os.environ))))
        if job
        else None
    )
