"""Routes the edges of a drawn graph: lanes beside the boxes, ports on them, and tracks in the gaps between.

The rows and columns of boxes are known here. Edges that share a lane run on different tracks of it, and
devices with many edges between them are adjacent.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import TypeVar

from nbdist.graph.layout.collapse import PlaneEdge
from nbdist.graph.layout.sheet import DeviceFrame, DrawnEdge, Sheet, Spot
from nbdist.graph.layout.work import Lane, LayoutState, Wire

PAD = 16.0  # pixels between a frame and its contents
HEAD, TITLE = 46.0, 24.0  # heights of a device's title and of an open scope's
GUTTER, TRACK, LABELLED = 36.0, 8.0, 15.0  # between devices, between tracks, between tracks with a label
# Between rows at least; with a curve; with a label on a curve.
GAP, CURVED, WORDED, WORDS = 18.0, 28.0, 44.0, 14.0
ABOVE, BELOW = 9.0, 14.0  # between a row and the first track below it; the last track and an arrow's end


def set_lanes(work: LayoutState, contents: Sequence[float]) -> None:
    """Choose for each track the lane in which it goes up or down: the nearest one.

    A value is sent to a device once. If several boxes of another device use it, its track crosses to that
    device once, and forks in a lane within it.
    """
    together: dict[tuple[int, int], list[Wire]] = {}
    for wire in work.wires:
        if work.column[wire.source] != work.column[wire.target]:
            together.setdefault((wire.source, work.column[wire.target]), []).append(wire)
    for wire in work.wires:
        here, there = work.column[wire.source], work.column[wire.target]
        if here != there and len(together[wire.source, there]) > 1:
            wire.lane = ("left" if here < there else "right", there)
        elif here != there and work.row[wire.source] + 1 != work.row[wire.target]:
            wire.lane = ("gutter", here + (there > here))
        elif here == there and not wire.curve:
            middle = (work.x[wire.source] + work.x[wire.target]) / 2
            wire.lane = ("left" if middle < contents[here] / 2 else "right", here)
    for wires in together.values():
        labelled: set[str] = set()
        for wire in sorted(wires, key=lambda wire: work.row[wire.target]):
            names = {name for edge in work.edges(wire) for name in edge.tensors}
            wire.labelled_before = frozenset(names & labelled)
            labelled |= names


def set_columns(work: LayoutState, devices: Sequence[str], contents: Sequence[float]) -> None:
    """Put the columns side by side, with their lanes."""
    runs: dict[Lane, LaneExtents[int]] = {}
    for wire in work.wires:
        if wire.lane is not None:
            gaps = work.row[wire.source] + 1, work.row[wire.target]
            runs.setdefault(wire.lane, LaneExtents()).add(wire.source, *gaps)
    x = 0.0
    work.frames = []

    def add_lane(lane: Lane) -> float:
        chosen, count = tracks(runs.get(lane, {}), 0)
        for source, track in chosen.items():
            work.lane_x[lane, source] = x + track * TRACK
        return count * TRACK

    shift: list[float] = []
    for column, content in enumerate(contents):
        if column:
            x += GUTTER / 2
            x += max(0.0, add_lane(("gutter", column)) - TRACK) + GUTTER / 2
        frame = DeviceFrame(devices[column], x, 0.0)
        x += PAD
        x += add_lane(("left", column))
        wanted = work.measure.title(devices[column]) if work.title is None else 0.0
        shift.append(x + max(0.0, wanted - content) / 2)
        x += max(content, wanted) + TRACK
        x += max(0.0, add_lane(("right", column)) - TRACK) + PAD - TRACK
        frame.right = x
        work.frames.append(frame)
    work.width = x
    of_thread = {thread: work.column[wire.source] for wire in work.wires for thread in wire.passes}
    for element in work.x:
        column = work.column[element] if element < len(work.column) else of_thread.get(element, 0)
        work.x[element] += shift[column]


def set_ports(work: LayoutState) -> None:
    """Choose where each line begins and ends on its boxes, so that lines keep their order."""
    count = len(work.sizes)
    leaving: dict[int, list[Wire]] = {}
    entering: dict[int, list[Wire]] = {}
    for wire in work.wires:
        leaving.setdefault(wire.source, []).append(wire)
        entering.setdefault(wire.target, []).append(wire)
        if wire.source >= count:
            wire.leave = (0.5, wire.source - count)
        if wire.target >= count:
            wire.enter = (0.5, wire.target - count - work.into)
    for element, wires in entering.items():
        if element < count:
            wires.sort(key=lambda wire: work.aim(wire, element))
            for port, wire in enumerate(wires):
                wire.enter = ((port + 1) / (len(wires) + 1), port)
    for element, wires in leaving.items():
        box = work.box(element)
        if box is not None and box.plane is not None:
            _leave_scope(work, element, wires)


def _leave_scope(work: LayoutState, element: int, wires: list[Wire]) -> None:
    """Give each curve out of a scope a port, and all tracks to one side a common one."""
    bundles: dict[object, list[Wire]] = {}
    for wire in sorted(wires, key=lambda wire: work.aim(wire, element)):
        side = work.aim(wire, element) < work.x[element]
        bundles.setdefault(wire.target if wire.curve else side, []).append(wire)
    for port, bundle in enumerate(bundles.values()):
        for wire in bundle:
            wire.leave = ((port + 1) / (len(bundles) + 1), port)


def ports_of(work: LayoutState, element: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ports of a scope: for each the edges that enter there, and those that leave there."""
    into: dict[int, list[int]] = {}
    out: dict[int, list[int]] = {}
    for wire in work.wires:
        if wire.target == element:
            into.setdefault(wire.enter[1], []).extend(wire.edges)
        if wire.source == element:
            out.setdefault(wire.leave[1], []).extend(wire.edges)
    return [into[port] for port in sorted(into)], [out[port] for port in sorted(out)]


Way = tuple[object, ...]
"""The key of a run along a gap; lines that share the run have the same key."""


def ways(work: LayoutState, wire: Wire) -> list[tuple[int, int, Way]]:
    """Return a track's runs along gaps: the gap, where in it (0 is above, 2 below), and the run's key."""
    trunk = (wire.source, wire.leave[1])
    first, last = work.row[wire.source] + 1, work.row[wire.target]
    if wire.lane is None:
        return [(first, 1, ("direct", first, *trunk))]
    return [(first, 0, ("leave", first, *trunk)), (last, 2, ("arrive", last, *trunk, wire.lane))]


def set_gaps(work: LayoutState) -> None:
    """Put the tracks of each gap below each other, and then the rows and gaps."""
    runs: dict[tuple[int, int], LaneExtents[Way]] = {}
    labelled: set[Way] = set()
    curved: dict[int, float] = {}
    for wire in work.wires:
        start, end = work.ends(wire)
        if wire.curve:
            first = work.row[wire.source] + 1
            gaps = dict.fromkeys(range(first, work.row[wire.target] + 1), CURVED)
            gaps[first] = WORDED if work.labels(wire) else CURVED
            curved |= {gap: max(high, curved.get(gap, 0.0)) for gap, high in gaps.items()}
            continue
        points = [start, end] if wire.lane is None else [start, work.aim(wire, wire.source), end]
        found = ways(work, wire)
        for i, (gap, band, way) in enumerate(found):
            runs.setdefault((gap, band), LaneExtents()).add(way, *points[i : i + 2])
        if work.labels(wire):
            labelled.add(found[-1][2])
    y = HEAD if work.title is None else 0.0
    heights = _row_heights(work)
    for gap in range(work.rows + 1):
        # The tracks are below the labels of curves.
        start = y + ABOVE + WORDS * (curved.get(gap) == WORDED)
        end = start
        for band in range(3):
            end = _stack(work, runs.get((gap, band), LaneExtents()), labelled, end)
        beside_ports = work.title is not None and (gap == 0 or (gap == work.rows and work.out > 0))
        y = max(y + curved.get(gap, 0.0 if beside_ports else GAP), end + BELOW if end > start else 0.0)
        if gap < work.rows:
            work.bands.append((y, y + heights[gap]))
            y += heights[gap]
    work.height = y


def _stack(work: LayoutState, runs: LaneExtents[Way], labelled: set[Way], y: float) -> float:
    """Give each run of one band of a gap its y, from ``y`` on; return where the next band begins."""
    chosen, count = tracks(runs)
    pitch = [TRACK] * count
    for way, track in chosen.items():
        if way in labelled:
            pitch[track] = LABELLED
    for way, track in chosen.items():
        work.gap_y[way] = y + sum(pitch[:track]) + (pitch[track] - TRACK) / 2
    return y + sum(pitch)


def _row_heights(work: LayoutState) -> list[float]:
    heights = [0.0] * work.rows
    if work.title is not None:
        heights[0] = TITLE
    for number, (_, height) in enumerate(work.sizes):
        heights[work.row[number]] = max(heights[work.row[number]], height)
    return heights


def drawn(work: LayoutState) -> Sheet:
    """Return the finished sheet."""
    spots = [
        Spot(work.x[number] - wide / 2, wide, *closed, work.row[number], work.sheets.get(number))
        for number, ((wide, _), closed) in enumerate(zip(work.sizes, work.closed, strict=True))
    ]
    lines = [_line(work, wire) for wire in work.wires]
    count = len(spots)
    into = [work.x[count + port] for port in range(work.into)]
    out = [work.x[count + work.into + port] for port in range(work.out)]
    frames = work.frames if work.title is None else []
    return Sheet(work.plane, work.width, work.height, work.bands, spots, lines, frames, into, out)


def _line(work: LayoutState, wire: Wire) -> DrawnEdge:
    edges: tuple[PlaneEdge, ...] = work.edges(wire)
    if wire.curve:
        passes = [(work.x[t], *work.bands[work.row[wire.source] + 1 + i]) for i, t in enumerate(wire.passes)]
        bends = (
            work.bands[work.row[wire.source]][1], *(number for three in passes for number in three),
            work.bands[work.row[wire.target]][0],
        )  # fmt: skip
    elif wire.lane is None:
        bends = (work.gap_y[ways(work, wire)[0][2]],)
    else:
        leave, arrive = (work.gap_y[way] for _, _, way in ways(work, wire))
        bends = (leave, work.lane_x[wire.lane, wire.source], arrive)
    ends = work.spot(wire.source), work.spot(wire.target)
    return DrawnEdge(*ends, edges, not wire.curve, wire.leave, wire.enter, bends)


# Tracks: the track of each edge in a lane, and the order of the devices.

K = TypeVar("K", bound=Hashable)
FEW = 6  # up to so many devices, all orders are tried


class LaneExtents(dict[K, tuple[float, float]]):
    """The interval that each line covers along a lane; adding to a line extends it."""

    def add(self, key: K, *ends: float) -> None:
        """Extend the interval of ``key`` to all ``ends``."""
        self[key] = (min(*ends, *self.get(key, ends)), max(*ends, *self.get(key, ends)))


def tracks(runs: Mapping[K, tuple[float, float]], apart: float = 4.0) -> tuple[dict[K, int], int]:
    """Return a track for each run, so that runs on one track do not overlap, and the number of tracks.

    >>> tracks({"a": (0, 10), "b": (5, 20), "c": (30, 40)})
    ({'a': 0, 'b': 1, 'c': 0}, 2)
    """
    ends: list[float] = []
    track: dict[K, int] = {}
    for key, (start, end) in sorted(runs.items(), key=lambda item: item[1]):
        free = next((i for i, taken in enumerate(ends) if taken + apart < start), len(ends))
        ends[free : free + 1] = [end]
        track[key] = free
    return track, len(ends)


def arranged(devices: Iterable[str], flows: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the devices from left to right, with those that exchange edges close to each other.

    ``flows`` counts edges from one to another. Ties keep the order of the list.

    >>> ps, first, second = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
    >>> arranged([ps, first, second], {(ps, first): 1, (ps, second): 1})
    ['/job:worker/task:0', '/job:ps/task:0', '/job:worker/task:1']
    """
    listed = sorted(devices, key=_natural)

    def length(order: Iterable[str]) -> int:
        at = {device: i for i, device in enumerate(order)}
        return sum(count * abs(at[a] - at[b]) for (a, b), count in flows.items())

    if len(listed) <= FEW:
        return list(min(permutations(listed), key=length))
    best, shortest = listed, length(listed)
    improved = True
    while improved:  # move one device at a time, while that improves the order
        improved = False
        for device in listed:
            rest = [other for other in best if other != device]
            for i in range(len(listed)):
                order = [*rest[:i], device, *rest[i:]]
                if (its_length := length(order)) < shortest:
                    best, shortest, improved = order, its_length, True
    return best


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort ``task:2`` before ``task:10``."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]
