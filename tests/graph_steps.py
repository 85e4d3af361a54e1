"""Random steps on random devices, their defined results, and pieces that run like those of tasks.

A step is a function: a variable that is used is the value from before, a ``read`` is the value after the
assignments that come before it, an assignment's value is that assignment's. ``Meaning`` computes just that,
in no order at all; every partition and order of a graph must give the same.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from nbdist.graph.compile.partition import Plan, partition
from nbdist.graph.compile.program import compile_program
from nbdist.graph.op import Op
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph, control_dependencies, device
from nbdist.graph.tensor import Constant, Tensor, Variable, constant, placeholder

Array = np.ndarray[Any, Any]
DEVICES = tuple(f"/job:{job}/replica:0/task:0/device:CPU:0" for job in "abc")
WIDTH = 3
CHANGES = ("assign", "assign_add", "assign_sub")


def _exchange(xp: Any, a: Array, b: Array) -> Array:
    a[...], b[...] = a + b, a - b
    return a


EXCHANGE = Op("exchange", forward=_exchange, spec=lambda a, b: a, writes=frozenset({0, 1}))
BINARY: list[Callable[..., Any]] = [np.add, np.subtract, np.maximum]
UNARY: list[Callable[..., Any]] = [
    np.negative,
    lambda x: x[::-1],
    lambda x: np.reshape(x, (WIDTH,)),
    lambda x: np.concatenate([x[1:], x[:1]]),
]


class Step:
    """A graph, its fetches and feeds, and the initial values of its variables."""

    def __init__(self, graph: Graph, fetches: list[Tensor], feeds: list[Tensor]) -> None:
        self.graph, self.fetches = graph, fetches
        self.feeds = {t: np.array([7, -5, 2]) * (n + 1) for n, t in enumerate(feeds)}
        self.values = {v: np.arange(WIDTH) * (n + 1) + 10 * n for n, v in enumerate(graph.variables())}

    def __repr__(self) -> str:
        lines = []
        for t in self.graph.tensors:
            inputs = ", ".join(i.name for i in t.inputs)
            after = f" after {', '.join(c.name for c in t.control_inputs)}" if t.control_inputs else ""
            lines.append(f"{t.name} = {t.type}({inputs}) on {t.device or 'any'}{after}")
        names = [[t.name for t in tensors] for tensors in (self.fetches, self.feeds)]
        return "\n".join(["", *lines, "fetch {}, feed {}".format(*names)])


def steps(most: int = 14) -> st.SearchStrategy[Step]:
    """Return steps of up to ``most`` ops, each drawn from one number: many draws would take too long."""
    return st.builds(random_step, st.integers(1, most), st.integers(0, 1 << 32))


def random_step(size: int, seed: int) -> Step:
    """Return a step of so many ops, some of which assign, on up to three devices."""
    draw = random.Random(seed)
    places = ["", *DEVICES[: draw.randint(1, len(DEVICES))]]
    with Graph().as_default() as graph:
        for n in range(draw.randint(1, 3)):
            with device(draw.choice(places)):
                Variable(np.zeros(WIDTH, np.int64), name=f"v{n}")
        feeds: list[Tensor] = [placeholder(np.int64, (WIDTH,), name="x")]
        made: list[Tensor] = [*graph.variables(), *feeds, constant(np.arange(WIDTH) + 1, name="c")]
        groups: list[Tensor] = []
        for _ in range(size):
            after = draw.choices(made + groups, k=draw.choice((0, 0, 1, 2)))
            with device(draw.choice(places)), control_dependencies(after):
                if draw.random() < 0.85:
                    made.append(_random_op(draw, graph.variables(), made))
                else:
                    groups.append(group(*draw.choices(made + groups, k=draw.randint(0, 3))))
        wanted = draw.choices(made + groups, k=draw.randint(1, 5))
        values = [t for t in made if t.op is not None and not t.op.writes]
        if values and draw.random() < 0.25:
            feeds.append(draw.choice(values))
    return Step(graph, wanted, feeds)


def _random_op(draw: random.Random, variables: list[Variable], made: list[Tensor]) -> Tensor:
    kind = draw.choice(("binary", "unary", "change", "change", "read", "exchange"))
    if kind == "binary":
        return draw.choice(BINARY)(draw.choice(made), draw.choice(made))  # type: ignore[no-any-return]
    if kind == "unary":
        return draw.choice(UNARY)(draw.choice(made))  # type: ignore[no-any-return]
    v = draw.choice(variables)
    if kind == "read":
        return v.read_value()
    beside = [other for other in variables if other is not v and other.device == v.device]
    if kind == "exchange" and beside:
        return Tensor(EXCHANGE, (v, draw.choice(beside)), {}, v.spec, "exchange")
    change: Tensor = getattr(v, draw.choice(CHANGES))(draw.choice(made))
    return change


class Meaning:
    """The result of a step, by definition."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.chains: dict[Tensor, list[Tensor]] = {v: [] for v in step.values}
        needed = self._before(step.fetches)
        for t in step.graph.tensors:
            if t in needed and t.op is not None:
                for i in t.op.writes:
                    self.chains[t.inputs[i]].append(t)
        self._known: dict[tuple[Tensor, int], Array] = {}

    def fetched(self) -> list[Array | None]:
        return [None if t.type == "group" else self.value(t) for t in self.step.fetches]

    def afterwards(self) -> dict[str, Array]:
        return {v.name: self._version(v, len(chain)) for v, chain in self.chains.items()}

    def value(self, t: Tensor, part: int = 0) -> Array:
        """Return a tensor's value; of an op that assigns two variables, also the second's."""
        if (t, part) not in self._known:
            self._known[t, part] = self._computed(t, part)
        return self._known[t, part]

    def _version(self, v: Tensor, number: int) -> Array:
        """Return a variable's value after a number of its assignments."""
        if number == 0:
            return self.step.values[v]  # type: ignore[index]  # it is a variable
        writer = self.chains[v][number - 1]
        return self.value(writer, next(i for i, t in enumerate(writer.inputs) if t is v))

    def _computed(self, t: Tensor, part: int) -> Array:
        if t in self.step.feeds:
            return self.step.feeds[t]
        if isinstance(t, Constant):
            return t.value
        if isinstance(t, Variable):
            return self.step.values[t]
        assert t.op is not None
        if t.type == "read":
            before = self._before([t])
            return self._version(t.inputs[0], sum(a in before for a in self.chains[t.inputs[0]]))
        if not t.op.writes:
            return t.op.forward(np, *(self.value(i) for i in t.inputs), **t.attrs)
        old = [
            self._version(v, [a is t for a in self.chains[v]].index(True))
            if i in t.op.writes
            else self.value(v)
            for i, v in enumerate(t.inputs)
        ]
        one, two = old
        if t.type == "exchange":
            return one - two if part else one + two
        return {"assign": two, "assign_add": one + two, "assign_sub": one - two}[t.type]

    def _before(self, wanted: Sequence[Tensor]) -> set[Tensor]:
        """Return all that comes first, the wanted with it; an assignment comes after the earlier ones."""
        found: set[Tensor] = set()
        stack = list(wanted)
        while stack:
            t = stack.pop()
            if t in found or t in self.step.feeds:
                continue
            found.add(t)
            stack += [*t.inputs, *t.control_inputs]
            for chain in self.chains.values():
                if any(a is t for a in chain):
                    stack += chain[: [a is t for a in chain].index(True)]
        return found


def cut(step: Step) -> Plan:
    return cut_for(step.fetches, step.feeds)


def cut_for(fetches: list[Tensor], feeds: Mapping[Tensor, Any]) -> Plan:
    shapes = [np.shape(a) for a in feeds.values()]
    return partition(fetches, feeds=list(feeds), shapes=shapes, devices=DEVICES, default=DEVICES[0])


@dataclass(frozen=True)
class Pieces:
    """A plan's pieces, compiled and joined by queues instead of messages."""

    plan: Plan
    programs: list[Callable[..., tuple[Array, ...]]]
    queues: list[queue.SimpleQueue[Any]]

    @classmethod
    def of(
        cls,
        plan: Plan,
        variables: dict[str, Array],
        patience: float = 20.0,
    ) -> Pieces:
        """Compile a plan on these variables; a wait longer than ``patience`` s raises queue.Empty."""
        queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in plan.edges]

        def kernel(node: Tensor) -> Callable[..., Any]:
            channel = queues[node.attrs["edge"]]
            if node.type in ("receive", "await"):
                return lambda: channel.get(timeout=patience)
            return lambda *value: channel.put(value[0].copy() if value else None)

        programs = [
            compile_program(
                [t for _, t in piece.fetches],
                feeds=[leaf for _, leaf in piece.feeds],
                shapes=[leaf.shape for _, leaf in piece.feeds],
                values={v: variables[v.name] for v in piece.variables()},
                order=piece.order,
                kernels=kernel,
            )
            for piece in plan.pieces
        ]
        return cls(plan, programs, queues)

    def run(self, feeds: Sequence[Array]) -> list[Array | None]:
        """Run all pieces together, each on a thread, and return the fetched values."""
        results: list[Array | None] = [None] * self.plan.fetches
        failures: list[BaseException] = []

        def work(n: int) -> None:
            piece = self.plan.pieces[n]
            try:
                values = self.programs[n](*(feeds[i] for i, _ in piece.feeds))
                for (i, _), value in zip(piece.fetches, values, strict=True):
                    results[i] = value.copy()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(self.programs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        assert all(channel.empty() for channel in self.queues), "a sent value was not received"
        return results
