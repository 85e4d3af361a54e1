"""Which client replaces the lost tasks of a run, and what it needs for that: `RunOwnership`.

Any number of clients follow a run, and one at a time is its *owner*: it decides whether the others continue
without a lost task, replaces the task, and writes that into run.json. The other clients show what the owner
does. The client that starts the run owns it first. When it has ended, the first client that is attached, or
attaches, becomes the owner; with no client, nothing is replaced until one attaches.

lock        ``owner.lock`` in the run's folder, locked (flock) by the owner. The kernel of the operating
            system releases it with the process, however that ends. The end of the run removes the file.
body        A new process needs the body, its options and the names of its pushed values. Each task that runs
            the body keeps them, and hands them to the next owner over ipyparallel's channel
            (`nbdist.cluster.control_channel`), which carries code; nothing of it is written to a file. Pushed
            arrays stay in the hosts' shared memory until the run ends.
budget      run.json lists the replaced tasks: the next owner continues to count.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nbdist.errors import FailedPreconditionError, NbdistError
from nbdist.runtime.task import TaskInfo

LOCK = "owner.lock"
LOCK_SECONDS = 0.25  # between two attempts to become the owner
ANSWER_SECONDS = 3.0  # for a task to hand over the body: a busy one answers late, a frozen one never


class OwnerLock:
    """The lock of a run's owner, in the run's folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, two = OwnerLock(Path(folder)), OwnerLock(Path(folder))
    ...     one.take(), two.take(), one.release(), two.take(), two.release()
    (True, False, None, True, None)
    """

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self._path, self._fd = folder / name, -1

    @property
    def held(self) -> bool:
        """Whether this client holds the lock."""
        return self._fd >= 0

    def take(self) -> bool:
        """Take the lock unless another client holds it; return whether this holds it. Raises OSError."""
        if self.held:
            return True
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        _held.add(self)
        return True

    def release(self) -> None:
        """Let another client take the lock. May be called twice."""
        if self.held:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def remove(self) -> None:
        """Remove the file of the lock; the folder may have been deleted."""
        with suppress(OSError):
            self._path.unlink()

    def __del__(self) -> None:
        with suppress(OSError):
            self.release()


_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_held):  # a process that is forked from the owner would keep it locked
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)


class Answer(Protocol):
    """A request for a run's body; see :class:`nbdist.cluster.control_channel.Request`."""

    def done(self) -> bool:
        """Whether the answer has arrived."""

    def result(self) -> Any:
        """Return it; raises an error of nbdist."""


@dataclass
class Handover:
    """Asks the tasks of a run for its body, one after the other, without waiting.

    ``ask(rank)`` sends a request; ``tasks()`` returns the tasks that may have the body. ``found`` is the body
    once `poll` has returned True; it stays None, with the reason in ``problem``, if no task hands it over.
    """

    ask: Callable[[int], Answer]
    tasks: Callable[[], Sequence[TaskInfo]]
    clock: Callable[[], float] = time.monotonic
    found: Any = None
    problem: str = ""
    _steps: Iterator[None] | None = None

    def poll(self) -> bool:
        """Do what can be done now; return whether the body is here, or no task has it."""
        if self._steps is None:
            self._steps = self._run()
        return next(self._steps, False) is False

    def _run(self) -> Iterator[None]:
        self.problem = "no task that runs the body is left"
        for info in self.tasks():
            try:
                request, until = self.ask(info.rank), self.clock() + ANSWER_SECONDS
                while not request.done() and self.clock() < until:
                    yield
                if request.done():
                    self.found, self.problem = request.result(), ""
                    return
                self.problem = f"{info.name} did not hand over the body in {ANSWER_SECONDS:.0f} s"
            except NbdistError as error:
                self.problem = f"{info.name} did not hand over the body: {error}"


class RunOwnership:
    """Whether this client is the owner of a run; call ``poll`` repeatedly while it is not.

    ``handover`` is what an owner that did not start the run needs first.
    """

    def __init__(self, folder: Path, handover: Handover | None = None) -> None:
        self.is_owner = False
        self.handover = handover
        self.problem = ""
        """Why this client can never become the owner: the disk's error."""
        self._folder, self._lock, self._after = folder, OwnerLock(folder), 0.0

    def begin(self) -> None:
        """Become the owner of a run that this client starts.

        Raises OSError if the disk is full, FailedPreconditionError if another client owns a run there.
        """
        if not self._lock.take():
            raise FailedPreconditionError(
                f"another client owns the run in {self._folder}: a run is started once; attach to it with "
                f"nb.attach({self._folder.name!r})"
            )
        self.is_owner = True

    def poll(self) -> bool:
        """Become the owner if no other client is; return whether this call did so."""
        if self.is_owner or self.problem:
            return False
        if not self._lock.held:
            now = time.monotonic()
            if now < self._after:
                return False
            self._after = now + LOCK_SECONDS
            try:
                if not self._lock.take():
                    return False
            except OSError as error:
                self.problem = f"its folder has no lock for an owner: {error.strerror}"
                return False
        if self.handover is not None and not self.handover.poll():
            return False
        self.is_owner = True
        return True

    @property
    def is_pending(self) -> bool:
        """Whether this client waits only for the body to become the owner."""
        return self._lock.held and not self.is_owner

    def release(self) -> None:
        """Let another client become the owner. May be called twice."""
        self._lock.release()
        self.is_owner = False

    def end(self) -> None:
        """Remove the lock: the run has ended, and needs no owner."""
        if self._lock.held:
            self._lock.remove()
        self.release()
