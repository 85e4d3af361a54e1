"""What a user asks of Slurm: checks, and the command that submits it."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

import nbdist as nb
from nbdist.cluster import launch
from nbdist.cluster.launchers.slurm.request import (
    SETTINGS,
    JobRequest,
    allocation_of,
    check_nodes_for,
    node_range,
    nodes_to_use,
    submit_command,
)
from nbdist.cluster.launchers.slurm.status import Job
from nbdist.errors import InvalidArgumentError

CHECKS = {setting.name: setting.check for setting in SETTINGS}


def test_each_setting_is_a_field_of_a_request_with_its_default() -> None:
    defaults = JobRequest()
    for setting in SETTINGS:
        assert getattr(defaults, setting.name) == setting.default, setting.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes", 3), ("nodes", "2"), ("nodes", "2-4"),
        ("partition", "gpu"), ("partition", "gpu,long"), ("account", "lab_7"),
        ("time", "90"), ("time", "1:30:00"), ("time", "UNLIMITED"),
        ("gres", "gpu:a100:2"), ("cores", 8),
        ("sbatch", "--qos=high --constraint='a100&ib' -pgpu"), ("sbatch", "--no-kill"),
        ("template", "job.sh"),
    ],
)  # fmt: skip
def test_a_valid_setting(name: str, value: Any) -> None:
    CHECKS[name](value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("nodes", 0, "nodes is a number from 1, or a range such as 2-4, not 0"),
        ("nodes", "4-2", "not '4-2'"),
        ("nodes", "n1,n2", "not 'n1,n2'"),
        ("nodes", True, "not True"),
        ("partition", "", "partition, account, gres and template are texts, not ''"),
        ("account", 7, "not 7"),
        ("gres", "gpu:1\n#SBATCH", "not 'gpu:1"),
        ("time", 90, "time is a text such as '1:30:00' or '90' (minutes), not 90"),
        ("time", "0", "not '0'"),
        ("time", "2h", "time '2h' is none of Slurm's forms"),
        ("cores", 0, "cores is the number of cores of each node, from 1, not 0"),
        ("cores", "8", "not '8'"),
        ("sbatch", "--qos high", "write options as --qos=high, not 'high' alone"),
        ("sbatch", "--comment='open", "is not a line of options"),
        ("sbatch", None, "is not a line of options"),
        ("sbatch", "--array=1-3", "leave --array out, a cluster is one job"),
        ("sbatch", "-a1-3", "leave -a out, a cluster is one job"),
        ("sbatch", "--test", "leave --test out, the job only holds the nodes"),
        ("sbatch", "-N2", "leave -N out, nodes= is their number"),
        ("sbatch", "--ntasks-per-node=4", "leave --ntasks-per-node out, a node has one host supervisor"),
    ],
)
def test_an_invalid_setting_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        CHECKS[name](value)


def test_the_command_that_submits() -> None:
    asked = JobRequest(
        nodes="2-4", partition="gpu", account="lab", time="2:00:00", gres="gpu:2", cores=8,
        sbatch="--qos=high --comment='two words'", name="nbdist-c1",
    )  # fmt: skip
    assert submit_command(asked, "job.sh") == [
        "sbatch", "--parsable", "--ntasks-per-node=1", "--job-name=nbdist-c1", "--nodes=2-4",
        "--partition=gpu", "--account=lab", "--time=2:00:00", "--gres=gpu:2", "--cpus-per-task=8",
        "--no-requeue", "--qos=high", "--comment=two words", "job.sh",
    ]  # fmt: skip
    assert submit_command(JobRequest(), "-") == [
        "sbatch", "--parsable", "--ntasks-per-node=1", "--job-name=nbdist", "--nodes=1", "--no-requeue"
    ]  # fmt: skip


def test_within_an_allocation_only_the_number_of_nodes_is_ours() -> None:
    assert allocation_of({}, JobRequest(partition="gpu")) == ""
    assert allocation_of({"SLURM_JOB_ID": "12"}, JobRequest(nodes=2)) == "12"
    with pytest.raises(InvalidArgumentError, match="time: this process runs in job 12"):
        allocation_of({"SLURM_JOB_ID": "12"}, JobRequest(time="90"))
    with pytest.raises(InvalidArgumentError, match="job 12 is heterogeneous"):
        allocation_of({"SLURM_JOB_ID": "12", "SLURM_HET_SIZE": "2"}, JobRequest())


def test_the_nodes_of_an_allocation_that_are_used() -> None:
    job = Job("12", "RUNNING", nodes=("n1", "n2", "n3"))
    assert nodes_to_use(job, JobRequest()) == job.nodes
    assert nodes_to_use(job, JobRequest(nodes="2-5")) == job.nodes
    assert nodes_to_use(job, JobRequest(nodes=1)) == ("n1",)
    with pytest.raises(InvalidArgumentError, match="nodes=4, and job 12 has 3: n1, n2, n3"):
        nodes_to_use(job, JobRequest(nodes=4))


def test_a_number_of_nodes() -> None:
    assert (node_range(1), node_range("12"), node_range("2-2")) == ((1, 1), (12, 12), (2, 2))


PARTITIONS = "small*|3|4\nsmall*|1|8\nlarge|2|64\n"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (JobRequest(cores=9), "cores=9: no node of partition small has more than 8; ask for 8 at most"),
        (JobRequest(cores=8, nodes="2-4"), "nodes=2-4, cores=8: partition small has 1 node with so many"),
        (JobRequest(cores=65, sbatch="-plarge"), "cores=65: no node of this Slurm has more than 64"),
    ],
)
def test_cores_that_no_node_has_are_refused(request_: JobRequest, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        check_nodes_for(request_, PARTITIONS, {})


def test_cores_that_some_partition_may_have_are_taken() -> None:
    check_nodes_for(JobRequest(cores=8, nodes="1-4"), PARTITIONS, {})
    check_nodes_for(JobRequest(cores=64, template="job.sh"), PARTITIONS, {})
    check_nodes_for(JobRequest(cores=64), PARTITIONS, {"SBATCH_PARTITION": "large"})
    check_nodes_for(JobRequest(cores=64, partition="large"), "large|2|64", {})
    check_nodes_for(JobRequest(cores=64, partition="nowhere"), "", {})
    check_nodes_for(JobRequest(cores=64), "(null)|x|y\nno news", {})


@pytest.mark.parametrize(
    ("asked", "slots", "least"),
    [({"workers": 5}, {"n7": 3, "n9": 2}, 5), ({"workers": 5, "min_workers": 3}, {"n7": 3, "n9": 2}, 3),
     ({}, {"n7": 1, "n9": 1}, 2)],
    ids=str,
)  # fmt: skip
def test_a_job_with_fewer_nodes_than_it_may_have_takes_all_workers(
    asked: dict[str, int], slots: dict[str, int], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = starting_on_a_range(monkeypatch, **asked)
    starting._rename(starting.hosts, ("n7", "n9"))
    assert (starting.hosts, starting.wanted.slots, starting.wanted.least) == (list(slots), slots, least)


def test_a_job_with_too_few_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = starting_on_a_range(monkeypatch, min_workers=3)
    with pytest.raises(InvalidArgumentError, match="min_workers is a whole number of 1 to 2"):
        starting._rename(starting.hosts, ("n7", "n9"))
    starting = starting_on_a_range(monkeypatch, workers=8, gres="gpu:2")
    with pytest.raises(InvalidArgumentError, match="workers=8 do not fit on the hosts n7:2, n9:2"):
        starting._rename(starting.hosts, ("n7", "n9"))


def starting_on_a_range(monkeypatch: pytest.MonkeyPatch, **asked: Any) -> Any:
    """Return the start of a cluster on 2 to 4 nodes whose job is to be submitted."""
    started: list[Any] = []

    def begin(self: Any, wanted: Any, *others: Any) -> None:
        self.wanted, self.hosts = wanted, list(wanted.slots)
        started.append(self)
        raise InterruptedError

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(launch._Startup, "__init__", begin)
    with pytest.raises(InterruptedError):
        nb.start_cluster(launcher="slurm", nodes="2-4", report=None, **asked)
    return started[0]
