"""P11: a training step on an embedding table that is partitioned over three parameter servers.

``--through fit`` trains the same with ``fit`` and an Embedding layer, on one parameter server.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

import numpy as np
import psutil

import nbdist as nb

WIDTH, SHARDS = 20, 3
WARM_UP, STEPS = 20, 200


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--value", choices=["step", "memory"], default="step")
    parser.add_argument("--through", choices=["session", "fit"], default="session")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        fit = options.through == "fit"
        cluster = nb.start_cluster(workers=1, ps=1 if fit else SHARDS, report=None)
        try:
            measure = fitted if fit else measured
            print(json.dumps(measure(cluster, options.rows, options.batch, options.value)))
        finally:
            cluster.stop()


def measured(cluster: nb.Cluster, rows: int, batch: int, value: str) -> dict[str, object]:
    """Train, and return milliseconds a step, or the growth of all tasks' peak memory in bytes."""
    before = peak(cluster)
    setter = nb.train.replica_device_setter(cluster=cluster.spec, worker_device="/job:worker/task:0")
    with nb.device(setter):
        table = nb.get_variable(
            "table",
            (rows, WIDTH),
            initializer="random_uniform",
            partitioner=nb.train.fixed_size_partitioner(SHARDS),
        )
        ids = nb.placeholder(np.int64, (None,), name="ids")
        found = nb.nn.functional.embedding_lookup(table, ids)
        loss = np.mean(np.square(found - 1))
    train = nb.optim.SGD(0.1).minimize(loss)
    rng = np.random.default_rng(0)
    batches = rng.integers(0, rows, (WARM_UP + STEPS, batch))
    with nb.Session(cluster.target) as session:
        session.run(nb.global_variables_initializer())
        first = session.run(loss, {ids: batches[0]})
        times = []
        for numbers in batches:
            begin = time.perf_counter()
            session.run(train, {ids: numbers})
            times.append(time.perf_counter() - begin)
        fell = bool(session.run(loss, {ids: batches[0]}) < first)
    growth = peak(cluster) - before
    result = growth if value == "memory" else float(np.median(times[WARM_UP:])) * 1e3
    return {"value": result, "check": {"the loss fell": fell}}


BODY = """
import time
import numpy as np, nbdist as nb

rng = np.random.default_rng(0)
begun = []

def batches():
    for _ in range({steps}):
        begun.append(time.perf_counter())
        yield rng.integers(0, {rows}, ({batch}, 1)), np.ones(({batch}, {width}), np.float32)

model = nb.nn.Sequential([nb.nn.Embedding({rows}, {width}), nb.nn.Reshape(({width},))]).build((1,))
model.compile(nb.optim.SGD(0.1), "mse")
history = model.fit(nb.data.Dataset.from_generator(batches), epochs=1)
step_seconds = [b - a for a, b in zip(begun, begun[1:])]
del model, history  # the run would fetch them
"""


def fitted(cluster: nb.Cluster, rows: int, batch: int, value: str) -> dict[str, object]:
    """Train through ``fit`` under ``--strategy ps``, and return the same."""
    before = peak(cluster)
    body = BODY.format(steps=WARM_UP + STEPS, rows=rows, batch=batch, width=WIDTH)
    run = nb.launch(body, strategy="ps")
    growth = peak(cluster) - before
    times = run.results["step_seconds"]
    result = growth if value == "memory" else float(np.median(times[WARM_UP:])) * 1e3
    return {"value": result, "check": {"every step was made": len(times) >= WARM_UP + STEPS - 1}}


def peak(cluster: nb.Cluster) -> int:
    """Return the sum of all tasks' and this client's peak resident memory."""
    pids = [*(info.pid for info in cluster.tasks), os.getpid()]
    return sum(high_water(pid) for pid in pids)


def high_water(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return int(psutil.Process(pid).memory_info().rss)


if __name__ == "__main__":
    main()
