"""Functions on their way through the engines: what is ready, what came back, what failed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from nbdist import errors
from nbdist.errors import FailedPreconditionError, NbdistError, TaskDiedError, WorkerError
from nbdist.runtime.task import TaskInfo

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Calls:
    """One function submitted to several engines; nothing here blocks but `wait` and `results`."""

    def __init__(
        self,
        pending: Mapping[int, Any],
        tasks: Mapping[int, TaskInfo],
        died: Callable[[], Mapping[int, TaskDiedError]],
    ) -> None:
        self._pending = dict(pending)
        self._tasks = tasks
        self._died = died
        self._outcomes: dict[int, Any] = {}
        self.ranks = list(pending)

    def done(self) -> bool:
        """Whether every rank has returned, raised or died."""
        self._collect()
        return not self._pending

    def when_ready(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` whenever an outcome has come, on a thread of ipyparallel's; not when a task dies."""
        for future in self._pending.values():
            future.add_done_callback(lambda _: tell())

    def when_done(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` once all outcomes have come, on a thread of ipyparallel's; not if a task dies."""
        left = len(self._pending)
        lock = threading.Lock()

        def count(_: object) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                tell()

        for future in list(self._pending.values()):
            future.add_done_callback(count)

    def ready_ranks(self) -> list[int]:
        """Return the ranks whose outcome is known, in the order in which they became known."""
        self._collect()
        return list(self._outcomes)

    def outcome(self, rank: int) -> Any:
        """Return what a rank returned, or the exception that it raised (as an object, not raised)."""
        self._collect()
        if rank not in self._outcomes:
            state = "is still at it" if rank in self._pending else f"was not asked; those asked: {self.ranks}"
            raise FailedPreconditionError(f"there is no outcome of rank {rank}: it {state}")
        return self._outcomes[rank]

    def wait(self, timeout: float | None = None, first_error: bool = False) -> bool:
        """Wait until all are done, or one has failed if `first_error`; returns whether that came in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._collect()
            if not self._pending or (first_error and self._failures()):
                return True
            left = 0.05 if deadline is None else min(0.05, deadline - time.monotonic())
            if left <= 0:
                return False
            next(iter(self._pending.values())).wait(left)

    def errors(self) -> dict[int, BaseException]:
        """Return the exceptions so far by rank, the earliest first."""
        self._collect()
        return self._failures()

    def results(self, timeout: float | None = None) -> list[Any]:
        """Wait, and return what each rank returned, in rank order; raises the first failure."""
        in_time = self.wait(timeout, first_error=True)
        for error in self.errors().values():
            raise error
        if not in_time:
            names = ", ".join(self._tasks[rank].name for rank in self._pending)
            raise errors.DeadlineExceededError(f"no answer within {timeout} s from {names}")
        return [self._outcomes[rank] for rank in self.ranks]

    def _failures(self) -> dict[int, BaseException]:
        return {rank: one for rank, one in self._outcomes.items() if isinstance(one, BaseException)}

    def _collect(self) -> None:
        died = self._died() if self._pending else {}
        for rank, future in list(self._pending.items()):
            if future.done():
                self._outcomes[rank] = self._read(rank, future)
            elif rank in died:
                self._outcomes[rank] = died[rank]
            else:
                continue
            del self._pending[rank]

    def _read(self, rank: int, future: Any) -> Any:
        try:
            return future.result()
        except Exception as error:
            died = self._died().get(rank)
            name = getattr(error, "ename", type(error).__name__)  # the hub says it as a remote error
            if died is not None and name in ("EngineError", "TaskDiedError"):
                return died
            return remote_error(error, self._tasks[rank])

    def __repr__(self) -> str:
        return f"<Calls: {len(self._outcomes)} of {len(self.ranks)} ranks ready>"


def remote_error(error: BaseException, task: TaskInfo) -> NbdistError:
    """Return nbdist's error for what ipyparallel says was raised on a task.

    An error of nbdist keeps its class. Any other becomes a WorkerError with a message that starts with the
    task's traceback; it has the attributes `task`, `ename`, `evalue` and `traceback`.
    """
    name = str(getattr(error, "ename", type(error).__name__))
    text = str(getattr(error, "evalue", error))
    trace = ANSI.sub("", str(getattr(error, "traceback", "") or "")).strip()
    kind = getattr(errors, name, None)
    result: NbdistError
    if isinstance(kind, type) and issubclass(kind, NbdistError) and kind is not errors.MissingExtra:
        result = kind(f"{text} (on {task.name})")
    else:
        result = WorkerError(f"{trace}\n{name} on {task.name} (pid {task.pid}): {text}".strip())
    for key, value in (("task", task), ("ename", name), ("evalue", text), ("traceback", trace)):
        setattr(result, key, value)
    return result


# Functions sent to engines through ipyparallel, each packed once for all of them.


class Sending:
    """Sends functions through an ipyparallel ``client``; what waits for each answer goes into a `Calls`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._views: dict[tuple[int, ...], Any] = {}

    def send(
        self,
        ranks: list[int],
        died: Mapping[int, TaskDiedError],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> dict[int, Any]:
        """Send a call; return who waits for each rank's answer. Of one that has died, that is its death."""
        sent = self._send(tuple(rank for rank in ranks if rank not in died), function, arguments, named)
        return {rank: sent[rank] if rank in sent else _Failed(died[rank]) for rank in ranks}

    def _send(
        self,
        ranks: tuple[int, ...],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> dict[int, Any]:
        if not ranks:
            return {}
        view = self._views.get(ranks)
        if view is None:
            view = self._views[ranks] = self._client.direct_view(list(ranks), block=False)
        answers = view.apply_async(function, *arguments, **named)
        return {rank: _Sent(one, answers) for rank, one in zip(ranks, answers._children, strict=True)}


class _Sent:
    """Waits for one task's answer to a call that several were sent."""

    def __init__(self, one: Future[Any], answers: Any) -> None:
        self._one, self._answers = one, answers
        self.done, self.add_done_callback = one.done, one.add_done_callback

    def result(self) -> Any:
        found = self._one.result()
        if isinstance(found, BaseException):
            raise found
        return found

    def wait(self, timeout: float) -> None:
        wait([self._one], timeout)


class _Failed:
    """Stands for a call that could not even be sent."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def add_done_callback(self, tell: Callable[[Any], object]) -> None:
        tell(self)

    def result(self) -> Any:
        raise self.error
