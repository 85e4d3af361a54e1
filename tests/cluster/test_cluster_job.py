"""The programs on the nodes of a job: what they and srun print. `tests/slurm` runs them on a real Slurm."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from nbdist.cluster.launchers.job import JobLauncher, StepOutput, call
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.cluster.supervisor.hosts import Command
from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError


def read(*lines: str) -> tuple[StepOutput, list[object]]:
    output = StepOutput("12", ("n1", "n2", "n3"))
    return output, [found for line in lines if (found := output.read_stderr(line))]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            [
                "2: slurmstepd-n3: error: execve(): /x/python: No such file or directory",
                "srun: error: n[1-3]: tasks 0-2: Exited with exit code 2",
            ],
            "n1: Exited with exit code 2",
        ),
        (
            [
                "2: slurmstepd-n3: error: execve(): /x/python: No such file or directory",
                "srun: error: n3: task 2: Exited with exit code 2",
            ],
            "n3: there is no /x/python; the nodes need the notebook's Python",
        ),
        (
            [
                "1: Traceback (most recent call last):",
                "1: ModuleNotFoundError: No module named 'nbdist'",
                "0: slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-30T01:53:20 ***",
                "srun: error: n2: task 1: Exited with exit code 1",
            ],
            "n2: Exited with exit code 1; its last line: ModuleNotFoundError: No module named 'nbdist'",
        ),
        (["srun: error: n2: task 1: Out Of Memory"], "n2: Out Of Memory"),
        (
            ["srun: error: Unable to create step for job 12: Requested nodes are busy"],
            "another step holds its cores, and steps share cores since Slurm 20.11 only: start Jupyter in "
            "the job's script without srun",
        ),
        (
            ["srun: error: Unable to create step for job 12: Invalid generic resource (gres) specification"],
            "Unable to create step for job 12: Invalid generic resource (gres) specification",
        ),
        (["srun: error: Node failure on n[1-2]"], "n1: Slurm says that the node has failed"),
        (["srun: cluster configuration lacks support for cpu binding"], "srun ended with exit code 9"),
        ([], "srun ended with exit code 9"),
    ],
)
def test_why_a_step_has_failed(lines: list[str], cause: str) -> None:
    assert read(*lines)[0].cause(9) == cause


def test_the_progress_of_a_step() -> None:
    output, progress = read(
        "srun: error: n2: task 1: Killed",
        "srun: Job 12 step creation temporarily disabled, retrying (Requested nodes are busy)",
        "srun: Step created for job 12",
        "1: the last words",
        "srun: error: Node failure on n3",
    )
    assert progress == [
        {"job": "12", "waiting": "job 12 has no room for a step: Requested nodes are busy"},
        {"job": "12", "lost": ["n3"], "reasons": ["host n3: Slurm says that the node has failed"]},
    ]
    assert list(output.read_exits()) == [
        {"job": "12", "lost": ["n2"], "reasons": ["host n2: Killed; its last line: the last words"]}
    ]
    assert output.read_stderr("srun: error: Node failure on n[2-3]") is None
    assert output.read_stdout('1: {"up": 1, "host": "elsewhere"}') == {"up": 1, "job": "12", "host": "n2"}
    assert output.read_stdout("1: [1, 2]") is None
    assert output.read_stdout("7: words of no node") is None
    assert list(output.printed) == ["n2: the last words", "n2: [1, 2]", "7: words of no node"]


class Stubborn(JobLauncher):
    """A launcher whose job cannot be cancelled."""

    submit = look = commands = Mock(side_effect=UnavailableError("no answer"))

    def cancel(self) -> None:
        raise UnavailableError("scancel: the controller does not answer")


def test_a_job_that_cannot_be_cancelled_is_named_to_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Stubborn(b"{}")
    launcher.job = "12"
    launcher.end()
    line = capsys.readouterr().out.splitlines()[-1]
    command = Mock(hosts=("n1",))
    Command._take_progress(command, json.loads(line))
    ((event,), _) = command._supervisor.broadcast.call_args
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = SupervisorClient(ours, tmp_path / "c1")
        theirs.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in (event, {"reply": 1})))
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(UnavailableError, match=r"c1 has ended, but job 12 may still run \(scancel: the"):
            client.end(1.0)


def test_without_slurm_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FailedPreconditionError, match=r"there is no squeue on the PATH: .* `module load`"):
        call("squeue")


@pytest.mark.parametrize(
    ("name", "printed", "said"),
    [
        ("sbatch", "sbatch: error: Invalid account", "sbatch: Invalid account"),
        ("qsub", "perl: error: Invalid account", "qsub: perl: Invalid account"),
        (
            "qsub",
            "perl: error: fetch_config: DNS SRV lookup failed\nperl: fatal: no configuration source",
            "qsub finds no configuration of its batch system on this host ('perl: fetch_config: DNS SRV ",
        ),
    ],
)
def test_a_command_that_fails_is_named(tmp_path: Path, name: str, printed: str, said: str) -> None:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\necho '{printed}' >&2\nexit 1\n")
    program.chmod(0o700)
    with pytest.raises(NbdistError) as caught:
        call(name, environment={"PATH": f"{tmp_path}:/bin"})
    assert str(caught.value).startswith(said)
