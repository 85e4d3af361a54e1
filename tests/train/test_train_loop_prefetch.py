"""fit has its batches made ahead: the same batches, orders and places as without."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.data import dataset as datasets
from nbdist.data.meter import stages_of
from nbdist.nn import Dense, Sequential
from nbdist.optim import SGD
from nbdist.train.context import Context, use_here

x, y = np.random.default_rng(1).normal(size=(24, 3)).astype(np.float32), np.arange(24) % 3


def trained(dataset: Dataset, **more: Any) -> tuple[list[float], tuple[int, ...]]:
    """Return the losses of two fits of two epochs, and how often the dataset's shuffles were opened."""
    model = Sequential([Dense(3, "softmax")])
    model.compile(SGD(0.1), "sparse_categorical_crossentropy")
    losses: list[float] = []
    with use_here(Context(seed=5, quiet=True)):
        for _ in range(2):
            losses += model.fit(dataset, epochs=2, **more).history["loss"]
    return losses, dataset.opened


@pytest.mark.parametrize("steps", [None, 3])
def test_batches_are_made_by_a_thread_and_are_those_of_the_training_thread(
    steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[int, set[str]] = {2: set(), 1: set()}
    found = []
    for cores in (2, 1):
        monkeypatch.setattr(datasets, "count_cores", lambda cores=cores: cores)

        def work(a: Any, b: Any, cores: int = cores) -> Any:
            threads[cores].add(threading.current_thread().name)
            return a * 2, b

        # After 3 of 4 batches the thread has begun the second repetition, which no training has seen.
        data = Dataset.from_arrays(x, y).shuffle(24, seed=2).repeat(2).map(work).batch(6)
        found.append(trained(data, steps_per_epoch=steps))
    assert "nbdist-prefetch" in threads[2]
    assert threads[1] == {"MainThread"}
    assert found[0] == found[1]


def test_what_needs_no_thread_gets_none() -> None:
    def last(dataset: Dataset) -> str:
        return str(stages_of(dataset.ahead_of_training()._stage.blocks)[-1].step[0])

    arrays = Dataset.from_arrays(x, y).shuffle(24).batch(6)
    assert [last(arrays), last(arrays.prefetch(3)), last(arrays.map(lambda a, b: (a, b)).batch(2))][:2] == [
        "batch", "prefetch",
    ]  # fmt: skip
