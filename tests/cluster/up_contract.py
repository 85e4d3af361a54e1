"""What holds for each launcher whose hosts are those of a cluster that is up."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from actors import Actor
from ports import free_port
from waiting import limit, until

import nbdist as nb
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.launchers.existing_cluster import command_of, find_hosts
from nbdist.cluster.launchers.registry import find_launcher
from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.wire.keys import ClusterKeys

UP_SECONDS = 100.0  # for the cluster to start
LEAVE_SECONDS = 15.0  # until a process that should have ended counts as left
PAGE = Path(__file__).parents[2] / "docs" / "hosts.md"
ACTOR_PROCESS = "nbdist.cluster.launchers.actor_process"
SCRIPT = Path(__file__).with_name("up_cluster.py")


def supervisor_processes() -> list[psutil.Process]:
    """Return the processes of this test session that run a host's supervisor, and the supervisors."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            named = {ACTOR_PROCESS, "nbdist.cluster.supervisor.host"} & {*process.cmdline()}
            if named and process.environ().get("NBDIST_HOME") == os.environ["NBDIST_HOME"]:
                found.append(process)
    return found


TRAIN = """
x, y, *_ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Flatten(), nb.nn.Dense(10, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=2)
"""


def without_numbers(text: str) -> str:
    """Return a transcript without what differs between two starts: times, and the ports of addresses."""
    text = re.sub(r"\d+\.\d s\b", "T s", text)
    return re.sub(r"\b\d+\.\d+\.\d+\.\d+:\d+", "HOST:PORT", text)


class UpClusterContract:
    """Inherited by the tests of each launcher."""

    kind: str
    """The name of the launcher."""
    wrong: dict[str, Any]
    """Settings of a cluster that is not there."""

    @pytest.fixture(scope="class")
    @classmethod
    def up(cls, own_home: Path) -> Iterator[dict[str, Any]]:
        """The settings of a cluster that is up, with two workers on this host."""
        actor = Actor([sys.executable, str(SCRIPT), cls.kind], f"the {cls.kind} cluster")
        try:
            yield actor.answer(UP_SECONDS)["settings"]
            actor.end(LEAVE_SECONDS)
        finally:
            actor.kill()

    @pytest.fixture(autouse=True)
    def _nothing_left(self) -> Iterator[None]:
        yield
        assert until(lambda: not supervisor_processes(), limit(LEAVE_SECONDS)), supervisor_processes()

    def command(self, settings: dict[str, Any], *hosts: str) -> list[str]:
        spec = find_launcher(self.kind)
        return [*command_of(self.kind, spec.settings, spec.read_settings(settings)), *hosts]

    def test_the_workers_of_a_machine_are_one_host(self, up: dict[str, Any]) -> None:
        spec = find_launcher(self.kind)
        hosts = find_hosts(self.kind, spec.settings, spec.read_settings(up))
        assert [str(host) for host in hosts] == [socket.gethostname()]

    def test_a_cluster_trains_and_ends_with_the_host(self, up: dict[str, Any]) -> None:
        lines: list[str] = []
        cluster = start_cluster(2, ps=1, launcher=self.kind, report=lines.append, **up)
        try:
            assert [info.node for info in cluster.tasks] == [socket.gethostname()] * 3
            assert without_numbers("\n".join(lines)) in without_numbers(PAGE.read_text())
            found = cluster.stacks(socket.gethostname())  # by the supervisor of that host
            assert [(one.task, one.problem) for one in found.tasks] == [
                ("worker:0", ""), ("worker:1", ""), ("ps:0", ""),
            ]  # fmt: skip
            for strategy in ("multi_worker", "ps"):
                assert nb.launch(TRAIN, strategy=strategy, cluster=cluster).error is None
        finally:
            cluster.stop()
        assert until(lambda: not supervisor_processes(), limit(LEAVE_SECONDS))
        again = start_cluster(1, launcher=self.kind, report=None, **up)
        try:
            (process,) = (one for one in supervisor_processes() if ACTOR_PROCESS in one.cmdline())
            parent = process.parent()
            assert parent is not None
            parent.kill()  # the worker, whose child the supervisor's process is
            assert until(lambda: [info.rank for info in again.dead()] == [0], limit(LEAVE_SECONDS))
            assert again.status()[0]["ended"]
        finally:
            again.stop()

    def test_what_is_not_there_is_one_sentence(self) -> None:
        with pytest.raises(InvalidArgumentError, match=f"launcher '{self.kind}' needs"):
            start_cluster(1, launcher=self.kind, report=None)
        with pytest.raises(UnavailableError, match=rf"^launcher '{self.kind}': [^\n]+$"):
            start_cluster(1, launcher=self.kind, report=None, **self.wrong)

    def plan(self, port: int) -> bytes:
        keys = ClusterKeys.create().to_dict()
        values = {"cluster_id": "up", "keys": keys, "timeout": 20, "heads": ["127.0.0.1"], "port": port}
        return json.dumps(values).encode() + b"\n"

    def test_a_host_that_does_not_join_is_the_last_line(self, up: dict[str, Any]) -> None:
        command = self.command(up, socket.gethostname())
        done = subprocess.run(command, input=self.plan(free_port()), capture_output=True, timeout=60)
        said = done.stderr.decode().splitlines()[-1]
        assert done.returncode == 1
        assert said.startswith(f"host {socket.gethostname()}: it cannot reach the head of the cluster at"), (
            said
        )
        done = subprocess.run(
            self.command(up, "elsewhere"), input=self.plan(free_port()), capture_output=True, timeout=60
        )
        assert done.stderr.decode().splitlines()[-1].startswith("host elsewhere: ")

    def test_sigterm_ends_what_it_has_started(self, up: dict[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            command = subprocess.Popen(
                self.command(up, socket.gethostname()), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert command.stdin is not None
            assert command.stdout is not None
            with command.stdin, command.stdout:
                command.stdin.write(self.plan(silent.getsockname()[1]))
                command.stdin.flush()
                assert until(lambda: len(supervisor_processes()) >= 2, limit(30))
                command.send_signal(signal.SIGTERM)
                assert command.wait(limit(LEAVE_SECONDS)) == 143
