"""The command of the launcher "batch" with PBS's commands, which Slurm has as well."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from launcher_command import HOST_PROGRAM, KEY, Command, running
from slurm_nodes import SlurmNodes
from tiers import exhaustive, matrix
from waiting import until

from nbdist.cluster.launchers.batch.systems import SYSTEMS

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(not shutil.which("qsub"), reason="no qsub here: apt-get install slurm-wlm-torque"),
]

BATCH = (sys.executable, "-m", "nbdist.cluster.launchers.batch")
TEMPLATE = SYSTEMS["pbs"].template
# The same, but it looks at the job twice a second while programs run.
HASTY = (
    sys.executable,
    "-c",
    "import sys\nfrom nbdist.cluster.launchers.batch import __main__, launcher\n"
    "launcher.BatchLauncher.watch_seconds = 0.5\nsys.exit(__main__.main(sys.argv[1:]))",
)


@contextmanager
def batch(
    slurm: SlurmNodes, *settings: str, command: tuple[str, ...] = BATCH, **more: Any
) -> Iterator[Command]:
    with running(slurm, *settings, command=command, **more) as started:
        yield started


def test_a_program_runs_on_each_node_of_a_job(slurm: SlurmNodes) -> None:
    settings = ("--batch-nodes=2", "--batch-time=5", "--queue=short", "--name=nbdist-c1")
    with batch(slurm, *settings) as command:
        started = command.one("hosts")
        assert started["hosts"] == ["n1", "n2"]
        assert started["seconds_left"] == 300
        assert {line["host"]: line["name"] for line in command.until("up", 2)} == {"n1": "n1", "n2": "n2"}
        assert "nbdist-c1" in slurm.run("qstat", started["job"]).stdout
        texts = [path.read_bytes() for path in slurm.folder.rglob("*") if path.is_file()]
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                texts += [(process / name).read_bytes() for name in ("cmdline", "environ")]
        assert not any(KEY.encode() in text for text in texts)
        assert command.end() == (143, "")
        until(lambda: not slurm.jobs() and not slurm.processes())


def test_the_end_of_the_job_ends_the_programs(slurm: SlurmNodes) -> None:
    with batch(slurm, "--batch-nodes=2", command=HASTY) as command:
        job = command.until("up", 2)[0]["job"]
        slurm.run("qdel", job)
        assert command.ended() == (1, f"job {job} has ended")


def test_a_node_that_is_not_reached_is_reported_and_the_others_go_on(slurm: SlurmNodes) -> None:
    program = ("sh", "-c", 'test $(hostname) = n2 && exit 3; exec "$@"', "sh", *HOST_PROGRAM)
    with batch(slurm, "--batch-nodes=2", program=program) as command:
        job = command.one("up")["job"]
        assert command.one("lost") == {"job": job, "lost": ["n2"], "reasons": ["host n2: exit code 3"]}
        assert command.end() == (143, "")


@pytest.mark.parametrize(
    ("settings", "program", "said"),
    matrix(
        [(["--queue=nope"], HOST_PROGRAM, "Batch job submission failed: Invalid partition name specified")],
        rest=[
        (["--batch-system=nqs"], HOST_PROGRAM, "no batch_system 'nqs'; choose from pbs, sge, lsf, htcondor"),
        (["--batch-system=lsf"], HOST_PROGRAM, "there is no bsub on the PATH"),
        (["--batch-time=2h"], HOST_PROGRAM, "time '2h' is none of Slurm's forms"),
        (["--batch-nodes=-1"], HOST_PROGRAM, "batch_nodes and batch_cores are numbers from 1, not -1"),
        (["--batch-options=-l mem=1gb job.sh"], HOST_PROGRAM, "leave 'job.sh' out, or give it to an option"),
        (["--batch-template=/no/job.sh"], HOST_PROGRAM, "batch_template '/no/job.sh' is not a file"),
        (["--parallel-environment=mpi"], HOST_PROGRAM, "parallel environments are SGE's; leave it out"),
        ([], ["/no/python"], "n1: there is no /no/python; the nodes need the notebook's Python"),
        ],
    ),
)  # fmt: skip
def test_what_does_not_start_is_one_sentence(
    slurm: SlurmNodes, settings: list[str], program: list[str], said: str
) -> None:
    with batch(slurm, *settings, program=program) as command:
        code, error = command.ended()
    assert code == 1
    assert said in error
    assert len(error.splitlines()) == 1


@exhaustive
def test_a_template_is_the_jobs_script(slurm: SlurmNodes, tmp_path: Path) -> None:
    assert slurm.run(*BATCH, "--print-template").stdout == TEMPLATE
    template = tmp_path / "job.sh"
    template.write_text(TEMPLATE.replace("idle=0\nwhile", "#SBATCH --comment=ours\nidle=0\nwhile", 1))
    with batch(slurm, f"--batch-template={template}") as command:
        job = command.one("up")["job"]
        assert slurm.run("squeue", "-h", "-j", job, "-o", "%k").stdout.strip() == "ours"
        assert command.end() == (143, "")


def test_in_a_job_nothing_is_submitted(slurm: SlurmNodes, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\nlogin\n")  # this host is one of them, and is not reached with ssh
    inside = {"PBS_JOBID": "77.head", "PBS_NODEFILE": str(nodes)}
    with batch(slurm, environment=inside) as command:
        assert command.one("hosts")["hosts"] == ["n1", "n2", "login"]
        assert {line["host"] for line in command.until("up", 3)} == {"n1", "n2", "login"}
        assert slurm.jobs() == {}
        assert command.end() == (143, "")
    with batch(slurm, "--queue=short", environment=inside) as command:
        assert "queue: this process runs in job 77.head, which has its nodes" in command.ended()[1]
