"""The end of a tunnel on the host where a cluster's head runs: ``python -m nbdist.cluster.tunnel_end``.

    start              starts a cluster with the options on standard input, and describes it
    find [NAME]        describes a running cluster
    watch NAME [LINK]  writes the cluster's description and its busy tasks whenever they have changed

Each line of the output is JSON; ssh carries it to the client, keys included. A line ``{"report": text}`` is
for the user, ``{"error": [class, text]}`` is the last one. The process ends with its input: then the client
has ended, or the connection is broken.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbdist.cluster.description import FILE
from nbdist.cluster.folder import busy_tasks, find, is_alive, living
from nbdist.cluster.hub import own_versions
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.supervisor.process import SOCKET
from nbdist.errors import NbdistError
from nbdist.wire.keys import ClusterKeys, read_private

WATCH_SECONDS = 0.5  # between two looks at the cluster's folder


def say(**entries: Any) -> None:
    """Write a line of JSON to the client."""
    os.write(1, json.dumps(entries).encode() + b"\n")


def describe(name: str | None) -> dict[str, Any]:
    """Return what a client needs to use a cluster of this host; it has the keys."""
    folder = find(name)
    client = folder / "security" / f"ipcontroller-{folder.name}-client.json"
    return {
        "id": folder.name,
        "socket": str(folder / SOCKET),
        "keys": ClusterKeys.load(folder / "keys").to_dict(),
        "connection": json.loads(read_private(client)),
        "versions": own_versions(),
        **state(name),
    }


def state(name: str | None) -> dict[str, Any]:
    """Return what changes of a cluster: its description, and the runs of its tasks by rank."""
    folder = find(name)
    return {"description": json.loads(read_private(folder / FILE)), "busy": busy_tasks(folder)}


@contextlib.contextmanager
def linked(folder: Path, link: str) -> Iterator[None]:
    """Inside a ``with``, a new private folder ``link`` leads to a folder whose path is too long for ssh."""
    if not link:
        yield
        return
    os.mkdir(link, 0o700)
    try:
        os.symlink(folder, f"{link}/folder")
        yield
    finally:
        shutil.rmtree(link, ignore_errors=True)


def watch(name: str) -> None:
    """Write the cluster's state at first and after each change, until the cluster has ended."""
    folder, said, pause = find(name), None, threading.Event()
    while is_alive(folder):
        with contextlib.suppress(NbdistError, OSError, ValueError):  # it ends
            if (now := state(name)) != said:
                say(**(said := now))
        pause.wait(WATCH_SECONDS)


def end_with_input() -> None:
    """Interrupt this process when its input ends."""
    while sys.stdin.buffer.read(1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main(verb: str, name: str | None = None, link: str = "") -> int:
    """Do what the client asks for; return the exit code."""
    # Nothing but our lines may be written to the output.
    options = json.loads(sys.stdin.buffer.readline()) if verb == "start" else {}
    threading.Thread(target=end_with_input, daemon=True).start()
    try:
        if verb == "watch":
            with linked(find(name), link):
                watch(str(name))
            return 0
        if verb == "start":
            # That of a notebook whose kernel was restarted, say: it lives until it is stopped.
            for other in living():
                say(report=f"cluster {other} is up there already: %cluster attach connects to it, too")
            cluster = start_cluster(report=lambda line: say(report=line), detached=True, **options)
            cluster.close()
            name = cluster.id
        say(**describe(name))
    except NbdistError as error:
        say(error=[type(error).__name__, str(error)])
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
