"""The client's end of a tunnel, with a program in place of ssh."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster import tunnel
from nbdist.cluster.cluster import Cluster
from nbdist.errors import InvalidArgumentError, UnavailableError


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


def test_a_zero_is_refused_where_the_option_cannot_be_had() -> None:
    with pytest.raises(InvalidArgumentError, match="--orphan-timeout does not go with --tunnel"):
        tunnel.start_through("login1", {"orphan_timeout": 0.0}, lines, never)


def test_a_shell_that_prints_without_end_is_a_sentence(ssh: Path) -> None:
    ssh.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\\\0' '\\\\n'\n")
    with pytest.raises(UnavailableError, match="have its shell's startup files print nothing"):
        tunnel.lead_to("login1")
