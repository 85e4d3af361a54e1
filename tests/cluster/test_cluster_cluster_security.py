"""Another user of the host against every port and file of a running cluster."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiers import matrix
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.launch import start_cluster
from nbdist.run.options import Options
from nbdist.run.start import start_run

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
ATTACK = (Path(__file__).parent.parent / "attack.py").read_text()

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


@pytest.fixture(scope="module", params=matrix(["local"], rest=["mpi"]))
def cluster(request: pytest.FixtureRequest, own_home: Path) -> Iterator[Cluster]:
    """Three workers and a parameter server, as plain engines and as ranks of an MPI world."""
    one = start_cluster(3, 1, launcher=request.param, report=None)
    yield one
    one.stop()


def processes(cluster: Cluster) -> list[psutil.Process]:
    supervisor = psutil.Process(cluster.tasks[0].pid).parent()
    assert supervisor is not None
    return [supervisor, *supervisor.children(recursive=True)]


def listening(cluster: Cluster) -> list[Any]:
    found = []
    for process in processes(cluster):
        for entry in process.net_connections("inet"):
            if entry.status == psutil.CONN_LISTEN or entry.type.name == "SOCK_DGRAM":
                found.append(entry.laddr)
    return found


def test_everything_listens_on_loopback_only(cluster: Cluster) -> None:
    addresses = listening(cluster)
    assert len(addresses) >= 4 + 12  # a Server per task, and the controller's channels
    assert {address.ip for address in addresses} == {"127.0.0.1"}


def test_there_are_no_abstract_sockets(cluster: Cluster) -> None:
    for process in processes(cluster):
        for entry in process.net_connections("unix"):
            assert not str(entry.laddr).startswith(("@", "\0"))


def test_another_user_gets_nothing_from_any_port(cluster: Cluster) -> None:
    ports = sorted({address.port for address in listening(cluster)})
    command = [sys.executable, "-c", ATTACK, "127.0.0.1", ",".join(map(str, ports)), cluster.keys.public]
    with subprocess.Popen([*AS_NOBODY, *command], stdout=subprocess.PIPE, cwd="/") as attack:
        while attack.poll() is None:  # the cluster works during the attacks
            assert cluster.run("print('SECRET PAYLOAD' * 100); 'SECRET PAYLOAD'") == ["SECRET PAYLOAD"] * 4
            assert cluster.peer(3).call("ping").kind == "pong"
            with suppress(subprocess.TimeoutExpired):
                attack.wait(0.2)
        got = attack.communicate()[0]
    assert attack.returncode == 0
    assert b"SECRET" not in got
    assert b"ANSWERED" not in got
    assert cluster.dead() == []
    assert all(process.memory_info().rss < 500e6 for process in processes(cluster))


HOLD = """
import collections, resource, socket, sys, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = collections.deque(maxlen=2500)  # each is closed by the task after 5 s: there are always new ones
while True:
    held.extend(socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) for _ in range(25))
    time.sleep(0.03)
"""


def test_connections_that_another_user_holds_do_not_use_up_a_task(own_home: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))  # the usual soft limit
    try:
        one = start_cluster(2, report=None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    most = min(before[1], 1 << 16)
    try:
        limits = one.run("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]")
        assert limits == [most, most]
        if most < 3000:
            pytest.skip(f"the hard limit of descriptors here is {most}: too few are left to be held")
        host, _, port = one.tasks[1].address.rpartition(":")
        command = [*AS_NOBODY, sys.executable, "-c", HOLD, host, port]
        with subprocess.Popen(command, cwd="/") as attack:
            attacked = psutil.Process(one.tasks[1].pid)
            until(lambda: attack.poll() is not None or attacked.num_fds() > 1024, 60)
            assert attack.poll() is None
            run = start_run("nb.log(seen=1.0)", Options(), cluster=one).wait()
            assert run.status != "failed"
            assert one.peer(1).call("ping").kind == "pong"
            assert attack.poll() is None
            attack.kill()
        assert one.dead() == []
    finally:
        one.stop()


def test_another_user_reads_no_file_and_reaches_no_supervisor(cluster: Cluster) -> None:
    script = """
import os, socket, sys
folder = sys.argv[1]
for name in ("keys", "cluster.json", "security", "log", "supervisor.sock", ""):
    path = os.path.join(folder, name)
    try:
        open(path).read() if name != "supervisor.sock" else socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError:
        continue
    sys.exit(f"{path} could be opened")
"""
    done = subprocess.run(
        [*AS_NOBODY, sys.executable, "-c", script, str(cluster.folder)],
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_environments_of_the_processes_hold_no_key(cluster: Cluster) -> None:
    for process in processes(cluster):
        assert cluster.keys.secret not in str(process.environ())
