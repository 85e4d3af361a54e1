"""An actor with a scheduler of Dask, whose workers it can keep busy."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from actor import serve
from distributed import Client, LocalCluster

found: dict[str, Any] = {}


def schedule(address: str) -> str:
    """Start a scheduler at an address of this host; return what its workers connect to."""
    scheduler = LocalCluster(
        n_workers=0, processes=False, protocol="tcp", host=address, dashboard_address=None
    )
    found["client"] = Client(scheduler)
    return str(scheduler.scheduler_address)


def keep_busy(host: str, gate: str, workers: int) -> None:
    """Keep the worker on a host busy until a file is there, once there are so many workers."""

    def wait_for_gate() -> None:
        pause = threading.Event()
        while not os.path.exists(gate):
            pause.wait(0.05)

    client = found["client"]
    client.wait_for_workers(workers)
    names = client.run(socket.gethostname)
    (worker,) = (address for address, name in names.items() if name == host)
    found[gate] = client.submit(wait_for_gate, workers=[worker], pure=False)


serve({"schedule": schedule, "keep_busy": keep_busy})
