"""A function of one replica's step, called once with tensors: what it computes, assigns and trains.

While it is called, the strategy's graph has a :class:`Tracing` as its rules: optimizers hand their gradients
to it, assignments follow what the variable says of several replicas, and a variable is read as it is at that
line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.specs import value_order
from nbdist.graph.composite import Composite
from nbdist.graph.op import Shape, show
from nbdist.graph.scopes import Graph, Scope
from nbdist.graph.sparse import IndexedSlices, as_dtype, dense
from nbdist.graph.tensor import NUMBERS, Placeholder, Tensor, Variable, placeholder, record
from nbdist.optim import LossScaleOptimizer, Optimizer
from nbdist.train.custom.sync_rules import assigned


class Gradient(NamedTuple):
    """The gradient of one variable; ``rows`` is the same gradient as rows of a table, if it has that form."""

    whole: Tensor
    rows: IndexedSlices | None


@dataclass(frozen=True)
class Applied:
    """Gradients that an optimizer was given for variables, and what counts its steps."""

    optimizer: Optimizer
    variables: tuple[Variable, ...]
    gradients: tuple[Gradient, ...]
    counter: Variable | None
    mark: Tensor


@dataclass(frozen=True)
class Draw:
    """What random numbers of a model follow from, beside step and example: fed as four numbers."""

    fed: Placeholder
    seed: int
    training: int


@dataclass
class Trace:
    """One function for arguments of one form, as tensors."""

    name: str
    feeds: list[Placeholder]
    outputs: Any = None
    """What it returned: a tree of tensors, with None for what has no value."""
    applied: list[Applied] = field(default_factory=list)
    effects: list[Tensor] = field(default_factory=list)
    """Assignments, in order."""
    watched: list[Tensor] = field(default_factory=list)
    """Losses, which have to be numbers."""
    draws: dict[Any, Draw] = field(default_factory=dict)
    """By model."""
    scales: dict[LossScaleOptimizer, Placeholder] = field(default_factory=dict)
    """The scale of the loss, by optimizer."""
    replica: Placeholder | None = None
    """The number of the replica, if it is asked for."""
    communicates: bool = False
    """Whether replicas bring values together in it."""
    in_order: bool = False
    """Whether it has to run in the order in which it was recorded."""

    @cached_property
    def variables(self) -> list[Variable]:
        """What it reads, assigns or trains."""
        order = value_order(self._computed)
        trained = [v for one in self.applied for v in one.variables]
        return list(dict.fromkeys([*(t for t in order if isinstance(t, Variable)), *trained]))

    @cached_property
    def assigned(self) -> list[Variable]:
        """What it assigns."""
        found = dict.fromkeys(effect.inputs[0] for effect in self.effects)
        return [v for v in found if isinstance(v, Variable)]

    @property
    def fetches(self) -> list[Tensor]:
        """What a program has to compute, beside gradients."""
        return [t for t in tree_leaves(self.outputs) if t is not None]

    @property
    def _computed(self) -> list[Tensor]:
        gradients = [g.whole for one in self.applied for g in one.gradients]
        return [*self.fetches, *self.watched, *self.effects, *gradients]

    def lookups(self, table: Variable) -> list[Tensor] | None:
        """Return the ids of all rows of a variable that a step reads, computed from its arguments.

        None if it reads the variable in another way, or if ids depend on anything but the arguments.
        """
        found: dict[Tensor, None] = {}
        if any(t is table for t in self._computed):
            return None
        for t in value_order(self._computed):
            for number, read in enumerate(t.inputs):
                if read is not table or t.op is None or number in t.op.shape_only:
                    continue
                if t.op.name != "gather_rows" or number != 0:
                    return None
                found[t.inputs[1]] = None
        return list(found) if all(map(self._of_arguments, value_order(list(found)))) else None

    def _of_arguments(self, tensor: Tensor) -> bool:
        """Whether a tensor is an argument, or its value depends only on its inputs."""
        if isinstance(tensor, Variable):
            return False
        if tensor.op is None:
            return not isinstance(tensor, Placeholder) or any(tensor is fed for fed in self.feeds)
        return not (tensor.op.external or tensor.op.waits or tensor.op.writes)


class Tracing:
    """A trace in progress: the rules of its graph."""

    def __init__(
        self,
        graph: Graph,
        trace: Trace,
        strategy: Any,
        copied: set[Variable],
    ) -> None:
        self.graph, self.trace, self.strategy = graph, trace, strategy
        self.replicas: int = strategy.num_replicas_in_sync
        self.copied = copied
        """Variables of which a reading is a copy, because they are assigned."""
        self.share: Tensor | None = None
        """This replica's share of the global batch; None if losses are given as parts of a sum."""
        self.optimizers: list[Optimizer] | None = None
        """Optimizers of earlier traces, which later ones continue with; None: each is one."""
        self._scaled: dict[Tensor, Tensor] = {}
        self._read: dict[Variable, Tensor] = {}
        self._directly: set[Variable] = set()

    def read(self, variable: Variable) -> Tensor:
        """Return the value as it is now: a copy of what may be assigned later."""
        if variable.trainable and variable not in self.copied:
            self._directly.add(variable)
            return variable
        if variable not in self._read:
            with self.plainly():
                self._read[variable] = record("copy", variable, name=f"{variable.name}/now")
        return self._read[variable]

    def change(self, variable: Variable, op_name: str, value: Any) -> Tensor:
        """Assign what the replicas' values become; return the variable's value afterwards."""
        how = assigned(variable, self.replicas)
        if how != "own":
            value = self.all_reduce(value, how)
        with self.plainly():
            self.trace.effects.append(variable.recorded(op_name, value))
            self._read[variable] = record("copy", variable, name=f"{variable.name}/now")
        self.trace.in_order = True
        if variable in self._directly:
            raise AssignedLater(variable)
        self.copied.add(variable)
        return self._read[variable]

    def watch(self, loss: Tensor) -> None:
        """Take note of a loss."""
        self.trace.watched.append(loss)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return a loss times the replica's share, if losses are means over a replica's examples."""
        if self.share is None:
            return loss
        if loss not in self._scaled:
            self._scaled[loss] = loss * self.share.astype(loss.dtype)
        return self._scaled[loss]

    def loss_scale(self, optimizer: LossScaleOptimizer) -> Tensor:
        """Return the scale of an optimizer's loss, which each step is fed."""
        if optimizer not in self.trace.scales:
            self.trace.scales[optimizer] = placeholder(np.float32, (), name="loss_scale")
        return self.trace.scales[optimizer]

    def update(
        self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]], counter: Variable | None, name: str
    ) -> Tensor:
        """Take an optimizer's gradients; the op that is returned stands for the update."""
        trained = {v for one in self.trace.applied for v in one.variables}
        for _, v in pairs:
            if v in trained:
                raise InvalidArgumentError(
                    f"variable {v.name!r} is trained twice in {self.trace.name}; add its gradients up and "
                    "apply them once"
                )
            trained.add(v)
        optimizer = self._known(optimizer)
        gradients = [_gradient(g, v) for g, v in pairs]
        mark = record("group", name=name)
        variables = tuple(v for _, v in pairs)
        self.trace.applied.append(Applied(optimizer, variables, tuple(gradients), counter, mark))
        return mark

    def all_reduce(self, value: Any, how: str) -> Tensor:
        """Return the op that brings the replicas' values together."""
        self.trace.in_order = self.trace.communicates = True
        return record("all_reduce", value, op=how)

    def _known(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer that an earlier trace has used at this place."""
        if self.optimizers is None:
            return optimizer
        number = len(self.trace.applied)
        if number == len(self.optimizers):
            self.optimizers.append(optimizer)
        known = self.optimizers[number]
        if type(known) is not type(optimizer) or known.config(0.0) != optimizer.config(0.0):
            raise InvalidArgumentError(
                f"{self.trace.name} trains with {optimizer!r}, and has trained with {known!r}: "
                "let the optimizer's settings depend on params only"
            )
        return known

    @contextlib.contextmanager
    def plainly(self) -> Iterator[None]:
        """Let variables be what they are in any graph, inside a ``with``."""
        rules, self.graph.rules = self.graph.rules, None
        try:
            yield
        finally:
            self.graph.rules = rules


def _gradient(found: Any, variable: Variable) -> Gradient:
    rows = as_dtype(found, variable.dtype) if isinstance(found, IndexedSlices) else None
    if rows is not None:
        rows = IndexedSlices(_tensor(rows.values), _tensor(rows.indices), rows.dense_shape)
    whole = dense(found) if isinstance(found, Composite) else _tensor(found)
    return Gradient(as_dtype(whole, variable.dtype), rows)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else record("copy", value)


class AssignedLater(Exception):
    """A variable is assigned after it was read in place: what it was has to be kept from the beginning."""

    def __init__(self, variable: Variable) -> None:
        super().__init__(variable.name)
        self.variable = variable


_tracing: ContextVar[Tracing | None] = ContextVar("what this thread traces", default=None)


def tracing() -> Tracing | None:
    """Return what this thread traces now."""
    return _tracing.get()


def trace(
    graph: Graph,
    strategy: Any,
    function: Callable[..., Any],
    arguments: Any,
    shapes: Sequence[Shape],
    copied: set[Variable],
) -> Trace:
    """Call a function with tensors in place of arrays, which have these shapes; return what it recorded.

    ``copied`` collects variables that are assigned.
    """
    while True:
        begun = len(graph.tensors)
        try:
            rules = Tracing(graph, Trace(_name(function), []), strategy, copied)
            return _trace(rules, function, arguments, shapes)
        except AssignedLater as late:
            copied.add(late.variable)
            _forget(graph, begun)
        except BaseException as error:
            _forget(graph, begun)
            if isinstance(error, Exception):
                error.add_note(
                    f"({_name(function)} was being traced: it is called once with Tensors, which have no "
                    "values yet, and what NumPy's functions record on them is run at every step. Work with "
                    "values outside of it, on what strategy.run returns)"
                )
            raise


def _trace(rules: Tracing, function: Callable[..., Any], arguments: Any, shapes: Sequence[Shape]) -> Trace:
    graph, made = rules.graph, rules.trace
    begun, sizes = len(graph.tensors), iter(shapes)

    def fed(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        made.feeds.append(placeholder(value.dtype, next(sizes), name=f"argument_{len(made.feeds)}"))
        return made.feeds[-1]

    token, outer = _tracing.set(rules), graph.rules
    try:
        with graph.within(Scope(name=f"{graph.unique(made.name)}/")):
            given = tree_map(fed, arguments)
            graph.rules = rules
            made.outputs = _checked(tree_map(_plain, function(*given)), made, graph)
    finally:
        graph.rules = outer
        _tracing.reset(token)
    known = graph.owner.host_values if graph.owner is not None else {}  # a model's variables are
    new = [t for t in graph.tensors[begun:] if isinstance(t, Variable) and t not in known]
    for v in new:
        if v.name != "global_step":
            raise InvalidArgumentError(
                f"{made.name} makes variable {v.name!r}: it would make another one each time it is traced. "
                "Make it before, in `with strategy.scope():`"
            )
    return made


def _plain(value: Any) -> Any:
    return value.as_tensor() if isinstance(value, Composite) else value


def _checked(outputs: Any, made: Trace, graph: Graph) -> Any:
    """Return what a function returned, without what has no value, or raise if it cannot be computed."""
    marks = {one.mark for one in made.applied}

    def one(value: Any) -> Tensor | None:
        if value is None:
            return None
        if not isinstance(value, Tensor):
            raise InvalidArgumentError(
                f"{made.name} returns {value!r}, which is not a tensor: it would never change. "
                "Return tensors, None, or tuples, lists and dicts of them"
            )
        if value.graph is not graph:
            raise InvalidArgumentError(f"{made.name} returns {value!r} of another graph; {graph.hint}")
        return value if value.op is None or value.op.has_value else None

    found = tree_map(one, outputs)
    values = [t for t in tree_leaves(found) if t is not None]
    late = [t.name for t in value_order([*values, *made.effects]) if t in marks]
    if late:
        raise InvalidArgumentError(
            f"{made.name} computes something after {late[0]!r}; variables are updated when all of the step "
            "has run, so put that into the next step, or use strategy.read(variable) after this one"
        )
    return found


def _forget(graph: Graph, begun: int) -> None:
    """Take what was recorded back out of a graph; variables stay, for models have them."""
    graph.tensors[begun:] = [t for t in graph.tensors[begun:] if isinstance(t, Variable)]


def _name(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "step"


# Signatures: calls of a function with equal signatures share one trace. Pure.
#
# A function is traced once for each form of its arguments (their structure, dtypes and constants) and each
# set of sizes. After some sets of sizes it is traced once more, with those sizes left open that differ from
# call to call.

Form: TypeAlias = tuple[Any, ...]
TraceType = TypeVar("TraceType")
MOST_SIZES = 8  # of one form, before sizes are left open
MOST_FORMS = 16
MOST_FUNCTIONS = 64


def arrays_in(arguments: Any) -> Any:
    """Return arguments with NumPy's single numbers as arrays, all of them in C order."""

    def one(value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        array = np.asarray(value, order="C")
        if array.dtype.kind not in NUMBERS:
            raise InvalidArgumentError(f"run takes arrays of numbers, got one of {array.dtype}: {array!r}")
        return array

    return tree_map(one, arguments)


def form_of(value: Any) -> Form:
    """Return what has to be equal for two values to be traced as one: everything but sizes."""
    if isinstance(value, np.ndarray):
        # A size of 0 has traces of its own, because means over nothing are not computed.
        return ("array", value.dtype.str, tuple(n == 0 for n in value.shape))
    if isinstance(value, dict):
        return (dict, *((name, form_of(part)) for name, part in value.items()))
    if isinstance(value, (tuple, list)):
        return (type(value), *map(form_of, value))
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return (type(value), value)
    return ("object", id(value))


def open_where_different(shapes: Sequence[Sequence[Shape]]) -> list[Shape]:
    """Return shapes that all of these fit, with None for sizes that differ.

    >>> open_where_different([[(4, 3)], [(5, 3)]])
    [(None, 3)]
    """
    return [
        tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*ones, strict=True))
        for ones in zip(*shapes, strict=True)
    ]


def fits(wanted: Iterable[Shape], shapes: Iterable[Shape]) -> bool:
    """Whether arrays of these shapes are among those that were traced."""
    pairs = [
        (w, s) for one, other in zip(wanted, shapes, strict=True) for w, s in zip(one, other, strict=True)
    ]
    return all(w in (None, s) for w, s in pairs)


@dataclass
class Traces(Generic[TraceType]):
    """The traces of one function."""

    name: str
    exact: dict[Form, dict[tuple[Shape, ...], TraceType]] = field(default_factory=dict)
    opened: dict[Form, tuple[list[Shape], TraceType]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    """Arguments that are compared by identity; kept, so that no other object takes the same id."""

    def __len__(self) -> int:
        return sum(map(len, self.exact.values())) + len(self.opened)

    def find(
        self, arguments: Any, shapes: tuple[Shape, ...], make: Callable[[Sequence[Shape]], TraceType]
    ) -> TraceType:
        """Return the trace for arguments whose arrays have these shapes; ``make`` traces what is missing."""
        form = form_of(arguments)
        ones = self.exact.get(form)
        if ones is None:
            if len(self.exact) >= MOST_FORMS:
                raise InvalidArgumentError(
                    f"{self.name} was called with {MOST_FORMS} different forms of arguments, and is traced "
                    f"anew for each: now {arguments!r}. Give numbers that change as arrays, such as "
                    "np.float32(x)"
                )
            ones = self.exact[form] = {}
            self.kept.append(arguments)
        if shapes in ones:
            return ones[shapes]
        if form in self.opened and fits(self.opened[form][0], shapes):
            return self.opened[form][1]
        if len(ones) < MOST_SIZES:
            ones[shapes] = make(shapes)
            return ones[shapes]
        known = [self.opened[form][0]] if form in self.opened else []
        wide = open_where_different([*ones, *known, shapes])
        try:
            self.opened[form] = wide, make(wide)
            print(
                f"{self.name} was traced for {MOST_SIZES} sets of sizes; from here on one trace serves "
                f"{', '.join(map(show, wide))}"
            )
        except Exception as error:
            error.add_note(
                f"({self.name} was called with arrays of {MOST_SIZES + 1} different sets of sizes. From here "
                f"on it is traced for {', '.join(map(show, wide))}, where ? is a size that it must not use "
                "as a number; or cut batches to one size, with .batch(size, drop_remainder=True))"
            )
            raise
        return self.opened[form][1]


# Pytrees: the nested tuples, lists and dicts that a function takes and returns.


def tree_leaves(tree: Any) -> Iterator[Any]:
    """Yield what is in a tree, in order.

    >>> list(tree_leaves(({"a": 1, "b": [2, 3]}, None)))
    [1, 2, 3, None]
    """
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if not isinstance(tree, (tuple, list)):
        yield tree
        return
    for part in tree:
        yield from tree_leaves(part)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same form, with the function's value for each leaf.

    >>> tree_map(lambda n: n + 1, ({"a": 1}, [2]))
    ({'a': 2}, [3])
    """
    if isinstance(tree, dict):
        return {name: tree_map(function, part) for name, part in tree.items()}
    if not isinstance(tree, (tuple, list)):
        return function(tree)
    parts = [tree_map(function, part) for part in tree]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*parts)
    return type(tree)(parts)
