"""P18: saving and restoring a table of 10,000,000 x 20 float32 (800 MB), by one process or several ps tasks.

``--value save``: seconds until the checkpoint is on disk. ``blocked``: seconds until training continues while
the checkpoint is written in the background. ``restore``: seconds to read it back.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from statistics import median

import numpy as np

import nbdist as nb

ROWS, WIDTH, TIMES = 10_000_000, 20, 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--value", choices=["save", "blocked", "restore"], default="save")
    parser.add_argument("--ps", type=int, default=0, help="0: a session of this process")
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NBDIST_HOME"] = os.path.join(folder, "nbdist")
        cluster = nb.start_cluster(workers=1, ps=options.ps, report=None) if options.ps else None
        try:
            print(json.dumps(measured(cluster, folder, options.value, options.rows)))
        finally:
            if cluster is not None:
                cluster.stop()


def measured(cluster: nb.Cluster | None, folder: str, value: str, rows: int) -> dict[str, object]:
    """Save and restore a few times; return the median of what is asked for."""
    setter = None
    if cluster is not None:
        setter = nb.train.replica_device_setter(cluster=cluster.spec, worker_device="/job:worker/task:0")
    with nb.device(setter):
        shards = 1 if cluster is None else cluster.spec.num_tasks("ps")
        table = nb.get_variable(
            "table", (rows, WIDTH), initializer="random_uniform",
            partitioner=nb.train.fixed_size_partitioner(shards),
        )  # fmt: skip
    saver = nb.train.Saver(max_to_keep=0)
    times = []
    with nb.Session("" if cluster is None else cluster.target) as session:
        session.run(nb.global_variables_initializer())
        some = table.rows(np.array([0, rows - 1]))
        before = session.run(some)
        for number in range(TIMES + 1):
            os.sync()
            begin = time.perf_counter()
            path = saver.save(session, os.path.join(folder, "saved", "m"), number, wait=value != "blocked")
            took = time.perf_counter() - begin
            saver.wait()
            if value == "restore":
                begin = time.perf_counter()
                saver.restore(session, path)
                took = time.perf_counter() - begin
            times.append(took)
        same = bool(np.array_equal(session.run(some), before))
    return {"value": median(times[1:]), "check": {"the rows are the same": same}}


if __name__ == "__main__":
    main()
