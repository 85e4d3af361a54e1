"""Groups a graph's nodes into boxes: a device holds ops and name scopes, a scope holds ops and scopes.

    plane = collapse(describe(graph), expand=("hidden",))

A `Plane` is one level of that: its boxes, and the edges between them. An edge stands for all tensors that run
from one box to another. An edge out of a scope is also an edge of the plane around the scope; ``outer`` names
that edge, so that both are drawn as one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from nbdist.graph.layout.layered import flow_order
from nbdist.graph.layout.nodes import Node

OUTSIDE = -1
"""The end of an edge that is outside of its plane."""


MOST_OPENED = 40  # boxes in a scope that is opened by default


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """A box of a plane: an op with the nodes folded into it, or a name scope with its own plane."""

    key: str  # device and name; unique
    label: str  # its name within its plane; a scope's ends with a slash
    device: str
    nodes: tuple[Node, ...]  # all its nodes, in the order of the graph
    plane: Plane | None = None
    open: bool = False

    @property
    def op(self) -> Node:
        """The op that a box without a plane shows: the one that the others are folded into."""
        return self.nodes[0]

    @property
    def folded(self) -> tuple[Node, ...]:
        """Constants that only this op takes, and a variable's initializer."""
        return self.nodes[1:]


@dataclass(slots=True, eq=False)
class PlaneEdge:
    """The tensors that go from one box of a plane to another: each once, in the order of the graph."""

    source: int  # a box's number, or OUTSIDE
    target: int
    outer: int = OUTSIDE  # the edge of the surrounding plane that continues it, where an end is OUTSIDE
    crosses: bool = False  # part of an edge between two devices
    tensors: dict[str, Node] = field(default_factory=dict)
    control: dict[str, Node] = field(default_factory=dict)  # control inputs, which send no value

    @property
    def bytes(self) -> int:
        """Bytes of the tensors of known size."""
        return sum(node.bytes or 0 for node in self.tensors.values())

    @property
    def unknown(self) -> int:
        """How many tensors have a size that is known only when the graph runs."""
        return sum(node.bytes is None for node in self.tensors.values())


@dataclass(slots=True, eq=False)
class Plane:
    """Boxes in topological order, except for edges of cycles, and their edges."""

    boxes: list[Box]
    edges: list[PlaneEdge]


@dataclass(frozen=True, slots=True)
class _Need:
    """A dependency between two ops while planes are built; an end outside of the plane has no node."""

    source: Node | None
    target: Node | None
    tensor: Node
    control: bool
    crosses: bool
    outer: int = OUTSIDE


@dataclass(frozen=True, slots=True)
class _OpenScopes:
    """The scopes to open."""

    expand: tuple[str, ...]
    depth: int | None

    def opens(self, scope: str, parent: str, alone: bool) -> bool:
        """Return whether ``scope``, in ``parent``, is open; both end with a slash or are empty."""
        by_depth = alone if self.depth is None else scope.count("/") <= self.depth
        return by_depth or any(
            wanted.startswith(scope) or (scope.startswith(wanted) and len(wanted) > len(parent))
            for wanted in self.expand
        )


def collapse(nodes: Sequence[Node], expand: Iterable[str] = (), depth: int | None = None) -> Plane:
    """Return the outermost plane: on each device, the ops outside of name scopes, and a box for each scope.

    The scopes named in ``expand`` are open, with those around them; ``depth`` opens all scopes of so many
    levels. Without ``depth`` a scope that is the only box of its device is open too.

    >>> nodes = [Node("x", "Placeholder"), Node("hidden/w", "Variable"),
    ...          Node("hidden/matmul", "matmul", inputs=("x", "hidden/w")),
    ...          Node("y", "tanh", inputs=("hidden/matmul",))]
    >>> plane = collapse(nodes)
    >>> [(box.label, len(box.nodes)) for box in plane.boxes]
    [('x', 1), ('hidden/', 2), ('y', 1)]
    >>> [(edge.source, edge.target, list(edge.tensors)) for edge in plane.edges]
    [(0, 1, ['x']), (1, 2, ['hidden/matmul'])]
    """
    names = {node.name: node for node in nodes}
    folded = fold(nodes)
    needs = [
        _Need(source, node, source, name not in node.inputs, source.device != node.device)
        for node in nodes
        for name in dict.fromkeys((*node.inputs, *node.control_inputs))
        if (source := names.get(name)) is not None
    ]
    open_scopes = _OpenScopes(tuple(name.rstrip("/") + "/" for name in expand), depth)
    heads = [node for node in nodes if node.name not in folded]
    held: dict[str, list[Node]] = {}
    for name, head in folded.items():
        held.setdefault(head, []).append(names[name])
    by_device: dict[str, list[Node]] = {}
    for node in heads:
        by_device.setdefault(node.device, []).append(node)
    order = {node.name: position for position, node in enumerate(nodes)}
    builder = _PlaneBuilder(held, order, open_scopes)
    groups = [group for device in by_device.values() for group in builder.groups(device, "")]
    return builder.plane(groups, needs, "")


def scopes(nodes: Iterable[Node]) -> list[str]:
    """Return the name scopes of some nodes, sorted.

    >>> scopes([Node("a/b/w", "Variable"), Node("x", "Placeholder")])
    ['a', 'a/b']
    """
    found = {
        node.name[:end] for node in nodes for end, letter in enumerate(node.name) if letter == "/" and end
    }
    return sorted(found)


def walk(plane: Plane) -> Iterator[Box]:
    """Yield the boxes of a plane and those in its scopes, open or not."""
    for box in plane.boxes:
        yield box
        if box.plane is not None:
            yield from walk(box.plane)


@dataclass(frozen=True, slots=True)
class _BoxGroup:
    """The ops of one device that one box will show: one op (``scope`` is empty) or a scope's."""

    scope: str
    heads: list[Node]


@dataclass(frozen=True, slots=True)
class _PlaneBuilder:
    held: Mapping[str, list[Node]]  # nodes folded into an op
    order: Mapping[str, int]
    open_scopes: _OpenScopes

    def groups(self, heads: Sequence[Node], scope: str) -> list[_BoxGroup]:
        """Sort the ops of one device and scope by the next part of their names."""
        by_part: dict[str, list[Node]] = {}
        for node in heads:
            part, slash, _ = node.name[len(scope) :].partition("/")
            by_part.setdefault(scope + part + "/" if part and slash else node.name, []).append(node)
        return [_BoxGroup(_common(of) if len(of) > 1 else "", of) for key, of in by_part.items()]

    def plane(self, groups: Sequence[_BoxGroup], needs: Sequence[_Need], scope: str) -> Plane:
        """Return the plane of one scope, given all dependencies that have an end in it."""
        members = [self._members(group) for group in groups]
        ranked = self._flow(members, needs)
        groups, members = [groups[i] for i in ranked], [members[i] for i in ranked]
        where = {node.name: number for number, of in enumerate(members) for node in of}
        numbers: dict[tuple[int, int, int], int] = {}
        edges: list[PlaneEdge] = []
        inside: list[list[_Need]] = [[] for _ in groups]
        for need in needs:
            source = OUTSIDE if need.source is None else where[need.source.name]
            target = OUTSIDE if need.target is None else where[need.target.name]
            if source == target:
                inside[source].append(need)
                continue
            number = numbers.setdefault((source, target, need.outer), len(edges))
            if number == len(edges):
                edges.append(PlaneEdge(source, target, need.outer))
            edges[number].crosses |= need.crosses
            (edges[number].control if need.control else edges[number].tensors)[need.tensor.name] = need.tensor
            if source != OUTSIDE:
                inside[source].append(replace(need, target=None, outer=number))
            if target != OUTSIDE:
                inside[target].append(replace(need, source=None, outer=number))
        on_device = Counter(group.heads[0].device for group in groups)
        boxes = [
            self._box(group, tuple(of), of_box, scope, on_device[group.heads[0].device] == 1)
            for group, of, of_box in zip(groups, members, inside, strict=True)
        ]
        return Plane(boxes, edges)

    def _flow(self, members: Sequence[Sequence[Node]], needs: Iterable[_Need]) -> list[int]:
        where = {node.name: number for number, of in enumerate(members) for node in of}
        ends = (
            (where[need.source.name], where[need.target.name])
            for need in needs
            if need.source is not None and need.target is not None
        )
        first = [self.order[of[0].name] for of in members]
        return flow_order(first, Counter(two for two in ends if two[0] != two[1]))

    def _box(
        self, group: _BoxGroup, members: tuple[Node, ...], needs: list[_Need], around: str, alone: bool
    ) -> Box:
        head = group.heads[0]
        if not group.scope:
            return Box(f"{head.device}|{head.name}", head.name[len(around) :], head.device, members)
        plane = self.plane(self.groups(group.heads, group.scope), needs, group.scope)
        is_open = self.open_scopes.opens(group.scope, around, alone and len(plane.boxes) <= MOST_OPENED)
        return Box(
            f"{head.device}|{group.scope}", group.scope[len(around) :], head.device, members, plane, is_open
        )

    def _members(self, group: _BoxGroup) -> list[Node]:
        return [node for head in group.heads for node in (head, *self.held.get(head.name, ()))]


def _common(heads: Sequence[Node]) -> str:
    """Return the innermost scope that holds all ``heads``.

    >>> _common([Node("a/b/w", "Variable"), Node("a/b/c/x", "exp")])
    'a/b/'
    """
    first, last = min(head.name for head in heads), max(head.name for head in heads)
    parts = takewhile(lambda two: two[0] == two[1], zip(first.split("/")[:-1], last.split("/")[:-1]))
    return "".join(part + "/" for part, _ in parts)


# Folding: nodes without a box of their own, which are shown as part of another node.


def fold(nodes: Sequence[Node]) -> dict[str, str]:
    """Return, for each node without a box of its own, the op that it is shown with.

    Such nodes are constants that only one op of their device uses, and a variable's initializer.

    >>> fold([Node("x", "Placeholder"), Node("c", "Constant"), Node("mul", "multiply", inputs=("x", "c"))])
    {'c': 'mul'}
    """
    names = {node.name: node for node in nodes}
    users: dict[str, list[Node]] = {}
    for node in nodes:
        for name in dict.fromkeys((*node.inputs, *node.control_inputs)):
            users.setdefault(name, []).append(node)
    folded: dict[str, str] = {}
    for node in nodes:
        variable = names.get(node.name.removesuffix("/initializer"))
        if node.type == "assign" and variable is not None and variable.type == "Variable":
            folded[node.name] = variable.name
    for node in nodes:
        taken_by = users.get(node.name, [])
        if node.type == "Constant" and not node.control_inputs and len(taken_by) == 1:
            head = folded.get(taken_by[0].name, taken_by[0].name)
            if names[head].device == node.device and node.name not in taken_by[0].control_inputs:
                folded[node.name] = head
    return folded
