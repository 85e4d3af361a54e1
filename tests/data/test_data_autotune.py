"""AUTOTUNE: the tuners, which are pure; neither orders nor later passes depend on what they choose."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbdist as nb
from nbdist.data import AUTOTUNE, Dataset
from nbdist.data.autotune import LARGEST_BUFFER, BufferTuner, CallsTuner
from nbdist.errors import InvalidArgumentError


@given(st.lists(st.integers(0, LARGEST_BUFFER)), st.integers(0, 10**6), st.integers(0, 10**8))
def test_a_buffer_grows_only_from_full_to_empty_and_within_memory(
    ready: list[int], element: int, memory: int
) -> None:
    tuner = BufferTuner()
    tuner.bound(element, memory)
    sizes = [tuner.size, *(tuner.take(min(one, tuner.size)) for one in ready)]
    assert sizes == sorted(sizes)
    assert 1 <= sizes[-1] <= LARGEST_BUFFER
    assert sizes[-1] == 1 or sizes[-1] * element <= memory
    if all(ready):
        assert sizes[-1] == sizes[0]


@given(st.integers(1, 16), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_calls_climb_to_what_makes_elements_faster(cores: int, computing: float, serial: float) -> None:
    """A function that computes a share of its time, and of that a share under a lock, by Amdahl's law."""
    tuner = CallsTuner(cores)

    def rate(calls: int) -> float:
        on_cores = max(calls, calls * computing) / max(1.0, calls * computing / cores)
        return min(on_cores, 1 / (computing * serial) if computing * serial else on_cores)

    seen = []
    for _ in range(12):
        made = rate(tuner.calls)
        seen.append(tuner.calls)
        tuner.measured(int(1000 * made), 1000.0, 1000.0, 1000.0 * made, 1000.0 * made * computing)
    assert seen[-1] == tuner.calls <= 8 * cores
    assert rate(tuner.calls) >= 0.94 * rate(1)
    if computing == 1.0:
        assert tuner.calls <= cores
    if serial == 1.0 and computing == 1.0:
        assert tuner.calls == 1


def test_calls_stay_where_the_consumer_does_not_wait_or_memory_is_short() -> None:
    tuner = CallsTuner(4)
    assert tuner.measured(100, 1.0, 0.01, 0.5, 0.1) == 1
    tuner.bound(element=1000, memory=4000)
    assert [tuner.measured(100, 1.0, 1.0, 1.0, 0.0), tuner.measured(300, 1.0, 1.0, 2.0, 0.0)] == [2, 2]
    assert not tuner.due(1000, 0.01)
    assert not tuner.due(3, 1.0)
    assert tuner.due(8, 1.0)


@pytest.mark.parametrize("auto", ["auto", nb.data.AUTOTUNE])
def test_the_order_is_the_same(auto: str) -> None:
    dataset = Dataset.range(200).shuffle(50, seed=2).map(lambda n: n * n, num_parallel_calls=auto)  # type: ignore[arg-type]
    plain = Dataset.range(200).shuffle(50, seed=2).map(lambda n: n * n)
    tuned = dataset.prefetch(AUTOTUNE)
    for _ in range(2):
        assert [int(n) for n in tuned] == [int(n) for n in plain]
    unordered = Dataset.range(50).map(lambda n: n, AUTOTUNE, deterministic=False)
    assert sorted(int(n) for n in unordered) == list(range(50))


def test_more_threads_come_while_calls_wait_and_they_end_with_the_pass() -> None:
    before = set(threading.enumerate())
    together = threading.Barrier(2, timeout=30)

    def waits(n: int) -> int:
        if n > 100:
            together.wait()  # met by a second thread only
        return n

    tuner = CallsTuner(2)
    tuner.due = lambda made, seconds: made >= 50  # type: ignore[method-assign]
    tuner.measured = lambda *numbers: setattr(tuner, "calls", 2) or 2  # type: ignore[func-returns-value, method-assign]
    from nbdist.data import parallel
    from nbdist.data.blocks import Pass

    run, source = Pass(), Dataset.range(201)._stage
    made = [
        block[0] for block in parallel.mapped(source.blocks, source.rows, waits, tuner, True, "raise", run)
    ]
    assert made == list(range(201))
    for one in set(threading.enumerate()) - before:
        one.join(30)
        assert not one.is_alive()


def test_an_error_has_its_place_and_other_words_are_refused() -> None:
    def fails(n: int) -> int:
        return 1 // (int(n) - 3)

    with pytest.raises(ZeroDivisionError) as caught:
        list(Dataset.range(9).map(fails, AUTOTUNE).prefetch(AUTOTUNE))
    assert "element 3 of this pass" in caught.value.__notes__[0]
    with pytest.raises(
        InvalidArgumentError, match="prefetch: buffer_size is 'much'; expected a whole number"
    ):
        Dataset.range(3).map(int).prefetch("much")  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead", ["prefetch", "auto", "threads", "processes"])
def test_a_pass_that_ends_early_leaves_the_orders_that_it_would_without_working_ahead(ahead: str) -> None:
    def passes(dataset: Dataset) -> list[list[int]]:
        found = []
        for _ in range(3):
            elements = dataset.iterate()
            found.append([int(next(elements)) for _ in range(9)])  # 9 of 10: the second shuffle is made ahead
            elements.close()  # type: ignore[attr-defined]
        return found

    base = Dataset.range(10).shuffle(10, seed=4).repeat(3)
    works = {
        "prefetch": base.map(lambda n: n).prefetch(4),
        "auto": base.map(lambda n: n, AUTOTUNE).prefetch(AUTOTUNE),
        "threads": base.map(lambda n: n, 3),
        "processes": base.map(lambda n: n, workers=2),
    }
    assert passes(works[ahead]) == passes(base.map(lambda n: n))


def test_a_prefetch_over_tuned_calls_ends_when_its_consumer_leaves() -> None:
    before = set(threading.enumerate())
    for _ in range(20):
        elements = Dataset.range(1000).map(lambda n: n, AUTOTUNE).prefetch(AUTOTUNE).iterate()
        next(elements)
        elements.close()  # type: ignore[attr-defined]
    for one in set(threading.enumerate()) - before:
        one.join(30)
        assert not one.is_alive()
