"""The hosts of a cluster and what each has, as rows for `Cluster.hosts` and as text for ``%cluster``. Pure.

    rows = host_rows(reports, slots, tasks, own, ends)      # one for each host, in the order of ranks
    print(describe_host(rows[0]))                           # host a (10.0.0.1): 8 cores, 2 GPUs

A host is known by its report while its supervisor is there, by the plan of the cluster from the start on, and
by its tasks until they have moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from nbdist.cluster.resize import find_task
from nbdist.errors import InvalidArgumentError
from nbdist.metrics.run_folder import duration
from nbdist.runtime.task import TaskInfo

UP, LOST, ABSENT = "up", "lost", "absent"
Row = dict[str, Any]


def host_rows(
    reports: Mapping[str, Mapping[str, Any]],
    slots: Iterable[str],
    tasks: Sequence[TaskInfo],
    own: Mapping[str, Any],
    ends: float | None,
    lost: Collection[str] = (),
) -> list[Row]:
    """Return a row for each host.

    - ``reports``: what the hosts with a supervisor say of themselves, by name
    - ``slots``: the names of all hosts that the cluster was started on, none for the client's own alone
    - ``own``: the report of the client's host, whose name is ""
    - ``ends``: when the job of the other hosts ends, in seconds since 1970
    - ``lost``: the names of hosts that had come, and are there no more; their tasks may be on other hosts now

    >>> task = TaskInfo("worker", 0, 0, "7f", 7, "10.0.0.1:80", "CPU:0", 1, node="a")
    >>> report = {"hostname": "gpu1", "address": "10.0.0.1", "cores": 8, "gpus": []}
    >>> rows = host_rows({"a": report}, ["a", "b"], [task], {}, None)
    >>> [(row["name"], row["state"], row["tasks"]) for row in rows]
    [('a', 'up', [0]), ('b', 'absent', [])]
    """
    names = dict.fromkeys([*slots, *(task.node for task in tasks), *reports])
    rows = []
    for name in names:
        ranks = [task.rank for task in tasks if task.node == name]
        report = reports.get(name) if name else own
        missing = LOST if ranks or name in lost else ABSENT
        said = report or {}
        rows.append(
            {
                "name": name,
                "hostname": said.get("hostname"),
                "address": said.get("address"),
                "cores": said.get("cores"),
                "gpus": None if report is None else list(said.get("gpus", ())),
                "tasks": ranks,
                "state": UP if report is not None else missing,
                "ends": ends if name else None,
            }
        )
    return rows


def describe_host(row: Row) -> str:
    """Return a host in one line.

    >>> describe_host({"name": "b", "state": "lost", "tasks": []})
    'host b: lost; its tasks are on other hosts'
    >>> describe_host({"name": "b", "state": "up", "address": "10.0.0.2", "cores": 1, "gpus": ["0"]})
    'host b (10.0.0.2): 1 core, 1 GPU'
    """
    name = f"host {row['name']}" if row["name"] else "this host"
    if row["state"] == LOST:
        return f"{name}: lost{'' if row['tasks'] else '; its tasks are on other hosts'}"
    if row["state"] == ABSENT:
        return f"{name}: has not come"
    cores, gpus = row["cores"], len(row["gpus"])
    parts = [f"{cores} core{'s' * (cores != 1)}", f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else ""]
    return f"{name} ({row['address']}): {', '.join(filter(None, parts))}"


def time_left(
    ends: float | None, now: float, saves_at: float | None = None, unused_left: float | None = None
) -> str:
    """Return a cluster's limits of time in words; "" if it has none.

    - ``ends``: when the job of the hosts ends; ``saves_at``: when runs write a state for that
    - ``unused_left``: in how many seconds it ends if nothing uses it

    >>> time_left(8000.0, 3680.0), time_left(8000.0, 9000.0), time_left(None, 0.0)
    ('job ends in 1 h 12 min', 'job has ended', '')
    >>> time_left(8000.0, 3680.0, saves_at=7700.0)
    'job ends in 1 h 12 min; runs write a state in 1 h 07 min'
    >>> time_left(8000.0, 7900.0, saves_at=7700.0)
    'job ends in 1 min 40 s; runs were to write a state 3 min 20 s ago'
    >>> time_left(None, 0.0, unused_left=90.0)
    'stops in 1 min 30 s without use'
    """
    parts = []
    if ends is not None:
        parts.append(f"job ends in {duration(ends - now)}" if ends > now else "job has ended")
        if saves_at is not None and ends > now:
            due = f"write a state in {duration(saves_at - now)}"
            past = f"were to write a state {duration(now - saves_at)} ago"
            parts.append(f"runs {due if saves_at > now else past}")
    if unused_left is not None:
        parts.append(f"stops in {duration(unused_left)} without use")
    return "; ".join(parts)


def tasks_named(tasks: Sequence[TaskInfo], name: int | str, hosts: Iterable[str]) -> list[TaskInfo]:
    """Return the task of a rank or a name, or all tasks of a job or a host.

    Raises InvalidArgumentError for a name that is none of these, or is both a task and a host, and for a host
    without tasks.

    >>> tasks = [TaskInfo("worker", one, one, "7f", 7, "", "CPU:0", 1, node="a") for one in (0, 1)]
    >>> [len(tasks_named(tasks, name, ["a"])) for name in (1, "worker:0", "worker:*", "a")]
    [1, 1, 2, 2]
    """
    host, known = str(name).strip(), list(hosts)
    if host.endswith(":*") and (of_job := [task for task in tasks if f"{task.job}:*" == host]):
        return of_job
    is_host = isinstance(name, str) and host in known
    try:
        task = find_task(tasks, name)
    except InvalidArgumentError as error:
        if not is_host:
            also = f"; the hosts are {', '.join(known)}" if known else ""
            raise InvalidArgumentError(f"{error}{also}") from None
        if found := [task for task in tasks if task.node == host]:
            return found
        raise InvalidArgumentError(
            f"host {host} has no task: it has not come yet, or its tasks are on other hosts (%cluster shows "
            "which)"
        ) from None
    if is_host:
        raise InvalidArgumentError(
            f"{host!r} names both {task.name} and a host: say {task.name} for the task; for the host, "
            "name its tasks"
        )
    return [task]
