"""What Slurm says of a job, read and put into words. Pure.

    job = parse_job("12", squeue's line)       # printed with `JOB_FORMAT`
    next_action(job)                           # "wait", "run" or "end"
    describe_waiting(job), describe_end(job)   # a sentence for the user

The text formats are those of Slurm 20 and later; Slurm's JSON is younger, and an option of its build.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from math import prod

from nbdist.errors import InvalidArgumentError, UnavailableError

MOST_NODES = 1 << 16
NO_LIMIT = 365 * 86_400.0  # seconds: Slurm runs a job that has no limit with this one


@dataclass(frozen=True)
class Job:
    """A job at one time.

    - ``state``, ``reason``: Slurm's words, such as "PENDING" and "Resources"
    - ``left``, ``limit``: seconds, None without a limit
    - ``starts``: when it has started, or is expected to; "" if that is not known
    - ``cores``: of all its nodes together
    """

    id: str
    state: str
    reason: str = "None"
    left: float | None = None
    limit: float | None = None
    starts: str = ""
    cores: int = 0
    nodes: tuple[str, ...] = ()

    @property
    def is_ending(self) -> bool:
        """Whether it does not say yet how it ends."""
        return self.state == "COMPLETING" or (self.state == "RUNNING" and self.left == 0)


JOB_FORMAT = "%T|%L|%l|%S|%C|%N|%r"


def parse_job(number: str, line: str) -> Job:
    """Return the job that squeue prints with `JOB_FORMAT`.

    >>> parse_job("12", "RUNNING|59:58|1:00:00|2026-11-30T01:55:32|4|n[1-2]|None").nodes
    ('n1', 'n2')
    """
    fields = line.strip().split("|", 6)
    if len(fields) < 7:
        raise UnavailableError(f"squeue printed {line[:200]!r} of job {number}; expected {JOB_FORMAT}")
    state, left, limit, starts, cores, nodes, reason = fields
    limited = (parse_duration(limit) or NO_LIMIT) < NO_LIMIT
    return Job(
        number,
        state,
        reason.strip("()"),
        left=parse_duration(left) if limited else None,
        limit=parse_duration(limit) if limited else None,
        starts="" if starts == "N/A" else starts,
        cores=int(cores) if cores.isdigit() else 0,
        nodes=expand_nodes(nodes) if state == "RUNNING" else (),
    )


WAITING = {
    "PENDING": "is pending",
    "CONFIGURING": "has its nodes, which are starting",
    "REQUEUED": "was put back into the queue",
    "REQUEUE_FED": "was put back into the queue",
    "REQUEUE_HOLD": "was put back into the queue, and is held",
    "SPECIAL_EXIT": "was put back into the queue, and is held",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "RESIZING": "changes its size",
    "SIGNALING": "is being signalled",
    "COMPLETING": "is ending",
}
"""States in which a job does not run, but may, in words."""

REPEATED = {
    "TIMEOUT": "reached its time limit",
    "PREEMPTED": "was preempted by a job with precedence",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "has a node that did not start",
}
"""Ends that are no fault of the job."""

ENDED = {
    "CANCELLED": "was cancelled, by scancel or an administrator",
    "COMPLETED": "has ended",
    "DEADLINE": "reached its deadline",
    "FAILED": "failed",
    "OUT_OF_MEMORY": "used more memory than it has",
    "REVOKED": "was revoked",
    "UNKNOWN": "is not known to Slurm, or not any more",
}

REASONS = {
    "Resources": "it waits for nodes that are free",
    "Priority": "jobs with a higher priority are before it",
    "None": "Slurm has not looked at it yet",
    "BeginTime": "its begin time has not come",
    "Dependency": "it waits for another job",
    "JobHeldUser": "it is held; scontrol release frees it",
    "JobHeldAdmin": "an administrator holds it",
    "ReqNodeNotAvail": "a node that it needs is down, or reserved",
    "Reservation": "it waits for its reservation",
    "Licenses": "it waits for a licence",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "Nodes required for job are DOWN": "nodes that it needs are down, or reserved for jobs with precedence",
    "BadConstraints": "no node is as it asks for",
    "PartitionConfig": "it asks for more than its partition has",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives to a job",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its quality of service is not valid",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its quality of service may not use this partition",
    "DependencyNeverSatisfied": "the job that it waits for has failed",
}
NEVER = re.compile(
    r"(BadConstraints|Partition(Node|Time)Limit|Invalid(Account|QOS)|(Account|QOS)NotAllowed"
    r"|DependencyNeverSatisfied|.*Max\w+PerJob.*)$"
)
"""Reasons that pass only if the job, or the site, is changed."""


def explain(reason: str) -> str:
    """Return Slurm's reason in words, and in brackets as it is.

    >>> explain("Priority")
    'jobs with a higher priority are before it (Priority)'
    """
    name = reason.split(",")[0]
    words = REASONS.get(name, "")
    if not words and name.startswith(("QOS", "Assoc")):
        words = "a limit of its quality of service" if name.startswith("QOS") else "a limit of its account"
    return f"{words} ({reason})" if words else reason


def describe_waiting(job: Job) -> str:
    """Return why a job does not run yet.

    >>> describe_waiting(Job("12", "PENDING", "Resources", starts="2026-11-30T14:05:00"))
    'job 12 is pending: it waits for nodes that are free (Resources); expected to start at 2026-11-30 14:05'
    """
    why = f": {explain(job.reason)}" if job.state == "PENDING" else ""
    when = f"; expected to start at {job.starts[:16].replace('T', ' ')}" if why and job.starts else ""
    return f"job {job.id} {WAITING.get(job.state, 'is ' + job.state)}{why}{when}"


def describe_end(job: Job) -> str:
    """Return why a job does not run any more, or never will.

    >>> describe_end(Job("12", "TIMEOUT", limit=3600.0))
    'job 12 reached its time limit of 1:00:00'
    """
    if job.state == "PENDING":
        return (
            f"job {job.id} will not start: {explain(job.reason)}. Ask for less, or for something else: "
            "sinfo --long shows what there is"
        )
    state = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}.get(job.reason, job.state)
    words = (REPEATED | ENDED | WAITING).get(state, f"is in the state {state}")
    if state == "TIMEOUT" and job.limit is not None:
        words += f" of {timedelta(seconds=job.limit)}"
    why = f" ({job.reason})" if state not in REPEATED and job.reason not in ("None", "") else ""
    return f"job {job.id} {words}{why}"


def next_action(job: Job) -> str:
    """Return what follows from a job's state: "wait", "run" or "end".

    >>> next_action(Job("12", "TIMEOUT"))
    'end'
    """
    if job.state == "RUNNING":
        return "run"
    if job.state == "PENDING" and NEVER.match(job.reason):
        return "end"
    return "wait" if job.state in WAITING else "end"


def parse_duration(text: str) -> float | None:
    """Return a time of Slurm in seconds, None if it has no limit, or is not known.

    Slurm reads and prints minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
    days-hours:minutes:seconds. Raises InvalidArgumentError for any other text.

    >>> parse_duration("1-02:03:04"), parse_duration("4:59"), parse_duration("UNLIMITED")
    (93784.0, 299.0, None)
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "INVALID", "NOT_SET", "PARTITION_LIMIT", "N/A", ""):
        return None
    found = re.fullmatch(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", text, re.ASCII)
    if not found:
        raise InvalidArgumentError(
            f"time {text!r} is none of Slurm's forms: 90 (minutes), 1:30:00, 1-12 or 2-12:00:00"
        )
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]  # minutes come first, not hours
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return timedelta(days=int(days or 0), hours=hours, minutes=minutes, seconds=seconds).total_seconds()


def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the names in a list of nodes, as ``scontrol show hostnames`` does.

    >>> expand_nodes("n[1-3,7],gpu[08-10],login")
    ('n1', 'n2', 'n3', 'n7', 'gpu08', 'gpu09', 'gpu10', 'login')
    """
    names: list[str] = []
    for one in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text.strip()):
        parts = re.split(r"\[([^\]]*)\]", one)  # texts, and between them the ranges
        choices = [numbers_in(part) if at % 2 else [part] for at, part in enumerate(parts)]
        if len(names) + prod(map(len, choices)) > MOST_NODES:
            raise InvalidArgumentError(f"the list of nodes {text[:80]!r} has over {MOST_NODES:,} names")
        names += map("".join, product(*choices))
    return tuple(names)


def numbers_in(ranges: str) -> list[str]:
    """Return the numbers of ranges, with their zeros.

    >>> numbers_in("8-10,012")
    ['8', '9', '10', '012']
    """
    found: list[str] = []
    for one in ranges.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", one, re.ASCII)
        first, last = (int(number or match[1]) for number in match.groups()) if match else (0, -1)
        if not match or not first <= last < first + MOST_NODES:
            raise InvalidArgumentError(f"{one[:80]!r} in a list of nodes is no number or range")
        found += [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    return found


def job_fields(text: str) -> dict[str, str]:
    """Return the fields that ``scontrol show job`` prints.

    >>> job_fields("JobId=12 JobName=a b" + chr(10) + "   RunTime=00:01:00 TimeLimit=01:00:00 TimeMin=N/A")
    {'JobId': '12', 'JobName': 'a b', 'RunTime': '00:01:00', 'TimeLimit': '01:00:00', 'TimeMin': 'N/A'}
    """
    return dict(re.findall(r"(?:^|\s)([A-Z][\w/:]*)=(.*?)(?=\s+[A-Z][\w/:]*=|\s*$)", text, re.MULTILINE))


def time_left(fields: Mapping[str, str]) -> float | None:
    """Return the seconds that a job of ``scontrol show job`` has left, None without a limit.

    >>> time_left({"RunTime": "00:01:00", "TimeLimit": "01:00:00"})
    3540.0
    """
    limit, run = (parse_duration(fields.get(name, "")) for name in ("TimeLimit", "RunTime"))
    return None if limit is None or limit >= NO_LIMIT else max(0.0, limit - (run or 0.0))
