"""P14: how cost grows with the tasks of one host: bring-up, time and messages of a step; also simulated.

`python -m bench.scaling --tasks 8 --value step` starts 7 workers and 1 ps, with `--simulated` nothing.
A step's time is that of a core, in all threads of all tasks: what else runs on the host does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.distribute.simulation import Cost

STEPS = (300, 900)

BODY = """
from bench import work

x, y = work.data()
batches = nb.data.Dataset.from_arrays(x, y.argmax(1)).batch(work.BATCH).repeat()
model = nb.nn.Sequential([nb.nn.Dense(work.HIDDEN, "sigmoid"), nb.nn.Dense(work.CLASSES, "softmax")])
model.compile(nb.optim.SGD(work.LEARNING_RATE), "sparse_categorical_crossentropy")
model.build((work.INPUTS,))
model.set_weights(work.first_weights())
model.fit(batches, steps_per_epoch=100, epochs={steps} // 100)
"""
FIRST_STEP = """
import numpy as np
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
model.fit(nb.data.Dataset.from_arrays(np.ones((8, 4)), np.arange(8)).batch(8))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--value", choices=["start", "step", "plain", "alone"], required=True)
    parser.add_argument("--transport", choices=["auto", "socket"], default="auto")
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()
    workers, transport = options.tasks - 1, options.transport
    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        if options.simulated:
            outcome = simulated(workers, transport)
        elif options.value == "start":
            outcome = start(workers, transport)
        elif options.value == "step":
            outcome = step(workers, transport)
        else:
            outcome = {"value": plain_step() if options.value == "plain" else step_alone()}
    print(json.dumps(outcome))


def start(workers: int, transport: str) -> dict[str, Any]:
    """Return the seconds from a cold start until every worker has trained a step."""
    import nbdist as nb

    launch, start_cluster = nb.launch, nb.start_cluster  # loaded before the clock starts
    begin = time.perf_counter()
    cluster = start_cluster(workers=workers, ps=1, report=None)
    try:
        run = launch(FIRST_STEP, strategy="ps", transport=transport, live=False, cluster=cluster)
        return {
            "value": time.perf_counter() - begin,
            "check": {"updates per worker": run.global_step / workers},
        }
    finally:
        cluster.stop()


def step(workers: int, transport: str) -> dict[str, Any]:
    """Return the ms of a core that one worker's step takes, and what a step of all costs in messages."""
    import nbdist as nb

    cluster = nb.start_cluster(workers=workers, ps=1, threads=1, report=None)
    try:
        cluster.run("from bench import counting; counting.install()")
        sent, spent = [], []
        for steps in STEPS:
            before, begun = _counts(cluster), _seconds(cluster)
            body = BODY.format(steps=steps)
            nb.launch(body, strategy="ps", transport=transport, live=False, cluster=cluster)
            sent.append(_counts(cluster) - before)
            spent.append(_seconds(cluster) - begun)
    finally:
        cluster.stop()
    more = workers * (STEPS[1] - STEPS[0])
    return {"value": 1e3 * (spent[1] - spent[0]) / more, "check": _per_step(*sent)}


def plain_step() -> float:
    """Return the seconds of a core that a step takes in plain NumPy; other processes do not count."""
    from bench import numpy_mlp

    spent = []
    for steps in STEPS:
        begin = time.process_time()
        numpy_mlp.train(steps)
        spent.append(time.process_time() - begin)
    return (spent[1] - spent[0]) / (STEPS[1] - STEPS[0])


def step_alone() -> float:
    """Return the seconds of a core that a step takes on one task that trains for itself."""
    import nbdist as nb

    cluster = nb.start_cluster(workers=1, threads=1, report=None)
    try:
        spent = []
        for steps in STEPS:
            begun = _seconds(cluster)
            nb.launch(BODY.format(steps=steps), strategy="one_device", live=False, cluster=cluster)
            spent.append(_seconds(cluster) - begun)
    finally:
        cluster.stop()
    return (spent[1] - spent[0]) / (STEPS[1] - STEPS[0])


def _seconds(cluster: Any) -> float:
    """Return the CPU seconds of all tasks, in all their threads."""
    return float(sum(cluster.run("import time; time.process_time()")))


def _counts(cluster: Any) -> Counter[str]:
    return sum((Counter(one) for one in cluster.run("dict(counting.COUNTS)")), Counter())


def _per_step(few: Counter[str], many: Counter[str]) -> dict[str, float]:
    """Return the messages of one step of all workers: the difference of two trainings, divided by the steps.

    Progress reports do not count: a task sends at most ten a second, for any number of steps. The messages
    at the end of a training vary by one or two with the order in which the workers finish: hence one digit.
    """
    more = Counter(many)
    more.subtract(few)
    steps = STEPS[1] - STEPS[0]
    sockets = sum(count for kind, count in more.items() if kind.startswith("ps."))
    return {
        "in shared memory": round(more["bells"] / steps, 1),
        "over sockets": round(sockets / steps, 1),
        "through the hub": round(more["hub"] / steps, 1),
    }


def simulated(workers: int, transport: str) -> dict[str, Any]:
    """Return what the simulation says, given how long a step alone takes here and now."""
    from nbdist.distribute.simulation import Cost

    cost = Cost(compute_s=step_alone(), cores=len(os.sched_getaffinity(0)))
    return simulated_with(workers, transport, cost)


def simulated_with(workers: int, transport: str, cost: Cost) -> dict[str, Any]:
    """Return the same for a given cost; over sockets, the server has a host of its own."""
    from nbdist.distribute.simulation import simulate

    variables = [784 * 100 * 4, 100 * 4, 100 * 10 * 4, 10 * 4]
    apart, steps = transport == "socket", max(3, min(100, 10_000 // workers))
    report = simulate("ps", workers, 1, hosts=1, cost=cost, variables=variables, apart=apart, steps=steps)
    check = {
        "in shared memory": float(report.host_messages),
        "over sockets": float(report.messages),
        "through the hub": 0.0,
    }
    busy = min(workers, cost.cores or workers)  # at times without a server's work; that comes on top
    return {"value": 1e3 * busy / report.batches_per_second, "check": check}


if __name__ == "__main__":
    main()
