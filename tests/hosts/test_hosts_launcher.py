"""Clusters on other hosts, through a real sshd on each: what holds on one host holds there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from actors import Actor
from ssh_hosts import SshHosts, traces
from tiers import exhaustive
from waiting import limit, until

pytestmark = pytest.mark.netns

ATTACK = (Path(__file__).parent.parent / "attack.py").read_text()
LEAVE_SECONDS = 20.0  # until a client that should have ended counts as hanging
LOST_SECONDS = 10.0  # until a host that is cut off or gone is known to be lost


def test_a_cluster_trains_changes_and_ends_as_on_one_host(client: Actor, ssh_hosts: SshHosts) -> None:
    started = client.do(do="start", launcher="ssh", hosts="host1:2,host2:1,host3:1", ps=2)
    assert started["phases"] == ["controller", "3", "6", "servers", "ready"]
    assert started["nodes"] == ["host1", "host1", "host2", "host3", "host1", "host2"]
    code = "import os, socket; [socket.gethostname(), os.environ['NBDIST_RANK'], nbdist.task.address]"
    code = code.replace("nbdist.task.address", "__import__('nbdist').task.info.address.rpartition(':')[0]")
    seen = client.do(do="run", code=code)
    assert seen == [
        [host, str(rank), ssh_hosts.addresses[host]] for rank, host in enumerate(started["nodes"])
    ]
    for strategy in ("ps", "multi_worker"):
        trained = client.do(do="train", strategy=strategy)
        assert trained["error"] is None
        assert trained["epoch"]["accuracy"] > 0.3
    assert client.do(do="train", framework="torch")["error"] is None
    killed = client.do(do="kill", rank=2)
    assert killed[0] == "killed by SIGKILL"
    restarted = client.do(do="restart")
    assert restarted[0].startswith("restarted in")
    assert restarted[1:] == started["nodes"]
    check_status(client.do(do="status"), ssh_hosts)
    pids = client.do(do="run", code="__import__('os').getpid()")
    restarted = client.do(do="restart", task="host2")
    assert restarted[0].count("->") == 2  # its worker and its parameter server
    now = client.do(do="run", code="__import__('os').getpid()")
    assert [rank for rank, pid in enumerate(now) if pid != pids[rank]] == [2, 5]
    grown = client.do(do="grow", workers=2)
    assert grown == [*started["nodes"], "host3", "host2"]
    assert client.do(do="shrink", workers=2) == started["nodes"]
    assert client.do(do="train", strategy="multi_worker")["error"] is None
    assert client.do(do="stop") < limit(3)


def check_status(status: dict[str, Any], hosts: SshHosts) -> None:
    """Check what is said of the hosts of a cluster on host1:2,host2:1,host3:1 with two parameter servers."""
    ranks = {"host1": [0, 1, 4], "host2": [2, 5], "host3": [3]}
    assert {row["name"]: row["tasks"] for row in status["hosts"]} == ranks
    assert status["nodes"] == ["host1", "host1", "host2", "host3", "host1", "host2"]
    for row in status["hosts"]:
        assert (row["state"], row["hostname"]) == ("up", row["name"])
        assert (row["address"], row["ends"]) == (hosts.addresses[row["name"]], None)
        assert row["cores"] >= 1
    lines = status["text"].splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("host")] == [
        f"host {name} ({hosts.addresses[name]})" for name in ranks
    ]
    assert [line.split()[0] for line in lines if line.startswith("  ")] == ["rank", *"014253"]


def test_a_host_that_does_not_come_is_one_sentence(client: Actor, ssh_hosts: SshHosts) -> None:
    start = {"do": "start", "launcher": "ssh", "hosts": "host1:1,host2:1"}
    error, text = client.do(**start, python="/no/python")
    assert error == "UnavailableError"
    assert text.startswith(("host host1: ", "host host2: "))
    assert "the shell there finds no such command" in text
    assert "/no/python" in text
    error, text = client.do(**start | {"hosts": f"host1:1,{ssh_hosts.addresses['host1']}:1"})
    assert (error, "is the same machine as host1" in text) == ("FailedPreconditionError", True)
    error, text = client.do(**start | {"hosts": "host1:1,host9:1"})
    assert (error, text.partition(":")[0]) == ("UnavailableError", "host host9")
    assert "does not resolve" in text
    ssh_hosts.refuse_dialing("host2", "head")
    error, text = client.do(**start)
    assert (error, text.partition(":")[0]) == ("UnavailableError", "host host2")
    assert "cannot reach the head of the cluster at 10.91.8.254:" in text
    assert "open the head's ports for this host" in text


@exhaustive
def test_a_host_whose_dask_worker_is_busy_joins_when_it_is_free(
    client: Actor, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    pytest.importorskip("distributed", reason='needs Dask: pip install "nbdist[dask]"')
    dask = ssh_hosts.run("head", "dask_actor.py")
    scheduler = dask.do(do="schedule", address=ssh_hosts.addresses["head"])
    options = ("--no-nanny", "--no-dashboard", "--nthreads=1", f"--local-directory={tmp_path}")
    program = (sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *options)
    workers = [
        subprocess.Popen(ssh_hosts.command(host, *program), stderr=subprocess.DEVNULL)
        for host in ssh_hosts.names
    ]
    try:
        gate = tmp_path / "gate"
        dask.do(do="keep_busy", host="host2", gate=str(gate), workers=3)
        started = client.do(do="start", launcher="dask", scheduler=scheduler, min_workers=2)
        assert started["nodes"] == ["host1", "host3"]
        assert "on host2" in "\n".join(client.do(do="reports"))
        gate.touch()
        assert client.do(do="grown", workers=3) == ["host1", "host3", "host2"]
        client.do(do="stop")
    finally:
        dask.end(LEAVE_SECONDS)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(LEAVE_SECONDS)


def test_the_tasks_of_lost_hosts_move_to_another(client: Actor, ssh_hosts: SshHosts) -> None:
    started = client.do(do="start", launcher="ssh", hosts="host1:1,host2:1,host3:1", data=3)
    assert started["nodes"] == ["host1", "host2", "host3"] * 2
    gate = ssh_hosts.path("host1", ssh_hosts.home / "gate")
    client.do(do="read", gate=str(ssh_hosts.home / "gate"))
    assert until(gate.exists)
    ssh_hosts.power_off("host3")
    ssh_hosts.cut("host2")
    *ended, seconds = client.do(do="dead", ranks=[1, 2, 4, 5])
    lost = "host {} was lost: it has ended, or was cut off from this one"
    assert ended == [lost.format("host2"), lost.format("host3")] * 2
    assert seconds < limit(LOST_SECONDS)
    gate.unlink()
    read = client.do(do="finish")
    assert (read["error"], read["result"]) == (None, [*range(300)])
    assert until(lambda: not traces(ssh_hosts, "host2"), limit(LOST_SECONDS))  # it has ended its tasks itself
    ssh_hosts.heal("host2")  # and does not come back
    states = {row["name"]: row["state"] for row in client.do(do="status")["hosts"]}
    assert states == {"host1": "up", "host2": "lost", "host3": "lost"}
    told, *nodes = client.do(do="restart")
    assert "its host host2 was lost: its process is on host1 now" in told
    assert nodes == ["host1"] * 6
    status = client.do(do="status")
    assert [row["state"] for row in status["hosts"]] == ["up", "lost", "lost"]
    assert "host host2: lost; its tasks are on other hosts" in status["text"]
    assert client.do(do="train", strategy="multi_worker", data="service")["error"] is None
    client.do(do="stop")


def test_a_training_survives_its_client_and_a_host(client: Actor, ssh_hosts: SshHosts) -> None:
    client.do(do="start", launcher="ssh", hosts="host1:1,host2:1,host3:1")
    run = client.do(do="background", epochs=20)
    client.kill()
    other = ssh_hosts.run("head", "cluster_actor.py")
    assert other.do(do="attach", run=run) == ["host1", "host2", "host3"]
    ssh_hosts.power_off("host1")  # the chief's
    ended = other.do(do="finish")
    assert (ended["error"], ended["steps"]) == (None, 20 * 180)
    lost, replaced = ended["notes"]
    assert "task:0 (pid" in lost
    assert "died: host host1 was lost" in lost
    assert "it was replaced after" in replaced
    other.do(do="stop")
    other.end(LEAVE_SECONDS)


@exhaustive
@pytest.mark.parametrize("ends", ["by itself", "by a command"])
def test_a_run_that_ended_without_a_client_loses_nothing(
    client: Actor, ssh_hosts: SshHosts, ends: str
) -> None:
    client.do(
        do="start",
        launcher="ssh",
        hosts="host1:1,host2:1",
        orphan_timeout=4.0 if ends == "by itself" else 90.0,
    )
    run = client.do(do="cell", epochs=3)
    client.kill()
    spool = ssh_hosts.home / "nbdist" / "spool" / run
    assert until(ssh_hosts.path("host1", spool).exists)
    other = ssh_hosts.run("head", "cluster_actor.py")
    if ends == "by a command":
        assert other.do(do="stop_by_command", seconds=limit(30))["missing"] == []
    assert until(lambda: not any(traces(ssh_hosts, host) for host in ssh_hosts.up()), limit(30))
    assert not any(ssh_hosts.path(host, spool).exists() for host in ("host1", "host2"))
    ended = other.do(do="finish", run=run)
    assert (ended["error"], ended["steps"], ended["notes"]) == (None, 3 * 180, [])
    other.kill()


@exhaustive
def test_a_training_goes_on_without_hosts_that_freeze_or_are_not_heard(
    client: Actor, ssh_hosts: SshHosts
) -> None:
    client.do(do="start", launcher="ssh", hosts="host1:1,host2:1,host3:1")
    run = client.do(do="background", epochs=30)
    ssh_hosts.freeze("host1")  # the chief's
    ssh_hosts.drop("host2", "head")  # it hears the head, which does not hear it
    client.do(do="attach", run=run)
    ended = client.do(do="finish")
    assert (ended["error"], ended["steps"]) == (None, 30 * 180)
    notes = "\n".join(ended["notes"])
    for task in ("/job:worker/task:0 (pid", "/job:worker/task:1 (pid"):
        assert task in notes
    ssh_hosts.thaw("host1")  # its processes end, and so have those of host2
    ssh_hosts.hear_again("host2")
    for host in ("host1", "host2"):
        assert until(lambda host=host: not traces(ssh_hosts, host), limit(LOST_SECONDS))
    assert [row["state"] for row in client.do(do="status")["hosts"]] == ["lost", "lost", "up"]
    assert client.do(do="run", code="__import__('nbdist').task.info.node") == ["host3"] * 3
    client.do(do="stop")


@exhaustive
def test_resets_of_the_connections_to_the_head_cost_nothing(client: Actor, ssh_hosts: SshHosts) -> None:
    client.do(do="start", launcher="ssh", hosts="host1:1,host2:1,host3:1")
    run = client.do(do="background", epochs=20)
    client.do(do="attach", run=run)
    client.ask(do="finish")
    while client.silent(0.5):
        ssh_hosts.reset_connections("head")
    ended = client.answer()
    assert (ended["error"], ended["steps"], ended["notes"]) == (None, 20 * 180, [])
    assert {row["state"] for row in client.do(do="status")["hosts"]} == {"up"}
    client.do(do="stop")


def test_hosts_end_their_tasks_without_their_head(client: Actor, ssh_hosts: SshHosts) -> None:
    client.do(do="start", launcher="ssh", hosts="host1:1,host2:1")
    # It cannot clean up. The host has processes of its own: no other one matches.
    ssh_hosts.at("host1", "pkill", "-KILL", "--oldest", "-f", "supervisor.host")
    *ended, seconds = client.do(do="dead", ranks=[0])
    assert ended == ["host host1 was lost: it has ended, or was cut off from this one"]
    assert seconds < limit(2)
    assert traces(ssh_hosts, "host1")
    clean = ssh_hosts.at("head", sys.executable, "-m", "nbdist.cli", "clean", "--hosts", "host1,host2")
    first, second = clean.stdout.splitlines()
    assert first.startswith("host host1: folders removed: 1, shared segments removed: ")
    assert second.startswith("host host2: folders removed: 0, shared segments removed: 0; clusters that live")
    assert not second.endswith(": none")
    assert not traces(ssh_hosts, "host1")
    client.do(do="kill_supervisor")
    assert until(
        lambda: not traces(ssh_hosts, "host1") and not traces(ssh_hosts, "host2"), limit(LOST_SECONDS)
    )
    client.do(do="stop")


@exhaustive
def test_a_supervisor_and_its_relay_watch_each_other(client: Actor, ssh_hosts: SshHosts) -> None:
    client.do(do="start", launcher="ssh", hosts="host1:1,host2:1")
    # Longer than either may be silent, with a request or an answer more often than they ask each other.
    assert client.do(do="signal_often", rank=0, seconds=10.0) == []
    supervisor, relay, *_ = ssh_hosts.at("host1", "pgrep", "-f", "supervisor.host").stdout.split()
    assert relay in ssh_hosts.at("host1", "pgrep", "-P", supervisor).stdout.split()
    ssh_hosts.at("host1", "kill", "-STOP", relay)
    assert until(lambda: not traces(ssh_hosts, "host1"), limit(LOST_SECONDS))
    left = ["pgrep", "-f", "supervisor.host"]
    assert until(lambda: not ssh_hosts.at("host1", *left, check=False).stdout, limit(LOST_SECONDS))
    *ended, _ = client.do(do="dead", ranks=[0])
    assert ended == ["host host1 was lost: it has ended, or was cut off from this one"]
    client.do(do="restart")
    assert client.do(do="run", code="__import__('nbdist').task.info.node") == ["host2"] * 2
    client.do(do="stop")


def test_a_short_cut_costs_nothing(client: Actor, ssh_hosts: SshHosts) -> None:
    client.do(do="start", launcher="ssh", hosts="host1:1,host2:1")
    pids = client.do(do="run", code="import os; os.getpid()")
    for host in ("host1", "head"):
        ssh_hosts.cut(host)
        client.do(do="rest", seconds=2.0)
        ssh_hosts.heal(host)
        assert client.do(do="run", code="import os; os.getpid()") == pids
    client.do(do="stop")


def test_a_cluster_starts_with_enough_hosts_and_others_join_it(client: Actor, ssh_hosts: SshHosts) -> None:
    ssh_hosts.stop_sshd("host2")
    hosts = {"do": "start", "launcher": "ssh", "hosts": "host1:1,host2:2,host3:1"}
    error, text = client.do(**hosts, min_workers=9)
    assert (error, "a whole number of 1 to 4" in text) == ("InvalidArgumentError", True)
    error, text = client.do(**hosts, min_workers=3)
    assert (error, "nothing listens on port 2222" in text) == ("UnavailableError", True)
    started = client.do(**hosts, min_workers=2)
    assert started["nodes"] == ["host1", "host3"]
    assert client.do(do="reports")[2].startswith("host host2: nothing listens on port 2222 of")
    assert client.do(do="train", strategy="multi_worker")["error"] is None
    other = ssh_hosts.run("head", "cluster_actor.py")
    assert other.do(do="attach", run="") == ["host1", "host3"]
    assert other.do(do="awaited") == ["host2"]
    ssh_hosts.restart_sshd("host2")
    for one in (client, other):  # one of the two adds the workers
        assert one.do(do="grown", workers=4) == ["host1", "host3", "host2", "host2"]
        assert one.do(do="awaited", until=0) == []
    assert client.do(do="reports")[-1].startswith("host host2 has come")
    other.kill()
    assert client.do(do="train", strategy="multi_worker")["error"] is None
    client.do(do="stop")


SECRETS = """
import glob, sys
secret = sys.argv[1][::-1]  # so that it is not in the arguments of this process
for path in [*glob.glob("/proc/[0-9]*/environ"), *glob.glob("/proc/[0-9]*/cmdline")]:
    try:
        found = secret in open(path, errors="replace").read()
    except OSError:  # it has ended
        continue
    if found:
        sys.exit(f"the secret key is in {path}")
"""


def test_another_host_and_another_user_get_nothing(client: Actor, ssh_hosts: SshHosts) -> None:
    client.do(do="start", launcher="ssh", hosts="host1:1,host2:1", ps=1, data=1)
    public, secret = client.do(do="keys")
    open_to_others = {}
    for host in ("head", "host1", "host2"):
        open_to_others[host] = [port for _, port in ssh_hosts.open_ports(host)]
    assert {host: len(ports) for host, ports in open_to_others.items()} == {
        # The controller's eight for engines, its six for workers that send datasets, and the relay's.
        "head": 15,
        "host1": 2,
        "host2": 2,
    }
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    for host, ports in open_to_others.items():
        listed = ",".join(map(str, ports))
        where = [ssh_hosts.addresses[host], listed, public]
        got = ssh_hosts.at("host3", *nobody, sys.executable, "-c", ATTACK, *where).stdout
        assert "ANSWERED" not in got
        assert client.do(do="run", code="1 + 1") == [2] * 4
    assert client.do(do="train", strategy="ps", data="service")["error"] is None
    for host in ("head", "host1", "host2"):
        ssh_hosts.at(host, sys.executable, "-c", SECRETS, secret[::-1])
        home = str(ssh_hosts.home / "nbdist")
        listing = ssh_hosts.at(host, *nobody, "ls", home, check=False)
        assert "Permission denied" in listing.stderr
    client.do(do="stop")
