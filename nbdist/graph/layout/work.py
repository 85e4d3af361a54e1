"""State of a layout in progress. Elements are numbered: boxes, ports, the title, and edge threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nbdist.graph.layout.collapse import OUTSIDE, Box, Plane, PlaneEdge
from nbdist.graph.layout.layered import LayerRows
from nbdist.graph.layout.sheet import BoxMeasure, DeviceFrame, Sheet

Lane = tuple[str, int]
"""A lane, in which tracks run up and down: left or right of a column, or in the gutter before one."""


@dataclass(slots=True, eq=False)
class Wire:
    """A line between two elements while it is routed; it represents some edges of the plane."""

    source: int
    target: int
    edges: list[int]
    curve: bool = False
    passes: Sequence[int] = ()  # a curve's threads: elements in the rows that it passes
    lane: Lane | None = None  # of a track, unless it runs along one gap only
    labelled_before: frozenset[str] = frozenset()  # tensors on another branch's label
    leave: tuple[float, int] = (0.5, 0)  # as in a Line
    enter: tuple[float, int] = (0.5, 0)


@dataclass(slots=True, eq=False)
class LayoutState:
    """A layout in progress; each stage fills some of the fields."""

    plane: Plane
    measure: BoxMeasure
    title: str | None  # a scope's
    into: int  # number of ports
    out: int
    closed: Sequence[tuple[float, float]]  # sizes of boxes
    sizes: list[tuple[float, float]]  # the same, with the sizes of open scopes once they are known
    wires: list[Wire]
    column: list[int]  # of each box and port
    row: list[int] = field(default_factory=list)
    rows: int = 0
    orders: list[LayerRows] = field(default_factory=list)  # of each column
    sheets: dict[int, Sheet] = field(default_factory=dict)  # of the boxes that are scopes
    opened: dict[int, Sheet] = field(default_factory=dict)  # of those that are open
    x: dict[int, float] = field(default_factory=dict)  # the centre of each element
    frames: list[DeviceFrame] = field(default_factory=list)
    lane_x: dict[tuple[Lane, int], float] = field(default_factory=dict)  # by lane and the wire's source
    gap_y: dict[tuple[object, ...], float] = field(default_factory=dict)  # by the keys of wires' runs
    bands: list[tuple[float, float]] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def box(self, element: int) -> Box | None:
        """Return the box of an element; None for a port."""
        return self.plane.boxes[element] if element < len(self.plane.boxes) else None

    def edges(self, wire: Wire) -> tuple[PlaneEdge, ...]:
        """Return the edges that a wire represents."""
        return tuple(self.plane.edges[number] for number in wire.edges)

    def labels(self, wire: Wire) -> list[tuple[str, float]]:
        """Return the possible labels of a wire, and their widths; a wire from or to a port has none."""
        source, target = self.box(wire.source), self.box(wire.target)
        if source is None or target is None:
            return []
        edges = self.edges(wire)
        if wire.labelled_before:
            edges = tuple(
                replace(
                    edge, tensors={n: t for n, t in edge.tensors.items() if n not in wire.labelled_before}
                )
                for edge in edges
            )
        return self.measure.labels(source, target, edges)

    def leaves(self, wire: Wire) -> float:
        """Return the x of a wire's start, relative to its source's centre."""
        inside = self.opened.get(wire.source)
        return self._beside(wire.source, *wire.leave, inside.out if inside else ())

    def enters(self, wire: Wire) -> float:
        """Return the x of a wire's end, relative to its target's centre."""
        inside = self.opened.get(wire.target)
        return self._beside(wire.target, *wire.enter, inside.into if inside else ())

    def _beside(self, element: int, share: float, port: int, ports: Sequence[float]) -> float:
        if element >= len(self.sizes):
            return 0.0
        width = self.sizes[element][0]
        return ports[port] - width / 2 if ports else (share - 0.5) * width

    def ends(self, wire: Wire) -> tuple[float, float]:
        """Return the x of a wire's ends."""
        return self.x[wire.source] + self.leaves(wire), self.x[wire.target] + self.enters(wire)

    def aim(self, wire: Wire, element: int) -> float:
        """Return the x of the wire's other end, seen from ``element``."""
        if wire.lane is not None:
            return self.lane_x[wire.lane, wire.source]
        if wire.curve and wire.passes:
            return self.x[wire.passes[0] if element == wire.source else wire.passes[-1]]
        return self.x[wire.target if element == wire.source else wire.source]

    def spot(self, element: int) -> int:
        """Return the index of an element's spot in the sheet."""
        return element if element < len(self.sizes) else OUTSIDE


def begin(
    plane: Plane,
    measure: BoxMeasure,
    title: str | None,
    into: Sequence[Sequence[int]],
    out: Sequence[Sequence[int]],
) -> LayoutState:
    """Return a plane's initial state, with one wire for all edges between the same two elements."""
    count = len(plane.boxes)
    entry = {edge: count + port for port, edges in enumerate(into) for edge in edges}
    leave = {edge: count + len(into) + port for port, edges in enumerate(out) for edge in edges}
    wires: dict[tuple[int, int], Wire] = {}
    for number, edge in enumerate(plane.edges):
        source = entry[edge.outer] if edge.source == OUTSIDE else edge.source
        target = leave[edge.outer] if edge.target == OUTSIDE else edge.target
        wires.setdefault((source, target), Wire(source, target, [])).edges.append(number)
    sizes = [measure.box(box) for box in plane.boxes]
    return LayoutState(
        plane, measure, title, len(into), len(out), sizes, list(sizes), list(wires.values()), []
    )
