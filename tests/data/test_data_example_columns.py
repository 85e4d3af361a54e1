"""Examples that are parsed together are those that are parsed one by one; tables are lists of elements."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbdist.data as data
from nbdist.data import Dataset, example
from nbdist.data.blocks import join
from nbdist.data.table import Table

VALUES = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=3),
    st.lists(st.floats(width=32, allow_nan=False), max_size=3),
    st.lists(st.binary(max_size=200), max_size=2),
    st.text(max_size=4),
)
SAME = st.fixed_dictionaries({"a": st.integers(-3, 200), "b": st.lists(st.floats(width=32), max_size=2)})
EXAMPLES = st.one_of(SAME, st.dictionaries(st.sampled_from(["a", "b", "other"]), VALUES))
DTYPES = st.sampled_from(["i8", "i4", "u1", "?", "f4", "f8", "f2", bytes, str])
FEATURES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.one_of(
        DTYPES.map(data.VarLenFeature),
        st.builds(data.FixedLenSequenceFeature, st.sampled_from([(), (2,)]), DTYPES),
        st.builds(data.FixedLenFeature, st.sampled_from([(), (1,), (2,), (0,)]), DTYPES),
        st.sampled_from(["i8", "f4"]).map(lambda kind: data.FixedLenFeature((), kind, 3)),
        st.just(data.FixedLenFeature((), bytes, b"none")),
    ),
    min_size=1,
)


@st.composite
def records(draw: st.DrawFn) -> list[bytes]:
    """Draw serialized Examples, some of them damaged, in two parts, or followed by something."""
    made = [data.make_example(values) for values in draw(st.lists(EXAMPLES, min_size=1, max_size=12))]
    for place in draw(st.lists(st.integers(0, len(made) - 1), max_size=2)):
        record = made[place]
        at = draw(st.integers(0, len(record)))
        made[place] = draw(
            st.sampled_from(
                [
                    record[:at],
                    record + b"\n",
                    record + record,
                    record[:at] + bytes([draw(st.integers(0, 255))]) + record[at + 1 :],
                ]
            )
        )
    return made


def told(value: object) -> object:
    """Return something that compares values with their types, shapes and dtypes."""
    if isinstance(value, np.ndarray):
        found = [told(one) for one in value.ravel()] if value.dtype == object else value.tobytes()
        return value.dtype.str, value.shape, found
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    return type(value).__name__, value


@given(records(), FEATURES)
def test_examples_parsed_together_are_those_parsed_one_by_one(made: list[bytes], features: dict) -> None:
    def parse(place: int) -> object:
        try:
            return example.parse_example(made[place], features)
        except Exception as error:
            return {"error": (type(error).__name__, str(error))}

    with mock.patch.object(example, "_FEWEST", 1):
        together = list(example._parsed_together(made, features, parse))
    one_by_one = [parse(place) for place in range(len(made))]
    assert [{name: told(value) for name, value in row.items()} for row in together] == [
        {name: told(value) for name, value in row.items()} for row in one_by_one
    ]


def test_what_fits_is_parsed_together_and_the_rest_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"x": data.FixedLenFeature((3,), "f4"), "n": data.FixedLenFeature((), "i8")}
    same = [data.make_example({"x": np.arange(3) + n / 2, "n": n * 7}) for n in range(50)]
    asked: list[int] = []
    table = example._parsed_together(same, features, lambda place: asked.append(place))
    assert isinstance(table, Table)
    assert not asked
    np.testing.assert_array_equal(table.batch()["x"][49], [24.5, 25.5, 26.5])
    other = data.make_example({"z": 0, "x": np.zeros(3), "n": 5})
    rows = example._parsed_together([*same, b"no", other, *same], features, lambda place: asked.append(place))
    assert asked == [50, 51]
    assert [int(row["n"]) for row in rows] == [n * 7 for n in range(50)] * 2


def test_batches_and_elements_of_parsed_records(tmp_path: Path) -> None:
    features = {"word": data.FixedLenFeature((), str), "x": data.FixedLenFeature((2,), "f4")}
    made = [data.make_example({"x": [n, n + 0.5], "word": "w" * (n % 7 + 1)}) for n in range(100)]
    data.write_tfrecords(tmp_path / "a", [*made[:60], b"damaged", *made[60:]])
    parsed = Dataset.tfrecords(tmp_path / "a", features, on_error="skip")
    one_by_one = [data.parse_example(record, features) for record in made]
    elements = list(parsed)
    assert parsed.skipped == 1
    assert [row["word"] for row in elements] == [row["word"] for row in one_by_one]
    elements[0]["x"][:] = 7  # the reader's own
    for number, batch in enumerate(parsed.batch(30)):
        part = one_by_one[30 * number :][:30]
        np.testing.assert_array_equal(batch["x"], [row["x"] for row in part])
        assert batch["word"].dtype == np.asarray([row["word"] for row in part]).dtype
    cached = Dataset.tfrecords(tmp_path / "a", features, on_error="skip").cache()
    for _ in range(2):
        for batch in cached.batch(50):
            assert batch["x"].max() < 101
            batch["x"] += 1000  # changes no later pass
    words = {row["word"] for row in cached.filter(lambda row: row["x"][0] < 3).shuffle(10, seed=1)}
    assert words == {"w", "ww", "www"}
    shuffled = sorted(float(row["x"][0]) for row in parsed.shuffle(20, seed=0).skip(0).take(1000))
    assert shuffled == list(range(100))


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=2)), min_size=1), st.integers(0, 9))
def test_a_table_is_a_list_of_elements(given: list[tuple[int, bytes]], cut: int) -> None:
    texts = np.empty(len(given), object)
    texts[:] = [text for _, text in given]
    table = Table((0, 0), [np.array([number for number, _ in given]), texts])
    assert list(table[cut:]) == given[cut:]
    assert list(join([table[:cut], table[cut:]])) == given
    assert list(join([table, list(given)])) == given + given
    numbers, words = table.batch()
    assert [(int(number), word) for number, word in zip(numbers, words)] == given
