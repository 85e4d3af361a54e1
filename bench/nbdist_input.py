"""Our side of P17: elements per second of `nb.data.Dataset`.

Nothing is prefetched where one thread does all the work: the loop that is measured has none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bench import input_work
from bench.input_work import Work
from nbdist.data import Dataset, FixedLenFeature

FEATURES = {
    "x": FixedLenFeature((64,), "f4"),
    "label": FixedLenFeature((), "i8"),
    "ids": FixedLenFeature((8,), "i8"),
    "image": FixedLenFeature((), bytes),
}


def arrays(work: Work) -> Callable[[], Iterable[Any]]:
    made = Dataset.from_arrays(*input_work.arrays()).shuffle(work.elements).batch(work.batch)
    return lambda: made


def numbers(work: Work) -> Dataset:
    return Dataset.from_arrays(input_work.numbers(work.elements))


def images(work: Work) -> Callable[[], Iterable[Any]]:
    found = Dataset.images(work.path, num_parallel_calls=input_work.PROCESSES)
    return lambda: found.batch(work.batch).prefetch(2)


ROWS: dict[str, Callable[[Work], Callable[[], Iterable[Any]]]] = {
    "raw": lambda work: lambda: Dataset.tfrecords(work.path).batch(work.batch),
    "examples": lambda work: lambda: Dataset.tfrecords(work.path, FEATURES).batch(work.batch),
    "csv": lambda work: lambda: Dataset.csv(work.path, input_work.CSV_TYPES).batch(work.batch),
    "map": lambda work: lambda: numbers(work).map(input_work.centred).batch(work.batch),
    "processes": lambda work: (
        lambda: numbers(work).map(input_work.computed, workers=input_work.PROCESSES).batch(work.batch)
    ),
    "jpeg": images,
    "png": images,
    "arrays": arrays,
}

if __name__ == "__main__":
    input_work.main(ROWS)
