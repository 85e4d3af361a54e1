"""Training on a slow Python map with one worker on one core: with data tasks, and without.

Prints examples per second, from the end of the first epoch on. The map takes about as long as the worker's
own step, so that one data task can at best double the rate. The worker has one core, data tasks have all.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile

import numpy as np

ROWS, BATCH, EPOCHS = 2048, 32, 4

BODY = """
import os, time

os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
x = np.random.default_rng(0).normal(size=({rows}, 64)).astype(np.float32)
y = np.arange({rows}) % 10

def slow(row, label):  # a parser in Python, say
    total = 0.0
    for value in row.tolist() * {work}:
        total = total * 0.5 + value
    return row + np.float32(total * 1e-6), label

class Clock(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.end = time.monotonic()
        self.begin = self.end if epoch == 0 else self.begin

clock = Clock()
dataset = nb.data.Dataset.from_arrays(x, y).shuffle({rows}, seed=1).map(slow).batch({batch})
model = nb.nn.Sequential([nb.nn.Dense(1024, "tanh"), nb.nn.Dense(1024, "tanh"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.05), "sparse_categorical_crossentropy")
model.fit(dataset, epochs={epochs}, callbacks=[clock])
seconds = clock.end - clock.begin
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=int, default=0, help="data tasks; 0: the worker reads")
    parser.add_argument("--work", type=int, default=100, help="how often the map goes through 64 values")
    given = parser.parse_args()
    from nbdist.cluster.launch import start_cluster
    from nbdist.ui.api import launch

    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        cluster = start_cluster(workers=1, data=given.data, threads=1, gpus="none", report=None)
        try:
            run = launch(
                "import numpy as np\n" + BODY.format(rows=ROWS, batch=BATCH, epochs=EPOCHS, work=given.work),
                strategy="one_device",
                seed=1,
                data="service" if given.data else "client",
                live=False,
                cluster=cluster,
            )
        finally:
            cluster.stop()
    value = (EPOCHS - 1) * ROWS / run.results["seconds"]
    weights = [float(np.abs(one).sum()) for one in run.model.get_weights()]
    print(json.dumps({"value": value, "check": {"weights": weights, "steps": run.global_step}}))


if __name__ == "__main__":
    main()
