"""Orders a step's ops: inputs first, and a variable is read before it is assigned. Pure.

All pieces of a plan follow one order, each its own part of it. So a piece may wait for what it receives
where it stands: whoever sends it comes before in that order and never waits for something later.
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
    """One thing that is done on one device: ``what`` is "op", "send", "receive", "signal", "await", "copy".

    ``inputs`` are the items whose values it takes, ``after`` those that have to be done before.
    """

    what: str
    node: Tensor
    device: str
    inputs: list[Item] = field(default_factory=list)
    after: list[Item] = field(default_factory=list)
    edge: int = -1
    rank: float = 0.0
    """Where it stands among what could be done next: the user's order of creation."""

    @property
    def before_it(self) -> Iterable[Item]:
        """All items that come first."""
        return (*self.inputs, *self.after)

    @property
    def writes(self) -> frozenset[int]:
        """Which of the inputs are variables that it changes."""
        return self.node.op.writes if self.what == "op" and self.node.op is not None else frozenset()

    @property
    def waits(self) -> bool:
        """Whether it may wait for what other steps do."""
        return self.what == "op" and self.node.op is not None and self.node.op.waits

    @property
    def reads(self) -> bool:
        """Whether it stands for a variable's value as it is when what it comes after is done."""
        return self.what == "op" and self.node.type == "read"

    @property
    def shares(self) -> bool:
        """Whether its value may lie in the memory of its first input."""
        op = self.node.op if self.what == "op" else None
        return op is not None and (op.view or 0 in op.writes) and bool(self.inputs)


def schedule(items: Sequence[Item], nearest: bool = True) -> list[Item]:
    """Return the items in the order in which they are done, with copies where a step needs an old value.

    What a step's reading of a variable means does not depend on the order. A variable that is used is its
    value from before the step; a ``read`` is the value after those of the step's assignments that come
    before it; an assignment's own value is that after it. Assignments of one variable follow each other
    in order of creation. What needs nothing from elsewhere is done before what has to wait, if ``nearest``.
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
    """Rank what needs nothing from elsewhere before what has to wait for it, and so on, hop by hop.

    A piece then does all it can before it waits; among equals the order of creation decides, as before. What
    waits for other steps comes after all else: they may be waiting for it.
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
    """Lets whatever looks at a variable's memory find there the value that it means, or a copy of it.

    A variable's version n is its value after its n-th assignment of the step. Whoever wants version n looks
    before assignment n + 1. That alone could make a circle: two that each follow the other's assignment. So
    only those look at the memory itself that come before the assignment in one certain order, and all others
    at a copy, made as soon as that version is there. The order: first what follows no assignment at all,
    then the rest as ``ordered``. No requirement here contradicts that order, so there is no cycle.
    """

    def __init__(self, ordered: Sequence[Item], writers: dict[Tensor, list[Item]]) -> None:
        self._ordered, self._writers = ordered, writers
        self._places = {item: n for n, item in enumerate(ordered)}
        self._bits: dict[Item, int] = {}
        for chain in writers.values():
            for item in chain:
                self._bits.setdefault(item, 1 << len(self._bits))
        self._follows: dict[Item, int] = {}  # which assignments come before an item, as bits
        for item in ordered:
            mask = 0
            for first in item.before_it:
                mask |= self._follows[first] | self._bits.get(first, 0)
            self._follows[item] = mask
        self._memory: dict[Item, tuple[Variable, int]] = {}  # whose memory a value lies in, in which version
        self._variables: dict[Tensor, Item] = {}
        self._copies: dict[tuple[Item, int], Item] = {}

    def keep(self) -> list[Item]:
        """Add what has to come before each assignment; return the copies that are needed."""
        for item in self._ordered:
            if item.what == "op" and item.node in self._writers and isinstance(item.node, Variable):
                self._memory[item], self._variables[item.node] = (item.node, 0), item
                continue
            for i, source in enumerate(item.inputs):
                if source in self._memory and i not in item.writes:
                    self._look(item, i, *self._memory[source])
            source = item.inputs[0] if item.shares else item
            if source in self._memory:
                self._memory[item] = self._passed_on(item, *self._memory[source])
        return list(self._copies.values())

    def _look(self, item: Item, i: int, variable: Variable, version: int) -> None:
        """Let an item find a version of a variable in its input."""
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
