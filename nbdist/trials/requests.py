"""Wishes from processes that do not drive a sweep: a file in its folder, for the process that does.

who wishes                            the process that drives it
wish.json    token, wish ──────────►  looks four times a second, takes it away, and does it
             ◄────────── wished.json  token, error

So the log keeps its one writer, and no socket is open for what happens now and then. A wish that nobody takes
is withdrawn; one that a dead process has left is thrown away.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError
from nbdist.metrics.run_folder import write_whole_file

WISH, ANSWER = "wish.json", "wished.json"
MOST_BYTES = 4096
LOOK_SECONDS = 0.25
ANSWER_SECONDS = 10.0  # that the driving process has to take a wish and to answer
STALE_SECONDS = 60.0  # after which nobody waits for the answer any more


class Commanded(Protocol):
    """The sweep that commands act on: `nbdist.trials.sweep.Sweep`, and fakes in tests."""

    def pause(self) -> object:
        """Start no further trials."""

    def resume(self) -> object:
        """Start trials again."""

    def close(self) -> object:
        """End the sweep."""


KNOWN: Mapping[str, Callable[[Commanded], object]] = {
    "pause": lambda sweep: sweep.pause(),
    "resume": lambda sweep: sweep.resume(),
    "stop": lambda sweep: sweep.close(),
}


def wish_of(folder: Path, wish: str, seconds: float = ANSWER_SECONDS) -> None:
    """Have the process that drives the sweep in ``folder`` "pause", "resume" or "stop" it; wait until it has.

    Raises FailedPreconditionError with its reason if it refuses, or while another wish waits, and
    UnavailableError if it does not answer.
    """
    path, token = folder / WISH, secrets.token_hex(8)
    draft = folder / f".{WISH}.{token}"
    write_new(draft, {"token": token, "wish": wish})
    try:
        os.link(draft, path)  # all of it is there at once, and another's stays
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
                    "frozen? Restart its kernel: nb.attach takes the sweep over, and its trials go on"
                )
            time.sleep(0.02)
    finally:
        if read_small(path).get("token") == token:  # nobody has taken it
            path.unlink(missing_ok=True)
    if answer.get("error"):
        raise FailedPreconditionError(str(answer["error"]))


class Listening:
    """A thread that does what others wish of a sweep, for as long as somebody here holds the sweep."""

    def __init__(self, sweep: Commanded, folder: Path) -> None:
        self._sweep, self._folder = weakref.ref(sweep), folder
        self._ended = threading.Event()
        weakref.finalize(sweep, self._ended.set)
        name = f"nbdist wishes {folder.name}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def end(self) -> None:
        """Listen no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            with suppress(OSError):  # the folder is gone, or the disk is full: who wishes is told nothing
                self._look()

    def _look(self) -> None:
        taken = self._folder / f".{WISH}.taken.{os.getpid()}"
        try:
            (self._folder / WISH).rename(taken)  # so that nothing is done twice, and another can be wished
        except FileNotFoundError:
            return
        age = time.time() - os.lstat(taken).st_mtime
        found, sweep = read_small(taken), self._sweep()
        taken.unlink()
        if sweep is not None and age < STALE_SECONDS and "token" in found:
            error = done(sweep, found.get("wish"))
            answer = json.dumps({"token": found["token"], "error": error}).encode()
            write_whole_file(self._folder / ANSWER, answer, wait=False)


def done(sweep: Commanded, wish: object) -> str:
    """Do what was wished; return why it could not be done, "" if it was."""
    do = KNOWN.get(wish) if isinstance(wish, str) else None
    if do is None:
        return f"no sweep command {wish!r:.80}; choose from {', '.join(KNOWN)}"
    try:
        do(sweep)
    except Exception as error:  # who wishes is told, and the next one is heard as well
        return str(error) if isinstance(error, NbdistError) else f"{type(error).__name__}: {error}"
    return ""


def write_new(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small file that is not there yet, for this user alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(dict(content), file)


def read_small(path: Path) -> dict[str, Any]:
    """Return what a small file of ours says; nothing if there is none, or it is none of ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        found = json.loads(data) if len(data) <= MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
