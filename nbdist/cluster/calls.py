"""Calls of functions on engines: `CallSender` sends them, `Calls` collects their results and errors."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from nbdist.cluster.resources import TaskPlan
from nbdist.cluster.supervisor.client import FRESH_SECONDS
from nbdist.cluster.supervisor.engine import REPLY_ONLY
from nbdist.cluster.task_setup import open_task
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    TaskDiedError,
    WorkerError,
    error_class,
)
from nbdist.runtime.task import TaskInfo

ANSI = re.compile(r"\x1b\[[0-9;]*m")
OPEN_SECONDS = 2.0  # until the first call of an engine is sent again
NOT_ON_TASKS = re.compile(r"Can't get attribute '(\w+)' on <module '__main__'")


class Calls:
    """A call of one function on several tasks, as `Cluster.submit` returns it.

    ``ranks`` are the ranks that it was sent to. Only `wait` and `results` block.

        calls = cluster.submit(pow, 2, 10)
        while not calls.done():
            ...
        calls.results()
        [1024, 1024]
    """

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

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` at each outcome, on a thread of ipyparallel; not at the death of a task."""
        for future in self._pending.values():
            future.add_done_callback(lambda _: callback())

    def when_done(
        self, callback: Callable[[], object], failed: Callable[[Any], bool] = lambda outcome: False
    ) -> None:
        """Call ``callback`` at the last outcome and at each failure, on a thread of ipyparallel.

        A failure is an exception, or a result for which ``failed`` is true. A task's death has no outcome.
        """
        left, lock = len(self._pending), threading.Lock()

        def count(future: Any) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last or isinstance(outcome := _outcome_of(future), BaseException) or failed(outcome):
                callback()

        for future in list(self._pending.values()):
            future.add_done_callback(count)

    def ready_ranks(self) -> list[int]:
        """Return the ranks with a known outcome, in the order in which the outcomes became known."""
        self._collect()
        return list(self._outcomes)

    def outcome(self, rank: int) -> Any:
        """Return the result of a rank, or its exception as an object.

        Raises FailedPreconditionError if it has none yet.
        """
        self._collect()
        if rank not in self._outcomes:
            if rank in self._pending:
                raise FailedPreconditionError(f"rank {rank} has no outcome yet: it is running; wait() for it")
            raise FailedPreconditionError(f"rank {rank} has no outcome: the call was sent to {self.ranks}")
        return self._outcomes[rank]

    def wait(self, timeout: float | None = None, first_error: bool = False) -> bool:
        """Wait until all ranks are done, or, with ``first_error``, until one has failed.

        ``timeout`` is in seconds; None waits without a limit. Returns False after the timeout.
        """
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
        """Return the exceptions by rank, in the order in which they were received."""
        self._collect()
        return self._failures()

    def results(self, timeout: float | None = None) -> list[Any]:
        """Wait for all ranks and return their results in the order of ranks.

        ``timeout`` is in seconds; None waits without a limit. Raises the first failure, and
        DeadlineExceededError after the timeout.
        """
        in_time = self.wait(timeout, first_error=True)
        for error in self.errors().values():
            raise error
        if not in_time:
            names = ", ".join(self._tasks[rank].name for rank in self._pending)
            raise DeadlineExceededError(f"no answer within {timeout} s from {names}")
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
            name = getattr(error, "ename", type(error).__name__)  # the hub reports a death as a remote error
            if name in ("EngineError", "TaskDiedError"):
                time.sleep(FRESH_SECONDS)  # what ends is known this late
                if (died := self._died().get(rank)) is not None:
                    return died
            return remote_error(error, self._tasks[rank])

    def __repr__(self) -> str:
        return f"<Calls: {len(self._outcomes)} of {len(self.ranks)} ranks ready>"


def _outcome_of(future: Any) -> Any:
    """Return the result of a future that is done, or its exception as an object."""
    try:
        return future.result()
    except Exception as error:
        return error


def remote_error(error: BaseException, task: TaskInfo) -> NbdistError:
    """Return nbdist's error for an exception that ipyparallel received from a task.

    An error of nbdist keeps its class. An object that the task cannot make from what it has received, because
    its class is the notebook's, is an InvalidArgumentError. Any other becomes a WorkerError with a message
    that starts with the task's traceback. It has the attributes `task`, `ename`, `evalue` and `traceback`.
    """
    name = str(getattr(error, "ename", type(error).__name__))
    text = str(getattr(error, "evalue", error))
    trace = ANSI.sub("", str(getattr(error, "traceback", "") or "")).strip()
    result: NbdistError
    if "unpack_apply_message" in trace and (unknown := NOT_ON_TASKS.match(text)):
        result = InvalidArgumentError(
            f"the function holds an object of {unknown[1]}, a class of the notebook, which {task.name} does "
            "not know (a default value, say, or an argument of functools.partial): make the object in the "
            f"function, or put {unknown[1]} into a module"
        )
    elif kind := error_class(name):
        result = kind(f"{text} (on {task.name})")
    else:
        result = WorkerError(f"{trace}\n{name} on {task.name} (pid {task.pid}): {text}".strip())
    for key, value in (("task", task), ("ename", name), ("evalue", text), ("traceback", trace)):
        setattr(result, key, value)
    return result


# Sending: a function is serialized once for all engines.


class CallSender:
    """Sends functions to engines through an ipyparallel ``client``; returns a pending call per rank."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def send(
        self,
        ranks: list[int],
        died: Callable[[], Mapping[int, TaskDiedError]],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> dict[int, Any]:
        """Send a call and return a pending call per rank; that of a dead rank has failed already.

        ``died`` returns the deaths that are known, by rank.
        """
        dead = died()
        try:
            sent = self._send([rank for rank in ranks if rank not in dead], function, arguments, named)
        except LookupError:  # ipyparallel has heard of a death just now
            time.sleep(FRESH_SECONDS)
            dead = died()
            sent = self._send([rank for rank in ranks if rank not in dead], function, arguments, named)
        return {rank: sent[rank] if rank in sent else _FailedCall(dead[rank]) for rank in ranks}

    def _send(
        self,
        ranks: list[int],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> dict[int, Any]:
        if not ranks:
            return {}
        from ipyparallel.serialize import PrePickled

        client = self._client
        engines, _ = client._build_targets(ranks)
        packed = [PrePickled(one) for one in arguments]
        by_name = {name: PrePickled(one) for name, one in named.items()}
        call, silent = PrePickled(function), getattr(function, REPLY_ONLY, False)
        # A view would do the same, and keep a history of results for users.
        return {
            rank: _PendingCall(
                client.send_apply_request(
                    client._mux_stream, call, packed, by_name, ident=engine, metadata={REPLY_ONLY: silent}
                ),
                silent,
            )
            for rank, engine in zip(ranks, engines, strict=True)
        }


class OpeningCall:
    """The first call of a new engine, through its ``view``: it is sent again until one is answered.

    An engine is registered when its heart beats. Its connection for calls may come later, and the controller
    drops a call that it cannot forward yet. ``function`` must return the same when it is called again.
    """

    def __init__(self, view: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._send = partial(view.apply_async, function, *arguments, **named)
        self._sent: list[Any] = []
        self._again()

    def _again(self) -> None:
        self._sent.append(self._send())
        self._next = time.monotonic() + OPEN_SECONDS * 2 ** (len(self._sent) - 1)

    def ready(self) -> bool:
        """Return whether the call was answered; send it again if that takes long."""
        if any(call.ready() for call in self._sent):
            return True
        if time.monotonic() > self._next:
            with suppress(LookupError):  # the engine has died: each call says so
                self._again()
        return False

    def wait(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the answer to the last call sent."""
        self._sent[-1].wait(timeout)

    def get(self) -> Any:
        """Return the answer, or raise the error, of the first call that was answered."""
        return next(call for call in self._sent if call.ready()).get(0)


def open_server(
    view: Any, task: TaskInfo | TaskPlan, keys: Mapping[str, str], place: Mapping[str, str], cluster_id: str
) -> OpeningCall:
    """Have a new engine open the Server of its task; ``place`` is that of `SupervisorClient.place_of`."""
    about = task.job, task.index, task.rank, task.device
    return OpeningCall(view, open_task, *about, keys, **place, cluster_id=cluster_id)


class _PendingCall:
    """The pending call of one rank."""

    def __init__(self, one: Future[Any], silent: bool) -> None:
        self._one = one
        self.done, self.add_done_callback = one.done, one.add_done_callback
        if silent:
            one.add_done_callback(_end_output)

    def result(self) -> Any:
        result = self._one.result()
        if isinstance(result, BaseException):
            raise result
        return result

    def wait(self, timeout: float) -> None:
        wait([self._one], timeout)


def _end_output(one: Any) -> None:
    """Have ipyparallel forget a call that was answered: no status of the engine follows."""
    if not one.output.done():
        one.output.set_result(None)


class _FailedCall:
    """A call that was not sent, because the task had died."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        callback(self)

    def result(self) -> Any:
        raise self.error
