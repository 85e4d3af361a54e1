"""The test hosts: shared and separate resources, and their clean-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from host_namespaces import ADDRESSES, HERE, TwoHosts, processes_in, why_not

pytestmark = pytest.mark.netns

KILLED = """
import json, os, signal, sys
sys.path[:0] = sys.argv[1:]
from host_namespaces import TwoHosts
hosts = TwoHosts()
hosts.run("a", "network_actor.py").do(do="where")
print(json.dumps(sorted(n for name in hosts._holders for n in hosts._namespaces(name))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_hosts_have_their_own_names_and_shared_memory(two_hosts: TwoHosts) -> None:
    a, b = two_hosts.run("a", "network_actor.py"), two_hosts.run("b", "network_actor.py")
    again = two_hosts.run("a", "network_actor.py")
    a.do(do="leave", name="nbdist-left")
    here, there, beside = a.do(do="where"), b.do(do="where"), again.do(do="where")
    assert here == beside
    assert here["shared"] == ["nbdist-left"]
    assert there["shared"] == []
    assert here["name"].startswith("nbdist-a-")
    assert there["name"].startswith("nbdist-b-")
    assert here["identity"] != there["identity"]
    assert two_hosts.shared_files("a") == ["nbdist-left"]
    assert not Path("/dev/shm/nbdist-left").exists()
    a.do(do="remove", name="nbdist-left")


def test_a_cut_and_healed_link(two_hosts: TwoHosts) -> None:
    a, b = two_hosts.run("a", "network_actor.py"), two_hosts.run("b", "network_actor.py")
    port = a.do(do="listen", address=ADDRESSES["a"])
    a.ask(do="accept")
    two_hosts.cut("b")
    assert b.do(do="reach", address=ADDRESSES["a"], port=port, seconds=1.0) is False
    two_hosts.heal("b")
    assert b.do(do="reach", address=ADDRESSES["a"], port=port, seconds=20.0) is True
    assert a.answer() == "here"


def test_this_machine_is_not_in_their_network(two_hosts: TwoHosts) -> None:
    links = subprocess.run(["ip", "-oneline", "address"], capture_output=True, text=True, check=True).stdout
    assert not any(address in links for address in ADDRESSES.values())
    assert "bridge" not in links


def test_a_killed_test_leaves_nothing() -> None:
    if why := why_not():
        pytest.skip(why)
    command = [sys.executable, "-c", KILLED, str(HERE), str(HERE.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    namespaces = set(json.loads(done.stdout))
    assert len(namespaces) == 9
    assert os.readlink("/proc/self/ns/net") not in namespaces
    assert processes_in(namespaces) == []
