"""What a body has raised: a failure of its own, or perhaps only what came of another task's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nbdist.errors import NbdistError, WorkerError
from nbdist.runtime.task import TaskInfo

DEATH_SECONDS = 1.0  # how long what cut a task off may come after the word that it was cut off
CONSEQUENCES = ("UnavailableError", "AbortedError", "TaskDiedError")


Hint = Callable[[str], str]
"""The remedy for a name that a body lacks; empty if there is none."""


def body_error(info: TaskInfo, wrong: Mapping[str, Any], hint: Hint | None = None) -> WorkerError:
    """Return the error of a body with its traceback on the task, and the remedy for a name that it lacks."""
    traceback = with_hint(whole_letters(wrong["traceback"]).rstrip(), wrong, hint)
    error = WorkerError(f"{traceback}\n\nraised on {info.name} (pid {info.pid})")
    error.task, error.ename, error.evalue = info.name, wrong["type"], whole_letters(wrong["message"])
    return error


def with_hint(text: str, wrong: Mapping[str, Any], hint: Hint | None) -> str:
    """Return the text of an error, and below it the remedy for a name that is not defined."""
    more = hint(str(wrong["undefined"])) if hint is not None and wrong.get("undefined") else ""
    return f"{text}\n{more}" if more else text


def error_again(told: str) -> NbdistError:
    """Return the error of a run that failed, from what its run.json says of it.

    >>> told = "Traceback (most recent call last):\\n  File ...\\nValueError: late\\n\\n"
    >>> error = error_again(told + "raised on /job:worker/task:0 (pid 7)")
    >>> error.task, error.ename, error.evalue
    ('/job:worker/task:0', 'ValueError', 'late')
    """
    traceback, raised, where = told.rpartition("\n\nraised on ")
    if not raised:
        return NbdistError(told)
    lines = traceback.splitlines()
    # What was raised follows the last line of the code, which is set in; its message may have more lines.
    first = 1 + max((number for number, line in enumerate(lines) if line.startswith("  ")), default=-1)
    name, _, message = "\n".join(lines[first:]).partition(": ")
    error = WorkerError(told)
    error.task, error.ename, error.evalue = where.partition(" (pid ")[0], name.rpartition(".")[2], message
    return error


def whole_letters(text: str) -> str:
    r"""Return a text in which halves of a letter are spelled out: a kernel cannot send them, and hangs.

    Python has them in the names of files that are no UTF-8, and so in errors.

    >>> whole_letters("no file 'caf\udce9'")
    "no file 'caf\\udce9'"
    """
    return text.encode("utf-8", "backslashreplace").decode()


class Doubts:
    """Failures that may be consequences: for a while there may be news that say more."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def about(self, wrong: Mapping[str, Any], rank: int) -> bool:
        """Whether to wait for news: a task is gone, or has raised what cut this one off."""
        if wrong["type"] not in CONSEQUENCES:
            return False
        now = time.monotonic()
        return now - self._since.setdefault(rank, now) < DEATH_SECONDS
