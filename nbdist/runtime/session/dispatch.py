"""The client's side of a session: registers plans at the executors, runs steps, collects results.

A dispatcher runs one step at a time; a session that is run from several threads has one for each.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbdist.errors import AbortedError, DeadlineExceededError, NbdistError, UnavailableError
from nbdist.graph.backend import Array
from nbdist.graph.compile.partition import Piece, Plan
from nbdist.metrics.timeline import Span, Timeline
from nbdist.runtime.session.executor import ABORT, CLOSE, FAILED, REGISTER, RELEASE, RUN, Executor, lost
from nbdist.runtime.session.program import Containers
from nbdist.runtime.session.protocol import Executors, pack_piece
from nbdist.runtime.session.store import LOOK_EVERY
from nbdist.wire.channel.sender import Message, MessageSender
from nbdist.wire.rpc.envelope import error_from
from nbdist.wire.rpc.frame import Frame

if TYPE_CHECKING:
    from nbdist.runtime.session.cluster import ClusterEngine

REGISTER_SECONDS = 120.0
ABORT_SECONDS = 5.0  # for others to end their part of a step that has failed
INTERRUPT_SECONDS = 1.0  # the same after an interrupt by the user


@dataclass
class Registered:
    """A plan with registered pieces; ``own`` is the number of the piece that the client runs itself."""

    number: int
    plan: Plan
    own: int | None
    steps: int = 0
    buffer_bytes: int = 0


class StepDispatcher:
    """Dispatches steps; pieces of ``own_device``, if there is one, run here, on the caller's thread."""

    def __init__(
        self, executor: Executor, containers: Containers, own_device: str | None, tasks: ClusterEngine
    ) -> None:
        self._executor, self._tasks = executor, tasks
        self._id = secrets.token_hex(8)  # not its address: the system may assign a closed port again
        self._containers, self._own_device = containers, own_device
        self._executors: Executors = {}
        if own_device is not None:
            self._executors[own_device] = (self._executor.address, "the session's client")
        self.broken = False
        """Whether an executor did not answer: nothing can be run here any more."""
        self._cancelled = False

    def register(self, plan: Plan) -> Registered:
        """Have every piece compiled where it runs."""
        for piece in plan.pieces:
            if piece.device not in self._executors:
                self._executors[piece.device] = self._tasks.open_executor(
                    piece.device, self._executor.address, self._id
                )
        devices = [piece.device for piece in plan.pieces]
        own = devices.index(self._own_device) if self._own_device in devices else None
        registered = Registered(secrets.randbits(62), plan, own)
        try:
            self._register(registered)
        except BaseException:
            self.release(registered)
            raise
        return registered

    def _register(self, registered: Registered) -> None:
        plan, own = registered.plan, registered.own
        with self._fan_out(registered, REGISTER_SECONDS) as request:
            for n, piece in self._others(registered):
                executors = {device: self._executors[device] for device in neighbours(piece)}
                meta, arrays = pack_piece(piece, executors)
                request.send(n, REGISTER, arrays, meta)
            if own is not None:
                program = self._executor.register(
                    registered.number, plan.pieces[own], self._containers, self._executors
                )
                registered.buffer_bytes += program.buffer_bytes
            for message in request.collect().values():
                registered.buffer_bytes += int(message.meta.get("buffer_bytes", 0))

    def run(
        self, registered: Registered, feeds: Sequence[Array], spans: list[Span] | None = None
    ) -> list[Array | None]:
        """Run one step; returns what was fetched, copied, with None for what has no value.

        ``spans`` collects what each task did when. The first error that happened anywhere is raised
        once all have ended the step.
        """
        registered.steps += 1
        plan = registered.plan
        results: list[Array | None] = [None] * plan.fetches
        with self._fan_out(registered) as request:
            meta = {"trace": True} if spans is not None else None
            for n, piece in self._others(registered):
                request.send(n, RUN, [feeds[i] for i, _ in piece.feeds], meta)
            if registered.own is not None:
                piece = plan.pieces[registered.own]
                own_feeds = [feeds[i] for i, _ in piece.feeds]
                values = self._executor.run(registered.number, registered.steps, own_feeds, spans)
                for (i, _), value in zip(piece.fetches, values, strict=True):
                    results[i] = value.copy()
            messages = request.collect()
            for n, message in messages.items():
                piece = plan.pieces[n]
                for (i, _), value in zip(piece.fetches, message.arrays, strict=True):
                    results[i] = value.copy()
        if spans is not None:
            self._add_spans(registered, messages, spans)
        return results

    def _add_spans(self, registered: Registered, messages: Mapping[int, Message], spans: list[Span]) -> None:
        """Add the other tasks' records of a completed step, on this process's clock."""
        shifts: dict[str, float] = {}
        for n, message in messages.items():
            part = Timeline.from_dict(message.meta["spans"])
            for task in part.tasks:
                if task not in shifts:
                    shifts[task] = self._tasks.clock_shift(registered.plan.pieces[n].device)
            spans += part.moved(shifts).spans

    def release(self, registered: Registered) -> None:
        """Remove a plan from all executors."""
        for _, piece in self._others(registered):
            # An executor that has ended has no plan.
            with suppress(NbdistError), briefly(self._sender(piece)) as sender:
                sender.send(RELEASE, registered.number, 0)
        self._executor.release(registered.number)

    def cancel(self) -> None:
        """Abort the running step, if any, and refuse further ones; from any thread."""
        self._cancelled = True
        self._executor.receiver.wake()

    def close(self) -> None:
        """Close the executors that this dispatcher has opened."""
        for device, (address, name) in self._executors.items():
            if device != self._own_device:
                with suppress(NbdistError), briefly(self._executor.sender(address, name)) as sender:
                    sender.send(CLOSE, 0, 0)
        self._executor.close()

    def _check(self, request: FanOutRequest) -> None:
        self._check_cancelled()
        request.check()

    def _check_task(self, device: str) -> None:
        self._check_cancelled()
        self._tasks.check(device)

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise AbortedError("the session was closed in the middle of a step")

    def _others(self, registered: Registered) -> list[tuple[int, Piece]]:
        return [(n, piece) for n, piece in enumerate(registered.plan.pieces) if n != registered.own]

    def _sender(self, piece: Piece) -> MessageSender:
        return self._executor.sender(*self._executors[piece.device])

    @contextmanager
    def _fan_out(self, registered: Registered, seconds: float | None = None) -> Iterator[FanOutRequest]:
        self._tasks.use()
        senders = {n: self._sender(piece) for n, piece in self._others(registered)}
        pieces = registered.plan.pieces
        request = FanOutRequest(
            self._executor,
            registered.number,
            registered.steps,
            senders,
            lambda n: self._check_task(pieces[n].device),
            seconds,
        )
        self._executor.watch = lambda: self._check(request)
        try:
            yield request
        except BaseException as error:
            interrupt = not isinstance(error, Exception)
            self.broken = True  # in case that this is interrupted, once more
            first = request.abort(error, INTERRUPT_SECONDS if interrupt else ABORT_SECONDS)
            self.broken = interrupt or request.unreachable or bool(request.pending)
            if self.broken:
                self._tasks.give_up(self._id)
            if first is error:
                raise
            raise first from None
        finally:
            self._executor.watch = lambda: None


def neighbours(piece: Piece) -> set[str]:
    """Return the devices that a piece sends to."""
    return {str(t.attrs["device"]) for t in piece.order if t.type in ("send", "signal")}


# A fan-out request of a client to several executors, and its answers or error.

BRIEF = 0.1  # seconds


class FanOutRequest:
    """One request to several executors, and their answers.

    ``senders`` reach the executors, by the number of each one's piece. ``check_task`` raises UnavailableError
    if the task of a piece is known to be dead or frozen from another source.
    """

    def __init__(
        self,
        executor: Executor,
        plan: int,
        step: int,
        senders: dict[int, MessageSender],
        check_task: Callable[[int], None],
        seconds: float | None,
    ) -> None:
        self._executor, self._plan, self._step, self._senders = executor, plan, step, senders
        self._check_task, self._seconds = check_task, seconds
        self._answers: dict[int, Message] = {}
        self.pending: set[int] = set()
        self.unreachable = False
        """Whether an executor has become unreachable."""
        self._failure: Exception | None = None

    def send(self, n: int, kind: int, arrays: Sequence[Array], meta: dict[str, Any] | None) -> None:
        """Send the request to one executor."""
        self.pending.add(n)
        sender = self._senders[n]
        try:
            sender.send(kind, self._plan, self._step, n, arrays, meta)
        except UnavailableError as error:
            self.unreachable = True
            self.pending.discard(n)
            raise lost(sender.name, error) from None
        except NbdistError:
            self.pending.discard(n)
            raise

    def collect(self) -> dict[int, Message]:
        """Return all answers; raise the first error."""
        deadline = None if self._seconds is None else time.monotonic() + self._seconds
        while self.pending:
            if not self._store_next() and not self._executor.pump(LOOK_EVERY):
                self.check()
                if deadline is not None and time.monotonic() > deadline:
                    raise DeadlineExceededError(f"no answer within {self._seconds} s from {self._names()}")
            if self._failure is not None:
                raise self._failure
        return self._answers

    def check(self) -> None:
        """Raise UnavailableError if an executor that has not answered has ended or is frozen."""
        for n in self.pending:
            try:
                self._senders[n].check()
                self._check_task(n)
            except UnavailableError as error:
                raise lost(self._senders[n].name, error) from None

    def abort(self, error: BaseException, patience: float) -> BaseException:
        """Abort the step at all other executors, within ``patience`` s; return the first error."""
        reason = {"message": f"the step was aborted: {str(error) or type(error).__name__}"}
        deadline = time.monotonic() + patience
        for n in list(self.pending):
            with self._dropped_if_unreachable(n), briefly(self._senders[n]) as sender:
                sender.send(ABORT, self._plan, self._step, n, meta=reason)
        while self.pending and time.monotonic() < deadline:
            if not self._store_next() and not self._executor.pump(LOOK_EVERY / 5):
                for n in list(self.pending):
                    with self._dropped_if_unreachable(n):
                        self._senders[n].check()
                        self._check_task(n)
        while self._store_next():
            pass
        aborted = isinstance(error, AbortedError) or error is self._failure
        return self._failure if aborted and self._failure is not None else error

    def _store_next(self) -> bool:
        """Store the next message that has arrived; False if there is none."""
        if not self._executor.waiting:
            return False
        message = self._executor.waiting.popleft()
        if (message.plan, message.step) == (self._plan, self._step) and message.edge in self.pending:
            self.pending.discard(message.edge)
            self._answers[message.edge] = message
            if message.kind == FAILED:
                found = error_from(Frame("error", message.meta))
                if self._failure is None or isinstance(self._failure, AbortedError):
                    self._failure = found
        return True

    @contextmanager
    def _dropped_if_unreachable(self, n: int) -> Iterator[None]:
        try:
            yield
        except NbdistError:
            self.unreachable = True
            self.pending.discard(n)

    def _names(self) -> str:
        return ", ".join(self._senders[n].name for n in sorted(self.pending))


@contextmanager
def briefly(sender: MessageSender) -> Iterator[MessageSender]:
    """Wait only briefly for an executor with a full pipe: it computes, and notices the end later."""
    before, sender.timeout = sender.timeout, BRIEF
    try:
        yield sender
    finally:
        sender.timeout = before
