"""Graphs as data: what is decoded is what was encoded, and computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_expressions import Expression, expressions, leaves_of
from graph_travel import assert_same, facts, small, travelled
from hypothesis import given
from hypothesis import strategies as st
from op_examples import of_every_op
from op_inputs import Example

from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.graph.compile.partition import partition
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.op import OPS, Op
from nbdist.graph.scopes import container, control_dependencies, device, name_scope
from nbdist.graph.serialize.attributes import pack
from nbdist.graph.serialize.encode import PACK_ABOVE, decode, encode
from nbdist.graph.tensor import Constant, Graph, Variable, constant, placeholder, record
from nbdist.wire.rpc.frame import MAX_META


@of_every_op
def test_every_op_travels_and_computes_the_same(op: Op, example: Example) -> None:
    with Graph().as_default() as graph:
        variables = [Variable(a) for a in example.inputs]
        y = record(op.name, *variables, **example.attrs)
    tensors = travelled(graph.tensors)
    assert_same(graph.tensors, tensors)
    (expected,) = compile_program([y], values=dict(zip(variables, example.inputs)))()
    (value,) = compile_program([tensors[-1]], values=dict(zip(tensors, example.inputs)))()
    assert (value.dtype, value.shape, value.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@given(expressions(), st.integers(0, 9))
def test_any_expression_computes_the_same_values_and_gradients(expression: Expression, seed: int) -> None:
    with Graph().as_default() as graph:
        leaves = [Variable(np.zeros(shape)) for shape in expression.shapes]
        total = sum((np.sum(v) for v in expression.run(list(leaves))), start=constant(0.0))
        wanted = [total, *(g for g in gradients(total, leaves) if g is not None)]
    tensors = travelled(graph.tensors)
    assert_same(graph.tensors, tensors)
    arrays = leaves_of(expression, seed)
    by_name = {t.name: t for t in tensors}
    there = [by_name[t.name] for t in wanted]
    expected = compile_program(wanted, values=dict(zip(leaves, arrays)))()
    found = compile_program(there, values=dict(zip(tensors, arrays)))()
    for one, other in zip(expected, found, strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_graph_with_one_of_everything() -> None:
    graph = small()
    tensors = travelled(graph.tensors)
    assert_same(graph.tensors, tensors)
    assert encode(tensors)[0] == encode(graph.tensors)[0]
    by_name = {t.name: t for t in tensors}
    w, b = by_name["layer/w"], by_name["layer/b"]
    assert (w.device, w.container) == ("/job:ps/task:0", "shared")
    assert isinstance(w, Variable)
    assert w.initial_value is None
    assert isinstance(b, Variable)
    assert (w.trainable, b.trainable) == (True, False)
    values = [np.ones((3, 2), np.float32), np.zeros(2, np.float32)]
    original = {t.name: t for t in graph.tensors}
    results = []
    for names in (original, by_name):
        arrays = dict(zip((names["layer/w"], names["layer/b"]), [v.copy() for v in values]))
        feed = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
        program = compile_program(
            [names["layer/w/assign_sub"]], feeds=[names["x"]], shapes=[(100, 3)], values=arrays
        )
        program(feed)
        results.append([a.tobytes() for a in arrays.values()])
    assert results[0] == results[1]
    assert results[0][1] == np.array([1, 2], np.float32).tobytes()


def test_the_pieces_of_a_cut_graph_travel_one_by_one() -> None:
    nodes = {t.name: t for t in small().tensors}
    ps, worker = "/job:ps/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0"
    with nodes["x"].graph.as_default(), control_dependencies([nodes["layer/w/assign_sub"]]), device(worker):
        after = np.sqrt(constant(4.0))
    fetches = [nodes["mean"], nodes["group"], after]
    plan = partition(fetches, feeds=[nodes["x"]], shapes=[(100, 3)], devices=[ps, worker], default=worker)
    types = {t.type for piece in plan.pieces for t in piece.graph.tensors}
    assert {"send", "receive", "signal", "await", "assign_sub"} <= types
    for piece in plan.pieces:
        tensors = travelled(piece.graph.tensors)
        assert [t.name for t in tensors] == [t.name for t in piece.graph.tensors]
        with_values = [i for i, t in enumerate(tensors) if t.op is None or t.op.has_value]
        assert [facts(tensors[i]) for i in with_values] == [
            facts(piece.graph.tensors[i]) for i in with_values
        ]


def test_scopes_around_a_decoding_do_not_reach_into_it() -> None:
    graph = small()
    with Graph().as_default() as other, name_scope("outside"), device("/job:outside"), container("outside"):
        a = constant(1.0)
        with control_dependencies([np.sqrt(a)]):
            before = len(other.tensors)
            tensors = travelled(graph.tensors)
            assert len(other.tensors) == before
    assert_same(graph.tensors, tensors)


def test_a_decoded_graph_can_be_added_to() -> None:
    tensors = travelled(small().tensors)
    graph = tensors[0].graph
    with graph.as_default():
        assert placeholder(np.float32, (), name="x").name == "x_1"
        w = next(t for t in tensors if t.name == "layer/w")
        (gradient,) = gradients(np.sum(w * w), [w])
    assert gradient is not None
    assert gradient.shape == (3, 2)


def test_constants_arrive_as_read_only_views_of_what_came() -> None:
    with Graph().as_default() as graph:
        constant(np.arange(1000.0))
        constant(3.5)
    meta, arrays = encode(graph.tensors)
    assert [a.size for a in arrays] == [1000]  # a single number travels inside the table
    large, number = decode(meta, arrays).tensors
    assert isinstance(large, Constant)
    assert isinstance(number, Constant)
    assert np.shares_memory(large.value, arrays[0])
    for t in (large, number):
        with pytest.raises(ValueError, match="read-only"):
            t.value[...] = 0


def test_sizes_that_are_not_known_and_dtypes_of_another_byte_order() -> None:
    with Graph().as_default() as graph:
        x = placeholder(">f4", (None, 4), name="x")
        np.reshape(x, (-1,)).astype(">i8")
    tensors = travelled(graph.tensors)
    assert [(t.shape, t.dtype.str) for t in tensors] == [
        ((None, 4), "<f4"), ((None,), "<f4"), ((None,), "<i8"),
    ]  # fmt: skip
    assert travelled(tensors)[2].attrs == {"dtype": np.dtype("<i8")}


def test_an_empty_graph_travels() -> None:
    assert travelled([]) == []


def test_what_encode_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with Graph().as_default() as graph:
        x = placeholder(np.float32, (2,), name="x")
        y = np.tanh(x)
    with pytest.raises(InvalidArgumentError, match=r"'tanh' needs 'x'.*before"):
        encode([y, x])
    with pytest.raises(InvalidArgumentError, match="'x' is in the list of tensors twice"):
        encode([x, x])
    y.control_inputs = (y,)
    with pytest.raises(InvalidArgumentError, match="'tanh' needs 'tanh'"):
        encode(graph.tensors)
    y.control_inputs = ()
    y.op = Op("unlisted", forward=lambda xp, x: x, spec=lambda x: x)
    with pytest.raises(
        InvalidArgumentError, match="unlisted 'tanh' cannot be serialized: its op is not in the table"
    ):
        encode(graph.tensors)
    y.op = None
    with pytest.raises(InvalidArgumentError, match="made by no op"):
        encode(graph.tensors)
    y.op = OPS["tanh"]
    y.attrs = {f"a{i}": i for i in range(100)}
    with pytest.raises(InvalidArgumentError, match="100 attributes"):
        encode(graph.tensors)
    y.attrs = {}
    y.device = "\ud800"
    with pytest.raises(InvalidArgumentError, match="not plain text"):
        encode(graph.tensors)
    y.device = ""
    x.dtype = np.dtype(np.longdouble)
    with pytest.raises(InvalidArgumentError, match="cannot be serialized"):
        encode(graph.tensors)
    monkeypatch.setattr("nbdist.graph.serialize.encode.MAX_NODES", 1)
    with pytest.raises(InvalidArgumentError, match="2 tensors"):
        encode(graph.tensors)


# Sizes.


def stacked(layers: int) -> Graph:
    with Graph().as_default() as graph:
        h: Any = placeholder(np.float32, (None, 8), name="x")
        weights = []
        for i in range(layers):
            with name_scope(f"block_{i}"), device(f"/job:ps/task:{i % 4}"):
                weights += [Variable(np.zeros((8, 8), np.float32)), Variable(np.zeros(8, np.float32))]
            with device("/job:worker/task:0/device:CPU:0"):
                h = np.tanh(h @ weights[-2] + weights[-1]) * (i + 0.5)
        for w, g in zip(weights, gradients(np.mean(h), weights)):
            assert g is not None
            w.assign_sub(g * 0.01)
    return graph


def test_two_thousand_nodes_are_a_small_message() -> None:
    graph = stacked(69)
    assert len(graph.tensors) >= 2000
    meta, arrays = encode(graph.tensors)
    assert len(pack(meta)) < 100_000
    assert arrays == []


def test_a_graph_whose_tables_are_too_large_for_a_message_travels_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PACK_ABOVE < MAX_META
    monkeypatch.setattr("nbdist.graph.serialize.encode.PACK_ABOVE", 1 << 15)
    graph = stacked(69)
    meta, arrays = encode(graph.tensors)
    assert set(meta) == {"format", "nbdist"}
    assert len(arrays[-1]) > 1 << 15
    assert_same(graph.tensors, travelled(graph.tensors))
    for damaged in ([], [arrays[-1][:1000]], [arrays[-1].astype(np.float32)], [np.frombuffer(b"\x01", "u1")]):
        with pytest.raises(DataLossError, match=r"tables"):
            decode(meta, damaged)
