"""Graphs as ONNX models, which other runtimes compute: ONNX Runtime, TensorRT, OpenVINO, Core ML.

    write_onnx(path, {"x": x}, {"y": y}, {w: array})      # placeholders, results, values of the variables

An op runs with its ``forward`` on arrays of ndonnx, which has the functions of the Array API and notes ONNX
operators where NumPy computes. That holds for elementwise ops and those of `PLAIN`; `FORMS` has the others.
Images are (batch, height, width, channels) here and (batch, channels, height, width) there: convolutions and
pooling stand between two transposes, which runtimes fold.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nbdist.draft import draft_of
from nbdist.errors import InvalidArgumentError, MissingExtra, NotFoundError
from nbdist.graph.backend import Array, to_host
from nbdist.graph.compile.specs import value_order
from nbdist.graph.op import normal_axes
from nbdist.graph.ops.indexing import HERE
from nbdist.graph.ops.shape import per_axis
from nbdist.graph.ops.windows import axes_of
from nbdist.graph.tensor import Constant, Placeholder, Tensor, Variable

MOST_BYTES = (1 << 31) - (1 << 20)  # of an ONNX file, which is one protobuf message


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
        import ndonnx
    except ImportError:
        raise MissingExtra("onnx", "ONNX files") from None
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgumentError(f"to_onnx takes the path of a file, not {path!r}")
    target = Path(path).expanduser()
    if not target.parent.is_dir():
        raise NotFoundError(f"there is no folder {str(target.parent)!r} for {target.name!r}; make it first")
    given = {
        name: ndonnx.argument(shape=_sizes(name, t), dtype=_dtype(t.dtype)) for name, t in inputs.items()
    }
    found = {t: given[name] for name, t in inputs.items()}
    for t in value_order(list(outputs.values())):
        if t in found:
            continue
        if isinstance(t, Placeholder):
            raise InvalidArgumentError(
                f"the outputs need the placeholder {t.name!r}, which is not among the inputs: "
                f"{', '.join(inputs)}"
            )
        if isinstance(t, Variable):
            found[t] = ndonnx.asarray(to_host(values[t]).reshape(tuple(n or 0 for n in t.shape)))
        elif isinstance(t, Constant):
            found[t] = ndonnx.asarray(np.asarray(t.value, t.dtype))
        else:
            found[t] = _computed(t, [found[i] for i in t.inputs])
    model = ndonnx.build(given, {name: found[t] for name, t in outputs.items()})
    for node in model.graph.node:
        if node.op_type == "MaxPool":  # spox asks for the positions, too, for which runtimes have slower code
            del node.output[1:]
    if model.ByteSize() > MOST_BYTES:
        raise InvalidArgumentError(
            f"the model has {model.ByteSize() / 2**30:.1f} GiB, and an ONNX file holds 2: export an "
            "Estimator or save the model instead, whose files have no limit"
        )
    with draft_of(target) as draft:
        draft.write_bytes(model.SerializeToString())
    return target


def _sizes(name: str, t: Tensor) -> tuple[int | str, ...]:
    return tuple(
        n if n is not None else "batch" if axis == 0 else f"{name}_{axis}" for axis, n in enumerate(t.shape)
    )


def _dtype(dtype: Any) -> Any:
    import ndonnx

    found = getattr(ndonnx, np.dtype(dtype).name, None)
    if found is None:
        raise InvalidArgumentError(f"an ONNX model computes with real numbers and booleans, not {dtype}")
    return found


def _computed(t: Tensor, arrays: list[Any]) -> Any:
    """Return the value of an op, with the dtype of its tensor."""
    from spox.opset.ai.onnx import v21

    xp = NumPyNames()
    assert t.op is not None
    if not (t.op.elementwise or t.type in FORMS or t.type in PLAIN):
        raise no_form(t)
    if t.op.elementwise and t.type != "where":  # ONNX does not promote types
        kinds = [i.dtype for i in t.inputs] + ([] if t.dtype.kind == "b" else [t.dtype])
        common = np.dtype(bool) if t.type.startswith("logical") else np.result_type(*kinds)
        if common.kind == "b" and t.type.startswith(("greater", "less")):
            common = np.dtype(np.int32)
        arrays = [one.astype(_dtype(common)) for one in arrays]
    try:
        with warnings.catch_warnings(action="ignore"):
            if t.type in FORMS:
                return FORMS[t.type](xp, v21, t, *arrays).astype(_dtype(t.dtype))
            return t.op.forward(xp, *arrays, **t.attrs).astype(_dtype(t.dtype))
    except (AttributeError, NotImplementedError) as error:  # ndonnx lacks a function
        raise no_form(t) from error
    except (TypeError, ValueError) as error:
        raise no_form(t, " ".join(str(error).split())[:200]) from error


def no_form(tensor: Tensor, why: str = "") -> InvalidArgumentError:
    """Return the error about an op that ONNX cannot compute."""
    made = f", made at {tensor.line[0]}:{tensor.line[1]}" if tensor.line is not None else ""
    return InvalidArgumentError(
        f"op {tensor.type!r} ({tensor.name!r}{made}) has no ONNX form{why and f': {why}'}. Compute it from "
        "other ops, or leave it out of what is exported and compute it from the outputs"
    )


NAMES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctanh": "atanh", "concatenate": "concat", "invert": "bitwise_invert",
    "power": "pow", "rint": "round",
}  # fmt: skip

PLAIN = ("broadcast_to", "concatenate", "read", "reshape", "squeeze", "tile")
"""Ops whose forward looks at no size: one that is open is None here."""


class NumPyNames:
    """The functions of ndonnx, by the names that NumPy has for them."""

    def __getattr__(self, name: str) -> Any:
        import ndonnx

        return getattr(ndonnx, NAMES.get(name, name))


def _noted(operator: Callable[..., Any], *arrays: Any, **attributes: Any) -> Any:
    """Return the result of an ONNX operator."""
    import ndonnx

    return ndonnx.asarray(operator(*(one.unwrap_spox() for one in arrays), **attributes))


Form: TypeAlias = Callable[..., Any]
FORMS: dict[str, Form] = {
    "copy": lambda xp, op, t, x: x,
    "cast": lambda xp, op, t, x: x,
    "sigmoid": lambda xp, op, t, x: _noted(op.sigmoid, x),
    "erf": lambda xp, op, t, x: _noted(op.erf, x),
    "softmax": lambda xp, op, t, x: _noted(op.softmax, x, axis=-1),
    "log_softmax": lambda xp, op, t, x: _noted(op.log_softmax, x, axis=-1),
    "exp2": lambda xp, op, t, x: 2**x,
    "relu": lambda xp, op, t, x: _noted(op.relu, x) if t.dtype.kind == "f" else xp.maximum(x, 0),
    "matmul": lambda xp, op, t, *arrays: _noted(op.matmul, *(one.astype(_dtype(t.dtype)) for one in arrays)),
    "size_ratio": lambda xp, op, t, a, b: a.dynamic_size.astype(_dtype(t.dtype)) / b.dynamic_size,
    "det": lambda xp, op, t, x: _noted(op.det, x),
    "triu": lambda xp, op, t, x: xp.triu(x, k=t.attrs["k"]),
    "tril": lambda xp, op, t, x: xp.tril(x, k=t.attrs["k"]),
    "getitem": lambda xp, op, t, x: x[tuple(per_axis(t.attrs["key"], t.inputs[0].spec))],
    "one_hot": lambda xp, op, t, labels: labels[..., None] == xp.arange(t.attrs["depth"]),
    "reshape_like": lambda xp, op, t, x, like: xp.reshape(x, like.dynamic_shape),
    "broadcast_like": lambda xp, op, t, x, like: xp.broadcast_to(x, like.dynamic_shape),
    "gather_rows": lambda xp, op, t, table, rows: _gathered(op, table, rows, 0),
}
"""``form(xp, op, tensor, *arrays)``: ``xp`` has the functions of ndonnx by NumPy's names,
``op`` ONNX's operators (opset 21)."""


def _form(*names: str) -> Callable[[Form], Form]:
    def put(form: Form) -> Form:
        FORMS.update(dict.fromkeys(names, form))
        return form

    return put


def _gathered(op: Any, x: Any, positions: Any, axis: int) -> Any:
    return _noted(op.gather, x, positions.astype(_dtype(np.int64)), axis=axis)


REDUCTIONS = {
    "all": "min", "any": "max", "length": "l2", "max": "max", "mean": "mean", "min": "min", "prod": "prod",
    "sum": "sum",
}  # fmt: skip


@_form(*REDUCTIONS)
def _reduced(xp: Any, op: Any, t: Tensor, x: Any) -> Any:
    if t.dtype.kind == "b":
        x = x.astype(_dtype(bool)).astype(_dtype(np.int32))
    elif t.type not in ("max", "min"):
        x = x.astype(_dtype(t.dtype))
    axes = normal_axes(t.type, t.attrs["axis"], x.ndim)
    if not axes:
        return abs(x) if t.type == "length" else x
    how = {"axes": xp.asarray(np.array(axes, np.int64)).unwrap_spox(), "keepdims": t.attrs["keepdims"]}
    return _noted(getattr(op, f"reduce_{REDUCTIONS[t.type]}"), x, **how)


@_form("transpose")
def _transpose(xp: Any, op: Any, t: Tensor, x: Any) -> Any:
    axes = range(t.ndim)[::-1] if t.attrs["axes"] is None else t.attrs["axes"]
    return xp.permute_dims(x, tuple(axis % t.ndim for axis in axes))


@_form("expand_dims")
def _expand_dims(xp: Any, op: Any, t: Tensor, x: Any) -> Any:
    added = [axis % t.ndim for axis in t.attrs["axis"]]
    return x[tuple(None if axis in added else slice(None) for axis in range(t.ndim))]


@_form("pad")
def _pad(xp: Any, op: Any, t: Tensor, x: Any) -> Any:
    values = {float(v) for pair in t.attrs["values"] for v in pair}
    if len(values) > 1:
        raise ValueError("ONNX pads with one value")
    ends = [*(before for before, _ in t.attrs["widths"]), *(after for _, after in t.attrs["widths"])]
    filled = xp.asarray(np.array(values.pop() if values else 0, t.dtype))
    return _noted(op.pad, x, xp.asarray(np.array(ends, np.int64)), filled)


@_form("index")
def _index(xp: Any, op: Any, t: Tensor, x: Any, *positions: Any) -> Any:
    parts = per_axis(t.attrs["key"], t.inputs[0].spec)
    if len(positions) != 1 or any(k != slice(None) for k in parts if not isinstance(k, str)):
        raise ValueError("ONNX takes one array of positions, beside whole axes")
    return _gathered(op, x, positions[0], parts.index(HERE))


@_form("take_along_axis")
def _take_along_axis(xp: Any, op: Any, t: Tensor, x: Any, positions: Any) -> Any:
    (source, places), axis = t.inputs, t.attrs["axis"] % t.ndim
    if any(n != m for a, (n, m) in enumerate(zip(source.shape, places.shape, strict=True)) if a != axis):
        raise ValueError("its positions would have to be repeated along other axes")
    return xp.take_along_axis(x, positions, axis=axis)


@_form("argmax", "argmin")
def _position(xp: Any, op: Any, t: Tensor, x: Any) -> Any:
    truth = t.inputs[0].dtype.kind == "b"
    return getattr(xp, t.type)(x.astype(_dtype(np.int32)) if truth else x, **t.attrs)


@_form("take", "cumsum", "sort", "argsort")
def _along_axis(xp: Any, op: Any, t: Tensor, x: Any, *positions: Any) -> Any:
    """Those that take an axis, None for all elements in a row."""
    axis = t.attrs["axis"]
    x, axis = (xp.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    if t.type == "take":
        return _gathered(op, x, positions[0], axis)
    if t.type == "cumsum":
        return xp.cumulative_sum(x, axis=axis, dtype=_dtype(t.dtype))
    return getattr(xp, t.type)(x, axis=axis)


@_form("einsum")
def _einsum(xp: Any, op: Any, t: Tensor, *arrays: Any) -> Any:
    import ndonnx

    given = [one.astype(_dtype(t.dtype)).unwrap_spox() for one in arrays]
    return ndonnx.asarray(op.einsum(given, equation=f"{','.join(t.attrs['inputs'])}->{t.attrs['output']}"))


# Images: (batch, height, width, channels) here, (batch, channels, height, width) there


@_form("conv2d")
def _conv2d(xp: Any, op: Any, t: Tensor, x: Any, kernel: Any, *bias: Any) -> Any:
    first, dilations = xp.permute_dims(x, (0, 3, 1, 2)), list(t.attrs.get("dilation", (1, 1)))
    windows = _windows(t, t.inputs[1].shape[:2])
    found = _noted(
        op.conv, first, xp.permute_dims(kernel, (3, 2, 0, 1)), *bias, dilations=dilations, **windows
    )
    return xp.permute_dims(_noted(op.relu, found) if t.attrs.get("relu") else found, (0, 2, 3, 1))


@_form("max_pool2d", "avg_pool2d")
def _pool2d(xp: Any, op: Any, t: Tensor, x: Any) -> Any:
    size, first = t.attrs["size"], xp.permute_dims(x, (0, 3, 1, 2)).unwrap_spox()
    how = {"kernel_shape": list(size), **_windows(t, size)}
    found = op.max_pool(first, **how)[0] if t.type == "max_pool2d" else op.average_pool(first, **how)
    return xp.permute_dims(xp.asarray(found), (0, 2, 3, 1))


def _windows(t: Tensor, size: Any) -> dict[str, Any]:
    strides, dilation = t.attrs["strides"], t.attrs.get("dilation", (1, 1))
    found: dict[str, Any] = {"strides": list(strides)}
    if t.attrs["padding"] == "same":
        if None in t.inputs[0].shape[1:3]:
            if dilation != (1, 1):
                raise ValueError("padding 'same' with a dilation needs images of a known size")
            return {**found, "auto_pad": "SAME_UPPER"}
        height, width = axes_of(t.inputs[0].shape, size, strides, "same", dilation)
        found["pads"] = [height.before, width.before, height.after, width.after]
    return found
