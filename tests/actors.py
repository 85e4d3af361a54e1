"""A process of a test that executes orders: lines of JSON, each with an answer (`tests/hosts/actor.py`)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import Any

ANSWER_SECONDS = 80.0  # until a process counts as hanging


class Actor:
    """A process that executes orders, one a line; its stderr goes to a file."""

    def __init__(self, command: list[str], name: str) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by kill)
        self._received = b""
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr
        )

    def ask(self, **order: Any) -> None:
        """Send an order."""
        self.tell(order)

    def tell(self, value: Any) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = ANSWER_SECONDS) -> Any:
        """Return the next answer; fail after ``seconds``."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received:
            late = self.silent(max(0.0, deadline - time.monotonic()))
            assert not late, f"{self.name} did not answer within {seconds:.0f} s\n{self.stderr()}"
            chunk = os.read(self._answers, 1 << 16)
            assert chunk, f"{self.name} has ended\n{self.stderr()}"
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def silent(self, seconds: float) -> bool:
        """Return whether no answer arrives within ``seconds``."""
        return not self._received and not select.select([self._answers], [], [], seconds)[0]

    @property
    def _answers(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def do(self, **order: Any) -> Any:
        """Send an order and return the answer."""
        self.ask(**order)
        return self.answer()

    def stderr(self) -> str:
        """Return its stderr, with the stacks of its threads if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(12)  # SIGUSR2: actor.py dumps all stacks
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
        self._stderr.seek(0)
        return self._stderr.read()

    def end(self, seconds: float) -> None:
        """Close its input, after which it ends; fail after ``seconds``."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        self.process.wait(seconds)

    def kill(self) -> None:
        """End it with SIGKILL; safe to repeat."""
        if not self._stderr.closed:
            self.process.kill()
            self.process.communicate()
            self._stderr.close()
