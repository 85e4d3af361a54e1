"""P20: memory of a training on each of N workers, and the time of a step, sharded and with whole copies.

The memory is the most that a worker has beyond what it has before ``fit``, when it has the model; pages of
shared memory are divided among the processes that map them (Pss). Expected of the arrays alone, as a multiple
of the parameters: 4 with copies (parameters, gradients and Adam's two slots), 2 + 2/N in stage 1, and in
stage 2 1 + 3/N, beside the gradients of the layers that are exchanged just then; in stage 3 4/N, beside these
and the parameters that are in use.

Stage 1 trains 3 layers, of 8.4, 16.8 and 8.4 MB. Later stages exchange single layers, and train 8 of 4.2 MB.
With ``--model torch`` a worker takes memory for gradients and libraries besides.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from itertools import pairwise

WIDTHS = {1: (1024, 2048, 2048, 1024), 2: (1024,) * 9, 3: (1024,) * 9}
BATCH = 32
STEPS, EPOCHS = 6, 5
MB = 1e6

BODY = """
import threading, time
import numpy as np

def pss():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))

def watch():
    global most
    while not over.wait(0.02):
        most = max(most, pss())

class Clock(nb.train.Callback):
    times = []
    def on_epoch_end(self, epoch, logs):
        global most
        most = max(most, pss())
        self.times.append(time.perf_counter())

widths, batch, steps, epochs = {work!r}
rng = np.random.default_rng(0)
x = rng.normal(size=(batch, widths[0])).astype(np.float32)
y = rng.normal(size=(batch, widths[-1])).astype(np.float32)
data = nb.data.Dataset.from_arrays(x, y).batch(batch).repeat()
{model}
before = most = pss()
over, clock = threading.Event(), Clock()
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
history = train([clock])
over.set()
watcher.join()
step = min(np.diff(clock.times)) / steps * 1e3
memory = nb.collective.all_gather(np.array(most - before)).max()
step = nb.collective.all_reduce(np.array(step), "max")
"""
MODELS = {
    "nn": """
model = nb.nn.Sequential([nb.nn.Dense(n, "tanh") for n in widths[1:-1]] + [nb.nn.Dense(widths[-1])], seed=1)
model.compile(nb.optim.Adam(1e-4), "mse")
model.build(widths[:1])
def train(callbacks):
    return model.fit(data, epochs=epochs, steps_per_epoch=steps, callbacks=callbacks)
""",
    "torch": """
import torch
torch.manual_seed(1)
layers = [torch.nn.Linear(rows, columns) for rows, columns in zip(widths, widths[1:])]
model = torch.nn.Sequential(*[one for layer in layers for one in (layer, torch.nn.Tanh())][:-1])
torch.nn.functional.mse_loss(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()  # threads are there
model.zero_grad()
def train(callbacks):
    return nb.frameworks.torch.fit(
        model, data, optimizer=torch.optim.Adam(model.parameters(), lr=1e-4), epochs=epochs,
        loss=torch.nn.functional.mse_loss, steps_per_epoch=steps, callbacks=callbacks,
    )
""",
}
"""What makes the model, by whose it is."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=("sharded", "multi_worker"), required=True)
    parser.add_argument("--stage", type=int, choices=tuple(WIDTHS), default=1)
    parser.add_argument("--model", choices=tuple(MODELS), default="nn")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--value", choices=("memory", "step"), required=True)
    given = parser.parse_args()
    from nbdist.cluster.launch import start_cluster
    from nbdist.ui.api import launch

    widths = WIDTHS[given.stage]
    parameters = 4 * sum((rows + 1) * columns for rows, columns in pairwise(widths))
    whole, stage = given.strategy == "multi_worker", None if given.strategy == "multi_worker" else given.stage
    each = (
        4.0
        if whole
        else {1: 2 + 2 / given.workers, 2: 1 + 3 / given.workers, 3: 4 / given.workers}[given.stage]
    )
    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        cluster = start_cluster(workers=given.workers, threads=1, report=None)
        try:
            body = BODY.format(work=(widths, BATCH, STEPS, EPOCHS), model=MODELS[given.model])
            run = launch(body, strategy=given.strategy, stage=stage, seed=1, live=False, cluster=cluster)
        finally:
            cluster.stop()
    memory, step = int(run.results["memory"]) / MB, float(run.results["step"])
    print(
        f"{given.strategy}, {given.workers} workers{f', stage {stage}' if stage else ''}: "
        f"{memory:.0f} MB per worker, of which arrays "
        f"{each * parameters / MB:.0f} MB ({each:g} times the parameters); {step:.1f} ms per step"
    )
    assert run.history is not None
    check = {"updates": run.global_step, "loss": run.history["loss"][-1]}
    print(json.dumps({"value": memory if given.value == "memory" else step, "check": check}))


if __name__ == "__main__":
    main()
