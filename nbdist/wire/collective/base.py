"""Collectives: what all ranks of a group do together, behind one contract.

    group.all_reduce(gradient, op="mean", out=gradient)
    group.broadcast(weights, root=0)
    group.barrier()

Every rank makes the same calls in the same order; one that makes another call, leaves or dies ends the group,
on every rank and with one reason. A group that is broken stays so: form another one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar

import numpy as np

from nbdist import errors
from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    UnavailableError,
)
from nbdist.wire.collective.call import CollectiveCall, check_out, describe, is_on_device, like, to_host
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
    """What all ranks of a group do together. One thread of a rank at a time; runs on tasks.

    Arrays are NumPy's, of any shape, strides and dtype of a fixed size, or CuPy's: then so is the result, and
    `out` has to be. `out` takes the result, and may be the input itself; without it the result is a new
    array. Results are the same to the last bit on all ranks.
    """

    over_network: ClassVar[bool] = False
    """Whether calls wait for a network, so that one is worth making while gradients are still computed."""
    kind: ClassVar[str]
    """How values travel: "local", "shm", "ring" or "hierarchical"."""

    def __init__(self, rank: int, labels: Sequence[str], check: Callable[[], None] | None = None) -> None:
        self.abort_check = AbortCheck.of(check)
        """What is looked at beside the group while this rank waits."""
        self.rank, self.size, self.labels = rank, len(labels), tuple(labels)
        self.sequence = 0
        """How many collective calls this rank has begun."""
        self.notes: list[str] = []
        """What people should know, such as that shared memory is full."""
        self.waited = 0.0
        """Seconds so far that went by in calls until all ranks had come."""
        self.parent: Collective | None = None
        """The group that this one is a part of."""
        self._failure: GroupFailure | None = None
        self._current = describe("barrier", (0,), _NOTHING.dtype, self.size)
        self._inside = self._closed = False
        self._calls: dict[Any, CollectiveCall] = {}

    def all_reduce(self, x: Any, op: str = "mean", out: Array | None = None) -> Array:
        """Return the sum, mean, min, max or product of all ranks' x, on every rank.

        It is combined as NumPy combines two arrays, so that the dtype stays, except that the mean of integers
        is float64. The algorithm is reduce-scatter and all-gather (Thakur, Rabenseifner, Gropp 2005).
        """
        return self._enter("all_reduce", x, out, op)

    def reduce_scatter(self, x: Any, op: str = "mean", out: Array | None = None) -> Array:
        """Return this rank's rows of what `all_reduce` returns; rows are cut as `np.array_split` does."""
        return self._enter("reduce_scatter", x, out, op)

    def all_gather(self, x: Any, out: Array | None = None) -> Array:
        """Return all ranks' x, stacked along a new first axis."""
        return self._enter("all_gather", x, out)

    def broadcast(self, x: Any, root: int = 0, out: Array | None = None) -> Array:
        """Return the root's x, on every rank; the others' x says only shape and dtype."""
        return self._enter("broadcast", x, out, "", root)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._run(self._call("barrier", _NOTHING), _NOTHING, _NOTHING)

    def symmetric_buffer(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an array of zeros on which an all-reduce in place is fastest; all ranks call it alike.

        Use it for this group's `all_reduce(x, out=x)`, on all ranks or on none; it outlives the group.
        """
        return np.zeros(tuple(shape), dtype)

    def peek(self) -> str:
        """Return what another rank is seen to do, without waiting.

        "waits" in a call that this rank has not begun, has "left" the group, or an empty text.
        """
        return ""

    def abort(self, reason: str) -> None:
        """Break the group: whoever waits in a call, or makes another, raises AbortedError with the reason.

        May be called from any thread; the first reason counts.
        """
        self.break_with(GroupFailure("AbortedError", f"{self._me} aborted: {reason}"))

    def check(self) -> None:
        """Raise the reason if the group is broken, as far as can be seen without waiting."""
        if self._failure is not None:
            raise self._failure.error()

    def close(self) -> None:
        """Leave the group and give its resources up; safe to repeat.

        Ranks that wait for this one, then or later, raise UnavailableError.
        """
        if self._closed:
            return
        self._closed = True
        if self._inside:  # another thread is, and lets go of everything as soon as it is out
            self.break_with(GroupFailure("AbortedError", f"{self._me} closed its group during a call"))
        else:
            self._leave()
            self._release()

    @abstractmethod
    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """Do a call together with the others; raise GroupBroken when that cannot be any more."""

    @abstractmethod
    def _announce_failure(self, failure: GroupFailure) -> None:
        """Tell all ranks that the group is broken; from any thread, never blocking for long."""

    @abstractmethod
    def _leave(self) -> None:
        """Tell the others that this rank makes no more calls."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of everything; safe to repeat."""

    def _enter(self, what: str, x: Any, out: Any, op: str = "", root: int = -1) -> Array:
        if not isinstance(x, np.ndarray):
            if is_on_device(x):
                return self._on_device(self._call(what, x, op, root), x, out)
            x = np.asarray(x)
        call = self._call(what, x, op, root)
        return self._run(call, x, call.output(out, self.rank))

    def _on_device(self, call: CollectiveCall, x: Any, out: Any) -> Array:
        """Do a call on a CuPy array; its values go through the host, where a kind knows no other way."""
        check_out(call, out, self.rank)
        return like(x, self._run(call, to_host(x), call.output(None, self.rank)), out)

    @property
    def doing(self) -> str:
        """The last call that the user made, for people."""
        if self.parent is not None:
            return self.parent.doing
        return f"{self._current.text}, collective #{self.sequence}"

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
        self._inside = True  # an interrupt comes at calls only, so not before the next line
        try:
            self.sequence += 1
            self._current = call
            if self.abort_check.is_set:
                self.abort_check()
            self._perform(call, x, out)
        except BaseException as error:
            try:
                self._failed(error)
            except KeyboardInterrupt:  # a second one; the others must be told nevertheless
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
        if self._closed:  # by another thread, meanwhile
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
        """Break the group for a reason that has a kind; the first one counts."""
        if self._failure is None:
            self._failure = failure
        self._announce_failure(self._failure)

    def _unusable(self) -> NbdistError:
        if self._failure is not None:
            return self._failure.error("this group of ranks is broken, form another one; it broke when ")
        if self._inside:
            return FailedPreconditionError(
                f"another thread of {self._me} is in a collective call; take turns"
            )
        return FailedPreconditionError(f"{self._me} has closed its group; form another one")

    def __enter__(self) -> Collective:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._closed:
            self.abort(f"{type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<{self.kind} collective, rank {self.rank} of {self.size}>"


_NOTHING = np.empty(0, np.uint8)

# What a rank holds before its group is formed; each kind of collective has one.


class Endpoint(ABC):
    """What one rank brings to a group before it knows the others."""

    @property
    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Plain values for the others, which the caller hands to every rank."""

    @abstractmethod
    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Meet the others, whose cards are given in the order of ranks; return the group once all are there.

        Raises UnavailableError when one does not come within `timeout` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up what was brought, if `join` was not called."""


# The failure of a group, which all of its ranks raise.


@dataclass(frozen=True)
class GroupFailure:
    """Why a group is broken: the name of the error that everyone raises, and its text."""

    kind: str
    text: str

    def error(self, before: str = "") -> NbdistError:
        """Return the error to raise."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, NbdistError)) or kind is errors.MissingExtra:
            kind = AbortedError
        return kind(before + self.text)

    def pack(self, room: int) -> bytes:
        """Return it as at most `room` bytes."""
        return f"{self.kind}\n{self.text}".encode()[:room]

    @classmethod
    def unpack(cls, raw: bytes) -> GroupFailure:
        """Return what `pack` packed."""
        kind, _, text = raw.decode(errors="ignore").partition("\n")
        return cls(kind, text)


class GroupBroken(Exception):
    """A group broke while this rank waited; becomes the error that the trouble names."""

    def __init__(self, failure: GroupFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


# Abort checks of a waiting rank: a run's abort flag, for example.
#
# lookout = AbortCheck.of(member.check)
# lookout()               # often; it calls the check every 0.1 s at most
# lookout.raised          # what the check raised, to be raised where the call was made

LOOK_EVERY = 0.1  # seconds; whoever sleeps wakes as often, so that no look is more than 0.2 s late


class AbortCheck:
    """Calls a check from time to time; without one it does nothing."""

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        self._check = check
        self.is_set = check is not None
        """Whether there is anything to look at."""
        self._next = 0.0
        self.raised: BaseException | None = None
        """What the check has raised."""

    @classmethod
    def of(cls, check: Callable[[], None] | None) -> AbortCheck:
        """Return a check's lookout; a lookout is its own, so that the parts of a group can share one."""
        return check if isinstance(check, cls) else cls(check)

    @property
    def nap(self) -> float | None:
        """For how many seconds at most a rank may sleep; None for as long as it likes."""
        return None if self._check is None else LOOK_EVERY

    def __call__(self) -> None:
        """Look, if it is time to; raise what the check raises."""
        if self._check is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_EVERY
        try:
            self._check()
        except BaseException as error:
            self.raised = error
            raise


# The members of a group, as each rank knows them before the rendezvous.


@dataclass(frozen=True)
class Member:
    """One rank of a group to be: who it is, and what it needs to meet the others.

    `hosts` and `names` are all ranks', in their order; ranks of equal host can share memory. `incarnation`
    is the same for all ranks of this group and for no other group. Where there are several hosts, `keys` are
    the cluster's and `bind` is the address of this host that the others reach. `timeout` is how many seconds
    a call may take, None for as long as all ranks live. `numbers` are what people call the ranks, where the
    group is part of another. `check` is called from time to time while this rank waits in a call, every
    0.2 s at least; what it raises breaks the group, on all ranks, and is raised here.
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
                f"rank {self.rank} of {len(self.hosts)} hosts and {len(self.names)} names; give one of each"
            )

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)

    @property
    def labels(self) -> tuple[str, ...]:
        """How errors call the ranks, such as `rank 1 (/job:worker/task:1)`."""
        return rank_labels(self.names, self.numbers)


def rank_labels(names: Sequence[str], numbers: Sequence[int] = ()) -> tuple[str, ...]:
    """Return how errors call ranks of these names.

    >>> rank_labels(["ps", "worker"])
    ('rank 0 (ps)', 'rank 1 (worker)')
    """
    return tuple(f"rank {number} ({name})" for number, name in zip(numbers or range(len(names)), names))


def check_same_group(member: Member, infos: Sequence[dict[str, Any]]) -> None:
    """Refuse cards that are not those of this very group."""
    if len(infos) != member.size:
        raise UnavailableError(f"{len(infos)} cards for {member.size} ranks")
    for rank, info in enumerate(infos):
        if info.get("incarnation") != member.incarnation:
            raise UnavailableError(
                f"{member.labels[rank]} is of incarnation {info.get('incarnation')!r} of the "
                f"group, this is {member.incarnation}"
            )
