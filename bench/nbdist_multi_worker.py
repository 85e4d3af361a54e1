"""Our side of P3 and P4: synchronous training on two local workers, one thread each.

Prints images per second of both workers together.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from typing import Any

from bench.script import not_measured
from bench.sync_work import WORKERS, WORKS, options, scaled

BODY = """
import time
from argparse import Namespace

from bench import sync_work
from bench.nbdist_multi_worker import compiled

class Clock(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.end = time.monotonic()  # one clock for all processes of a host
        self.begin = self.end if epoch == 0 else self.begin

work, clock = sync_work.scaled({options!r}), Clock()
batches = nb.data.Dataset.from_arrays(*work.data()).batch(sync_work.BATCH).repeat()
model = compiled({name!r})
epochs = 1 + work.steps // work.warm_up  # the first is the warm-up
model.fit(batches, steps_per_epoch=work.warm_up, epochs=epochs, callbacks=[clock])
print("CLOCK", clock.begin, clock.end)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-restarts", type=int, help="0: nothing is replaced")
    given = options(parser)
    work, gpus = scaled(given), "auto" if given.device.startswith("GPU") else "none"
    from nbdist.cluster.gpus import list_gpus
    from nbdist.cluster.launch import start_cluster
    from nbdist.metrics.run_folder import run_folder
    from nbdist.ui.api import launch

    if gpus == "auto" and (found := len(list_gpus())) < WORKERS:
        raise not_measured(f"{WORKERS} workers need {WORKERS} GPUs, and this host has {found}")
    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        cluster = start_cluster(workers=WORKERS, threads=1, gpus=gpus, report=None)
        try:
            run = launch(
                BODY.format(name=given.work, options=given),
                strategy="multi_worker",
                max_restarts=given.max_restarts,
                live=False,
                cluster=cluster,
            )
            spans = []
            for rank in range(WORKERS):
                words = (run_folder(run.id) / f"output-{rank:04d}.log").read_text().split()
                at = words.index("CLOCK")
                spans.append((float(words[at + 1]), float(words[at + 2])))
        finally:
            cluster.stop()
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
    outcome = work.outcome(seconds, run.model.get_weights())
    outcome["check"]["updates"] = run.global_step
    print(json.dumps(outcome))


def compiled(name: str) -> Any:
    """Return the model of a work with its first weights, ready for fit; runs on the workers."""
    import nbdist as nb
    from bench.cnn_work import EPSILON
    from nbdist.optim.base import Optimizer

    work, nn = WORKS[name], nb.nn
    optimizer: Optimizer
    if name == "cnn":
        from bench.nbdist_cnn import network

        model, optimizer = network(), nb.optim.Adam(work.learning_rate, epsilon=EPSILON, amsgrad=True)
    else:
        model = nn.Sequential([nn.Dense(100, "sigmoid"), nn.Dense(10, "softmax")])
        optimizer = nb.optim.SGD(work.learning_rate)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    model.build(work.data()[0].shape[1:])
    model.set_weights(work.first_weights())
    return model


if __name__ == "__main__":
    main()
