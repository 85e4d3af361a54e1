"""Graphs that travel as data, and how they are compared: what the tests of encoding and decoding share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from nbdist.graph.gradients import gradients
from nbdist.graph.op import OPS
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import container, control_dependencies, device, name_scope
from nbdist.graph.serialize.attributes import DTYPES, pack, to_plain
from nbdist.graph.serialize.decode import COLUMNS
from nbdist.graph.serialize.encode import Encoded, decode, encode
from nbdist.graph.tensor import Constant, Graph, Tensor, Variable, constant, placeholder
from nbdist.wire.rpc import frame as frames

Array = np.ndarray[Any, Any]


def through_the_wire(encoded: Encoded) -> Encoded:
    parts = frames.encode(frames.Frame("graph", *encoded))
    frame = frames.decode([bytes(part) for part in parts])
    return frame.meta, list(frame.arrays)


def travelled(tensors: Sequence[Tensor]) -> list[Tensor]:
    return decode(*through_the_wire(encode(tensors))).tensors


def facts(t: Tensor) -> tuple[Any, ...]:
    arrays: list[Array] = []
    value = t.value.tobytes() if isinstance(t, Constant) else None
    return (
        t.type, t.name, t.shape, t.dtype, t.device, t.container, t.line, value, type(t), t.op,
        [i.name for i in t.inputs], [i.name for i in t.control_inputs],
        {name: pack(to_plain(attribute, arrays)) for name, attribute in t.attrs.items() if t.op},
        [a.tobytes() for a in arrays], t.trainable if isinstance(t, Variable) else None,
    )  # fmt: skip


def assert_same(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    assert [facts(t) for t in first] == [facts(t) for t in second]
    assert len({id(t.graph) for t in second}) == 1


def small() -> Graph:
    """A graph with one of everything."""
    with Graph().as_default() as graph:
        x = placeholder(np.float32, (None, 3), name="x")
        with device("/job:ps/task:0"), container("shared"), name_scope("layer"):
            w = Variable(np.ones((3, 2), np.float32), name="w")
            b = Variable(np.zeros(2, np.float32), trainable=False, name="b")
        with device("/job:worker/task:1/device:CPU:0"):
            y = np.tanh(x @ w + b)
            loss = np.mean(y[:, ::-1] * constant(np.arange(200, dtype=np.float32).reshape(100, 2)))
            (step,) = gradients(loss, [w])
        assert step is not None
        with control_dependencies([b.assign([1.0, 2.0])]):
            update = w.assign_sub(step)
        group(update, w.initializer, b.initializer)
    return graph


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 60) | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
    | st.text(max_size=5) | st.binary(max_size=9)
    | st.sampled_from([*OPS, *COLUMNS, "tuple", "list", "dict", "slice", "dtype", "scalar", "array", "beside",
                       "int", "complex", "...", *DTYPES, "V99", "/job:ps", "Variable", "Constant"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
