"""Partitions a placed graph into one subgraph per device, joined by sends and receives.

    plan = partition([loss], feeds=[x], shapes=[(100, 64)], devices=cluster_devices, default=here)
    for piece in plan.pieces: print(piece.device, [t.name for t in piece.order])

The method is that of Abadi et al. 2015 (TensorFlow white paper, section 3.2):

1. Each op gets a device. Ops that read or change a variable run on the variable's device.
2. From the fetches back, each value that a device needs becomes one `Item` there. A value of another device
   becomes a send there and a receive here: one edge per value and target device, shared by all its users. A
   control dependency between devices becomes a signal and an await, an edge without a value.
3. Feeds and constants, and small values computed from constants and shapes alone, are never sent: each device
   that needs one has its own.
4. `schedule` puts the items of all devices into one order. A receive comes after its send in it, so a step
   cannot deadlock; `nbdist.graph.compile.schedule` has the argument.
5. Each device's items, in this order, are copied into a graph of their own, which the device compiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.schedule import Item, schedule, variable_behind
from nbdist.graph.compile.specs import Specs, size_of, value_order
from nbdist.graph.compile.subgraphs import Edge, Piece, Plan, SubgraphBuilder
from nbdist.graph.device import choose_device
from nbdist.graph.op import Shape, Spec, show
from nbdist.graph.tensor import Constant, Placeholder, Tensor

__all__ = ["Edge", "Piece", "Plan", "describe", "partition"]
PORTABLE_BYTES = 1 << 16


def partition(
    fetches: Sequence[Tensor],
    *,
    feeds: Sequence[Tensor] = (),
    shapes: Sequence[Shape] = (),
    devices: Sequence[str],
    default: str,
    soft: bool = False,
) -> Plan:
    """Return the subgraphs that compute ``fetches``, given feeds of these shapes.

    ``devices`` lists all devices; an op that names none runs on ``default``. With ``soft``, an op whose
    device type is missing may run on a CPU instead. Subgraphs contain only what the fetches need.
    """
    return _Partitioner(feeds, shapes, devices, default, soft).plan(list(fetches))


class _Partitioner:
    def __init__(
        self,
        feeds: Sequence[Tensor],
        shapes: Sequence[Shape],
        devices: Sequence[str],
        default: str,
        soft: bool,
    ) -> None:
        self.specs = Specs.fed(feeds, shapes)
        self.feeds = {feed: i for i, feed in enumerate(feeds)}
        self.devices, self.default, self.soft = devices, default, soft
        self.task_devices: dict[Tensor, str] = {}
        self.chosen: dict[str, str] = {}
        self.ranks: dict[Tensor, int] = {}
        self.portable: set[Tensor] = set()
        self.items: list[Item] = []
        self.values: dict[tuple[Tensor, str], Item] = {}
        self.signals: dict[tuple[Tensor, str], Item] = {}
        self.edges: list[Edge] = []

    def plan(self, fetches: list[Tensor]) -> Plan:
        for t in fetches[:1]:
            t.graph.check_half()
        self._find_portable(fetches)
        results = [self._fetched(t) for t in fetches]
        for effect in self._all_of(t for t in fetches if t.op is not None and not t.op.has_value):
            self._value(effect, self._task_device(effect))
        self._wait_late()
        ordered = schedule(self.items, nearest=not (fetches and fetches[0].graph.in_order))
        pieces = SubgraphBuilder(self.specs, self.edges, self.feeds).make(ordered, results)
        return Plan(
            pieces,
            self.edges,
            {t.name: task_device for t, task_device in self.task_devices.items()},
            len(fetches),
        )

    def _fetched(self, t: Tensor) -> Item | None:
        if t.op is not None and not t.op.has_value:
            return None
        item = self._value(t, self._task_device(t))
        if variable_behind(item) is None:
            return item
        copy = Item("copy", t, item.device, [item], rank=item.rank)  # its value now, not at the step's end
        self.items.append(copy)
        return copy

    def _wait_late(self) -> None:
        """Rank each receive just before its first user."""
        first: dict[Item, float] = {}
        for user in self.items:
            for item in user.before_it:
                first[item] = min(user.rank, first.get(item, user.rank))
        for item in self.items:
            if item.what in ("receive", "await") and item in first:
                item.rank = first[item] - 0.5

    def _task_device(self, t: Tensor) -> str:
        """Return the device that computes a value."""
        if t not in self.task_devices:
            at_variables = [] if t.op is None else [t.inputs[i] for i in sorted(t.op.writes)]
            if t.type == "read":
                at_variables = list(t.inputs)
            task_devices = {self._task_device(v): v for v in at_variables} or {self._choose(t): t}
            if len(task_devices) > 1:
                places = ", ".join(f"{v.name!r} on {task_device}" for task_device, v in task_devices.items())
                raise InvalidArgumentError(
                    f"{describe(t)} changes variables of more than one device: {places}; put them on one, "
                    "with colocate_with"
                )
            (self.task_devices[t],) = task_devices
        return self.task_devices[t]

    def _choose(self, t: Tensor) -> str:
        if t.device not in self.chosen:
            try:
                self.chosen[t.device] = choose_device(t.device, self.devices, self.default, soft=self.soft)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{describe(t)} cannot be placed: {error}") from None
        return self.chosen[t.device]

    def _value(self, wanted: Tensor, device: str) -> Item:
        """Return the item that provides a value on a device; makes it, and the items that it needs."""
        stack: list[tuple[Tensor, str]] = [(wanted, device)]  # not recursion: graphs are deep
        entered: set[tuple[Tensor, str]] = set()
        while stack:
            node, place = key = stack[-1]
            if key in self.values:
                stack.pop()
                continue
            needs = self._needs(node, place)
            missing = [need for need in needs if need not in self.values]
            if missing:
                if key in entered:
                    raise InvalidArgumentError(f"the graph has a cycle through {describe(node)}")
                entered.add(key)
                stack.extend(reversed(missing))
                continue
            self._make(node, place)
            stack.pop()
        return self.values[wanted, device]

    def _find_portable(self, fetches: list[Tensor]) -> None:
        """Find small values made of shapes and constants alone: computing one costs less than sending it."""
        for t in value_order(fetches, self.specs, self.feeds):
            if isinstance(t, Constant):
                portable = not t.control_inputs
            elif t.op is None or not t.op.shape_only or t in self.feeds or t.control_inputs:
                portable = False
            else:  # such as the ones that a gradient starts from
                made_of = all(i in self.portable for i in self.specs.reads(t))
                portable = made_of and self.specs.exact(t) and size_of(self.specs[t]) <= PORTABLE_BYTES
            if portable:
                self.portable.add(t)

    def _needs(self, node: Tensor, place: str) -> list[tuple[Tensor, str]]:
        if self._local(node):
            return [(i, place) for i in self.specs.reads(node)] if node not in self.feeds else []
        task_device = self._task_device(node)
        if task_device != place:
            return [(node, task_device)]
        needs = [(i, task_device) for i in self.specs.reads(node)]
        return needs + [(c, self._task_device(c)) for c in self._controls(node)]

    def _local(self, node: Tensor) -> bool:
        """Whether each device that needs a value has its own copy, so that it is never sent."""
        return node in self.feeds or node in self.portable

    def _make(self, node: Tensor, place: str) -> None:
        if isinstance(node, Placeholder) and node not in self.feeds:
            raise InvalidArgumentError(
                f"placeholder {describe(node)} of shape {show(node.shape)} and {node.dtype} has to be fed"
            )
        rank = float(self._rank(node))
        if self._local(node) or self._task_device(node) == place:
            item = Item("op", node, place, rank=rank)
            if node not in self.feeds:
                item.inputs = [self.values[i, place] for i in self.specs.reads(node)]
            if not self._local(node):
                item.after = [self._signal(c, place) for c in self._controls(node)]
            elif node not in self.task_devices:
                self.task_devices[node] = place
        else:
            source = self.values[node, self._task_device(node)]
            spec = self.specs[node]
            item = self._cross(source, place, Spec(spec.shape, spec.dtype), "send", "receive")
        self.values[node, place] = item
        self.items.append(item)

    def _signal(self, c: Tensor, place: str) -> Item:
        """Return the item on a device after which ``c`` has run."""
        task_device = self._task_device(c)
        done = self.values[c, task_device]
        if task_device == place:
            return done
        if (c, place) not in self.signals:
            item = self._cross(done, place, None, "signal", "await")
            self.signals[c, place] = item
            self.items.append(item)
        return self.signals[c, place]

    def _cross(self, source: Item, place: str, spec: Spec | None, out: str, into: str) -> Item:
        edge = Edge(len(self.edges), source.node.name, source.device, place, spec)
        self.edges.append(edge)
        send = Item(out, source.node, source.device, edge=edge.number, rank=source.rank)
        (send.inputs if spec is not None else send.after).append(source)
        self.items.append(send)
        return Item(into, source.node, place, after=[send], edge=edge.number, rank=source.rank)

    def _controls(self, node: Tensor) -> list[Tensor]:
        return [] if node in self.feeds else self._all_of(node.control_inputs)

    def _all_of(self, ops: Iterable[Tensor]) -> list[Tensor]:
        """Return these ops, each once; a group is replaced by its members."""
        found: dict[Tensor, None] = {}
        stack = [*ops][::-1]
        seen: set[Tensor] = set()
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            if one.type == "group":
                stack.extend(reversed(one.control_inputs))
            else:
                found[one] = None
        return list(found)

    def _rank(self, node: Tensor) -> int:
        if not self.ranks:
            self.ranks = {t: n for n, t in enumerate(node.graph.tensors)}
        return self.ranks[node]


def describe(t: Tensor) -> str:
    """Return a tensor's name, op and the user's line that made it, for errors."""
    if t.line is None:
        return f"{t.name!r} ({t.type})"
    file, line, _ = t.line
    where = f"{file} line {line}" if file.startswith(("cell ", "the cell")) else f"{file}:{line}"
    return f"{t.name!r} ({t.type}, made at {where})"
