"""Hosts that are broken on purpose: `nbdist doctor` and a start say one sentence of each, with the cause."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ssh_hosts import NETWORK, PORT, SshHosts
from waiting import limit

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]

SECONDS = 10.0  # for all sentences
WITHOUT_OPTUNA = """
import importlib.metadata as metadata
found = metadata.version
def version(name):
    if name == "optuna":
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.version = version
"""
OVER_QUOTA = """
import errno, os
def fsync(descriptor):
    raise OSError(errno.EDQUOT, "Disk quota exceeded")
os.fsync = fsync
"""


def doctor(hosts: SshHosts, names: list[str], *flags: str) -> dict[str, str]:
    """Return the sentence about each host that has a problem, without its name; all within 10 s."""
    begun = time.monotonic()
    command = (sys.executable, "-m", "nbdist.cli", "doctor", "--hosts", ",".join(names), *flags)
    done = hosts.at("head", *command, check=False)
    took = time.monotonic() - begun
    print(f"{took:.1f} s\n{done.stdout}{done.stderr}")
    assert done.stderr == ""
    assert took < limit(SECONDS)
    lines = re.findall(r"^(?:host )?(this host|\S+): (.+)$", done.stdout, re.MULTILINE)
    found = dict(lines)
    assert len(found) == len(lines)
    assert done.returncode == bool(found)
    return found


@contextmanager
def starting(
    hosts: SshHosts, names: list[str], broken: list[str], **options: object
) -> Iterator[dict[str, str]]:
    """Start a cluster on hosts while the doctor examines them; `broken` have a sentence within 10 s.

    The sentences are in the dictionary after the block.
    """
    client, begun = hosts.run("head", "cluster_actor.py"), time.monotonic()
    client.ask(do="start", launcher="ssh", hosts=",".join(names), min_workers=1, **options)
    found: dict[str, str] = {}
    yield found
    started = client.answer()
    assert "nodes" in started, started
    lines = client.do(do="heard", hosts=broken, seconds=limit(3 * SECONDS))
    print(f"{time.monotonic() - begun:.1f} s", *lines, sep="\n")
    client.do(do="stop")
    client.end(SECONDS)
    found |= dict(
        re.findall(r"^host (\S+): (.+?)(?:\. The cluster starts without it)?$", "\n".join(lines), re.M)
    )


def customized(hosts: SshHosts, host: str, code: str) -> None:
    """Have each Python of a host's sessions run some code first."""
    folder = hosts.folder / f"{host}-site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    first = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    hosts.restart_sshd(host, environment={"PYTHONPATH": first})


def with_package(hosts: SshHosts, host: str, name: str, version: str) -> None:
    """Have a host's Python find another version of a package."""
    info = hosts.folder / f"{host}-packages" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    first = f"{info.parent}:{os.environ.get('PYTHONPATH', '')}"
    hosts.restart_sshd(host, environment={"PYTHONPATH": first})


def expect(found: dict[str, str], expected: dict[str, str]) -> None:
    """Check that exactly the expected hosts have a sentence, each with an expected part."""
    assert set(found) == set(expected), found
    for host, part in expected.items():
        assert part in found[host], f"{host}: {found[host]}"


@pytest.mark.parametrize("ssh_hosts", [8], indirect=True)
def test_hosts_that_ssh_does_not_reach(ssh_hosts: SshHosts) -> None:
    hosts = ssh_hosts
    hosts.drop("host1", "head", port=PORT)
    hosts.restart_sshd("host2", listen="127.0.0.1")
    hosts.restart_sshd("host3", authorized="none")
    hosts.restart_sshd("host4", key="another")
    hosts.freeze("host5")
    hosts.power_off("host6")
    (hosts.folder / "known_hosts").write_text(
        re.sub(rf"^\S+:{PORT} (?=.* host7$).*\n", "", (hosts.folder / "known_hosts").read_text(), flags=re.M)
    )
    strangers = ["no..where", "nowhere", "10.99.0.1", f"{NETWORK}.200"]
    names = [*hosts.names, *strangers]
    with starting(hosts, names, [name for name in names if name != "host8"]) as told:
        found = doctor(hosts, names)
    expected = {
        "host1": f"port {PORT} of {hosts.addresses['host1']} does not answer",
        "host2": f"nothing listens on port {PORT} of {hosts.addresses['host2']}",
        "host3": "it refuses this user's keys; run `ssh-copy-id host3`",
        "host4": f"its host key is not the one in {hosts.folder}/known_hosts:",
        "host5": "its sshd does not answer: the host is frozen",
        "host6": f"there is no route to {hosts.addresses['host6']}; check that the host is on",
        "host7": "its host key is not known on this host",
        "no..where": "the name no..where does not resolve",
        "nowhere": "the name nowhere does not resolve",
        "10.99.0.1": "there is no route to 10.99.0.1",
        f"{NETWORK}.200": f"there is no route to {NETWORK}.200",
    }
    expect(found, expected)
    expect(told, expected)
    hosts.thaw("host5")


@pytest.mark.parametrize("ssh_hosts", [7], indirect=True)
def test_hosts_with_another_python(ssh_hosts: SshHosts) -> None:
    hosts = ssh_hosts
    hosts.restart_sshd("host1", environment={"PATH": "/nowhere"})
    # A Python of the same version, outside of the environment with nbdist.
    other = hosts.folder / "other"
    other.mkdir()
    (other / "python").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    hosts.restart_sshd("host2", environment={"PATH": f"{other}:/usr/bin:/bin", "PYTHONPATH": ""})
    customized(hosts, "host3", "import sys; sys.version_info = (3, 8, 10)")
    customized(hosts, "host4", "import platform; platform.python_version = lambda: '3.99.1'")
    with_package(hosts, "host5", "nbdist", "9.9.9")
    with_package(hosts, "host6", "numpy", "1.26.4")
    customized(hosts, "host7", WITHOUT_OPTUNA)
    with starting(hosts, hosts.names, hosts.names[:6], python="python") as told:
        found = doctor(hosts, hosts.names, "--python", "python", "--extras", "sweep")
    expected = {
        "host2": "has no nbdist; ",
        "host3": "and nbdist needs 3.11 or newer",
        "host4": "its Python is 3.99.1, and this host's is 3.",
        "host5": "it has nbdist 9.9.9, and this host ",
        "host6": "it has numpy 1.26.4, and this host ",
    }
    extra = '-m pip install "nbdist[sweep]"` there'
    expect(found, {**expected, "host1": "it has no Python at python (", "host7": extra})
    expect(told, {**expected, "host1": "the shell there finds no such command ("})


@pytest.mark.parametrize("ssh_hosts", [9], indirect=True)
def test_hosts_with_too_little(ssh_hosts: SshHosts) -> None:
    hosts = ssh_hosts
    hosts.at("host1", "mount", "-o", "remount,ro", str(hosts.home))
    hosts.fill("host2", hosts.home)
    hosts.resize("host3", "/dev/shm", "64m")
    hosts.fill("host4", "/dev/shm")
    customized(hosts, "host5", "import time; now = time.time; time.time = lambda: now() + 3600")
    hosts.refuse_dialing("host6", "head")
    hosts.drop("host8", "host7")
    customized(hosts, "host9", OVER_QUOTA)
    with (hosts.folder / "config").open("a") as config:
        config.write(f"Host again\n  HostName {hosts.addresses['host5']}\n")
    names = [*hosts.names, "again"]
    broken = [name for name in names if name not in ("host7", "host8")]
    with starting(hosts, names, broken) as told:
        found = doctor(hosts, names)
    expected = {
        "host1": f"its folder {hosts.home}/nbdist cannot be written (Read-only file system)",
        "host2": f"the disk of {hosts.home}/nbdist has 0 MiB left",
        "host3": "its /dev/shm has 64 MiB, as a container by default",
        "host4": "its /dev/shm has 0 MiB of 256 MiB left",
        "host5": "its clock is 3600 s ahead of this host's",
        "host9": f"your disk quota for {hosts.home}/nbdist is used up",
        "again": "it is the same machine as host5",
    }
    towards_head = {
        "host6": f"it does not reach this host at {hosts.addresses['head']}:",
        "host7": "it does not reach host8 (timed out)",
        "host8": "it does not reach host7 (",
    }
    expect(found, expected | towards_head)
    expect(told, {**expected, "host6": "it cannot reach the head of the cluster at"})


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a driver")
def test_hosts_without_gpus(ssh_hosts: SshHosts) -> None:
    found = doctor(ssh_hosts, ["host1:2", "host2"], "--gpus", "2")
    text = "GPUs are asked for, and it has no NVIDIA driver"
    expect(found, {"this host": text, "host1": text, "host2": text})


def test_hosts_that_a_cluster_can_use(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    listed = tmp_path / "hosts"
    listed.write_text("host1 slots=2  # a comment\nroot@host2\nhost3:1\n")
    assert doctor(ssh_hosts, [f"@{listed}"], "--gpus", "auto") == {}
    for host in ssh_hosts.names:
        assert list(ssh_hosts.path(host, ssh_hosts.home).iterdir()) == []


def test_the_configuration_of_ssh_is_used(ssh_hosts: SshHosts) -> None:
    """A jump host, a name of one's own, and a connection that ssh keeps in the background."""
    hosts = ssh_hosts
    hosts.drop("host2", "head", port=PORT)
    config = hosts.folder / "config"
    jumps = "".join(
        f"Host {name}\n  HostName {address}\n  ProxyJump host1\n"
        for name, address in (("behind", hosts.addresses["host2"]), ("beyond", f"{NETWORK}.200"))
    )
    kept = "Host host3\n  ControlMaster auto\n  ControlPersist 1\n  ControlPath /run/%C\n"
    config.write_text(jumps + kept + config.read_text())
    found = doctor(hosts, ["host1", "behind", "beyond", "host3"])
    expect(found, {"beyond": "the jump host cannot reach it (No route to host)"})
