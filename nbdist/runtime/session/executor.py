"""`Executor`: runs a session's pieces of one device on one thread, and moves values between them.

The client of a session has an executor, and so has each device that the session uses, on its task. Each has
a message receiver (its inbox). Executors send values to each other directly; the client only starts steps
and collects results.

If a task is frozen or does not answer, the client abandons the step and begins the next one with new
executors. A late part of the old step must not change state at the same time. Two mechanisms refuse it, both
just before a variable, an accumulator or a queue changes (``Fence``):

- Messages: the client sends ABORT (plan, step), then CLOSE, and closes its inbox. An executor that has not
  read its messages for LOOK_AFTER seconds reads them before the change: after SIGCONT a stopped process
  finds them. A client waits at least four times as long after ABORT before it begins another step, unless
  the task is known to be frozen or dead.
- The next executor: the request for it names the dispatchers with abandoned steps. The task closes the
  fences of their executors before it answers, and waits for the one change that may be in progress (a copy,
  which waits for nothing). Afterwards no executor of an abandoned step changes a variable, with or without
  messages.

The executors of a client that has died end when they notice it, which may be after the new process of that
client has begun. A request names the client's task and incarnation, so a task also closes the fences of
executors that serve an earlier process of the same client before it answers.

A plan's number is random and its executors belong to one incarnation of a task, so that values of a late part
match no other plan. Limits: a change that was in progress when the process was stopped is completed when it
continues, and another session that uses the same variables may see it, as it sees any update of an
unfinished step. If the session has isolated variables or loaded data (its old dispatcher stays open) and
the pipe of the frozen task was full, only the next executor refuses the late part. An abandoned step may be
applied in part.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from nbdist.errors import AbortedError, DataLossError, FailedPreconditionError, UnavailableError
from nbdist.graph.backend import Array, backend, gpu_scope, to_device, to_host
from nbdist.graph.compile.partition import Piece
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Tensor
from nbdist.metrics.timeline import Span
from nbdist.runtime.session.datasets import Sources
from nbdist.runtime.session.program import (
    Containers,
    Mark,
    PieceProgram,
    Rendezvous,
    Scratch,
    spans_of,
)
from nbdist.runtime.session.resources import Client, Resources
from nbdist.runtime.session.store import LOOK_EVERY, Store, Waiting
from nbdist.wire.channel.sender import Address, Message, MessageReceiver, MessageSender
from nbdist.wire.keys import ClusterKeys

REGISTER, REGISTERED, RUN, DONE, FAILED, VALUE, ABORT, RELEASE, CLOSE = range(1, 10)
NEXT = (
    "The variables that it held are lost, the other tasks continue: when it is up again, make a new session "
    "and initialise or restore them"
)
IDLE = (-1, -1)  # as the running plan and step
SEND_SECONDS = 3600.0  # a receiver that computes reads nothing; its end is noticed immediately in any case
LOOK_AFTER = 0.25  # seconds without reading messages, after which a change reads them first


class Fence:
    """Admits an executor's changes one by one, until ``close``. ``check`` raises an error to refuse a change.

    >>> fence = Fence(lambda: None)
    >>> with fence:
    ...     "changed"
    'changed'
    >>> fence.close()
    >>> with fence:
    ...     "changed"
    Traceback (most recent call last):
        ...
    nbdist.errors.AbortedError: the session has abandoned this step: its remaining changes are refused
    """

    __slots__ = ("_check", "_closed", "_lock")

    def __init__(self, check: Callable[[], object]) -> None:
        self._check, self._closed, self._lock = check, False, threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self.check()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def check(self) -> None:
        """Raise if the fence is closed."""
        if self._closed:
            raise AbortedError("the session has abandoned this step: its remaining changes are refused")
        self._check()

    def close(self) -> None:
        """Refuse all further changes, from any thread; waits for the one in progress."""
        with self._lock:
            self._closed = True


@dataclass(frozen=True)
class ExecutorConfig:
    """The properties of an executor's process: keys, host, and the prefix of shared files."""

    keys: ClusterKeys
    host_identity: str
    prefix: str
    host: str = "127.0.0.1"
    transport: Literal["auto", "socket"] = "auto"


@dataclass
class Running:
    """A plan's piece that is registered at an executor."""

    program: PieceProgram
    rendezvous: Rendezvous
    graph: Graph

    def close(self) -> None:
        """Free constants immediately: a graph and its tensors refer to each other."""
        self.graph.tensors.clear()


class Executor:
    """Runs pieces on the thread that made it.

    ``sources`` are the datasets of the session in this process. ``resets`` is how often the store had been
    reset when the session began: it ends with the next one. ``patience`` is how many seconds an op may wait
    for other sessions. ``client`` is the process that drives the session.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        store: Store,
        sources: Sources,
        resets: int | None = None,
        patience: float | None = None,
        client: Client | None = None,
    ) -> None:
        self.config, self.store, self._sources = config, store, sources
        self._client = client or Client()
        self.resets = store.resets if resets is None else resets
        self.receiver = MessageReceiver(
            config.keys, config.prefix, config.host, host_identity=config.host_identity
        )
        self.address = self.receiver.address
        self.waiting: deque[Message] = deque()
        """Messages that do not belong to the running step."""
        self.watch: Callable[[], None] = lambda: None
        """Called repeatedly while waiting; raises if the wait cannot succeed."""
        self._scratch = Scratch(store)
        self._plans: dict[int, Running] = {}
        self._senders: dict[Address, MessageSender] = {}
        self._aborted: dict[int, tuple[int, str]] = {}
        self._now = IDLE
        self._looked = 0.0
        self.fence = Fence(self._check_changes)
        """Guards each change; another thread closes it when the client has abandoned the executor."""
        self._waiting = Waiting(
            self.receiver.wake, self._pause, self._check_worth_waiting, patience, self.fence
        )

    def sender(self, address: Address, name: str = "") -> MessageSender:
        """Return the sender to another executor, made at the first use."""
        if address not in self._senders:
            self._senders[address] = MessageSender(
                address,
                self.config.keys,
                host_identity=self.config.host_identity,
                transport=self.config.transport,
                prefix=self.config.prefix,
                name=name,
                timeout=SEND_SECONDS,
                receiver=self.receiver,
                abort_check=self._while_writing,
            )
        return self._senders[address]

    def register(
        self, plan: int, piece: Piece, containers: Containers, executors: dict[str, tuple[Address, str]]
    ) -> PieceProgram:
        """Compile a piece; ``executors`` has the address and name of each device's executor."""
        self._check_reset()
        rendezvous = Rendezvous()
        kind = piece.device.rpartition("device:")[2]
        xp = backend(kind)
        resources = Resources(
            self.store, containers, kind, self._waiting, session=self._sources, client=self._client
        )

        def kernels(node: Tensor) -> Callable[..., Any]:
            kept = self._sources.kernel(node, xp) or resources.kernel(node, xp)
            if kept is not None:

                def guarded_kernel(*arrays: Array) -> Any:
                    self.fence.check()
                    return kept(*arrays)

                return guarded_kernel
            edge = node.attrs["edge"]
            if node.type in ("receive", "await"):
                return lambda: self._receive(rendezvous, edge, node, xp)
            sender = self.sender(*executors[node.attrs["device"]])

            def send(*value: Array) -> None:  # nothing, for a signal
                try:
                    sender.send(VALUE, plan, rendezvous.step, edge, tuple(map(to_host, value)))
                except UnavailableError as error:
                    raise lost(sender.name, error) from None

            return send

        with gpu_scope(kind):
            program = PieceProgram(piece, self.store, containers, kernels, self._scratch, self.fence)
        self._plans[plan] = Running(program, rendezvous, piece.graph)
        return program

    def run(
        self, plan: int, step: int, feeds: Sequence[Array], spans: list[Span] | None = None
    ) -> tuple[Array, ...]:
        """Run a registered piece for one step; ``spans`` collects its trace."""
        running = self._plans.get(plan)
        if running is None:
            raise FailedPreconditionError("this task has no plan for the requested step: make a new session")
        self._check_reset()
        running.rendezvous.begin(step)
        self._now = plan, step
        self._waiting.begin()
        try:
            self._check_aborted()
            scope = gpu_scope(running.program.device)
            if spans is None:
                with scope:
                    return running.program.run(feeds)
            marks: list[Mark] = []
            running.rendezvous.arrived.clear()
            with scope:
                results = running.program.run(feeds, marks)
            spans += spans_of(running.program.device, step, marks, running.rendezvous.arrived)
            return results
        except BaseException as error:
            self._waiting.cut_off(error)
            raise
        finally:
            self._now = IDLE

    def pump(self, timeout: float | None) -> bool:
        """Wait for one message and store it; False if none arrived."""
        message = self.receiver.next(timeout)
        if message is None:
            return False
        if message.kind == VALUE:
            running = self._plans.get(message.plan)
            if running is not None:
                running.rendezvous.put(message.step, message.edge, message.arrays)
        else:
            if message.kind in (ABORT, FAILED) and message.plan in self._plans:
                self._aborted[message.plan] = (message.step, str(message.meta.get("message", "")))
            if message.kind != ABORT:
                self.waiting.append(message)
        return True

    def release(self, plan: int) -> None:
        """Remove a plan."""
        running = self._plans.pop(plan, None)
        self._aborted.pop(plan, None)
        if running is not None:
            running.close()
            if not self._plans:
                self._scratch.close()
        for sender in self._senders.values():
            sender.release(plan)
        self.receiver.release()

    def close(self) -> None:
        """Remove all plans, close all senders."""
        self._waiting.cut_off(AbortedError("its session has ended"))
        for running in self._plans.values():
            running.close()
        self._plans.clear()
        self._scratch.close()
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()
        self.receiver.close()

    def _receive(self, rendezvous: Rendezvous, edge: int, node: Tensor, xp: ModuleType) -> Any:
        """Wait for what another device sends in this step."""
        value = rendezvous.take(edge)
        looked = time.monotonic()
        while value is None:
            if not self.pump(LOOK_EVERY) or time.monotonic() - looked > LOOK_EVERY:
                self.watch()
                looked = time.monotonic()
            self._check_aborted()
            value = rendezvous.take(edge)
        if node.type == "await":
            return None
        (array,) = value
        if array.dtype != node.dtype or (array.shape != node.shape and None not in node.shape):
            raise DataLossError(f"{node!r}: what arrived is {array.dtype} of shape {array.shape}")
        return to_device(array, xp)

    def _pause(self, seconds: float) -> None:
        """Wait for a message, or until woken."""
        if not self.pump(seconds):
            self.watch()

    def _check_changes(self) -> None:
        """Raise if the step was abandoned; read pending messages, unless that was done just now."""
        if time.monotonic() - self._looked > LOOK_AFTER:
            while self.pump(0) or self.pump(0):  # a wake-up can hide pending messages once
                pass
            self.watch()
            self._looked = time.monotonic()
        self._check_aborted()

    def _check_worth_waiting(self) -> None:
        self.fence.check()
        self._check_reset()
        if self.store.closed:
            raise UnavailableError("the Server of this task is closed")

    def _check_reset(self) -> None:
        if self.store.resets != self.resets:
            raise AbortedError(
                "the containers of this session's variables were reset (Session.reset): make a new session "
                "and initialise or restore them"
            )

    def _while_writing(self) -> None:
        """Handle arrived messages while a sender waits for a full pipe."""
        while self.pump(0):
            pass
        self.watch()
        self._check_aborted()

    def _check_aborted(self) -> None:
        plan, step = self._now
        aborted = self._aborted.get(plan)
        if aborted is not None and aborted[0] >= step:
            raise AbortedError(aborted[1])
        if self.waiting and any(message.kind == CLOSE for message in self.waiting):
            raise AbortedError("the session was closed in the middle of a step")


def lost(name: str, error: UnavailableError) -> UnavailableError:
    """Return the error for a task that has become unreachable, with what to do next."""
    if NEXT in str(error):
        return error
    what = str(error) if name in str(error) else f"{name} is lost: {error}"
    return UnavailableError(f"{what}. {NEXT}")
