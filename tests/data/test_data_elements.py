"""Transforms that make, choose or combine elements; threads that are left by none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from nbdist.data import Dataset
from nbdist.errors import FailedPreconditionError, InvalidArgumentError

Source = Any


def numbers(dataset: Dataset) -> list[int]:
    return [int(element) for element in dataset]


def listed(count: int) -> Dataset:
    return Dataset.from_generator(lambda: iter(range(count)))


def workers() -> list[str]:
    """The threads of transforms; other tests of this process may have left a server's or a writer's."""
    prefixes = ("nbdist-prefetch", "nbdist-data_")
    names = (one.name for one in threading.enumerate())
    return [name for name in names if name == "nbdist-data" or name.startswith(prefixes)]


both = pytest.mark.parametrize("source", [Dataset.range, listed])
threads = pytest.mark.parametrize("calls", [None, 1, 3])


# Map and filter


@both
@threads
def test_map_keeps_the_order_however_many_threads(source: Source, calls: int | None) -> None:
    assert numbers(source(50).map(lambda n: n * n, calls)) == [n * n for n in range(50)]
    assert sorted(numbers(source(50).map(lambda n: n * n, calls, deterministic=False))) == [
        n * n for n in range(50)
    ]


def test_map_in_threads_is_concurrent_and_no_wider_than_asked() -> None:
    together = threading.Barrier(3, timeout=30)
    for _ in listed(6).map(lambda n: together.wait(), 3):
        pass
    assert not together.broken


def test_without_a_fixed_order_what_is_ready_comes_first() -> None:
    late = threading.Event()

    def work(n: int) -> int:
        if n == 0:
            assert late.wait(30)
        return n

    seen = []
    for n in listed(5).map(work, 2, deterministic=False):
        seen.append(n)
        late.set()
    assert sorted(seen) == list(range(5))
    assert seen[0] != 0


@threads
def test_what_a_function_raises_has_a_note_of_the_element(calls: int | None) -> None:
    def fails(n: int) -> int:
        if n == 7:
            raise KeyError("seven")
        return n

    with pytest.raises(KeyError, match="seven") as caught:
        numbers(listed(20).map(fails, calls))
    assert caught.value.__notes__ == ["raised by fails for element 7 of this pass (the first is 0)"]
    until(lambda: not workers())


def test_a_generator_that_fails_in_a_later_epoch_has_a_note() -> None:
    passes = iter([3, 3, 0])

    def make() -> Any:
        count = next(passes)
        yield from range(2)
        if not count:
            raise OSError("the disk is detached")

    dataset = Dataset.from_generator(make)
    assert [numbers(dataset), numbers(dataset)] == [[0, 1], [0, 1]]
    with pytest.raises(OSError, match="detached") as caught:
        numbers(dataset)
    assert "after 2 elements of this pass" in caught.value.__notes__[0]


def test_threads_end_when_an_iterator_is_dropped_or_something_after_them_fails() -> None:
    iterator = iter(listed(1000).map(lambda n: n, 2).prefetch(2).map(lambda n: n, 2))
    next(iterator)
    assert workers()
    del iterator
    until(lambda: not workers())

    def fails(n: int) -> None:
        raise ValueError(n)

    with pytest.raises(ValueError, match="0") as caught:
        numbers(listed(1000).map(lambda n: n, 2).prefetch(2).map(fails))
    until(lambda: not workers())  # though the traceback still has all frames
    assert caught.value.__traceback__ is not None


@both
def test_filter(source: Source) -> None:
    odd = source(10).filter(lambda n: n % 2)
    assert numbers(odd) == [1, 3, 5, 7, 9]
    assert odd.cardinality() is None
    assert [part.tolist() for part in odd.batch(3)] == [[1, 3, 5], [7, 9]]
    shuffled = source(30).shuffle(30, seed=1)
    assert numbers(shuffled.filter(lambda n: n < 9)) == [
        n for n in numbers(source(30).shuffle(30, seed=1)) if n < 9
    ]
    pairs = Dataset.from_arrays(np.arange(4), np.arange(4) % 2)
    assert [int(a) for a, _ in pairs.filter(lambda a, b: b == 0)] == [0, 2]


# Several datasets


def test_zip_and_concatenate() -> None:
    assert list(Dataset.range(3).zip(listed(5))) == [(0, 0), (1, 1), (2, 2)]
    assert list(Dataset.zip((Dataset.range(2), Dataset.range(5, 9)))) == [(0, 5), (1, 6)]
    assert Dataset.zip(Dataset.range(3), Dataset.range(5)).cardinality() == 3
    named = Dataset.zip({"a": Dataset.range(2), "b": listed(2)})
    assert list(named) == [{"a": 0, "b": 0}, {"a": 1, "b": 1}]
    x, y = Dataset.from_arrays(np.eye(4)), Dataset.range(4)
    assert Dataset.zip(x, y).batch(2).element_spec[0].shape == (None, 4)
    assert numbers(Dataset.range(2).concatenate(listed(2), Dataset.range(1))) == [0, 1, 0, 1, 0]
    assert Dataset.range(2).concatenate(Dataset.range(3)).cardinality() == 5
    with pytest.raises(InvalidArgumentError, match="zip takes datasets, got 3"):
        Dataset.range(2).zip(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="different with_seed"):
        Dataset.range(2).with_seed(1).zip(Dataset.range(2))


def test_shuffles_inside_a_zip_have_their_own_orders_and_are_resumed() -> None:
    def make() -> Dataset:
        return Dataset.zip(Dataset.range(9).shuffle(9, seed=1), Dataset.range(9).shuffle(9, seed=2))

    dataset = make()
    epochs = [list(dataset) for _ in range(3)]
    assert epochs[0] != epochs[1]
    assert [a for a, _ in epochs[0]] != [b for _, b in epochs[0]]
    again = make()
    assert list(again) == epochs[0]
    later = make()
    later.reopen(again.opened)
    assert [list(later), list(later)] == epochs[1:]


def test_enumerate() -> None:
    assert list(listed(2).enumerate(5)) == [(5, 0), (6, 1)]
    assert Dataset.range(2).enumerate().element_spec[0].shape == ()


# Interleave

FACT = "454545455664646464656565656566"  # semantics.md, fact 12


@threads
def test_interleave_has_the_order_of_tensorflow(calls: int | None) -> None:
    source = Dataset.from_arrays(np.array([4, 5, 6])).repeat(2)
    found = source.interleave(
        lambda v: Dataset.from_arrays(np.full(v, v)), cycle_length=2, num_parallel_calls=calls
    )
    assert "".join(str(n) for n in found) == FACT


@given(
    sizes=st.lists(st.integers(0, 5), max_size=6),
    cycle=st.integers(1, 4),
    block=st.integers(1, 3),
    calls=st.integers(1, 3),
)
def test_interleave_does_not_depend_on_threads(sizes: list[int], cycle: int, block: int, calls: int) -> None:
    source = Dataset.from_generator(lambda: enumerate(sizes))

    def inner(number: int, size: int) -> Dataset:
        return Dataset.range(number * 10, number * 10 + size)

    alone = numbers(source.interleave(inner, cycle, block))
    assert numbers(source.interleave(inner, cycle, block, calls)) == alone
    assert sorted(alone) == [n * 10 + k for n, size in enumerate(sizes) for k in range(size)]


@threads
def test_shuffles_inside_interleave_change_with_the_epoch_and_are_resumed(calls: int | None) -> None:
    def make() -> Dataset:
        inner = lambda n: Dataset.range(n, n + 8).shuffle(8, seed=3)
        return Dataset.from_arrays(np.array([0, 10])).interleave(inner, 2, num_parallel_calls=calls)

    dataset = make()
    epochs = [numbers(dataset) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    later = make()
    later.reopen((1,))
    assert numbers(later) == epochs[1]
    assert numbers(make().iterate(epoch=2)) == epochs[2]  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="returns a Dataset, and returned 1"):
        numbers(listed(2).interleave(lambda n: 1, num_parallel_calls=calls))  # type: ignore[arg-type,return-value]


# Cache


@pytest.fixture(params=["memory", "file"])
def cache_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "cache" if request.param == "file" else None


def test_a_cache_is_complete_only_after_a_full_pass(cache_path: Path | None) -> None:
    passes = []

    def make() -> Any:
        passes.append(1)
        yield from ({"x": np.arange(n), "name": "abc"[n], "raw": b"\0", "n": n} for n in range(3))

    dataset = Dataset.from_generator(make).cache(cache_path)
    for element in dataset:
        if element["n"] == 1:
            break
    first, second, third = (list(dataset) for _ in range(3))
    assert len(passes) == 2
    assert [one["x"].tolist() for one in first] == [[], [0], [0, 1]]
    for other in (second, third):
        assert [one["x"].tolist() for one in other] == [[], [0], [0, 1]]
        assert [(one["name"], one["raw"], one["n"]) for one in other] == [
            (one["name"], one["raw"], one["n"]) for one in first
        ]
    assert cache_path is None or [path.name for path in cache_path.parent.iterdir()] == ["cache"]


def test_a_cache_has_the_first_epoch_whichever_pass_fills_it(cache_path: Path | None) -> None:
    def make() -> Dataset:
        return Dataset.range(9).shuffle(9, seed=1).cache(cache_path).batch(4).shuffle(3, seed=2)

    expected = [[part.tolist() for part in make().iterate(epoch=n)] for n in range(3)]
    assert sorted(expected[0]) == sorted(expected[2])
    later = make()
    later.reopen((0, 2))
    assert [part.tolist() for part in later] == expected[2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([2**63, -1], "whole numbers -1 and 9223372036854775808, and no dtype of whole numbers has both"),
        (["a", 3], "has 3 among texts"),
    ],
    ids=str,
)
def test_values_that_no_dtype_has_are_refused(values: list[Any], message: str) -> None:
    assert list(Dataset.from_generator(lambda: values)) == values
    with pytest.raises(InvalidArgumentError, match=message):
        list(Dataset.from_generator(lambda: values).batch(2))
    if values[0] != "a":
        with pytest.raises(InvalidArgumentError, match=message):
            Dataset.from_arrays(values)


SCALE = {"mean": 0.5, "by": [2, 3]}


def scaled(n: int) -> float:
    return SCALE["by"][0] * n + SCALE["mean"]


class Plus:
    def __init__(self, number: float) -> None:
        self.number, self.random = number, np.random.default_rng()

    def __call__(self, n: int) -> float:
        return n + self.number


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: Dataset.from_arrays(np.arange(3)), lambda: Dataset.from_arrays(np.arange(1, 4))),
        (lambda: listed(3).map(lambda n: n + 1), lambda: listed(3).map(lambda n: n + 2)),
        (lambda: listed(3).map(scaled), lambda: listed(3).map(scaled, 2).map(scaled).map(scaled)),
        (lambda: listed(3).map(Plus(1)), lambda: listed(3).map(Plus(2))),
        (lambda: listed(3).map(partial(pow, 2)), lambda: listed(3).map(partial(pow, 3))),
        (lambda: listed(3).scan(0, pairs), lambda: listed(3).scan(1, pairs)),
        (lambda: Dataset.from_generator(lambda: [1]), lambda: Dataset.from_generator(lambda: [2])),
    ],
)
def test_a_cache_file_is_of_its_functions_and_arrays(
    tmp_path: Path, one: Callable[[], Dataset], other: Callable[[], Dataset]
) -> None:
    path = tmp_path / "cache"
    first = list(one().cache(path))
    assert list(one().cache(path)) == first
    with pytest.raises(FailedPreconditionError, match=r"cache file .* is of .*pipeline.*Delete it"):
        list(other().cache(path))


def pairs(state: int, n: int) -> tuple[int, int]:
    return state + n, state


def test_a_cache_file_of_a_function_that_uses_other_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache"
    assert list(listed(2).map(scaled).cache(path)) == list(listed(2).map(scaled, 2).cache(path)) == [0.5, 2.5]
    monkeypatch.setitem(SCALE, "mean", 1.5)
    with pytest.raises(FailedPreconditionError, match=r"same steps whose functions \(or what they use\)"):
        list(listed(2).map(scaled).cache(path))


def test_whole_numbers_beyond_int64_stay_whole_numbers() -> None:
    (batch,) = Dataset.from_generator(lambda: [2**64 - 1, 1]).batch(2)
    (rows,) = Dataset.from_arrays([2**64 - 1, 1]).batch(2)
    assert batch.tolist() == rows.tolist() == [2**64 - 1, 1]
    assert batch.dtype == rows.dtype == np.uint64


def test_a_cache_file_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    assert numbers(Dataset.range(3).cache(path)) == [0, 1, 2]
    assert numbers(Dataset.range(3).cache(path)) == [0, 1, 2]
    with pytest.raises(FailedPreconditionError, match="of another pipeline"):
        list(Dataset.range(3).take(2).cache(path))
    with pytest.raises(InvalidArgumentError, match="type object cannot"):
        list(Dataset.from_generator(lambda: [object()]).cache(tmp_path / "other"))


# Batches of unequal elements, and windows


def test_texts_are_padded_with_empty_texts() -> None:
    rows = [{"w": np.array(["a", "bc"]), "b": [b"x"], "n": [1]}, {"w": np.array(["d"]), "b": [], "n": [2, 3]}]
    made = [{**row, "b": np.array(row["b"], object)} for row in rows]
    dataset = Dataset.from_generator(lambda: made)
    (batch,) = dataset.padded_batch(2)
    assert batch["w"].tolist() == [["a", "bc"], ["d", ""]]
    assert batch["b"].tolist() == [[b"x"], [b""]]
    (batch,) = dataset.padded_batch(2, padding_values={"w": "<pad>", "b": b"-", "n": -1})
    assert batch["w"].tolist() == [["a", "bc"], ["d", "<pad>"]]
    assert batch["b"].tolist() == [[b"x"], [b"-"]]
    (bucket,) = dataset.bucket_by_length(lambda row: len(row["w"]), [9], [2, 2])
    assert bucket["w"].tolist() == [["a", "bc"], ["d", ""]]
    for values, message in [
        ({"w": 7, "b": b"", "n": 0}, "array 0 is text, and padding_values has 7"),
        ({"w": "", "b": "", "n": 0}, "array 1 is bytes, and padding_values has ''"),
        ({"w": "", "b": b"", "n": 0.5}, r"array 2 is int64, and padding_values has 0\.5"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            list(dataset.map(lambda row: {**row, "n": np.array(row["n"])}).padded_batch(2, None, values))


def test_padded_batch() -> None:
    def make(n: int) -> dict[str, Any]:
        return {"x": np.full((n, 2), n, np.float32), "n": n}

    lengths = listed(4).map(make)
    first, second = lengths.padded_batch(3, padding_values={"x": -1, "n": 0})
    assert first["x"].shape == (3, 2, 2)
    assert first["x"][1].tolist() == [[1, 1], [-1, -1]]
    assert first["n"].tolist() == [0, 1, 2]
    assert second["x"].dtype == np.float32
    fixed = lengths.padded_batch(3, {"x": [5, None], "n": []}, drop_remainder=True)
    assert [batch["x"].shape for batch in fixed] == [(3, 5, 2)]
    with pytest.raises(
        InvalidArgumentError, match="array 0 has 3 values on axis 0, and padded_shapes allows 2"
    ):
        list(lengths.padded_batch(4, {"x": [2, 2], "n": []}))
    with pytest.raises(InvalidArgumentError, match="has 1 shapes, and an element has 2 arrays"):
        list(lengths.padded_batch(4, [2]))
    with pytest.raises(InvalidArgumentError, match="a list for each array"):
        lengths.padded_batch(4, 3)
    assert Dataset.range(5).padded_batch(2).cardinality() == 3


@given(lengths=st.lists(st.integers(1, 30), max_size=40), drop=st.booleans())
def test_buckets_have_every_element_once_and_only_similar_ones(lengths: list[int], drop: bool) -> None:
    edges, sizes = [5, 15], [4, 3, 2]
    source = Dataset.from_generator(lambda: (np.full(n, n) for n in lengths))
    batches = list(source.bucket_by_length(len, edges, sizes, drop_remainder=drop))
    seen = []
    for batch in batches:
        own = [int(row[0]) for row in batch]
        seen += own
        bucket = {np.searchsorted(edges, n, side="right") for n in own}
        assert len(bucket) == 1
        assert len(own) == sizes[bucket.pop()] or not drop
        assert batch.shape[1] == max(own)
        assert [int((row != 0).sum()) for row in batch] == own
    assert drop or sorted(seen) == sorted(lengths)


def test_buckets_that_cannot_be() -> None:
    with pytest.raises(InvalidArgumentError, match="one batch size more"):
        Dataset.range(3).bucket_by_length(int, [5], [2])
    with pytest.raises(InvalidArgumentError, match="ascending"):
        Dataset.range(3).bucket_by_length(int, [5, 5], [2, 2, 2])


def test_unbatch_undoes_batch() -> None:
    rows = Dataset.from_arrays({"x": np.eye(5), "y": (np.arange(5),)})
    again = rows.batch(2).unbatch()
    assert [one["y"][0] for one in again] == list(range(5))
    assert again.element_spec == rows.element_spec
    with pytest.raises(InvalidArgumentError, match="single value"):
        list(Dataset.range(3).unbatch())


@given(
    count=st.integers(0, 12),
    size=st.integers(1, 4),
    shift=st.integers(1, 6),
    stride=st.integers(1, 3),
    drop=st.booleans(),
)
def test_windows_are_those_of_slices(count: int, size: int, shift: int, stride: int, drop: bool) -> None:
    found = [w.tolist() for w in listed(count).window(size, shift, stride, drop)]
    expected = [
        list(range(start, min(count, start + (size - 1) * stride + 1), stride))
        for start in range(0, count, shift)
        if not drop or start + (size - 1) * stride < count
    ]
    assert found == expected


def test_scan() -> None:
    sums = listed(4).map(lambda n: n + 1).scan(10, lambda total, n: (total + n, (n, total + n)))
    assert list(sums) == list(sums) == [(1, 11), (2, 13), (3, 16), (4, 20)]
    with pytest.raises(InvalidArgumentError, match=r"returns \(state, output\), and returned 1"):
        list(listed(2).scan(0, lambda state, n: 1))  # type: ignore[arg-type,return-value]


def test_samples_of_several_datasets() -> None:
    def make(**options: Any) -> Dataset:
        parts = [Dataset.range(100), Dataset.range(1000, 1300)]
        return Dataset.sample_from(parts, [1, 3], seed=4, **options)

    first, second = numbers(make()), numbers(make().iterate(epoch=1))  # type: ignore[arg-type]
    assert sorted(first) == sorted(second) == [*range(100), *range(1000, 1300)]
    assert first != second
    assert numbers(make()) == first
    assert make().cardinality() == 400
    early = first[:120]
    assert 15 < sum(n < 100 for n in early) < 45, "a quarter comes from the first"
    assert len(numbers(make(stop_on_empty=True))) < 400
    assert numbers(Dataset.sample_from([Dataset.range(3), Dataset.range(9)], [1, 0])) == [0, 1, 2]
    with pytest.raises(InvalidArgumentError, match="expected 2 numbers of 0 or more"):
        Dataset.sample_from([Dataset.range(1), Dataset.range(1)], [1])


def test_elements_of_a_batch_have_one_structure() -> None:
    swapped = Dataset.from_generator(lambda: [{"a": 1, "b": 2}, {"b": 4, "a": 3}])
    for batched in (swapped.batch(2), swapped.padded_batch(2)):
        (batch,) = batched
        assert {name: list(values) for name, values in batch.items()} == {"a": [1, 3], "b": [2, 4]}
    for other in ({"a": 1, "c": 2}, {"a": 1}, (1, 2), 3, {"a": 1, "b": (2, 3)}):
        mixed = Dataset.from_generator(lambda other=other: [{"a": 1, "b": 2}, other])
        with pytest.raises(InvalidArgumentError, match="need one structure"):
            list(mixed.batch(2))
        with pytest.raises(InvalidArgumentError, match="need one structure"):
            list(mixed.padded_batch(2))
