"""The subgraphs of a partition: one graph for each device, and the edges between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbdist.graph.compile.schedule import Item
from nbdist.graph.compile.specs import Specs, size_of
from nbdist.graph.op import OPS, Spec
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Placeholder, Tensor, Variable


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that one device sends to another once per step; ``spec`` None is a signal without a value."""

    number: int
    name: str
    source: str
    target: str
    spec: Spec | None

    @property
    def bytes(self) -> int | None:
        """Size of the value, None if it is known only at run time."""
        if self.spec is None:
            return 0
        return None if None in self.spec.shape else size_of(self.spec)


@dataclass
class Piece:
    """The part of a step that runs on one device: its graph, and the tensors in execution order."""

    device: str
    graph: Graph = field(default_factory=Graph)
    order: list[Tensor] = field(default_factory=list)
    feeds: list[tuple[int, Tensor]] = field(default_factory=list)
    """The leaves that are fed, each with its index in the plan's feeds."""
    fetches: list[tuple[int, Tensor]] = field(default_factory=list)
    """The tensors that it returns, each with its index in the plan's fetches."""

    def variables(self) -> list[Variable]:
        """Return the variables that it reads or assigns."""
        return [t for t in self.order if isinstance(t, Variable)]


@dataclass
class Plan:
    """A partitioned graph: a piece for each device, and the edges between them."""

    pieces: list[Piece]
    edges: list[Edge]
    placement: dict[str, str]
    """The device of each tensor, by name."""
    fetches: int = 0


class SubgraphBuilder:
    """Copies each device's items into a graph of their own."""

    def __init__(self, specs: Specs, edges: list[Edge], feeds: dict[Tensor, int]) -> None:
        self.specs, self.edges, self.feeds = specs, edges, feeds
        self.pieces: dict[str, Piece] = {}
        self.made: dict[Item, Tensor] = {}
        self.shapes: dict[tuple[Tensor, str], Tensor] = {}

    def make(self, ordered: list[Item], results: list[Item | None]) -> list[Piece]:
        """Return the pieces of the items, which are in execution order; ``results`` are the fetched items."""
        for item in ordered:
            if item.device not in self.pieces:
                self.pieces[item.device] = Piece(item.device)
            piece = self.pieces[item.device]
            made = self.made[item] = self._tensor(item, piece)
            piece.order.append(made)
            if item.what == "op" and item.node in self.feeds:
                piece.feeds.append((self.feeds[item.node], made))
        for number, result in enumerate(results):
            if result is not None:
                self.pieces[result.device].fetches.append((number, self.made[result]))
        return list(self.pieces.values())

    def _tensor(self, item: Item, piece: Piece) -> Tensor:
        node, graph = item.node, piece.graph
        inputs = tuple(self.made[i] for i in item.inputs)
        spec = self.specs[node]
        if item.what == "op":
            if node in self.feeds:
                return node.moved(graph, (), item.device, spec, kind=Placeholder)
            return node.moved(graph, self._all_inputs(item, piece), item.device, spec)
        if item.what == "copy":
            return node.moved(graph, inputs, item.device, spec, op=OPS["copy"], attrs={}, suffix="^copy")
        edge = self.edges[item.edge]
        outwards = item.what in ("send", "signal")
        attrs: dict[str, object] = {"edge": item.edge, "device": edge.target if outwards else edge.source}
        if item.what == "receive":
            attrs |= {"shape": spec.shape, "dtype": spec.dtype}
        if edge.spec is None:
            spec = OPS[item.what].spec(**attrs)
        name = f"^{item.what}_{item.edge}"
        return node.moved(graph, inputs, item.device, spec, op=OPS[item.what], attrs=attrs, suffix=name)

    def _all_inputs(self, item: Item, piece: Piece) -> tuple[Tensor, ...]:
        """Return the inputs of an op's copy; one that is used for its shape only becomes a placeholder."""
        read = iter(item.inputs)
        needed = set(self.specs.reads(item.node))
        inputs = item.node.inputs
        return tuple(self.made[next(read)] if i in needed else self._stand_in(i, piece) for i in inputs)

    def _stand_in(self, node: Tensor, piece: Piece) -> Tensor:
        key = (node, piece.device)
        if key not in self.shapes:
            spec = self.specs[node]
            self.shapes[key] = node.moved(
                piece.graph, (), piece.device, spec, kind=Placeholder, suffix="^shape"
            )
        return self.shapes[key]
