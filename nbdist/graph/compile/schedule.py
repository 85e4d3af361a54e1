"""Orders a step's items over all devices: dependencies first, reads before assignments. Pure.

One order covers the items of all pieces; each piece runs its own items in this order, on one thread.

Why a step cannot deadlock: a receive depends on its send, so the send is earlier in the order. Take the
earliest item that has not run. All that it depends on is earlier, so it has run; so have all earlier items
of its piece. The item can run, so some piece always continues. A send does not wait for its receive: the
value is stored on the target until the receive takes it, and an executor that waits for a full pipe keeps
taking in what arrives for it.

An op that waits for other steps (`Op.waits`: taking gradients from an accumulator) may wait for long. It
comes after all items that do not depend on it, because another step may wait for one of these items.

Among items that are ready the order is: fewest device hops first, then order of creation. So a device does
all it can before it waits for another one. A graph with ``in_order`` has the order of creation alone.

What a step reads of a variable is defined without this order; `schedule` states the rules. `_Versions` adds
the constraints, and copies of old values, that make each order obey them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nbdist.errors import InvalidArgumentError
from nbdist.graph.tensor import Tensor, Variable


@dataclass(eq=False)
class Item:
    """One action on one device: ``what`` is "op", "send", "receive", "signal", "await" or "copy".

    ``inputs`` are the items whose values it uses, ``after`` other items that have to be done before it.
    """

    what: str
    node: Tensor
    device: str
    inputs: list[Item] = field(default_factory=list)
    after: list[Item] = field(default_factory=list)
    edge: int = -1
    rank: float = 0.0
    """Its place among items that are ready, lowest first: at first the order of creation."""

    @property
    def before_it(self) -> Iterable[Item]:
        """All items that have to be done before this one."""
        return (*self.inputs, *self.after)

    @property
    def writes(self) -> frozenset[int]:
        """The indices of the inputs that are variables it changes."""
        return self.node.op.writes if self.what == "op" and self.node.op is not None else frozenset()

    @property
    def waits(self) -> bool:
        """Whether it may wait for other steps."""
        return self.what == "op" and self.node.op is not None and self.node.op.waits

    @property
    def reads(self) -> bool:
        """Whether it is a ``read``: a variable's value after all that it depends on is done."""
        return self.what == "op" and self.node.type == "read"

    @property
    def shares(self) -> bool:
        """Whether its value may lie in the memory of its first input."""
        op = self.node.op if self.what == "op" else None
        return op is not None and (op.view or 0 in op.writes) and bool(self.inputs)


def schedule(items: Sequence[Item], nearest: bool = True) -> list[Item]:
    """Return the items in execution order, with copies where the step needs a variable's old value.

    The meaning of a read does not depend on the order. A variable used as it is has its value from before
    the step; a ``read`` has the value after those of the step's assignments that it depends on; an
    assignment's own value is the one after it. Assignments of one variable run in order of creation. With
    ``nearest``, items that need nothing from other devices come first.
    """
    ordered = _sorted(items)
    writers = _writers(ordered)
    for chain in writers.values():
        for first, second in pairwise(chain):
            second.after.append(first)
    found = [*items, *_Versions(ordered, writers).keep()] if writers else ordered
    if nearest:
        _rank_by_hops(found)
    return _sorted(found) if nearest or writers else ordered


def _rank_by_hops(items: Sequence[Item]) -> None:
    """Rank items by the number of receives on their longest dependency path; equals keep their ranks.

    A piece then does all it can before it waits. An op that waits for other steps counts as more hops than
    any path has, so it comes last with all that depends on it: those steps may wait for this one.
    """
    hops: dict[Item, int] = {}
    for item in _sorted(items):
        own = len(items) if item.waits else int(item.what in ("receive", "await"))
        hops[item] = max((hops[first] for first in item.before_it), default=0) + own
    most = max((item.rank for item in items), default=0.0) + 2
    for item in items:
        item.rank += most * hops[item]


def _sorted(items: Sequence[Item]) -> list[Item]:
    """Order by dependencies, and by rank where those leave a choice (Kahn 1962)."""
    waiting = dict.fromkeys(items, 0)
    users: dict[Item, list[Item]] = {item: [] for item in items}
    for item in items:
        for first in item.before_it:
            users[first].append(item)
            waiting[item] += 1
    numbers = {item: n for n, item in enumerate(items)}
    ready = [(item.rank, numbers[item], item) for item in items if not waiting[item]]
    heapq.heapify(ready)
    done: list[Item] = []
    while ready:
        item = heapq.heappop(ready)[2]
        done.append(item)
        for user in users[item]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.rank, numbers[user], user))
    if len(done) < len(items):
        stuck = sorted(item.node.name for item in items if waiting[item])
        raise InvalidArgumentError(
            f"the graph has a cycle: {', '.join(stuck[:6])}{' ...' if len(stuck) > 6 else ''} wait for each "
            "other; look at their inputs and control dependencies"
        )
    return done


def _writers(ordered: Sequence[Item]) -> dict[Tensor, list[Item]]:
    """Return the items that assign each variable, in order."""
    writers: dict[Tensor, list[Item]] = {}
    for item in ordered:
        for i in item.writes:
            writers.setdefault(item.node.inputs[i], []).append(item)
    return writers


class _Versions:
    """Gives each reader of a variable's memory the version that it means: the memory itself, or a copy.

    Version n of a variable is its value after its n-th assignment of the step. A reader of version n has to
    run before assignment n + 1. These constraints alone could form a cycle: two readers that each depend on
    the assignment that the other has to precede. So there is one fixed order: first the items that depend on
    no assignment, then the rest as ``ordered``. A reader that precedes the assignment in this order reads the
    memory. All others read a copy, made as soon as the version exists. Every constraint agrees with the fixed
    order, so there is no cycle.
    """

    def __init__(self, ordered: Sequence[Item], writers: dict[Tensor, list[Item]]) -> None:
        self._ordered, self._writers = ordered, writers
        self._places = {item: n for n, item in enumerate(ordered)}
        self._bits: dict[Item, int] = {}
        for chain in writers.values():
            for item in chain:
                self._bits.setdefault(item, 1 << len(self._bits))
        self._follows: dict[Item, int] = {}  # bit mask of the assignments before an item
        for item in ordered:
            mask = 0
            for first in item.before_it:
                mask |= self._follows[first] | self._bits.get(first, 0)
            self._follows[item] = mask
        self._memory: dict[Item, tuple[Variable, int]] = {}  # the memory that a value shares
        self._variables: dict[Tensor, Item] = {}
        self._copies: dict[tuple[Item, int], Item] = {}

    def keep(self) -> list[Item]:
        """Add the constraints before each assignment; return the copies that are needed."""
        for item in self._ordered:
            if item.what == "op" and item.node in self._writers and isinstance(item.node, Variable):
                self._memory[item], self._variables[item.node] = (item.node, 0), item
                continue
            for i, source in enumerate(item.inputs):
                if source in self._memory and i not in item.writes:
                    self._read(item, i, *self._memory[source])
            source = item.inputs[0] if item.shares else item
            if source in self._memory:
                self._memory[item] = self._passed_on(item, *self._memory[source])
        return list(self._copies.values())

    def _read(self, item: Item, i: int, variable: Variable, version: int) -> None:
        """Make an item's input ``i`` a version of a variable: its memory, or a copy."""
        source, chain, after = item.inputs[i], self._writers[variable], []
        if item.reads:
            version = self._count(item, chain)
            source, after = self._variables[variable], chain[version - 1 : version] if version else []
        if version == len(chain):
            return
        following = chain[version]
        early = not self._follows[item] and item not in self._bits
        if early or self._places[item] < self._places[following]:
            following.after.append(item)
        else:
            item.inputs[i] = self._copy(source, version, after, following)

    def _copy(self, source: Item, version: int, after: list[Item], following: Item) -> Item:
        key = (source, version)
        if key not in self._copies:
            rank = max([source.rank, *(item.rank for item in after)])
            copy = Item("copy", source.node, source.device, [source], after, rank=rank)
            self._copies[key] = copy
            following.after.append(copy)
        return self._copies[key]

    def _passed_on(self, item: Item, variable: Variable, version: int) -> tuple[Variable, int]:
        chain = self._writers[variable]
        if item in self._bits:
            return variable, chain.index(item) + 1
        return variable, self._count(item, chain) if item.reads else version

    def _count(self, item: Item, chain: list[Item]) -> int:
        """Return how many of a variable's assignments come before an item."""
        return sum(bool(self._follows[item] & self._bits[writer]) for writer in chain)


def variable_behind(item: Item) -> Variable | None:
    """Return the variable whose memory a value may share."""
    while item.what == "op" and not isinstance(item.node, Variable):
        if not item.shares:
            return None
        item = item.inputs[0]
    return item.node if item.what == "op" and isinstance(item.node, Variable) else None
