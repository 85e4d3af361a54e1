"""A job of a batch system that holds nodes, and a program that runs on each of them.

    class Launcher(JobLauncher): ...         # how to submit, to look, to cancel, and to reach the nodes
    Launcher(...).run()                      # until the programs have ended; an NbdistError says why not

A job waits in the queue, runs, and ends before its programs do where it is cancelled, preempted, or has no
time left: what became of it is the reason then.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nbdist.cluster.launchers.command import END_SIGNALS, LONGEST_LINE, JobIsOverError, signals_held
from nbdist.cluster.launchers.slurm.status import (
    REPEATED,
    Job,
    describe_end,
    describe_waiting,
    expand_nodes,
    next_action,
)
from nbdist.cluster.parent import end_with_parent
from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError

HOST_PROGRAM = (sys.executable, "-m", "nbdist.cluster.supervisor.host")
CALL_SECONDS = 60.0  # until a command of the batch system counts as hanging
FIRST_POLL, LAST_POLL = 0.25, 30.0  # seconds between two looks at the queue
QUIET_SECONDS = 0.5  # without a line, until the last line of a program that has ended is taken for its last
SETTLE_SECONDS = 60.0  # until a job that is ending is described by what is known of it
END_SECONDS = 10.0  # that the programs have, after SIGTERM
# For them to end with a cancelled job: they would wait for a node that does not answer.
CANCELLED_SECONDS = 0.5
LINES = 50  # of all programs together, that are kept to name a cause


class JobLauncher(ABC):
    """Holds a job, runs a program on each of its nodes, and ends both.

    - ``plan``: the line that each program reads from its standard input
    - ``allocation``: the number of the job around this process, which is used instead of a new one
    """

    environment: Mapping[str, str] = os.environ
    """The variables of the commands that it runs."""
    watch_seconds: float | None = None
    """How often to look at the job while programs run that do not end with it, as those of ssh."""

    def __init__(self, plan: bytes, allocation: str = "") -> None:
        self.plan = plan
        self.allocation = allocation
        self.job = allocation
        self.processes: list[subprocess.Popen[bytes]] = []
        self._reported: dict[str, Any] = {}

    @abstractmethod
    def submit(self) -> str:
        """Submit a job; return its number."""

    @abstractmethod
    def look(self) -> Job:
        """Return the job as it is now; UnavailableError if the batch system does not answer."""

    @abstractmethod
    def cancel(self) -> None:
        """Ask for the end of the job; in an allocation, of the programs only."""

    @abstractmethod
    def commands(self, nodes: Sequence[str]) -> list[list[str]]:
        """Return the commands that run the programs: one for all nodes, or one for each."""

    def describe_exit(self, node: str, code: int, printed: Sequence[str]) -> str:
        """Return why the command of one node has ended; ``printed`` is what it has printed last."""
        return f"exit code {code}"

    def nodes_of(self, job: Job) -> tuple[str, ...]:
        """Return the nodes to use."""
        return job.nodes

    def run(self) -> None:
        """Return when the programs have ended by themselves; an NbdistError says why they cannot go on."""
        try:
            if not self.job:
                self._submit()
            job = self._wait()
            if job.state == "RUNNING":
                nodes = self.nodes_of(job)
                cores = job.cores if len(nodes) == len(job.nodes) else None
                self.report(job=job.id, hosts=nodes, cores=cores, seconds_left=job.left)
                output = StepOutput(job.id, nodes)
                code = self._run_step(output)
                job = self._settle()
                if job.state == "RUNNING":
                    if code:
                        raise UnavailableError(f"the step of job {job.id} failed. {output.cause(code)}")
                    return
            error = JobIsOverError if job.state in REPEATED else UnavailableError
            raise error(describe_end(job))
        finally:
            self.end()

    def report(self, **progress: Any) -> None:
        """Print a line of progress, unless it is the same as the last one."""
        if progress != self._reported:
            self._reported = progress
            print(json.dumps(progress), flush=True)

    def end(self) -> None:
        """End the programs, and the job unless it is an allocation of the user's."""
        patience = END_SECONDS
        try:
            living = any(process.poll() is None for process in self.processes)
            if self.job and (living or not self.allocation):
                self.cancel()
                patience = END_SECONDS if self.allocation else CANCELLED_SECONDS
        except NbdistError as error:
            job = self._look()
            if job is None or next_action(job) != "end":
                self.report(left=f"job {self.job} may still run ({error}): look for it, and cancel it")
        finally:
            end_processes(self.processes, patience)

    def _submit(self) -> None:
        with signals_held():
            self.job = self.submit()

    def _pause(self, output: StepOutput) -> float | None:
        """Return the seconds after which there is something to do, if no line comes."""
        return QUIET_SECONDS if output.exits else self.watch_seconds

    def _look(self) -> Job | None:
        try:
            return self.look()
        except UnavailableError as error:
            self.report(job=self.job, waiting=f"the queue does not answer ({error}); it is asked again")
            return None

    def _wait(self) -> Job:
        """Return the job when it does not wait any more."""
        begun = time.monotonic()
        while True:
            job = self._look()
            if job is not None:
                if next_action(job) != "wait":
                    return job
                self.report(job=job.id, waiting=describe_waiting(job))
            # A third of the time it has waited: soon after the submission a look costs little.
            time.sleep(min(max(FIRST_POLL, (time.monotonic() - begun) / 3), LAST_POLL))

    def _settle(self) -> Job:
        """Return the job when its programs have ended: one that ends does not say at once how."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (job := self._look()) is None or job.is_ending:
            if time.monotonic() > deadline:
                return job or Job(self.job, "UNKNOWN")
            time.sleep(FIRST_POLL)
        return job

    def _run_step(self, output: StepOutput) -> int:
        """Run the programs to their end; report their progress; return the last exit code."""
        commands = self.commands(output.nodes)
        self.processes = []
        for command in commands:
            with signals_held():
                self.processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        env=self.environment,
                        start_new_session=True,
                        preexec_fn=become_step,
                    )
                )
        for process in self.processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended; its complaint follows
                process.stdin.write(self.plan)
                process.stdin.flush()
        each = self.watch_seconds is not None  # each node has a command of its own
        looked = time.monotonic()
        for number, error, line in lines_of(self.processes, lambda: self._pause(output)):
            if line is None:
                for progress in output.read_exits():
                    self.report(**progress)
            elif not line and each and (code := self.processes[number].wait()):
                node = output.nodes[number]
                output.exits[node] = self.describe_exit(node, code, output.printed_by(node))
            elif line:
                text = f"{number}: {line}" if each else line
                if found := (output.read_stderr if error else output.read_stdout)(text):
                    self.report(**found)
            if self.watch_seconds is not None and time.monotonic() - looked >= self.watch_seconds:
                job, looked = self._look(), time.monotonic()
                if job is not None and next_action(job) == "end":
                    end_processes(self.processes)
                    break
        return max(abs(process.wait()) for process in self.processes)


LABEL = re.compile(r"\s*(\d+): (.*)", re.DOTALL)
LOST = re.compile(r"srun: error: Node failure on (\S+)")
EXITS = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (.*)")
BUSY = re.compile(r"srun: (?:Job \S+ )?step creation (?:temporarily|still) disabled, retrying \((.*)\)", re.I)
NOT_FOUND = re.compile(
    r"(?:execve\(\)|line \d+|sh: \d+): (?:exec: )?(.*): (?:No such file or directory|not found)"
)


@dataclass
class StepOutput:
    """What srun and the programs on the nodes have printed, line by line."""

    job: str
    nodes: tuple[str, ...]
    printed: deque[str] = field(default_factory=lambda: deque(maxlen=LINES))
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=LINES))
    exits: dict[str, str] = field(default_factory=dict)
    """How programs have ended whose last lines may still come, by node."""
    lost: dict[str, str] = field(default_factory=dict)
    """Why a node has no program any more, by node."""

    def read_stdout(self, line: str) -> dict[str, Any] | None:
        """Return the progress that a program on a node has reported; other lines are kept."""
        node, text = self._split(line)
        with suppress(ValueError):
            if isinstance(value := json.loads(text), dict):
                return {**value, "job": self.job, "host": node}
        self._keep(node, text)
        return None

    def read_stderr(self, line: str) -> dict[str, Any] | None:
        """Return what a line of srun tells of the step's progress; other lines are kept."""
        if found := LOST.match(line):
            return self._lose(expand_nodes(found[1]), "Slurm says that the node has failed")
        if found := EXITS.match(line):
            self.exits |= dict.fromkeys(expand_nodes(found[1]), found[2])
            return None
        if found := BUSY.match(line):
            return {"job": self.job, "waiting": f"job {self.job} has no room for a step: {found[1]}"}
        if line.startswith("srun: error: "):
            self.errors.append(line.removeprefix("srun: error: ").strip())
        elif not line.startswith("srun: "):
            self._keep(*self._split(line))
        return None

    def cause(self, code: int) -> str:
        """Return why the step has failed.

        >>> output = StepOutput("12", ("n1", "n2"))
        >>> output.read_stderr("srun: error: n2: task 1: Exited with exit code 1")
        >>> output.read_stderr("1: No module named nbdist")
        >>> output.cause(1)
        'n2: Exited with exit code 1; its last line: No module named nbdist'
        """
        if any("nodes are busy" in line for line in self.errors):
            return (
                "another step holds its cores, and steps share cores since Slurm 20.11 only: start Jupyter "
                "in the job's script without srun"
            )
        list(self.read_exits())
        for node, reason in self.lost.items():
            return f"{node}: {reason}"
        return (self.errors or self.printed or [f"srun ended with exit code {code}"])[-1]

    def read_exits(self) -> Iterator[dict[str, Any]]:
        """Yield the progress that exits are, now that their programs' last lines have come."""
        exits, self.exits = self.exits, {}
        for node, reason in exits.items():
            if progress := self._lose([node], reason):
                yield progress

    def _lose(self, nodes: Sequence[str], reason: str) -> dict[str, Any] | None:
        """Note that nodes have no program any more; return the progress to report."""
        new = [node for node in nodes if node not in self.lost]
        for node in new:
            own = self.printed_by(node)
            mark = f"host {node}: "  # before the sentence of a supervisor that cannot go on
            absent = NOT_FOUND.search(own[-1]) if own else None
            last = f"; its last line: {own[-1]}" if own else ""
            if own and own[-1].startswith(mark):
                self.lost[node] = own[-1].removeprefix(mark)
            elif absent:
                self.lost[node] = f"there is no {absent[1]}; the nodes need the notebook's Python"
            else:
                self.lost[node] = reason + last
        reasons = [f"host {node}: {self.lost[node]}" for node in new]
        return {"job": self.job, "lost": new, "reasons": reasons} if new else None

    def printed_by(self, node: str) -> list[str]:
        """Return the last lines that a node has printed."""
        return [line.removeprefix(f"{node}: ") for line in self.printed if line.startswith(f"{node}: ")]

    def _split(self, line: str) -> tuple[str, str]:
        found = LABEL.match(line)
        known = found is not None and int(found[1]) < len(self.nodes)
        return (self.nodes[int(found[1])], found[2]) if found and known else ("", line)

    def _keep(self, node: str, text: str) -> None:
        if text.strip() and "CANCELLED AT" not in text:
            self.printed.append(f"{node}: {text.strip()}" if node else text.strip())


def call(*command: str, environment: Mapping[str, str] = os.environ, text: str = "") -> str:
    """Return what a command of a batch system prints; UnavailableError has its complaint."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CALL_SECONDS,
            env=environment,
        )
    except FileNotFoundError:
        raise FailedPreconditionError(
            f"there is no {command[0]} on the PATH: the commands of a batch system are on its login hosts, "
            "perhaps after `module load`"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} has not answered within {CALL_SECONDS:.0f} s") from None
    if done.returncode:
        printed = done.stderr.strip() or done.stdout  # some wrappers complain there
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        errors = [line for line in lines if ": error: " in line]
        said = (errors[-1:] or lines[:1] or [f"exit code {done.returncode}"])[0].replace(": error: ", ": ")
        raise refusal(command[0], said, printed)
    return done.stdout


# What the commands of Slurm, PBS, SGE and LSF say on a host that only has their programs.
NO_CONFIGURATION = re.compile(
    r"fetch_config|configuration source|(?:slurm|lsf|pbs)\.conf|pbs ?conf|environment variable SGE_ROOT"
)


def refusal(command: str, said: str, printed: str) -> NbdistError:
    """Return the error of a command of a batch system that has failed.

    ``said`` is the line that names the cause, and ``printed`` is all that it has printed.

    >>> refusal("sbatch", "sbatch: Invalid account", "sbatch: error: Invalid account")
    UnavailableError('sbatch: Invalid account')
    >>> why = "perl: fetch_config: DNS SRV lookup failed"
    >>> str(refusal("qsub", why, why))[:73]
    "qsub finds no configuration of its batch system on this host ('perl: fetc"
    """
    if NO_CONFIGURATION.search(printed):
        return FailedPreconditionError(
            f"{command} finds no configuration of its batch system on this host ({said!r}): start from a "
            "login host of the cluster, or set what names its configuration (SLURM_CONF, PBS_CONF_FILE, "
            "SGE_ROOT or LSF_ENVDIR)"
        )
    return UnavailableError(said if said.startswith(f"{command}: ") else f"{command}: {said}")


def become_step() -> None:
    """Run in the process that becomes srun or ssh: it ends when this command is killed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    end_with_parent()


def lines_of(
    processes: Sequence[subprocess.Popen[bytes]], quiet: Callable[[], float | None]
) -> Iterator[tuple[int, bool, str | None]]:
    """Yield the lines of all processes: the number of the process, whether it is of stderr, and the text.

    The text is empty at the end of a process's lines, and None after ``quiet()`` seconds without a line.
    """
    pending: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for number, process in enumerate(processes):
            for error, stream in enumerate((process.stdout, process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, (number, bool(error)))
                pending[stream.fileno()] = b""
        while selector.get_map():
            if not (ready := selector.select(quiet())):
                yield 0, False, None
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                *lines, rest = (pending[key.fd] + chunk).split(b"\n")
                if not chunk:
                    selector.unregister(key.fileobj)
                if not chunk or len(rest) > LONGEST_LINE:
                    lines, rest = [*lines, rest], b""
                pending[key.fd] = rest
                for line in filter(None, lines):
                    yield *key.data, line.decode(errors="replace")
                number = key.data[0]
                if not any(one.data[0] == number for one in selector.get_map().values()):
                    yield number, True, ""


def end_processes(processes: Sequence[subprocess.Popen[bytes]], patience: float = END_SECONDS) -> None:
    """Wait ``patience`` seconds for processes that have been asked to end; end those that do not."""
    for process in processes:
        for end in (None, process.terminate, process.kill):
            if end is not None:
                end()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=patience)
                break
