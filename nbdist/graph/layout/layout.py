"""Positions every box and routes every edge of a plane, while all scopes are closed.

    sheet = lay_out(collapse(nodes), measure)

Boxes are in rows, which all devices share, with gaps between them. An edge within a device that spans at most
`FAR` rows is a curve from gap to gap. Others run on tracks: down into the gap below their source, along it to
a lane beside the boxes or between the devices, up or down the lane, and along the gap above their target. So
no line crosses a box. All tracks of one op form one trunk with branches. A trunk enters each other device
once and forks there: a value is sent to a device once, for all its users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from nbdist.graph.layout.collapse import Plane
from nbdist.graph.layout.labels import place_labels
from nbdist.graph.layout.layered import LayerRows, LineSegment, broken, ordered, ranks
from nbdist.graph.layout.positions import centres
from nbdist.graph.layout.routes import arranged, drawn, ports_of, set_columns, set_gaps, set_lanes, set_ports
from nbdist.graph.layout.sheet import BoxMeasure, Sheet
from nbdist.graph.layout.work import LayoutState, begin

FAR = 5  # rows that a curve spans at most; more would need thousands of curves in a graph with gradients
BOX_GAP, THREAD = 20.0, 12.0  # pixels between boxes; width of a curve that passes a row
WIDEST, NARROWEST = 900.0, 440.0  # of a row over all devices, and of a row in one of many devices


def lay_out(
    plane: Plane,
    measure: BoxMeasure,
    title: str | None = None,
    into: Sequence[Sequence[int]] = (),
    out: Sequence[Sequence[int]] = (),
) -> Sheet:
    """Return the sheet of a plane and, in its spots, those of the scopes in it.

    ``title`` is the scope's name where the plane is one. ``into`` and ``out`` are its ports from left to
    right: the edges of the surrounding plane that continue there.
    """
    work = begin(plane, measure, title, into, out)
    devices = _devices(plane) if title is None else [plane.boxes[0].device]
    work.column = [devices.index(box.device) for box in plane.boxes]
    _set_rows(work, max(NARROWEST, WIDEST / len(devices)))
    _set_orders(work, len(devices))
    contents = [_placed(work, column) for column in range(len(devices))]
    set_lanes(work, contents)
    set_columns(work, devices, contents)
    set_ports(work)
    for number, box in enumerate(plane.boxes):
        if box.plane is not None:
            inside = lay_out(box.plane, measure, box.label, *ports_of(work, number))
            work.sheets[number] = inside
            if box.open:
                work.opened[number] = inside
                work.sizes[number] = (inside.width, inside.height)
    contents = [_placed(work, column) for column in range(len(devices))]  # the starts of lines are known now
    set_columns(work, devices, contents)
    set_gaps(work)
    sheet = drawn(work)
    place_labels(work, sheet)
    return sheet


def _devices(plane: Plane) -> list[str]:
    """Return the devices of the outermost plane from left to right."""
    flows: Counter[tuple[str, str]] = Counter()
    for edge in plane.edges:
        ends = plane.boxes[edge.source].device, plane.boxes[edge.target].device
        flows[min(ends), max(ends)] += ends[0] != ends[1]
    return arranged(dict.fromkeys(box.device for box in plane.boxes), flows)


def _set_rows(work: LayoutState, limit: float) -> None:
    """Choose a row for every box, and put the ports above and below all of them."""
    count = len(work.plane.boxes)
    forward = [(wire.source, wire.target) for wire in work.wires if wire.source < wire.target < count]
    widths = [width + BOX_GAP for width, _ in work.sizes]
    rows = broken(ranks(count, forward), work.column, widths, limit)
    top = int(work.title is not None)  # a scope's title and ports have a row of their own
    work.rows = max(rows) + 1 + top
    work.row = [*(row + top for row in rows), *[0] * work.into, *[work.rows] * work.out]
    work.column += [0] * (work.into + work.out)
    work.rows += work.out > 0


def _set_orders(work: LayoutState, columns: int) -> None:
    """Choose which wires are curves, put a thread into each row that one passes, and order all rows."""
    title = len(work.row)
    rows: list[LayerRows] = [[[] for _ in range(work.rows)] for _ in range(columns)]
    if work.title is not None:
        rows[0][0].append(title)
    for element, row in enumerate(work.row):
        rows[work.column[element]][row].append(element)
    thread = title + 1
    for wire in work.wires:
        upper, lower = work.row[wire.source], work.row[wire.target]
        column = work.column[wire.source]
        wire.curve = column == work.column[wire.target] and 0 < lower - upper <= FAR
        if wire.curve:
            wire.passes = range(thread, thread + lower - upper - 1)
            for row, element in enumerate(wire.passes, upper + 1):
                rows[column][row].append(element)
            thread += len(wire.passes)
    fixed = frozenset([0] * (work.title is not None) + [work.rows - 1] * (work.out > 0))
    pulls = _pulls(work)
    work.orders = [ordered(of, _links(work, column), pulls, fixed) for column, of in enumerate(rows)]


def _links(work: LayoutState, column: int) -> list[LineSegment]:
    """Return the pieces of a column's curves; those between threads have the largest weight."""
    title = len(work.row)
    links = []
    for wire in work.wires:
        if not wire.curve or work.column[wire.source] != column:
            continue
        chain = [wire.source, *wire.passes, wire.target]
        for upper, lower in pairwise(chain):
            weight = 1.0 + 2.0 * (upper > title) + 2.0 * (lower > title)
            # Closed boxes align by their centres, whatever their ports, or chains would drift to one side.
            shift = work.leaves(wire) if upper == wire.source and upper in work.opened else 0.0
            shift -= work.enters(wire) if lower == wire.target and lower in work.opened else 0.0
            links.append(LineSegment(upper, lower, weight, shift))
    return links


def _placed(work: LayoutState, column: int) -> float:
    """Choose the x of all elements of a column, from 0 to its width, which is returned."""
    rows, title = work.orders[column], len(work.row)
    ports = range(len(work.sizes), title)
    widths = {element: THREAD for row in rows for element in row}
    widths |= {element: BOX_GAP for element in ports if element in widths}
    widths |= {
        number: wide + BOX_GAP for number, (wide, _) in enumerate(work.sizes) if work.column[number] == column
    }
    if work.title is not None:
        widths[title] = work.measure.title(work.title) + BOX_GAP
    x = centres(rows, _links(work, column), widths)
    left = min(at - widths[element] / 2 for element, at in x.items())
    work.x |= {element: at - left - BOX_GAP / 2 for element, at in x.items()}
    return max(at - left + widths[element] / 2 for element, at in x.items()) - BOX_GAP


def _pulls(work: LayoutState) -> dict[int, float]:
    """Return how far its edges with other devices pull a box to the left or right end of its row."""
    wanted: dict[int, list[float]] = {}
    for wire in work.wires:
        source, target = work.column[wire.source], work.column[wire.target]
        if source != target:
            wanted.setdefault(wire.source, []).append(1.3 if target > source else -0.3)
            wanted.setdefault(wire.target, []).append(-0.3 if target > source else 1.3)
    return {box: sum(places) / len(places) for box, places in wanted.items()}
