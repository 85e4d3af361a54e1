"""Supervisors of many hosts, simulated by processes of this one, and the head that watches them.

    with many_hosts(64) as head:
        head.seconds                       # until all have joined
        head.lose("n1")                    # it freezes; seconds until the head knows
        head.processor_seconds(10.0)       # of the head's processes at rest, for a minute

Each host is a real `nbdist.cluster.supervisor.host` with an `NBDIST_HOME` of its own; a program named ``ssh``
starts it here in place of the system's. They have no tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from nbdist.cluster.folder import claim, new_id, remove_traces
from nbdist.cluster.hub import own_versions
from nbdist.cluster.launchers.registry import find_launcher
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.wire.keys import ClusterKeys

JOIN_SECONDS = 120.0  # for all hosts
LOST_SECONDS = 30.0  # for the head to know that one is lost
END_SECONDS = 60.0
REST_SECONDS = 10.0
JOINED, MEMORY, REST = "all have joined", "memory of a host", "the head at rest"
LOST, STOPPED = "a frozen host is lost", "stop"
# It is called as the system's ssh is: options, "--", the host, a command of its shell.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
mkdir -p -m 700 "$MANY_HOSTS/$2"
export NBDIST_HOME="$MANY_HOSTS/$2/nbdist"
exec sh -c "$3"
"""


class Head:
    """The client of the head's supervisor, when all hosts have joined."""

    def __init__(self, client: SupervisorClient, seconds: float) -> None:
        self.client, self.seconds = client, seconds
        hosts = set(self.pids().values())
        (supervisor,) = psutil.Process().children()
        self.own = [supervisor, *(one for one in supervisor.children() if one.pid not in hosts)]

    def pids(self) -> dict[str, int]:
        """Return the pids of the hosts' supervisors, by the hosts' names."""
        self.client.ended()
        return {name: int(report["pid"]) for name, report in self.client.hosts.items()}

    def processor_seconds(self, seconds: float) -> float:
        """Return the processor time of the head's supervisor, relay and controller, for a minute."""
        before = self._processor_time()
        threading.Event().wait(seconds)
        return (self._processor_time() - before) * 60 / seconds

    def memory(self) -> float:
        """Return the mean memory of a host's supervisor and relay, in MB that no other process shares."""
        used = []
        for pid in self.pids().values():
            one = psutil.Process(pid)
            used.append(sum(process.memory_full_info().uss for process in (one, *one.children())))
        return sum(used) / len(used) / 1e6

    def lose(self, name: str) -> float:
        """Freeze a host; return the seconds until the head has lost it, and only it. Thawed, it ends."""
        known = self.pids()
        one = psutil.Process(known[name])
        host, begun = [*one.children(), one], time.monotonic()
        for process in host:
            process.suspend()
        try:
            while time.monotonic() < begun + LOST_SECONDS and name in self.pids():
                self.client.listen(0.05)
            took, left = time.monotonic() - begun, self.pids()
            assert set(known) - set(left) == {name}, f"lost: {sorted(set(known) - set(left))}"
        finally:
            for process in host:
                process.resume()
        _, alive = psutil.wait_procs(host, LOST_SECONDS)
        assert not alive, f"they do not end: {alive}"
        return took

    def _processor_time(self) -> float:
        times = [one.cpu_times() for one in self.own if one.is_running()]
        return sum(one.user + one.system for one in times)


@contextmanager
def many_hosts(count: int) -> Iterator[Head]:
    """Start a head and the supervisors of hosts "n0", "n1", ...; nothing of them is left after the block."""
    before = {name: os.environ.get(name) for name in ("NBDIST_HOME", "MANY_HOSTS", "PATH")}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(SSH)
        (folder / "bin" / "ssh").chmod(0o700)
        os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
        os.environ["MANY_HOSTS"] = temporary
        os.environ["NBDIST_HOME"] = str(folder / "head")
        try:
            yield from _running(count)
            left = [str(path) for path in folder.glob("n*/nbdist/hosts/*")]
            assert not left, f"left: {left}"
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _running(count: int) -> Iterator[Head]:
    names = [f"n{number}" for number in range(count)]
    begun = time.monotonic()
    folder, lock = claim(new_id())
    keys = ClusterKeys.create()
    keys.save(folder / "keys")
    plan: dict[str, Any] = {
        "cluster_id": folder.name,
        "folder": str(folder),
        "idle_timeout": [JOIN_SECONDS, JOIN_SECONDS],
        "timeout": JOIN_SECONDS,
        "launcher": "ssh",
        "settings": find_launcher("ssh").read_settings({"hosts": ",".join(names)}),
        "tasks": [],
        "data": 0,
        "expected": count,
        "hosts": names,
        "versions": own_versions(),
        "keys": keys.to_dict(),
    }
    client = SupervisorClient.start(folder, lock, plan, {})
    os.close(lock)
    try:
        while len(client.hosts) < count:
            client.listen(0.1)
            client.ended()
            failed = client.take("command_ended")
            assert not failed, failed[0]["errors"]
            assert time.monotonic() < begun + JOIN_SECONDS, f"{len(client.hosts)} of {count} have joined"
            assert not client.closed, client.log_tail()
        yield Head(client, time.monotonic() - begun)
    finally:
        client.end(END_SECONDS)
        remove_traces(folder, folder.name)


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep each core busy with other work."""
    work = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(work) for _ in range(psutil.cpu_count() or 1)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=64)
    given = parser.parse_args()
    with many_hosts(given.count) as head:
        found = {JOINED: head.seconds, MEMORY: head.memory()}
        found[REST] = head.processor_seconds(REST_SECONDS)
        with busy_cores():
            found[LOST] = head.lose("n1")
        begun = time.monotonic()
    found[STOPPED] = time.monotonic() - begun
    print(json.dumps(found))


if __name__ == "__main__":
    main()
