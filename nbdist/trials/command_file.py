"""The command file: other processes of this user send commands to a sweep through two files in its folder.

`send_command` (in the Jupyter server) and `CommandFile` (in the process that drives the sweep):

    sender                                  process that drives the sweep
    command.json  token, command ────────►  polls every 0.25 s, renames the file (so that it is not executed
                                            again), executes the command
                  ◄──────────── answer.json token, error ("" after success)

So the log keeps its one writer, and no socket is open for a rare event. The commands are the rows of
`nbdist.sweep.commands.REMOTE`. A sender that gets no answer withdraws its file; a driver deletes a file that
is older than a minute, because its sender has died.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError
from nbdist.metrics.run_folder import write_whole_file
from nbdist.sweep.commands import REMOTE, command_named
from nbdist.wire.keys import write_private

COMMAND, ANSWER = "command.json", "answer.json"
MOST_BYTES = 4096
POLL_SECONDS = 0.25
ANSWER_SECONDS = 10.0  # the driving process has this long to execute a command and to answer
STALE_SECONDS = 60.0  # then no sender waits for the answer any more


def send_command(folder: Path, command: str, seconds: float = ANSWER_SECONDS) -> None:
    """Have the process that drives the sweep in ``folder`` execute a command of `REMOTE`; wait until it has.

    Raises FailedPreconditionError with its reason if it refuses, or while another command waits, and
    UnavailableError if it does not answer within ``seconds``.
    """
    path, token = folder / COMMAND, secrets.token_hex(8)
    draft = folder / f".{COMMAND}.{token}"
    write_private(draft, json.dumps({"token": token, "command": command}).encode())
    try:
        os.link(draft, path)  # the file appears whole, and another sender's file stays
    except FileExistsError:
        raise FailedPreconditionError(
            f"sweep {folder.name} has not yet handled an earlier command; try again in a moment"
        ) from None
    finally:
        draft.unlink()
    deadline = time.monotonic() + seconds
    try:
        while (answer := read_small(folder / ANSWER)).get("token") != token:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"the notebook that drives sweep {folder.name} has not answered for {seconds:g} s; is it "
                    "frozen? Restart its kernel: nb.attach takes the sweep over, and its trials continue"
                )
            time.sleep(0.02)
    finally:
        if read_small(path).get("token") == token:  # the driver has not taken it
            path.unlink(missing_ok=True)
    if answer.get("error"):
        raise FailedPreconditionError(str(answer["error"]))


class CommandTarget(Protocol):
    """The sweep that commands act on: `nbdist.trials.sweep.Sweep`, and fakes in tests."""

    def command(self, name: str, /, **arguments: object) -> object:
        """Execute a command."""


class CommandFile:
    """A thread that executes the commands in a sweep's command file.

    It ends with `close`, or when the last reference to the sweep is dropped.
    """

    def __init__(self, sweep: CommandTarget, folder: Path) -> None:
        self._sweep, self._folder = weakref.ref(sweep), folder
        self._closed = threading.Event()
        weakref.finalize(sweep, self._closed.set)
        threading.Thread(target=self._run, name=f"nbdist commands {folder.name}", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            with suppress(OSError):  # the folder is deleted or the disk is full: the sender's wait times out
                self._poll()

    def _poll(self) -> None:
        taken = self._folder / f".{COMMAND}.taken.{os.getpid()}"
        try:
            (self._folder / COMMAND).rename(taken)  # it is executed once, and the next one can be sent
        except FileNotFoundError:
            return
        age = time.time() - os.lstat(taken).st_mtime
        found, sweep = read_small(taken), self._sweep()
        taken.unlink()
        if sweep is not None and age < STALE_SECONDS and "token" in found:
            error = execute(sweep, found.get("command"))
            answer = json.dumps({"token": found["token"], "error": error}).encode()
            write_whole_file(self._folder / ANSWER, answer, wait=False)


def execute(sweep: CommandTarget, command: object) -> str:
    """Execute a command by its remote name; return the reason for its failure, "" after success."""
    try:
        sweep.command(command_named(command, REMOTE).name)
    except Exception as error:  # the sender reports it, and the thread serves the next command
        return str(error) if isinstance(error, NbdistError) else f"{type(error).__name__}: {error}"
    return ""


def read_small(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file; {} if it is missing, a link, too large or no object."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        found = json.loads(data) if len(data) <= MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
