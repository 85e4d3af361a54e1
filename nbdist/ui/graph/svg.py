"""A graph's picture as SVG: a standalone file, or an interactive drawing that opens and closes scopes.

This module, and no other, escapes the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from nbdist.graph.layout.collapse import Box
from nbdist.graph.layout.sheet import Sheet, Spot
from nbdist.graph.layout.stretch import Shown, Spread, Way, spread
from nbdist.ui.graph.marks import (
    Command,
    Mark,
    Rect,
    Shape,
    TextMeasure,
    box_detail,
    box_marks,
    box_tooltip,
    frame_marks,
    head_path,
    key_marks,
    label_marks,
    line_path,
    line_role,
    line_tooltip,
    open_marks,
    roles_in,
)  # fmt: skip
from nbdist.ui.graph.style import WORDS, style

MARGIN, BELOW = 8.0, 8.0  # around the picture; above its key
LEAST = 260.0  # of the width, for the key
MOST_BOXES = 1_500  # that a page can open: more would make the file too large


def svg(shown: Spread, label: str) -> str:
    """Return the picture as a standalone file, without the contents of closed scopes."""
    return _document(shown, label, _SvgWriter(live=False))


def live_svg(shown: Spread, label: str) -> tuple[str, list[Sheet], dict[Box, int]]:
    """Return the picture for a page, with the contents of its scopes.

    Also returns the sheets in the order of their groups, and the number of each scope's sheet.
    """
    writer = _SvgWriter(live=True)
    return _document(shown, label, writer), writer.sheets, writer.numbers


def page_size(shown: Spread) -> tuple[float, float, list[Mark]]:
    """Return the width and height of the picture with its legend, without margins, and the legend."""
    wide = max(shown.width, LEAST)
    keys, high = key_marks(roles_in(shown), wide)
    return wide, shown.height + BELOW + high, keys


def _document(shown: Spread, label: str, writer: _SvgWriter) -> str:
    wide, high, keys = page_size(shown)
    wide, high = wide + 2 * MARGIN, high + 2 * MARGIN
    paper = f'<rect class="nbd-page" x="{-MARGIN:g}" y="{-MARGIN:g}" width="100%" height="100%"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="nbd-graph" width="{_n(wide)}" height="{_n(high)}" '
        f'viewBox="{_n(-MARGIN)} {_n(-MARGIN)} {_n(wide)} {_n(high)}" '
        f'role="{"group" if writer.live else "img"}" aria-label="{_text(label)}">'
        f"<style>{style(page=writer.live)}</style>{'' if writer.live else paper}{writer.sheet(shown)}"
        f'<g class="nbd-keys" transform="{_move(0, shown.height + BELOW)}">{_drawn(keys)}</g></svg>'
    )


class _SvgWriter:
    """Writes sheets as groups: frames, then lines, then their texts, then boxes."""

    def __init__(self, live: bool) -> None:
        self.live = live
        self.sheets: list[Sheet] = []
        self.numbers: dict[Box, int] = {}  # a scope that can be opened -> its sheet
        self.boxes = 0

    def sheet(self, shown: Spread) -> str:
        """Return the group of a sheet, with the sheets of the open scopes in it."""
        self.sheets.append(shown.sheet)
        self.boxes += len(shown.shown)
        frames = "".join(
            f'<g transform="{_move(frame.left, 0)}">'
            f"{_drawn(frame_marks(frame.device, i, frame.right - frame.left, shown.height))}</g>"
            for i, frame in enumerate(shown.frames)
        )
        lines = "".join(self.line(way, shown) for way in shown.ways)
        labels = "".join(
            f'<g transform="{_move(*way.label_at)}">{_drawn(label_marks(way, not shown.frames))}</g>'
            for way in shown.ways
            if way.line.label
        )
        boxes = "".join(self.box(*two) for two in zip(shown.shown, shown.sheet.spots, strict=True))
        return f'<g class="nbd-sheet"><g>{frames}</g><g>{lines}</g><g>{labels}</g><g>{boxes}</g></g>'

    def line(self, way: Way, shown: Spread) -> str:
        """Return a line with its arrowhead."""
        role = line_role(way.line.edges)
        head = ""
        if way.line.target >= 0 and (self.live or shown.shown[way.line.target].inside is None):
            head = f'<path class="nbd-{role}-head" d="{path_text(head_path(way))}"/>'
        tip = _text(line_tooltip(way.line.edges))
        return f'<g><path class="nbd-{role}" d="{path_text(line_path(way))}"/>{head}<title>{tip}</title></g>'

    def box(self, shown: Shown, spot: Spot) -> str:
        """Return an op or a scope. In a page, a scope has an open and a closed form, one of them hidden."""
        box, title = shown.box, f"<title>{_text(box_tooltip(shown.box))}</title>"
        start = f'<g transform="{_move(shown.x, shown.y)}"'
        closed = _drawn(box_marks(box, spot.width, spot.height)) + title
        if box.plane is None or spot.sheet is None:
            return f"{start}>{closed}</g>"
        if not self.live:
            return f"{start}>{closed if shown.inside is None else self.opened(shown.inside, shown)}</g>"
        if shown.inside is None and self.boxes + len(box.plane.boxes) > MOST_BOXES:
            return f"{start}>{closed}</g>"
        name = _text(f"{box.label} {box_detail(box)}")
        self.numbers[box] = len(self.sheets)
        inside = shown.inside or spread(spot.sheet)
        return (
            f'{start} class="nbd-box{" nbd-opened" if shown.inside else ""}">'
            f'<g class="nbd-shut" tabindex="0" role="button" aria-expanded="false" aria-label="{name}">'
            f"{closed}</g>{self.opened(inside, shown, name)}</g>"
        )

    def opened(self, inside: Spread, shown: Shown, name: str = "") -> str:
        """Return an open scope's frame, its title (in a page a button) and its content."""
        frame, *title = open_marks(shown.box, inside.width, inside.height)
        if not self.live:
            return _drawn([frame, *title]) + self.sheet(inside)
        button = f'<g class="nbd-close" tabindex="0" role="button" aria-expanded="true" aria-label="{name}">'
        area = f'<rect class="nbd-area" width="{_n(TextMeasure().title(shown.box.label))}" height="24"/>'
        return (
            f'<g class="nbd-open">{_drawn([frame])}{button}{area}{_drawn(title)}</g>{self.sheet(inside)}</g>'
        )


def _drawn(marks: Iterable[Mark]) -> str:
    return "".join(map(_mark, marks))


def _mark(mark: Mark) -> str:
    if isinstance(mark, Rect):
        at = f'x="{_n(mark.x)}" y="{_n(mark.y)}" ' if mark.x or mark.y else ""
        size = f'width="{_n(mark.width)}" height="{_n(mark.height)}" rx="{_n(mark.radius)}"'
        return f'<rect class="nbd-{mark.role}" {at}{size}/>'
    if isinstance(mark, Shape):
        fill = f' fill="{mark.fill}"' if mark.fill else ""
        return f'<path class="nbd-{mark.role}"{fill} d="{path_text(mark.path)}"/>'
    middle = ' text-anchor="middle"' if mark.anchor == "middle" else ""
    # The baseline is a third of the font size below the middle; not all readers know dominant-baseline.
    base = mark.y + WORDS[mark.role].size * 0.36
    text = _text(mark.text)
    return f'<text class="nbd-{mark.role}" x="{_n(mark.x)}" y="{_n(base)}"{middle}>{text}</text>'


def path_text(path: Iterable[Command]) -> str:
    """Return a path as SVG writes it.

    >>> path_text((("M", ((0.0, 1.5),)), ("L", ((2.0, 3.0),)), ("Z", ())))
    'M0 1.5L2 3Z'
    """
    return "".join(letter + " ".join(f"{_n(x)} {_n(y)}" for x, y in points) for letter, points in path)


def _text(text: str) -> str:
    """Return a text escaped for XML, with a space for each unprintable character."""
    return escape("".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text))


def _move(x: float, y: float) -> str:
    return f"translate({_n(x)} {_n(y)})"


def _n(value: float) -> str:
    """Return a number of pixels, to a tenth.

    >>> _n(3.0), _n(-0.04), _n(2.25)
    ('3', '0', '2.2')
    """
    return f"{round(value, 1) + 0.0:g}" if abs(value) < 1e5 else f"{value:.0f}"
