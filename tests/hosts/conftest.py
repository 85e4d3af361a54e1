"""New hosts for each test; nothing may be left in their shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Actor
from host_namespaces import NotHere, TwoHosts, why_not
from ssh_hosts import SshHosts, traces
from ssh_hosts import why_not as why_no_sshd

LEAVE_SECONDS = 20.0  # until a process that is still there counts as left


@pytest.fixture
def two_hosts(request: pytest.FixtureRequest) -> Iterator[TwoHosts]:
    """Hosts "a" and "b", or those that the test's parameter names."""
    if why := why_not():
        pytest.skip(why)
    hosts = TwoHosts(getattr(request, "param", "ab"))
    try:
        yield hosts
        left = {host: hosts.shared_files(host) for host in hosts.addresses}
        assert not any(left.values()), f"left in shared memory: {left}"
    finally:
        hosts.close()


@pytest.fixture
def ssh_hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SshHosts]:
    """The host "head", and "host1", ... with an sshd each: three, or as many as the test's parameter says.

    A test leaves no process and no segment.
    """
    if why := why_no_sshd():
        pytest.skip(why)
    hosts = SshHosts(tmp_path / "ssh", getattr(request, "param", 3))
    try:
        yield hosts
        left = {
            host: [*hosts.processes(host, LEAVE_SECONDS), *hosts.shared_files(host)] for host in hosts.up()
        }
        assert not any(left.values()), f"left on the hosts: {left}"
        assert not any(hosts.home.iterdir()), "a process outside the hosts has written into their home"
    finally:
        hosts.close()


@pytest.fixture
def client(ssh_hosts: SshHosts) -> Iterator[Actor]:
    """A client on the head; in the end nothing of a cluster is left in any host's folder."""
    actor = ssh_hosts.run("head", "cluster_actor.py")
    try:
        yield actor
    finally:
        if actor.process.poll() is None:
            actor.end(LEAVE_SECONDS)  # it stops its cluster, if a test has left one
    left = {host: traces(ssh_hosts, host) for host in ssh_hosts.up()}
    assert not any(left.values()), f"left on the hosts: {left}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    except NotHere as reason:
        pytest.skip(str(reason))
