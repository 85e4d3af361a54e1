"""Collectives within one process: one rank alone, or several threads.

replicas = thread_group(["replica 0", "replica 1"])      # one for each thread
replicas[0].all_reduce(x)                                # in the first thread, and so on
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.wire.collective.base import (
    Collective,
    Endpoint,
    GroupBroken,
    GroupFailure,
    Member,
    rank_labels,
)
from nbdist.wire.collective.call import (
    REDUCING,
    CollectiveCall,
    check_out,
    combine,
    cupy_of,
    is_on_device,
)
from nbdist.wire.rpc.frame import Array


class LocalCollective(Collective):
    """A rank of a group of threads of this process."""

    kind = "local"

    def __init__(
        self,
        rank: int,
        labels: Sequence[str],
        rendezvous: ThreadRendezvous,
        timeout: float | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(rank, labels, check)
        self._rendezvous = rendezvous
        self._timeout = timeout

    def _look(self) -> None:
        self._rendezvous.check()

    def peek(self) -> str:
        """Return whether another thread "waits" in a call that this one has not begun, or has "left"."""
        return self._rendezvous.peek()

    def _on_device(self, call: CollectiveCall, x: Any, out: Any) -> Array:
        if self.size > 1:
            return super()._on_device(call, x, out)
        check_out(call, out, self.rank)
        return self._run(call, x, cupy_of(x).empty(call.out_shape(0), call.result) if out is None else out)

    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        if is_on_device(x):  # of one rank alone
            if out is not x:
                out[...] = x
            return
        begun = time.perf_counter()
        self._rendezvous.meet(self, call, x, out)
        self.waited += time.perf_counter() - begun

    def _announce_failure(self, failure: GroupFailure) -> None:
        self._rendezvous.fail(failure)

    def _leave(self) -> None:
        self._rendezvous.leave(self.rank)


class LocalEndpoint(Endpoint):
    """The endpoint of one rank alone."""

    def __init__(self, member: Member) -> None:
        self._member = member

    @property
    def info(self) -> dict[str, Any]:
        """Empty: a single rank connects to no other."""
        return {}

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Return the group of this rank alone."""
        alone = self._member.labels
        return LocalCollective(0, alone, ThreadRendezvous(alone), check=self._member.check)

    def close(self) -> None:
        """Nothing to release."""


def thread_group(
    names: Sequence[str], timeout: float | None = None, check: Callable[[], None] | None = None
) -> list[Collective]:
    """Return the ranks of a group of threads, one for each; `check` is that of a Member, for all ranks.

    >>> alone = thread_group(["worker 0"])[0]
    >>> alone.all_reduce(np.arange(3), "sum")
    array([0, 1, 2])
    """
    labels = rank_labels(names)
    rendezvous = ThreadRendezvous(labels)
    return [LocalCollective(rank, labels, rendezvous, timeout, check) for rank in range(len(labels))]


class ThreadRendezvous:
    """Collects the calls of all threads; the last thread to call does the work for all."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._changed = threading.Condition()
        self._here: dict[int, tuple[CollectiveCall, Array, Array]] = {}
        self._rounds = 0
        self._left: set[int] = set()
        self._failure: GroupFailure | None = None

    def meet(self, rank: LocalCollective, call: CollectiveCall, x: Array, out: Array) -> None:
        """Execute a call of a rank together with the other threads."""
        timeout, abort_check = rank._timeout, rank.abort_check
        with self._changed:
            self.check()
            number = self._rounds
            self._here[rank.rank] = (call, x, out)
            if len(self._here) == len(self._labels):
                self._finish(rank.sequence)
                return
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done(number, deadline, abort_check.max_sleep):
            abort_check()
        with self._changed:
            if self._rounds != number:
                return
            self.check()
            missing = sorted(set(range(len(self._labels))) - self._here.keys())
            labels = " and ".join(self._labels[other] for other in missing)
            what = "has left the group" if self._has_left() else f"did not make the call within {timeout} s"
            raise GroupBroken.by("UnavailableError", f"{labels} {what}: {rank.doing}")

    def _done(self, number: int, deadline: float | None, max_sleep: float | None) -> bool:
        """Wait up to `max_sleep` seconds; return whether the call is done, has failed or timed out."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._changed:
            over: Callable[[], bool] = lambda: bool(
                self._rounds != number or self._failure or self._has_left()
            )
            limits = (limit for limit in (left, max_sleep) if limit is not None)
            ended = self._changed.wait_for(over, min(limits, default=None))
        return ended or (deadline is not None and time.monotonic() >= deadline)

    def _has_left(self) -> bool:
        """Return whether a thread that has not made the call has left."""
        return bool(self._left - self._here.keys())

    def fail(self, failure: GroupFailure) -> None:
        """Break the group for all threads."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def leave(self, rank: int) -> None:
        """Note that a thread makes no more calls."""
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise GroupBroken if the group is broken."""
        if self._failure is not None:
            raise GroupBroken(self._failure)

    def peek(self) -> str:
        """Return "waits" if a thread is in a call, "left" if one has left, for a thread that is in none."""
        return "waits" if self._here else "left" if self._left else ""

    def _finish(self, sequence: int) -> None:
        calls = {rank: call.text for rank, (call, _, _) in self._here.items()}
        GroupBroken.raise_unless_same(calls, sequence, self._labels)
        ranks = range(len(self._labels))
        call = self._here[0][0]
        result = _result(call, [self._here[rank][1] for rank in ranks])
        for rank in ranks:
            out = self._here[rank][2]
            part = slice(*call.rows(rank)) if call.what == "reduce_scatter" else ...
            np.copyto(out, result[part], casting="same_kind")
        self._here.clear()
        self._rounds += 1
        self._changed.notify_all()


def _result(call: CollectiveCall, values: list[Array]) -> Array:
    if call.what in REDUCING:
        result = np.empty(call.shape, call.work)
        combine(call, [value.astype(call.work, copy=False) for value in values], result)
        return result
    # A copy, because the root's out may be its input.
    return np.stack(values) if call.what == "all_gather" else np.array(values[max(call.root, 0)])
