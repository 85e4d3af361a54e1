"""Our side of P3 and P4: synchronous training on two local workers, one thread each.

Prints images per second of both workers together.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from bench.sync_work import WORKERS, WORKS, chosen

BODY = """
import time
from bench import sync_work
from bench.nbdist_multi_worker import compiled

class Clock(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.end = time.monotonic()  # one clock for all processes of a host
        self.begin = self.end if epoch == 0 else self.begin

work, clock = sync_work.WORKS[{name!r}], Clock()
batches = nb.data.Dataset.from_arrays(*work.data()).batch(sync_work.BATCH).repeat()
model = compiled({name!r})
epochs = 1 + work.steps // work.warm_up  # the first is the warm-up
model.fit(batches, steps_per_epoch=work.warm_up, epochs=epochs, callbacks=[clock])
print("CLOCK", clock.begin, clock.end)
"""


def main() -> None:
    name = chosen()
    from nbdist.cluster.launch import start_cluster
    from nbdist.metrics.run_folder import run_folder
    from nbdist.ui.api import launch

    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        cluster = start_cluster(workers=WORKERS, threads=1, report=None)
        try:
            run = launch(BODY.format(name=name), strategy="multi_worker", live=False, cluster=cluster)
            spans = []
            for rank in range(WORKERS):
                words = (run_folder(run.id) / f"output-{rank:04d}.log").read_text().split()
                at = words.index("CLOCK")
                spans.append((float(words[at + 1]), float(words[at + 2])))
        finally:
            cluster.stop()
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
    outcome = WORKS[name].outcome(seconds, run.model.get_weights())
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
