"""The share of a step for which fit waits for data, with its prefetch and without; the cost of a meter.

python -m bench.input_pipeline
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data import dataset as datasets
from nbdist.data.meter import Meter
from nbdist.nn import Dense, Sequential
from nbdist.optim import SGD
from nbdist.train.context import Context, use_here

ROUNDS, STEPS = 5, 100


def waits(image: Any, label: Any) -> Any:
    """Wait as for a file."""
    time.sleep(0.0001)
    return image, label


def computes(image: Any, label: Any) -> Any:
    """Compute in NumPy."""
    return np.tanh(np.sin(image) * 2) / 2, label


def data_share(function: Any, cores: int) -> tuple[float, float, float]:
    """Return the share of the time for data, the milliseconds of a step, and the loss."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100 * STEPS, 784)).astype(np.float32), rng.integers(0, 10, 100 * STEPS)
    model = Sequential([Dense(1200, "relu"), Dense(1200, "relu"), Dense(10, "softmax")])
    model.compile(SGD(0.01), "sparse_categorical_crossentropy")
    context, given = Context(seed=1, quiet=True), vars(datasets)["count_cores"]
    vars(datasets)["count_cores"] = lambda: cores
    try:
        with use_here(context):
            history = model.fit(
                Dataset.from_arrays(x, y).shuffle(100 * STEPS, seed=1).map(function).batch(100)
            )
    finally:
        vars(datasets)["count_cores"] = given
    spent = context.progress.spent
    return spent["data"] / sum(spent.values()), 1e3 * sum(spent.values()) / STEPS, history.history["loss"][-1]


def meter_cost() -> float:
    """Return how many times the processor time of shuffled batches a meter makes them take."""
    x = np.random.default_rng(0).random((20_000, 784), np.float32)
    data = Dataset.from_arrays(x, np.arange(20_000)).shuffle(20_000, seed=1).batch(100)

    def taken(meter: Meter | None) -> float:
        began = time.process_time()
        for _ in data.iterate(reuse_buffers=True, epoch=0, meter=meter):
            pass
        return time.process_time() - began

    plain, measured = [], []
    for _ in range(100):
        plain.append(taken(None))
        measured.append(taken(Meter()))
    return statistics.median(measured) / statistics.median(plain)


def main() -> None:
    """Print both."""
    for function in (waits, computes):
        found: dict[int, list[tuple[float, float, float]]] = {1: [], 2: []}
        for _ in range(ROUNDS):
            for cores, shares in found.items():
                shares.append(data_share(function, cores))
        assert {loss for shares in found.values() for _, _, loss in shares} == {found[1][0][2]}
        for cores, shares in found.items():
            share, step, _ = (statistics.median(column) for column in zip(*shares, strict=True))
            how = "in the training thread" if cores == 1 else "prefetched by fit"
            print(f"map {function.__name__}, {how}: data {share:.1%} of a step of {step:.1f} ms")
    print(f"shuffled batches with a meter: {meter_cost():.4f} times the processor time without")


if __name__ == "__main__":
    main()
