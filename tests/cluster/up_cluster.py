"""A cluster of Dask, Ray or ipyparallel that is up: `python up_cluster.py dask`, until its input ends.

It prints the settings with which a launcher finds it, in JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def dask() -> Iterator[dict[str, Any]]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield {"scheduler": cluster.scheduler_address}


@contextmanager
def ray() -> Iterator[dict[str, Any]]:
    import ray

    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        found = ray.init(
            num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
            object_store_memory=80 << 20, _temp_dir=folder,
        )  # fmt: skip
        try:
            yield {"ray_address": found.address_info["gcs_address"]}
        finally:
            ray.shutdown()


@contextmanager
def ipyparallel() -> Iterator[dict[str, Any]]:
    import ipyparallel

    cluster = ipyparallel.Cluster(n=2, profile="up", log_level=40)
    cluster.start_and_connect_sync().close()
    try:
        file = f"ipcontroller-{cluster.cluster_id}-client.json"
        yield {"profile": os.path.join(cluster.profile_dir, "security", file)}
    finally:
        cluster.stop_cluster_sync()


if __name__ == "__main__":
    with {"dask": dask, "ray": ray, "ipyparallel": ipyparallel}[sys.argv[1]]() as settings:
        print(json.dumps({"settings": settings}), flush=True)
        sys.stdin.read()
