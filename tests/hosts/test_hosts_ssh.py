"""The hosts with an sshd: what they share, and the ways to break them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from host_namespaces import HERE, processes_in
from ssh_hosts import PORT, SshHosts, why_not
from tiers import exhaustive
from waiting import until

from nbdist.cluster.hosts import ssh_command, why_ssh_ended

pytestmark = pytest.mark.netns

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2")
KILLED = """
import json, os, pathlib, signal, sys
sys.path[:0] = sys.argv[1:3]
from ssh_hosts import SshHosts
hosts = SshHosts(pathlib.Path(sys.argv[3]), 1)
hosts.at("head", "ssh", "host1", "setsid sleep 1000 > /dev/null 2>&1 &")
print(json.dumps(sorted(n for name in hosts._holders for n in hosts._namespaces(name))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def why_refused(hosts: SshHosts, host: str, head: str = "head") -> str:
    """Return what ssh says of a host that it cannot log in to."""
    done = hosts.at(head, *SSH, host, "true", check=False)
    assert done.returncode == 255, done
    return done.stderr


def test_each_host_has_a_name_processes_and_a_home_of_its_own(ssh_hosts: SshHosts) -> None:
    for host in ssh_hosts.names:
        script = "hostname; echo $$; echo here > ~/mark; touch /dev/shm/mark; ls ~ /dev/shm"
        name, pid, *files = ssh_hosts.at("head", *SSH, host, script).stdout.split()
        assert (name, files) == (host, ["/dev/shm:", "mark", f"{ssh_hosts.home}:", "mark"])
        assert int(pid) < 100
        assert ssh_hosts.path(host, ssh_hosts.home / "mark").read_text() == "here\n"
    assert ssh_hosts.at("head", "ls", str(ssh_hosts.home)).stdout == ""
    assert ssh_hosts.at("head", *SSH, "host1", "ssh host2 hostname").stdout == "host2\n"
    python = "import os, sys; print(sys.executable, os.environ['NBDIST_HOME'])"
    printed = ssh_hosts.at("head", *SSH, "host3", f'python -c "{python}"').stdout.split()
    assert printed == [sys.executable, str(ssh_hosts.home / "nbdist")]


def test_a_process_that_is_left_is_seen(ssh_hosts: SshHosts) -> None:
    ssh_hosts.at("head", *SSH, "host1", "setsid sleep 1000 > /dev/null 2>&1 &")
    assert until(lambda: ssh_hosts.processes("host1") == ["sleep 1000"])
    assert ssh_hosts.processes("host2") == ssh_hosts.processes("head") == []
    ssh_hosts.at("host1", "pkill", "sleep")


@exhaustive
def test_broken_hosts(ssh_hosts: SshHosts) -> None:
    hosts = ssh_hosts
    hosts.restart_sshd("host1", listen="127.0.0.1")
    assert "Connection refused" in why_refused(hosts, "host1")
    hosts.restart_sshd("host1", key="other")
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in why_refused(hosts, "host1")
    hosts.restart_sshd("host1", authorized="none")
    assert "Permission denied (publickey)" in why_refused(hosts, "host1")
    hosts.restart_sshd("host1", environment={"PATH": "/nowhere"})
    assert "command not found" in hosts.at("head", *SSH, "host1", "python -V", check=False).stderr
    hosts.drop("host1", "head", port=PORT)
    assert "Connection timed out" in why_refused(hosts, "host1")
    hosts.freeze("host2")
    assert "timed out during banner exchange" in why_refused(hosts, "host2")
    hosts.thaw("host2")
    hosts.fill("host2", hosts.home)
    assert "No space left" in hosts.at("host2", "cp", sys.executable, str(hosts.home), check=False).stderr
    hosts.resize("host2", "/dev/shm", "64m")
    assert "64M" in hosts.at("host2", "df", "-h", "/dev/shm").stdout
    hosts.power_off("host3")
    assert hosts.up() == ["host1", "host2", "head"]


def test_connections_that_end(ssh_hosts: SshHosts) -> None:
    """What ssh prints then is explained."""
    hosts = ssh_hosts
    lost = "the connection was lost; check that the host is on"
    assert "ended by a signal there" in why_ended(hosts, "host1", lambda: hosts.at("host1", "pkill", "sleep"))
    killed = lambda: hosts.at("host1", "pkill", "-KILL", "-f", "^sshd: root")
    assert lost in why_ended(hosts, "host1", killed)
    silent = {"host1": hosts.freeze, "host2": hosts.cut, "host3": hosts.power_off}
    with ThreadPoolExecutor(3) as threads:  # each takes seconds to notice it
        why = threads.map(lambda host: why_ended(hosts, host, partial(silent[host], host)), silent)
        assert [lost in one for one in why] == [True] * 3
    hosts.thaw("host1")
    hosts.heal("host2")
    # A command outlives its connection, unless it reads its input.
    for host in ("host1", "host2"):
        hosts.at(host, "pkill", "sleep")


def why_ended(hosts: SshHosts, host: str, end: Callable[[], object]) -> str:
    """Return what is said of an ssh with a connection to a host whose end is something's consequence."""
    alive = ("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2")
    command = hosts.command("head", *ssh_command(host, "echo up; exec sleep 1000", options=alive))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ssh:
        assert ssh.stdout is not None
        assert ssh.stdout.readline() == "up\n"
        end()
        _, stderr = ssh.communicate(timeout=60)
    return why_ssh_ended(host, ssh.returncode, stderr)


def test_a_host_that_dials_in_vain(ssh_hosts: SshHosts) -> None:
    server, client = (ssh_hosts.run(host, "network_actor.py") for host in ("head", "host1"))
    port = server.do(do="listen", address=ssh_hosts.addresses["head"])
    order = {"do": "reach", "address": ssh_hosts.addresses["head"], "port": port}
    assert client.do(**order, seconds=20.0) is True
    ssh_hosts.refuse_dialing("host1", "head")
    assert client.do(**order, seconds=0.5) is False
    assert ssh_hosts.at("head", *SSH, "host1", "hostname").stdout == "host1\n"
    for actor in (server, client):
        actor.kill()


def test_a_killed_test_leaves_no_host(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    command = [sys.executable, "-c", KILLED, str(HERE), str(HERE.parent), str(tmp_path / "ssh")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    namespaces = set(json.loads(done.stdout))
    assert len(namespaces) == 9
    assert os.readlink("/proc/self/ns/net") not in namespaces
    assert processes_in(namespaces) == []
