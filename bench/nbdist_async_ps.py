"""Our side of P1, P2 and of replicas: asynchronous parameter server training on local tasks.

Prints steps/s of all workers together, or milliseconds per step, after the warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile

STEPS = 1000

BODY = """
import time
from bench import work

class Clock(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        now = time.monotonic()  # one clock for all processes of a host
        self.begin = now if epoch == 0 else self.begin
        self.end = now

x, y = work.data()
batches = nb.data.Dataset.from_arrays(x, y.argmax(1)).batch(work.BATCH).repeat()
model = nb.nn.Sequential([nb.nn.Dense(work.HIDDEN, "sigmoid"), nb.nn.Dense(work.CLASSES, "softmax")])
model.compile(nb.optim.SGD(work.LEARNING_RATE), "sparse_categorical_crossentropy")
model.build((work.INPUTS,))
model.set_weights(work.first_weights())
clock = Clock()
model.fit(batches, steps_per_epoch=work.WARM_UP, epochs=1 + {steps} // work.WARM_UP, callbacks=[clock])
print("CLOCK", clock.begin, clock.end)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--value", choices=["rate", "step"], required=True)
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--ps-replicas", type=int, default=None)
    parser.add_argument("--max-restarts", type=int, help="0: nothing is replaced")
    options = parser.parse_args()
    from bench import work
    from nbdist.cluster.launch import start_cluster
    from nbdist.metrics.run_folder import run_folder
    from nbdist.ui.api import launch

    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        cluster = start_cluster(workers=options.workers, ps=options.ps, threads=1, report=None)
        try:
            body, replicas = BODY.format(steps=STEPS), options.ps_replicas
            run = launch(
                body, strategy="ps", ps_replicas=replicas, max_restarts=options.max_restarts, live=False,
                cluster=cluster,
            )  # fmt: skip
            spans = [
                [
                    float(word)
                    for word in (run_folder(run.id) / f"output-{rank:04d}.log").read_text().split()[1:3]
                ]
                for rank in range(options.workers)
            ]
        finally:
            cluster.stop()
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
    rate = options.workers * STEPS / seconds
    value = rate if options.value == "rate" else 1000 * seconds / STEPS
    print(json.dumps({"value": value, "check": work.check(run.global_step, *run.model.get_weights())}))


if __name__ == "__main__":
    main()
