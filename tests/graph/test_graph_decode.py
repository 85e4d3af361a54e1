"""What others send: what is no encoded graph is refused as such, and nothing that it names is looked up."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_travel import ANYTHING, Array, assert_same, small, travelled
from hypothesis import given
from hypothesis import strategies as st
from op_examples import of_every_op
from op_inputs import Example

from nbdist.errors import DataLossError, FailedPreconditionError, NbdistError, NotFoundError
from nbdist.graph.op import OPS, Op, Spec
from nbdist.graph.ops.state import group
from nbdist.graph.serialize.attributes import MAX_TEXT, pack
from nbdist.graph.serialize.decode import MAX_NODES, decode
from nbdist.graph.serialize.encode import encode
from nbdist.graph.tensor import Graph, Placeholder, Tensor, constant, placeholder, record


def test_another_format_says_what_to_do() -> None:
    meta, arrays = encode(small().tensors)
    with pytest.raises(
        FailedPreconditionError, match=r"format 2 of nbdist 9\.9.*reads format 1: install one"
    ):
        decode({**meta, "format": 2, "nbdist": "9.9"}, arrays)


def test_an_op_that_is_not_here_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    meta, arrays = encode(small().tensors)
    monkeypatch.setattr("nbdist.graph.serialize.decode.own_version", lambda: "0.1.7")
    monkeypatch.delitem(OPS, "tanh")
    with pytest.raises(NotFoundError, match=r"no op 'tanh'.* nbdist 9\.9, here is nbdist 0\.1\.7"):
        decode({**meta, "nbdist": "9.9"}, arrays)


@of_every_op(first=1)
def test_no_op_takes_a_name_of_a_function(op: Op, example: Example) -> None:
    """Some ops find NumPy's function by a name of their own; no attribute from afar may put in another."""
    with Graph().as_default() as graph:
        y = record(op.name, *example.inputs, **example.attrs)
    y.attrs["name"] = "load"
    try:
        made = travelled(graph.tensors)[-1]
    except DataLossError:  # its spec does not take it
        return
    with pytest.raises(TypeError, match="name"):
        op.forward(np, *example.inputs, **made.attrs)


Change = Callable[[dict[str, Any]], Any]


def cell(column: str, value: Any, row: int = -1) -> Change:
    return lambda meta: meta["columns"][column].__setitem__(row, value)


def entry(table: str, value: Any, row: int = 0) -> Change:
    return lambda meta: meta[table].__setitem__(row, value)


@pytest.mark.parametrize(
    "change",
    [
        cell("inputs", [99]), cell("inputs", [-1]), cell("inputs", [4]), cell("inputs", [5]),
        cell("inputs", [True]),
        cell("inputs", [0.0]), cell("inputs", None), cell("inputs", "ab"), cell("inputs", []),
        cell("inputs", [0, 1]), cell("inputs", [0, 0, 0]), cell("control", [4]), cell("control", [[0]]),
        cell("inputs", [0], 2), cell("inputs", [1], 0), cell("inputs", [2], 1),
        cell("type", 99), cell("type", -1), cell("type", True), cell("type", "tanh"),
        cell("type", 0), cell("attributes", 99), cell("attributes", 0), cell("spec", 0), cell("spec", None),
        cell("place", 7), cell("line", 2.0), cell("name", ""), cell("name", "x"), cell("name", b"tanh"),
        cell("name", "x" * (MAX_TEXT + 1)), cell("name", None),
        entry("types", 3), entry("types", None), entry("types", "x" * (MAX_TEXT + 1)),
        entry("types", "Constant"), entry("types", "Variable"),
        entry("attributes", None), entry("attributes", {1: 2}), entry("attributes", {"x": ["nothing"]}),
        entry("attributes", {"x": {}}), entry("attributes", {"x": []}),
        entry("attributes", {"x": [["tuple"]]}),
        entry("attributes", {f"a{i}": 0 for i in range(40)}), entry("attributes", {"trainable": 1}),
        entry("specs", None), entry("specs", []), entry("specs", ["<f4", -1]), entry("specs", ["<f4", True]),
        entry("specs", ["<f4", 1 << 63]), entry("specs", ["<f4", "3"]), entry("specs", ["O", 3]),
        entry("specs", ["V2000000000"]), entry("specs", ["<f4", *[1] * 33]), entry("specs", [["<f4"], 3]),
        entry("specs", ["<f4", 3]),
        entry("places", None), entry("places", ["/job:ps"]), entry("places", ["/nothing:1", ""]),
        entry("places", ["", 1]), entry("places", [None, ""]),
        entry("lines", [0, 1]), entry("lines", [0, -1, 0]), entry("lines", [99, 1, 0]),
        entry("lines", [0, 1, 99]),
        entry("lines", "here"), entry("texts", 1),
        lambda meta: meta.pop("columns"), lambda meta: meta.pop("specs"), lambda meta: meta.update(more=1),
        lambda meta: meta.update(columns=[]), lambda meta: meta["columns"].pop("line"),
        lambda meta: meta.update(types={}), lambda meta: meta["columns"].update(more=[]),
        lambda meta: meta["columns"]["name"].pop(), lambda meta: meta.update(format=True),
        lambda meta: meta.update(format=None), lambda meta: meta.pop("nbdist"),
        lambda meta: meta.update(texts=[""] * (MAX_NODES + 1)),
    ],
)  # fmt: skip
def test_what_is_wrong_is_data_loss(change: Change) -> None:
    with Graph().as_default() as graph:
        x = placeholder(np.float32, (2, 3), name="x")
        np.sum(np.tanh(x) * 2, axis=0)
    meta, arrays = encode(graph.tensors)
    broken = copy.deepcopy(meta)
    change(broken)
    with pytest.raises(DataLossError):
        decode(broken, arrays)
    decode(meta, arrays)


@pytest.mark.parametrize("meta", [None, [], "x", 1, {}, {"format": 1}, {"format": 1, "nbdist": 3}])
def test_what_is_no_graph_at_all_is_data_loss(meta: Any) -> None:
    with pytest.raises(DataLossError):
        decode(meta, [])


def test_arrays_have_to_be_those_that_were_sent() -> None:
    with Graph().as_default() as graph:
        constant(np.arange(100.0))
        constant(np.arange(200.0))
    meta, arrays = encode(graph.tensors)
    first, second = arrays
    changed = first.copy()
    changed[5] += 1
    for wrong in (
        [], [first], [second, first], [first, second, first], [changed, second], [first, second[:100]],
        [first.astype(object), second], [first.tolist(), second], [first.view("<M8[s]"), second],
        [first.reshape(10, 10), second], [first.view(np.int64), second],
    ):  # fmt: skip
        with pytest.raises(DataLossError):
            decode(meta, wrong)
    decode(meta, [np.repeat(first, 2)[::2], second])  # memory that is not in one piece is fine


def test_a_declared_spec_must_be_the_real_one() -> None:
    with Graph().as_default() as graph:
        np.sum(placeholder(np.float32, (2, 3), name="x"), axis=0)
    for spec in (["<f4", 2], ["<f8", 3], ["<f4", None], ["<f4"]):
        meta, arrays = encode(graph.tensors)
        meta["specs"][1] = spec
        with pytest.raises(
            DataLossError, match=r"sum 'sum' is declared as .*, but with these inputs it is \(3,\) float32"
        ):
            decode(meta, arrays)
    graph.tensors[1].attrs["axis"] = 7
    with pytest.raises(DataLossError, match=r"sum 'sum' does not take these.* axis 7 is out of range"):
        travelled(graph.tensors)
    graph.tensors[1].attrs = {"keepdims": False}
    with pytest.raises(DataLossError, match=r"sum 'sum' does not take these.*missing.*'axis'"):
        travelled(graph.tensors)


def test_what_has_no_value_is_no_input() -> None:
    with Graph().as_default() as graph:
        record("logical_not", group())
    with pytest.raises(DataLossError, match="an input of 'logical_not' is an op that has no value"):
        travelled(graph.tensors)


def test_a_spec_that_fails_in_any_way_is_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: Spec) -> Spec:
        raise ZeroDivisionError("of its own")

    with Graph().as_default() as graph:
        np.tanh(placeholder(np.float32, (2,)))
    encoded = encode(graph.tensors)
    monkeypatch.setitem(OPS, "tanh", Op("tanh", forward=lambda xp, x: x, spec=fails))
    with pytest.raises(DataLossError, match=r"tanh 'tanh' does not take.*of its own"):
        decode(*encoded)


@pytest.mark.parametrize(
    ("name", "attrs", "words"),
    [
        ("conv2d", {"strides": (-1, -1), "padding": "valid", "relu": False}, r"strides=\(-1, -1\)"),
        ("conv2d", {"strides": (0, 1), "padding": "same", "relu": False}, r"strides=\(0, 1\)"),
        ("conv2d", {"strides": (1, 1), "padding": "other", "relu": False}, "padding=other"),
        ("getitem", {"key": (slice(0, 2, 0),)}, "key="),
        ("index", {"key": (0,)}, "does not name 1 arrays"),
        ("repeat", {"repeats": -1, "axis": 0}, "repeats=-1"),
        ("sum", {"axis": 1.5, "keepdims": False}, "axis=1.5"),
        ("sort", {"axis": 0, "kind": 7}, "kind=7"),
    ],
)
def test_attributes_are_checked_before_an_op_is_made(name: str, attrs: dict[str, Any], words: str) -> None:
    with Graph().as_default() as graph:
        x, kernel = placeholder(np.float32, (2, 5, 5, 1)), placeholder(np.float32, (3, 3, 1, 1))
        rows = placeholder(np.int64, (2,))
        inputs = {"conv2d": (x, kernel), "index": (x, rows)}.get(name, (x,))
        Tensor(OPS[name], inputs, attrs, Spec((2, 5, 5, 1), np.dtype(np.float32)), "bad")
        meta, arrays = encode(graph.tensors)
    with pytest.raises(DataLossError, match=words):
        decode(meta, arrays)


def test_a_complex_tensor_is_refused() -> None:
    with Graph().as_default() as graph:
        Placeholder(None, (), {}, Spec((2,), np.dtype(np.complex64)), "z")
        meta, arrays = encode(graph.tensors)
    with pytest.raises(DataLossError, match="a tensor of complex64"):
        decode(meta, arrays)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a plain value."""
    inside: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [path, *(found for key, one in inside for found in paths(one, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    changed = copy.copy(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], by)
    return changed


META, ARRAYS = encode(small().tensors)
META |= {"nbdist": "0"}
PLACES = paths(META)
RAW = pack({name: part for name, part in META.items() if name not in ("format", "nbdist")})


def survives(meta: Any, arrays: list[Array]) -> None:
    """Decode; whatever is wrong is an error of ours, and what is not wrong can be encoded again."""
    try:
        graph = decode(meta, arrays)
    except NbdistError:
        return
    assert_same(graph.tensors, travelled(graph.tensors))


@pytest.mark.filterwarnings("ignore")  # NumPy warns of some dtypes and sizes
@given(st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING), min_size=1, max_size=3))
def test_any_part_may_be_anything(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    meta: Any = META
    for path, by in changes:
        try:
            meta = replaced(meta, path, by)
        except (LookupError, TypeError):  # an earlier change took that place away
            continue
    survives(meta, ARRAYS)


@pytest.mark.filterwarnings("ignore")
@given(st.data())
def test_any_byte_may_be_any(data: st.DataObject) -> None:
    raw = bytearray(RAW)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(raw)))
    packed = np.frombuffer(bytes(raw[:cut]), np.uint8)
    survives({"format": 1, "nbdist": "0"}, [*ARRAYS, packed])
