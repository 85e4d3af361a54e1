"""Collectives without a wire: one rank alone, or several threads of one process.

replicas = thread_group(["replica 0", "replica 1"])      # one for each thread
replicas[0].all_reduce(x)                                # in the first thread, and so on
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.wire.collective.base import Broken, Collective, Lookout, Member, Seat, Trouble, call_ranks
from nbdist.wire.collective.call import REDUCING, Call, combine, compare
from nbdist.wire.rpc.frame import Array


class LocalCollective(Collective):
    """A rank of a group whose ranks all live in this process."""

    kind = "local"

    def __init__(
        self,
        rank: int,
        called: Sequence[str],
        table: Table,
        timeout: float | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(rank, called, check)
        self._table = table
        self._timeout = timeout

    def _perform(self, call: Call, x: Array, out: Array) -> None:
        begun = time.perf_counter()
        self._table.meet(self.rank, self.sequence, call, x, out, self._timeout, self.lookout)
        self.waited += time.perf_counter() - begun

    def _spread(self, trouble: Trouble) -> None:
        self._table.fail(trouble)

    def _leave(self) -> None:
        self._table.leave(self.rank)

    def _release(self) -> None:
        """Nothing is held."""


class LocalSeat(Seat):
    """The seat of one rank alone."""

    def __init__(self, member: Member) -> None:
        self._member = member

    @property
    def card(self) -> dict[str, Any]:
        """Nothing that anyone needs."""
        return {}

    def join(self, cards: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Return the group of this rank alone."""
        alone = self._member.called
        return LocalCollective(0, alone, Table(alone), check=self._member.check)

    def close(self) -> None:
        """Give up nothing."""


def thread_group(
    names: Sequence[str], timeout: float | None = None, check: Callable[[], None] | None = None
) -> list[Collective]:
    """Return the ranks of a group, one for each thread that takes part; `check` as a Member has it, for all.

    >>> alone = thread_group(["worker 0"])[0]
    >>> alone.all_reduce(np.arange(3), "sum")
    array([0, 1, 2])
    """
    called = call_ranks(names)
    table = Table(called)
    return [LocalCollective(rank, called, table, timeout, check) for rank in range(len(called))]


class Table:
    """Where the threads meet; the last to come does the work for all."""

    def __init__(self, called: Sequence[str]) -> None:
        self._called = called
        self._changed = threading.Condition()
        self._here: dict[int, tuple[Call, Array, Array]] = {}
        self._rounds = 0
        self._left: set[int] = set()
        self._trouble: Trouble | None = None

    def meet(
        self,
        rank: int,
        sequence: int,
        call: Call,
        x: Array,
        out: Array,
        timeout: float | None,
        lookout: Lookout,
    ) -> None:
        """Do a call together with the other threads."""
        with self._changed:
            self._check()
            number = self._rounds
            self._here[rank] = (call, x, out)
            if len(self._here) == len(self._called):
                self._finish(sequence)
                return
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done(number, deadline, lookout.nap):
            lookout()
        with self._changed:
            if self._rounds != number:
                return
            self._check()
            missing = sorted(set(range(len(self._called))) - self._here.keys())
            who = " and ".join(self._called[other] for other in missing)
            what = "has left the group" if self._is_left() else f"did not come within {timeout} s"
            raise Broken(
                Trouble(
                    "UnavailableError", f"{who} {what}: {call.text}, collective #{sequence}, waits for it"
                )
            )

    def _done(self, number: int, deadline: float | None, nap: float | None) -> bool:
        """Wait; return whether the round is over, for good or ill, rather than the nap."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._changed:
            over: Callable[[], bool] = lambda: bool(
                self._rounds != number or self._trouble or self._is_left()
            )
            came = self._changed.wait_for(over, min((t for t in (left, nap) if t is not None), default=None))
        return came or (deadline is not None and time.monotonic() >= deadline)

    def _is_left(self) -> bool:
        """Whether someone has left who is waited for."""
        return bool(self._left - self._here.keys())

    def fail(self, trouble: Trouble) -> None:
        """Break the group for all threads."""
        with self._changed:
            self._trouble = self._trouble or trouble
            self._changed.notify_all()

    def leave(self, rank: int) -> None:
        """Note that a thread makes no more calls."""
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def _check(self) -> None:
        if self._trouble is not None:
            raise Broken(self._trouble)

    def _finish(self, sequence: int) -> None:
        trouble = compare(
            {rank: call.text for rank, (call, _, _) in self._here.items()}, sequence, self._called
        )
        if trouble:
            raise Broken(Trouble("InvalidArgumentError", trouble))
        ranks = range(len(self._called))
        call = self._here[0][0]
        result = _result(call, [self._here[rank][1] for rank in ranks])
        for rank in ranks:
            out = self._here[rank][2]
            part = slice(*call.rows(rank)) if call.what == "reduce_scatter" else ...
            np.copyto(out, result[part], casting="same_kind")
        self._here.clear()
        self._rounds += 1
        self._changed.notify_all()


def _result(call: Call, values: list[Array]) -> Array:
    if call.what in REDUCING:
        result = np.empty(call.shape, call.work)
        combine(call, [value.astype(call.work, copy=False) for value in values], result)
        return result
    # A copy, for the root's out may be its input.
    return np.stack(values) if call.what == "all_gather" else np.array(values[max(call.root, 0)])
