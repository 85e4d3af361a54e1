"""Variables of a graph: `get_variable` by name and initializer, whole or in shards, and collections of them.

    table = get_variable("table", (10_000_000, 20), partitioner=fixed_size_partitioner(3))
    w = get_variable("w", (20, 10), initializer="he_normal")

Initial values are drawn on each variable's device, when its initializer runs.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, overload

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.initial import InitializerKind, kind_of
from nbdist.graph.op import number_dtype, show
from nbdist.graph.ops.state import group
from nbdist.graph.partitioned import PartitionedVariable, parts_of
from nbdist.graph.partitioners import Partitioner
from nbdist.graph.scopes import Graph, Scope, default_graph
from nbdist.graph.tensor import Tensor, Variable, record

Sizes: TypeAlias = tuple[int, ...]


@overload
def get_variable(
    name: str,
    shape: Sequence[int] | int | None = None,
    dtype: Any = None,
    initializer: Any = None,
    trainable: bool = True,
    partitioner: None = None,
    aggregation: str | None = None,
    synchronization: str | None = None,
) -> Variable: ...
@overload
def get_variable(
    name: str,
    shape: Sequence[int] | int | None = None,
    dtype: Any = None,
    initializer: Any = None,
    trainable: bool = True,
    *,
    partitioner: Partitioner,
    aggregation: str | None = None,
    synchronization: str | None = None,
) -> PartitionedVariable: ...
def get_variable(
    name: str,
    shape: Sequence[int] | int | None = None,
    dtype: Any = None,
    initializer: Any = None,
    trainable: bool = True,
    partitioner: Partitioner | None = None,
    aggregation: str | None = None,
    synchronization: str | None = None,
) -> Variable | PartitionedVariable:
    """Return a new variable of exactly this name (in the current name scope), with drawn initial values.

    ``dtype`` is float32, or that of an array or a tensor if one is given. ``initializer`` is a name (None:
    "glorot_uniform", or zeros for whole numbers), a number that fills it, an array, a tensor, or a function
    of (shape, rng) that returns an array, which the client calls. Values of a named initializer are drawn on
    the variable's device from the graph's seed and the variable's name: they are the same on every worker,
    and shards have the values of that part of the whole variable. ``partitioner`` cuts it along one axis,
    into ``name/part_0``, ...
    ``aggregation`` and ``synchronization`` are those of :class:`~nbdist.graph.tensor.Variable`.

    >>> with Graph().as_default():
    ...     get_variable("w", (784, 100), initializer="he_normal")
    <Variable 'w' (784, 100) float32>
    """
    graph = default_graph()
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"get_variable: a variable has a name, got {name!r}")
    rules = {"aggregation": aggregation, "synchronization": synchronization}
    new = partial(_new, name, shape, dtype, initializer, trainable, partitioner, **rules)
    if graph.store is not None:
        return graph.store.get(name, shape, dtype, new)
    if graph.taken(name):
        raise InvalidArgumentError(
            f"get_variable: {graph.scope.name + name!r} exists already in this graph; give the new "
            "variable another name or a name scope, or keep the first one and use it again"
        )
    return new()


def _new(
    name: str,
    shape: Any,
    dtype: Any,
    initializer: Any,
    trainable: bool,
    partitioner: Partitioner | None,
    **rules: str | None,
) -> Variable | PartitionedVariable:
    graph = default_graph()
    full = graph.scope.name + name
    own = full if graph.store is None else full.removeprefix(graph.store.prefix)
    start = _start(graph, own, shape, dtype, initializer)
    if partitioner is None:
        return _made(name, start, (0,) * len(start.shape), start.shape, trainable, **rules)
    pieces = parts_of(full, start.shape, partitioner(shape=start.shape, dtype=start.dtype))
    graph.unique(name)
    shards = []
    for number, (part, size) in enumerate(pieces):
        shards.append(_made(f"{name}/part_{number}", start, part.start, size, trainable, **rules))
        shards[-1].part = part
    return PartitionedVariable(full, start.shape, shards)


class VariableStore:
    """Variables that `get_variable` makes once by name, and returns when a function is recorded anew.

    A model function is called for each form of its arguments, each time below a name scope of its own. In the
    store a variable has its name without that scope. ``prefix`` is put before the names in the graph.

    >>> from nbdist.graph.scopes import name_scope
    >>> store = VariableStore()
    >>> with Graph().as_default():
    ...     for number in range(2):
    ...         with name_scope("call"), store.recording():
    ...             w = get_variable("w", (2,))
    >>> w.name, list(store.variables)
    ('w', ['w'])
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.variables: dict[str, Variable | PartitionedVariable] = {}
        self._scope = ""
        self._used: set[str] = set()
        self._layers: dict[str, int] = {}
        self._models: set[int] = set()
        self._seeds = 0

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Have the default graph take its variables from the store, inside a ``with``."""
        graph = default_graph()
        outer, graph.store = graph.store, self
        self._scope, self._used, self._layers, self._models = graph.scope.name, set(), {}, set()
        self._seeds = 0
        try:
            yield
        finally:
            graph.store = outer

    def get(
        self, name: str, shape: Any, dtype: Any, new: Callable[[], Variable | PartitionedVariable]
    ) -> Variable | PartitionedVariable:
        """Return the variable of a name in the current scope; ``new`` makes it the first time."""
        graph = default_graph()
        key = (graph.scope.name + name).removeprefix(self._scope)
        if key in self._used:
            raise InvalidArgumentError(
                f"get_variable: {key!r} exists already; give the second variable another name or a name scope"
            )
        self._used.add(key)
        if key not in self.variables:
            within = key.removesuffix(name)
            with graph.within(replace(graph.scope, name=self.prefix + within, control=())):
                self.variables[key] = new()
            for variable in self.parts(key).values():
                if graph.owner is not None:
                    graph.owner.host_value(variable)
        found = self.variables[key]
        wanted = found.shape if shape is None else _sizes(name, shape)
        if found.shape != wanted or (dtype is not None and found.dtype != np.dtype(dtype)):
            raise InvalidArgumentError(
                f"get_variable: {key!r} is {found.dtype} {show(found.shape)}, and is asked for as "
                f"{np.dtype(dtype or found.dtype)} {show(wanted)}"
            )
        return found

    def layer_scope(self, name: str) -> Scope:
        """Return the scope of the next layer of that name in the current one: ``dense/``, ``dense_1/``."""
        full = default_graph().scope.name + name
        count = self._layers.get(full, 0)
        self._layers[full] = count + 1
        return Scope(name=f"{full}{f'_{count}' if count else ''}/")

    def first_call(self, model: object) -> bool:
        """Return whether a model is called for the first time in this recording."""
        first = id(model) not in self._models
        self._models.add(id(model))
        return first

    def model_seed(self, seed: int) -> int:
        """Return what the next model draws from, given the graph's seed: the same in each recording."""
        self._seeds += 1
        return _seed(seed, f"model {self._seeds}")

    def parts(self, key: str) -> dict[str, Variable]:
        """Return a variable as the parts that have values, by name: itself, or its shards."""
        found = self.variables[key]
        if isinstance(found, Variable):
            return {key: found}
        return {f"{key}/part_{number}": shard for number, shard in enumerate(found.shards)}

    def all(self) -> dict[str, Variable]:
        """Return all parts by name, in order of creation."""
        return {name: v for key in self.variables for name, v in self.parts(key).items()}


def set_random_seed(seed: int) -> None:
    """Draw the initial values of variables made from now on from ``seed`` and their names.

    It is a property of the default graph; the default is 0, so every process draws the same values.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InvalidArgumentError(f"set_random_seed takes a whole number, got {seed!r}")
    default_graph().seed = int(seed)


def get_or_create_global_step() -> Variable:
    """Return the graph's ``global_step``: an int64 that counts steps and is not trained."""
    graph = default_graph()
    with graph.within(replace(graph.scope, name="")):
        if not graph.taken("global_step"):
            return Variable(np.int64(0), trainable=False, name="global_step")
    found = graph.tensor("global_step")
    if not isinstance(found, Variable) or found.dtype.kind not in "iu" or found.shape:
        raise InvalidArgumentError(
            f"the global step is a variable that holds one whole number, not {found!r}"
        )
    return found


def global_step_in(graph: Graph) -> Variable | None:
    """Return a graph's ``global_step``; None if it has none."""
    found = (v for v in graph.variables() if v.name == "global_step")
    return next((v for v in found if v.dtype.kind in "iu" and not v.shape), None)


def global_variables(graph: Graph | None = None) -> list[Variable]:
    """Return the variables of a graph, the default one if none is given, in order of creation.

    A partitioned variable is listed as its shards. Variables local to a worker are not included.
    """
    graph = graph or default_graph()
    return [v for v in graph.variables() if v not in graph.local_variables]


def trainable_variables(graph: Graph | None = None) -> list[Variable]:
    """Return the variables that an optimizer changes."""
    return [v for v in global_variables(graph) if v.trainable]


def global_variables_initializer(graph: Graph | None = None) -> Tensor:
    """Return the op that gives all variables made so far their initial values.

    >>> with Graph().as_default():
    ...     a, b = Variable(1.0), Variable(2.0)
    ...     global_variables_initializer().name
    'init'
    """
    return group(*(v.initializer for v in global_variables(graph)), name="init")


def filled(name: str, beside: Variable, value: float) -> Variable:
    """Return a variable of the shape, device and container of another one, filled with ``value``.

    An optimizer uses it for its state of a variable; it is not trained. ``name`` is its full name.
    """
    graph = beside.graph
    with graph.within(Scope(colocated=beside, container=beside.container)):
        start = _start(graph, name, beside.shape, beside.dtype, value)
        made = _made(name, start, (0,) * beside.ndim, start.shape, trainable=False)
    if beside.part is not None:
        made.part = replace(beside.part, name=beside.part.name + name.removeprefix(beside.name))
    return made


@dataclass(frozen=True, slots=True)
class _InitialValue:
    """A variable's initial value: ``values(start, shape)`` is that of a part of it."""

    shape: Sizes
    dtype: np.dtype[Any]
    values: Callable[[Sizes, Sizes], Any]


def _made(
    name: str, whole: _InitialValue, start: Sizes, shape: Sizes, trainable: bool, **rules: str | None
) -> Variable:
    graph = default_graph()
    with graph.within(Scope(name=f"{graph.scope.name}{name}/")):
        value = whole.values(start, shape)
    variable = Variable(value, trainable=trainable, name=name, **rules)
    if isinstance(value, Tensor) and value.type == "initial_value":
        value.device = variable.device  # drawn on the variable's device, whatever the scopes set
    return variable


def _start(graph: Graph, name: str, shape: Any, dtype: Any, initializer: Any) -> _InitialValue:
    sizes = None if shape is None else _sizes(name, shape)
    seed = _seed(graph.seed, name)
    if initializer is None:
        initializer = "glorot_uniform" if np.dtype(dtype or np.float32).kind == "f" else "zeros"
    if isinstance(initializer, str):
        initializer = kind_of(initializer)
    if dtype is not None:
        dtype = number_dtype(f"get_variable: {name!r}", dtype)
    if isinstance(initializer, (InitializerKind, bool, int, float, np.number, np.bool)):
        if sizes is None:
            raise InvalidArgumentError(f"get_variable: {name!r} needs a shape; give shape=")
        return _drawn(name, sizes, np.dtype(dtype or np.float32), initializer, seed)
    value = initializer
    if callable(initializer):
        value, dtype = initializer(sizes, np.random.default_rng(seed)), dtype or np.float32
    return _cut(name, sizes, dtype, value if isinstance(value, Tensor) else np.asarray(value))


def _drawn(name: str, whole: Sizes, dtype: np.dtype[Any], how: Any, seed: int) -> _InitialValue:
    """Return initial values that one op draws, given only the part's place in the whole."""
    draw, scale = "constant", how
    if isinstance(how, InitializerKind):
        draw, scale = how.draw, how.scale_for(whole)
    elif isinstance(how, np.generic):
        scale = how.item()
    if dtype.kind in "biu" and (draw != "constant" or scale != int(scale)):
        what = f"{how.name!r} draws" if isinstance(how, InitializerKind) else f"{how!r} is one of"
        raise InvalidArgumentError(
            f"get_variable: {name!r} is of {dtype}, and {what} floating point numbers; give "
            "initializer='zeros', a whole number or an array"
        )

    def values(start: Sizes, shape: Sizes) -> Tensor:
        return record(
            "initial_value", draw=draw, scale=scale, dtype=dtype, seed=seed, shape=shape, whole=whole,
            start=start,
        )  # fmt: skip

    return _InitialValue(whole, dtype, values)


def _cut(name: str, sizes: Sizes | None, dtype: Any, value: Any) -> _InitialValue:
    """Return given initial values: an array or a tensor."""
    if sizes is not None and value.shape != sizes:
        raise InvalidArgumentError(
            f"get_variable: {name!r} has the shape {show(sizes)}, its initial value {show(value.shape)}"
        )
    if dtype is not None and value.dtype != np.dtype(dtype):
        if not np.can_cast(value.dtype, np.dtype(dtype), "same_kind"):
            raise InvalidArgumentError(
                f"get_variable: {name!r} of {np.dtype(dtype)} takes no initial value of {value.dtype}"
            )
        value = value.astype(np.dtype(dtype))

    def values(start: Sizes, shape: Sizes) -> Any:
        if shape == value.shape:
            return value
        return value[tuple(slice(first, first + n) for first, n in zip(start, shape, strict=True))]

    return _InitialValue(tuple(value.shape), value.dtype, values)


def _sizes(name: str, shape: Any) -> Sizes:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0 for n in sizes):
        raise InvalidArgumentError(f"get_variable: the shape of {name!r} has known sizes, got {shape!r}")
    return tuple(int(n) for n in sizes)


def _seed(seed: int, name: str) -> int:
    # Not hash(), whose values for texts differ from process to process.
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") >> 1
