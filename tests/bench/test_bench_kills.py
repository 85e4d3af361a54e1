"""``bench kills``: a minute of it, what it finds left over, and what counts as a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tiers import exhaustive

from bench.kills import PROGRAMS, Outcome, left_over, report, resources


def test_a_process_and_a_file_are_left_over(tmp_path: Path) -> None:
    before, folder = resources(), tmp_path / "nbdist" / "clusters" / "a"
    folder.mkdir(parents=True)
    (folder / "keys").touch()
    environment = {**os.environ, "NBDIST_HOME": str(tmp_path / "nbdist")}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        found = left_over(before, str(tmp_path), "a", seconds=0.0)
        process.communicate(b"\n")
    assert f"process {process.pid}" in found
    assert str(folder / "keys") in found


@pytest.mark.parametrize(
    ("accuracy", "error", "left", "good"),
    [
        (0.96, "", [], True),
        (0.94, "", [], False),
        (0.96, "TaskDiedError: gone", [], False),
        (0.96, "", ["process 7"], False),
    ],
)
def test_a_run_fails(accuracy: float, error: str, left: list[str], good: bool) -> None:
    assert report("session", Counter(worker=2), Outcome(accuracy, error, left), Outcome(0.965, "")) is good


@exhaustive
@pytest.mark.engines
@pytest.mark.timeout(400)
@pytest.mark.parametrize("program", ["replicated-ps", "all"])
def test_a_minute_of_random_kills(program: str) -> None:
    """Each program for 10 s: the chief, another worker and a server die, 2 s apart (by the seed)."""
    programs = len(PROGRAMS) if program == "all" else 1
    command = [sys.executable, "-m", "bench", "kills", "--program", program, "--seconds", str(10 * programs)]
    command += ["--mean", "2.5", "--seed", "159", "--least", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("left over: nothing") == programs
