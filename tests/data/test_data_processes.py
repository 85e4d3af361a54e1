"""Maps in processes: order, errors, deaths; none is left."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from waiting import until

from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError, UnavailableError

pytestmark = pytest.mark.processes


def numbers(dataset: Dataset) -> list[int]:
    return [int(element) for element in dataset]


BEFORE: set[int] = set()
"""Children that other tests have, such as the supervisor of a shared cluster."""


@pytest.fixture(autouse=True)
def other_children() -> None:
    BEFORE.clear()
    BEFORE.update(children())


def children() -> list[int]:
    return [one.pid for one in psutil.Process().children() if lives(one.pid) and one.pid not in BEFORE]


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return False


def test_elements_of_all_kinds_and_sizes_keep_their_order() -> None:
    def work(n: int) -> dict[str, Any]:
        assert os.getpid() != parent
        return {
            "n": n,
            "x": np.full((n % 7 * 1000, 2), n, "f4"),
            "texts": (f"é{n}", bytes(n), None),
            "flag": np.bool_(n % 2),
            "objects": np.array([b"a\0", "b"], object),
        }

    parent = os.getpid()
    found = list(Dataset.range(40).map(work, workers=3))
    assert [one["n"] for one in found] == list(range(40))
    for n, one in enumerate(found):
        assert (one["x"] == n).all()
        assert one["x"].shape == (n % 7 * 1000, 2)
        assert one["x"].dtype == np.float32
        assert one["texts"] == (f"é{n}", bytes(n), None)
        assert one["objects"].tolist() == [b"a\0", "b"]
        assert type(one["flag"]) is np.bool_
    assert not children()
    unordered = Dataset.range(40).map(lambda n: n * n, workers=2, deterministic=False)
    assert sorted(numbers(unordered)) == [n * n for n in range(40)]


def test_a_large_batch_travels_both_ways() -> None:
    rows = np.arange(300_000, dtype=np.int64)
    dataset = Dataset.from_arrays(rows).batch(100_000).map(lambda part: (part + 1, part[:1]), workers=2)
    assert np.array_equal(np.concatenate([part for part, _ in dataset]), rows + 1)
    assert numbers(Dataset.range(5).map(lambda n: n, workers=4).repeat(2)) == [*range(5), *range(5)]


def test_errors_of_the_function_are_raised_here() -> None:
    def fails(n: int) -> int:
        if n == 5:
            raise KeyError("five")
        return n

    with pytest.raises(KeyError, match="five") as caught:
        numbers(Dataset.range(20).map(fails, workers=2))
    assert "in fails" in caught.value.__notes__[0]
    assert caught.value.__notes__[1] == "raised by fails for element 5 of this pass (the first is 0)"

    class OwnError(Exception): ...

    def fails_on_its_own(n: int) -> int:
        raise OwnError("mine")

    with pytest.raises(RuntimeError, match="OwnError: mine"):
        numbers(Dataset.range(2).map(fails_on_its_own, workers=1))
    with pytest.raises(InvalidArgumentError, match="of type object cannot leave its process"):
        list(Dataset.range(2).map(lambda n: object(), workers=1))
    assert not children()


def test_a_process_that_dies_is_named() -> None:
    def dies(n: int) -> int:
        if n == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    with pytest.raises(UnavailableError, match=r"map\(dies, workers=...\) has ended while it had element 3"):
        numbers(Dataset.range(20).map(dies, workers=2))
    assert not children()


def test_processes_end_when_the_iterator_is_dropped_or_something_after_them_fails() -> None:
    iterator = iter(Dataset.range(1000).map(lambda n: n, workers=2).prefetch(1))
    next(iterator)
    assert len(children()) == 2
    del iterator
    until(lambda: not children())

    def fails(n: int) -> None:
        raise ValueError(n)

    with pytest.raises(ValueError, match="0") as caught:
        numbers(Dataset.range(1000).map(lambda n: n, workers=2).map(fails))
    assert caught.value.__traceback__ is not None
    assert not children()


def test_processes_end_with_their_parent() -> None:
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        iterator = iter(Dataset.range(1000).map(lambda n: os.getpid(), workers=1))
        os.write(write, str(next(iterator)).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    grandchild = int(os.read(read, 100))
    os.close(read)
    os.close(write)
    until(lambda: not lives(grandchild))


def draws(function: Callable[..., Any], passes: int = 1, workers: int = 2) -> list[list[float]]:
    dataset = Dataset.range(20).map(function, workers=workers)
    return [[float(value) for value in dataset] for _ in range(passes)]


def all_differ(found: list[list[float]]) -> bool:
    flat = list(itertools.chain(*found))
    return len(set(flat)) == len(flat)


def test_processes_and_passes_draw_other_random_numbers() -> None:
    own, old, python = np.random.default_rng(3), np.random.RandomState(3), random.Random(3)
    assert all_differ(draws(lambda n: np.random.random(), passes=2))
    assert all_differ(draws(lambda n: random.random(), passes=2))
    assert all_differ(draws(lambda n: own.random(), passes=2))
    assert all_differ(draws(lambda n: old.random_sample(), passes=2))
    assert all_differ(draws(Augment(python), passes=2))
    both = Dataset.zip(*(Dataset.range(20).map(lambda n: own.random(), workers=1) for _ in range(2)))
    assert all_differ([[float(value) for pair in both for value in pair]])
    inner = Dataset.range(4).interleave(lambda n: Dataset.range(5).map(lambda n: own.random(), workers=1))
    assert all_differ([[float(value) for value in inner] for _ in range(2)])


class Augment:
    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def __call__(self, n: int) -> float:
        return self.generator.random()


def test_a_seed_fixes_what_processes_draw() -> None:
    def seeded() -> list[list[float]]:
        np.random.seed(5)
        random.seed(5)
        own = np.random.default_rng(5)
        return draws(lambda n: np.random.random() + 10 * random.random() + 100 * own.random(), passes=2)

    before = np.random.get_state(), random.getstate()
    try:
        first = seeded()
        assert seeded() == first
        assert all_differ(first)
        np.random.seed(5)
        drawn = np.random.random()
        np.random.seed(5)
        draws(lambda n: np.random.random())
        assert np.random.random() == drawn  # a pass draws nothing from the generators here
    finally:
        np.random.set_state(before[0])
        random.setstate(before[1])


def test_a_continued_pass_draws_what_the_pass_would_have_drawn() -> None:
    own = np.random.default_rng(5)
    dataset = Dataset.range(10).map(lambda n: own.random(), workers=2)
    passes = [[float(value) for value in dataset] for _ in range(3)]
    other = Dataset.range(10).map(lambda n: own.random(), workers=2)
    assert [float(value) for value in other.iterate(opened=[2])] == passes[2]
    assert [float(value) for value in other.iterate(epoch=1)] == passes[1]


@pytest.mark.slow
@pytest.mark.frameworks
def test_generators_of_pytorch_are_seeded_too() -> None:
    import torch

    own = torch.Generator().manual_seed(1)
    assert all_differ(draws(lambda n: float(torch.rand(())), passes=2))
    assert all_differ(draws(lambda n: float(torch.rand((), generator=own)), passes=2))


def test_threads_or_processes() -> None:
    with pytest.raises(InvalidArgumentError, match="threads"):
        Dataset.range(3).map(lambda n: n, 2, workers=2)
    with pytest.raises(InvalidArgumentError, match="workers is 0"):
        Dataset.range(3).map(lambda n: n, workers=0)
