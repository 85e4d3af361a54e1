"""Our side of P15 and P16: a PyTorch module under a strategy of ours, or plain DDP in a cell of ours.

P15: images per second of two workers together. ``--plain``: DistributedDataParallel in a cell with
``--framework torch``, which torchrun is the peer of. P16 (``--work ps``): steps per second of three workers
on an asynchronous parameter server.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from typing import Any

from bench import work as mlp
from bench.sync_work import WORKERS, WORKS, scaled

FIT = """
import time
from argparse import Namespace

import numpy as np
import torch

from bench import sync_work, torch_data_parallel

class Clock(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.end = time.monotonic()  # one clock for all processes of a host
        self.begin = self.end if epoch == 0 else self.begin

torch.set_num_threads(1)
given = {options!r}
work, clock = sync_work.scaled(given), Clock()
x, y = work.data()
x = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if given.work == "cnn" else x
model = torch_data_parallel.network(given.work)
nb.frameworks.torch.fit(
    model,
    nb.data.Dataset.from_arrays(x, y).batch(sync_work.BATCH).repeat(),
    optimizer=torch_data_parallel.optimizer_of(given.work, model),
    loss=torch.nn.CrossEntropyLoss(),
    steps_per_epoch=work.warm_up,
    epochs=1 + work.steps // work.warm_up,  # the first is the warm-up
    callbacks=[clock],
)
print("CLOCK", clock.begin, clock.end)
"""

PLAIN = """
from argparse import Namespace

import torch
import torch.distributed as dist

from bench import torch_data_parallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
outcome = torch_data_parallel.measured({options!r}, dist.get_rank(), "cpu")
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=[*WORKS, "ps"], required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--warm-up", type=int)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    from nbdist.cluster.launch import start_cluster
    from nbdist.metrics.run_folder import run_folder
    from nbdist.ui.api import launch

    asynchronous = given.work == "ps"
    workers = 3 if asynchronous else WORKERS
    given.work = "mlp" if asynchronous else given.work
    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        cluster = start_cluster(workers=workers, ps=int(asynchronous), threads=1, gpus="none", report=None)
        try:
            how: dict[str, Any] = {"strategy": "ps" if asynchronous else "multi_worker"}
            run = launch(
                (PLAIN if given.plain else FIT).format(options=given),
                live=False,
                cluster=cluster,
                **({"framework": "torch"} if given.plain else how),
            )
            if given.plain:
                print(json.dumps(run.results["outcome"]))
                return
            spans = []
            for rank in range(workers):
                words = (run_folder(run.id) / f"output-{rank:04d}.log").read_text().split()
                at = words.index("CLOCK")
                spans.append((float(words[at + 1]), float(words[at + 2])))
        finally:
            cluster.stop()
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
    from bench.torch_data_parallel import in_our_layout

    weights = in_our_layout(given.work, list(run.model.values()))
    if asynchronous:
        value, check = workers * scaled(given).steps / seconds, mlp.check(run.global_step, *weights)
        print(json.dumps({"value": value, "check": check}))
        return
    outcome = scaled(given).outcome(seconds, weights)
    outcome["check"]["updates"] = run.global_step
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
