"""What Slurm prints of a job, read and put into words."""

from __future__ import annotations

import re

import pytest
from node_lists import NODE_LISTS

from nbdist.cluster.launchers.slurm.status import (
    ENDED,
    REASONS,
    REPEATED,
    WAITING,
    Job,
    describe_end,
    describe_waiting,
    expand_nodes,
    explain,
    job_fields,
    next_action,
    parse_duration,
    parse_job,
    time_left,
)
from nbdist.errors import InvalidArgumentError, UnavailableError

# As the manual of squeue lists them.
STATES = [
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "CONFIGURING", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "RUNNING", "RESV_DEL_HOLD", "REQUEUE_FED", "REQUEUE_HOLD",
    "REQUEUED", "RESIZING", "REVOKED", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED",
    "TIMEOUT",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93_784),
        ("2-12:00:00", 216_000),
        ("1:30:00", 5_400),
        ("59:58", 3_598),
        ("0:45", 45),
        ("0:00", 0),
        ("90", 5_400),  # minutes
        ("1-12", 129_600),  # days and hours
        ("1-12:30", 131_400),
        ("365-00:00:00", 365 * 86_400),
        ("100:00:00", 360_000),
        ("UNLIMITED", None),
        ("infinite", None),
        ("INVALID", None),
        ("NOT_SET", None),
        ("Partition_Limit", None),
        ("N/A", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_time_of_slurm_in_seconds(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["soon", "1:2:3:4", "-1", "1-", "1h", "1.5", ":30", "1:30:", "1-2:3:4:5", " 1", "٣"]
)
def test_what_is_no_time_of_slurm_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(repr(text))):
        parse_duration(text)


@pytest.mark.parametrize(("text", "names"), NODE_LISTS)
def test_a_list_of_nodes(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == tuple(names)


@pytest.mark.parametrize("text", ["n[a-b]", "n[1-99999999]", "n[5-1]", "n[]", "n[1-2]m[1-60000]"])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="list of nodes"):
        expand_nodes(text)


@pytest.mark.parametrize(
    ("line", "job"),
    [
        (
            "PENDING|UNLIMITED|UNLIMITED|N/A|3||Resources",
            Job("12", "PENDING", "Resources", cores=3),
        ),
        (
            "PENDING|1:00:00|1:00:00|2026-11-30T14:05:00|2|n[1-2]|ReqNodeNotAvail, Nodes:n1",
            Job("12", "PENDING", "ReqNodeNotAvail, Nodes:n1", 3600, 3600, "2026-11-30T14:05:00", 2),
        ),
        (
            "RUNNING|59:58|1:00:00|2026-11-30T01:55:32|4|n[1-2]|None",
            Job("12", "RUNNING", "None", 3598, 3600, "2026-11-30T01:55:32", 4, ("n1", "n2")),
        ),
        (  # of a partition without a limit
            "RUNNING|364-23:59:47|365-00:00:00|2026-11-30T01:55:32|1|n1|None",
            Job("12", "RUNNING", "None", None, None, "2026-11-30T01:55:32", 1, ("n1",)),
        ),
        (
            "TIMEOUT|INVALID|1:00|2026-11-30T02:04:59|2|n[1-2]|TimeLimit",
            Job("12", "TIMEOUT", "TimeLimit", None, 60, "2026-11-30T02:04:59", 2),
        ),
    ],
)  # fmt: skip
def test_a_line_of_squeue(line: str, job: Job) -> None:
    assert parse_job("12", f"{line}\n") == job


def test_another_line_of_squeue_is_refused() -> None:
    with pytest.raises(UnavailableError, match="squeue printed 'nothing' of job 12"):
        parse_job("12", "nothing")


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_an_action_and_words(state: str) -> None:
    action = next_action(Job("12", state))
    actions = {"RUNNING": "run", **dict.fromkeys(WAITING, "wait")}
    assert action == actions.get(state, "end")
    job = Job("12", state)
    words = describe_waiting(job) if action == "wait" else describe_end(job)
    assert words.startswith("job 12 ")
    if state not in ("RUNNING", "RESV_DEL_HOLD", "STAGE_OUT"):  # these are printed as they are
        assert state not in words


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("Resources", "wait"),
        ("QOSMaxCpuPerUserLimit", "wait"),  # passes when another job of the user ends
        ("AssocGrpCpuLimit", "wait"),
        ("QOSMaxWallDurationPerJobLimit", "end"),
        ("AssocMaxNodePerJobLimit", "end"),
        ("PartitionTimeLimit", "end"),
        ("BadConstraints", "end"),
        ("JobHeldUser", "wait"),
        ("PartitionConfig", "wait"),
        ("SomethingNew", "wait"),
    ],
)
def test_a_reason_that_cannot_pass_ends_the_waiting(reason: str, action: str) -> None:
    assert next_action(Job("12", "PENDING", reason)) == action


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "jobs with a higher priority are before it (Priority)"),
        ("ReqNodeNotAvail, May:n2", "a node that it needs is down, or reserved (ReqNodeNotAvail, May:n2)"),
        ("QOSGrpCpuLimit", "a limit of its quality of service (QOSGrpCpuLimit)"),
        ("AssocGrpGRES", "a limit of its account (AssocGrpGRES)"),
        ("SomethingNew", "SomethingNew"),
    ],
)  # fmt: skip
def test_a_reason_in_words(reason: str, words: str) -> None:
    assert explain(reason) == words


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Job("12", "TIMEOUT", "TimeLimit", limit=3600), "job 12 reached its time limit of 1:00:00"),
        (Job("12", "COMPLETING", "TimeLimit", limit=60), "job 12 reached its time limit of 0:01:00"),
        (Job("12", "NODE_FAIL", "NodeDown"), "job 12 lost a node"),
        (Job("12", "CANCELLED"), "job 12 was cancelled, by scancel or an administrator"),
        (Job("12", "FAILED", "NonZeroExitCode"), "job 12 failed (NonZeroExitCode)"),
        (Job("12", "COMPLETED"), "job 12 has ended"),
        (Job("12", "NEW_STATE"), "job 12 is in the state NEW_STATE"),
    ],
)
def test_the_end_of_a_job_in_words(job: Job, words: str) -> None:
    assert describe_end(job) == words


def test_no_word_stands_in_two_tables() -> None:
    tables = [WAITING, REPEATED, ENDED]
    assert len({state for table in tables for state in table}) == sum(map(len, tables))
    assert all(not words.endswith(".") for table in (*tables, REASONS) for words in table.values())


SHOWN = """\
JobId=2 JobName=a b=c
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime={run} TimeLimit={limit} TimeMin=N/A
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=2,node=2,billing=2
   Power=
"""


def test_the_fields_of_scontrol() -> None:
    fields = job_fields(SHOWN.format(run="00:00:02", limit="01:00:00"))
    assert fields["JobName"] == "a b=c"
    assert fields["TRES"] == "cpu=2,node=2,billing=2"
    assert (fields["CPUs/Task"], fields["ReqB:S:C:T"]) == ("1", "0:0:*:*")
    assert (fields["RunTime"], fields["TimeLimit"], fields["Power"]) == ("00:00:02", "01:00:00", "")


@pytest.mark.parametrize(
    ("run", "limit", "left"),
    [
        ("00:00:02", "01:00:00", 3598.0),
        ("1-00:00:00", "1-00:10:00", 600.0),
        ("01:00:05", "01:00:00", 0.0),  # while Slurm ends it
        ("00:00:02", "UNLIMITED", None),
        ("00:00:02", "365-00:00:00", None),
        ("00:00:00", "Partition_Limit", None),
    ],
)
def test_the_time_that_is_left(run: str, limit: str, left: float | None) -> None:
    assert time_left(job_fields(SHOWN.format(run=run, limit=limit))) == left
