"""Cluster folders for tests, with a fake supervisor that replies what a test sets."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from waiting import until

from nbdist.cluster.description import write_description
from nbdist.cluster.folder import claim
from nbdist.cluster.hub import own_versions
from nbdist.cluster.supervisor.process import SOCKET
from nbdist.wire.hosts import host_identity


def a_task(rank: int, pid: int, job: str = "worker", **entries: Any) -> dict[str, Any]:
    """Return a task's entry of cluster.json."""
    task = {"job": job, "index": rank, "rank": rank, "host": host_identity(), "pid": pid}
    return {**task, "address": "127.0.0.1:1", "device": "CPU:0", "incarnation": 1, **entries}


def a_description(name: str, tasks: list[dict[str, Any]], **entries: Any) -> dict[str, Any]:
    """Return the content of a cluster.json."""
    workers = sum(task["job"] == "worker" for task in tasks)
    whole = {"id": name, "created": 1000.0, "workers": workers, "ps": len(tasks) - workers, "tasks": tasks}
    return {**whole, "versions": own_versions(), "asked": {"launcher": "local"}, **entries}


@contextmanager
def a_cluster(name: str, tasks: list[dict[str, Any]] | None = None, **entries: Any) -> Iterator[Path]:
    """Create a cluster folder and hold its lock inside a ``with``; with tasks it has a cluster.json."""
    folder, lock = claim(name)
    try:
        if tasks is not None:
            write_description(folder, a_description(name, tasks, **entries))
        yield folder
    finally:
        with suppress(OSError):
            os.close(lock)


class FakeSupervisor:
    """Answers "watch" on a cluster's socket with `answer`, on a thread."""

    def __init__(self, folder: Path, name: str = SOCKET) -> None:
        self.answer: dict[str, Any] = {"pids": {}, "exits": {}, "stopping": False, "tasks": None}
        self.asked = 0
        self.clients: list[socket.socket] = []
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / name))
        self._door.listen(4)
        self._threads = [threading.Thread(target=self._welcome, daemon=True)]
        self._threads[0].start()

    def tell(self, **message: Any) -> None:
        """Send an event to all clients, after the first has subscribed."""
        until(lambda: self.asked)
        for client in self.clients:
            client.sendall(json.dumps(message).encode() + b"\n")

    def hang_up(self) -> None:
        """Close all connections, and accept new ones."""
        while self.clients:
            with suppress(OSError):  # the client has closed it
                self.clients.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the threads."""
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()

    def _welcome(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self.clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                request = json.loads(line)
                assert request["request"] in ("watch", "usage"), "an observer must not keep a cluster alive"
                self.asked += request["request"] == "watch"
                client.sendall(json.dumps({"reply": request["id"], **self.answer}).encode() + b"\n")
