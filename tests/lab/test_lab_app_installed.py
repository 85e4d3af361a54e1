"""After `pip install nbdist[lab]` the extension and its server part are enabled."""

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


def output_of(tmp_path: Path, *command: str) -> str:
    """Return the output of a Jupyter command for a user without settings."""
    environment = {**os.environ, "HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path / "config")}
    done = subprocess.run(
        [COMMANDS / command[0], *command[1:]],
        env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return COLOURS.sub("", done.stdout + done.stderr)


def test_jupyterlab_lists_the_extension_as_enabled(tmp_path: Path) -> None:
    output = output_of(tmp_path, "jupyter", "labextension", "list")
    assert re.search(r"^\s*nbdist v\S+ enabled OK", output, re.MULTILINE), output


def test_the_server_lists_its_part_as_enabled_and_finds_it(tmp_path: Path) -> None:
    output = output_of(tmp_path, "jupyter", "server", "extension", "list")
    assert re.search(r"^\s*nbdist\.lab enabled", output, re.MULTILINE), output
    assert re.search(r"^\s*nbdist\.lab \S* ?OK", output, re.MULTILINE), output


def test_what_is_installed_was_built_from_this_checkout() -> None:
    root = Path(__file__).parents[2]
    installed = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "nbdist"
    built = json.loads((installed / "package.json").read_text())["jupyterlab"]["_build"]
    assert (installed / built["load"]).read_bytes() == (
        root / "labextension/built" / built["load"]
    ).read_bytes()
