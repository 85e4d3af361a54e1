"""Shows a graph: its devices, its ops in their name scopes, and what is sent.

nb.show_graph()                                 # the default graph, in the notebook
nb.show_graph(graph, expand="hidden").save("hidden.svg")
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, nearest
from nbdist.graph.picture.collapse import collapse, scopes
from nbdist.graph.picture.layout import lay_out
from nbdist.graph.picture.nodes import Node, describe
from nbdist.graph.picture.stretch import Spread, spread
from nbdist.graph.scopes import Graph, default_graph
from nbdist.ui.graphfacts import headline, sends, text
from nbdist.ui.graphpage import page
from nbdist.ui.graphpng import png, png_within
from nbdist.ui.graphsvg import svg
from nbdist.ui.graphtext import TextMeasure

PICTURE_LIMIT = 80_000  # bytes of the PNG in a notebook, which holds it twice


class GraphView:
    """A graph's picture: shows itself in a notebook, and is an SVG or a PNG elsewhere."""

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
        """Return the picture as SVG, which follows the light or dark setting of who looks at it."""
        return svg(self._shown, self._headline)

    def png(self, scale: float = 2.0) -> bytes:
        """Return the picture as PNG with ``scale`` dots per pixel; fewer, where it would be enormous."""
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
                f"there is no folder {str(path.parent)!r} to save {path.name!r} into; make it first"
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
        """Return the picture for a notebook: as PNG, as a page that can be clicked on, and as text."""
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
    """Return the picture of a graph: devices as boxes, what they send as arrows, name scopes collapsed.

    ``graph`` is a graph or something that has one, as a session does; without it, the default graph is
    shown. The scopes named in ``expand`` are open, ``depth`` opens all scopes of so many levels; in a
    notebook a click opens one. ``placement`` gives full devices by tensor name, where the graph leaves them
    open. Runs on the client.

    An empty graph is a FailedPreconditionError; an unknown scope or name is an InvalidArgumentError.

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
