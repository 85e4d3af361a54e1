"""Maps in processes: order, errors, deaths; none is left."""

from __future__ import annotations

import os
import signal
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
    living = (one.pid for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE)
    return [pid for pid in living if pid not in BEFORE]


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
    until(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie")


def test_threads_or_processes() -> None:
    with pytest.raises(InvalidArgumentError, match="threads"):
        Dataset.range(3).map(lambda n: n, 2, workers=2)
    with pytest.raises(InvalidArgumentError, match="workers is 0"):
        Dataset.range(3).map(lambda n: n, workers=0)
