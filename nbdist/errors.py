"""Every exception of nbdist.

    NbdistError
    ├── AbortedError              the work was interrupted; it can be repeated
    ├── UnavailableError          a task does not answer
    │   └── TaskDiedError         a task's process has ended
    ├── FailedPreconditionError   the state does not allow it (an uninitialised variable, a busy cluster)
    │   └── NoTaskError           this process is not a task of a cluster         (also an AttributeError)
    ├── InvalidArgumentError      an argument has an invalid value                (also a ValueError)
    │   └── NotAllowedError       a peer, an address or a file is not trusted
    ├── NotFoundError             no such cluster, run, file or name              (also a LookupError)
    ├── OutOfRangeError           the data has ended
    ├── DeadlineExceededError     a time limit has passed                         (also a TimeoutError)
    ├── DataLossError             bytes are missing or damaged
    ├── NanLossError              the loss is NaN or infinite
    ├── StorageError              a file or folder cannot be read or written      (also an OSError)
    ├── ResourceExhaustedError    no memory or disk is left, or a limit is hit    (also a MemoryError)
    ├── WorkerError               a distributed body raised an exception on a task
    └── MissingExtra              an optional package is not installed            (also an ImportError)

A message names the value, what was expected, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NbdistError(Exception):
    """Base of all errors that nbdist raises."""


class AbortedError(NbdistError):
    """The work was interrupted by an abort, a reset or a replaced task; it can be repeated."""


class UnavailableError(NbdistError, ConnectionError):
    """A task does not answer."""


class TaskDiedError(UnavailableError):
    """A task's process has ended."""


class FailedPreconditionError(NbdistError, RuntimeError):
    """The state does not allow the call, for example reading an uninitialised variable."""


class NoTaskError(FailedPreconditionError, AttributeError):
    """This process is not a task of a cluster, so ``nb.task`` does not exist."""


class InvalidArgumentError(NbdistError, ValueError):
    """An argument has an invalid value."""


class NotAllowedError(InvalidArgumentError):
    """A peer, an address or a file is not trusted."""


class NotFoundError(NbdistError, LookupError):
    """The requested cluster, run, file or name does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class OutOfRangeError(NbdistError):
    """The data has ended."""


class DeadlineExceededError(NbdistError, TimeoutError):
    """A time limit has passed."""


class DataLossError(NbdistError):
    """Bytes are missing or damaged."""


class StorageError(NbdistError, OSError):
    """A file or folder cannot be read or written."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NanLossError(NbdistError, ArithmeticError):
    """The loss is NaN or infinite."""


class ResourceExhaustedError(NbdistError, MemoryError):
    """No memory or disk is left, or a limit on sizes is reached."""


class WorkerError(NbdistError):
    """A distributed body raised an exception on a task; the message starts with that task's traceback.

    ``task`` names the task; ``ename`` and ``evalue`` are the name and the message of the exception.
    """

    task: object = None
    ename = ""
    evalue = ""

    def _render_traceback_(self) -> list[str]:
        """Show the task's traceback in IPython, without the client's frames, and the notes on the error."""
        return [*str(self).splitlines(), *getattr(self, "__notes__", ())]


class MissingExtra(NbdistError, ImportError):
    """An optional dependency is not installed; the message is the command that installs it.

    - ``extra``: the extra of nbdist that has it
    - ``needed_for``: what it is needed for, in words
    - ``packages``: the packages to install, where no extra has them
    """

    def __init__(self, extra: str, needed_for: str = "", packages: str = "") -> None:
        reason = f" (needed for {needed_for})" if needed_for else ""
        what = packages or f'"nbdist[{extra}]"'
        super().__init__(f"pip install {what}{reason}")
        self.extra = extra


def error_class(name: str) -> type[NbdistError] | None:
    """Return the class of an error that another process names, None if it is none of nbdist's.

    A MissingExtra is left out: it is made of an extra, not of a message.
    """
    kind = globals().get(name)
    known = isinstance(kind, type) and issubclass(kind, NbdistError) and kind is not MissingExtra
    return kind if known else None


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
