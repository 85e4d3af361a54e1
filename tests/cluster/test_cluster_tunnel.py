"""The client's end of a tunnel, with a program in place of ssh."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster import adopt, tunnel
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import claim, living
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


from nbdist.cluster.folder import claim, living
from nbdist.cluster.hub import own_versions
from nbdist.cluster.supervisor.client import SupervisorClient
