"""What runs the ops on accumulators and queues of tokens, which live in a task's containers.

resources = Resources(store, containers, "CPU:0", waiting)
kernel = resources.kernel(node, np)     # the function for such an op, None for others
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from nbdist.errors import AbortedError, FailedPreconditionError, NbdistError, OutOfRangeError
from nbdist.graph.backend import Array, to_device, to_host
from nbdist.graph.device import DeviceSpec
from nbdist.graph.op import Shape, show
from nbdist.graph.ops.rows import check_rows, summed_rows
from nbdist.graph.tensor import Tensor
from nbdist.runtime.ps.shard import Accumulator
from nbdist.runtime.session.program import Containers
from nbdist.runtime.session.store import Shared, Store, Waiting
from nbdist.runtime.tables import RowGradient

Kernel = Callable[..., Any]
DONE = np.array(True)


@dataclass(frozen=True)
class Client:
    """The process that drives a session: its ``task`` and incarnation; empty if it is not a task."""

    task: str = ""
    incarnation: int = 0


@dataclass(frozen=True)
class Giver:
    """Where a gradient comes from: a client, and which of its graphs."""

    client: Client
    graph: str

    def replaces(self, other: Giver) -> bool:
        """Return whether this is the same graph, in a new session, or the new process of the same task.

        >>> old = Giver(Client("/job:worker/task:1", 7), "a")
        >>> new = Giver(Client("/job:worker/task:1", 8), "b")
        >>> new.replaces(old), new.replaces(Giver(new.client, "c")), Giver(Client(), "d").replaces(old)
        (True, False, False)
        """
        mine, its = self.client, other.client
        again = bool(mine.task) and mine.task == its.task and mine.incarnation != its.incarnation
        return again or (bool(self.graph) and self == other)


class Resources:
    """The kernels of one thread, on one device. ``session`` identifies the session that it serves."""

    def __init__(
        self,
        store: Store,
        containers: Containers,
        device: str,
        waiting: Waiting,
        *,
        session: object,
        client: Client,
    ) -> None:
        self._store, self._containers, self._device, self._waiting = store, containers, device, waiting
        self._session, self._client = session, client

    def kernel(self, node: Tensor, xp: ModuleType) -> Kernel | None:
        """Return what computes ``node`` if it is an op on what sessions share."""
        if node.type in ("Accumulator", "TokenQueue"):
            self._shared(node)
            return lambda: DONE
        kind = node.type.partition("_")[0]
        if kind not in ("accumulator", "token"):
            return None
        shared = self._shared(node.inputs[0])
        ops: Any = (
            _OnTokens(shared, self._waiting, node, self._store, self._session)
            if kind == "token"
            else _OnGradients(shared, self._waiting, node, self._store, self._client)
        )
        kernel: Kernel = getattr(ops, node.type.removeprefix(f"{kind}_"))
        if xp is np:
            return lambda handle, *inputs: kernel(*inputs)

        def on_device(handle: Array, *inputs: Array) -> Any:
            result = kernel(*inputs)
            return None if result is None else to_device(result, xp)  # later ops take no host array

        return on_device

    def _shared(self, handle: Tensor) -> Shared[Any]:
        container = self._containers.of(handle)
        if handle.type == "TokenQueue":
            return self._store.shared(container, handle.name, "a queue of tokens", Tokens, self._device)
        shape, dtype = handle.attrs["shape"], handle.attrs["dtype"]
        reduction, sparse = handle.attrs["reduction"], handle.attrs["sparse"]
        kind = f"{'a sparse' if sparse else 'an'} accumulator ({reduction}) of {show(tuple(shape))} {dtype}"
        make = RowGradientAccumulator if sparse else GradientAccumulator
        return self._store.shared(
            container,
            handle.attrs["key"] or handle.name,
            kind,
            lambda: make(tuple(shape), reduction == "MEAN"),
            self._device,
        )


@dataclass
class _OnGradients:
    """The ops on one accumulator, by the rest of their names."""

    shared: Shared[GradientAccumulator]
    waiting: Waiting
    node: Tensor
    store: Store
    client: Client

    def apply(self, *inputs: Array) -> Array:
        *gradient, step = inputs
        arrays = [np.array(to_host(part)) for part in gradient]  # what came is overwritten by the next step
        replica = origin(self.node.inputs[-1])
        room = sum(array.nbytes for array in arrays)
        self.store.take(self.shared, room, f"a gradient in {self.node.inputs[0].name!r}")
        with self.shared.changing() as collected:
            accepted = collected.offer(replica, arrays, int(step), self._giver)
            self._count(collected)
        return np.array(accepted)

    apply_rows = apply

    def withdraw(self) -> None:
        with self.shared.changing() as collected:
            collected.withdraw(self._giver)
            self._count(collected)

    def take(self, needed: Array) -> Array:
        return self._take(int(needed))[0]

    def take_rows(self, needed: Array) -> Array:
        rows, at = self._take(int(needed))
        _taken.__dict__[self.node.name] = rows
        return at

    def rows(self, at: Array) -> Array:
        rows = _taken.__dict__.pop(self.node.inputs[1].name, None)
        if rows is None:
            raise FailedPreconditionError("the rows of a sparse gradient are taken with their positions")
        found: Array = rows
        return found

    def count(self) -> Array:
        return np.array(self.shared.look(lambda collected: collected.rule.count), np.int64)

    def dropped(self) -> Array:
        return np.array(self.shared.look(lambda collected: collected.rule.dropped), np.int64)

    def set_step(self, step: Array) -> None:
        with self.shared.changing() as collected:
            collected.rule.step = int(step)

    def begin(self, step: Array) -> None:
        with self.shared.changing() as collected:
            collected.begin(int(step))
            self._count(collected)

    def close(self) -> None:
        with self.shared.changing() as collected:
            collected.closed = True

    @property
    def _giver(self) -> Giver:
        return Giver(self.client, self.node.attrs["giver"])

    def _take(self, needed: int) -> list[Array]:
        taken = self.waiting.until(
            self.shared,
            lambda collected: collected.take(needed),
            lambda collected: collected.missing(needed),
            patient=self.node.attrs["patient"],
        )
        self.shared.look(self._count)
        return taken

    def _count(self, collected: GradientAccumulator) -> None:
        """Count what is collected against the task's limit of memory."""
        self.store.holds(self.shared, collected.bytes)


_taken = threading.local()  # the rows of a step, by the op that took their positions


@dataclass
class _OnTokens:
    """The ops on one queue of tokens, by the rest of their names."""

    shared: Shared[Tokens]
    waiting: Waiting
    node: Tensor
    store: Store
    session: object

    def enqueue_many(self, tokens: Array) -> None:
        with self.shared.changing() as queue:
            queue.put(to_host(tokens).tolist(), self.node.attrs["first"], self.session)

    def dequeue(self, local_step: Array) -> Array:
        replica, step = origin(self.node.inputs[-1]), int(local_step)
        self.shared.look(lambda tokens: tokens.waiting.update([replica]))
        try:
            token = self.waiting.until(
                self.shared,
                lambda tokens: tokens.take(replica, step, time.monotonic(), self.session),
                lambda tokens: f"{replica} waits for a token; {tokens.missing(time.monotonic())}",
            )
        finally:
            self.shared.look(lambda tokens: tokens.waiting.subtract([replica]))
        return np.array(token, np.int64)

    def count(self) -> Array:
        return np.array(self.shared.look(len), np.int64)

    def is_open(self) -> Array:
        return np.array(self.shared.look(lambda tokens: tokens.open))

    def begin(self) -> None:
        with self.shared.changing() as tokens:
            tokens.begin(
                self.node.attrs["replicas"], self.node.attrs["one_each"], self.session, self.store.training
            )

    def join(self) -> None:
        replica = task_of(self.node.attrs["replica"])
        training = self.store.training if self.node.attrs["again"] else ()
        self.waiting.until(
            self.shared,
            lambda tokens: tokens.join(replica, time.monotonic(), self.session, training) or None,
            lambda tokens: "the chief has not begun the training; see whether it runs",
        )

    def serve(self) -> None:
        turn = self.shared.look(lambda tokens: tokens.serve())
        name = self.node.inputs[0].name

        def cut_off(error: BaseException) -> None:
            text = f"the chief, which serves {name!r}, was aborted: {str(error) or type(error).__name__}. "
            again = "When it is up again, make a new session"
            with self.shared.changing() as tokens:
                tokens.cut_off(turn, AbortedError(text + again))

        self.waiting.on_abort(cut_off)

    def close(self) -> None:
        with self.shared.changing() as tokens:
            tokens.close(
                AbortedError("the chief cannot continue: see the error that it has raised")
                if self.node.attrs["failed"]
                else None
            )


def origin(value: Tensor) -> str:
    """Return the task that a value comes from: another one if it was received, this one if not."""
    return task_of(str(value.attrs["device"] if value.type == "receive" else value.device))


def task_of(device: str) -> str:
    """Return the task of a device as text; the device itself if it names none.

    >>> task_of("/job:worker/replica:0/task:1/device:CPU:0")
    '/job:worker/task:1'
    """
    spec = DeviceSpec.from_string(device)
    return device if spec.job is None or spec.task is None else f"/job:{spec.job}/task:{spec.task}"


# State machines of accumulators: whole gradients or rows, their mean or their sum. Without clocks.
#
# Which gradients count for a step is the rule of :mod:`nbdist.runtime.ps.shard`; how they are added is
# here. A replica that begins anew, in a new session or a new process, withdraws what it had given before:
# its next gradient is for the same step, which counts each replica once.

UNKNOWN = Giver(Client(), "")
NUMBER_BITS = 32  # for the number of a giver, below the name of its replica


class GradientAccumulator:
    """Gradients of one variable, by the names of their replicas.

    >>> collected = GradientAccumulator((), mean=True)
    >>> collected.offer("/job:worker/task:0", [np.array(10.0)], 0)
    True
    >>> collected.offer("/job:worker/task:1", [np.array(20.0)], 0)
    True
    >>> collected.take(1), collected.take(1), collected.rule.step
    ([array(15.)], None, 1)
    """

    def __init__(self, shape: Shape, mean: bool) -> None:
        self.shape, self.mean = shape, mean
        self.closed = False
        self.local_steps: dict[str, int] = {}
        """By replica, the local step of its last gradient."""
        self.rule = Accumulator()
        """What is collected, and for which step."""
        self._numbers: dict[tuple[str, Giver], int] = {}
        self._sizes: Counter[int] = Counter()

    @property
    def bytes(self) -> int:
        """The memory of the collected gradients."""
        return self._sizes.total()

    def offer(self, replica: str, gradient: list[Array], local_step: int, giver: Giver = UNKNOWN) -> bool:
        """Keep a gradient, unless it is too old; its arrays are written over."""
        self.local_steps[replica] = local_step
        number = self._numbers.setdefault((replica, giver), len(self._numbers))
        order = (int.from_bytes(replica.encode()) << NUMBER_BITS) + number  # it sorts as the names do
        accepted = self.rule.offer(order, [*gradient], local_step)
        if accepted:
            self._sizes[order] += sum(array.nbytes for array in gradient)
        return accepted

    def withdraw(self, giver: Giver) -> None:
        """Drop what is collected from a giver that begins anew, and from those that it replaces.

        >>> collected, one = GradientAccumulator((), mean=True), Giver(Client("/job:worker/task:1", 7), "a")
        >>> collected.offer("/job:worker/task:1", [np.array(1.0)], 0, one), collected.rule.count
        (True, 1)
        >>> collected.withdraw(Giver(Client("/job:worker/task:1", 8), "b"))
        >>> collected.rule.count
        0
        """
        for (replica, other), number in self._numbers.items():
            if giver.replaces(other):
                order = (int.from_bytes(replica.encode()) << NUMBER_BITS) + number
                self.rule.withdraw(order)
                del self._sizes[order]

    def take(self, needed: int) -> list[Array] | None:
        """Return the mean or sum of all gradients, or None if fewer than ``needed`` are there."""
        if self.closed:
            raise OutOfRangeError("the accumulator was closed: the training that it belongs to has ended")
        if self.rule.count < max(needed, 1):
            return None if needed > 0 else self.total(needed)
        self._sizes.clear()
        self._numbers.clear()
        return self.total(needed)

    def total(self, needed: int) -> list[Array]:
        """Return what is collected as one gradient; it is not there any more."""
        return [part for part in self.rule.take(needed, mean=self.mean) if not isinstance(part, RowGradient)]

    def begin(self, step: int) -> None:
        """Drop all gradients and counts, and wait for gradients of a step."""
        self.rule, self.closed = Accumulator(), False
        for known in (self._sizes, self._numbers, self.local_steps):
            known.clear()
        self.rule.step = step

    def missing(self, needed: int) -> str:
        """Return a text with the replicas whose gradients are present or missing."""
        there = [name for name, step in self.local_steps.items() if step >= self.rule.step]
        others = [f"{name} (last: step {s})" for name, s in self.local_steps.items() if s < self.rule.step]
        text = f"{self.rule.count} of {needed} gradients of step {self.rule.step} are there"
        text += f", from {', '.join(there)}" if there and self.rule.count else ""
        return text + (f"; none from {', '.join(others)}" if others else "")


class RowGradientAccumulator(GradientAccumulator):
    """The same for gradients that hold rows: values, and their positions.

    A row is divided by the number of gradients that hold it.
    """

    def offer(self, replica: str, gradient: list[Array], local_step: int, giver: Giver = UNKNOWN) -> bool:
        """Keep the rows of a gradient, each once."""
        values, positions = gradient
        check_rows(positions, self.shape[0] or 0)
        at, rows = summed_rows(np, values, positions)
        return super().offer(replica, [rows, at], local_step, giver)

    def total(self, needed: int) -> list[Array]:
        """Return rows and their positions."""
        collected = self.rule.close(needed)
        values, positions = (np.concatenate(parts) for parts in zip(*collected, strict=True))
        at, rows = summed_rows(np, values, positions)
        if self.mean and len(at):
            counts = np.unique(positions, return_counts=True)[1]
            rows = rows / counts.reshape(-1, *[1] * (rows.ndim - 1)).astype(rows.dtype)
        return [rows, at]


# The token queue, and which replica has taken which token. A state machine without sockets or clocks.
#
# A token holds the step with which its replica continues. Where a step puts one for each replica, no replica
# takes two of them: the next gradient of a fast one would count in the place of another's. The first tokens
# are for any replica that has no later one: it would go back, and then take a second token of its step.
#
# No step waits for a token that died with its replica: with one for each, a new process gives its gradient
# for the step that training is in before it takes a token; with several for each, that gradient is the one
# which the lost token, or the waiting replica, stood for.
#
# A chief that begins anew empties the accumulators first and then the queue. Gradients that a replica had
# given to some of them are lost then, so a session that took part before the queue was begun again gets an
# AbortedError, and takes part anew.


class Tokens:
    """Whole numbers; ``now`` is in seconds of any clock.

    ``session`` identifies the session that acts.

    >>> tokens = Tokens()
    >>> tokens.begin(replicas=2, one_each=True)
    >>> tokens.put([7, 7])
    >>> [tokens.take("/job:worker/task:0", local_step, 0.0) for local_step in (6, 7)], len(tokens)
    ([7, None], 1)
    """

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        """Which replicas wait for a token now."""
        self._first: deque[int] = deque()
        self._tokens: deque[int] = deque()
        self._one_each = False
        self._ended: NbdistError | None = None
        self._begun = self._turn = 0
        self._replicas = 0
        self._training: tuple[str, ...] = ()
        # By session: the value of `_begun` when it last took part.
        self._members: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._seen: dict[str, tuple[int | None, float]] = {}  # the last token of each replica, and when

    def __len__(self) -> int:
        return len(self._first) + len(self._tokens)

    @property
    def open(self) -> bool:
        """Whether tokens are to be had: it was begun, and not closed since."""
        return self._begun > 0 and self._ended is None

    def begin(
        self,
        replicas: int,
        one_each: bool = False,
        session: object = None,
        training: tuple[str, ...] = (),
    ) -> None:
        """Empty and open it for so many replicas; ``training`` identifies what they train."""
        self._first.clear()
        self._tokens.clear()
        self._seen.clear()
        self._ended, self._replicas, self._one_each = None, replicas, one_each
        self._training = training
        self._begun += 1
        self._turn += 1
        if session is not None:
            self._members[session] = self._begun

    def serve(self) -> int:
        """Note that an aggregation is about to put tokens here; return a number for ``cut_off``."""
        self._turn += 1
        return self._turn

    def join(self, replica: str, now: float, session: object = None, training: tuple[str, ...] = ()) -> bool:
        """Record that a replica is present, if there are tokens; return whether there are.

        Raises OutOfRangeError if ``training`` has ended, in which the replica had a part before.
        """
        if self.open:
            if replica:
                self._seen.setdefault(replica, (None, now))
            if session is not None:
                self._members[session] = self._begun
        elif isinstance(self._ended, OutOfRangeError) and training and training == self._training:
            raise self._ended
        return self.open

    def put(self, tokens: Iterable[int], first: bool = False, session: object = None) -> None:
        """Add tokens, of a step or the ``first`` ones; raises the error with which the queue was closed."""
        self._check_member(session)
        if self._ended is not None:
            raise self._ended
        if self._one_each and not first:
            self._tokens.clear()  # a replica without one of the last step takes one of this
        (self._first if first else self._tokens).extend(tokens)

    def take(self, replica: str, local_step: int, now: float, session: object = None) -> int | None:
        """Return a token for a replica that is at ``local_step``, None if there is none for it yet.

        Raises the error with which the queue was closed instead of None, and AbortedError if it was begun
        again since the session took part.
        """
        self._check_member(session)
        if self._first and (not self._one_each or self._first[0] >= local_step):
            token = self._first.popleft()
        elif self._tokens and (not self._one_each or self._tokens[0] > local_step):
            token = self._tokens.popleft()
        elif self._ended is not None:
            raise self._ended
        else:
            return None
        if replica:
            self._seen[replica] = (token, now)
        return token

    def _check_member(self, session: object) -> None:
        if session is not None and self._members.setdefault(session, self._begun) != self._begun:
            raise AbortedError(
                "the chief has begun the training again, and what this session gave before is dropped: take "
                "part with a new session"
            )

    def close(self, error: NbdistError | None = None) -> None:
        """Close the queue: takers that find it empty get ``error``."""
        if self._ended is None:
            self._ended = error or OutOfRangeError(
                "the training has ended: its chief has closed the queue of tokens"
            )

    def cut_off(self, turn: int, error: NbdistError) -> None:
        """Close the queue unless it was begun or served again since that ``serve``."""
        if turn == self._turn:
            self.close(error)

    def missing(self, now: float) -> str:
        """Return a text with the replicas that do not wait for a token, and since when."""
        away = [
            f"{name} (" + ("joined" if token is None else f"took token {token}") + f" {now - at:.1f} s ago)"
            for name, (token, at) in self._seen.items()
            if not self.waiting[name]
        ]
        known = set(self._seen) | {name for name, count in self.waiting.items() if count}
        unknown = self._replicas - len(known)
        if self._begun and unknown > 0:
            away.append(f"{unknown} of {self._replicas} replicas that never took part")
        return f"not waiting for one: {', '.join(away)}" if away else "every known replica waits"
