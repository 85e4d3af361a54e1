"""Converts boxes, frames and lines to marks (rectangles, paths and words) for the SVG and the PNG."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from nbdist.graph.device import DeviceSpec
from nbdist.graph.layout.collapse import Box, PlaneEdge, walk
from nbdist.graph.layout.nodes import Node
from nbdist.graph.layout.stretch import Spread, Way
from nbdist.text import clip
from nbdist.ui.graph.style import DEVICES

Point = tuple[float, float]
Command = tuple[str, tuple[Point, ...]]
"""One step of a path: M, L, Q, C or Z, and its points."""


CORNER, HEAD, CAP = 6.0, 6.0, 5.0  # radius of a track's turns; an arrow's head; the rim of a variable's drum


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle with round corners."""

    role: str
    x: float
    y: float
    width: float
    height: float
    radius: float = 5.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A path; ``fill`` replaces the fill colour of the role's look."""

    role: str
    path: tuple[Command, ...]
    fill: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text; ``y`` is its middle."""

    role: str
    x: float
    y: float
    text: str
    anchor: Literal["start", "middle"] = "start"


Mark = Rect | Shape | Words


def box_marks(box: Box, wide: float, high: float) -> list[Mark]:
    """Return the marks of a closed box, relative to its upper left corner."""
    middle = wide / 2
    if box.plane is not None:
        return _scope_marks(box, wide, high)
    chips = box_chips(box)
    base = high - 17.0 * bool(chips)
    drum = {"Variable": CAP, "Placeholder": -CAP / 2}.get(box.op.type, 0.0)
    marks: list[Mark] = [
        outline(box.op.type, wide, high),
        Words("name", middle, base / 2 - 7 + drum, box_name(box), "middle"),
        Words("detail", middle, base / 2 + 8 + drum, box_detail(box), "middle"),
    ]
    x = middle - sum(width(chip, CHIP) + 14 for chip in chips) / 2
    for chip in chips:
        size = width(chip, CHIP) + 10
        marks.append(Rect("chip", x + 2, base - 2, size, 14, 7))
        marks.append(Words("chip-text", x + 2 + size / 2, base + 5, chip, "middle"))
        x += size + 4
    return marks


def outline(kind: str, wide: float, high: float) -> Rect | Shape:
    """Return the outline for an op's type."""
    if kind == "Variable":
        return Shape("variable", _drum(wide, high))
    if kind == "Placeholder":
        tip = min(9.0, high / 3)
        points = ((0.0, 0.0), (wide, 0.0), (wide, high - tip), (wide / 2, high), (0.0, high - tip))
        return Shape("placeholder", polygon(points))
    if kind == "Constant":
        return Rect("constant", 0, 0, wide, high, high / 2)
    return Rect("op", 0, 0, wide, high)


def _drum(wide: float, high: float) -> tuple[Command, ...]:
    """Return a cylinder, the outline of a variable."""
    low, bend = high - CAP, CAP * 1.33
    return (
        ("M", ((0.0, CAP),)),
        ("C", ((0.0, CAP - bend), (wide, CAP - bend), (wide, CAP))),
        ("L", ((wide, low),)),
        ("C", ((wide, low + bend), (0.0, low + bend), (0.0, low))),
        ("Z", ()),
        ("M", ((wide, CAP),)),
        ("C", ((wide, CAP + bend), (0.0, CAP + bend), (0.0, CAP))),
    )


def _scope_marks(box: Box, wide: float, high: float) -> list[Mark]:
    """Return a stack of cards with a plus sign."""
    role = scope_role(box)
    return [
        Rect(role, 5, 5, wide - 5, high - 5),
        Rect(role, 0, 0, wide - 5, high - 5),
        *_sign(15, (high - 5) / 2, plus=True),
        Words("name", 28, (high - 5) / 2 - 7, box_name(box)),
        Words("detail", 28, (high - 5) / 2 + 8, box_detail(box)),
    ]


def scope_role(box: Box) -> str:
    """Return the role of a scope's marks."""
    parts = box.key.partition("|")[2].split("/")
    return "gradient" if any(part.startswith("gradients") for part in parts) else "scope"


def _sign(x: float, y: float, plus: bool) -> list[Mark]:
    strokes: list[Command] = [("M", ((x - 3, y),)), ("L", ((x + 3, y),))]
    strokes += [("M", ((x, y - 3),)), ("L", ((x, y + 3),))] if plus else []
    return [Rect("sign", x - 6, y - 6, 12, 12, 3), Shape("sign", tuple(strokes))]


def open_marks(box: Box, wide: float, high: float) -> list[Mark]:
    """Return the frame and title of an open scope; the frame comes first."""
    return [
        Rect("inside", 0, 0, wide, high, 7),
        *_sign(15, 13, plus=False),
        Words("name", 26, 13, box_name(box)),
    ]


def frame_marks(device: str, number: int, wide: float, high: float) -> list[Mark]:
    """Return the frame and title of a device; the frame comes first."""
    title, text = device_lines(device)
    return [
        Rect("device", 0, 0, wide, high, 9),
        Shape("dot", circle(17, 17, 4.5), DEVICES[number % len(DEVICES)]),
        Words("name", 28, 17, title),
        *([Words("detail", 28, 33, text)] if text != title else []),
    ]


def line_role(edges: Sequence[PlaneEdge]) -> str:
    """Return the role of a line's marks."""
    if not any(edge.tensors for edge in edges):
        return "after"
    return "send" if any(edge.crosses for edge in edges) else "flow"


def label_marks(way: Way, inside: bool) -> list[Mark]:
    """Return a line's label and the background behind it; the origin is its middle."""
    role = "send-label" if line_role(way.line.edges) == "send" else "label"
    wide = width(way.line.label, LABEL) + 6
    return [
        Rect("rest-inside" if inside else "rest", -wide / 2, -7, wide, 14, 3),
        Words(role, 0, 0, way.line.label, "middle"),
    ]


def line_path(way: Way) -> tuple[Command, ...]:
    """Return the path of a line, which ends before its arrowhead."""
    points = list(way.points)
    return _turning(points) if way.line.track else _swinging(points)


def head_path(way: Way) -> tuple[Command, ...]:
    """Return a line's arrowhead, which points down."""
    x, y = way.points[-1]
    return polygon(((x - HEAD * 0.6, y - HEAD), (x + HEAD * 0.6, y - HEAD), (x, y)))


def _swinging(points: Sequence[Point]) -> tuple[Command, ...]:
    """Return a path that is straight through the rows and curved between them."""
    path: list[Command] = [("M", (points[0],))]
    for i in range(1, len(points)):
        (x0, y0), (x1, y1) = points[i - 1], points[i]
        middle = (y0 + y1) / 2
        path.append(("L", ((x1, y1),)) if i % 2 else ("C", ((x0, middle), (x1, middle), (x1, y1))))
    return tuple(path)


def _turning(points: Sequence[Point]) -> tuple[Command, ...]:
    """Return a path of straight lines with round corners."""
    path: list[Command] = [("M", (points[0],))]
    for before, turn, after in zip(points, points[1:], points[2:]):
        radius = min(CORNER, _length(before, turn) / 2, _length(turn, after) / 2)
        path.append(("L", (_towards(turn, before, radius),)))
        path.append(("Q", (turn, _towards(turn, after, radius))))
    return (*path, ("L", (points[-1],)))


def _length(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])  # one of them is 0


def _towards(start: Point, end: Point, distance: float) -> Point:
    share = distance / (_length(start, end) or 1.0)
    return (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))


def polygon(points: Sequence[Point]) -> tuple[Command, ...]:
    """Return a closed path with straight sides."""
    return (("M", (points[0],)), *(("L", (point,)) for point in points[1:]), ("Z", ()))


def circle(x: float, y: float, radius: float) -> tuple[Command, ...]:
    """Return a circle as four curves."""
    bend = radius * 0.5523
    right, low, left, high = (x + radius, y), (x, y + radius), (x - radius, y), (x, y - radius)
    return (
        ("M", (right,)),
        ("C", ((x + radius, y + bend), (x + bend, y + radius), low)),
        ("C", ((x - bend, y + radius), (x - radius, y + bend), left)),
        ("C", ((x - radius, y - bend), (x - bend, y - radius), high)),
        ("C", ((x + bend, y - radius), (x + radius, y - bend), right)),
        ("Z", ()),
    )


# Text of a graph's drawing, and its size for the layout.

NAME, DETAIL, CHIP, LABEL = 12.0, 10.5, 9.5, 10.0  # font sizes in pixels
MOST_LETTERS, MOST_LISTED, MOST_CHIPS = 28, 6, 3
# Widths as shares of the font size, a little more than those of DejaVu Sans, the widest common font.
WIDTHS = {
    letter: share
    for letters, share in (
        ("'ijlI|", 0.30), (" ,./:;\\J·", 0.34), ("f-()[]t!r", 0.40), ("\"*_`szc?", 0.54),
        ("LFkvxyPTYaoeESbdghnpqu", 0.62), ("$0123456789{}KAVXZBRC", 0.68), ("UHNDG&OQ", 0.79),
    )
    for letter in letters
}  # fmt: skip
WIDE, BOLD = 0.95, 1.12


def width(text: str, size: float, bold: bool = False) -> float:
    """Return an upper estimate of a text's width in pixels."""
    return sum(WIDTHS.get(letter, WIDE) for letter in text) * size * (BOLD if bold else 1.0)


class TextMeasure:
    """Measures boxes, titles and labels for the layout."""

    def box(self, box: Box) -> tuple[float, float]:
        """Return the width and height of a closed box."""
        words = max(width(box_name(box), NAME, bold=True), width(box_detail(box), DETAIL))
        if box.plane is not None:
            return max(words, 64.0) + 46, 44.0
        chips = box_chips(box)
        words = max(words, sum(width(chip, CHIP) + 14 for chip in chips))
        height = {"Variable": 46.0, "Placeholder": 38.0}.get(box.op.type, 38.0) + 17.0 * bool(chips)
        return max(words, 40.0) + 24, height

    def title(self, text: str) -> float:
        """Return the width of a frame's title and of the sign before it."""
        lines = device_lines(text) if not text.endswith("/") else [text]
        return max(width(line, NAME, bold=True) for line in lines) + 30

    def labels(self, source: Box, target: Box, edges: Sequence[PlaneEdge]) -> list[tuple[str, float]]:
        """Return a line's possible labels. A result that stays on its device needs none: its box shows it."""
        if source.plane is None and source.device == target.device:
            return []
        return [(text, width(text, LABEL)) for text in line_labels(edges)]


def box_name(box: Box) -> str:
    """Return a box's first line."""
    return clip(box.label, MOST_LETTERS)


def box_detail(box: Box) -> str:
    """Return a box's second line."""
    if box.plane is not None:
        return counts(box.nodes)
    op = box.op
    leaf = op.name.rpartition("/")[2]
    plain = op.type in ("Variable", "Placeholder", "Constant") or re.fullmatch(
        rf"{re.escape(op.type)}(_\d+)?", leaf
    )
    words = ["" if plain else op.type, op.value or op.spec]
    size = f"· {byte_text(op.bytes)}" if op.type == "Variable" and op.bytes is not None else ""
    return clip(" ".join(filter(None, [*words, size])), 40) or op.type


def box_chips(box: Box) -> list[str]:
    """Return the values of the constants that are drawn in an op's box, as short texts."""
    values = [clip(node.value, 16) for node in box.folded if node.type == "Constant"]
    if box.plane is not None or box.op.type == "Variable":
        return []
    more = len(values) - MOST_CHIPS
    return [*values[:MOST_CHIPS], f"+ {more}"] if more > 0 else values


def counts(nodes: Sequence[Node]) -> str:
    """Return the number of ops and variables, and the size of the variables.

    >>> counts([Node("w", "Variable", shape=(10, 10)), Node("y", "exp")])
    '1 op · 1 variable · 400 B'
    """
    variables = [node for node in nodes if node.type == "Variable"]
    parts = [number(len(nodes) - len(variables), "op")] if len(nodes) > len(variables) else []
    if variables:
        parts += [number(len(variables), "variable"), byte_text(sum(node.bytes or 0 for node in variables))]
    return " · ".join(parts)


def number(count: int, what: str) -> str:
    """Return a count with its noun.

    >>> number(1, "op"), number(1200, "op")
    ('1 op', '1,200 ops')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def byte_text(count: int) -> str:
    """Return a size with three digits.

    >>> byte_text(400), byte_text(31360), byte_text(4_000_000)
    ('400 B', '31.4 kB', '4 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def line_labels(edges: Sequence[PlaneEdge]) -> list[str]:
    """Return a line's possible labels, the longest first; none for a control dependency."""
    tensors = tensors_of(edges)
    if not tensors:
        return []
    size = total(tensors)
    first = tensors[0].spec if len(tensors) == 1 else number(len(tensors), "tensor")
    return [f"{first} · {size}", first, size] if size else [first]


def total(tensors: Sequence[Node]) -> str:
    """Return the total size of tensors as text; "" if a size is known only when the graph runs."""
    sizes = [node.bytes for node in tensors if node.bytes is not None]
    return byte_text(sum(sizes)) if len(sizes) == len(tensors) else ""


def tensors_of(edges: Iterable[PlaneEdge]) -> list[Node]:
    """Return the tensors of a line, each once."""
    return list({name: node for edge in edges for name, node in edge.tensors.items()}.values())


def device_lines(device: str) -> list[str]:
    """Return a device's title, and its full name if the title is shorter.

    >>> device_lines("/job:worker/task:0/device:GPU:1"), device_lines("")
    (['worker 0 · GPU:1', '/job:worker/task:0/device:GPU:1'], ['any device', 'no device is given'])
    """
    if not device:
        return ["any device", "no device is given"]
    spec = DeviceSpec.from_string(device)
    task = " ".join(str(part) for part in (spec.job, spec.task) if part is not None)
    kind = f"{spec.device_type}:{'*' if spec.device_index is None else spec.device_index}"
    title = " · ".join(filter(None, [task, kind if spec.device_type else ""]))
    return [title or device, device]


def box_tooltip(box: Box) -> str:
    """Return the lines of a box's tooltip."""
    if box.plane is not None:
        types = Counter(node.type for node in box.nodes).most_common(MOST_LISTED)
        return "\n".join(
            [box.key.partition("|")[2], counts(box.nodes), ", ".join(f"{n} {t}" for t, n in types)]
        )
    op = box.op
    made = " ".join(filter(None, [op.type, op.spec, "" if op.bytes is None else f"({byte_text(op.bytes)})"]))
    lines = [op.name, made]
    lines += [f"takes {listed(op.inputs)}"] if op.inputs else []
    lines += [f"runs after {listed(op.control_inputs)}"] if op.control_inputs else []
    lines += [f"with {node.name} = {node.value or node.spec}" for node in islice(box.folded, MOST_LISTED)]
    return "\n".join([*lines, f"on {op.device}" if op.device else "on any device"])


def line_tooltip(edges: Sequence[PlaneEdge]) -> str:
    """Return the lines of a line's tooltip."""
    tensors = tensors_of(edges)
    first = {name: node for edge in edges for name, node in edge.control.items()}
    lines = [" · ".join(filter(None, [number(len(tensors), "tensor"), total(tensors)]))] if tensors else []
    lines += [f"{node.name} {node.spec}" for node in tensors[:MOST_LISTED]]
    lines += [f"and {len(tensors) - MOST_LISTED} more"] if len(tensors) > MOST_LISTED else []
    return "\n".join([*lines, *([f"after {listed(list(first))}"] if first else [])])


def listed(names: Sequence[str]) -> str:
    """Return names in one line, the first few of many."""
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


# The legend of a graph's drawing, for the styles that occur in it.

MEANINGS = {
    "op": "op",
    "variable": "variable",
    "placeholder": "fed by each run",
    "constant": "constant",
    "scope": "name scope",
    "gradient": "gradients",
    "flow": "tensor",
    "send": "tensor sent to another device",
    "after": "order only",
}
ROW, SYMBOL, APART = 24.0, 26.0, 18.0


def roles_in(shown: Spread) -> set[str]:
    """Return the roles that occur in a picture, including its closed scopes."""
    boxes = list(walk(shown.sheet.plane))
    roles = {scope_role(box) if box.plane else outline(box.op.type, 1, 1).role for box in boxes}
    planes = [shown.sheet.plane, *(box.plane for box in boxes if box.plane)]
    return roles | {line_role([edge]) for plane in planes for edge in plane.edges}


def key_marks(roles: Iterable[str], wide: float) -> tuple[list[Mark], float]:
    """Return the legend's marks, in rows of at most ``wide`` pixels, and its height."""
    marks: list[Mark] = []
    present = set(roles)
    x, y = 0.0, 0.0
    for role, meaning in MEANINGS.items():
        if role not in present:
            continue
        size = SYMBOL + 8 + width(meaning, DETAIL) + APART
        if x and x + size > wide:
            x, y = 0.0, y + ROW
        marks += [*_symbol(role, x, y + ROW / 2), Words("key", x + SYMBOL + 8, y + ROW / 2, meaning)]
        x += size
    return marks, y + ROW if marks else 0.0


def _symbol(role: str, x: float, y: float) -> list[Mark]:
    if role in ("flow", "send", "after"):
        shaft = (("M", ((x, y),)), ("L", ((x + SYMBOL - 6, y),)))
        head = polygon(((x + SYMBOL - 6, y - 3.6), (x + SYMBOL - 6, y + 3.6), (x + SYMBOL, y)))
        return [Shape(role, shaft), Shape(f"{role}-head", head)]
    if role in ("scope", "gradient"):
        return [Rect(role, x + 5, y - 4, 19, 12, 3), Rect(role, x + 2, y - 8, 19, 12, 3)]
    kind = {"variable": "Variable", "placeholder": "Placeholder", "constant": "Constant"}.get(role, "")
    mark = outline(kind, 20, 15)
    if isinstance(mark, Rect):
        return [Rect(mark.role, x + 3, y - 7.5, 20, 15, min(mark.radius, 7.5))]
    moved = tuple(
        (letter, tuple((x + 3 + a, y - 7.5 + b) for a, b in points)) for letter, points in mark.path
    )
    return [Shape(mark.role, moved)]
