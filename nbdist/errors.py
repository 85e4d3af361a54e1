"""Every exception of nbdist.

    NbdistError
    ├── AbortedError              the work was cut off and can be tried again
    ├── UnavailableError          a task does not answer
    │   └── TaskDiedError         a task's process is gone
    ├── FailedPreconditionError   the state does not allow it (an uninitialised variable, a busy cluster)
    │   └── NoTaskError           this process is no task of a cluster  (also an AttributeError)
    ├── InvalidArgumentError      a value that cannot be meant          (also a ValueError)
    │   └── NotAllowedError       a peer or a file that must not be trusted
    ├── NotFoundError             no such cluster, run, file or name    (also a LookupError)
    ├── OutOfRangeError           the data has ended
    ├── DeadlineExceededError     it took longer than it may            (also a TimeoutError)
    ├── DataLossError             bytes are missing or damaged
    ├── NanLossError              the loss is not a number any more
    ├── ResourceExhaustedError    memory, disk or a size limit is spent (also a MemoryError)
    ├── WorkerError                 a distributed body raised on a task
    └── MissingExtra              an optional dependency is not there   (also an ImportError)

A message names the value, what was expected, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NbdistError(Exception):
    """Base of all errors that nbdist raises."""


class AbortedError(NbdistError):
    """The work was cut off by an abort, a reset or a replaced task; it can be tried again."""


class UnavailableError(NbdistError, ConnectionError):
    """A task does not answer."""


class TaskDiedError(UnavailableError):
    """A task's process is gone."""


class FailedPreconditionError(NbdistError, RuntimeError):
    """The state does not allow the call, for example reading an uninitialised variable."""


class NoTaskError(FailedPreconditionError, AttributeError):
    """This process is no task of a cluster, so that there is no ``nb.task``."""


class InvalidArgumentError(NbdistError, ValueError):
    """A value that cannot be meant."""


class NotAllowedError(InvalidArgumentError):
    """A peer, address or file that must not be trusted."""


class NotFoundError(NbdistError, LookupError):
    """There is no cluster, run, file or name like the one asked for."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class OutOfRangeError(NbdistError):
    """The data has ended."""


class DeadlineExceededError(NbdistError, TimeoutError):
    """It took longer than it may."""


class DataLossError(NbdistError):
    """Bytes are missing or damaged."""


class NanLossError(NbdistError, ArithmeticError):
    """The loss is not a number any more."""


class ResourceExhaustedError(NbdistError, MemoryError):
    """Memory, disk or a size limit is spent."""


class WorkerError(NbdistError):
    """A distributed body raised on a task; the message starts with that task's own traceback.

    ``task`` names the task, ``ename`` and ``evalue`` are the name and the message of what it raised.
    """

    task: object = None
    ename = ""
    evalue = ""

    def _render_traceback_(self) -> list[str]:
        """Show the task's traceback in IPython, not the client's own way to it."""
        return str(self).splitlines()


class MissingExtra(NbdistError, ImportError):
    """An optional dependency is not installed; the message is the command that installs it."""

    def __init__(self, extra: str, needed_for: str = "") -> None:
        reason = f" (needed for {needed_for})" if needed_for else ""
        super().__init__(f'pip install "nbdist[{extra}]"{reason}')
        self.extra = extra


def choices(given: object, valid: Iterable[object]) -> str:
    """Return the list of valid names for an error message, and the nearest one.

    >>> choices("mirored", ["ps", "mirrored"])
    'choose from ps, mirrored; did you mean mirrored?'
    >>> choices("ring", ["ps", "mirrored"]), choices(3, ["ps"])
    ('choose from ps, mirrored', 'choose from ps')
    """
    names = [str(name) for name in valid]
    near = nearest(given, names)
    return f"choose from {', '.join(names)}" + (f"; did you mean {near}?" if near else "")


def nearest(given: object, valid: Iterable[str]) -> str:
    """Return the name most similar to a given one, ignoring case; empty if none is near.

    >>> nearest("RELU", ["relu", "elu"]), nearest("--strtegy", ["--strategy", "--sync"]), nearest("x", ["y"])
    ('relu', '--strategy', '')
    """
    if not isinstance(given, str) or len(given) > 80:
        return ""
    lower: dict[str, str] = {}
    for name in valid:
        lower.setdefault(name.lower(), name)
    found = difflib.get_close_matches(given.lower(), lower, 1)
    return lower[found[0]] if found else ""
