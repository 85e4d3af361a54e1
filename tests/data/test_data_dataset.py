from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from nbdist.data import Dataset, ElementSpec
from nbdist.errors import InvalidArgumentError

SIZES = st.integers(0, 40)
COUNTS = st.integers(1, 45)


def numbers(dataset: Dataset) -> list[int]:
    return [int(element) for element in dataset]


def listed(count: int) -> Dataset:
    """The same elements as Dataset.range, but by the way that is not over arrays."""
    return Dataset.from_generator(lambda: iter(range(count)))


both = pytest.mark.parametrize("source", [Dataset.range, listed])


# Facts of semantics.md, section 10


@both
def test_shard_keeps_every_nth(source) -> None:
    assert numbers(source(10).shard(5, 2)) == [2, 7]


@both
@given(size=st.integers(1, 40), shards=st.integers(1, 9))
def test_shards_are_disjoint_and_complete(source, size: int, shards: int) -> None:
    if size < shards:
        with pytest.raises(
            InvalidArgumentError, match=f"{size} elements cannot be split into {shards} shards"
        ):
            numbers(source(size).shard(shards, 0))
        return
    parts = [numbers(source(size).shard(shards, index)) for index in range(shards)]
    assert sorted(itertools.chain(*parts)) == list(range(size))
    assert all(number % shards == index for index, part in enumerate(parts) for number in part)


@both
def test_a_seed_fixes_the_sequence_of_epochs(source) -> None:
    one, other = (source(20).shuffle(20, seed=3) for _ in range(2))
    epochs = [numbers(one) for _ in range(3)]
    assert [numbers(other) for _ in range(3)] == epochs
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert numbers(source(20).shuffle(20, seed=3).repeat(3)) == list(itertools.chain(*epochs))
    assert numbers(source(20).shuffle(20, seed=4)) != epochs[0]


@both
def test_without_reshuffling_all_epochs_are_alike(source) -> None:
    dataset = source(20).shuffle(20, seed=3, reshuffle_each_iteration=False)
    assert numbers(dataset) == numbers(dataset) == numbers(dataset.repeat(2))[20:]


@both
@given(size=st.integers(1, 40), buffer=COUNTS, batch=st.integers(1, 12))
def test_shuffle_before_repeat_never_mixes_epochs(source, size: int, buffer: int, batch: int) -> None:
    flat = np.concatenate(list(source(size).shuffle(buffer, seed=0).repeat(3).batch(batch)))
    for epoch in np.split(flat, 3):
        assert sorted(epoch) == list(range(size))


def test_a_pass_can_be_asked_for_by_number() -> None:
    dataset = Dataset.range(20).shuffle(20, seed=3).batch(6)
    epochs = [np.concatenate(list(dataset)).tolist() for _ in range(3)]
    assert np.concatenate(list(dataset.iterate(epoch=1))).tolist() == epochs[1]
    assert np.concatenate(list(dataset)).tolist() not in epochs, "asking for a pass must not count as one"


def test_workers_can_each_have_their_own_order() -> None:
    def order(*seed: int) -> list[int]:
        return numbers(Dataset.range(30).shuffle(30).with_seed(*seed))

    assert order(7, 0) == order(7, 0) != order(7, 1)
    assert order(7, 0) != order(8, 0)
    assert sorted(order(7, 1)) == list(range(30))
    seeded = Dataset.range(30).shuffle(30, seed=5)
    assert numbers(seeded.with_seed(1)) == numbers(seeded.with_seed(1)) != numbers(seeded.with_seed(2))
    later = Dataset.range(30).with_seed(7, 1).shuffle(30)
    assert numbers(later) == order(7, 1)


def test_without_a_seed_every_dataset_is_different() -> None:
    assert numbers(Dataset.range(50).shuffle(50)) != numbers(Dataset.range(50).shuffle(50))


# The two ways agree, with each other and with plain Python

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), SIZES),
        st.tuples(st.just("skip"), SIZES),
        st.tuples(st.just("repeat"), st.integers(0, 3)),
        st.tuples(st.just("shuffle"), COUNTS, st.integers(0, 5)),
        st.tuples(st.just("shard"), st.just(2), st.integers(0, 1)),
        st.tuples(st.just("prefetch"), st.just(1)),
    ),
    max_size=4,
)


def plain(elements: list[int], step: tuple) -> list[int]:
    name, *values = step
    if name == "take":
        return elements[: values[0]]
    if name == "skip":
        return elements[values[0] :]
    if name == "repeat":
        return elements * values[0]
    if name == "shard":
        return elements[values[1] :: values[0]]
    return elements


@given(size=SIZES, steps=STEPS, batch=st.integers(1, 7), drop=st.booleans())
def test_pipelines_agree_however_they_are_carried_out(
    size: int, steps: list[tuple], batch: int, drop: bool
) -> None:
    expected, fast, slow = list(range(size)), Dataset.range(size), listed(size)
    for step in steps:
        if step[0] == "shard" and len(expected) < 2:
            continue
        expected = plain(expected, step)
        fast, slow = (getattr(one, step[0])(*step[1:]) for one in (fast, slow))
    assert fast.cardinality() == len(expected)
    ours = numbers(fast)
    assert ours == numbers(slow)
    assert [int(one) for one in fast.map(lambda one: one).iterate(epoch=0)] == [
        int(one) for one in slow.iterate(epoch=0)
    ]
    if not any(step[0] == "shuffle" for step in steps):
        assert ours == expected
    batched = fast.batch(batch, drop)
    parts = [part.tolist() for part in batched.iterate(epoch=0)]
    again = [part.tolist() for part in slow.batch(batch, drop).iterate(epoch=0)]
    reused = [part.tolist() for part in batched.iterate(epoch=0, reuse_buffers=True)]
    assert parts == again == reused
    assert len(parts) == batched.cardinality()
    assert all(len(part) == batch for part in parts[: None if drop else -1])


@given(size=st.integers(1, 60), buffer=st.integers(1, 60))
def test_a_small_buffer_moves_elements_forward_by_less_than_its_size(size: int, buffer: int) -> None:
    order = numbers(Dataset.range(size).shuffle(buffer, seed=1))
    assert sorted(order) == list(range(size))
    assert all(element - place < buffer for place, element in enumerate(order))


def test_a_permutation_is_uniform() -> None:
    counts = np.zeros((4, 4))
    dataset = Dataset.range(4).shuffle(4, seed=0)
    for _ in range(2000):
        counts[np.arange(4), numbers(dataset)] += 1
    assert abs(counts - 500).max() < 100


# Batches over arrays


def test_batches_in_order_are_views_that_cannot_be_written() -> None:
    x = np.arange(20.0).reshape(10, 2)
    for (part,) in Dataset.from_arrays((x,)).skip(1).batch(4).take(2):
        assert np.shares_memory(part, x)
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 0
    assert x.flags.writeable, "the caller's own array is left as it is"


def test_shuffled_batches_keep_rows_together() -> None:
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20)
    for batch in Dataset.from_arrays({"x": x, "deep": (y, y)}).shuffle(20).batch(6):
        assert np.array_equal(batch["x"], x[batch["deep"][0]])
        assert np.array_equal(*batch["deep"])
        batch["x"][:] = 0  # this memory is the consumer's


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_reused_buffers_are_few_and_valid_until_the_next(ahead: int) -> None:
    x = np.arange(60)
    dataset = Dataset.from_arrays(x).shuffle(60, seed=0).batch(4).prefetch(ahead)
    plain_batches = [part.tolist() for part in dataset.iterate(epoch=0)]
    places, seen = set(), []
    for part in dataset.iterate(epoch=0, reuse_buffers=True):
        places.add(part.__array_interface__["data"][0])
        seen.append(part.tolist())
    assert seen == plain_batches
    assert len(places) <= ahead + 2


def test_batches_that_are_shuffled_do_not_share_reused_buffers() -> None:
    dataset = Dataset.range(24).shuffle(24, seed=1).batch(4).shuffle(6, seed=2)
    parts = list(dataset.iterate(reuse_buffers=True, epoch=0))
    assert sorted(np.concatenate(parts)) == list(range(24))


def test_a_batch_size_beyond_the_data_takes_no_more_memory_than_the_data() -> None:
    (part,) = Dataset.range(5).shuffle(5).batch(10**12).iterate(reuse_buffers=True)
    assert sorted(part) == [0, 1, 2, 3, 4]
    (part,) = Dataset.range(2).shuffle(2).repeat(2).batch(4).iterate(reuse_buffers=True)
    assert sorted(part) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "then", [lambda d: d, lambda d: d.batch(2), lambda d: d.shuffle(9).batch(9).prefetch(1)]
)
def test_a_generator_is_called_once_for_each_pass_though_its_elements_are_looked_at(
    then: Callable[[Dataset], Dataset],
) -> None:
    calls, taken = [0], [0]

    def make() -> Iterator[int]:
        calls[0] += 1
        for n in range(3):
            taken[0] += 1
            yield n

    dataset = Dataset.from_generator(make)
    assert dataset.element_spec.shape == ()
    looked_at = then(dataset)
    assert looked_at.element_spec is not None
    for number in (1, 2, 3):
        assert sorted(np.ravel(np.concatenate([np.atleast_1d(one) for one in looked_at]))) == [0, 1, 2]
        assert (calls, taken) == ([number], [3 * number])


def test_a_generator_that_fails_while_it_is_looked_at_begins_anew() -> None:
    calls: list[int] = []

    def make() -> Iterator[int]:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("not ready")
        yield from range(2)

    dataset = Dataset.from_generator(make)
    with pytest.raises(OSError, match="not ready"):
        _ = dataset.element_spec
    assert list(dataset) == [0, 1]


def test_batches_of_generated_elements() -> None:
    dataset = Dataset.from_generator(lambda: ((np.full(2, n), n) for n in range(3))).batch(2)
    (x, n), _ = list(dataset)
    assert x.tolist() == [[0, 0], [1, 1]]
    assert n.tolist() == [0, 1]


def test_batches_of_batches() -> None:
    assert [part.shape for part in Dataset.range(12).batch(3).batch(2)] == [(2, 3), (2, 3)]
    with pytest.raises(InvalidArgumentError, match=r"\(1,\), \(3,\)"):
        list(Dataset.range(4).batch(3).batch(2))


# Map and prefetch


def test_map_gets_the_parts_of_tuples_and_dicts_whole() -> None:
    x = np.arange(4)
    assert [int(n) for n in Dataset.from_arrays(x, x).map(lambda a, b: a + b)] == [0, 2, 4, 6]
    assert [int(n) for n in Dataset.from_arrays({"a": x}).map(lambda row: row["a"] + 1)] == [1, 2, 3, 4]
    assert [part.tolist() for part in Dataset.from_arrays(x).batch(3).map(np.negative)] == [[0, -1, -2], [-3]]


def test_errors_upstream_come_out_of_prefetch() -> None:
    def failing():
        yield 1
        raise OSError("the disk is detached")

    seen = []
    with pytest.raises(OSError, match="the disk is detached"):
        seen.extend(Dataset.from_generator(failing).prefetch(2))
    assert seen == [] or seen == [1]


def prefetching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "nbdist-prefetch"}


def test_prefetch_ends_when_the_consumer_leaves() -> None:
    closed, others = threading.Event(), prefetching()

    def endless():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    for element in Dataset.from_generator(endless).prefetch(3):
        if element == 5:
            break
    until(closed.is_set)
    until(lambda: prefetching() <= others)


def test_prefetch_works_ahead_but_not_further_than_asked() -> None:
    made: list[int] = []
    dataset = Dataset.range(100).map(lambda n: made.append(int(n)) or n).prefetch(4)
    iterator = iter(dataset)
    assert next(iterator) == 0
    until(lambda: len(made) >= 6)  # one is out, four wait, one is in the thread's hands
    assert len(made) == 6
    iterator.close()  # type: ignore[attr-defined]


# What is known of a dataset


def test_what_is_known() -> None:
    x, y = np.zeros((10, 3), np.float32), np.zeros(10, np.int64)
    dataset = Dataset.from_arrays(x, y)
    assert dataset.element_spec == (ElementSpec((3,), np.dtype("f4")), ElementSpec((), np.dtype("i8")))
    assert dataset.batch(4).element_spec[0] == ElementSpec((None, 3), np.dtype("f4"))
    assert dataset.batch(4, drop_remainder=True).element_spec[0].shape == (4, 3)
    assert dataset.repeat().batch(4).element_spec[0].shape == (4, 3)
    assert (len(dataset), dataset.batch(4).cardinality(), dataset.batch(4, True).cardinality()) == (10, 3, 2)
    assert dataset.repeat().cardinality() is None
    assert dataset.repeat().endless
    assert dataset.repeat().take(7).cardinality() == 7
    assert listed(3).cardinality() is None
    assert not listed(3).endless
    assert listed(3).repeat().endless
    assert listed(3).map(lambda n: np.ones((n + 1, 2))).element_spec == ElementSpec((1, 2), np.dtype("f8"))
    with pytest.raises(TypeError, match="take"):
        len(dataset.repeat())
    assert "10 elements" in repr(dataset)
    assert "?" in repr(listed(3))


def test_forever_nothing_ends() -> None:
    assert numbers(Dataset.range(0).repeat()) == []
    assert numbers(Dataset.from_generator(list).repeat()) == []
    assert Dataset.range(0).repeat().cardinality() == 0


def test_an_endless_dataset_is_shuffled_and_batched_as_it_comes() -> None:
    dataset = Dataset.range(6).repeat().shuffle(8, seed=0).batch(5)
    assert [len(part) for part in itertools.islice(dataset, 4)] == [5, 5, 5, 5]


def test_a_dataset_can_be_sent_to_another_process() -> None:
    dataset = Dataset.range(10).shuffle(10, seed=1).shard(2, 1).batch(2).prefetch(1)
    sent = pickle.loads(pickle.dumps(dataset))
    assert [part.tolist() for part in sent] == [part.tolist() for part in dataset]


# Bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.batch(0), r"batch_size is 0; expected at least 1"),
        (lambda d: d.batch(-3), r"-3"),
        (lambda d: d.batch(2.5), r"2\.5; expected a whole number"),
        (lambda d: d.shuffle(0), r"buffer_size is 0"),
        (lambda d: d.shuffle(5, seed=-1), r"seed is -1"),
        (lambda d: d.repeat(-1), r"count is -1"),
        (lambda d: d.take(-1), r"-1"),
        (lambda d: d.skip(None), r"None"),
        (lambda d: d.prefetch(-1), r"-1"),
        (lambda d: d.shard(0, 0), r"num_shards is 0"),
        (lambda d: d.shard(3, 3), r"index 3 of 3"),
        (lambda d: d.shard(11, 0), r"10 elements cannot be split into 11 shards"),
        (lambda d: d.with_seed(-1), r"-1"),
        (lambda d: d.iterate(epoch=-1), r"-1"),
        (lambda d: Dataset.from_arrays(), r"at least one array"),
        (lambda d: Dataset.from_arrays(np.zeros(3), np.zeros(4)), r"3, 4 rows"),
        (lambda d: Dataset.from_arrays(np.zeros(3), 7), r"array 1 is the single value 7"),
        (lambda d: Dataset.from_arrays([[1, 2], [3]]), r"array 0 is ragged"),
        (lambda d: Dataset.from_arrays(np.array([{}])), r"Python objects"),
        (lambda d: Dataset.from_generator(iter([1])), r"without calling it"),
        (lambda d: Dataset.from_generator(list).element_spec, r"empty dataset"),
    ],
)
def test_bad_input_is_named(make, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make(Dataset.range(10))


def test_map_takes_a_function() -> None:
    with pytest.raises(InvalidArgumentError, match="map takes a function of an element, got 3"):
        Dataset.range(3).map(3)  # type: ignore[arg-type]
