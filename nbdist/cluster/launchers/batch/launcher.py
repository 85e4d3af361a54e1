"""A job of a batch system, and a command for each of its nodes that runs a program there."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nbdist.cluster.hosts import why_ssh_ended
from nbdist.cluster.launchers.batch.request import allocation_of, check_request, find_system
from nbdist.cluster.launchers.batch.systems import BatchRequest
from nbdist.cluster.launchers.job import LAST_POLL, JobLauncher, call
from nbdist.cluster.launchers.slurm.status import Job
from nbdist.errors import NbdistError, UnavailableError

SSH_FAILED = 255  # ssh's exit code for an error of its own


class BatchLauncher(JobLauncher):
    """Submits a job, unless it runs in one, and reaches each node with a command of its own."""

    # The programs that ssh starts do not belong to the job: they end when it is seen to have ended.
    watch_seconds = LAST_POLL

    def __init__(self, request: BatchRequest, plan: bytes, program: Sequence[str]) -> None:
        self.system = find_system(request)
        check_request(request, self.system)
        job, self.nodes = allocation_of(os.environ, request, self.system)
        super().__init__(plan, job)
        self.request = request
        self.program = program
        self.printed = ""
        self._limited: tuple[float, float | None] | None = None
        """When the time of the job is over, on the monotonic clock, and how long it was."""

    def submit(self) -> str:
        """Submit the job; return its number."""
        template = self.request.batch_template
        text = Path(template).read_text() if template else self.system.template
        command = self.system.submit(self.request)
        # The script has no secrets: these systems copy it when they take the job.
        with tempfile.NamedTemporaryFile("w", prefix="nbdist-", suffix=".job") as script:
            script.write(text)
            script.flush()
            if self.system.script_option:
                # HTCondor's -queue is the last option, and takes all words that follow.
                at = command.index("-queue") if "-queue" in command else len(command)
                command[at:at] = [script.name]
                answer = call(*command)
            else:
                answer = call(*command, text=text)
        found = re.search(self.system.number, answer, re.MULTILINE)
        if not found:
            raise UnavailableError(f"{command[0]} printed {answer[:200]!r} instead of the number of a job")
        return found[1]

    def look(self) -> Job:
        """Return the job as it is now. Not all systems say that its time was over: the clock does."""
        job, now = self._ask(), time.monotonic()
        if job.state == "RUNNING" and job.left is not None:
            self._limited = now + job.left, job.limit
        elif job.state in ("COMPLETED", "FAILED") and self._limited and now >= self._limited[0]:
            return replace(job, state="TIMEOUT", limit=self._limited[1])
        return job

    def nodes_of(self, job: Job) -> tuple[str, ...]:
        """Return the nodes of the job; UnavailableError if several of those asked for are one machine."""
        wanted = self.request.batch_nodes
        if len(job.nodes) < wanted:
            raise UnavailableError(
                f"job {job.id} has {len(job.nodes)} of the {wanted} nodes asked for: "
                f"several of its places are on one machine ({', '.join(job.nodes)}). {self.system.spread}, "
                f"or start with --batch-nodes {len(job.nodes)}"
            )
        return job.nodes

    def _ask(self) -> Job:
        """Ask for the job. In an allocation its nodes are known, and it runs, whatever the answer."""
        try:
            words = [[word.format(job=self.job) for word in command] for command in self.system.query]
            self.printed = "\n".join(call(*command) for command in words)
            job = self.system.read(self.job, self.printed, time.time())
        except NbdistError as error:
            if self.allocation:
                return Job(self.job, "RUNNING", nodes=self.nodes)
            if not isinstance(error, UnavailableError) or not re.search(self.system.gone, str(error)):
                raise
            return Job(self.job, "COMPLETED")
        return replace(job, state="RUNNING", nodes=self.nodes) if self.allocation else job

    def cancel(self) -> None:
        """Cancel the job; in an allocation, the end of their input ends the programs."""
        if not self.allocation:
            call(self.system.cancel, self.job)

    def commands(self, nodes: Sequence[str]) -> list[list[str]]:
        """Return a command for each node; the program's last argument is the node's name."""
        found = []
        for node in nodes:
            program = [*self.program, node]
            if self.allocation and short_name(node) == short_name(socket.gethostname()):
                found.append(program)
            else:
                reach = self.system.reach_inside if self.allocation else self.system.reach
                found.append(reach(self.job, node, program, self.printed))
        return found

    def describe_exit(self, node: str, code: int, printed: Sequence[str]) -> str:
        """Return why a node's command has ended; an error of ssh is explained."""
        if code == SSH_FAILED:
            return why_ssh_ended(node, code, "\n".join(printed))
        return super().describe_exit(node, code, printed)


def short_name(host: str) -> str:
    """Return a host's name without its domain.

    >>> short_name("n1.lab.org")
    'n1'
    """
    return host.partition(".")[0]
