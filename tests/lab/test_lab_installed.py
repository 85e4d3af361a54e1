"""What `pip install nbdist[lab]` leaves: extension and server part are on, with nothing more to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

COMMANDS = Path(sys.executable).parent
COLOURS = re.compile(r"\x1b\[\d+m")


def said_by(tmp_path: Path, *command: str) -> str:
    """What a command of Jupyter prints for a user with no settings of their own."""
    environment = {**os.environ, "HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path / "config")}
    done = subprocess.run(
        [COMMANDS / command[0], *command[1:]],
        env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return COLOURS.sub("", done.stdout + done.stderr)


def test_jupyterlab_lists_the_extension_as_enabled(tmp_path: Path) -> None:
    said = said_by(tmp_path, "jupyter", "labextension", "list")
    assert re.search(r"^\s*nbdist v\S+ enabled OK", said, re.MULTILINE), said


def test_the_server_lists_its_part_as_enabled_and_finds_it(tmp_path: Path) -> None:
    said = said_by(tmp_path, "jupyter", "server", "extension", "list")
    assert re.search(r"^\s*nbdist\.lab enabled", said, re.MULTILINE), said
    assert re.search(r"^\s*nbdist\.lab \S* ?OK", said, re.MULTILINE), said


def test_what_is_installed_was_built_from_this_checkout() -> None:
    root = Path(__file__).parents[2]
    installed = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "nbdist"
    built = json.loads((installed / "package.json").read_text())["jupyterlab"]["_build"]
    assert (installed / built["load"]).read_bytes() == (
        root / "labextension/built" / built["load"]
    ).read_bytes()
