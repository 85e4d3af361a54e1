"""A client's way to the stations that a session uses: registers plans there, runs steps, collects results.

One step runs on a line at a time; a session that is run from several threads has a line for each.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nbdist.errors import AbortedError, DeadlineExceededError, NbdistError, UnavailableError
from nbdist.graph.backend import Array
from nbdist.graph.compile.partition import Piece, Plan
from nbdist.metrics.timeline import Span, Timeline
from nbdist.runtime.session.executor import ABORT, CLOSE, FAILED, REGISTER, RELEASE, RUN, Executor, lost
from nbdist.runtime.session.program import Containers
from nbdist.runtime.session.protocol import Executors, pack_piece
from nbdist.runtime.session.store import LOOK_EVERY
from nbdist.wire.channel.sender import Address, Message, MessageSender
from nbdist.wire.rpc.envelope import error_from
from nbdist.wire.rpc.frame import Frame

REGISTER_SECONDS = 120.0
ABORT_SECONDS = 5.0  # for others to end their part of a step that has failed
INTERRUPT_SECONDS = 1.0  # the same, while somebody sits and waits


class Tasks(Protocol):
    """The tasks that stations are opened on."""

    def open_station(self, device: str, client: Address) -> tuple[Address, str]:
        """Open a station for a device, given the client's address; return its address and what to call it."""

    def check(self, device: str) -> None:
        """Raise UnavailableError if a device's task is known to be gone or frozen; never wait."""

    def give_up(self, client: Address) -> None:
        """Record that steps of this client were abandoned: tasks refuse late changes of these steps."""

    def clock_shift(self, device: str) -> float:
        """Return the seconds to add to the clock of a device's task to get this process's; 0 on this host."""


@dataclass
class Registered:
    """A plan whose pieces stand ready; ``own`` is the number of the piece that the client runs itself."""

    number: int
    plan: Plan
    own: int | None
    steps: int = 0
    buffer_bytes: int = 0


class StepDispatcher:
    """``own_device`` is the device whose pieces run right here, on the caller's thread, if there is one."""

    def __init__(
        self, executor: Executor, containers: Containers, own_device: str | None, tasks: Tasks
    ) -> None:
        self._station, self._tasks = executor, tasks
        self._containers, self._own_device = containers, own_device
        self._executors: Executors = {}
        if own_device is not None:
            self._executors[own_device] = (self._station.address, "the session's client")
        self.broken = False
        """Whether a station did not answer: nothing can be run here any more."""
        self._cancelled = False

    def register(self, plan: Plan) -> Registered:
        """Have every piece compiled where it runs."""
        for piece in plan.pieces:
            if piece.device not in self._executors:
                address = self._station.address
                self._executors[piece.device] = self._tasks.open_station(piece.device, address)
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
        with self._exchange(registered, REGISTER_SECONDS) as exchange:
            for n, piece in self._others(registered):
                executors = {device: self._executors[device] for device in neighbours(piece)}
                meta, arrays = pack_piece(piece, executors)
                exchange.send(n, REGISTER, arrays, meta)
            if own is not None:
                program = self._station.register(
                    registered.number, plan.pieces[own], self._containers, self._executors
                )
                registered.buffer_bytes += program.buffer_bytes
            for message in exchange.collect().values():
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
        with self._exchange(registered) as exchange:
            meta = {"trace": True} if spans is not None else None
            for n, piece in self._others(registered):
                exchange.send(n, RUN, [feeds[i] for i, _ in piece.feeds], meta)
            if registered.own is not None:
                piece = plan.pieces[registered.own]
                own_feeds = [feeds[i] for i, _ in piece.feeds]
                values = self._station.run(registered.number, registered.steps, own_feeds, spans)
                for (i, _), value in zip(piece.fetches, values, strict=True):
                    results[i] = value.copy()
            messages = exchange.collect()
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
        """Forget a plan everywhere."""
        for _, piece in self._others(registered):
            with suppress(NbdistError), briefly(self._way(piece)) as way:  # who is gone has forgotten it
                way.send(RELEASE, registered.number, 0)
        self._station.release(registered.number)

    def cancel(self) -> None:
        """Cut off the step that runs, if one does, and let no other begin; from any thread."""
        self._cancelled = True
        self._station.receiver.wake()

    def close(self) -> None:
        """Close the stations that were opened for this line."""
        for device, (address, name) in self._executors.items():
            if device != self._own_device:
                with suppress(NbdistError), briefly(self._station.sender(address, name)) as way:
                    way.send(CLOSE, 0, 0)
        self._station.close()

    def _check(self, exchange: FanOutRequest) -> None:
        self._check_cancelled()
        exchange.check()

    def _look(self, device: str) -> None:
        self._check_cancelled()
        self._tasks.check(device)

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise AbortedError("the session was closed in the middle of a step")

    def _others(self, registered: Registered) -> list[tuple[int, Piece]]:
        return [(n, piece) for n, piece in enumerate(registered.plan.pieces) if n != registered.own]

    def _way(self, piece: Piece) -> MessageSender:
        return self._station.sender(*self._executors[piece.device])

    @contextmanager
    def _exchange(self, registered: Registered, seconds: float | None = None) -> Iterator[FanOutRequest]:
        ways = {n: self._way(piece) for n, piece in self._others(registered)}
        pieces = registered.plan.pieces
        exchange = FanOutRequest(
            self._station,
            registered.number,
            registered.steps,
            ways,
            lambda n: self._look(pieces[n].device),
            seconds,
        )
        self._station.watch = lambda: self._check(exchange)
        try:
            yield exchange
        except BaseException as error:
            interrupt = not isinstance(error, Exception)
            self.broken = True  # in case that this is interrupted, once more
            first = exchange.abort(error, INTERRUPT_SECONDS if interrupt else ABORT_SECONDS)
            self.broken = interrupt or exchange.gone or bool(exchange.pending)
            if self.broken:
                self._tasks.give_up(self._station.address)
            if first is error:
                raise
            raise first from None
        finally:
            self._station.watch = lambda: None


def neighbours(piece: Piece) -> set[str]:
    """Return the devices that a piece sends to."""
    return {str(t.attrs["device"]) for t in piece.order if t.type in ("send", "signal")}


# A fan-out request of a client to several executors, and its answers or error.

BRIEF = 0.1  # seconds


class FanOutRequest:
    """One question to several stations, and their answers.

    ``ways`` lead to the stations, by the number of the piece that each has. ``look`` raises UnavailableError
    if the task behind one is known to be gone, in some other way than this one.
    """

    def __init__(
        self,
        executor: Executor,
        plan: int,
        step: int,
        ways: dict[int, MessageSender],
        look: Callable[[int], None],
        seconds: float | None,
    ) -> None:
        self._station, self._plan, self._step, self._ways = executor, plan, step, ways
        self._look, self._seconds = look, seconds
        self._answers: dict[int, Message] = {}
        self.pending: set[int] = set()
        self.gone = False
        """Whether a station cannot be reached any more."""
        self._failure: Exception | None = None

    def send(self, n: int, kind: int, arrays: Sequence[Array], meta: dict[str, Any] | None) -> None:
        """Ask one station."""
        self.pending.add(n)
        way = self._ways[n]
        try:
            way.send(kind, self._plan, self._step, n, arrays, meta)
        except UnavailableError as error:
            self.gone = True
            self.pending.discard(n)
            raise lost(way.name, error) from None
        except NbdistError:
            self.pending.discard(n)
            raise

    def collect(self) -> dict[int, Message]:
        """Return all answers; raise the first error."""
        deadline = None if self._seconds is None else time.monotonic() + self._seconds
        while self.pending:
            if not self._file() and not self._station.pump(LOOK_EVERY):
                self.check()
                if deadline is not None and time.monotonic() > deadline:
                    raise DeadlineExceededError(f"no answer within {self._seconds} s from {self._names()}")
            if self._failure is not None:
                raise self._failure
        return self._answers

    def check(self) -> None:
        """Raise if a station that has not answered is gone."""
        for n in self.pending:
            try:
                self._ways[n].check()
                self._look(n)
            except UnavailableError as error:
                raise lost(self._ways[n].name, error) from None

    def abort(self, error: BaseException, patience: float) -> BaseException:
        """Have all others end the step as well, within ``patience`` s; return the error that came first."""
        reason = {"message": f"the step was cut off: {str(error) or type(error).__name__}"}
        deadline = time.monotonic() + patience
        for n in list(self.pending):
            with self._left_out_if_gone(n), briefly(self._ways[n]) as way:
                way.send(ABORT, self._plan, self._step, n, meta=reason)
        while self.pending and time.monotonic() < deadline:
            if not self._file() and not self._station.pump(LOOK_EVERY / 5):
                for n in list(self.pending):
                    with self._left_out_if_gone(n):
                        self._ways[n].check()
                        self._look(n)
        while self._file():
            pass
        aborted = isinstance(error, AbortedError) or error is self._failure
        return self._failure if aborted and self._failure is not None else error

    def _file(self) -> bool:
        """File the next letter that has come; False if none has."""
        if not self._station.waiting:
            return False
        message = self._station.waiting.popleft()
        if (message.plan, message.step) == (self._plan, self._step) and message.edge in self.pending:
            self.pending.discard(message.edge)
            self._answers[message.edge] = message
            if message.kind == FAILED:
                found = error_from(Frame("error", message.meta))
                if self._failure is None or isinstance(self._failure, AbortedError):
                    self._failure = found
        return True

    @contextmanager
    def _left_out_if_gone(self, n: int) -> Iterator[None]:
        try:
            yield
        except NbdistError:
            self.gone = True
            self.pending.discard(n)

    def _names(self) -> str:
        return ", ".join(self._ways[n].name for n in sorted(self.pending))


@contextmanager
def briefly(way: MessageSender) -> Iterator[MessageSender]:
    """Do not wait long for one whose pipe is full: it computes, and will find out that this is over."""
    before, way.timeout = way.timeout, BRIEF
    try:
        yield way
    finally:
        way.timeout = before
