"""Graphs as ONNX models, which other runtimes compute: ONNX Runtime, TensorRT, OpenVINO, Core ML.

    write_onnx(path, {"x": x}, {"y": y}, {w: array})      # placeholders, results, values of the variables

`FORMS` has the ONNX form of each op that a prediction may contain: a function that adds nodes to a `Writer`.
ONNX does not promote types, so a form first casts its inputs to the type in which NumPy computes. Images are
(batch, height, width, channels) here and (batch, channels, height, width) there: convolutions and pooling
stand between two transposes, which runtimes fold. Source of the operators: the ONNX specification, opset 18.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError, MissingExtra, NotFoundError
from nbdist.graph.backend import Array, to_host
from nbdist.graph.compile.specs import value_order
from nbdist.graph.op import normal_axes
from nbdist.graph.ops.indexing import HERE
from nbdist.graph.ops.shape import per_axis
from nbdist.graph.ops.windows import axes_of
from nbdist.graph.tensor import Constant, Placeholder, Tensor, Variable

OPSET = 18
IR_VERSION = 9
MOST_BYTES = (1 << 31) - (1 << 20)  # of an ONNX file, which is one protobuf message
_END = np.iinfo(np.int64).max


def write_onnx(
    path: str | os.PathLike[str],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    values: Mapping[Variable, Array],
) -> Path:
    """Write a graph with the values of its variables as an ONNX file; return its path.

    - ``path``: a local file, which appears when it is complete
    - ``inputs``: placeholders by name; an open size becomes a named dimension
    - ``outputs``: tensors by name
    - ``values``: an array for each variable that the outputs need

    Raises MissingExtra without ``nbdist[onnx]``; NotFoundError for a folder that does not exist;
    InvalidArgumentError, with the op and the line that made it, for one without an ONNX form, and for a model
    of more than 2 GiB.
    """
    try:
        import onnx
        from onnx import helper
    except ImportError:
        raise MissingExtra("onnx", "ONNX files") from None
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgumentError(f"to_onnx takes the path of a file, not {path!r}")
    target = Path(path).expanduser()
    if not target.parent.is_dir():
        raise NotFoundError(f"there is no folder {str(target.parent)!r} for {target.name!r}; make it first")
    if target.is_dir():
        raise InvalidArgumentError(f"{str(target)!r} is a folder; give the path of a file in it")
    writer = Writer([*inputs, *outputs])
    graph = helper.make_graph(
        writer.add(inputs, outputs, values),
        "nbdist",
        [_described(name, t) for name, t in inputs.items()],
        [_described(name, t) for name, t in outputs.items()],
        writer.constants,
    )
    model = helper.make_model(
        graph, producer_name="nbdist", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    if model.ByteSize() > MOST_BYTES:
        raise InvalidArgumentError(
            f"the model has {model.ByteSize() / 2**30:.1f} GiB, and an ONNX file holds 2: export an "
            "Estimator or save the model instead, whose files have no limit"
        )
    onnx.checker.check_model(model)
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(model.SerializeToString())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _described(name: str, tensor: Tensor) -> Any:
    from onnx import helper

    sizes = [
        n if n is not None else "batch" if axis == 0 else f"{name}_{axis}"
        for axis, n in enumerate(tensor.shape)
    ]
    return helper.make_tensor_value_info(name, _type(tensor.dtype), sizes)


def _type(dtype: np.dtype[Any]) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class Writer:
    """The nodes and constants of an ONNX graph, as they are added.

    - ``taken``: names that its values do not have
    """

    def __init__(self, taken: Sequence[str]) -> None:
        self.constants: list[Any] = []
        self._nodes: list[Any] = []
        self._taken = set(taken)
        self._known: dict[Any, str] = {}
        self._prefix = ""

    def add(
        self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], values: Mapping[Variable, Array]
    ) -> list[Any]:
        """Add all that the outputs need; return the nodes."""
        names = {t: name for name, t in inputs.items()}
        for t in value_order(list(outputs.values())):
            self._prefix = t.name
            if t in names:
                continue
            if isinstance(t, Placeholder):
                raise InvalidArgumentError(
                    f"the outputs need the placeholder {t.name!r}, which is not among the inputs: "
                    f"{', '.join(inputs)}"
                )
            if isinstance(t, Variable):
                names[t] = self.constant(to_host(values[t]).reshape(tuple(n or 0 for n in t.shape)), t.name)
            elif isinstance(t, Constant):
                names[t] = self.constant(np.asarray(t.value, t.dtype))
            else:
                form = FORMS.get(t.type)
                if form is None:
                    raise no_form(t)
                names[t] = form(self, t, *(names[i] for i in t.inputs))
        from onnx import helper

        for name, t in outputs.items():
            self._nodes.append(helper.make_node("Identity", [names[t]], [name]))
        return self._nodes

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; return the name of its last output."""
        from onnx import helper

        made = [self._name() for _ in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), made, **attributes))
        return made[-1]

    def constant(self, value: Any, name: str | None = None) -> str:
        """Return the name of a constant array."""
        from onnx import numpy_helper

        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= 64 and name is None else None
        if key is not None and key in self._known:
            return self._known[key]
        made = self._name(name)
        self.constants.append(numpy_helper.from_array(array, made))
        if key is not None:
            self._known[key] = made
        return made

    def cast(self, name: str, have: np.dtype[Any], want: Any) -> str:
        """Return a value in another type."""
        dtype = np.dtype(want)
        return name if have == dtype else self.node("Cast", name, to=_type(dtype))

    def _name(self, wanted: str | None = None) -> str:
        first = name = wanted or self._prefix
        number = 1
        while name in self._taken:
            name, number = f"{first}_{number}", number + 1
        self._taken.add(name)
        return name


def no_form(tensor: Tensor, why: str = "") -> InvalidArgumentError:
    """Return the error about an op that ONNX cannot compute."""
    made = f", made at {tensor.line[0]}:{tensor.line[1]}" if tensor.line is not None else ""
    return InvalidArgumentError(
        f"op {tensor.type!r} ({tensor.name!r}{made}) has no ONNX form{why and f': {why}'}. Compute it from "
        "other ops, or leave it out of what is exported and compute it from the outputs"
    )


Form: TypeAlias = Callable[..., str]
FORMS: dict[str, Form] = {}
"""By the name of an op: ``form(writer, tensor, *names of the inputs)`` returns the name of the result."""


def _form(*names: str) -> Callable[[Form], Form]:
    def put(form: Form) -> Form:
        FORMS.update(dict.fromkeys(names, form))
        return form

    return put


# Elementwise: ops that ONNX has, and those that follow from others

SAME = {
    "negative": "Neg", "reciprocal": "Reciprocal", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "root_of_variance": "Sqrt", "absolute": "Abs", "sign": "Sign", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "arctan": "Atan", "arcsin": "Asin", "arccos": "Acos", "arcsinh": "Asinh", "arccosh": "Acosh",
    "arctanh": "Atanh", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "floor": "Floor", "ceil": "Ceil",
    "rint": "Round", "sigmoid": "Sigmoid", "relu": "Relu", "erf": "Erf", "softmax": "Softmax",
    "log_softmax": "LogSoftmax", "invert": "BitwiseNot", "copy": "Identity", "read": "Identity",
}  # fmt: skip
ARITHMETIC = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow", "maximum": "Max",
    "minimum": "Min", "matmul": "MatMul",
}  # fmt: skip
COMPARISONS = {
    "greater": "Greater", "greater_equal": "GreaterOrEqual", "less": "Less", "less_equal": "LessOrEqual",
    "equal": "Equal",
}  # fmt: skip
BITWISE = {"bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor"}
LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}


@_form(*SAME)
def _same(w: Writer, t: Tensor, x: str) -> str:
    """The same op of one input, along the last axis if it has one."""
    if t.dtype.kind == "b" and t.type not in ("copy", "read"):
        raise no_form(t, "its input is of truth values; convert it with astype")
    return w.node(SAME[t.type], w.cast(x, t.inputs[0].dtype, t.dtype))


@_form(*ARITHMETIC)
def _arithmetic(w: Writer, t: Tensor, a: str, b: str) -> str:
    if t.dtype.kind == "b":
        raise no_form(t, "its inputs are truth values; convert them with astype")
    return w.node(ARITHMETIC[t.type], *_in(w, t.dtype, t, a, b))


@_form(*BITWISE)
def _bitwise(w: Writer, t: Tensor, a: str, b: str) -> str:
    table, names = (LOGICAL, _in(w, bool, t, a, b)) if t.dtype.kind == "b" else (BITWISE, None)
    kind = t.type.replace("bitwise", "logical") if table is LOGICAL else t.type
    return w.node(table[kind], *(names or _in(w, t.dtype, t, a, b)))


@_form(*COMPARISONS)
def _compared(w: Writer, t: Tensor, a: str, b: str) -> str:
    common = np.result_type(*(i.dtype for i in t.inputs))
    if common.kind == "b" and t.type != "equal":
        common = np.dtype(np.int32)
    return w.node(COMPARISONS[t.type], *_in(w, common, t, a, b))


@_form("not_equal")
def _not_equal(w: Writer, t: Tensor, a: str, b: str) -> str:
    return w.node("Not", w.node("Equal", *_in(w, np.result_type(*(i.dtype for i in t.inputs)), t, a, b)))


@_form(*LOGICAL)
def _logical(w: Writer, t: Tensor, a: str, b: str) -> str:
    return w.node(LOGICAL[t.type], *_in(w, bool, t, a, b))


@_form("logical_not")
def _not(w: Writer, t: Tensor, x: str) -> str:
    return w.node("Not", *_in(w, bool, t, x))


@_form("isnan", "isinf", "isfinite")
def _kind_of_number(w: Writer, t: Tensor, x: str) -> str:
    (x,) = _in(w, np.result_type(t.inputs[0].dtype, np.float32), t, x)
    found = {"isnan": ["IsNaN"], "isinf": ["IsInf"], "isfinite": ["IsNaN", "IsInf"]}[t.type]
    results = [w.node(kind, x) for kind in found]
    return results[0] if len(results) == 1 else w.node("Not", w.node("Or", *results))


@_form("where")
def _where(w: Writer, t: Tensor, condition: str, a: str, b: str) -> str:
    chosen = w.cast(condition, t.inputs[0].dtype, bool)
    given = zip((a, b), t.inputs[1:], strict=True)
    return w.node("Where", chosen, *(w.cast(name, i.dtype, t.dtype) for name, i in given))


@_form("cast")
def _cast(w: Writer, t: Tensor, x: str) -> str:
    return w.node("Cast", x, to=_type(t.dtype))


@_form("square")
def _square(w: Writer, t: Tensor, x: str) -> str:
    (x,) = _in(w, t.dtype, t, x)
    return w.node("Mul", x, x)


@_form("expm1", "log1p", "log2", "log10", "exp2", "trunc")
def _composed(w: Writer, t: Tensor, x: str) -> str:
    (x,) = _in(w, t.dtype, t, x)
    one = w.constant(np.ones((), t.dtype))
    if t.type == "expm1":
        return w.node("Sub", w.node("Exp", x), one)
    if t.type == "log1p":
        return w.node("Log", w.node("Add", x, one))
    if t.type == "exp2":
        return w.node("Pow", w.constant(np.array(2, t.dtype)), x)
    if t.type == "trunc":
        return w.node("Mul", w.node("Sign", x), w.node("Floor", w.node("Abs", x)))
    factor = 1 / np.log(2.0 if t.type == "log2" else 10.0)
    return w.node("Mul", w.node("Log", x), w.constant(np.array(factor, t.dtype)))


@_form("logaddexp")
def _logaddexp(w: Writer, t: Tensor, a: str, b: str) -> str:
    a, b = _in(w, t.dtype, t, a, b)
    top, bottom = w.node("Max", a, b), w.node("Min", a, b)
    rest = w.node("Exp", w.node("Sub", bottom, top))
    return w.node("Add", top, w.node("Log", w.node("Add", rest, w.constant(np.ones((), t.dtype)))))


@_form("floor_divide", "remainder")
def _divided(w: Writer, t: Tensor, a: str, b: str) -> str:
    a, b = _in(w, t.dtype, t, a, b)
    if t.dtype.kind == "f":
        times = w.node("Floor", w.node("Div", a, b))
        return times if t.type == "floor_divide" else w.node("Sub", a, w.node("Mul", times, b))
    left = w.node("Mod", a, b)  # has the sign of b, as NumPy's
    return left if t.type == "remainder" else w.node("Div", w.node("Sub", a, left), b)


def _in(w: Writer, dtype: Any, t: Tensor, *names: str) -> list[str]:
    """Return inputs in a type."""
    return [w.cast(name, i.dtype, dtype) for name, i in zip(names, t.inputs, strict=True)]


# Shapes and places


@_form("reshape")
def _reshape(w: Writer, t: Tensor, x: str) -> str:
    return w.node("Reshape", x, _sizes(w, t.attrs["shape"]), allowzero=1)


@_form("reshape_like")
def _reshape_like(w: Writer, t: Tensor, x: str, like: str) -> str:
    return w.node("Reshape", x, w.node("Shape", like), allowzero=1)


@_form("broadcast_to")
def _broadcast_to(w: Writer, t: Tensor, x: str) -> str:
    return w.node("Expand", x, _sizes(w, t.attrs["shape"]))


@_form("broadcast_like")
def _broadcast_like(w: Writer, t: Tensor, x: str, like: str) -> str:
    return w.node("Expand", x, w.node("Shape", like))


@_form("transpose")
def _transpose(w: Writer, t: Tensor, x: str) -> str:
    axes = t.attrs["axes"]
    return w.node("Transpose", x, perm=[a % t.ndim for a in axes] if axes is not None else None)


@_form("expand_dims", "squeeze")
def _axes_of_one(w: Writer, t: Tensor, x: str) -> str:
    return w.node("Unsqueeze" if t.type == "expand_dims" else "Squeeze", x, _sizes(w, t.attrs["axis"]))


@_form("concatenate")
def _concatenate(w: Writer, t: Tensor, *parts: str) -> str:
    return w.node("Concat", *_in(w, t.dtype, t, *parts), axis=int(t.attrs["axis"]))


@_form("tile")
def _tile(w: Writer, t: Tensor, x: str) -> str:
    source, reps = t.inputs[0], tuple(t.attrs["reps"])
    added = max(len(reps) - source.ndim, 0)
    if added:
        x = w.node("Unsqueeze", x, _sizes(w, range(added)))
    return w.node("Tile", x, _sizes(w, (1,) * (source.ndim - len(reps)) + reps))


@_form("pad")
def _pad(w: Writer, t: Tensor, x: str) -> str:
    values = {float(v) for pair in t.attrs["values"] for v in pair}
    if len(values) > 1:
        raise no_form(t, "ONNX pads with one value")
    ends = [*(before for before, _ in t.attrs["widths"]), *(after for _, after in t.attrs["widths"])]
    filled = w.constant(np.array(values.pop() if values else 0, t.dtype))
    return w.node("Pad", x, _sizes(w, ends), filled)


@_form("getitem")
def _getitem(w: Writer, t: Tensor, x: str) -> str:
    starts, ends, steps, axes, dropped, added = ([] for _ in range(6))  # type: ignore[var-annotated]
    axis = place = 0
    for k in per_axis(t.attrs["key"], t.inputs[0].spec):
        if k is None:
            added.append(place)
            place += 1
            continue
        if not isinstance(k, slice):
            bounds = (int(k), int(k) + 1 if k != -1 else _END, 1)
            dropped.append(axis)
        else:
            step = 1 if k.step is None else int(k.step)
            first, last = (0, _END) if step > 0 else (_END, -_END)
            bounds = (first if k.start is None else k.start, last if k.stop is None else k.stop, step)
            place += 1
        if bounds != (0, _END, 1):
            for numbers, number in zip((starts, ends, steps, axes), (*bounds, axis), strict=True):
                numbers.append(number)
        axis += 1
    if axes:
        x = w.node("Slice", x, *(_sizes(w, numbers) for numbers in (starts, ends, axes, steps)))
    if dropped:
        x = w.node("Squeeze", x, _sizes(w, dropped))
    return w.node("Unsqueeze", x, _sizes(w, added)) if added else w.node("Identity", x)


@_form("index")
def _index(w: Writer, t: Tensor, x: str, *positions: str) -> str:
    parts = per_axis(t.attrs["key"], t.inputs[0].spec)
    full = [k for k in parts if not isinstance(k, str)]
    if len(positions) != 1 or any(k != slice(None) for k in full):
        raise no_form(t, "ONNX takes one array of positions, beside whole axes")
    rows = w.cast(positions[0], t.inputs[1].dtype, np.int64)
    return w.node("Gather", x, rows, axis=parts.index(HERE))


@_form("take")
def _take(w: Writer, t: Tensor, x: str, positions: str) -> str:
    axis = t.attrs["axis"]
    if axis is None:
        x, axis = w.node("Reshape", x, _sizes(w, (-1,))), 0
    return w.node("Gather", x, w.cast(positions, t.inputs[1].dtype, np.int64), axis=int(axis))


@_form("gather_rows")
def _gather_rows(w: Writer, t: Tensor, table: str, rows: str) -> str:
    return w.node("Gather", table, w.cast(rows, t.inputs[1].dtype, np.int64), axis=0)


@_form("take_along_axis")
def _take_along_axis(w: Writer, t: Tensor, x: str, positions: str) -> str:
    source, places, axis = *t.inputs, int(t.attrs["axis"]) % t.ndim
    if any(n != m for a, (n, m) in enumerate(zip(source.shape, places.shape, strict=True)) if a != axis):
        raise no_form(t, "its positions would have to be repeated along other axes")
    return w.node("GatherElements", x, w.cast(positions, places.dtype, np.int64), axis=axis)


@_form("one_hot")
def _one_hot(w: Writer, t: Tensor, labels: str) -> str:
    ids = w.node("Unsqueeze", w.cast(labels, t.inputs[0].dtype, np.int64), _sizes(w, (-1,)))
    classes = w.constant(np.arange(int(t.attrs["depth"])))
    return w.node("Cast", w.node("Equal", ids, classes), to=_type(t.dtype))  # a row without a one for others


@_form("triu", "tril")
def _triangle(w: Writer, t: Tensor, x: str) -> str:
    return w.node("Trilu", x, w.constant(np.array(t.attrs["k"])), upper=int(t.type == "triu"))


def _sizes(w: Writer, numbers: Any) -> str:
    return w.constant(np.array([int(n) for n in numbers], np.int64))


# Reductions, sorting, products

REDUCTIONS = {
    "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd",
    "length": "ReduceL2", "any": "ReduceMax", "all": "ReduceMin",
}  # fmt: skip


@_form(*REDUCTIONS)
def _reduce(w: Writer, t: Tensor, x: str) -> str:
    truth = t.dtype.kind == "b"
    x = w.cast(x, t.inputs[0].dtype, bool if truth else t.dtype)
    x = w.cast(x, np.dtype(bool), np.int32) if truth else x
    axes = normal_axes(t.type, t.attrs["axis"], t.inputs[0].ndim)
    found = x
    if axes:
        found = w.node(REDUCTIONS[t.type], x, _sizes(w, axes), keepdims=int(t.attrs["keepdims"]))
    elif t.type == "length":
        found = w.node("Abs", x)
    return w.node("Cast", found, to=_type(t.dtype)) if truth else found


@_form("argmax", "argmin")
def _position(w: Writer, t: Tensor, x: str) -> str:
    source, axis, keepdims = t.inputs[0], t.attrs["axis"], int(t.attrs["keepdims"])
    x = w.cast(x, source.dtype, np.int32) if source.dtype.kind == "b" else x
    kind = "ArgMax" if t.type == "argmax" else "ArgMin"
    if axis is not None:
        return w.node(kind, x, axis=int(axis), keepdims=keepdims)
    found = w.node(kind, w.node("Reshape", x, _sizes(w, (-1,))), axis=0, keepdims=0)
    return w.node("Reshape", found, _sizes(w, (1,) * source.ndim)) if keepdims else found


@_form("size_ratio")
def _size_ratio(w: Writer, t: Tensor, a: str, b: str) -> str:
    return w.node("Div", *(w.node("Cast", w.node("Size", name), to=_type(t.dtype)) for name in (a, b)))


@_form("cumsum")
def _cumsum(w: Writer, t: Tensor, x: str) -> str:
    (x,) = _in(w, t.dtype, t, x)
    axis = t.attrs["axis"]
    if axis is None:
        x, axis = w.node("Reshape", x, _sizes(w, (-1,))), 0
    return w.node("CumSum", x, w.constant(np.array(int(axis))))


@_form("sort", "argsort")
def _sort(w: Writer, t: Tensor, x: str) -> str:
    axis = t.attrs["axis"]
    if axis is None:
        x, axis = w.node("Reshape", x, _sizes(w, (-1,))), 0
    axis = int(axis) % t.ndim
    count = w.node("Slice", w.node("Shape", x), _sizes(w, [axis]), _sizes(w, [axis + 1]))
    places = w.node("TopK", x, count, outputs=2, axis=axis, largest=0)
    return places if t.type == "argsort" else w.node("GatherElements", x, places, axis=axis)


@_form("einsum")
def _einsum(w: Writer, t: Tensor, *names: str) -> str:
    equation = f"{','.join(t.attrs['inputs'])}->{t.attrs['output']}"
    return w.node("Einsum", *_in(w, t.dtype, t, *names), equation=equation)


@_form("det")
def _det(w: Writer, t: Tensor, x: str) -> str:
    return w.node("Det", x)


# Images: (batch, height, width, channels) here, (batch, channels, height, width) there


@_form("conv2d")
def _conv2d(w: Writer, t: Tensor, x: str, kernel: str, *bias: str) -> str:
    found = w.node(
        "Conv",
        _channels_first(w, x),
        w.node("Transpose", kernel, perm=[3, 2, 0, 1]),
        *bias,
        dilations=list(t.attrs.get("dilation", (1, 1))),
        **_windows(t, t.inputs[1].shape[:2]),
    )
    if t.attrs.get("relu"):
        found = w.node("Relu", found)
    return w.node("Transpose", found, perm=[0, 2, 3, 1])


@_form("max_pool2d", "avg_pool2d")
def _pool2d(w: Writer, t: Tensor, x: str) -> str:
    kind = "MaxPool" if t.type == "max_pool2d" else "AveragePool"
    found = w.node(
        kind, _channels_first(w, x), kernel_shape=list(t.attrs["size"]), **_windows(t, t.attrs["size"])
    )
    return w.node("Transpose", found, perm=[0, 2, 3, 1])


def _channels_first(w: Writer, x: str) -> str:
    return w.node("Transpose", x, perm=[0, 3, 1, 2])


def _windows(t: Tensor, size: Any) -> dict[str, Any]:
    strides, dilation = t.attrs["strides"], t.attrs.get("dilation", (1, 1))
    found: dict[str, Any] = {"strides": list(strides)}
    if t.attrs["padding"] == "same":
        if None in t.inputs[0].shape[1:3]:
            if dilation != (1, 1):
                raise no_form(t, "padding 'same' with a dilation needs images of a known size")
            return {**found, "auto_pad": "SAME_UPPER"}
        height, width = axes_of(t.inputs[0].shape, size, strides, "same", dilation)
        found["pads"] = [height.before, width.before, height.after, width.after]
    return found
