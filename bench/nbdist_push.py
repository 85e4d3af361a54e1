"""Our side of push.*: seconds from nb.launch(push=) until four workers have read 1 GB of arrays."""

from __future__ import annotations

import json
import os
import tempfile
import time

import nbdist as nb
from bench.push_work import WORKERS, arrays

BODY = """
total = float(sum(part[:, 0].sum() for part in (x0, x1, x2, x3)))
"""


def main() -> None:
    launch, start, push = nb.launch, nb.start_cluster, arrays()
    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        cluster = start(workers=WORKERS, report=None)
        try:
            launch(
                "total = 0", live=False, cluster=cluster
            )  # as the peers' workers, which have answered a call
            begin = time.perf_counter()
            run = launch(BODY, push=push, live=False, cluster=cluster)
            value = time.perf_counter() - begin
            check = [run.results["total"]] * WORKERS  # a run ends when all bodies have
        finally:
            cluster.stop()
    print(json.dumps({"value": value, "check": check}))


if __name__ == "__main__":
    main()
