"""Opens scopes in a laid-out sheet: shifts what lies to the right of an open scope and below it.

    shown = spread(sheet)

Two increasing maps, of x and of y, move each point of the sheet. So boxes that did not overlap still do not,
and boxes and lines keep their relative positions. A closed scope leaves the room to its right empty. The
page's script does the same when a click opens or closes a scope.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nbdist.graph.layout.collapse import Box
from nbdist.graph.layout.sheet import UNDER, DeviceFrame, DrawnEdge, Sheet

Scale = Callable[[float], float]
LOWER = 12.0  # pixels of a box below the top of its row, at most


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A box as shown: its place in the enclosing sheet, and its contents if it is open."""

    box: Box
    x: float
    y: float
    width: float
    height: float
    inside: Spread | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A line as shown: its corners, which are right angles if ``track`` is set, else points of a curve."""

    line: DrawnEdge
    points: tuple[tuple[float, float], ...]
    label_at: tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """A sheet with its open scopes opened."""

    sheet: Sheet
    width: float
    height: float
    frames: list[DeviceFrame]
    shown: list[Shown]
    ways: list[Way] = field(default_factory=list)
    into: list[float] = field(default_factory=list)
    out: list[float] = field(default_factory=list)


def spread(sheet: Sheet, is_open: Callable[[Box], bool] = lambda box: box.open) -> Spread:
    """Return a sheet as shown with its open scopes opened."""
    boxes, spots = sheet.plane.boxes, sheet.spots
    inside = [
        spread(spot.sheet, is_open) if spot.sheet is not None and is_open(box) else None
        for box, spot in zip(boxes, spots, strict=True)
    ]
    sizes = [
        (spot.width, spot.height) if open_ is None else (open_.width, open_.height)
        for spot, open_ in zip(spots, inside, strict=True)
    ]
    x = stretched((spot.x, spot.x + spot.room, wide) for spot, (wide, _) in zip(spots, sizes, strict=True))
    highest: dict[int, float] = {}
    for spot, (_, high) in zip(spots, sizes, strict=True):
        highest[spot.row] = max(high, highest.get(spot.row, 0.0))
    y = resized((*sheet.bands[row], high) for row, high in sorted(highest.items()))
    shown = []
    for box, spot, (wide, high), open_ in zip(boxes, spots, sizes, inside, strict=True):
        top, bottom = map(y, sheet.bands[spot.row])
        lower = min((bottom - top - high) / 2, LOWER)  # in the middle of its row, within LOWER of its top
        shown.append(Shown(box, x(spot.x), top + lower, wide, high, open_))
    frames = [DeviceFrame(frame.device, x(frame.left), x(frame.right)) for frame in sheet.frames]
    into, out = [x(port) for port in sheet.into], [x(port) for port in sheet.out]
    ways = [_way(line, shown, into, out, y(sheet.height), x, y) for line in sheet.lines]
    return Spread(sheet, x(sheet.width), y(sheet.height), frames, shown, ways, into, out)


def stretched(needs: Iterable[tuple[float, float, float]]) -> Scale:
    """Return a map that lengthens intervals (start, end) to the lengths they need, and shortens none.

    Space is added at an interval's end: boxes above or below an open scope do not move.

    >>> wide = stretched([(10.0, 20.0, 50.0)])
    >>> wide(5.0), wide(15.0), wide(20.0), wide(30.0)
    (5.0, 15.0, 60.0, 70.0)
    """
    stops: list[float] = []
    shifts: list[float] = [0.0]

    def scale(value: float) -> float:
        return value + shifts[bisect_right(stops, value)]

    for start, end, length in sorted(needs, key=lambda need: need[1]):
        shift = max(shifts[-1], scale(start) + length - end)
        stops.append(end)
        shifts.append(shift)
    return scale


def resized(bands: Iterable[tuple[float, float, float]]) -> Scale:
    """Return a map that gives intervals, which do not overlap, their new lengths.

    >>> low = resized([(10.0, 20.0, 15.0), (30.0, 50.0, 5.0)])
    >>> low(10.0), low(20.0), low(30.0), low(50.0)
    (10.0, 25.0, 35.0, 40.0)
    """
    stops: list[float] = []
    shifts: list[float] = [0.0]
    for start, end, length in bands:
        stops.append(end)
        shifts.append(shifts[-1] + length - (end - start))
    return lambda value: value + shifts[bisect_right(stops, value)]


def _way(
    line: DrawnEdge,
    shown: list[Shown],
    into: list[float],
    out: list[float],
    bottom: float,
    x: Scale,
    y: Scale,
) -> Way:
    """Return the corners of a line, given the places of the boxes."""
    if line.source < 0:
        start = (into[line.leave[1]], 0.0)
    else:
        box, (share, port) = shown[line.source], line.leave
        at = share * box.width if box.inside is None else box.inside.out[port]
        start = (box.x + at, box.y + box.height)
    if line.target < 0:
        end = (out[line.enter[1]], bottom)
    else:
        box, (share, port) = shown[line.target], line.enter
        at = share * box.width if box.inside is None else box.inside.into[port]
        end = (box.x + at, box.y)
    label_at = (x(line.label_at[0]), y(line.label_at[1]))
    bends = line.bends
    if line.track:
        middle = x(bends[1]) if len(bends) == 3 else end[0]
        corners = [(start[0], y(bends[0])), (middle, y(bends[0]))]
        corners += [(middle, y(bends[2])), (end[0], y(bends[2]))] if len(bends) == 3 else []
        label_at = (_within(label_at[0], corners[-2][0], end[0], line.label_width / 2 + 8), label_at[1])
    else:
        passes = [bends[i : i + 3] for i in range(1, len(bends) - 1, 3)]
        corners = [(start[0], y(bends[0]))]
        corners += [point for at, *ends in passes for point in ((x(at), y(ends[0])), (x(at), y(ends[1])))]
        corners.append((end[0], y(bends[-1])))
        label_at = (corners[0][0], corners[0][1] + UNDER)
    return Way(line, (start, *corners, end), label_at)


def _within(value: float, a: float, b: float, margin: float) -> float:
    """Return the nearest number between ``a`` and ``b``, with a margin if there is room."""
    low, high = sorted((a, b))
    margin = min(margin, (high - low) / 2)
    return min(max(value, low + margin), high - margin)
