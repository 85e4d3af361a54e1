"""Our side of G1: images per second of `fit` on one device, such as GPU:0, in this process."""

from __future__ import annotations

import json
import time

import nbdist as nb
from bench import sync_work
from bench.nbdist_multi_worker import compiled
from bench.script import not_measured
from nbdist.cluster.gpus import list_gpus
from nbdist.train.callbacks import Callback


class Clock(Callback):
    begin = end = 0.0

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.end = time.perf_counter()
        if epoch == 0:
            self.begin = self.end


def main() -> None:
    options = sync_work.options()
    if options.device.startswith("GPU") and not list_gpus():
        raise not_measured("this host has no GPU")
    work = sync_work.scaled(options)
    batches = nb.data.Dataset.from_arrays(*work.data()).batch(sync_work.BATCH).repeat()
    model, clock = compiled(options.work), Clock()
    epochs = 1 + work.steps // work.warm_up  # the first is the warm-up: it compiles, and records CUDA graphs
    # What fit prints belongs to no step.
    with nb.train.context.use(nb.train.context.Context(quiet=True, device=options.device)):
        model.fit(batches, steps_per_epoch=work.warm_up, epochs=epochs, callbacks=[clock])
    print(json.dumps(work.outcome(clock.end - clock.begin, model.get_weights())))


if __name__ == "__main__":
    main()
