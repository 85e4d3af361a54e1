"""What the sidebar costs the Jupyter server while nothing changes, with a page that shows it and without.

The cluster and its tasks are real and idle, the runs are over; the server has our extension alone. The two
kinds of minutes take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from websocket import WebSocket

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
    sys.path.insert(0, str(ROOT / "tests" / "lab"))  # whose server this is
    from labserver import server_process

    import nbdist as nb

    cluster = nb.start_cluster(workers=tasks, gpus="none", threads=1, report=None, timeout=300)
    try:
        for _ in range(runs):
            nb.launch(BODY, on="worker:0", live=False)
        with server_process(home) as server:
            process = psutil.Process(server.process.pid)
            page, told = open_page(server, cluster.id)
            assert (len(told["runs"]), len(told["tasks"])) == (runs, tasks), "not all of it is listed"
            open_cpu, closed_cpu, messages = 0.0, 0.0, 0
            for _ in range(TURNS):
                wish(page, None, visible=False)
                closed_cpu += spent(process, seconds)
                wish(page, cluster.id, visible=True)
                spent(process, SETTLE)  # the page is told what has changed meanwhile
                drain(page)
                open_cpu += spent(process, seconds)
                messages += drain(page)
            page.close()
    finally:
        cluster.stop()
    minutes = TURNS * seconds / 60
    return {
        "a page open": 100 * open_cpu / TURNS / seconds,
        "no page open": 100 * closed_cpu / TURNS / seconds,
        "messages to the page": messages / minutes,
    }


def open_page(server: Any, cluster: str) -> tuple[WebSocket, dict[str, Any]]:
    """Return a page that looks at a cluster, and what it was told when all of it was there."""
    page = server.stream()
    told = json.loads(page.recv())
    wish(page, cluster, visible=True)
    told["tasks"] = json.loads(page.recv())["tasks"]["set"]
    return page, told


def wish(page: WebSocket, cluster: str | None, *, visible: bool) -> None:
    """Say what the page looks at."""
    page.send(json.dumps({"kind": "look", "cluster": cluster, "visible": visible}))


def spent(process: psutil.Process, seconds: float) -> float:
    """Return the CPU seconds that a process spends in so many seconds."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system) - (before.user + before.system)


def drain(page: WebSocket) -> int:
    """Return how many messages have come meanwhile."""
    from websocket import WebSocketTimeoutException

    count = 0
    page.settimeout(0.05)
    try:
        while page.recv():
            count += 1
    except WebSocketTimeoutException:
        return count
    finally:
        page.settimeout(30)
    return count


if __name__ == "__main__":
    main()
