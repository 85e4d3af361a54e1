"""Peer: ipyparallel's push of 1 GB of arrays to 4 engines, until each has read them."""

from __future__ import annotations

import json
import os
import tempfile
import time

from bench.push_work import WORKERS, arrays


def total() -> float:
    return float(sum(part[:, 0].sum() for part in (x0, x1, x2, x3)))  # type: ignore[name-defined]  # noqa: F821 - pushed


def main() -> None:
    total.__module__ = "__main__"
    push = arrays()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder  # as it comes: no configuration of this user
        import ipyparallel as ipp

        cluster = ipp.Cluster(n=WORKERS)
        client = cluster.start_and_connect_sync()
        view = client[:]
        view.apply_sync(lambda: 0)
        start = time.perf_counter()
        view.push(push, block=True)
        answers = view.apply_sync(total)
        seconds = time.perf_counter() - start
        cluster.stop_cluster_sync()
        client.close()
    print(json.dumps({"value": seconds, "check": answers}))


if __name__ == "__main__":
    main()
