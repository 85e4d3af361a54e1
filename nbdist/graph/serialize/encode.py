"""Serializes graphs: names of ops and attributes, never code.

    meta, arrays = encode(graph.tensors)        # plain values for a message, and the larger constants
    decode(meta, arrays).tensors                # the same tensors, in the same order, in a new graph

A graph is a few tables (types, attributes, shapes with dtypes, devices with containers, lines) and columns
of positions in them, so that properties of many ops are stored once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import OPS
from nbdist.graph.serialize.attributes import MAX_NDIM, checked_text, dtype_text, pack, to_plain
from nbdist.graph.serialize.decode import (
    COLUMNS,
    FORMAT,
    LEAVES,
    MAX_ATTRIBUTES,
    MAX_NODES,
    decode,
)
from nbdist.graph.tensor import Constant, Tensor, Variable
from nbdist.home import own_version

__all__ = ["Encoded", "decode", "encode"]
Encoded: TypeAlias = tuple[dict[str, Any], list[Array]]
"""What ``encode`` returns: plain values, and arrays."""


PACK_ABOVE = 1 << 19  # bytes; a larger table is sent as the last array, because a message's meta is bounded


def encode(tensors: Sequence[Tensor]) -> Encoded:
    """Return tensors as plain values and arrays; ``tensors`` has inputs before their users.

    A variable is encoded without its initial value: the ``assign`` op of its initializer has that. Raises
    InvalidArgumentError for a missing input, an op outside the table, or an attribute that is not plain data.

    >>> from nbdist.graph.tensor import Graph, placeholder
    >>> with Graph().as_default() as graph:
    ...     y = np.tanh(placeholder(np.float32, (None, 3), name="x"))
    >>> decode(*encode(graph.tensors)).tensors
    [<Placeholder 'x' (?, 3) float32>, <Tensor 'tanh' (?, 3) float32>]
    """
    meta, arrays = _tabled(tensors)
    packed = _packed(meta)
    if len(packed) > PACK_ABOVE:
        meta, arrays = {}, [*arrays, np.frombuffer(packed, np.uint8)]
    return {"format": FORMAT, "nbdist": own_version(), **meta}, arrays


class _Table(dict[Any, int]):
    """The position of each key, in order of first use."""

    def __missing__(self, key: Any) -> int:
        self[key] = position = len(self)
        return position


def _tabled(tensors: Sequence[Tensor]) -> Encoded:
    """Return the tables and columns of a graph, and the arrays beside them."""
    if len(tensors) > MAX_NODES:
        raise InvalidArgumentError(f"a graph of {len(tensors)} tensors; the limit is {MAX_NODES}")
    types, specs, places, texts, lines, packed = (_Table() for _ in range(6))
    arrays: list[Array] = []
    attributes: list[dict[str, Any]] = []
    positions: dict[Tensor, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    adders = [columns[name].append for name in COLUMNS]
    for i, t in enumerate(tensors):
        try:
            attrs = _plain_attributes(t, arrays)
            row = packed[pack(attrs)]
        except (InvalidArgumentError, UnicodeEncodeError) as error:
            raise InvalidArgumentError(f"{t.type} {t.name!r} cannot be serialized: {error}") from None
        if row == len(attributes):
            attributes.append(attrs)
        if t.line is not None:
            path, number, function = t.line
            line = lines[(texts[path], number, texts[function])]
        else:
            line = lines[None]
        values = (
            checked_text(t.name),
            types[t.type],
            row,
            specs[(t.dtype, t.shape)],
            places[(t.device, t.container)],
            line,
            _positions(t, t.inputs, positions),
            _positions(t, t.control_inputs, positions),
        )
        for add, value in zip(adders, values, strict=True):
            add(value)
        if t in positions:
            raise InvalidArgumentError(f"{t.name!r} is in the list of tensors twice")
        positions[t] = i
    meta = {
        "types": list(types),
        "attributes": attributes,
        "specs": [_plain_spec(dtype, shape) for dtype, shape in specs],
        "places": [list(place) for place in places],
        "texts": list(texts),
        "lines": [line and list(line) for line in lines],
        "columns": columns,
    }
    return meta, arrays


def _plain_attributes(t: Tensor, arrays: list[Array]) -> dict[str, Any]:
    """Return a tensor's attributes as plain values, sorted by name."""
    if t.op is None:
        if type(t) is not LEAVES.get(t.type):
            raise InvalidArgumentError("it is made by no op and holds no value")
        if isinstance(t, Variable):
            return {"trainable": bool(t.trainable)}
        return {"value": to_plain(t.value, arrays)} if isinstance(t, Constant) else {}
    if OPS.get(t.op.name) is not t.op:
        raise InvalidArgumentError("its op is not in the table; nbdist.graph.op.register it on every task")
    if len(t.attrs) > MAX_ATTRIBUTES:
        raise InvalidArgumentError(f"it has {len(t.attrs)} attributes; the limit is {MAX_ATTRIBUTES}")
    return {name: to_plain(t.attrs[name], arrays) for name in sorted(t.attrs)}


def _plain_spec(dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> list[Any]:
    if len(shape) > MAX_NDIM:
        raise InvalidArgumentError(f"a shape of {len(shape)} dimensions; the limit is {MAX_NDIM}")
    return [dtype_text(dtype), *(None if n is None else int(n) for n in shape)]


def _positions(t: Tensor, inputs: Iterable[Tensor], positions: dict[Tensor, int]) -> list[int]:
    try:
        return [positions[i] for i in inputs]
    except KeyError as error:
        raise InvalidArgumentError(
            f"{t.name!r} needs {error.args[0].name!r}, which is not before it in the list; "
            "list inputs and control inputs before their users"
        ) from None


def _packed(meta: dict[str, Any]) -> bytes:
    try:
        return pack(meta)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"the graph has a name, device or line that is not plain text: {error}"
        ) from None
