"""Collectives of ranks on several hosts: shared memory within a host, a ring of sockets between hosts.

The first rank of each host is its leader. An all-reduce combines the values within every host, then the
leaders' ring combines the hosts' results, then each leader broadcasts the result on its host.
"""

# Design.
#
# Two-level collectives as in MPI libraries for clusters of shared-memory nodes (Karonis et al. 2000,
# "Exploiting Hierarchy in Parallel Computer Networks to Optimize Collective Operation Performance"). A value
# crosses the network once per host, not once per rank; a round of the ring of H leaders takes 2 (H - 1)
# messages per leader, where one ring of all n ranks takes 2 (n - 1) per rank.
#
# A call consists of calls of two inner groups (schedule.py lists them as phases): the host's group (shared
# memory, or one rank alone) and the leaders' ring.
#
#     agreement    host: all-gather of the call's text | leaders: all-gather of it | host: barrier
#     all_reduce   host: all-reduce                    | leaders: all-reduce       | host: broadcast
#     broadcast    the root's host: broadcast | leaders: broadcast | the other hosts: broadcast
#
# Waiting. A rank waits for its host's ranks only. A leader waits for its host, then for the
# leaders of all hosts, then for its host again. The barrier that ends the agreement is the point that a rank
# passes only after its leader has compared its call with those of all hosts: within a host all ranks compare
# all texts, between hosts the leaders compare theirs, so no value moves before all ranks agree.
#
# Rounds. The phases of one call, and of consecutive calls, are consecutive calls of the inner groups, which
# keep their own rounds apart (sync.py, ring.py). Nothing is added here.
#
# Failures. A leader waits in one inner group while the other one breaks; so each inner group also checks the
# other one (`also_check`) at its usual interval. A rank that fails breaks both of its groups with the reason
# (`_announce_failure`), and a leader passes the reason on from one group to the other when it raises it.

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
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
from nbdist.wire.collective.schedule import AGREEMENT, TEXT_BYTES, Phase, host_groups, phases
from nbdist.wire.collective.shm.collective import ShmCollective, ShmEndpoint
from nbdist.wire.rpc.frame import Array


class HierarchicalCollective(Collective):
    """A rank of a group on several hosts; only leaders have a `ring`."""

    kind = "hierarchical"
    over_network = True

    def __init__(self, member: Member, inner: Collective, ring: RingCollective | None) -> None:
        super().__init__(member.rank, member.labels, member.check)
        self._inner, self._ring = inner, ring
        inner.parent = self
        if ring is not None:
            ring.parent = self
        self._hosts = host_groups(member.hosts)
        self._host = next(number for number, ranks in enumerate(self._hosts) if member.rank in ranks)
        self.notes += [*inner.notes, *(ring.notes if ring is not None else [])]
        if ring is not None and isinstance(inner, ShmCollective):
            # A leader waits in one of its groups; a failure of the other one has to end the wait.
            ring.also_check(inner.check)
            inner.also_check(ring.check)

    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        try:
            begun = time.perf_counter()
            self._agree(call)
            self.waited += time.perf_counter() - begun
            if call.what == "all_gather":
                self._all_gather(call, x, out)
            elif call.what == "broadcast":
                np.copyto(out, self._broadcast(call, x))
            elif call.what != "barrier":
                rows = slice(*call.rows(self.rank)) if call.what == "reduce_scatter" else ...
                np.copyto(out, self._reduced(call, x)[rows], casting="same_kind")
        except NbdistError as error:
            raise GroupBroken.by(type(error).__name__, str(error)) from None

    def _do(self, phase: Phase, x: Array, op: str = "", out: Array | None = None) -> Array:
        """Execute one phase of a call; ranks that are not leaders skip the leaders' phases."""
        group = self._inner if phase.among == "host" else self._ring
        if group is None:
            return x
        if phase.what == "all_reduce":
            return group.all_reduce(x, op, out)
        if phase.what == "all_gather":
            return group.all_gather(x, out)
        if phase.what == "broadcast":
            return group.broadcast(x, phase.root, out)
        group.barrier()
        return x

    def _agree(self, call: CollectiveCall) -> None:
        """Compare the calls of all ranks, by their texts, before any value moves."""
        text = np.zeros(TEXT_BYTES, np.uint8)
        raw = call.text.encode()[:TEXT_BYTES]
        text[: len(raw)] = np.frombuffer(raw, np.uint8)
        here, between, barrier = AGREEMENT
        self._compare(self._hosts[self._host], self._do(here, text))
        if self._ring is not None:
            self._compare([ranks[0] for ranks in self._hosts], self._do(between, text))
        self._do(barrier, text)

    def _compare(self, ranks: Sequence[int], texts: Array) -> None:
        calls = {rank: text.tobytes().rstrip(b"\0").decode() for rank, text in zip(ranks, texts)}
        GroupBroken.raise_unless_same(calls, self.sequence, self.labels)

    def _reduced(self, call: CollectiveCall, x: Array) -> Array:
        op = "sum" if call.op == "mean" else call.op
        first, *others = phases(call, self._hosts, self._host)
        value = self._do(first, flat(call, x), op)
        for phase in others:
            self._do(phase, value, op, out=value)
        if call.op == "mean":
            np.true_divide(value, call.divisor, out=value)
        return value.reshape(call.shape)

    def _broadcast(self, call: CollectiveCall, x: Array) -> Array:
        value = np.array(x, call.work, order="C")
        for phase in phases(call, self._hosts, self._host):
            self._do(phase, value, out=value)
        return value

    def _all_gather(self, call: CollectiveCall, x: Array, out: Array) -> None:
        gather, between, broadcast = phases(call, self._hosts, self._host)
        most = max(map(len, self._hosts))
        here = np.zeros((most, call.count), call.work)
        self._do(gather, flat(call, x), out=here[: len(self._hosts[self._host])])
        everything = np.empty((len(self._hosts), *here.shape), call.work)
        self._do(between, here, out=everything)
        self._do(broadcast, everything, out=everything)
        for ranks, values in zip(self._hosts, everything):
            for rank, value in zip(ranks, values):
                out[rank, ...] = value.reshape(call.shape)

    def check(self) -> None:
        """Raise the failure of the host's group or the ring, if there is one; never waits."""
        self._inner.check()
        if self._ring is not None:
            self._ring.check()

    def peek(self) -> str:
        """Return the state of the ranks of this host, and of the other leaders."""
        return self._inner.peek() or ("" if self._ring is None else self._ring.peek())

    def _announce_failure(self, failure: GroupFailure) -> None:
        if self._ring is not None:
            self._ring.break_with(failure)
        self._inner.break_with(failure)

    def _release(self) -> None:
        if self._ring is not None:
            self._ring.close()
        self._inner.close()


class HierarchicalEndpoint(Endpoint):
    """A rank's endpoint on its host, and a leader's endpoint in the ring."""

    def __init__(self, member: Member) -> None:
        # The host's group and the ring share the check, because a rank waits in one of them.
        self._member = member = replace(member, check=AbortCheck.of(member.check))
        ranks = next(ranks for ranks in host_groups(member.hosts) if member.rank in ranks)
        inner = _part(member, ranks)
        self._ranks = ranks
        self._leaders = [ranks[0] for ranks in host_groups(member.hosts)]
        self._inner: Endpoint = LocalEndpoint(inner) if len(ranks) == 1 else ShmEndpoint(inner)
        try:
            leads = member.rank in self._leaders
            self._ring = RingEndpoint(_part(member, self._leaders)) if leads else None
        except BaseException:
            self._inner.close()
            raise

    @property
    def info(self) -> dict[str, Any]:
        """The infos of both endpoints."""
        return {
            "incarnation": self._member.incarnation,
            "inner": self._inner.info,
            "ring": self._ring.info if self._ring is not None else None,
        }

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Connect to the ranks of this host; leaders then connect to the other hosts' leaders."""
        try:
            check_same_group(self._member, infos)
            inner = self._inner.join([infos[rank]["inner"] for rank in self._ranks], timeout)
        except BaseException:
            self.close()
            raise
        ring: Collective | None = None
        try:
            if self._ring is not None:
                ring = self._ring.join([infos[rank]["ring"] for rank in self._leaders], timeout)
            inner.barrier()
        except BaseException as error:
            inner.abort(f"the hosts could not be connected: {error}")
            inner.close()
            if ring is not None:
                ring.close()
            raise
        assert ring is None or isinstance(ring, RingCollective)
        return HierarchicalCollective(self._member, inner, ring)

    def close(self) -> None:
        """Close both endpoints."""
        self._inner.close()
        if self._ring is not None:
            self._ring.close()


def _part(member: Member, ranks: Sequence[int]) -> Member:
    """Return a rank's Member of a part of the group; ranks keep their numbers in error messages."""
    return replace(
        member,
        rank=ranks.index(member.rank) if member.rank in ranks else 0,
        hosts=tuple(member.hosts[rank] for rank in ranks),
        names=tuple(member.names[rank] for rank in ranks),
        numbers=tuple(ranks),
    )
