"""Deserializes graphs. Every entry is checked before it is used: the data may be hostile.

Types are looked up in the table of ops and nowhere else; every op's ``spec`` runs again on its inputs and
attributes, and must return the declared shape and dtype. See `encode.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgpack
import numpy as np

from nbdist.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.graph.backend import Array
from nbdist.graph.device import DeviceSpec
from nbdist.graph.op import OPS, Op, Spec, show
from nbdist.graph.replicated import VariableAggregation, VariableSynchronization
from nbdist.graph.scopes import Graph, Line, Scope
from nbdist.graph.serialize.attributes import MAX_NDIM, MAX_TEXT, Beside, from_plain, read_dtype
from nbdist.graph.tensor import Constant, Placeholder, Tensor, Variable
from nbdist.home import own_version

FORMAT = 1  # of the tables below; another number is refused
MAX_NODES = 200_000
MAX_ATTRIBUTES = 32  # of one op
LEAVES: dict[str, type[Tensor]] = {"Variable": Variable, "Placeholder": Placeholder, "Constant": Constant}
TABLES = ("types", "attributes", "specs", "places", "texts", "lines")
COLUMNS = ("name", "type", "attributes", "spec", "place", "line", "inputs", "control")


def decode(meta: dict[str, Any], arrays: Sequence[Array]) -> Graph:
    """Return a new graph; its ``tensors`` are the encoded ones, in the same order.

    The constants' values are read-only views of ``arrays``. Raises FailedPreconditionError for another
    version of the format, NotFoundError for an op that is not in this task's table, and DataLossError for
    any other invalid data.
    """
    theirs = _checked_version(meta)
    if set(meta) == {"format", "nbdist"}:
        meta, arrays = _unpacked(arrays), arrays[:-1]
    elif {*meta} != {"format", "nbdist", "columns", *TABLES}:
        raise DataLossError(
            f"an encoded graph has the parts {', '.join(TABLES)} and columns; some are missing"
        )
    beside = Beside(arrays)
    reader = _Reader(meta, beside, theirs)
    beside.finish()
    return reader.graph()


def _checked_version(meta: Any) -> str:
    """Return the sender's version of nbdist, if its format is ours."""
    if (
        not isinstance(meta, dict)
        or type(meta.get("format")) is not int
        or type(meta.get("nbdist")) is not str
    ):
        raise DataLossError("not an encoded graph: it has no format and no version of nbdist")
    theirs: str = meta["nbdist"][:40]
    if meta["format"] != FORMAT:
        raise FailedPreconditionError(
            f"the graph is in format {meta['format']} of nbdist {theirs}; nbdist {own_version()} here reads "
            f"format {FORMAT}: install one version on the client and on all tasks, and restart the cluster"
        )
    return theirs


def _unpacked(arrays: Sequence[Array]) -> dict[str, Any]:
    """Return the tables of a large graph, which are in the last array."""
    packed = arrays[-1] if arrays else None
    if not isinstance(packed, np.ndarray) or packed.dtype != np.uint8 or packed.ndim != 1:
        raise DataLossError("the tables of an encoded graph are missing")
    try:
        meta = msgpack.unpackb(np.ascontiguousarray(packed).data, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises many types, such as its StackError and ValueError
        raise DataLossError(f"the tables of a graph cannot be read: {type(error).__name__}") from None
    if not isinstance(meta, dict) or {*meta} != {"columns", *TABLES}:
        raise DataLossError("an encoded graph has other tables than expected")
    return meta


class _Reader:
    """The tables of one graph, read and checked; then its nodes, one by one."""

    def __init__(self, meta: dict[str, Any], beside: Beside, theirs: str) -> None:
        self.types = [_type(name, theirs) for name in _listed(meta, "types")]
        self.attributes = [_attributes(row, beside) for row in _listed(meta, "attributes")]
        self.specs = [_spec(row) for row in _listed(meta, "specs")]
        self.places = [_place(row) for row in _listed(meta, "places")]
        texts = [_text(text) for text in _listed(meta, "texts")]
        self.lines = [_line(row, texts) for row in _listed(meta, "lines")]
        columns = meta["columns"]
        if not isinstance(columns, dict) or {*columns} != {*COLUMNS}:
            raise DataLossError(f"a graph's columns are {', '.join(COLUMNS)}; some are missing")
        self.columns = [_listed(columns, name) for name in COLUMNS]
        if len(set(map(len, self.columns))) > 1:
            raise DataLossError("a graph's columns have different lengths")
        names, self.spec_of = self.columns[0], self.columns[3]
        good = all(type(name) is str and 0 < len(name) <= MAX_TEXT for name in names)
        if not good or len(set(names)) != len(names):
            raise DataLossError("a name in a graph is not text, is empty, or occurs twice")
        tables: tuple[list[Any], ...] = (self.types, self.attributes, self.specs, self.places, self.lines)
        for column, table in zip(self.columns[1:], tables):
            if any(type(k) is not int or not 0 <= k < len(table) for k in column):
                raise DataLossError("a node of a graph has an index outside of a table")
        self.inferred: dict[tuple[int, ...], Spec] = {}

    def graph(self) -> Graph:
        """Return the graph of all nodes."""
        graph = Graph()
        with graph.within(Scope()):
            for i, row in enumerate(zip(*self.columns, strict=True)):
                name, type_, attributes, spec, place, line, inputs, control = row
                _check_positions(name, i, inputs)
                _check_positions(name, i, control)
                kind = self.types[type_]
                if isinstance(kind, Op):
                    key = (type_, attributes, *(self.spec_of[k] for k in inputs))
                    checked = self._checked(name, kind, self.specs[spec], key)
                    sources = tuple(graph.tensors[k] for k in inputs)
                    if any(source.op is not None and not source.op.has_value for source in sources):
                        raise DataLossError(f"an input of {name!r} is an op that has no value")
                    made = Tensor(kind, sources, self.attributes[attributes], checked, name)
                elif inputs:
                    raise DataLossError(f"{kind.__name__} {name!r} has inputs")
                else:
                    made = _leaf(kind, self.specs[spec], self.attributes[attributes], name)
                made.control_inputs = tuple(graph.tensors[k] for k in control)
                made.device, made.container = self.places[place]
                made.line = self.lines[line]
        return graph

    def _checked(self, name: str, op: Op, claimed: Spec, key: tuple[int, ...]) -> Spec:
        """Return the spec of an op's value; raises DataLossError if another one is declared."""
        found = self._infer(name, op, key)
        if found != claimed and op.has_value:
            raise DataLossError(
                f"{op.name} {name!r} is declared as {show(claimed.shape)} {claimed.dtype}, "
                f"but with these inputs it is {show(found.shape)} {found.dtype}"
            )
        return found

    def _infer(self, name: str, op: Op, key: tuple[int, ...]) -> Spec:
        """Return the result of an op's ``spec``; ``key`` is its type, attributes and inputs' specs."""
        if key not in self.inferred:
            attrs, inputs = self.attributes[key[1]], [self.specs[k] for k in key[2:]]
            try:
                if not op.external:  # an external op has no forward to check
                    _signature(op).bind(np, *inputs, **attrs)
                    check_attributes(attrs)
                found = op.spec(*inputs, **attrs)
                self.inferred[key] = Spec(tuple(found.shape), found.dtype.newbyteorder("<"))
            except Exception as error:  # a spec may get arguments that no recorder passes
                raise DataLossError(
                    f"{op.name} {name!r} does not take these inputs and attributes: {error}"
                ) from None
        return self.inferred[key]


def _is_whole(value: Any, least: int | None = None) -> bool:
    return isinstance(value, (int, np.integer)) and (least is None or bool(value >= least))


def _are_whole(value: Any, least: int | None = None) -> bool:
    return type(value) is tuple and all(_is_whole(n, least) for n in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.number, np.bool))


def _are_pairs(value: Any, good: Callable[[Any], bool]) -> bool:
    return type(value) is tuple and all(
        type(pair) is tuple and len(pair) == 2 and all(map(good, pair)) for pair in value
    )


def _is_index(k: Any) -> bool:
    if isinstance(k, slice):
        return all(n is None or _is_whole(n) for n in (k.start, k.stop, k.step)) and k.step != 0
    return k is None or k is ... or k == "array" or (_is_whole(k) and not isinstance(k, bool))


ATTRIBUTES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("axis1", "axis2", "offset", "k", "number", "seed"), _is_whole),
    **dict.fromkeys(("depth", "classes", "rows"), lambda v: _is_whole(v, 0)),
    **dict.fromkeys(("keepdims", "relu", "use_locking"), lambda v: isinstance(v, (bool, np.bool))),
    **dict.fromkeys(("axes", "reps", "shift"), _are_whole),
    **dict.fromkeys(("size", "strides", "dilation"), lambda v: _are_whole(v, 1) and len(v) == 2),
    **dict.fromkeys(("start", "stop"), lambda v: _is_whole(v) or _are_whole(v, 0)),
    "axis": lambda v: v is None or _is_whole(v) or _are_whole(v),
    "shape": lambda v: _are_whole(v, -1),
    "whole": lambda v: _are_whole(v, 0),
    "repeats": lambda v: _is_whole(v, 0) or _are_whole(v, 0),
    "padding": lambda v: v in ("valid", "same"),
    "side": lambda v: v in ("left", "right"),
    "kind": lambda v: v in (None, "quicksort", "heapsort", "mergesort", "stable"),
    "dtype": lambda v: v is None or np.dtype(v).kind in "biuf",
    "inputs": lambda v: type(v) is tuple and all(isinstance(labels, str) for labels in v),
    "output": lambda v: isinstance(v, str),
    "draw": lambda v: isinstance(v, str),
    "key": lambda v: type(v) is tuple and all(map(_is_index, v)),
    "widths": lambda v: _are_pairs(v, lambda n: _is_whole(n, 0)),
    "ends": lambda v: _are_pairs(v, lambda n: _is_whole(n, 0)),
    "values": lambda v: _are_pairs(v, _is_number),
    "scale": _is_number,
    "rate": lambda v: _is_number(v) and 0 <= v < 1,
}
"""By the name of an attribute, which has one meaning in all ops: a check of its value."""


def check_attributes(attrs: dict[str, Any]) -> None:
    """Raise InvalidArgumentError for the first attribute with an invalid value."""
    for name, value in attrs.items():
        if name in ATTRIBUTES and not ATTRIBUTES[name](value):
            raise InvalidArgumentError(f"{name}={str(value)[:80]} is not a valid value")


@cache
def _signature(op: Op) -> inspect.Signature:
    return inspect.signature(op.forward)


def _leaf(kind: type[Tensor], spec: Spec, attrs: dict[str, Any], name: str) -> Tensor:
    """Return a tensor without an op. A variable has no initial value: an op assigns it."""
    made = kind.__new__(kind)
    Tensor.__init__(made, None, (), {}, spec, name)
    if isinstance(made, Constant):
        made.value = attrs.get("value")  # type: ignore[assignment]  # checked below
        expected = {"value"}
        good = isinstance(made.value, np.ndarray) and Spec(made.value.shape, made.value.dtype) == spec
    elif isinstance(made, Variable):
        made.trainable, made.initial_value, made._initializer = attrs.get("trainable") is True, None, None
        made.aggregation, made.synchronization = VariableAggregation.NONE, VariableSynchronization.AUTO
        expected = {"trainable"}
        good = type(attrs.get("trainable")) is bool and None not in spec.shape
    else:
        expected, good = set(), True
    if not good or {*attrs} != expected:
        raise DataLossError(f"{kind.__name__} {name!r} has invalid attributes")
    return made


def _check_positions(name: str, i: int, positions: Any) -> None:
    if type(positions) is not list or any(type(k) is not int or not 0 <= k < i for k in positions):
        raise DataLossError(f"an input of {name!r} is not an earlier node")


def _listed(parts: dict[str, Any], name: str) -> list[Any]:
    found = parts[name]
    if type(found) is not list or len(found) > MAX_NODES:
        raise DataLossError(f"a graph's part {name!r} is not a list of at most {MAX_NODES}")
    return found


def _type(name: Any, theirs: str) -> Op | type[Tensor]:
    text = _text(name)
    found = LEAVES.get(text) or OPS.get(text)
    if found is None:
        raise NotFoundError(
            f"this task has no op {text[:80]!r}: the graph comes from nbdist {theirs}, here is nbdist "
            f"{own_version()}; install one version everywhere, or register your own op on every task"
        )
    return found


def _text(text: Any) -> str:
    if type(text) is not str or len(text) > MAX_TEXT:
        raise DataLossError(f"a graph has a {type(text).__name__} instead of text, or too long a text")
    return text


def _attributes(row: Any, beside: Beside) -> dict[str, Any]:
    if type(row) is not dict or len(row) > MAX_ATTRIBUTES:
        raise DataLossError(f"attributes are a table of at most {MAX_ATTRIBUTES}")
    return {_text(name): from_plain(value, beside) for name, value in row.items()}


def _spec(row: Any) -> Spec:
    if type(row) is not list or not 1 <= len(row) <= MAX_NDIM + 1:
        raise DataLossError(f"a dtype and a shape are a list of at most {MAX_NDIM + 1}")
    dtype, *shape = row
    if any(n is not None and (type(n) is not int or not 0 <= n < 1 << 63) for n in shape):
        raise DataLossError("a size in a shape is not a whole number of 0 or more")
    found = read_dtype(dtype)
    if found.kind not in "biuf":
        raise DataLossError(f"a tensor of {found}: tensors hold real numbers and booleans")
    return Spec(tuple(shape), found)


def _place(row: Any) -> tuple[str, str]:
    if type(row) is not list or len(row) != 2:
        raise DataLossError("a place is a device and a container")
    device, container = _text(row[0]), _text(row[1])
    try:
        DeviceSpec.from_string(device)
    except InvalidArgumentError as error:
        raise DataLossError(f"a graph has an invalid device: {error}") from None
    return device, container


def _line(row: Any, texts: list[str]) -> Line | None:
    if row is None:
        return None
    if type(row) is not list or len(row) != 3 or any(type(n) is not int or n < 0 for n in row):
        raise DataLossError("a line is a file, a number and a function")
    path, number, function = row
    if max(path, function) >= len(texts):
        raise DataLossError("a line's file or function is not in the table of texts")
    return texts[path], number, texts[function]
