"""One MPI world on two hosts, each with an sshd: its weights, its ports, and lost ranks and hosts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from actors import Actor
from ssh_hosts import SshHosts, traces
from tiers import exhaustive
from waiting import limit, until

pytest.importorskip("mpi4py", reason='needs mpi4py and MPICH: pip install "nbdist[mpi]"')
pytestmark = [pytest.mark.netns, pytest.mark.parametrize("ssh_hosts", [2], indirect=True)]

START = {"do": "start", "launcher": "mpi", "hosts": "host1:2,host2:1"}
PLACE = "from mpi4py.MPI import COMM_WORLD as w; import os; [w.rank, w.size, os.environ['FI_PROVIDER']]"
LOST_SECONDS = 10.0  # until a host that is cut off is known to be lost


def test_two_hosts_are_one_world_that_outlives_a_rank(client: Actor, ssh_hosts: SshHosts) -> None:
    started = client.do(**START, ps=1)
    assert started["nodes"] == ["host1", "host1", "host2", "host1"]
    assert client.do(do="run", code=PLACE) == [[rank, 4, "tcp"] for rank in range(4)]
    (notice,) = [line for line in client.do(do="reports") if line.startswith("launcher mpi: ")]
    assert "neither encrypted nor authenticated" in notice
    # One port for each task, which checks the cluster's keys: those of MPI are closed.
    for host, tasks in {"host1": 3, "host2": 1}.items():
        ports = ssh_hosts.open_ports(host)
        assert len(ports) == tasks
        assert {ip for ip, _ in ports} == {ssh_hosts.addresses[host]}
    weights, expected = (client.do(do="weights", collective=kind) for kind in ("mpi", "ring"))
    assert weights == [weights[0]] * 3
    np.testing.assert_allclose(weights, expected, rtol=1e-5)  # the ring adds in another order
    outlived = client.do(do="outlive", rank=2, collective="mpi")
    assert outlived["error"] is None
    assert "training continued on 2 workers" in outlived["notes"][0]
    assert "is no longer in the MPI world" in client.do(do="restart")[0]
    assert client.do(do="run", code="1 + 1") == [2] * 4
    client.do(do="stop")
    for host in ssh_hosts.names:
        assert not [*ssh_hosts.path(host, "/dev/shm").iterdir()]


@exhaustive
def test_a_rank_that_dies_while_mpi_starts_ends_the_start(
    client: Actor, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    for name, text in {"mpi4py": "raise ImportError", "MPI": "import os; os.kill(os.getpid(), 9)"}.items():
        folder = tmp_path / name / "mpi4py"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
        path = f"{folder.parent}:{ssh_hosts.environment('host2').get('PYTHONPATH', '')}"
        ssh_hosts.restart_sshd("host2", environment={"PYTHONPATH": path})
        error, said = client.do(**START)
        assert error == "UnavailableError"
        assert said.startswith("/job:worker/task:2 (pid ")
        assert ("mpi4py is missing" if name == "mpi4py" else "killed by SIGKILL") in said
    # The ranks of host1 were waiting in MPI's initialisation.
    until(lambda: not traces(ssh_hosts, "host1") and not traces(ssh_hosts, "host2"), limit(LOST_SECONDS))
    assert not [*ssh_hosts.path("host1", "/dev/shm").iterdir()]


@exhaustive
def test_a_host_that_is_cut_off_ends_no_world(client: Actor, ssh_hosts: SshHosts) -> None:
    client.do(**START)
    client.do(do="attach", run=client.do(do="background", epochs=400, collective="mpi"))
    ssh_hosts.cut("host2")
    *ended, seconds = client.do(do="dead", ranks=[2])
    assert ended == ["host host2 was lost: it has ended, or was cut off from this one"]
    assert seconds < limit(LOST_SECONDS)
    assert client.do(do="halt")["error"] is None
    until(lambda: not traces(ssh_hosts, "host2"), limit(LOST_SECONDS))
    ssh_hosts.heal("host2")
    client.do(do="stop")
