"""The page for assistants: it is in the wheel, and each of its commands runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tiers import exhaustive

from nbdist.cli.__main__ import GROUP, VERBS, main
from nbdist.cli.guide import guide_text
from nbdist.cli.text import VerbGroup
from nbdist.metrics.run_folder import RunFile, runs_folder, write_run

BLOCKS = re.findall(r"```(\w+)\n(.*?)```", guide_text(), re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]
(SCRIPT,) = (block for kind, block in BLOCKS if kind == "python")
STARTS = (
    "run ",
    "sweep ",
    "simulate",
    "cluster start",
    "cluster stop",
    "runs resume",
    "runs pause",
    "runs set",
    "runs stop",
)
"""Verbs that need a cluster or a run under way, or compute for long."""


@pytest.fixture
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("NBDIST_HOME", str(home))
    for run_id in ("RUN", "OTHER"):
        folder = runs_folder() / run_id
        folder.mkdir(mode=0o700)
        members = [{"job": "worker", "index": 0, "rank": 0, "host": "h", "pid": 1, "address": "a:1",
                    "device": "CPU:0", "incarnation": 1}]  # fmt: skip
        cluster = {"id": "c", "workers": [0], "members": members, "tasks": ["/job:worker/task:0"]}
        write_run(RunFile(run_id, status="finished", ended=2_000.0, cluster=cluster), wait=False)
        (folder / "output-0000.log").write_text("hello\n")


def test_the_verb_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guide"]) == 0
    assert capsys.readouterr().out.strip() == guide_text().strip()
    assert main(["guide", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["guide"] == guide_text()


def test_it_is_one_page() -> None:
    assert len(guide_text()) < 8_000
    assert all(len(line) <= 150 for line in guide_text().splitlines())
    assert all(line.startswith("nbdist ") for line in COMMANDS)


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_is_one(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verb is there, and takes its flags and values."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    command: click.Command = GROUP
    words = shlex.split(line)[1:]
    while isinstance(command, VerbGroup):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, line
        command = found
    command.make_context(command.name, words).close()


@pytest.mark.usefixtures("_runs")
@pytest.mark.parametrize("line", [one for one in COMMANDS if not one[7:].startswith(STARTS)])
def test_each_that_reads_or_labels_runs(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(shlex.split(line)[1:])
    shown = capsys.readouterr()
    assert status == 0 or line == "nbdist doctor", shown.err
    assert shown.out or line.split()[2] in ("rename", "tag", "note")
    if "--json" in line:
        json.loads(shown.out)


def test_it_names_findings_that_are_there() -> None:
    from nbdist.lab.readers.diagnosis import Finding

    named = set(
        re.findall(r"`([a-z ]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", guide_text(), re.MULTILINE)))
    )
    there = set(re.findall(r'"([a-z ]+)"', (Finding.__doc__ or "").partition("``text``")[0]))
    assert named - {"kind"} == there
    assert set(re.findall(r"^nbdist (\w+)", "\n".join(COMMANDS), re.MULTILINE)) <= {*VERBS}


@exhaustive
@pytest.mark.engines
def test_each_that_trains(tmp_path: Path, own_home: Path) -> None:
    """As they stand in the page, in its order."""
    (tmp_path / "train.py").write_text(SCRIPT)
    for line in COMMANDS:
        if line[7:].startswith(("run ", "sweep", "cluster start", "cluster stop")):
            words = shlex.split(line.replace("notify-send nbdist", "true"))[1:]
            command = [sys.executable, "-m", "nbdist", *words]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stderr)
