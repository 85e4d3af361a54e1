"""The client's end of a tunnel, with a program in place of ssh."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import nbdist as nb
from nbdist.cluster import adopt, tunnel, tunnel_end
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import claim, living, remove_traces
from nbdist.cluster.hub import own_versions
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.wire.keys import ClusterKeys


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a shell script that is run as ssh."""
    script = tmp_path / "ssh"
    script.touch(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return script


def never(id: str) -> Cluster:
    """Attach to a cluster; no test comes so far."""
    raise AssertionError(id)


def lines(text: str) -> None:
    """Take a report; no test expects one."""
    raise AssertionError(text)


@pytest.mark.parametrize("name", ["gpus", "threads", "workers", "timeout"])
def test_a_zero_that_the_user_gives_reaches_the_other_end(ssh: Path, name: str) -> None:
    given: dict[str, Any] = {name: 0, "requeue": False, "ps": None}
    ssh.write_text("""#!/bin/sh
read -r line
echo "$line" | sed 's/"/\\\\"/g; s/.*/{"error": ["InvalidArgumentError", "&"]}/'
""")
    with pytest.raises(InvalidArgumentError) as raised:
        tunnel.start_through("login1", given, lines, never)
    assert str(raised.value) == f'on login1: {{"{name}": 0}}'


def test_files_are_read_where_the_user_means_them(
    ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ssh.write_text("""#!/bin/sh
read -r line
echo "$line" | sed 's/"/\\\\"/g; s/.*/{"error": ["InvalidArgumentError", "&"]}/'
""")
    Path("nodes").write_text("a slots=2\nuser@b\n")
    with pytest.raises(InvalidArgumentError, match=r'on login1: {"hosts": \["a:2", "user@b"\]}'):
        tunnel.start_through("login1", {"hosts": "@nodes"}, lines, never)
    with pytest.raises(InvalidArgumentError, match=r'on login1: {"template": "/shared/job.sh"}'):
        tunnel.start_through("login1", {"template": "/shared/job.sh"}, lines, never)
    Path("job.sh").touch()
    for name in ("template", "batch_template", "pod_template"):
        with pytest.raises(
            InvalidArgumentError, match=r"job[.]sh: with --tunnel the head reads this file, on lo"
        ):
            tunnel.start_through("login1", {name: "job.sh"}, lines, never)


def test_a_zero_is_refused_where_the_option_cannot_be_had() -> None:
    with pytest.raises(InvalidArgumentError, match="--orphan-timeout does not go with --tunnel"):
        tunnel.start_through("login1", {"orphan_timeout": 0.0}, lines, never)


def test_a_shell_that_prints_without_end_is_a_sentence(ssh: Path) -> None:
    ssh.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\\\0' '\\\\n'\n")
    with pytest.raises(UnavailableError, match="have its shell's startup files print nothing"):
        tunnel.lead_to("login1")


def test_another_end_that_does_not_answer_is_not_awaited(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "ANSWER_SECONDS", 0.1)
    ssh.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(UnavailableError, match="host login1: it did not answer within the limit"):
        tunnel.lead_to("login1")
    found = {"id": "far", "versions": own_versions(), "keys": ClusterKeys.create().to_dict()}
    found |= {"connection": {}, "description": {}, "busy": {}, "socket": "/far/supervisor.sock"}
    with pytest.raises(UnavailableError, match="host login1: it did not answer within the limit"):
        tunnel.open_tunnel("login1", None, found)
    assert not living()


def test_ssh_says_why_a_tunnel_carries_nothing(ssh: Path) -> None:
    state = {"description": {}, "busy": {}}
    ssh.write_text(f"#!/bin/sh\necho 'channel 2: prohibited' >&2\necho '{json.dumps(state)}'\nexec cat\n")
    found = {"id": "far", "versions": own_versions(), "keys": ClusterKeys.create().to_dict()}
    found |= {"connection": {}, **state, "socket": "/far/supervisor.sock"}
    with pytest.raises(
        UnavailableError, match="carries no connections: ssh says 'channel 2: prohibited'; have"
    ):
        tunnel.open_tunnel("login1", None, found)
    assert not living()


@pytest.mark.parametrize("silent", [True, False], ids=["its network is away", "its ssh has ended"])
def test_a_cluster_behind_a_broken_tunnel_is_not_said_to_be_stopped(tmp_path: Path, silent: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = SupervisorClient(ours, tmp_path / "far")
        client.lead_through("login1")
        if not silent:
            theirs.close()
        with pytest.raises(
            UnavailableError, match=r"far was not stopped, .* %cluster attach --tunnel login1"
        ):
            client.end(0.05)


def test_a_cluster_of_another_host_that_shares_the_folder_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "STOP_SECONDS", 0.1)
    folder, lock = claim("far")  # its supervisor holds the lock, and its socket leads nowhere from here
    with pytest.raises(UnavailableError, match="another host, which shares this folder"):
        adopt.end(folder)
    assert folder.exists()
    os.close(lock)
    adopt.end(folder)
    assert not folder.exists()


def test_a_start_names_the_clusters_that_are_up_on_the_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tunnel_end, "say", lambda **entries: said.append(entries))
    monkeypatch.setattr(tunnel_end, "start_cluster", Mock(side_effect=UnavailableError("no host")))
    monkeypatch.setattr(tunnel_end, "end_with_input", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}\n")))
    folder, lock = claim("far")
    try:
        tunnel_end.main("start")
    finally:
        os.close(lock)
        remove_traces(folder, "far")
    assert said == [
        {"report": "cluster far is up there already: %cluster attach connects to it, too"},
        {"error": ["UnavailableError", "no host"]},
    ]


@pytest.mark.parametrize("host", ["", "login1:2", "-oProxyCommand=x", "login1;x", "a,b", 5, ["login1"]])
def test_what_is_no_host_is_not_given_to_ssh(ssh: Path, tmp_path: Path, host: Any) -> None:
    ssh.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    for call in (
        lambda: nb.start_cluster(tunnel=host, report=None),
        lambda: Cluster.attach(tunnel=host),
    ):
        with pytest.raises(InvalidArgumentError, match="tunnel is a host that ssh reaches, such as login1"):
            call()
    assert not (tmp_path / "called").exists()
