"""The process that is TensorBoard: it serves one run, or all, on a Unix socket that only its user can reach.

    python -P -m nbdist.lab.tensorboard.child        (started by `tensorboard.Boards`)

TensorBoard itself asks nobody who they are, so it gets no port: neither for its page, nor for the data
server that it would start. The first line of the input is the plan, as JSON; the input's end is the end of
this process and of its folder: whoever started it wants no more of it, or is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.test import Client

from nbdist.errors import DataLossError, NbdistError
from nbdist.metrics.log import Points, logs_in, read_log, replica_of
from nbdist.metrics.run_folder import read_run
from nbdist.metrics.tensorboard import FOLDER, EventFiles, events_folder, make_private

LOADING_SECONDS = 10.0  # for which the first answer waits for the points; they go on loading after it


def main() -> None:
    """Serve until the input ends."""
    with open(0, "rb", buffering=0, closefd=False) as given:  # unbuffered: nothing of it is read ahead
        plan = json.loads(given.readline())
    threading.Thread(target=end_with_input, args=(Path(plan["folder"]),), daemon=True).start()
    serve(plan)


def serve(plan: dict[str, Any]) -> None:
    """Start TensorBoard on the socket that was handed over, and keep its event files up with the logs."""
    run = Path(plan["run"])
    made: EventsOfLogs | EventsOfRuns | None = None
    events = None if plan["all"] else own_events(run)
    if events is None:
        events = Path(plan["folder"]) / "events"
        make_private(events)
        made = EventsOfRuns(run, events) if plan["all"] else EventsOfLogs(run, events)
        made.refresh()
    # TensorBoard's own sign for "without TensorFlow", which takes seconds to import and is not needed here.
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
    board = import_module("tensorboard.program").TensorBoard(
        server_class=lambda wsgi_app, flags: Door(wsgi_app, plan["door"], flags.path_prefix, events)
    )
    board.configure(
        logdir=str(events), path_prefix=plan["prefix"], window_title=plan["title"],
        load_fast="false",  # the data server listens on a port, for whoever asks
        reload_interval=plan["look"],
    )  # fmt: skip
    board.launch()
    while True:
        time.sleep(plan["look"])
        if made is not None:
            made.refresh()


def end_with_input(folder: Path) -> None:
    """Wait for the end of the input, then remove the folder and end this process."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


class QuietHandler(WSGIRequestHandler):
    """Answers requests and writes none of them down: the log is for what goes wrong."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


class Door(ThreadedWSGIServer):
    """TensorBoard's server on a socket that listens already: who connects early waits."""

    daemon_threads = True

    def __init__(self, wsgi_app: Any, descriptor: int, prefix: str, events: Path) -> None:
        super().__init__("unix://", 0, wsgi_app, QuietHandler, fd=descriptor)
        self._prefix, self._events = prefix, events

    def get_url(self) -> str:
        """Return where the page is, for what TensorBoard logs."""
        return f"unix:{self.server_address}"

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serve, once the run's points are there to be shown: the page does not look again by itself."""
        deadline = time.monotonic() + LOADING_SECONDS
        wanted = len({path.parent for path in self._events.rglob("events.out.tfevents.*")})
        asking = Client(self.app)
        while time.monotonic() < deadline:
            answer = asking.get(f"{self._prefix}/data/plugin/scalars/tags")
            if answer.status_code != 200 or len(answer.json or ()) >= wanted:
                break
            time.sleep(0.05)
        super().serve_forever(poll_interval)


# Event files from metrics logs, for runs without event files of their own; they follow the logs.
#
#     run folder/metrics-0000.log   ──►   folder/worker-0/events.out.tfevents....
#                                                worker-0/validation/events.out.tfevents....
#
# They are what a run started with ``--tensorboard`` writes itself, but thinned: TensorBoard shows a thousand
# points of a curve, chosen at random, and would take a quarter of a minute to read a few hundred thousand.

MOST_POINTS = 1000  # of a series at one look, its first and its last among them
MOST_RUNS, POINTS_OF_MANY = 50, 200  # where runs are compared: the newest, and of each series so many points
ODD = (NbdistError, OSError, TypeError, ValueError, LookupError, AttributeError)  # of a run.json
AT_ONCE = 100_000  # points: what waits to be written is bounded, and more of it at once would be given up


def own_events(run_folder: Path) -> Path | None:
    """Return the folder with a run's own event files; None if it has none (yet)."""
    folder = run_folder / FOLDER
    return folder if next(folder.rglob("events.out.tfevents.*"), None) is not None else None


class EventsOfLogs:
    """Event files in ``folder`` that say what a run's metrics logs say; `refresh` adds what has come since.

    A refresh looks at the length of each log, and reads what is new. A log that cannot be read is left out,
    and said once on the standard error output.
    """

    def __init__(self, run_folder: Path, folder: Path, most: int = MOST_POINTS) -> None:
        self._run, self._folder, self._most = run_folder, folder, most
        self._tasks: dict[int, str] | None = None  # until there is a point
        self._logs: dict[Path, _Log] = {}
        self._files: dict[int, EventFiles] = {}

    def refresh(self) -> None:
        """Write what the logs have got since the last time."""
        for path in logs_in(self._run):
            log = self._logs.setdefault(path, _Log(replica_of(path)))
            try:
                self._read_on(path, log)
            except (OSError, DataLossError) as error:
                if not log.said:
                    log.said = True
                    _say(f"{path.name} is left out: {error}")

    def _read_on(self, path: Path, log: _Log) -> None:
        size = path.stat().st_size
        if size == log.size:
            return
        part = read_log(path, log.offset)
        log.size, log.offset = size, part.offset
        log.names.update(part.names)
        log.replica = part.replica if part.replica is not None else log.replica
        if len(part.points):
            points = thinned(part.points, self._most)
            names = [log.names.get(one, f"series {one}") for one in range(1 + int(points["series"].max()))]
            files = self._files_of(log.replica)
            for start in range(0, len(points), AT_ONCE):
                files.append(names, points[start : start + AT_ONCE])

    def _files_of(self, replica: int) -> EventFiles:
        if self._tasks is None:
            self._tasks = tasks_of(self._run.name)
        if replica not in self._files:
            name = events_folder(self._run, self._tasks.get(replica, f"replica-{replica}")).name
            # By this clock a second has passed at each look: what is appended is written at once.
            self._files[replica] = EventFiles(self._folder / name, _say, clock=count().__next__)
        return self._files[replica]


class EventsOfRuns:
    """The same for the newest runs in a folder of run folders, each in a folder of its id, to be compared."""

    def __init__(self, runs_folder: Path, folder: Path) -> None:
        self._runs_folder, self._folder = runs_folder, folder
        self._runs: dict[str, EventsOfLogs] = {}

    def refresh(self) -> None:
        """Write what their logs have got since the last time, those of runs that are new among them."""
        ids = sorted((folder.name for folder in self._runs_folder.iterdir() if folder.is_dir()), reverse=True)
        for id in ids[:MOST_RUNS]:  # they begin with the time
            if id not in self._runs:
                folder = self._runs_folder / id, self._folder / id
                self._runs[id] = EventsOfLogs(*folder, most=POINTS_OF_MANY)
            self._runs[id].refresh()


@dataclass
class _Log:
    replica: int
    offset: int = 0
    size: int = -1
    names: dict[int, str] = field(default_factory=dict)
    said: bool = False


def thinned(points: Points, most: int) -> Points:
    """Return points with at most so many of each series, evenly chosen, in their order.

    Extremes are not preferred, as they are in our own charts: TensorBoard smooths what it has got.

    >>> len(thinned(np.zeros(5000, [("series", "u2"), ("value", "f8")]), 1000))
    1000
    """
    if len(points) <= most:
        return points
    order = np.argsort(points["series"], kind="stable")
    each = np.split(order, np.flatnonzero(np.diff(points["series"][order])) + 1)
    chosen = [one[np.linspace(0, len(one) - 1, min(len(one), most)).astype(np.intp)] for one in each]
    kept: Points = points[np.sort(np.concatenate(chosen))]
    return kept


def tasks_of(run_id: str) -> dict[int, str]:
    """Return the name of each replica's task, of those that the run's file names."""
    try:
        return tasks_by_replica(read_run(run_id).cluster)
    except ODD as error:  # its points can be shown without the settings
        _say(f"the replicas of run {run_id} have numbers for names: {error}")
        return {}


def tasks_by_replica(cluster: Mapping[str, Any]) -> dict[int, str]:
    """Return the name of each replica's task from what ``run.json`` says of the cluster.

    >>> tasks_by_replica({"workers": [2], "members": [{"rank": 2, "job": "worker", "index": 0}]})
    {0: '/job:worker/task:0'}
    """
    names = {one["rank"]: f"/job:{one['job']}/task:{one['index']}" for one in cluster.get("members", ())}
    workers = cluster.get("workers", ())
    return {replica: names[rank] for replica, rank in enumerate(workers) if rank in names}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
