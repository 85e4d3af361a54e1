"""The result of a layout: positions of a plane's boxes and edges while its scopes are closed, in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nbdist.graph.layout.collapse import Box, Plane, PlaneEdge

UNDER = 11.0  # pixels between a row and the centre of a label on a curve that begins there


class BoxMeasure(Protocol):
    """The sizes of drawn texts and boxes, in pixels."""

    def box(self, box: Box) -> tuple[float, float]:
        """Return the width and height of a box; of a scope, while it is closed."""

    def title(self, text: str) -> float:
        """Return the width of a device's or an open scope's title."""

    def labels(self, source: Box, target: Box, edges: Sequence[PlaneEdge]) -> list[tuple[str, float]]:
        """Return the possible labels of a line, the best first, and their widths."""


@dataclass(slots=True, eq=False)
class Spot:
    """A box's place: its left edge, the width reserved for it, its size while it is closed, its row."""

    x: float
    room: float
    width: float
    height: float
    row: int
    sheet: Sheet | None = None


@dataclass(slots=True, eq=False)
class DrawnEdge:
    """One drawn edge, between two spots or the outside.

    ``leave`` and ``enter`` are its places on its ends: a fraction of a closed box's width, and the index of
    the port of an open scope's sheet, which is also the port if an end is OUTSIDE. The bends of a curve are
    the y at which it may turn, then x, top and bottom of each passage through a row, then the y at
    which it is above its target. Those of a track are a y, or y, x and y.
    """

    source: int
    target: int
    edges: tuple[PlaneEdge, ...]
    track: bool
    leave: tuple[float, int] = (0.5, 0)
    enter: tuple[float, int] = (0.5, 0)
    bends: tuple[float, ...] = ()
    label: str = ""
    label_width: float = 0.0
    label_at: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True, eq=False)
class DeviceFrame:
    """A device's frame, from left to right."""

    device: str
    left: float
    right: float


@dataclass(slots=True, eq=False)
class Sheet:
    """The layout of a plane.

    ``bands`` are the top and bottom of each row; ``into`` and ``out`` are the x of its ports, at its upper
    and lower edge, where lines of the surrounding plane continue.
    """

    plane: Plane
    width: float = 0.0
    height: float = 0.0
    bands: list[tuple[float, float]] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    lines: list[DrawnEdge] = field(default_factory=list)
    frames: list[DeviceFrame] = field(default_factory=list)
    into: list[float] = field(default_factory=list)
    out: list[float] = field(default_factory=list)
