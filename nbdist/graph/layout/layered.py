"""Layered drawing (Sugiyama et al. 1981): assigns elements to rows, and orders each row for few crossings.

The method is that of Sugiyama, Tagawa and Toda (1981): rows by longest path, orders by barycentres; x then
follows in :mod:`nbdist.graph.layout.positions`. Elements are numbers; a link goes to an element in the row
below.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

LayerRows = list[list[int]]
"""The elements of each row, from left to right."""


SWEEPS = 6


class LineSegment(NamedTuple):
    """A piece of a line, from an element to one in the row below."""

    upper: int
    lower: int
    weight: float = 1.0  # weight of its straightness
    shift: float = 0.0  # x of the lower element's centre relative to the upper one's, if straight


def flow_order(first: Sequence[int], edges: Mapping[tuple[int, int], int]) -> list[int]:
    """Return boxes in topological order; with cycles, in an order that few edges oppose.

    ``first`` decides between boxes that are ready. A cycle is cut, as by Eades, Lin and Smyth (1993), before
    the box with the largest difference of outgoing and incoming edges; ``edges`` counts edges by box pair.

    >>> flow_order([0, 1, 2], {(1, 0): 1, (0, 2): 1})
    [1, 0, 2]
    """
    after: list[dict[int, int]] = [{} for _ in first]
    gives, takes, waits = [0] * len(first), [0] * len(first), [0] * len(first)
    for (source, target), count in edges.items():
        after[source][target] = count
        gives[source] += count
        takes[target] += count
        waits[target] += 1
    ready = [(first[box], box) for box, waiting in enumerate(waits) if not waiting]
    heapify(ready)
    left = dict.fromkeys(sorted(range(len(first)), key=first.__getitem__))
    order: list[int] = []
    while left:
        box = heappop(ready)[1] if ready else max(left, key=lambda other: gives[other] - takes[other])
        if box not in left:
            continue
        del left[box]
        order.append(box)
        for target, count in after[box].items():
            takes[target] -= count
            waits[target] -= 1
            if not waits[target] and target in left:
                heappush(ready, (first[target], target))
    return order


def ranks(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return a row for each box, so that each edge (from a lower to a higher number) goes down.

    A box with slack is near its users, if that shortens at least as many edges as it lengthens.

    >>> ranks(4, [(0, 2), (1, 3), (2, 3)])
    [0, 1, 1, 2]
    """
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    rank = [0] * count
    for box in range(count):
        rank[box] = max((rank[source] + 1 for source in before[box]), default=0)
    for box in reversed(range(count)):
        if len(after[box]) >= max(1, len(before[box])):
            rank[box] = min(rank[target] for target in after[box]) - 1
    return rank


def broken(rank: Sequence[int], column: Sequence[int], width: Sequence[float], limit: float) -> list[int]:
    """Return the rows that remain when each row of a column that is wider than ``limit`` is broken into more.

    >>> broken([0, 0, 0, 1], [0, 0, 0, 0], [60, 60, 60, 60], 130)
    [0, 0, 1, 2]
    """
    of_rank: dict[int, dict[int, list[int]]] = {}
    for box, its_rank in enumerate(rank):
        of_rank.setdefault(its_rank, {}).setdefault(column[box], []).append(box)
    row = [0] * len(rank)
    base = 0
    for its_rank in sorted(of_rank):
        columns = of_rank[its_rank].values()
        pieces = [max(1, -int(-sum(width[box] for box in boxes) // limit)) for boxes in columns]
        for boxes, count in zip(columns, pieces, strict=True):
            count = min(count, len(boxes))
            for i, box in enumerate(boxes):
                row[box] = base + max(pieces) - count + (i * count) // len(boxes)
        base += max(pieces)
    packed = {old: new for new, old in enumerate(sorted(set(row)))}
    return [packed[old] for old in row]


def ordered(
    rows: LayerRows, links: Sequence[LineSegment], pulls: Mapping[int, float], fixed: frozenset[int]
) -> LayerRows:
    """Return the rows in an order with few crossings; those in ``fixed`` (by number) stay as they are.

    ``pulls`` draws an element to the left (below 0) or right (above 1) end of its row.
    """
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for link in links:
        above.setdefault(link.lower, []).append(link.upper)
        below.setdefault(link.upper, []).append(link.lower)
    rows = [list(row) for row in rows]
    place = {element: (i + 0.5) / len(row) for row in rows for i, element in enumerate(row)}
    best, fewest = [list(row) for row in rows], crossings(rows, links)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for number in range(len(rows)) if down else reversed(range(len(rows))):
            row = rows[number]
            if number not in fixed:
                barycenter = {}
                for element in row:
                    there = [place[other] for other in near.get(element, ())]
                    there += [pulls[element]] if element in pulls else []
                    barycenter[element] = sum(there) / len(there) if there else place[element]
                row.sort(key=barycenter.__getitem__)
            for i, element in enumerate(row):
                place[element] = (i + 0.5) / len(row)
        count = crossings(rows, links)
        if count < fewest or sweep == 1:  # at least one round, for elements with only a pull
            best, fewest = [list(row) for row in rows], count
    return best


def crossings(rows: LayerRows, links: Sequence[LineSegment]) -> int:
    """Return the number of crossings of links.

    >>> crossings([[0, 1], [2, 3]], [LineSegment(0, 3), LineSegment(1, 2)])
    1
    """
    index = {element: i for row in rows for i, element in enumerate(row)}
    row_of = {element: number for number, row in enumerate(rows) for element in row}
    by_row: dict[int, list[tuple[int, int]]] = {}
    for link in links:
        by_row.setdefault(row_of[link.upper], []).append((index[link.upper], index[link.lower]))
    count = 0
    for pairs in by_row.values():
        seen: list[int] = []
        for _, lower_index in sorted(pairs):
            count += len(seen) - bisect_right(seen, lower_index)
            insort(seen, lower_index)
    return count
