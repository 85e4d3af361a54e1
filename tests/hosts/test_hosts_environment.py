"""An environment is made on real hosts through ssh, without a network: from wheels that are sent."""

from __future__ import annotations

import json
import platform
import threading
from pathlib import Path

import psutil
import pytest
from ssh_hosts import SshHosts
from waiting import until

from nbdist.cluster.environments.lock import Lock
from nbdist.cluster.environments.pack import own_uv, pack_nbdist, write_wheel, write_zip
from nbdist.cluster.environments.sync import Made, Offer, boot_command, send, shell_exec
from nbdist.cluster.hosts import ssh_command
from nbdist.errors import FailedPreconditionError

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(own_uv() is None, reason="no uv: pip install uv"),
    pytest.mark.parametrize("ssh_hosts", [2], indirect=True),
]


def make_wheel(folder: Path, name: str = "tiny", version: str = "1.2", code: bytes = b"VALUE = 7\n") -> Path:
    """Return a wheel of one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return write_wheel(folder, f"{name}-{version}-py3-none-any.whl", info, files)


def sent(hosts: SshHosts, host: str, offer: Offer, lines: list[str] | None = None) -> Made:
    """Send an offer to a host, from the head."""
    carrier = hosts.command("head", *ssh_command(host, boot_command()))
    return send(offer, carrier, (lines if lines is not None else []).append)


def ran(hosts: SshHosts, host: str, made: Made, code: str) -> str:
    """Run code with what was made on a host."""
    return hosts.at("head", *ssh_command(host, shell_exec(made, "python3", ["-c", code]))).stdout.strip()


def left(hosts: SshHosts, host: str) -> list[str]:
    """Return what lies in a host's folder of environments, but the received files."""
    folder = hosts.path(host, hosts.home / "nbdist" / "environments")
    return sorted(path.name for path in folder.iterdir() if path.name not in ("wheels", "uv", "modules"))


def test_an_environment_is_made_once_and_found_again(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    lock = Lock(platform.python_version(), wheels=(make_wheel(tmp_path),), local=(pack_nbdist(tmp_path),))
    modules = write_zip(tmp_path / "abc.zip", [("mine.py", b"WORD = 'own'\n"), ("part/__init__.py", b"")])
    offer, lines = Offer(lock, modules), list[str]()
    # Two clusters that start at once make it once, and the other host makes its own.
    made: dict[int, Made] = {}
    places = ["host1", "host1", "host2"]

    def start(number: int) -> None:
        made[number] = sent(ssh_hosts, places[number], offer, lines)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made[number].reused for number in (0, 1)) == [False, True]
    assert not made[2].reused
    assert "installs 2 packages" in lines
    assert any("MB" in line for line in lines)
    code = (
        "import json, nbdist, tiny, mine, part, sys; from importlib.metadata import version as v; "
        "print(json.dumps([nbdist.__file__, tiny.VALUE, v('tiny'), mine.WORD, sys.version_info[:2]]))"
    )
    for number, host in enumerate(places):
        found = json.loads(ran(ssh_hosts, host, made[number], code))
        folder = str(ssh_hosts.home / "nbdist" / "environments" / lock.hash)
        assert found[0].startswith(folder)
        assert found[1:] == [7, "1.2", "own", list(map(int, platform.python_version_tuple()[:2]))]
        assert left(ssh_hosts, host) == [lock.hash, f"{lock.hash}.lock"]
        place = ssh_hosts.path(host, Path(folder))
        assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    lines.clear()
    again = sent(ssh_hosts, "host1", offer, lines)
    assert (again.python, again.reused, lines) == (made[0].python, True, [])
    # Another version is another environment, and only its own wheel is sent.
    other = Lock(lock.python, wheels=(make_wheel(tmp_path, version="1.3"),), local=lock.local)
    assert not sent(ssh_hosts, "host1", Offer(other), lines).reused
    assert lines[0].startswith("receives 1 file of")
    assert len(left(ssh_hosts, "host1")) == 4


def test_tasks_import_the_modules_beside_the_notebook(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "beside.py").write_text("WORD = 'sent'\n")
    client = ssh_hosts.run("head", "cluster_actor.py")
    try:
        client.do(do="chdir", folder=str(project))
        started = client.do(do="start", launcher="ssh", hosts="host1:1,host2:1", sync_modules=True)
        assert "nodes" in started, started
        words = client.do(do="run", code="import beside; [beside.WORD, beside.__file__]")
        assert [word for word, _ in words] == ["sent", "sent"]
        assert all("/nbdist/environments/modules/" in path for _, path in words)
        client.do(do="stop")
        error, text = client.do(
            do="start", launcher="ssh", hosts="host1:1", sync_env=True, python="/no/python"
        )
        assert error == "UnavailableError"
        assert text.startswith("host host1: the shell there finds no such command")
    finally:
        client.end(20.0)


def test_what_is_interrupted_or_has_no_room_leaves_nothing_half_made(
    ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    big = make_wheel(tmp_path, code=b"#" + bytes(range(1, 10)) * 10)
    lock = Lock(platform.python_version(), wheels=(big,))
    offer = Offer(lock)
    slow = ssh_hosts.home / "bin" / "uv"
    uv = ssh_hosts.path("host1", slow)
    uv.parent.mkdir()
    script = f'case "$*" in *install*) : > {slow}.on; exec sleep 1000;; esac; exec {own_uv()} "$@"'
    uv.write_text(f"#!/bin/sh\n{script}\n")
    uv.chmod(0o700)
    ssh_hosts.restart_sshd("host1", environment={"PATH": f"{slow.parent}:/usr/bin:/bin"})
    carrier = ssh_hosts.command("head", *ssh_command("host1", boot_command()))
    ended: list[BaseException] = []

    def start() -> None:
        try:
            send(offer, carrier, print)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: ssh_hosts.path("host1", Path(f"{slow}.on")).exists())
    assert any(".part-" in name for name in left(ssh_hosts, "host1"))
    (ssh,) = (one for one in psutil.Process().children(recursive=True) if one.name() == "ssh")
    ssh.terminate()
    thread.join()
    assert "255" in str(ended[0]) or "ended with status" in str(ended[0])
    until(lambda: left(ssh_hosts, "host1") == [f"{lock.hash}.lock"])
    assert until(lambda: not ssh_hosts.processes("host1"))
    ssh_hosts.restart_sshd("host1")
    assert not sent(ssh_hosts, "host1", offer).reused
    ssh_hosts.fill("host2", ssh_hosts.home)
    with pytest.raises(FailedPreconditionError, match=r"its disk is full: .* has 0 MiB left, and \d+ MiB"):
        sent(ssh_hosts, "host2", offer)


def test_each_failure_is_a_sentence(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    version = platform.python_version()
    tiny = Lock(version, wheels=(make_wheel(tmp_path),))

    def why(lock: Lock, host: str = "host1", python: str | None = None, **changed: object) -> str:
        offer = Offer(lock, python=python)
        offer.order.update(changed)
        with pytest.raises(FailedPreconditionError) as raised:
            sent(ssh_hosts, host, offer)
        assert not any(".part-" in name for name in left(ssh_hosts, host))
        return str(raised.value)

    ssh_hosts.restart_sshd("host2", environment={"PATH": "/usr/bin:/bin"})
    assert why(tiny, "host2", uv=None).startswith("it has no uv, and neither has the notebook's host")
    # Nothing answers at this port of the host.
    nowhere = {"UV_INDEX_URL": "http://127.0.0.1:9/", "UV_HTTP_RETRIES": "0"}
    said = why(Lock(version, ("numpy==2.4.6",), variables=nowhere))
    assert said.startswith("it does not reach the packages' index for numpy==2.4.6 (")
    links = tmp_path / "links"
    links.mkdir()
    make_wheel(links, "other").rename(links / "other-1.2-cp27-none-win32.whl")
    local = {"UV_FIND_LINKS": str(links)}
    said = why(Lock(version, ("other==1.2",), variables=local), index=False)
    assert said.startswith(
        "other==1.2 has no wheel for it; make one with `pip wheel --no-deps other==1.2 -w "
    )
    assert "has no never" in why(Lock(version, ("never==9",), variables=local), index=False)
    said = why(tiny, platform=["Windows", "AMD64", "libc"])
    assert "the notebook's host a Windows AMD64 libc: the notebook's packages do not run there" in said
    assert why(tiny, python="/no/python").startswith("it has no Python ")
    assert "name its path with --python PATH" in why(tiny, python="/no/python")
