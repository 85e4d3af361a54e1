"""Holds a job of Slurm, runs a step in it on each node, and ends both.

    launcher = SlurmLauncher(JobRequest(nodes=2), plan, HOST_PROGRAM)
    launcher.run()       # until the step has ended; an NbdistError says why it ended early

A job may lose its nodes and get others: after a preemption, or in a new job after the wall time. So
`SlurmLauncher.run` repeats: wait until the job runs, run the step, look at what became of the job.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from nbdist.cluster.launchers.slurm.request import (
    TEMPLATE,
    JobRequest,
    allocation_of,
    nodes_to_use,
    submit_command,
)
from nbdist.cluster.launchers.slurm.status import (
    JOB_FORMAT,
    Job,
    describe_end,
    describe_waiting,
    expand_nodes,
    job_fields,
    next_action,
    parse_job,
    time_left,
)
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NbdistError, UnavailableError

HOST_PROGRAM = (sys.executable, "-m", "nbdist.cluster.supervisor.host")
OVERLAP = (20, 11)  # the first version whose steps can share a node's cores with other steps
LONGEST_LINE = 1 << 20  # bytes
CALL_SECONDS = 60.0  # until a command of Slurm counts as hanging
FIRST_POLL, LAST_POLL = 0.25, 30.0  # seconds between two looks at the queue
SETTLE_SECONDS = 10.0  # until a job that is ending is described by what is known of it
BUSY_SECONDS = 10  # that a step which cannot share cores waits for another one to end
END_SECONDS = 10.0  # that the processes of a step have, after SIGTERM
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
NOT_REQUEUED = ". With requeue= another job would have followed"

# Variables by which a user chooses the Slurm to talk to. All others that begin with SLURM describe the job
# around this process, or change what the options of a command mean.
KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER", "SLURM_JWT")
JOB_VARIABLES = ("SLURM", "SRUN_", "SQUEUE_", "SALLOC_", "SCANCEL_", "SBATCH_ARRAY_INX", "SBATCH_WAIT")


class SlurmLauncher:
    """Holds a job, runs the step in it, and ends both."""

    def __init__(self, request: JobRequest, plan: bytes, program: Sequence[str]) -> None:
        self.request = request
        self.plan = plan
        self.program = program
        self.allocation = allocation_of(os.environ, request)
        self.job = self.allocation
        self.step: subprocess.Popen[bytes] | None = None
        self.step_name = f"{request.name}-{secrets.token_hex(4)}"
        self._reported: dict[str, Any] = {}

    def run(self) -> None:
        """Return when the step has ended by itself; an NbdistError says why it could not go on."""
        version = parse_version(call("srun", "--version"))
        try:
            if not self.job:
                self._submit()
            while True:
                job = self._wait()
                if job.state == "RUNNING":
                    nodes = nodes_to_use(job, self.request) if self.allocation else job.nodes
                    cores = job.cores if len(nodes) == len(job.nodes) else None
                    self.report(job=job.id, hosts=nodes, cores=cores, seconds_left=job.left)
                    output = StepOutput(job.id, nodes)
                    code = self._run_step(version, output)
                    job = self._settle()
                    if job.state == "RUNNING":
                        if code:
                            raise UnavailableError(f"the step of job {job.id} failed. {output.cause(code)}")
                        return
                match next_action(job, self.request.requeue):
                    case "submit":
                        self.report(job=job.id, waiting=f"{describe_end(job)}; another one is submitted")
                        with suppress(UnavailableError):  # it is over already, unless Slurm repeats it itself
                            call("scancel", job.id)
                        self._submit()
                    case "wait" if self.request.requeue or job.state != "COMPLETING":
                        pass
                    case _:
                        could = next_action(job, requeue=True) == "submit" and not self.allocation
                        raise UnavailableError(describe_end(job) + (NOT_REQUEUED if could else ""))
        finally:
            self.end()

    def report(self, **progress: Any) -> None:
        """Print a line of progress, unless it is the same as the last one."""
        if progress != self._reported:
            self._reported = progress
            print(json.dumps(progress), flush=True)

    def end(self) -> None:
        """End the step, and the job unless it is an allocation of the user's."""
        try:
            if self.job and not self.allocation:
                call("scancel", self.job)
            elif self.step is not None and self.step.poll() is None:
                self._signal_step()
        except NbdistError as error:
            print(f"job {self.job} may still run ({error}): see squeue, and scancel", file=sys.stderr)
        finally:
            if self.step is not None:
                end_process(self.step)

    def _submit(self) -> None:
        if template := self.request.template:
            if not Path(template).is_file():
                raise InvalidArgumentError(
                    f"template {template!r} is not a file; --print-template prints one"
                )
            script, text = template, ""
        else:
            script, text = "-", TEMPLATE
        with signals_held():
            answer = call(*submit_command(self.request, script), text=text)
            self.job = answer.strip().partition(";")[0]
        if not self.job.isdigit():
            raise UnavailableError(f"sbatch printed {answer[:200]!r} instead of the number of a job")

    def _look(self) -> Job | None:
        """Return the job as it is now, None while Slurm does not answer."""
        try:
            line = call(
                "squeue", "--noheader", "--states=all", f"--jobs={self.job}", f"--format={JOB_FORMAT}"
            )
        except UnavailableError as error:
            if "Invalid job id" in str(error):
                return Job(self.job, "UNKNOWN")
            self.report(job=self.job, waiting=f"Slurm does not answer ({error}); it is asked again")
            return None
        return parse_job(self.job, line) if line.strip() else Job(self.job, "UNKNOWN")

    def _wait(self) -> Job:
        """Return the job when it does not wait any more."""
        begun = time.monotonic()
        while True:
            job = self._look()
            if job is not None:
                if next_action(job, self.request.requeue) != "wait":
                    return job
                self.report(job=job.id, waiting=describe_waiting(job))
            # A third of the time it has waited: soon after the submission a look costs little.
            time.sleep(min(max(FIRST_POLL, (time.monotonic() - begun) / 3), LAST_POLL))

    def _settle(self) -> Job:
        """Return the job after its step has failed: a job that ends does not say at once how."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (job := self._look()) is None or job.state == "COMPLETING":
            if time.monotonic() > deadline:
                return job or Job(self.job, "UNKNOWN")
            time.sleep(FIRST_POLL)
        return job

    def _run_step(self, version: tuple[int, int], output: StepOutput) -> int:
        """Run the step to its end; report its progress; return srun's exit code."""
        command = step_command(self.job, self.step_name, len(output.nodes), version, self.program)
        with signals_held():
            self.step = step = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=slurm_environment(os.environ),
                start_new_session=True,
                preexec_fn=become_step,
            )
        assert step.stdin is not None
        with suppress(BrokenPipeError):  # srun has ended; its complaint follows
            step.stdin.write(self.plan)
            step.stdin.flush()
        for stream, line in lines_of(step):
            read = output.read_stdout if stream is step.stdout else output.read_stderr
            if progress := read(line):
                self.report(**progress)
        return step.wait()

    def _signal_step(self) -> None:
        steps = call("squeue", "--noheader", "--steps", f"--jobs={self.job}", "--format=%i|%j")
        for line in steps.splitlines():
            number, _, name = line.strip().partition("|")
            if name == self.step_name:
                call("scancel", "--signal=TERM", number)


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


LABEL = re.compile(r"\s*(\d+): (.*)", re.DOTALL)
LOST = re.compile(r"srun: error: Node failure on (\S+)")
EXITS = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (.*)")
BUSY = re.compile(r"srun: (?:Job \S+ )?step creation (?:temporarily|still) disabled, retrying \((.*)\)", re.I)
NOT_FOUND = re.compile(r"error: execve\(\): (.*): No such file or directory")


@dataclass
class StepOutput:
    """What srun and the programs on the nodes have printed, line by line."""

    job: str
    nodes: tuple[str, ...]
    printed: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    exits: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

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
            new = [node for node in expand_nodes(found[1]) if node not in self.lost]
            self.lost += new
            return {"job": self.job, "lost": new} if new else None
        if found := BUSY.match(line):
            return {"job": self.job, "waiting": f"job {self.job} has no room for a step: {found[1]}"}
        if found := EXITS.match(line):
            self.exits.append(f"{found[1]}: {found[2]}")
        elif line.startswith("srun: error: "):
            self.errors.append(line.removeprefix("srun: error: ").strip())
        elif not line.startswith("srun: "):
            self._keep(*self._split(line))
        return None

    def cause(self, code: int) -> str:
        """Return why the step has failed.

        >>> output = StepOutput("12", ("n1", "n2"))
        >>> output.read_stderr("1: No module named nbdist")
        >>> output.read_stderr("srun: error: n2: task 1: Exited with exit code 1")
        >>> output.cause(1)
        'n2: Exited with exit code 1; its last line: No module named nbdist'
        """
        for line in self.printed:
            if found := NOT_FOUND.search(line):
                return (
                    f"{line.partition(':')[0]}: there is no {found[1]}; the nodes need the notebook's Python"
                )
        if any("nodes are busy" in line for line in self.errors):
            return (
                f"another step holds its cores, and steps share cores since Slurm {OVERLAP[0]}.{OVERLAP[1]} "
                "only: start Jupyter in the job's script without srun"
            )
        if self.lost:
            return f"Slurm lost {', '.join(self.lost)}"
        if self.exits:
            node = expand_nodes(self.exits[0].partition(": ")[0])[0]
            last = [line.removeprefix(f"{node}: ") for line in self.printed if line.startswith(f"{node}: ")]
            return self.exits[0] + (f"; its last line: {last[-1]}" if last else "")
        return (self.errors or self.printed or [f"srun ended with exit code {code}"])[-1]

    def _split(self, line: str) -> tuple[str, str]:
        found = LABEL.match(line)
        known = found is not None and int(found[1]) < len(self.nodes)
        return (self.nodes[int(found[1])], found[2]) if found and known else ("", line)

    def _keep(self, node: str, text: str) -> None:
        if text.strip() and "CANCELLED AT" not in text:
            self.printed.append(f"{node}: {text.strip()}" if node else text.strip())


def call(*command: str, text: str = "", seconds: float = CALL_SECONDS) -> str:
    """Return what a command of Slurm prints; UnavailableError has its last complaint."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=slurm_environment(os.environ),
        )
    except FileNotFoundError:
        raise FailedPreconditionError(
            f"there is no {command[0]} on the PATH: Slurm's commands are on its login hosts and its nodes, "
            "perhaps after `module load slurm`"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} has not answered within {seconds:.0f} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if ": error: " in line]
        said = (errors[-1:] or lines[:1] or [f"exit code {done.returncode}"])[0]
        raise UnavailableError(said.replace(": error: ", ": "))
    return done.stdout


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
    return time_left(job_fields(call("scontrol", "show", "job", job))) if job else None


class Ended(BaseException):
    """A signal asks this command to end."""


def end_at_signals() -> None:
    """Let the first of the signals that end this command raise `Ended`; the others are ignored."""

    def handle(number: int, frame: object) -> None:
        for one in END_SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise Ended

    for number in END_SIGNALS:
        signal.signal(number, handle)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the signals that end this command, until the job or the process that starts is known."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def become_step() -> None:
    """Run in the process that becomes srun: it ends when this command is killed (Linux, as Slurm is)."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[tuple[IO[bytes], str]]:
    """Yield the lines of a process's output and error, until both have ended."""
    pending: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, stream)
            pending[stream.fileno()] = b""
        while selector.get_map():
            for key, _ in selector.select():
                chunk = os.read(key.fd, 1 << 16)
                *lines, rest = (pending[key.fd] + chunk).split(b"\n")
                if not chunk:
                    selector.unregister(key.fileobj)
                if not chunk or len(rest) > LONGEST_LINE:
                    lines, rest = [*lines, rest], b""
                pending[key.fd] = rest
                for line in lines:
                    if line:
                        yield key.data, line.decode(errors="replace")


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that has been asked to end; end it if it does not."""
    for end in (None, process.terminate, process.kill):
        if end is not None:
            end()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_SECONDS)
            return
