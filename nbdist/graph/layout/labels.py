"""Labels of edges, where there is room: labels never overlap; a tooltip shows the omitted ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nbdist.graph.layout.sheet import UNDER, DrawnEdge, Sheet
from nbdist.graph.layout.work import LayoutState, Wire

Point = tuple[float, float]
Rectangle = tuple[float, float, float, float]
"""Left, top, right, bottom."""


HEIGHT, CLEAR = 14.0, 6.0  # pixels: height of a label, margin around it


def place_labels(work: LayoutState, sheet: Sheet) -> None:
    """Place the labels of lines: lines between devices first, then by bytes."""
    taken = [
        leg for wire, line in zip(work.wires, sheet.lines, strict=True) for leg in _legs(work, wire, line)
    ]

    def weight(pair: tuple[Wire, DrawnEdge]) -> tuple[bool, int]:
        return (not pair[1].track, -sum(edge.bytes for edge in pair[1].edges))

    for wire, line in sorted(zip(work.wires, sheet.lines, strict=True), key=weight):
        found = _free(work, wire, line, sheet.width, taken)
        if found is not None:
            line.label, line.label_width, line.label_at = found
            taken.append(_around(*line.label_at, line.label_width))


def _free(
    work: LayoutState, wire: Wire, line: DrawnEdge, width: float, taken: Sequence[Rectangle]
) -> tuple[str, float, Point] | None:
    """Return the first label of a line that has room, its width and its centre."""
    for text, wide in work.labels(wire):
        for x, y in _places(line, *work.ends(wire), wide):
            rectangle = _around(x, y, wide)
            inside = rectangle[0] >= 0 and rectangle[2] <= width
            if inside and not any(_meet(rectangle, other) for other in taken):
                return text, wide, (x, y)
    return None


def _around(x: float, y: float, width: float) -> Rectangle:
    return (x - width / 2 - CLEAR, y - HEIGHT / 2, x + width / 2 + CLEAR, y + HEIGHT / 2)


def _legs(work: LayoutState, wire: Wire, line: DrawnEdge) -> list[Rectangle]:
    """Return the first and last pieces of a track: from a box and to one. No label may hide them."""
    if not line.track:
        return []
    start, end = work.ends(wire)
    below, above = work.bands[work.row[wire.source]][1], work.bands[work.row[wire.target]][0]
    return [(start - 1, below, start + 1, line.bends[0]), (end - 1, line.bends[-1], end + 1, above)]


def _places(line: DrawnEdge, start: float, end: float, width: float) -> Iterator[Point]:
    """Yield the possible centres of a label of this width on the line."""
    if not line.track:
        yield start, line.bends[0] + UNDER
        return
    turn = start if len(line.bends) == 1 else line.bends[1]
    for share in (0.5, 0.65, 0.35, 0.8, 0.2):
        x = turn + share * (end - turn)
        if min(abs(x - turn), abs(end - x)) > width / 2 + CLEAR + 2:
            yield x, line.bends[-1]


def _meet(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
