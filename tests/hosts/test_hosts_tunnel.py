"""A client that no host can reach: the cluster's head is on another host, and all goes through one ssh."""

from __future__ import annotations

import pytest
from ssh_hosts import SshHosts
from waiting import until

pytestmark = pytest.mark.netns

LEAVE_SECONDS = 20.0  # until a process that should have ended counts as left


def test_a_cluster_outlives_its_client_behind_nat(ssh_hosts: SshHosts) -> None:
    """Also one with a host that comes when another client has connected."""
    for host in ssh_hosts.names:
        ssh_hosts.refuse_dialing(host, "head")
    client = ssh_hosts.run("head", "cluster_actor.py")
    hosts = {"launcher": "ssh", "hosts": "host2:1,host3:1"}
    error, text = client.do(do="tunnel", host="host1", **hosts, sync_modules=True)
    assert (error, "--sync-modules does not go with --tunnel" in text) == ("InvalidArgumentError", True)
    error, text = client.do(do="tunnel", host="host1", launcher="ssh", hosts="host2:1,host9:1")
    assert (error, text.partition(": ")[0]) == ("UnavailableError", "on host1")
    assert "does not resolve" in text
    ssh_hosts.stop_sshd("host3")
    assert client.do(do="tunnel", host="host1", cluster_id="far", min_workers=1, **hosts) == ["host2"]
    trained = client.do(do="train", strategy="multi_worker")
    assert trained["error"] is None
    assert trained["epoch"]["accuracy"] > 0.3
    run = client.do(do="background", epochs=4000)
    client.process.kill()
    client.process.wait()
    watching = "tunnel_end watch"
    until(lambda: not any(watching in line for line in ssh_hosts.processes("host1")), LEAVE_SECONDS)

    client = ssh_hosts.run("head", "cluster_actor.py")
    assert client.do(do="attach", run=run, tunnel="host1") == ["host2"]
    ssh_hosts.restart_sshd("host3")
    assert client.do(do="grown", workers=2) == ["host2", "host3"]
    assert client.do(do="break_tunnel") == ["running", True]
    assert client.do(do="attach", run=run, tunnel="host1") == ["host2", "host3"]
    finished = client.do(do="halt")
    assert finished["error"] is None
    assert finished["steps"] > 50
    error, text = client.do(do="fetch")
    assert (error, "a tunnel does not lead to it" in text) == ("FailedPreconditionError", True)
    assert client.do(do="kill", rank=1)[0] == "killed by SIGKILL"
    assert client.do(do="restart")[1:] == ["host2", "host3"]
    client.do(do="stop")
    client.end(LEAVE_SECONDS)
    for host in ssh_hosts.up():
        for part in ("clusters", "hosts"):
            folder = ssh_hosts.path(host, ssh_hosts.home / "nbdist" / part)
            assert not folder.is_dir() or not list(folder.iterdir())
