"""The TensorBoard process: it serves one run, or all runs, on a Unix socket that only its user can open.

    python -P -m nbdist.lab.tensorboard.child        (started by `tensorboard.Boards`)

TensorBoard has no authentication, so it gets no port: neither for its page nor for its data server. Stdin has
the configuration in one line of JSON. At the end of stdin (the Jupyter server closed it or died) this process
removes its folder and ends.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
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
from nbdist.metrics.event_file import FOLDER, EventFiles, events_folder, make_private
from nbdist.metrics.log import Points, logs_in, read_log, replica_of
from nbdist.metrics.run_folder import read_run
from nbdist.run.record import RunRecord

LOADING_SECONDS = 10.0  # the first answer waits so long for the points; loading continues after it


def main() -> None:
    """Serve until the input ends."""
    with open(0, "rb", buffering=0, closefd=False) as given:  # unbuffered: read nothing beyond the line
        plan = json.loads(given.readline())
    threading.Thread(target=end_with_input, args=(Path(plan["folder"]),), daemon=True).start()
    serve(plan)


def serve(plan: dict[str, Any]) -> None:
    """Run TensorBoard on an inherited socket, and keep its event files up to date with the logs."""
    run = Path(plan["run"])
    events_of_logs: EventsOfLogs | EventsOfRuns | None = None
    events = run / FOLDER
    if plan["all"] or not any(events.rglob("events.out.tfevents.*")):  # a run without event files of its own
        events = Path(plan["folder"]) / "events"
        make_private(events)
        events_of_logs = EventsOfRuns(run, events) if plan["all"] else EventsOfLogs(run, events)
        events_of_logs.refresh()
    # TensorBoard's own flag for "without TensorFlow", which takes seconds to import and is not needed.
    sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
    board = import_module("tensorboard.program").TensorBoard(
        server_class=lambda wsgi_app, flags: SocketServer(
            wsgi_app, plan["descriptor"], flags.path_prefix, events
        )
    )
    board.configure(
        logdir=str(events), path_prefix=plan["prefix"], window_title=plan["title"],
        load_fast="false",  # the data server would listen on a port
        reload_interval=plan["look"],
    )  # fmt: skip
    board.launch()
    while True:
        time.sleep(plan["look"])
        if events_of_logs is not None:
            events_of_logs.refresh()


def end_with_input(folder: Path) -> None:
    """Wait for the end of stdin, then remove the folder and end this process."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


class QuietHandler(WSGIRequestHandler):
    """Answers requests without logging them: the log is for errors."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing."""


class SocketServer(ThreadedWSGIServer):
    """TensorBoard's server on a listening socket; early connections wait in its queue."""

    daemon_threads = True

    def __init__(self, wsgi_app: Any, descriptor: int, prefix: str, events: Path) -> None:
        super().__init__("unix://", 0, wsgi_app, QuietHandler, fd=descriptor)
        self._prefix, self._events = prefix, events

    def get_url(self) -> str:
        """Return the address for TensorBoard's log."""
        return f"unix:{self.server_address}"

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serve when the run's points are loaded: the page does not reload by itself."""
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
# A run with ``--tensorboard`` writes the same files in full. These are downsampled: TensorBoard shows a
# thousand random points of a curve, and needs 15 s to read a few hundred thousand.

MAX_POINTS = 1000  # of a series per refresh, including the first and the last
MAX_RUNS, POINTS_OF_MANY = 50, 200  # in the comparison of all runs
BATCH_POINTS = 100_000  # the writer's queue is bounded: more points at once would be dropped


class EventsOfLogs:
    """Event files in ``folder`` with the points of a run's metrics logs; `refresh` adds new points.

    A refresh compares each log's size, and reads appended bytes. A log that cannot be read is skipped, and
    reported once on stderr.
    """

    def __init__(self, run_folder: Path, folder: Path, most: int = MAX_POINTS) -> None:
        self._run, self._folder, self._most = run_folder, folder, most
        self._tasks: dict[int, str] | None = None  # until there is a point
        self._logs: dict[Path, _EventLog] = {}
        self._files: dict[int, EventFiles] = {}

    def refresh(self) -> None:
        """Write the points that were logged since the last refresh."""
        for path in logs_in(self._run):
            log = self._logs.setdefault(path, _EventLog(replica_of(path)))
            try:
                self._read_new(path, log)
            except (OSError, DataLossError) as error:
                if not log.reported:
                    log.reported = True
                    _log(f"{path.name} is skipped: {error}")

    def _read_new(self, path: Path, log: _EventLog) -> None:
        size = path.stat().st_size
        if size == log.size:
            return
        part = read_log(path, log.offset)
        log.size, log.offset = size, part.offset
        log.names.update(part.names)
        log.replica = part.replica if part.replica is not None else log.replica
        if len(part.points):
            points = downsampled(part.points, self._most)
            names = [log.names.get(one, f"series {one}") for one in range(1 + int(points["series"].max()))]
            files = self._files_of(log.replica)
            for start in range(0, len(points), BATCH_POINTS):
                files.append(names, points[start : start + BATCH_POINTS])

    def _files_of(self, replica: int) -> EventFiles:
        if self._tasks is None:
            self._tasks = tasks_of(self._run.name)
        if replica not in self._files:
            name = events_folder(self._run, self._tasks.get(replica, f"replica-{replica}")).name
            # With this clock every call is a second later, so that appended points are written at once.
            self._files[replica] = EventFiles(self._folder / name, _log, clock=count().__next__)
        return self._files[replica]


class EventsOfRuns:
    """Event files of the newest runs, each in a folder named by its id, for comparison."""

    def __init__(self, runs_folder: Path, folder: Path) -> None:
        self._runs_folder, self._folder = runs_folder, folder
        self._runs: dict[str, EventsOfLogs] = {}

    def refresh(self) -> None:
        """Write new points of these runs, and add new runs."""
        ids = sorted((folder.name for folder in self._runs_folder.iterdir() if folder.is_dir()), reverse=True)
        for id in ids[:MAX_RUNS]:  # ids begin with the time
            if id not in self._runs:
                folder = self._runs_folder / id, self._folder / id
                self._runs[id] = EventsOfLogs(*folder, most=POINTS_OF_MANY)
            self._runs[id].refresh()


@dataclass
class _EventLog:
    replica: int
    offset: int = 0
    size: int = -1
    names: dict[int, str] = field(default_factory=dict)
    reported: bool = False


def downsampled(points: Points, most: int) -> Points:
    """Return at most ``most`` points of each series, evenly spaced, in their order.

    Unlike nbdist's charts, it does not prefer extremes: TensorBoard smooths the curve.

    >>> len(downsampled(np.zeros(5000, [("series", "u2"), ("value", "f8")]), 1000))
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
    """Return the task names of a run's replicas, as far as its run.json has them."""
    try:
        record = RunRecord.of(read_run(run_id))
    except (NbdistError, OSError) as error:  # points can be shown without names
        _log(f"the replicas of run {run_id} are named by numbers: {error}")
        return {}
    return {
        replica: record.name_of(rank) for replica, rank in enumerate(record.workers) if rank in record.members
    }


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
