"""The process that is TensorBoard: it serves one run, or all, on a Unix socket that only its user can reach.

    python -P -m nbdist.lab.tensorboardchild        (started by `tensorboard.Boards`)

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
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.test import Client

from nbdist.lab.tensorboardevents import EventsOfLogs, EventsOfRuns, own_events
from nbdist.metrics.events import make_private

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


if __name__ == "__main__":
    main()
