"""Pushed values: packed and rebuilt, shared by the tasks of a host, and refused with a reason."""

from __future__ import annotations

import datetime
import gc
import linecache
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbdist.data.dataset import Dataset
from nbdist.errors import InvalidArgumentError, ResourceExhaustedError
from nbdist.run.start import check_given
from nbdist.run.values.delivery import Delivery, Given, Receiver
from nbdist.run.values.push import Packed, build, pack
from nbdist.runtime.task import TaskInfo
from nbdist.wire.hosts import host_identity
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Segment, SharedFile, shared_folder

PREFIX = "nbdist-pushtest"


def rebuilt(packed: Packed) -> dict[Any, Any]:
    """Build values as a task does, from read-only bytes."""
    memory = bytearray(packed.size)
    for at, data in packed.buffers:
        memory[at : at + data.nbytes] = data
    return build(packed.nodes(), memoryview(bytes(memory)))


def pushed(**values: Any) -> dict[Any, Any]:
    return rebuilt(pack(values))


CELL = "<ipython-input-1-push>"


def cell(source: str, monkeypatch: pytest.MonkeyPatch, name: str = CELL) -> dict[str, Any]:
    """Run a cell of a notebook; return its variables."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    exec(compile(source, name, "exec"), vars(main))
    return vars(main)


dtypes = st.one_of(
    hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.complex_number_dtypes(), hnp.boolean_dtypes(),
    hnp.datetime64_dtypes(), hnp.byte_string_dtypes(), hnp.unicode_string_dtypes(),
    hnp.array_dtypes(hnp.integer_dtypes()),
)  # fmt: skip


@given(hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=40)), st.booleans())
def test_arrays_arrive_as_they_were(array: np.ndarray[Any, Any], turned: bool) -> None:
    array = array.T if turned else array
    found = pushed(x=array)["x"]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()
    assert not found.flags.writeable


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.complex_numbers(allow_nan=False)
    | st.binary() | st.dates() | st.timedeltas() | st.fractions() | st.uuids(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple)
    | st.dictionaries(st.text() | st.integers(), inner) | st.frozensets(st.text()),
)  # fmt: skip


@given(plain)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    found = pushed(x=value)["x"]
    assert found == value
    assert type(found) is type(value)


def test_long_texts_and_bytes_are_in_shared_memory() -> None:
    text, data = "añ\n" * 9000, bytes(range(256)) * 99
    packed = pack({"text": text, "data": data})
    assert packed.size > 40_000
    assert rebuilt(packed) == {"text": text, "data": data}


def test_an_array_that_is_pushed_twice_is_sent_once() -> None:
    x = np.arange(9000)
    packed = pack({"x": x, "again": [x, x]})
    assert packed.size == x.nbytes
    assert rebuilt(packed)["again"][1].sum() == x.sum()


def test_large_arrays_are_not_copied() -> None:
    x = np.arange(9000)
    ((_, data),) = pack({"x": x}).buffers
    assert np.shares_memory(np.frombuffer(data, x.dtype), x)


def test_a_strided_view_a_masked_array_and_objects() -> None:
    masked = np.ma.MaskedArray(np.arange(2000.0), np.arange(2000) % 2)
    found = pushed(
        view=np.arange(40_000).reshape(200, 200)[::3, ::7], masked=masked, words=np.array(["a", None], object)
    )
    assert (found["view"] == np.arange(40_000).reshape(200, 200)[::3, ::7]).all()
    assert found["masked"].sum() == masked.sum()
    assert found["words"].tolist() == ["a", None]


def test_frames_arrive_by_their_columns() -> None:
    frame = pd.DataFrame({
        "n": np.arange(3000), "x": np.linspace(0, 1, 3000),
        "when": pd.date_range("2026-01-01", periods=3000, tz="Asia/Tokyo"),
        "word": ["a", "bä", None] * 1000, "kind": pd.Categorical(["u", "v", "w"] * 1000, ordered=True),
        "maybe": pd.array([1, None, 3] * 1000, dtype="Int64"),
        "yes": pd.array([True, None, False] * 1000, dtype="boolean"),
        "day": [datetime.date(2026, 1, 1)] * 3000,
    })  # fmt: skip
    frame.loc[5, "word"] = ""
    keyed, few = frame.set_index(["kind", "n"]), frame.iloc[5:9]
    found = pushed(frame=frame, column=frame["word"], keyed=keyed, few=few)
    pd.testing.assert_frame_equal(found["frame"], frame)
    pd.testing.assert_series_equal(found["column"], frame["word"])
    pd.testing.assert_frame_equal(found["keyed"], keyed)
    pd.testing.assert_frame_equal(found["few"], few)
    packed = pack({"x": frame[["x"]]})
    memory = bytes(packed.size)
    assert np.shares_memory(
        build(packed, memoryview(memory))["x"]["x"].to_numpy(), np.frombuffer(memory, np.uint8)
    )


def test_frames_of_polars_arrive_as_they_were() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"n": [1, 2, None], "word": ["a", "bä", None], "x": [1.5, 2.0, 3.0]})
    found = pushed(frame=frame, column=frame["word"])
    assert found["frame"].equals(frame)
    assert found["column"].equals(frame["word"])
    assert found["column"].name == "word"


def test_frames_with_two_columns_of_one_name() -> None:
    frame = pd.DataFrame([[1, 2.5], [3, 4.5]], columns=["a", "a"])
    pd.testing.assert_frame_equal(pushed(frame=frame)["frame"], frame)


def test_a_column_that_cannot_be_pushed_is_named() -> None:
    frame = pd.DataFrame({"span": pd.arrays.IntervalArray.from_breaks([0, 1, 2])})
    with pytest.raises(InvalidArgumentError, match=r"column 'span' of frame cannot be .* dtype is interval"):
        pack({"frame": frame})


def test_datasets_arrive_with_their_order() -> None:
    data = Dataset.from_arrays(np.arange(3000), np.arange(3000) * 2.0).shuffle(3000, seed=3).batch(100)
    found = pushed(data=data)["data"]
    for mine, theirs in zip(data, found, strict=True):
        assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))


def test_modules_builtins_and_partials_are_sent_by_name() -> None:
    import functools
    import math

    found = pushed(
        m=math, f=np.sum, u=np.exp, t=np.float32, d=np.dtype("f4"), p=functools.partial(max, 3), s=sorted
    )
    assert (found["m"], found["f"], found["u"], found["t"], found["d"]) == (
        math,
        np.sum,
        np.exp,
        np.float32,
        np.dtype("f4"),
    )
    assert found["p"](2) == 3
    assert found["s"] is sorted


CODE = """
import dataclasses, enum
from functools import wraps
import numpy as np
table = np.arange(3000.)
scale = 3

def helper(i, by=2, *, more=0):
    "Scales."
    return table[i] * scale * by + more

def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)

def counted(f):
    @wraps(f)
    def inner(*a):
        inner.calls += 1
        return f(*a)
    inner.calls = 0
    return inner

@counted
def twice(x): return 2 * x

def adder(n):
    return lambda x: x + n

class Base:
    scale = 10
    def __init__(self, n): self.n = n
    @property
    def size(self): return helper(self.n)
    @staticmethod
    def zero(): return 0

class Child(Base):
    def __init__(self, n): super().__init__(n + 1)
    def other(self): return Config(self.n)

@dataclasses.dataclass(frozen=True)
class Config:
    lr: float = 0.5
    names: list = dataclasses.field(default_factory=list)

class Kind(enum.Enum):
    A = 1

config, kind, add = Config(2.0, ["a"]), Kind.A, adder(5)
lock = __import__("threading").Lock()
def locked(): return lock
def fails(): return 1 / 0
"""


def test_functions_carry_the_values_that_they_use(monkeypatch: pytest.MonkeyPatch) -> None:
    here = cell(CODE, monkeypatch)
    found = pushed(**{name: here[name] for name in ("helper", "even", "twice", "add")})
    assert found["helper"](4) == here["helper"](4)
    assert found["helper"](4, 1, more=1) == 13
    assert found["helper"].__doc__ == "Scales."
    assert found["even"](10)
    assert not found["even"](7)
    assert found["twice"](4) == 8
    assert found["twice"].calls == 1
    assert here["twice"].calls == 0
    assert found["add"](1) == 6
    assert "table" in found["helper"].__globals__
    assert "config" not in found["helper"].__globals__


def test_classes_are_sent_as_source(monkeypatch: pytest.MonkeyPatch) -> None:
    here = cell(CODE, monkeypatch)
    found = pushed(Child=here["Child"], config=here["config"], kind=here["kind"], Kind=here["Kind"])
    child = found["Child"](1)
    assert child is not None
    assert child.size == here["Child"](1).size
    assert child.other().lr == 2
    assert child.zero() == 0
    assert (found["config"].lr, found["config"].names) == (2.0, ["a"])
    assert type(found["config"]) is type(child.other())
    assert found["kind"] is found["Kind"].A


def test_the_error_for_an_unpushable_value_has_its_type_and_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    here = cell(CODE, monkeypatch)
    circle: list[Any] = []
    circle.append(circle)
    for value, message in [
        (threading.Lock(), r"x cannot be pushed: it is of type _thread.lock; make it on the workers"),
        (
            [1, {"a": iter([])}],
            r"x\[1\]\['a'\] cannot be pushed: it is of type list_iterator; push the values",
        ),
        ((n for n in [1]), r"x cannot be pushed: it is of type generator; make a list or an array of it"),
        (np.random.default_rng(1), r"numpy.random.*Generator; push a seed"),
        (here["locked"], r"x \(locked\), which uses lock cannot be pushed: it is of type _thread.lock"),
        (circle, r"contains itself"),
        (Dataset.from_arrays(np.arange(3)).map(abs), r"x cannot be pushed: map\(\) in a dataset"),
        (type("Made", (), {}), r"class Made has no source"),
        (types.ModuleType("mine"), r"module 'mine' cannot be imported"),
        (np.zeros(2, [("a", object)]), r"holds Python objects; push its fields"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            pack({"x": value})


def test_too_many_values_in_lists_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbdist.run.values.push.MOST_ITEMS", 100)
    with pytest.raises(ResourceExhaustedError, match="x makes more than 100 values in lists and"):
        pack({"x": list(range(101))})


def test_a_pushed_function_shows_its_lines_in_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack({"fails": cell(CODE, monkeypatch)["fails"]})
    monkeypatch.delitem(linecache.cache, CELL)
    with pytest.raises(ZeroDivisionError) as caught:
        rebuilt(packed)["fails"]()
    assert caught.traceback[-1].path is not None
    assert linecache.getline(CELL, caught.traceback[-1].lineno + 1) == "def fails(): return 1 / 0\n"


class Wire:
    """A cluster of one task on another host, without sockets."""

    id = "pushtest"

    def __init__(self, receiver: Receiver) -> None:
        self.handlers = receiver.handlers()
        self.kinds: list[str] = []

    def peer(self, rank: int) -> Any:
        return self

    def call(self, kind: str, meta: dict[str, Any], arrays: Any = (), timeout: float = 0) -> Any:
        self.kinds.append(kind)
        return self.handlers[kind](Frame(kind, meta, tuple(arrays)), None)  # type: ignore[arg-type]  # no sender

    send = call


def info(rank: int, host: str) -> TaskInfo:
    return TaskInfo("worker", rank, rank, host, 7, "", "CPU:0", 0)


def files() -> set[str]:
    return {path.name for path in shared_folder().glob(f"{PREFIX}-*")}


def test_each_host_receives_the_arrays_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbdist.run.values.delivery.PART_BYTES", 10_000)
    x, receiver = np.arange(9000.0), Receiver(PREFIX)
    wire = Wire(receiver)
    packed = Given({"x": x}, (x, "a"), {"scale": 2}, {"n": 3}).pack()
    assert packed is not None
    delivery = Delivery("run", packed, wire, PREFIX)
    here = host_identity()
    pushed = delivery.send([info(0, here), info(1, "remote"), info(2, "remote"), info(3, here)])
    assert len(files()) == 2
    assert wire.kinds == ["push.open", *["push.part"] * 8]
    assert all((shared_folder() / name).stat().st_mode & 0o777 == 0o600 for name in files())
    for host in (here, "remote"):
        given = pushed.open(host)
        assert (given.names["x"] == x).all()
        assert given.args[0] is not given.names["x"]
        assert given.args[1:] == ("a",)
        assert (given.kwargs, given.closure) == ({"scale": 2}, {"n": 3})
        pushed._memory = None
    delivery.send([info(1, "remote")])
    assert len(wire.kinds) == 9
    delivery.close()
    assert not files()
    assert given.names["x"].sum() == x.sum(), "what is mapped stays"
    delivery.close()


def test_messages_of_a_push_are_checked() -> None:
    receiver = Receiver(PREFIX)
    wire = Wire(receiver)
    for size in (0, -1, 1 << 50, 2.5, "8"):
        with pytest.raises((InvalidArgumentError, ResourceExhaustedError)):
            wire.call("push.open", {"push": "p", "size": size})
    with pytest.raises(InvalidArgumentError, match=r"follows push\.open"):
        wire.call("push.part", {"push": "p", "at": 0}, [np.zeros(1, np.uint8)])
    wire.call("push.open", {"push": "p", "size": 8})
    for at in (-1, 1, 1 << 60):
        with pytest.raises(InvalidArgumentError, match="are not in a file of 8 bytes"):
            wire.call("push.part", {"push": "p", "at": at}, [np.zeros(8, np.uint8)])
    receiver.close()
    assert not files()


def test_the_error_for_full_shared_memory_has_the_free_space() -> None:
    with pytest.raises(ResourceExhaustedError, match=r"has no room for .* bytes of shared memory"):
        SharedFile(PREFIX, 1 << 60)
    assert not files()


def test_a_read_only_segment_cannot_be_written(tmp_path: Path) -> None:
    file = SharedFile(PREFIX, 8)
    file.write([(0, memoryview(b"12345678"))])
    segment = Segment.open(file.name, writable=False)
    with pytest.raises(ValueError, match="read-only"):
        segment.bytes[0] = 1
    del segment
    gc.collect()
    file.close()


TOGETHER = """
class Base:
    def child(self): return Child()
    def name(self): return "base"
WORDS = ["a", "bc"]
class Child(Base):
    sizes = [len(part) for part in WORDS]
def from_base(): return Base().child().name()
def from_child(): return Child().child().name()
"""


@pytest.mark.parametrize(
    "names", [["Base"], ["Child"], ["from_base"], ["from_child"], ["from_base", "Child"]]
)
def test_classes_that_use_each_other_are_built_bases_first(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = cell(TOGETHER, monkeypatch)
    for name, found in pushed(**{name: main[name] for name in names}).items():
        result = found().child().name() if isinstance(found, type) else found()
        assert result == "base", name


def test_an_object_of_a_class_of_the_notebook_is_refused() -> None:
    class Trial:
        def __call__(self, lr: float) -> float:
            return lr

    Trial.__module__ = "__main__"
    for body in (Trial(), Trial().__call__):
        with pytest.raises(InvalidArgumentError, match="an object of Trial, a class of the notebook"):
            check_given(body, Given(), True)
    assert check_given(len, Given(), True)[0] is len
