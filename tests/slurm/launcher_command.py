"""The command of the launcher "slurm" as the supervisor runs it, with a small program on the nodes.

with running(slurm, "--nodes=2") as command:
    command.until("hosts")          # the first line of progress with this word
    command.end()                   # SIGTERM
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_nodes import SlurmNodes

from nbdist.cluster.launchers.slurm.request import SETTINGS, JobRequest
from nbdist.cluster.launchers.spec import command_of

HERE = Path(__file__).parent
COMMAND = command_of("slurm", SETTINGS, vars(JobRequest()))
HOST_PROGRAM = (sys.executable, str(HERE / "host_program.py"))
KEY = "a-key-that-no-other-user-may-read"
PLAN = {"cluster": "c1", "key": KEY}


class Command:
    """A command that runs; ``lines`` is its progress so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    def until(self, word: str, count: int = 1) -> list[dict[str, Any]]:
        """Return the next ``count`` lines of progress that have a word."""
        assert self.process.stdout is not None
        found: list[dict[str, Any]] = []
        while len(found) < count:
            line = self.process.stdout.readline()
            assert line, f"it has ended: {self.lines} {self.stderr()}"
            self.lines.append(json.loads(line))
            found += self.lines[-1:] if word in self.lines[-1] else []
        return found

    def one(self, word: str) -> dict[str, Any]:
        """Return the next line of progress that has a word."""
        return self.until(word)[0]

    def stderr(self) -> str:
        """Return what it has printed to its standard error, at its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def ended(self) -> tuple[int, str]:
        """Return its exit code and its standard error, when it has ended."""
        output, error = self.process.communicate()
        self.lines += [json.loads(line) for line in output.splitlines()]
        return self.process.returncode, error.decode().strip()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it by a signal."""
        self.process.send_signal(number)
        return self.ended()


@contextmanager
def running(
    slurm: SlurmNodes,
    *settings: str,
    command: Sequence[str] = COMMAND,
    program: Sequence[str] = HOST_PROGRAM,
    environment: dict[str, str] | None = None,
    **plan: Any,
) -> Iterator[Command]:
    """Run the command on the login host; end it if the block has not."""
    process = slurm.start(
        *command, *settings, "--", *program,
        env={**slurm.environment, **(environment or {})},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps({**PLAN, **plan}).encode() + b"\n")
    process.stdin.flush()
    started = Command(process)
    try:
        yield started
    finally:
        if process.poll() is None:
            started.end()
