"""Collectives of ranks on several hosts: shared memory within a host, rings of sockets between hosts.

Rank number i of each host is in lane i, a ring. An all-reduce is a reduce-scatter within every host, an
all-reduce of each lane on its share, and an all-gather within every host.
"""

# Design.
#
# Two-level collectives as in MPI libraries for clusters of shared-memory nodes (Karonis et al. 2000,
# "Exploiting Hierarchy in Parallel Computer Networks to Optimize Collective Operation Performance"), with all
# ranks of a host as senders (Traeff and Hunold 2020, "Decomposing MPI Collectives for Exploiting Multi-lane
# Communication"). A value crosses the network once per host, not once per rank. Each lane carries its share,
# so that all ranks of a host encrypt, send and add, and not only one of them.
#
# A call consists of calls of two inner groups (schedule.py has the plan of each host): the host's group
# (shared memory, or one rank alone) and the rank's lane.
#
#     all_reduce      host: reduce-scatter        | lanes: all-reduce     | host: all-gather
#     reduce_scatter  host: reduce-scatter        | lanes: reduce-scatter |
#     all_gather                                  | lanes: all-gather     | host: all-gather
#     broadcast       the root's host: broadcast  | lanes: broadcast      | the other hosts: all-gather
#                     the other hosts: barrier
#     barrier         host: barrier               | lanes: barrier        |
#
# Hosts with different numbers of ranks. There are as many lanes as the smallest host has ranks. A larger host
# all-reduces where others reduce-scatter, and the ranks of its lanes broadcast what others all-gather; for an
# all-gather it collects the values of its ranks first. Lanes carry blocks of one size, padded with zeros. A
# barrier ends a call in which nothing else makes the ranks without a lane wait for the lanes.
#
# Agreement. In each phase the inner group compares the texts of the whole call (`phase_of`), not those of the
# phase. A rank sends to its lane when its host's ranks have made the same call, and a lane completes a call
# only if all of its ranks make it, so no rank completes a call on which ranks of any host do not agree. (In
# an all-gather a host compares at the end, which every host has.)
#
# Waiting. A rank waits for its host's ranks, then for its lane, then for its host again.
#
# Rounds. The phases of one call, and of consecutive calls, are consecutive calls of the inner groups, which
# keep their own rounds apart (sync.py, ring.py). Nothing is added here.
#
# Failures. A rank waits in one inner group while the other one breaks; so each inner group also checks the
# other one (`also_check`) at its usual interval. A rank that fails breaks both of its groups with the reason
# (`_announce_failure`), and passes the reason on from one group to the other when it raises it.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import NbdistError
from nbdist.wire.collective.base import (
    AbortCheck,
    Collective,
    Endpoint,
    GroupBroken,
    GroupFailure,
    Member,
    check_same_group,
)
from nbdist.wire.collective.call import CollectiveCall, flat
from nbdist.wire.collective.local import LocalEndpoint
from nbdist.wire.collective.ring import RingCollective, RingEndpoint
from nbdist.wire.collective.schedule import (
    HostPlan,
    Lanes,
    Phase,
    host_groups,
    most_items,
)
from nbdist.wire.collective.shm.collective import ShmCollective, ShmEndpoint
from nbdist.wire.rpc.frame import Array


class HierarchicalCollective(Collective):
    """A rank of a group on several hosts; `lane` is None for a rank that is in none."""

    kind = "hierarchical"
    over_network = True

    def __init__(self, member: Member, inner: Collective, lane: RingCollective | None) -> None:
        super().__init__(member.rank, member.labels, member.check)
        self._inner, self._lane = inner, lane
        inner.parent = inner.phase_of = self
        if lane is not None:
            lane.parent = lane.phase_of = self
        self._lanes = Lanes(host_groups(member.hosts))
        self._host = next(n for n, ranks in enumerate(self._lanes.hosts) if member.rank in ranks)
        self._number = self._lanes.hosts[self._host].index(member.rank)
        self._late = 0.0  # seconds of waiting, in `inner.waited`, for ranks that have made the call already
        self.notes += [*inner.notes, *(lane.notes if lane is not None else [])]
        if lane is not None and isinstance(inner, ShmCollective):
            # A rank waits in one of its groups; a failure of the other one has to end the wait.
            lane.also_check(inner.check)
            inner.also_check(lane.check)

    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        plan = self._lanes.plan(call, self._host)
        try:
            if call.what == "all_reduce":
                self._all_reduce(call, plan, x, out)
            elif call.what == "reduce_scatter":
                self._reduce_scatter(call, plan, x, out)
            elif call.what == "all_gather":
                self._all_gather(call, plan, x, out)
            elif call.what == "broadcast":
                self._broadcast(call, plan, x, out)
            else:
                for phase in plan.phases:
                    if phase.among == "host" or self._lane is not None:
                        self._do(phase, x)
        except NbdistError as error:
            raise GroupBroken.by(type(error).__name__, str(error)) from None
        self.waited = self._inner.waited + (0.0 if self._lane is None else self._lane.waited) - self._late

    def _all_reduce(self, call: CollectiveCall, plan: HostPlan, x: Array, out: Array) -> None:
        given = self._shares(flat(call, x))
        direct = out.flags.c_contiguous and out.dtype == call.work and out.size == given.size
        taken = out.reshape(given.shape) if direct else np.empty_like(given)
        self._between(call, plan, self._collected(call, plan, given), taken)
        if not direct:
            np.copyto(out, taken.reshape(-1)[: call.count].reshape(call.shape), casting="same_kind")

    def _reduce_scatter(self, call: CollectiveCall, plan: HostPlan, x: Array, out: Array) -> None:
        lanes, row = self._lanes, prod(call.shape[1:])
        items = flat(call, x)
        given = np.zeros((lanes.count, len(lanes.hosts), lanes.turns, most_items(call)), call.work)
        for rank, lane, host, turn in lanes.places():
            low, high = call.rows(rank)
            given[lane, host, turn, : (high - low) * row] = items[low * row : high * row]
        taken = np.empty((lanes.count, *given.shape[2:]), call.work)
        self._between(call, plan, self._collected(call, plan, given), taken)
        own = taken[self._number % lanes.count, self._number // lanes.count, : out.size]
        np.copyto(out, own.reshape(out.shape), casting="same_kind")

    def _all_gather(self, call: CollectiveCall, plan: HostPlan, x: Array, out: Array) -> None:
        lanes = self._lanes
        here = flat(call, x)[np.newaxis]
        for phase in plan.collect:
            here = self._do(phase, here[0])[self._number % lanes.count :: lanes.count]
        given = np.zeros((lanes.turns, call.count), call.work)
        given[: len(here)] = here
        taken = np.empty((lanes.count, len(lanes.hosts), *given.shape), call.work)
        self._between(call, plan, given, taken)
        for rank, lane, host, turn in lanes.places():
            out[rank, ...] = taken[lane, host, turn].reshape(call.shape)

    def _broadcast(self, call: CollectiveCall, plan: HostPlan, x: Array, out: Array) -> None:
        value = flat(call, x)
        for phase in plan.collect:
            value = self._do(phase, value)
        taken = self._shares(value)
        if np.may_share_memory(taken, x):
            taken = taken.copy()
        if self._lane is not None:
            self._do(plan.between, taken[self._number], out=taken[self._number])
        self._spread(plan, taken)
        np.copyto(out, taken.reshape(-1)[: call.count].reshape(call.shape))

    def _shares(self, items: Array) -> Array:
        """Return items as one row for each lane, with zeros after them if they do not fill the last one."""
        lanes = self._lanes.count
        if items.size % lanes:
            padded = np.zeros(-(-items.size // lanes) * lanes, items.dtype)
            padded[: items.size] = items
            items = padded
        return items.reshape(lanes, -1)

    def _collected(self, call: CollectiveCall, plan: HostPlan, given: Array) -> Array:
        """Return the host's reduction of what its ranks give to this rank's lane."""
        number = 0
        for phase in plan.collect:
            given = self._do(phase, given, _op(call))
            number = self._number % len(given)  # 0 after a reduce-scatter, which returns one row
        share: Array = given[number]
        return share

    def _between(self, call: CollectiveCall, plan: HostPlan, given: Array, taken: Array) -> None:
        """Execute the call of this rank's lane, and bring all lanes' results into the rows of `taken`."""
        if self._lane is not None:
            row = taken[self._number]
            out = row[np.newaxis] if call.what == "reduce_scatter" else row
            self._do(plan.between, given, _op(call), out)
            if call.op == "mean":
                np.true_divide(row, call.divisor, out=row)
        self._spread(plan, taken)

    def _spread(self, plan: HostPlan, taken: Array) -> None:
        """Bring the lanes' rows to all ranks of this host."""
        waited = self._inner.waited
        for phase in plan.spread:
            if phase.what == "all_gather":
                self._do(phase, taken[self._number], out=taken)
            else:  # a broadcast, or a barrier that takes nothing
                self._do(phase, taken[phase.root], out=taken[phase.root])
        self._late += self._inner.waited - waited

    def _do(self, phase: Phase, x: Array, op: str = "", out: Array | None = None) -> Array:
        """Execute one phase of a call in the inner group that it is for."""
        group = self._inner if phase.among == "host" else self._lane
        assert group is not None
        if phase.what == "all_reduce":
            return group.all_reduce(x, op, out)
        if phase.what == "reduce_scatter":
            return group.reduce_scatter(x, op, out)
        if phase.what == "all_gather":
            return group.all_gather(x, out)
        if phase.what == "broadcast":
            return group.broadcast(x, phase.root, out)
        group.barrier()
        return x

    def check(self) -> None:
        """Raise the failure of the host's group or the lane, if there is one; never waits."""
        self._inner.check()
        if self._lane is not None:
            self._lane.check()

    def peek(self) -> str:
        """Return the state of the ranks of this host, and of the others in this rank's lane."""
        return self._inner.peek() or ("" if self._lane is None else self._lane.peek())

    def _announce_failure(self, failure: GroupFailure) -> None:
        if self._lane is not None:
            self._lane.break_with(failure)
        self._inner.break_with(failure)

    def _release(self) -> None:
        if self._lane is not None:
            self._lane.close()
        self._inner.close()


def _op(call: CollectiveCall) -> str:
    """Return the op of the inner calls: a mean is divided once, in the lanes."""
    return "sum" if call.op == "mean" else call.op


class HierarchicalEndpoint(Endpoint):
    """A rank's endpoint on its host, and its endpoint in its lane."""

    def __init__(self, member: Member) -> None:
        # The host's group and the lane share the check, because a rank waits in one of them.
        self._member = member = replace(member, check=AbortCheck.of(member.check))
        lanes = Lanes(host_groups(member.hosts))
        self._ranks = next(ranks for ranks in lanes.hosts if member.rank in ranks)
        inner, number = _part(member, self._ranks), self._ranks.index(member.rank)
        self._inner: Endpoint = LocalEndpoint(inner) if len(self._ranks) == 1 else ShmEndpoint(inner)
        self._members = lanes.members(number) if number < lanes.count else []
        try:
            self._lane = RingEndpoint(_part(member, self._members)) if self._members else None
        except BaseException:
            self._inner.close()
            raise

    @property
    def info(self) -> dict[str, Any]:
        """The infos of both endpoints."""
        return {
            "incarnation": self._member.incarnation,
            "inner": self._inner.info,
            "lane": self._lane.info if self._lane is not None else None,
        }

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Connect to the ranks of this host, then to those of the same lane on other hosts."""
        try:
            check_same_group(self._member, infos)
            inner = self._inner.join([infos[rank]["inner"] for rank in self._ranks], timeout)
        except BaseException:
            self.close()
            raise
        lane: Collective | None = None
        try:
            if self._lane is not None:
                lane = self._lane.join([infos[rank]["lane"] for rank in self._members], timeout)
            inner.barrier()
        except BaseException as error:
            inner.abort(f"the hosts could not be connected: {error}")
            inner.close()
            if lane is not None:
                lane.close()
            raise
        assert lane is None or isinstance(lane, RingCollective)
        return HierarchicalCollective(self._member, inner, lane)

    def close(self) -> None:
        """Close both endpoints."""
        self._inner.close()
        if self._lane is not None:
            self._lane.close()


def _part(member: Member, ranks: Sequence[int]) -> Member:
    """Return a rank's Member of a part of the group; ranks keep their numbers in error messages."""
    return replace(
        member,
        rank=ranks.index(member.rank),
        hosts=tuple(member.hosts[rank] for rank in ranks),
        names=tuple(member.names[rank] for rank in ranks),
        numbers=tuple(ranks),
    )
