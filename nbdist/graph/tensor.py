"""Symbolic ndarrays: NumPy's functions on a Tensor record a graph.

x = placeholder(np.float32, (None, 64), name="x")
w = Variable(np.zeros((64, 10), np.float32), name="w")
y = np.tanh(x @ w)          # nothing is computed yet
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.array_methods import ArrayMethods, symbolic
from nbdist.graph.backend import Array
from nbdist.graph.composite import Composite
from nbdist.graph.op import OPS, Op, Shape, Spec, number_array, number_dtype, shape_of, show
from nbdist.graph.replicated import VariableAggregation, VariableSynchronization, checked
from nbdist.graph.scopes import Graph, Line, Scope, default_graph, name_scope, sessions, users_line

__all__ = [
    "FUNCTIONS", "NUMBERS", "Constant", "Graph", "Placeholder", "ShardSlice", "Tensor", "Variable",
    "constant", "default_graph", "name_scope", "placeholder", "record", "symbolic",
]  # fmt: skip

NUMBERS = "biuf"  # the kinds of dtypes that tensors hold
BUILD_TOGETHER = "build both inside one `with Graph().as_default()`"

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""The recorder of each NumPy function (and ``operator.getitem``) for tensors; ``ops`` fill it."""


Kind: TypeAlias = "type[Tensor]"


class Tensor(ArrayMethods, NDArrayOperatorsMixin):
    """A value that a graph will compute: NumPy's functions and operators on it record ops.

    ``shape`` may hold None where a size is known only when the graph runs. A Tensor has no value of its
    own; a program or a session computes it. ``device`` is the merged device of its scopes; a session sets
    the remaining fields. ``line`` is the line of the user's code that made it.
    """

    __slots__ = (
        "attrs", "container", "control_inputs", "device", "dtype", "graph", "inputs", "line", "name", "op",
        "shape",
    )  # fmt: skip

    graph: Graph
    name: str
    shape: Shape
    dtype: np.dtype[Any]
    device: str
    control_inputs: tuple[Tensor, ...]
    container: str
    line: Line | None

    def __init__(
        self,
        op: Op | None,
        inputs: tuple[Tensor, ...],
        attrs: Mapping[str, Any],
        spec: Spec,
        name: str,
    ) -> None:
        self.graph = inputs[0].graph if inputs else default_graph()
        for other in inputs:
            if other.graph is not self.graph:
                raise InvalidArgumentError(
                    f"{name}: {other.name!r} belongs to another graph than {inputs[0].name!r}; "
                    f"{self.graph.hint or other.graph.hint or BUILD_TOGETHER}"
                )
        self.op, self.inputs, self.attrs = op, inputs, dict(attrs)
        self.shape, self.dtype = spec.shape, spec.dtype
        self.name = self.graph.unique(name)
        scope = self.graph.scope
        self.control_inputs = scope.control if op is not None else ()
        self.container = scope.container
        self.line = users_line()
        self.device = ""
        self.device = self.graph.device_for(self)
        self.graph.tensors.append(self)

    @property
    def type(self) -> str:
        """The name of its op, or Variable, Placeholder, Constant."""
        return self.op.name if self.op is not None else type(self).__name__

    @property
    def spec(self) -> Spec:
        """Shape and dtype together."""
        return Spec(self.shape, self.dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def eval(self, session: Any = None, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Return the value, computed by ``session`` or by the session of the enclosing ``with`` block.

        A strategy's tensors have a value without a session.
        """
        if session is None and self.graph.owner is not None:
            return self.graph.owner.evaluate(self, feed_dict)
        if session is None and not sessions():
            raise FailedPreconditionError(
                f"{self.name}.eval() needs a session: write `with Session():` around it, or eval(session=...)"
            )
        return (session or sessions()[-1]).run(self, feed_dict)

    def moved(
        self,
        graph: Graph,
        inputs: tuple[Tensor, ...],
        device: str,
        spec: Spec,
        *,
        kind: Kind | None = None,
        op: Op | None = None,
        attrs: Mapping[str, Any] | None = None,
        suffix: str = "",
    ) -> Tensor:
        """Return a copy of this tensor in another graph, on inputs of that graph; ignores all scopes."""
        made: Tensor = object.__new__(kind or (Tensor if op is not None else type(self)))
        made.graph, made.inputs, made.control_inputs, made.device = graph, inputs, (), device
        made.op = op if op is not None else None if kind is not None else self.op
        made.attrs = dict(self.attrs if attrs is None else attrs)
        made.shape, made.dtype, made.name = spec.shape, spec.dtype, graph.unique(self.name + suffix)
        made.container, made.line = self.container, self.line
        if isinstance(made, Constant) and isinstance(self, Constant):
            made.value = self.value
        if isinstance(made, Variable) and isinstance(self, Variable):
            made.trainable, made.initial_value, made._initializer = self.trainable, None, None
            made.aggregation, made.synchronization = self.aggregation, self.synchronization
        graph.tensors.append(made)
        return made

    def astype(self, dtype: Any) -> Tensor:
        """Return the values as another dtype."""
        return record("cast", self, dtype=number_dtype("astype", dtype))

    def __getitem__(self, key: Any) -> Tensor:
        result: Tensor = FUNCTIONS[operator.getitem](self, key if isinstance(key, tuple) else (key,))
        return result

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs and ufunc.__name__ in OPS:
            return record(ufunc.__name__, *inputs)
        reduction = {"add": np.sum, "maximum": np.max, "minimum": np.min, "multiply": np.prod}
        if method == "reduce" and ufunc.__name__ in reduction:
            kwargs.setdefault("axis", 0)
            return self.__array_function__(reduction[ufunc.__name__], (Tensor,), inputs, kwargs)
        if "out" in kwargs:
            raise NotImplementedError(
                f"np.{ufunc.__name__} cannot write into a Tensor, whose value is never changed: "
                "give the result a name (x = x + 1, not x += 1)"
            )
        how = "" if method == "__call__" else f".{method}"
        with_what = f" with {', '.join(kwargs)}=" if kwargs else ""
        raise NotImplementedError(
            f"np.{ufunc.__name__}{how}{with_what} does not record on a Tensor; add an op to the table with "
            f"nbdist.graph.op.define({ufunc.__name__!r}, ...), or compute it outside the graph"
        )

    def __array_function__(
        self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func not in FUNCTIONS:
            raise NotImplementedError(
                f"{_numpys_name(func)} does not record on a Tensor; give it a line in "
                "nbdist.graph.tensor.FUNCTIONS (see nbdist/graph/ops), or compute it outside the graph"
            )
        recorder = FUNCTIONS[func]
        given, options = _by_numpys_names(func, args, kwargs)
        try:
            signature(recorder).bind(*given, **options)
        except TypeError as error:
            raise NotImplementedError(
                f"{_numpys_name(func)} does not record on a Tensor with these arguments: {error}; "
                f"its arguments here are {signature(recorder)}"
            ) from None
        return recorder(*given, **options)

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        raise TypeError(
            f"{self!r} has no value until the graph runs; use NumPy functions that record, "
            "or run it in a Session"
        )

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value until the graph runs; use np.where, not if")

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self!r} has no length: it is a single number")
        if self.shape[0] is None:
            raise TypeError(f"{self!r} has no length: its first size is known only when the graph runs")
        return self.shape[0]

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {show(self.shape)} {self.dtype}>"


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """The place of a shard in the whole variable of this name and shape; ``start`` has an index per axis."""

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]


class Placeholder(Tensor):
    """A tensor whose value is fed at every run."""

    __slots__ = ()


class Constant(Tensor):
    """A tensor with a value that never changes."""

    __slots__ = ("value",)
    value: Array


def _one_number(value: Any) -> bool:
    """Whether an array is one number broadcast to a shape, which takes no memory and cannot be written to."""
    return isinstance(value, np.ndarray) and not value.flags.writeable and not any(value.strides)


class Variable(Tensor):
    """A tensor whose value is kept between runs, by the task that holds it.

    ``initial_value`` is an array, a tensor (computed on the variable's device, by its initializer), or
    a function without arguments that returns one. It is uninitialised until a session has run its
    ``initializer`` (``global_variables_initializer()`` runs all). A step that assigns a variable and reads
    it reads the value from before the step, unless the read is made under ``control_dependencies``.

    ``aggregation`` ("none", "sum", "mean", "only_first_replica") and ``synchronization`` ("auto", "on_write",
    "on_read", "none") matter where replicas of a strategy run a function that assigns the variable.

    >>> with Graph().as_default():
    ...     w = Variable(np.zeros((2, 3), np.float32), name="w")
    ...     w, w.assign_add(np.ones((2, 3), np.float32))
    (<Variable 'w' (2, 3) float32>, <Tensor 'w/assign_add' (2, 3) float32>)
    """

    __slots__ = (
        "_dimensions",
        "_initializer",
        "_part",
        "aggregation",
        "initial_value",
        "synchronization",
        "trainable",
    )

    def __init__(
        self,
        initial_value: Any,
        dtype: Any = None,
        trainable: bool = True,
        name: str | None = None,
        aggregation: str | VariableAggregation | None = None,
        synchronization: str | VariableSynchronization | None = None,
    ) -> None:
        value = initial_value() if callable(initial_value) else initial_value
        if isinstance(value, Tensor) and (None in value.shape or dtype not in (None, value.dtype)):
            raise InvalidArgumentError(
                f"a variable's initial value has one shape and the variable's dtype, got {value!r}"
            )
        if not isinstance(value, Tensor) and not (dtype is None and _one_number(value)):
            value = number_array("a variable's initial value", value, dtype)
        number_dtype("a variable's initial value", value.dtype)
        super().__init__(None, (), {}, Spec(value.shape, value.dtype), name or "Variable")
        self.initial_value = value
        self.aggregation = checked("aggregation", VariableAggregation, aggregation)
        self.synchronization = checked("synchronization", VariableSynchronization, synchronization)
        # Values of one replica are not trained: training changes all copies in the same way.
        self.trainable = trainable and self.synchronization is not VariableSynchronization.ON_READ
        self._initializer: Tensor | None = None

    @property
    def dimensions(self) -> tuple[str | None, ...]:
        """The names of its dimensions, None for one without: what a mesh of devices may split it along.

        They can be set, to as many names as there are dimensions.
        """
        return getattr(self, "_dimensions", (None,) * len(self.shape))

    @dimensions.setter
    def dimensions(self, names: Sequence[str | None]) -> None:
        if len(names) != len(self.shape):
            raise InvalidArgumentError(
                f"variable {self.name!r} has {len(self.shape)} dimensions, got the names {names!r}"
            )
        self._dimensions = tuple(names)

    @property
    def part(self) -> ShardSlice | None:
        """The place in a larger variable, if this one is a shard."""
        return getattr(self, "_part", None)

    @part.setter
    def part(self, part: ShardSlice | None) -> None:
        self._part = part

    @property
    def initializer(self) -> Tensor:
        """The op that gives the variable its initial value."""
        if self._initializer is None:
            with self.graph.within(Scope(colocated=self)):
                self._initializer = record(
                    "assign", self, self.initial_value, name=f"{self.name}/initializer"
                )
        return self._initializer

    def assign(self, value: Any) -> Tensor:
        """Return the op that sets the value; its own value is the new one."""
        return self._change("assign", value)

    def assign_add(self, value: Any) -> Tensor:
        """Return the op that adds to the value, in place."""
        return self._change("assign_add", value)

    def assign_sub(self, value: Any) -> Tensor:
        """Return the op that subtracts from the value, in place."""
        return self._change("assign_sub", value)

    def read_value(self) -> Tensor:
        """Return the value after the current control dependencies have run."""
        return self._change("read")

    def _change(self, op_name: str, *values: Any) -> Tensor:
        if self.graph.rules is not None and values:
            return self.graph.rules.change(self, op_name, values[0])
        return self.recorded(op_name, *values)

    def recorded(self, op_name: str, *values: Any) -> Tensor:
        """Return an op on the variable, on its device."""
        scope = replace(self.graph.scope, name="", colocated=self)
        with self.graph.within(scope):
            return record(op_name, self, *values, name=f"{self.name}/{op_name}")


def placeholder(dtype: Any, shape: Sequence[int | None], name: str | None = None) -> Placeholder:
    """Return a tensor to be fed; None in ``shape`` is a size that each run may choose.

    >>> with Graph().as_default():
    ...     placeholder(np.float32, (None, 64), name="x")
    <Placeholder 'x' (?, 64) float32>
    """
    spec = Spec(shape_of("placeholder", shape), number_dtype("placeholder", dtype))
    return Placeholder(None, (), {}, spec, name or "placeholder")


def constant(value: Any, dtype: Any = None, name: str | None = None) -> Constant:
    """Return a tensor with a fixed value: a copy, which later changes of ``value`` do not affect."""
    array = number_array("a constant", value, dtype)
    tensor = Constant(None, (), {}, Spec(array.shape, array.dtype), name or "constant")
    tensor.value = array
    return tensor


def record(op_name: str, *inputs: Any, name: str | None = None, **attrs: Any) -> Tensor:
    """Add one op to the graph of its inputs and return its value's tensor.

    Inputs that are not tensors become constants; a Python number gets the dtype that NumPy gives it beside
    the other inputs. Under control dependencies a variable is read after them.
    """
    op = OPS[op_name]
    graph = next((i.graph for i in inputs if isinstance(i, (Tensor, Composite))), default_graph())
    with graph.as_default():
        tensors = _as_tensors(op_name, inputs)
        if graph.rules is not None:
            rules = graph.rules
            tensors = tuple(
                rules.read(t) if isinstance(t, Variable) and i not in op.writes else t
                for i, t in enumerate(tensors)
            )
        elif graph.scope.control and op_name != "read":
            tensors = tuple(
                t.read_value() if isinstance(t, Variable) and i not in op.writes else t
                for i, t in enumerate(tensors)
            )
        return Tensor(op, tensors, attrs, op.spec(*(t.spec for t in tensors), **attrs), name or op_name)


def _as_tensors(op_name: str, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    dtypes = [i.dtype for i in inputs if hasattr(i, "dtype")]
    tensors = []
    for place, value in enumerate(inputs):
        if isinstance(value, (Tensor, Composite)):
            tensors.append(value.as_tensor() if isinstance(value, Composite) else value)
        elif isinstance(value, (bool, int, float, complex)) and dtypes:
            tensors.append(constant(value, _dtype_beside(op_name, value, dtypes, place)))
        else:
            tensors.append(constant(value if isinstance(value, np.ndarray) else number_array(op_name, value)))
    return tuple(tensors)


COMPARISONS = frozenset(("greater", "greater_equal", "less", "less_equal", "equal", "not_equal"))


def _dtype_beside(op_name: str, value: Any, dtypes: Sequence[np.dtype[Any]], place: int) -> np.dtype[Any]:
    """Return the dtype that NumPy gives a Python number beside arrays (NEP 50).

    An integer outside the range of the arrays' dtype keeps its value in comparisons. If the function
    computes in floating point, it is converted to that dtype: for example the 256 of ``x / 256`` for bytes.
    """
    beside: np.dtype[Any] = np.result_type(*dtypes, value)
    if type(value) is not int or beside.kind not in "iu":
        return beside
    if np.iinfo(beside).min <= value <= np.iinfo(beside).max:
        return beside
    if op_name in COMPARISONS:
        return np.dtype(np.int64 if -(1 << 63) <= value < 1 << 63 else np.float64)
    ufunc = getattr(np, op_name, None)
    if isinstance(ufunc, np.ufunc) and ufunc.nin == 2 and len(dtypes) == 1:
        pair: tuple[Any, Any] = (int, dtypes[0]) if place == 0 else (dtypes[0], int)
        loop = ufunc.resolve_dtypes((*pair, None))[place]
        return loop if loop.kind not in "iu" else beside
    return beside


PARAMETERS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.concatenate: lambda arrays, /, axis=0, out=None, *, dtype=None, casting="same_kind": None,
    np.dot: lambda a, b, out=None: None,
    np.inner: lambda a, b, /: None,
    np.reshape: lambda a, /, shape, order="C", *, copy=None: None,
    np.vdot: lambda a, b, /: None,
    np.where: lambda condition, x=None, y=None, /: None,
}
"""Parameters of functions that do not tell them in NumPy before 2.4 (those in C), or have others in 2.0."""


@cache
def signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function."""
    return inspect.signature(PARAMETERS.get(function, function))


def _numpys_name(func: Any) -> str:
    """Return what a function of NumPy is called in programs.

    >>> _numpys_name(np.median), _numpys_name(np.linalg.outer), _numpys_name(np.fft.fft)
    ('np.median', 'np.linalg.outer', 'np.fft.fft')
    """
    return f"{func.__module__.replace('numpy', 'np', 1)}.{func.__name__}"


def _by_numpys_names(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a NumPy function by NumPy's names, without those equal to their defaults.

    A recorder may take only some of them, in another order.
    """
    try:
        bound = signature(func).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArgumentError(f"{_numpys_name(func)}: {error}") from None
    given: list[Any] = []
    options: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        parameter = signature(func).parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            given += [*options.values(), *value]  # those before it have to be by position, too
            options.clear()
        elif parameter.kind is parameter.VAR_KEYWORD:
            options |= value
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            given.append(value)
        elif not _same_as_default(value, parameter.default):
            options[name] = value
    return tuple(given), options


def _same_as_default(value: Any, default: Any) -> bool:
    return value is default or (
        isinstance(value, (str, bool, int)) and type(value) is type(default) and value == default
    )
