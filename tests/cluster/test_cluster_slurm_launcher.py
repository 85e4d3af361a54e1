"""The step of srun: its command and its variables. `tests/slurm` runs it on a real Slurm."""

from __future__ import annotations

import pytest

from nbdist.cluster.launchers.slurm.launcher import (
    parse_version,
    slurm_environment,
    step_command,
    wall_time_left,
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8\n", (22, 5)),
        ("slurm 20.11.9", (20, 11)),
        ("slurm 19.05.5", (19, 5)),
        ("slurm 25.05.0-0rc1", (25, 5)),
        ("nothing", (0, 0)),
    ],
)
def test_the_version_of_slurm(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_the_command_of_a_step() -> None:
    new = step_command("12", "nbdist-a1", 3, (22, 5), ["python", "-m", "nbdist.cluster.supervisor.host"])
    assert new[:7] == [
        "srun", "--jobid=12", "--job-name=nbdist-a1", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1",
        "--overlap",
    ]  # fmt: skip
    assert new[-3:] == ["python", "-m", "nbdist.cluster.supervisor.host"]
    old = step_command("12", "nbdist-a1", 3, (20, 2), ["python"])
    assert "--overlap" not in old
    assert "--immediate=10" in old


def test_variables_of_the_job_around_are_left_out() -> None:
    kept = {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "SLURM_CLUSTERS": "west",
        "SBATCH_ACCOUNT": "lab",
        "SRUNNER": "x",
    }
    job = {
        "SLURM_JOB_ID": "12", "SLURM_MEM_PER_CPU": "10", "SLURM_NTASKS_PER_NODE": "2", "SLURMD_DEBUG": "1",
        "SRUN_EXPORT_ENV": "NONE", "SQUEUE_FORMAT": "%i", "SBATCH_ARRAY_INX": "1-3", "SALLOC_QOS": "low",
    }  # fmt: skip
    assert slurm_environment({**kept, **job}) == kept


def test_outside_of_a_job_no_time_is_left_to_know() -> None:
    assert wall_time_left({}) is None
