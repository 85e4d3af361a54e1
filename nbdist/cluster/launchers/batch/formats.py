"""What PBS, SGE, LSF and HTCondor print of a job, as a `Job` in Slurm's words. Pure.

    read_pbs("7", "job_state = R ...")         # Job("7", "RUNNING", nodes=("n1", "n2"))

A job that has ended is COMPLETED, FAILED or TIMEOUT; its reason is the system's own text. A job that will
never run is FAILED as well: it is cancelled, and its reason is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from xml.etree import ElementTree

from nbdist.cluster.launchers.slurm.status import NO_LIMIT, Job, parse_duration
from nbdist.errors import UnavailableError


def job_of(
    number: str,
    state: str,
    reason: str,
    places: Sequence[tuple[str, int]] = (),
    limit: float | None = None,
    used: float | None = 0.0,
) -> Job:
    """Return a job; ``places`` are its nodes and their cores, ``used`` the seconds that it has run."""
    limited = limit is not None and 0 < limit < NO_LIMIT
    return Job(
        number,
        state,
        reason or ("the batch system has given no reason" if state == "PENDING" else "None"),
        left=max(0.0, (limit or 0.0) - used) if limited and used is not None else None,
        limit=limit if limited else None,
        cores=sum(cores for _, cores in places),
        nodes=tuple(dict.fromkeys(node for node, _ in places)) if state == "RUNNING" else (),
    )


PBS_STATES = {
    "Q": "PENDING", "W": "PENDING", "T": "PENDING", "H": "PENDING", "R": "RUNNING", "B": "RUNNING",
    "E": "COMPLETING", "S": "SUSPENDED", "U": "SUSPENDED", "C": "COMPLETED", "F": "COMPLETED",
    "X": "COMPLETED",
}  # fmt: skip


def read_pbs(number: str, text: str, now: float = 0.0) -> Job:
    """Return the job that ``qstat -f`` prints.

    >>> read_pbs("7", "job_state = R" + chr(10) + "exec_host = n1/0*4+n2/0*4").nodes
    ('n1', 'n2')
    """
    fields: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if field := re.fullmatch(r"\s*([\w.]+) = (.*)", line):
            fields[last := field[1]] = field[2].strip()
        elif last:  # a long value goes on in the next line
            fields[last] += line.strip()
    letter, comment = fields.get("job_state", ""), fields.get("comment", "")
    if letter not in PBS_STATES:
        raise UnavailableError(f"qstat -f printed {text[:200]!r} of job {number}; expected a job_state")
    state = PBS_STATES[letter]
    limit = parse_duration(fields.get("Resource_List.walltime", ""))
    used = parse_duration(fields.get("resources_used.walltime", "")) or 0.0
    if state == "PENDING" and comment.startswith("Can Never Run"):
        state = "FAILED"
    if state == "COMPLETED" and limit and used >= limit:
        state = "TIMEOUT"
    places = []
    for place in filter(None, fields.get("exec_host", "").split("+")):
        node, _, slot = place.partition("/")
        places.append((node, int(slot.partition("*")[2] or 1)))
    return job_of(
        number, state, "it is held; qrls releases it" if letter == "H" else comment, places, limit, used
    )


SGE_STAMP = r"(?:[\d/]+ [\d:]+ \[\d+:\d+\]: )?(?:error: )?"  # 11/30/2026 09:34:09 [1234:692]:
SGE_SILENT = "There are no messages available"


def read_sge(number: str, text: str, now: float = 0.0) -> Job:
    """Return the job that ``qstat -xml -g t`` and ``qstat -j`` print, one after the other.

    SGE tells the limit and when the job has started: the time that is left follows with the clock, ``now``
    (seconds since 1970).
    """
    table, end, details = text.rpartition("</job_info>")
    rows = rows_of_sge(number, table + end or text)
    states = {row.get("state", "") for row in rows}
    found = re.search(rf"^error reason\s+\d+:\s*{SGE_STAMP}(.*)", details, re.MULTILINE)
    if not found and "qw" in states:
        found = re.search(rf"^scheduling info:\s*(?!{SGE_SILENT})([^(\s-].*)", details, re.MULTILINE)
    reason = found[1].strip() if found else ""
    if not rows:
        return job_of(number, "COMPLETED", reason)
    letters = "".join(states)
    if "E" in letters:
        return job_of(number, "FAILED", reason or "it is in an error state; qstat -explain E -j says more")
    if "h" in letters and "q" in letters:
        return job_of(number, "PENDING", "it is held; qrls releases it")
    if "q" in letters:
        return job_of(number, "PENDING", reason)
    if "d" in letters:
        return job_of(number, "COMPLETING", reason)
    if re.search(r"[sST]", letters):
        return job_of(number, "SUSPENDED", reason)
    # A row of the master task is not a slot; those of the slaves are, where a job has them.
    slaves = [row for row in rows if row.get("master") == "SLAVE"]
    master = [row for row in rows if row.get("master") != "SLAVE"]
    at = [
        row["queue_name"].partition("@")[2] for row in (*master, *slaves) if "@" in row.get("queue_name", "")
    ]
    if "t" in letters or not at:
        return job_of(number, "CONFIGURING", reason)
    cores = {
        node: max(1, sum(row.get("queue_name", "").endswith(f"@{node}") for row in slaves)) for node in at
    }
    limit = re.search(r"^hard resource_list:.*\bh_rt=(\d+)", details, re.MULTILINE)
    begun = min((seconds_of(row.get("JAT_start_time", "")) or now for row in rows), default=now)
    return job_of(
        number, "RUNNING", reason, list(cores.items()), float(limit[1]) if limit else None, now - begun
    )


def rows_of_sge(number: str, table: str) -> list[dict[str, str]]:
    """Return the rows of a job in the table of ``qstat -xml``: its tasks, or the job while it waits."""
    try:
        jobs = list(ElementTree.fromstring(table).iter("job_list"))
    except ElementTree.ParseError as error:
        raise UnavailableError(f"qstat -xml printed {table[:100]!r}: {error}") from None
    rows = [{field.tag: (field.text or "").strip() for field in job} for job in jobs]
    return [row for row in rows if row.get("JB_job_number") == number]


def seconds_of(text: str) -> float | None:
    """Return a local time of ISO 8601 in seconds since 1970, None for any other text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


LSF_STATES = {
    "PEND": "PENDING", "WAIT": "PENDING", "FWD_PEND": "PENDING", "PROV": "CONFIGURING", "PSUSP": "PENDING",
    "RUN": "RUNNING", "UNKWN": "RUNNING",  # a node of it is silent
    "USUSP": "SUSPENDED", "SSUSP": "SUSPENDED", "DONE": "COMPLETED", "EXIT": "FAILED", "ZOMBI": "FAILED",
}  # fmt: skip
LSF_FORMAT = "stat exec_host time_left exit_reason pend_reason delimiter='|'"


def read_lsf(number: str, text: str, now: float = 0.0) -> Job:
    """Return the job that ``bjobs`` prints with `LSF_FORMAT`.

    >>> read_lsf("7", "RUN|4*n1:4*n2|0:30 L|-|-").left
    1800.0
    """
    fields = [one.strip().strip("-") for one in text.strip().split("|", 4)]
    if len(fields) < 5:
        raise UnavailableError(f"bjobs printed {text[:200]!r} of job {number}; expected {LSF_FORMAT}")
    stat, hosts, left, ended, pending = fields
    state = LSF_STATES.get(stat, stat)
    if stat == "EXIT" and "TERM_RUNLIMIT" in ended:
        state = "TIMEOUT"
    if stat == "EXIT" and re.search(r"TERM_(OWNER|ADMIN|FORCE)", ended):
        state = "COMPLETED"
    places = []
    for place in filter(None, hosts.split(":")):
        cores, star, node = place.rpartition("*")
        places.append((node, int(cores) if star else 1))
    found = re.match(r"(\d+):(\d+)", left)  # "X" and "E" follow an estimate, "L" a limit
    seconds = 60.0 * (60 * int(found[1]) + int(found[2])) if found and "L" in left else None
    reason = "it is held; bresume releases it" if stat == "PSUSP" else ended or pending
    job = job_of(number, state, reason.rstrip(";"), places, seconds, 0.0)
    return Job(**{**vars(job), "limit": None})  # what is left is known, not the whole limit


HTCONDOR_STATES = {
    "1": "PENDING", "2": "RUNNING", "3": "COMPLETED", "4": "COMPLETED", "5": "FAILED", "6": "COMPLETING",
    "7": "SUSPENDED",
}  # fmt: skip
HTCONDOR_FIELDS = (
    "ProcId", "JobStatus", "RemoteHost", "RequestCpus", "AllowedJobDuration", "JobCurrentStartDate",
    "ServerTime", "HoldReason",
)  # fmt: skip


def processes_of_htcondor(text: str) -> list[dict[str, str]]:
    """Return the processes of a job that ``condor_q -autoformat:t`` prints with `HTCONDOR_FIELDS`."""
    rows = [line.split("\t") for line in text.splitlines() if line.strip()]
    found = []
    for row in rows:
        fields = [field.strip() for field in (row[1:] if not row[0].strip() else row)]
        if len(fields) < len(HTCONDOR_FIELDS):
            raise UnavailableError(f"condor_q printed {row!r}; expected {', '.join(HTCONDOR_FIELDS)}")
        given = dict(zip(HTCONDOR_FIELDS, fields))
        found.append({name: value for name, value in given.items() if value != "undefined"})
    return sorted(found, key=lambda process: int(process["ProcId"]))


def machine_of(process: dict[str, str]) -> str:
    """Return the machine of a process, without its slot there.

    >>> machine_of({"RemoteHost": "slot1_2@n1.lab"})
    'n1.lab'
    """
    return process.get("RemoteHost", "").rpartition("@")[2]


def read_htcondor(number: str, text: str, now: float = 0.0) -> Job:
    """Return the job whose processes ``condor_q`` prints; it runs when all of them do."""
    processes = processes_of_htcondor(text)
    states = [HTCONDOR_STATES.get(process["JobStatus"], "UNKNOWN") for process in processes]
    held = [process["HoldReason"] for process in processes if "HoldReason" in process]
    if not processes or set(states) == {"COMPLETED"}:
        return job_of(number, "COMPLETED", "")
    if set(states) == {"FAILED"}:
        return job_of(number, "FAILED", f"held: {(held or ['no reason is given'])[0]}")
    waiting = [state for state in states if state != "RUNNING"]
    if waiting:
        some = f"{states.count('RUNNING')} of {len(states)} nodes are there"
        reason = f"{some}; one is held: {held[0]}" if held else some
        return job_of(number, "PENDING" if "PENDING" in waiting else waiting[0], reason)
    places = [(machine_of(process), int(process.get("RequestCpus", "1"))) for process in processes]
    first = processes[0]
    limit = float(first.get("AllowedJobDuration", "0"))
    used = float(first.get("ServerTime", "0")) - float(first.get("JobCurrentStartDate", "0"))
    return job_of(number, "RUNNING", "", places, limit, used)


# The nodes of the job around this process.


def read_node_file(text: str) -> tuple[str, ...]:
    """Return the nodes of PBS_NODEFILE or PE_HOSTFILE: the first word of each line, each once.

    >>> read_node_file("n1" + chr(10) + "n1" + chr(10) + "n2 4 all.q@n2 UNDEFINED")
    ('n1', 'n2')
    """
    return tuple(dict.fromkeys(line.split()[0] for line in text.splitlines() if line.strip()))


def read_lsf_hosts(text: str) -> tuple[str, ...]:
    """Return the nodes of LSB_MCPU_HOSTS ("n1 4 n2 4") or of LSB_HOSTS ("n1 n1 n2").

    >>> read_lsf_hosts("n1 4 n2 4"), read_lsf_hosts("n1 n1 n2")
    (('n1', 'n2'), ('n1', 'n2'))
    """
    words = text.split()
    counted = len(words) % 2 == 0 and all(word.isdigit() for word in words[1::2])
    return tuple(dict.fromkeys(words[::2] if counted else words))


def clock_of(time: str) -> str:
    """Return a wall time in Slurm's forms as hours:minutes:seconds, "" if it is left to the site.

    >>> clock_of("90"), clock_of("1-12"), clock_of("")
    ('1:30:00', '36:00:00', '')
    """
    seconds = seconds_in(time)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if seconds else ""


def seconds_in(time: str) -> int:
    """Return the seconds of a wall time in Slurm's forms, 0 for "" and for no limit."""
    return int(parse_duration(time) or 0)
