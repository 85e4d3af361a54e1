"""Datasets as data: what is rebuilt from a description yields the same, and nothing but that is rebuilt."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.data import Dataset
from nbdist.data.recipe import describe, rebuild, without_data
from nbdist.data.shares import share_of
from nbdist.data.structure import leaves_of
from nbdist.errors import InvalidArgumentError
from nbdist.graph.serialize.attributes import Beside, from_plain, to_plain

COUNTS = st.integers(1, 30)
TRANSFORMS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 40)),
        st.tuples(st.just("skip"), st.integers(0, 10)),
        st.tuples(st.just("repeat"), st.integers(0, 3)),
        st.tuples(st.just("shuffle"), COUNTS, st.one_of(st.none(), st.integers(0, 5)), st.booleans()),
        st.tuples(st.just("shard"), st.just(2), st.integers(0, 1)),
        st.tuples(st.just("batch"), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("prefetch"), st.integers(0, 2)),
        st.tuples(st.just("with_auto_shard"), st.sampled_from(["file", "data"])),
        st.tuples(st.just("with_seed"), st.integers(0, 9), st.integers(0, 9)),
    ),
    max_size=6,
)
X, Y = np.arange(60.0).reshape(20, 3), np.arange(20)
SOURCES: list[Callable[[], Dataset]] = [
    lambda: Dataset.from_arrays(X, Y),
    lambda: Dataset.from_arrays(X),
    lambda: Dataset.from_arrays((X,)),
    lambda: Dataset.from_arrays({"z": (X, Y), "a": Y}),
    lambda: Dataset.range(3, 40, 2),
]


def chain(dataset: Dataset, transforms: list[tuple[Any, ...]]) -> Dataset:
    """Apply those transforms that can be: not batches of unequal batches, nor shards of nothing."""
    batched = False
    for name, *values in transforms:
        if (name == "batch" and batched) or (name == "shard" and (dataset.cardinality() or 0) < values[0]):
            continue
        batched = batched or name == "batch"
        dataset = getattr(dataset, name)(*values)
    return dataset


def sent(dataset: Dataset) -> Dataset:
    """Return what comes of a dataset that travels as a graph's attributes and constants do."""
    steps, arrays = describe(dataset)
    return rebuild(from_plain(to_plain(steps, []), Beside([])), [array.copy() for array in arrays])


def listed(elements: Any) -> list[list[Any]]:
    return [[(leaf.dtype, leaf.tolist()) for leaf in leaves_of(element)] for element in elements]


@given(source=st.sampled_from(SOURCES), transforms=TRANSFORMS)
def test_what_is_rebuilt_yields_the_same_in_the_same_order(
    source: Callable[[], Dataset], transforms: list[tuple[Any, ...]]
) -> None:
    dataset = chain(source(), transforms)
    other = sent(dataset)
    for _ in range(3):
        assert listed(other) == listed(dataset)
    assert (other.cardinality(), other.element_spec) == (dataset.cardinality(), dataset.element_spec)
    assert (other.shards, other.opened) == (dataset.shards, dataset.opened)


@given(source=st.sampled_from(SOURCES), transforms=TRANSFORMS)
def test_sizes_are_known_without_data(
    source: Callable[[], Dataset], transforms: list[tuple[Any, ...]]
) -> None:
    dataset = chain(source(), transforms)
    if "batch" not in [name for name, *_ in dataset.steps]:
        dataset = dataset.batch(4)
    trailing = [array.shape[1:] for array in dataset.source.arrays]  # type: ignore[union-attr]
    shadow = without_data(dataset)
    for _ in range(2):
        for element, shade in itertools.zip_longest(dataset, shadow):
            shapes = [leaf.shape for leaf in leaves_of(element)]
            assert shapes == [(*shade.shape, *rest) for rest in trailing]
        assert shadow.opened == dataset.opened


@given(st.integers(1, 30), st.integers(0, 3), st.booleans())
def test_a_pass_continues_from_what_was_opened(size: int, passes: int, twice: bool) -> None:
    dataset = Dataset.range(size).shuffle(size).batch(3)
    dataset = dataset.repeat(2).shuffle(4, seed=1) if twice else dataset
    for _ in range(passes):
        list(itertools.islice(dataset, 2))  # a pass that was cut counts as well
    opened = dataset.opened
    assert listed(sent(dataset).iterate(opened=opened)) == listed(dataset)
    assert any(opened) == (passes > 0)


def test_an_endless_dataset_travels() -> None:
    dataset = Dataset.range(7).shuffle(7).repeat().batch(3)
    assert listed(itertools.islice(sent(dataset), 9)) == listed(itertools.islice(dataset, 9))


def test_shuffles_differ() -> None:
    dataset = Dataset.range(30).shuffle(30).shuffle(30)
    assert listed(sent(dataset)) == listed(dataset)
    first, second = (step[-1] for step in describe(dataset)[0] if step[0] == "shuffle")
    assert first != second


def test_arrays_stay_where_they_are() -> None:
    steps, (x, y) = describe(Dataset.from_arrays(X, Y).batch(2))
    assert np.shares_memory(x, X)
    assert np.shares_memory(next(iter(rebuild(steps, [x, y])))[1], Y)
    assert without_data(Dataset.from_arrays(X, Y)).source.arrays[0].strides == (0,)  # type: ignore[union-attr]


def test_another_byte_order_is_turned() -> None:
    _, (array,) = describe(Dataset.from_arrays(np.arange(3, dtype=">i4")))
    assert (array.dtype, array.tolist()) == (np.dtype("=i4"), [0, 1, 2])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            Dataset.range(4).map(np.negative).batch(2),
            r"map\(\) in a dataset holds a function .* feed from the client",
        ),
        (Dataset.from_generator(list).batch(2), r"from_generator\(\) .* feed from the client"),
        (Dataset.from_arrays(np.array(["a"])), r"array 0 of the dataset holds <U1"),
        (Dataset.from_arrays(X, np.arange(20, dtype="m8[s]")), r"array 1 of the dataset holds timedelta64"),
        (Dataset.from_arrays({1: X}), r"the key 1 of a dataset's dict"),
    ],
)
def test_what_cannot_travel_says_what_to_do(dataset: Dataset, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        describe(dataset)


FROM = ("from_arrays", 0)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((), "1 to 256 steps"),
        ("from_arrays", "1 to 256 steps, not by 'from_arrays'"),
        (7, "1 to 256 steps"),
        ((FROM,) * 257, "1 to 256 steps"),
        ((("batch", 2, False),), "first step is from_arrays"),
        ((("from_arrays",),), "first step is from_arrays"),
        ((("from_arrays", 1),), "structure that is none: 1"),
        ((("from_arrays", -1),), "structure that is none: -1"),
        ((("from_arrays", True),), "structure that is none: True"),
        ((("from_arrays", ("tuple", 0, 0)),), r"1 arrays came with a dataset, and it uses \[0, 0\]"),
        ((("from_arrays", ("tuple",)),), r"1 arrays came with a dataset, and it uses \[\]"),
        ((("from_arrays", ("dict", (1, 0))),), "key that is not a text"),
        ((("from_arrays", ("dict", 0)),), "key that is not a text"),
        ((("from_arrays", ("list", 0)),), "structure that is none"),
        ((FROM, ("map", 3)), "cannot send transform 'map'; choose from shuffle, batch"),
        ((FROM, ("__class__",)), "cannot send transform '__class__'"),
        ((FROM, ("_then", 1)), "cannot send transform '_then'"),
        ((FROM, ()), "a step of a dataset is a name"),
        ((FROM, (3, 4)), "a step of a dataset is a name"),
        ((FROM, FROM), "cannot send transform 'from_arrays'"),
        ((FROM, ("batch", 2)), r"batch takes \(number, truth\), not \(2,\)"),
        ((FROM, ("batch", True, False)), "batch takes"),
        ((FROM, ("batch", "2", False)), "batch takes"),
        ((FROM, ("batch", 0, False)), "batch_size is 0"),
        ((FROM, ("take", -1)), "take takes"),
        ((FROM, ("take", 1 << 300)), "take takes"),
        ((FROM, ("repeat", 1.0)), "repeat takes"),
        ((FROM, ("shuffle", 3, 1, True, None)), "shuffle takes"),
        ((FROM, ("shard", 2, 2)), "index 2 of 2"),
        ((FROM, ("with_seed", *range(300))), "with_seed takes"),
    ],
)
def test_nothing_else_is_rebuilt(steps: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rebuild(steps, [Y])


def test_a_structure_that_is_too_deep_is_refused() -> None:
    form: Any = 0
    for _ in range(40):
        form = ("tuple", form)
    with pytest.raises(InvalidArgumentError, match="structure that is none"):
        rebuild([("from_arrays", form)], [Y])
    deep: Any = Y
    for _ in range(40):
        deep = (deep,)
    with pytest.raises(InvalidArgumentError, match="more than 16 deep"):
        describe(Dataset.from_arrays(deep))


def test_a_pass_needs_a_count_for_each_shuffle() -> None:
    dataset = Dataset.range(4).shuffle(4)
    with pytest.raises(InvalidArgumentError, match="0 counts of openings for a dataset with 1 shuffles"):
        dataset.iterate(opened=())


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_are_whole_and_differ_by_at_most_one(size: int, shares: int) -> None:
    parts = [share_of(size, shares, i) for i in range(shares)]
    assert [i for part in parts for i in range(size)[part]] == list(range(size))
    lengths = [part.stop - part.start for part in parts]
    assert lengths == sorted(lengths, reverse=True) or max(lengths) - min(lengths) == 1
    assert lengths[0] == max(lengths)
