"""Draws a graph: its devices, its ops in their name scopes, and the tensors that cross devices.

nb.show_graph()                                 # the default graph, in the notebook
nb.show_graph(graph, expand="hidden").save("hidden.svg")
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, nearest
from nbdist.graph.layout.collapse import Box, Plane, collapse, scopes
from nbdist.graph.layout.layout import lay_out
from nbdist.graph.layout.nodes import Node, describe
from nbdist.graph.layout.sheet import DrawnEdge, Sheet
from nbdist.graph.layout.stretch import Spread, spread
from nbdist.graph.scopes import Graph, default_graph
from nbdist.ui.graph.marks import TextMeasure, byte_text, counts, device_lines, number
from nbdist.ui.graph.png import png, png_within
from nbdist.ui.graph.svg import BELOW, LEAST, MARGIN, live_svg, page_size, svg

PICTURE_LIMIT = 80_000  # bytes of the PNG; a notebook stores it twice


class GraphView:
    """A graph's picture: displayed in a notebook, and available as SVG and as PNG."""

    def __init__(self, nodes: Iterable[Node], expand: Iterable[str] = (), depth: int | None = None) -> None:
        self.nodes = tuple(nodes)
        self._plane = collapse(self.nodes, expand, depth)

    @cached_property
    def _shown(self) -> Spread:
        return spread(lay_out(self._plane, TextMeasure()))

    @cached_property
    def _sent(self) -> list[Any]:
        return sends(self.nodes)

    @property
    def _headline(self) -> str:
        return headline(self.nodes, self._sent)

    def svg(self) -> str:
        """Return the picture as SVG, which follows the reader's light or dark setting."""
        return svg(self._shown, self._headline)

    def png(self, scale: float = 2.0) -> bytes:
        """Return the picture as PNG with ``scale`` (up to 8) dots per pixel, fewer if it is very large."""
        if not 0 < scale <= 8:
            raise InvalidArgumentError(f"png(scale={scale!r}): a scale is a number above 0, 8 at most")
        return png(self._shown, scale)

    def save(self, path: str | Path) -> Path:
        """Write the picture into a file that ends with .svg or .png; return its path.

        Raises InvalidArgumentError for another suffix, NotFoundError where the folder is missing.
        """
        path = Path(path).expanduser()
        if not path.parent.is_dir():
            raise NotFoundError(
                f"cannot save {path.name!r}: the folder {str(path.parent)!r} does not exist; create it first"
            )
        kind = path.suffix.lower()
        if kind == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        elif kind == ".png":
            path.write_bytes(self.png())
        else:
            raise InvalidArgumentError(
                f"cannot save a graph as {str(path)!r}: end the name with .svg or .png"
            )
        return path

    def __repr__(self) -> str:
        return text(self.nodes, self._plane, self._sent)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the picture for a notebook: as PNG, as interactive HTML and as text."""
        picture = png_within(self._shown, PICTURE_LIMIT)
        return {
            "image/png": base64.b64encode(picture).decode("ascii"),
            "text/html": page(self._shown, self._headline, self._sent, picture),
            "text/plain": repr(self),
        }


def show_graph(
    graph: Any = None,
    *,
    expand: str | Iterable[str] = (),
    depth: int | None = None,
    placement: Mapping[str, str] | None = None,
) -> GraphView:
    """Return the picture of a graph: devices as boxes, transfers as arrows, name scopes collapsed.

    ``graph`` is a graph, or a session or model that has one; None is the default graph. ``expand`` names the
    scopes to open; ``depth`` opens all scopes of that many levels. In a notebook, a click opens a scope.
    ``placement`` maps tensor names to full devices, for tensors without one. Runs on the client.

    Raises FailedPreconditionError for an empty graph, InvalidArgumentError for an unknown scope or name.

    >>> import numpy as np
    >>> from nbdist.graph.scopes import name_scope
    >>> from nbdist.graph.tensor import Variable
    >>> with Graph().as_default() as graph, name_scope("hidden"):
    ...     w = np.tanh(Variable(np.zeros((3, 2), np.float32), name="w"))
    >>> show_graph(graph)
    1 op · 1 variable · 24 B · 1 device
      any device: hidden/
    """
    nodes = describe(graph_of(graph), placement)
    if not nodes:
        raise FailedPreconditionError(
            "this graph is empty; make tensors first, for example "
            "x = nb.placeholder(np.float32, (None, 3), name='x') and y = np.tanh(x), "
            "or name the graph that they are in"
        )
    expand = (expand,) if isinstance(expand, str) else tuple(expand)
    _check_scopes(nodes, expand)
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise InvalidArgumentError(f"depth is a number of levels, 0 or more, not {depth!r}")
    names = {node.name for node in nodes}
    if unknown := [name for name in placement or () if name not in names]:
        raise InvalidArgumentError(f"placement: the graph has no tensor {unknown[0]!r}")
    return GraphView(nodes, expand, depth)


def graph_of(thing: Any) -> Graph:
    """Return a graph, or that of a session or model; the default graph for None."""
    graph = default_graph() if thing is None else getattr(thing, "graph", thing)
    if not isinstance(graph, Graph):
        raise InvalidArgumentError(
            f"show_graph takes a graph, a session, or a tensor of a graph, not {thing!r}"
        )
    return graph


def _check_scopes(nodes: Iterable[Node], expand: Iterable[str]) -> None:
    there = scopes(nodes)
    for name in expand:
        if name.rstrip("/") not in there:
            near = nearest(name, there)
            hint = f"; did you mean {near!r}?" if near else "."
            some = ", ".join(there[:20]) + (" and more" if len(there) > 20 else "")
            raise InvalidArgumentError(f"the graph has no name scope {name!r}{hint} It has {some or 'none'}")


# A graph's picture for a notebook: a PNG, which a small script in the output replaces by the live
# drawing.
#
# An untrusted notebook keeps no script and no SVG; there the PNG and the table under it remain.

SMALLEST = 0.7  # of its natural size; on a narrower page the drawing scrolls
MOST_ROWS = 12
STYLE = (
    ".nbd-view{overflow-x:auto;padding:2px}.nbd-view svg{display:block;height:auto}"
    ".nbd-tools{display:flex;gap:8px;margin:4px 0 8px}"
    ".nbd-tools button{font:inherit;font-size:12px;padding:2px 10px;border-radius:6px;cursor:pointer;"
    "color:inherit;background:none;border:1px solid var(--jp-border-color1,#c4c4ca)}"
)


def page(shown: Spread, headline: str, sent: Sequence[DeviceTraffic], png: bytes) -> str:
    """Return the HTML of a picture: text, the PNG, the table of transfers, the drawing and its script."""
    wide = page_size(shown)[0] + 2 * MARGIN
    picture = base64.b64encode(png).decode("ascii")
    return (
        '<div class="nbdist-graph" data-lm-suppress-shortcuts="true">'
        f"<p><strong>{escape(headline)}</strong></p>"
        f'<p><img alt="Picture of the graph: {escape(headline)}" src="data:image/png;base64,{picture}" '
        f'style="width:100%; max-width:{wide:.0f}px; height:auto"></p>{table(sent)}'
        f'<style>{STYLE}</style><script type="application/gzip">{packed(shown, headline)}</script>'
        f"<script>{script()}</script></div>"
    )


def table(sent: Sequence[DeviceTraffic]) -> str:
    """Return the table of transfers between devices, the largest first."""
    if not sent:
        return ""
    rows = "".join(
        f"<tr><td>{_device(one.source)}</td><td>{_device(one.target)}</td><td>{one.tensors:,}</td>"
        f"<td>{escape(one.size())}</td></tr>"
        for one in sent[:MOST_ROWS]
    )
    more = f"<p>and {len(sent) - MOST_ROWS:,} more</p>" if len(sent) > MOST_ROWS else ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("from", "to", "tensors", "bytes"))
    return (
        "<details><summary>What devices send to each other</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}</details>"
    )


def _device(device: str) -> str:
    return escape(device_lines(device)[0])


def packed(shown: Spread, label: str) -> str:
    """Return the drawing and its geometry, compressed: both consist of many similar short lines."""
    svg, sheets, numbers = live_svg(shown, label)
    _, high, _ = page_size(shown)
    size = {
        "margin": MARGIN, "least": LEAST, "gap": BELOW, "below": high - shown.height, "smallest": SMALLEST,
    }  # fmt: skip
    data = {"svg": svg, "size": size, "sheets": [geometry(sheet, numbers) for sheet in sheets]}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def geometry(sheet: Sheet, numbers: dict[Box, int]) -> dict[str, Any]:
    """Return a sheet in the script's format; ``numbers`` are the numbers of the scopes' sheets."""
    boxes = zip(sheet.plane.boxes, sheet.spots, strict=True)
    return {
        "width": _tenth(sheet.width),
        "height": _tenth(sheet.height),
        "bands": [[_tenth(top), _tenth(bottom)] for top, bottom in sheet.bands],
        "spots": [
            [*map(_tenth, (spot.x, spot.room, spot.width, spot.height)), spot.row, numbers.get(box, -1)]
            for box, spot in boxes
        ],
        "frames": [[_tenth(frame.left), _tenth(frame.right)] for frame in sheet.frames],
        "lines": [_line(line) for line in sheet.lines],
        "into": [*map(_tenth, sheet.into)],
        "out": [*map(_tenth, sheet.out)],
    }


def _line(line: DrawnEdge) -> list[Any]:
    leave, enter = (round(line.leave[0], 3), line.leave[1]), (round(line.enter[0], 3), line.enter[1])
    text = [[*map(_tenth, line.label_at), _tenth(line.label_width / 2 + 8)]] if line.label else []
    return [line.source, line.target, int(line.track), *leave, *enter, [*map(_tenth, line.bends)], *text]


def _tenth(value: float) -> float:
    return round(value, 1)


@cache
def script() -> str:
    """Return the page's script, without its comments."""
    lines = Path(__file__).with_name("graphpage.js").read_text().splitlines()
    return "\n".join(line.strip() for line in lines if not line.lstrip().startswith("//"))


# Statistics of a graph: its size, and the traffic between its devices.

MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class DeviceTraffic:
    """The tensors that one device sends to another; each counts once, however many ops take it."""

    source: str
    target: str
    tensors: int
    bytes: int  # of the tensors of known size
    unknown: int  # tensors with a size that is known only when the graph runs

    def size(self) -> str:
        """Return the bytes as text, and the number of tensors of unknown size."""
        parts = [byte_text(self.bytes)] if self.bytes or not self.unknown else []
        return " and ".join([*parts, *([f"{self.unknown:,} of unknown size"] if self.unknown else [])])


def sends(nodes: Sequence[Node]) -> list[DeviceTraffic]:
    """Return the traffic of each pair of devices, most bytes first.

    >>> nodes = [Node("w", "Variable", "/job:ps", shape=(10,)), Node("y", "exp", "/job:worker", ("w",))]
    >>> sends(nodes)
    [DeviceTraffic(source='/job:ps', target='/job:worker', tensors=1, bytes=40, unknown=0)]
    """
    names = {node.name: node for node in nodes}
    found: dict[tuple[str, str], dict[str, Node]] = {}
    for node in nodes:
        for name in node.inputs:
            taken = names.get(name)
            if taken is not None and taken.device != node.device:
                found.setdefault((taken.device, node.device), {})[name] = taken
    result = [
        DeviceTraffic(
            *ends, len(of), sum(node.bytes or 0 for node in of.values()),
            sum(node.bytes is None for node in of.values()),
        )
        for ends, of in found.items()
    ]  # fmt: skip
    return sorted(result, key=lambda one: (-one.bytes, one.source, one.target))


def headline(nodes: Sequence[Node], sent: Sequence[DeviceTraffic]) -> str:
    """Return one line about a graph: its size and its traffic."""
    parts = [counts(nodes), number(len({node.device for node in nodes}), "device")]
    if sent:
        all_of_it = DeviceTraffic(
            "", "", *(sum(getattr(one, name) for one in sent) for name in ("tensors", "bytes", "unknown"))
        )
        parts.append(f"{number(all_of_it.tensors, 'tensor')} sent between them, {all_of_it.size()}")
    return " · ".join(parts)


def text(nodes: Sequence[Node], plane: Plane, sent: Sequence[DeviceTraffic]) -> str:
    """Return a graph as plain text: its devices, their ops and their traffic."""
    lines = [headline(nodes, sent)]
    for device in dict.fromkeys(box.device for box in plane.boxes):
        held = [box.label for box in plane.boxes if box.device == device]
        more = f" and {len(held) - MOST_LISTED} more" if len(held) > MOST_LISTED else ""
        lines.append(f"  {device or device_lines(device)[0]}: {', '.join(held[:MOST_LISTED])}{more}")
    lines += [
        f"  {device_lines(one.source)[0]} sends {device_lines(one.target)[0]} "
        f"{number(one.tensors, 'tensor')}, {one.size()}"
        for one in sent[:MOST_LISTED]
    ]
    return "\n".join(lines)
