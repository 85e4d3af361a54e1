"""Collectives: calls that all ranks of a group make together, behind one interface.

    group.all_reduce(gradient, op="mean", out=gradient)
    group.broadcast(weights, root=0)
    group.barrier()

Every rank makes the same calls in the same order. A rank that makes a different call, leaves or dies breaks
the group: every rank raises an error with the same reason. A broken group cannot be used again; form a new
one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    UnavailableError,
    error_class,
)
from nbdist.wire.collective.call import (
    CollectiveCall,
    check_out,
    compare,
    describe,
    is_on_device,
    like,
    to_host,
)
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.frame import Array

__all__ = [
    "Collective",
    "Endpoint",
    "GroupBroken",
    "GroupFailure",
    "Member",
    "check_same_group",
    "rank_labels",
]
KNOWN_CALLS = 256


class Collective(ABC):
    """One rank's handle of a group. One thread of a rank uses it at a time; runs on tasks.

    Arrays are NumPy arrays of any shape and strides, of a dtype of fixed size, or CuPy arrays: then `out` and
    the result are CuPy arrays too. The result is written to `out`, which may be the input itself; without
    `out` it is a new array. Results are bitwise equal on all ranks.
    """

    over_network: ClassVar[bool] = False
    """Whether calls use a network, so that it is worth overlapping them with the backward pass."""
    kind: ClassVar[str]
    """The transport: "local", "shm", "ring", "hierarchical", "nccl" or "mpi"."""

    def __init__(self, rank: int, labels: Sequence[str], check: Callable[[], None] | None = None) -> None:
        self.abort_check = AbortCheck.of(check)
        """The check that ends a wait, for example when the run is aborted."""
        self.rank, self.size, self.labels = rank, len(labels), tuple(labels)
        self.sequence = 0
        """How many collective calls this rank has begun."""
        self.notes: list[str] = []
        """Notes for the user, for example that shared memory is full."""
        self.waited = 0.0
        """Total seconds that this rank has waited, in calls, for the others to make the same call."""
        self.parent: Collective | None = None
        """The group that contains this one, if any."""
        self.phase_of: Collective | None = None
        """The group of which each call is made of calls of this one, if any: ranks compare that group's."""
        self._failure: GroupFailure | None = None
        self._current = describe("barrier", (0,), _NOTHING.dtype, self.size)
        self._inside = self._closed = False
        self._calls: dict[Any, CollectiveCall] = {}

    def all_reduce(self, x: Any, op: str = "mean", out: Array | None = None) -> Array:
        """Return the sum, mean, min, max or product of all ranks' x, on every rank.

        Arrays are combined as NumPy combines two arrays, so the dtype stays, except that the mean of integers
        is float64. Algorithm for large arrays: reduce-scatter, then all-gather (Thakur, Rabenseifner and
        Gropp, "Optimization of Collective Communication Operations in MPICH", 2005).
        """
        return self._enter("all_reduce", x, out, op)

    def reduce_scatter(self, x: Any, op: str = "mean", out: Array | None = None) -> Array:
        """Return this rank's rows of the result of `all_reduce`, split as `np.array_split` does."""
        return self._enter("reduce_scatter", x, out, op)

    def all_gather(self, x: Any, out: Array | None = None) -> Array:
        """Return all ranks' x, stacked along a new first axis."""
        return self._enter("all_gather", x, out)

    def broadcast(self, x: Any, root: int = 0, out: Array | None = None) -> Array:
        """Return the root's x, on every rank; the x of the others gives shape and dtype only."""
        return self._enter("broadcast", x, out, "", root)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._run(self._call("barrier", _NOTHING), _NOTHING, _NOTHING)

    def symmetric_buffer(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an array of zeros on which calls in place are fastest.

        All ranks call it with the same arguments. Use it for this group's `all_reduce(x, out=x)`,
        `reduce_scatter(x, out=own)` or `all_gather(own, out=x)`, where `own` are this rank's rows of x, on
        all ranks or on none. It stays valid after the group is closed.
        """
        return np.zeros(tuple(shape), dtype)

    def peek(self) -> str:
        """Return the state of the other ranks, without waiting.

        "waits": one waits in a call that this rank has not begun. "left": one has left the group. Otherwise
        an empty text.
        """
        return ""

    def abort(self, reason: str) -> None:
        """Break the group: current and later calls of all ranks raise AbortedError with the reason.

        May be called from any thread; the first reason counts.
        """
        self.break_with(GroupFailure("AbortedError", f"{self._me} aborted: {reason}"))

    def check(self) -> None:
        """Raise the reason if the group is known to be broken; never waits."""
        if self._failure is not None:
            raise self._failure.error()
        try:
            self._look()
        except GroupBroken as broken:
            raise broken.failure.error() from None

    def _look(self) -> None:
        """Raise GroupBroken if another rank has announced a failure or has died; never waits."""
        return

    def close(self) -> None:
        """Leave the group and release its resources; may be called twice.

        Ranks that wait for this one, now or later, raise UnavailableError.
        """
        if self._closed:
            return
        self._closed = True
        if self._inside:  # another thread is in a call; it releases everything when it returns
            self.break_with(GroupFailure("AbortedError", f"{self._me} closed its group during a call"))
        else:
            self._leave()
            self._release()

    @abstractmethod
    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """Execute a call together with the other ranks; raise GroupBroken if the group breaks."""

    @abstractmethod
    def _announce_failure(self, failure: GroupFailure) -> None:
        """Send the failure to all ranks; may be called from any thread and does not block for long."""

    def _leave(self) -> None:
        """Announce to the others that this rank makes no more calls, unless `_release` does."""
        return

    def _release(self) -> None:
        """Release all resources, if there are any; may be called twice."""
        return

    def _enter(self, what: str, x: Any, out: Any, op: str = "", root: int = -1) -> Array:
        if not isinstance(x, np.ndarray):
            if is_on_device(x):
                return self._on_device(self._call(what, x, op, root), x, out)
            x = np.asarray(x)
        call = self._call(what, x, op, root)
        return self._run(call, x, call.output(out, self.rank))

    def _on_device(self, call: CollectiveCall, x: Any, out: Any) -> Array:
        """Execute a call on a CuPy array through host memory; a kind may override it."""
        check_out(call, out, self.rank)
        return like(x, self._run(call, to_host(x), call.output(None, self.rank)), out)

    @property
    def doing(self) -> str:
        """The current call and its number, for error messages."""
        if self.parent is not None:
            return self.parent.doing
        return f"{self._current.text}, collective #{self.sequence}"

    @property
    def compared(self) -> tuple[CollectiveCall, int]:
        """The call that ranks compare in the current one, and its number."""
        group = self if self.phase_of is None else self.phase_of
        return group._current, group.sequence

    @property
    def _me(self) -> str:
        return self.labels[self.rank]

    def _call(self, what: str, x: Any, op: str = "", root: int = -1) -> CollectiveCall:
        key = (what, x.dtype, x.shape, op, root)
        call = self._calls.get(key)
        if call is None:
            call = describe(what, x.shape, x.dtype, self.size, op, root)
            if len(self._calls) >= KNOWN_CALLS:
                self._calls.clear()
            self._calls[key] = call
        return call

    def _run(self, call: CollectiveCall, x: Array, out: Array) -> Array:
        if self._inside or self._closed or self._failure is not None:
            raise self._unusable()
        self._inside = True  # CPython handles signals at calls, so not between this line and `try`
        try:
            self.sequence += 1
            self._current = call
            if self.abort_check.is_set:
                self.abort_check()
            self._perform(call, x, out)
        except BaseException as error:
            try:
                self._failed(error)
            except KeyboardInterrupt:  # a second one; the failure has to reach the others nevertheless
                self._failed(error)
                raise
            if isinstance(error, GroupBroken):
                assert self._failure is not None
                raise self.abort_check.raised or self._failure.error() from None
            raise
        finally:
            self._inside = False
            self._release_if_closed()
        return out

    def _release_if_closed(self) -> None:
        if self._closed:  # by another thread during the call
            self._release()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, GroupBroken):
            self.break_with(error.failure)
            return
        if isinstance(error, NbdistError):
            self.break_with(GroupFailure(type(error).__name__, str(error)))
            return
        what = "was interrupted" if isinstance(error, KeyboardInterrupt) else f"failed ({error!r})"
        self.break_with(GroupFailure("AbortedError", f"{self._me} {what} in {self.doing}"))

    def break_with(self, failure: GroupFailure) -> None:
        """Break the group with a failure; the first one counts."""
        if self._failure is None:
            self._failure = failure
        self._announce_failure(self._failure)

    def _unusable(self) -> NbdistError:
        if self._failure is not None:
            return self._failure.error("this group of ranks is broken, form another one; the reason was: ")
        if self._inside:
            return FailedPreconditionError(
                f"another thread of {self._me} is in a collective call; use one thread at a time"
            )
        return FailedPreconditionError(f"{self._me} has closed its group; form another one")

    def __enter__(self) -> Collective:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._closed:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<{self.kind} collective, rank {self.rank} of {self.size}>"


_NOTHING = np.empty(0, np.uint8)

# The resources of a rank before its group is formed; each kind of collective has its own class.


class Endpoint(ABC):
    """The resources that one rank creates before it connects to the others."""

    @property
    @abstractmethod
    def info(self) -> dict[str, Any]:
        """The endpoint info: plain values that the caller sends to every rank."""

    @abstractmethod
    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Connect to the others, given the endpoint infos of all ranks in their order; return the group.

        Returns once all ranks have joined. Raises UnavailableError or DeadlineExceededError if one does not
        join within `timeout` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the endpoint's resources, if `join` was not called."""


# The failure of a group, which all of its ranks raise.


@dataclass(frozen=True)
class GroupFailure:
    """Why a group is broken: the class name and the text of the error that all ranks raise."""

    kind: str
    text: str

    def error(self, before: str = "") -> NbdistError:
        """Return the error to raise."""
        return (error_class(self.kind) or AbortedError)(before + self.text)

    def pack(self, room: int) -> bytes:
        """Return the failure as at most `room` bytes."""
        return f"{self.kind}\n{self.text}".encode()[:room]

    @classmethod
    def unpack(cls, raw: bytes) -> GroupFailure:
        """Return the failure that `pack` packed."""
        kind, _, text = raw.decode(errors="ignore").partition("\n")
        return cls(kind, text)


class GroupBroken(Exception):
    """Raised within a call when its group breaks; `Collective` raises `failure.error()` instead."""

    def __init__(self, failure: GroupFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure

    @classmethod
    def by(cls, kind: str, text: str) -> GroupBroken:
        """Return it for a failure of this kind and text."""
        return cls(GroupFailure(kind, text))

    @classmethod
    def raise_unless_same(cls, calls: dict[int, str], sequence: int, labels: Sequence[str]) -> None:
        """Raise it unless the ranks make the same call, given as text by rank."""
        if len(set(calls.values())) > 1:
            raise cls.of_calls(calls, sequence, labels)

    @classmethod
    def of_calls(cls, calls: dict[int, str], sequence: int, labels: Sequence[str]) -> GroupBroken:
        """Return it for ranks whose calls differ, given as text by rank; texts may be cut off and alike."""
        differ = compare(calls, sequence, labels) or (
            f"ranks do not agree on collective #{sequence}: all calls begin with "
            f"{next(iter(calls.values()))}, and differ after it"
        )
        return cls.by("InvalidArgumentError", differ)


# Abort checks of a waiting rank: a run's abort flag, for example.
#
# abort_check = AbortCheck.of(member.check)
# abort_check()           # call it often; it calls the check at most every 0.1 s
# abort_check.raised      # the error of the check, for the rank's caller

CHECK_EVERY = 0.1  # seconds; a sleeping rank wakes as often, so that a check is at most 0.2 s late


class AbortCheck:
    """Calls a check at most every 0.1 s; without a check it does nothing."""

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        self._check = check
        self.is_set = check is not None
        """Whether there is a check."""
        self._next = 0.0
        self.raised: BaseException | None = None
        """The error that the check raised."""

    @classmethod
    def of(cls, check: Callable[[], None] | None) -> AbortCheck:
        """Return the AbortCheck of a check; an AbortCheck itself as it is, so that nested groups share it."""
        return check if isinstance(check, cls) else cls(check)

    @property
    def max_sleep(self) -> float | None:
        """Seconds that a rank may sleep at most; None without a limit."""
        return None if self._check is None else CHECK_EVERY

    def __call__(self) -> None:
        """Call the check, unless it was called less than 0.1 s ago; raises its error."""
        if self._check is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + CHECK_EVERY
        try:
            self._check()
        except BaseException as error:
            self.raised = error
            raise


# The members of a group, as each rank knows them before it connects to the others.


@dataclass(frozen=True)
class Member:
    """One rank's description of the group that it is about to join.

    `hosts` and `names` are those of all ranks, in their order; ranks with equal host can share memory.
    `incarnation` is a number that all ranks of this group have and no other group has. For several hosts,
    `keys` are the cluster's keys and `bind` is the address of this host that the others can reach. `timeout`
    limits a call, in seconds; None: no limit as long as all ranks live. `numbers` are the ranks' numbers in
    error messages, if the group is part of another. `check` is called at least every 0.2 s while this rank
    waits in a call; an error that it raises breaks the group on all ranks and is raised here.
    """

    rank: int
    hosts: tuple[str, ...]
    names: tuple[str, ...]
    incarnation: int
    prefix: str
    keys: ClusterKeys | None = None
    bind: str = "127.0.0.1"
    timeout: float | None = None
    numbers: tuple[int, ...] = ()
    check: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if len(self.hosts) != len(self.names) or not 0 <= self.rank < len(self.hosts):
            raise InvalidArgumentError(
                f"rank {self.rank} of {len(self.hosts)} hosts and {len(self.names)} names: give one host and "
                "one name for each rank, and a rank below their number"
            )

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)

    @property
    def labels(self) -> tuple[str, ...]:
        """The ranks' labels in error messages, such as `rank 1 (/job:worker/task:1)`."""
        return rank_labels(self.names, self.numbers)


def rank_labels(names: Sequence[str], numbers: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the labels of ranks with these names, for error messages.

    >>> rank_labels(["ps", "worker"])
    ('rank 0 (ps)', 'rank 1 (worker)')
    """
    return tuple(f"rank {number} ({name})" for number, name in zip(numbers or range(len(names)), names))


def check_same_group(member: Member, infos: Sequence[dict[str, Any]]) -> None:
    """Raise UnavailableError unless the endpoint infos are those of this group, one of each rank."""
    if len(infos) != member.size:
        raise UnavailableError(f"{len(infos)} endpoint infos for {member.size} ranks")
    for rank, info in enumerate(infos):
        if info.get("incarnation") != member.incarnation:
            raise UnavailableError(
                f"{member.labels[rank]} is of incarnation {info.get('incarnation')!r} of the "
                f"group, but this rank is of incarnation {member.incarnation}"
            )
