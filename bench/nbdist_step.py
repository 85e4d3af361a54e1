"""Our side of G1: images per second of `fit` on one device, such as GPU:0, in this process.

The weights are compared after the warm-up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import nbdist as nb
from bench import sync_work
from bench.nbdist_multi_worker import compiled
from bench.script import not_measured
from nbdist.cluster.gpus import list_gpus
from nbdist.train.callbacks import Callback


class Clock(Callback):
    """The time of all epochs but the first, after which it keeps the weights: rounding errors grow."""

    def __init__(self, weights: Callable[[], Sequence[Any]]) -> None:
        self.read, self.begin, self.end = weights, 0.0, 0.0
        self.weights: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.end = time.perf_counter()
        if epoch == 0:
            self.weights = [array.copy() for array in self.read()]
            self.begin = time.perf_counter()


def main() -> None:
    options = sync_work.options()
    if options.device.startswith("GPU") and not list_gpus():
        raise not_measured("this host has no GPU")
    work = sync_work.scaled(options)
    batches = nb.data.Dataset.from_arrays(*work.data()).batch(sync_work.BATCH).repeat()
    model = compiled(options.work)
    clock = Clock(model.get_weights)
    epochs = 1 + work.steps // work.warm_up  # the first is the warm-up: it compiles, and records CUDA graphs
    # What fit prints belongs to no step.
    with nb.train.context.use(nb.train.context.Context(quiet=True, device=options.device)):
        model.fit(batches, steps_per_epoch=work.warm_up, epochs=epochs, callbacks=[clock])
    print(json.dumps(work.outcome(clock.end - clock.begin, clock.weights)))


if __name__ == "__main__":
    main()
