"""PBS, SGE, LSF and HTCondor: the commands that submit, and what the systems print. No system runs here.

`tests/slurm` runs PBS's commands, as far as Slurm has them. The texts of SGE are those of 8.1.9; the others
follow the manuals of the systems.
"""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from nbdist.cluster.launchers.batch.formats import read_htcondor, read_lsf, read_pbs, read_sge, seconds_of
from nbdist.cluster.launchers.batch.launcher import BatchLauncher
from nbdist.cluster.launchers.batch.request import (
    allocation_of,
    batch_fits,
    batch_hosts,
    check_request,
    find_system,
    system_around,
)
from nbdist.cluster.launchers.batch.systems import SYSTEMS, BatchRequest
from nbdist.cluster.launchers.slurm.status import Job, describe_end, describe_waiting, next_action
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

NO_REASON = "the batch system has given no reason"

# As PBS Professional prints it, with a value that goes on in the next line.
PROFESSIONAL = """\
Job Id: 123.head
    Job_Name = nbdist
    resources_used.walltime = 00:10:00
    job_state = R
    exec_host = node-a/0*8+node-b/0*8+
\tnode-c/1*8
    Resource_List.walltime = 01:00:00
    comment = Job run at Mon Nov 30 at 02:35
    Variable_List = PBS_O_HOME=/home/ann,PBS_O_LANG=C,
\tPBS_O_PATH=/usr/bin
"""
TORQUE = """\
Job Id: 7.head
    job_state = R
    exec_host = n1/0+n1/1+n2/0+n2/1
    Resource_List.nodes = 2:ppn=2
"""


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (
            PROFESSIONAL,
            Job(
                "7", "RUNNING", "Job run at Mon Nov 30 at 02:35", 3000, 3600, cores=24,
                nodes=("node-a", "node-b", "node-c"),
            ),
        ),
        (TORQUE, Job("7", "RUNNING", cores=4, nodes=("n1", "n2"))),
        ("job_state = Q\ncomment = Not enough nodes", Job("7", "PENDING", "Not enough nodes")),
        ("job_state = Q\ncomment = Can Never Run: x", Job("7", "FAILED", "Can Never Run: x")),
        ("job_state = Q", Job("7", "PENDING", NO_REASON)),
        ("job_state = H", Job("7", "PENDING", "it is held; qrls releases it")),
        ("job_state = E\nResource_List.walltime = 00:01:00", Job("7", "COMPLETING", left=60, limit=60)),
        ("job_state = F", Job("7", "COMPLETED")),
        (
            "job_state = F\nResource_List.walltime = 00:01:00\nresources_used.walltime = 00:01:02",
            Job("7", "TIMEOUT", left=0, limit=60),
        ),
    ],
)  # fmt: skip
def test_a_job_of_pbs(text: str, job: Job) -> None:
    assert read_pbs("7", text) == job


BEGUN = "2026-11-30T06:00:00"


def sge(*rows: str, details: str = "") -> str:
    """Return what qstat prints of job 7 and another job, each row "state queue master"."""
    table = ""
    for row in ("r all.q@n9 MASTER", *rows):
        state, queue, master = row.split(" ")
        table += (
            f'<job_list state="x"><JB_job_number>{8 if "n9" in queue else 7}</JB_job_number>'
            f"<JB_name>nbdist</JB_name><state>{state}</state><JAT_start_time>{BEGUN}</JAT_start_time>"
            f"<queue_name>{queue}</queue_name><master>{master}</master></job_list>\n"
        )
    head = "<?xml version='1.0'?>\n<job_info>\n  <queue_info>\n"
    return f"{head}{table}</queue_info><job_info></job_info>\n</job_info>\n\n{details}"


LIMIT = "hard resource_list:         h_vmem=4G,h_rt=3600\n"


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (
            sge(
                "r all.q@n1.lab MASTER", "r all.q@n1.lab SLAVE", "r all.q@n1.lab SLAVE",
                "r all.q@n2.lab SLAVE", "r all.q@n2.lab SLAVE", details=LIMIT,
            ),
            Job("7", "RUNNING", left=3000, limit=3600, cores=4, nodes=("n1.lab", "n2.lab")),
        ),
        (sge("r all.q@n1 MASTER"), Job("7", "RUNNING", cores=1, nodes=("n1",))),
        (
            sge("qw  ", details='scheduling info:            queue instance "all.q@n1" dropped: full\n'),
            Job("7", "PENDING", 'queue instance "all.q@n1" dropped: full'),
        ),
        (
            sge("qw  ", details="scheduling info:            (Collecting of scheduler job information is"),
            Job("7", "PENDING", NO_REASON),
        ),
        (
            sge("qw  ", details="scheduling info:            There are no messages available\n"),
            Job("7", "PENDING", NO_REASON),
        ),
        (sge("hqw  "), Job("7", "PENDING", "it is held; qrls releases it")),
        (
            sge(
                "Eqw  ",
                details="error reason 1:  11/30/2026 09:34:09 [1234:692]: error: can't chdir to /nfs\n",
            ),
            Job("7", "FAILED", "can't chdir to /nfs"),
        ),
        (sge("t all.q@n1 MASTER"), Job("7", "CONFIGURING")),
        (sge("s all.q@n1 MASTER"), Job("7", "SUSPENDED")),
        (sge("dr all.q@n1 MASTER"), Job("7", "COMPLETING")),
        (sge(), Job("7", "COMPLETED")),
    ],
)  # fmt: skip
def test_a_job_of_sge(text: str, job: Job) -> None:
    assert read_sge("7", text, (seconds_of(BEGUN) or 0) + 600) == job


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("RUN|4*n1:4*n2|1:30 L|-|-", Job("7", "RUNNING", left=5400, cores=8, nodes=("n1", "n2"))),
        ("RUN|n1:n1:n2|-|-|-", Job("7", "RUNNING", cores=3, nodes=("n1", "n2"))),
        ("RUN|n1|0:30 E|-|-", Job("7", "RUNNING", cores=1, nodes=("n1",))),
        ("PEND|-|-|-|Not enough hosts: 2 hosts;", Job("7", "PENDING", "Not enough hosts: 2 hosts")),
        ("PEND|-|-|-|-", Job("7", "PENDING", NO_REASON)),
        ("PSUSP|-|-|-|-", Job("7", "PENDING", "it is held; bresume releases it")),
        ("UNKWN|n1|1:30 L|-|-", Job("7", "RUNNING", left=5400, cores=1, nodes=("n1",))),
        ("SSUSP|n1|-|-|-", Job("7", "SUSPENDED", cores=1)),
        ("DONE|n1|-|-|-", Job("7", "COMPLETED", cores=1)),
        ("EXIT|n1|-|TERM_RUNLIMIT: x|-", Job("7", "TIMEOUT", "TERM_RUNLIMIT: x", cores=1)),
        ("EXIT|n1|-|TERM_OWNER: x|-", Job("7", "COMPLETED", "TERM_OWNER: x", cores=1)),
        ("EXIT|-|-|-|-", Job("7", "FAILED")),
    ],
)
def test_a_job_of_lsf(text: str, job: Job) -> None:
    assert read_lsf("7", text + "\n") == job


@pytest.mark.parametrize(
    ("lines", "job"),
    [
        (
            ["1 2 slot1_1@n2 4 3600 1000 1600 undefined", "0 2 slot1@n1 4 3600 1000 1600 undefined"],
            Job("7", "RUNNING", left=3000, limit=3600, cores=8, nodes=("n1", "n2")),
        ),
        (
            ["0 2 slot1@n1 4 undefined 1000 1600 undefined", "1 1 undefined 4 undefined 0 1600 undefined"],
            Job("7", "PENDING", "1 of 2 nodes are there"),
        ),
        (["0 5 undefined 4 undefined 0 1600 No_disk"], Job("7", "FAILED", "held: No_disk")),
        (["0 7 slot1@n1 1 undefined 0 1600 undefined"], Job("7", "SUSPENDED", "0 of 1 nodes are there")),
        (["0 4 undefined 1 undefined 0 1600 undefined"], Job("7", "COMPLETED")),
        ([], Job("7", "COMPLETED")),
    ],
)
def test_a_job_of_htcondor(lines: list[str], job: Job) -> None:
    text = "".join("\t".join(line.split(" ")) + "\n" for line in lines)
    assert read_htcondor("7", text) == job
    assert read_htcondor("7", "".join(f"\t{line}\n" for line in text.splitlines())) == job


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_no_answer_is_refused(name: str) -> None:
    with pytest.raises(UnavailableError, match="printed"):
        SYSTEMS[name].read("7", "Segmentation fault", 0.0)


def test_states_are_put_into_words() -> None:
    held = read_pbs("7", "job_state = H")
    assert (next_action(held), describe_waiting(held)) == (
        "wait",
        "job 7 is pending: it is held; qrls releases it",
    )
    never = read_pbs("7", "job_state = Q\ncomment = Can Never Run: no GPU")
    assert (next_action(never), describe_end(never)) == ("end", "job 7 failed (Can Never Run: no GPU)")


FULL = BatchRequest("", 2, 8, "gpu", "lab", "1-0", "", "-l mem=4gb", name="nbdist-c1")


@pytest.mark.parametrize(
    ("name", "request_", "command"),
    [
        (
            "pbs",
            FULL,
            "qsub -N nbdist-c1 -l nodes=2:ppn=8,walltime=24:00:00 -q gpu -A lab -r n -j oe -o /dev/null "
            "-l mem=4gb",
        ),
        ("pbs", BatchRequest(batch_time="90"), "qsub -N nbdist -l walltime=1:30:00 -r n -j oe -o /dev/null"),
        ("pbs", BatchRequest(), "qsub -N nbdist -r n -j oe -o /dev/null"),
        (
            "pbs",
            BatchRequest(batch_nodes=2, batch_options="-l select=2:ngpus=1"),
            "qsub -N nbdist -r n -j oe -o /dev/null -l select=2:ngpus=1",
        ),
        (
            "sge",
            BatchRequest("", 2, 8, "gpu", "lab", "90", "mpi", "-l gpu=1"),
            "qsub -terse -S /bin/sh -r n -j y -o /dev/null -N nbdist -l h_rt=5400 -q gpu -P lab -pe mpi 16 "
            "-l gpu=1",
        ),
        (
            "lsf",
            FULL,
            "bsub -rn -o /dev/null -J nbdist-c1 -W 24:00 -q gpu -P lab -n 16 -R span[ptile=8] -l mem=4gb",
        ),
        ("lsf", BatchRequest(), "bsub -rn -o /dev/null -J nbdist"),
        (
            "htcondor",
            BatchRequest(
                "", 2, 8, batch_account="lab", batch_time="1", batch_options="-append request_gpus=1"
            ),
            "condor_submit -terse -batch-name nbdist -append request_cpus = 8 -append accounting_group = lab "
            "-append allowed_job_duration = 60 -append request_gpus=1 -queue 2",
        ),
    ],
)
def test_the_command_that_submits(name: str, request_: BatchRequest, command: str) -> None:
    check_request(request_, SYSTEMS[name])
    assert " ".join(SYSTEMS[name].submit(request_)) == command


@pytest.mark.parametrize(
    ("name", "request_", "said"),
    [
        ("sge", BatchRequest(batch_nodes=2), "SGE gives 2 cores only in a parallel environment"),
        ("htcondor", BatchRequest(queue="gpu"), "HTCondor has no queues; leave it out"),
        ("lsf", BatchRequest(parallel_environment="mpi"), "parallel environments are SGE's"),
        ("pbs", BatchRequest(batch_options="-l a=1 job.sh"), "leave 'job.sh' out"),
        ("pbs", BatchRequest(batch_cores=4, batch_options="-l select=2"), "give select= its ncpus"),
        ("sge", BatchRequest(batch_cores=4, batch_options="-pe mpi 8"), "has the slots"),
    ],
)
def test_what_a_system_does_not_have_is_refused(name: str, request_: BatchRequest, said: str) -> None:
    def submit() -> None:
        check_request(request_, SYSTEMS[name])
        SYSTEMS[name].submit(request_)

    with pytest.raises(InvalidArgumentError, match=said):
        submit()


def test_programs_are_reached_as_users_of_a_system_expect() -> None:
    program = ("/opt/py", "-m", "x", "n1")
    for name, inside in (("pbs", "ssh"), ("sge", "qrsh -inherit n1 exec /opt/py -m"), ("lsf", "blaunch n1")):
        system = SYSTEMS[name]
        assert system.reach("7", "n1", program, "")[-3:] == ["--", "n1", "exec /opt/py -m x n1"]
        assert " ".join(system.reach_inside("7", "n1", program, "")).startswith(inside)
    answer = "0\t2\tslot1@n1\t1\tundefined\t0\t0\tundefined\n1\t2\tslot1@n2\t1\tundefined\t0\t0\tundefined\n"
    command = SYSTEMS["htcondor"].reach("7", "n2", program, answer)
    assert command == ["condor_ssh_to_job", "-auto-retry", "7.1", "exec /opt/py -m x n1"]


def test_a_job_with_fewer_machines_than_asked_for_is_refused() -> None:
    launcher = BatchLauncher(BatchRequest("sge", 2, parallel_environment="mpi"), b"", ())
    assert launcher.nodes_of(Job("7", "RUNNING", nodes=("n1", "n2"))) == ("n1", "n2")
    with pytest.raises(UnavailableError, match=r"job 7 has 1 of the 2 nodes .* \(n1\)\. Name a parallel env"):
        launcher.nodes_of(Job("7", "RUNNING", nodes=("n1",)))


@pytest.mark.parametrize(
    ("said", "seconds", "state"),
    [
        ("COMPLETED", 3599, "COMPLETED"),
        ("COMPLETED", 3601, "TIMEOUT"),  # SGE has forgotten it
        ("FAILED", 3601, "TIMEOUT"),  # HTCondor holds it
    ],
)
def test_the_clock_says_that_the_time_of_a_job_was_over(
    monkeypatch: pytest.MonkeyPatch, said: str, seconds: float, state: str
) -> None:
    launcher = BatchLauncher(BatchRequest("sge"), b"", ())
    answers = [Job("7", "RUNNING", left=3600, limit=7200), Job("7", said)]
    monkeypatch.setattr(launcher, "_ask", lambda: answers.pop(0))
    monkeypatch.setattr(time, "monotonic", Mock(side_effect=[100.0, 100.0 + seconds]))
    assert launcher.look().state == "RUNNING"
    ended = launcher.look()
    assert (ended.state, ended.limit) == (state, 7200 if state == "TIMEOUT" else None)


def test_the_job_around_this_process_has_its_nodes(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("n1 4 all.q@n1 <NULL>\nn2 4 all.q@n2 <NULL>\n")
    pbs = {"PBS_JOBID": "7.head", "PBS_NODEFILE": str(nodes)}
    sge = {"JOB_ID": "7", "PE_HOSTFILE": str(nodes)}
    lsf = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 4 n2 4"}
    for name, environ in (("pbs", pbs), ("sge", sge), ("lsf", lsf)):
        assert system_around(environ) == name
        assert find_system(BatchRequest(), environ) is SYSTEMS[name]
        job, found = allocation_of(environ, BatchRequest(), SYSTEMS[name])
        assert (job.partition(".")[0], found) == ("7", ("n1", "n2"))
        assert allocation_of(environ, BatchRequest(batch_nodes=1), SYSTEMS[name])[1] == ("n1",)
        with pytest.raises(InvalidArgumentError, match=r"batch_nodes=3, and job .* has 2: n1, n2"):
            allocation_of(environ, BatchRequest(batch_nodes=3), SYSTEMS[name])
        with pytest.raises(InvalidArgumentError, match="queue: this process runs in job"):
            allocation_of(environ, BatchRequest(queue="gpu"), SYSTEMS[name])
    assert allocation_of(pbs, BatchRequest(), SYSTEMS["lsf"]) == ("", ())
    assert system_around({"JOB_ID": "7"}) == ""  # SGE's job of one core, or anything else
    with pytest.raises(FailedPreconditionError, match="PBS_NODEFILE=/no/file: No such file"):
        allocation_of({**pbs, "PBS_NODEFILE": "/no/file"}, BatchRequest(), SYSTEMS["pbs"])


def test_auto_takes_a_job_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_JOBID", "7")
    monkeypatch.setenv("LSB_MCPU_HOSTS", "n1 4 n2 4")
    assert batch_fits({}) == "this process is in job 7 of LSF"
    assert [host.name for host in batch_hosts({})] == ["node1", "node2"]
