"""The cost of the sidebar for the Jupyter server while nothing changes, with an open page and without.

The cluster and its tasks are real and idle, the runs have ended; the server has only our extension. The
measurement alternates between an open and a hidden page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
from websocket import WebSocket, WebSocketException

ROOT = Path(__file__).parent.parent
TASKS, RUNS, SECONDS, TURNS = 100, 50, 60.0, 2
SETTLE = 5.0  # seconds
BODY = "from bench import points_body\nlog = points_body.recorder()\nfor number in range(200): log(number)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"NBDIST_HOME": f"{home}/nbdist", "IPYTHONDIR": f"{home}/ipython"}
        print(json.dumps(measure(options.tasks, options.runs, options.seconds, Path(home))))


def measure(tasks: int, runs: int, seconds: float, home: Path) -> dict[str, float]:
    """Return the figures."""
    sys.path.insert(0, str(ROOT / "tests" / "lab"))  # for its labserver
    from labserver import server_process

    import nbdist as nb

    cluster = nb.start_cluster(workers=tasks, gpus="none", threads=1, report=None, timeout=300)
    try:
        for _ in range(runs):
            nb.launch(BODY, on="worker:0", live=False)
        with server_process(home) as server:
            process = psutil.Process(server.process.pid)
            with closing(Page(server.stream(), cluster.id)) as page:
                assert page.listed == (runs, tasks), f"not all of it is listed: {page.listed}"
                open_cpu, closed_cpu, messages = 0.0, 0.0, 0
                for _ in range(TURNS):
                    page.show(None)
                    closed_cpu += spent(process, seconds)
                    page.show(cluster.id)
                    spent(process, SETTLE)  # the page receives what has changed
                    received = page.received
                    open_cpu += spent(process, seconds)
                    messages += page.received - received
    finally:
        cluster.stop()
    minutes = TURNS * seconds / 60
    return {
        "a page open": 100 * open_cpu / TURNS / seconds,
        "no page open": 100 * closed_cpu / TURNS / seconds,
        "messages to the page": messages / minutes,
    }


class Page:
    """A page that shows a cluster: a thread reads its messages and answers pings."""

    def __init__(self, socket: WebSocket, cluster: str) -> None:
        self._socket = socket
        runs = json.loads(socket.recv())["runs"]
        self.show(cluster)
        while "tasks" not in (message := json.loads(socket.recv())):
            pass  # a change without tasks
        self.listed = len(runs), len(message["tasks"]["set"])
        self.received = 0
        socket.settimeout(None)  # without changes there are no messages
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def show(self, cluster: str | None) -> None:
        """Show a cluster; None hides the page."""
        look = {"kind": "look", "cluster": cluster, "visible": cluster is not None}
        self._socket.send(json.dumps(look))

    def close(self) -> None:
        self._socket.shutdown()  # type: ignore[no-untyped-call]
        self._thread.join()

    def _read(self) -> None:
        with suppress(OSError, WebSocketException):
            while self._socket.recv():
                self.received += 1


def spent(process: psutil.Process, seconds: float) -> float:
    """Return the CPU seconds that a process spends during ``seconds``."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system) - (before.user + before.system)


if __name__ == "__main__":
    main()
