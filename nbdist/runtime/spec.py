"""Which jobs a cluster has and where their tasks are; read from and written to TF_CONFIG."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from nbdist.errors import InvalidArgumentError

Tasks = list[str] | dict[int, str]


class ClusterSpec:
    """The jobs of a cluster: job name -> addresses of its tasks.

    ``cluster`` is a dict with a list of addresses (host:port) for each job, or {index: address} for jobs with
    gaps, or another ClusterSpec. Raises InvalidArgumentError for anything else.

    >>> spec = ClusterSpec({"ps": ["a:1"], "worker": {0: "b:1", 3: "c:1"}})
    >>> spec.job_tasks("worker")
    ['b:1', None, None, 'c:1']
    >>> spec.num_tasks("worker")
    2
    """

    def __init__(self, cluster: Mapping[str, Any] | ClusterSpec) -> None:
        self._jobs: dict[str, dict[int, str]] = {}
        if isinstance(cluster, ClusterSpec):
            self._jobs = {job: dict(tasks) for job, tasks in cluster._jobs.items()}
            return
        if not isinstance(cluster, Mapping):
            raise TypeError(
                f"a cluster is a dict of job -> addresses or a ClusterSpec, not {type(cluster).__name__}"
            )
        for job, tasks in cluster.items():
            if not isinstance(job, str):
                raise TypeError(f"a job's name is a string, not {job!r}")
            self._jobs[job] = _read_tasks(job, tasks)

    @classmethod
    def from_tf_config(cls, text: str | None = None) -> ClusterSpec:
        """Return the cluster of TF_CONFIG: ``text``, or None for the environment; empty without one."""
        cluster = read_tf_config(text).get("cluster", {})
        if not isinstance(cluster, dict):
            raise InvalidArgumentError(f"TF_CONFIG's 'cluster' is a table of jobs, not {cluster!r}")
        return cls(cluster)

    def to_tf_config(self, job: str, index: int) -> str:
        """Return TF_CONFIG for task ``index`` of ``job``, as JSON text."""
        self.task_address(job, index)
        cluster = {
            name: tasks if isinstance(tasks, list) else {str(i): address for i, address in tasks.items()}
            for name, tasks in self.as_dict().items()
        }
        return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, sorted."""
        return sorted(self._jobs)

    def as_dict(self) -> dict[str, Tasks]:
        """Return job -> list of addresses, or {index: address} for a job with gaps."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def num_tasks(self, job: str) -> int:
        """Return how many tasks ``job`` has, without gaps."""
        return len(self._tasks(job))

    def task_indices(self, job: str) -> list[int]:
        """Return the indices of the tasks of ``job`` in order; InvalidArgumentError for an unknown job."""
        return list(self._tasks(job))

    def job_tasks(self, job: str) -> list[str | None]:
        """Return the addresses of ``job`` by index, with None in the gaps."""
        tasks = self._tasks(job)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def task_address(self, job: str, index: int) -> str:
        """Return the address of task ``index`` of ``job``; InvalidArgumentError for an unknown one."""
        tasks = self._tasks(job)
        if index not in tasks:
            raise InvalidArgumentError(f"job {job!r} has no task {index!r}; it has {list(tasks)}")
        return tasks[index]

    def _tasks(self, job: str) -> dict[int, str]:
        if job not in self._jobs:
            raise InvalidArgumentError(f"no job {job!r} in this cluster; it has {self.jobs}")
        return self._jobs[job]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(json.dumps(self._jobs, sort_keys=True))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def read_tf_config(text: str | None = None) -> dict[str, Any]:
    """Return TF_CONFIG as a dict whose task index is an int; {} if the variable is not set."""
    source = os.environ.get("TF_CONFIG", "") if text is None else text
    if not source.strip():
        return {}
    try:
        config = json.loads(source)
    except ValueError as error:
        raise InvalidArgumentError(f"TF_CONFIG is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InvalidArgumentError(f"TF_CONFIG is a table with 'cluster' and 'task', not {config!r}")
    task = config.get("task")
    if isinstance(task, dict) and "index" in task:
        task["index"] = _as_index("TF_CONFIG's task", task["index"])
    return config


def chief_of(spec: ClusterSpec) -> tuple[str, int] | None:
    """Return the chief's (job, index): the chief job's first task if there is one, else worker 0."""
    for job in ("chief", "master", "worker"):
        if job in spec.jobs and spec.num_tasks(job):
            return job, spec.task_indices(job)[0]
    return None


def _read_tasks(job: str, tasks: Any) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        entries = {_as_index(f"job {job!r}", index): address for index, address in tasks.items()}
        entries = dict(sorted(entries.items()))
    elif isinstance(tasks, (list, tuple)):
        entries = dict(enumerate(tasks))
    else:
        raise TypeError(
            f"job {job!r} takes a list of addresses or a dict of index -> address, not {type(tasks).__name__}"
        )
    for address in entries.values():
        if not isinstance(address, str):
            raise TypeError(f"an address of job {job!r} is a string like 'host:port', not {address!r}")
    return entries


def _as_index(where: str, index: Any) -> int:
    try:
        number = int(index)
    except (TypeError, ValueError):
        raise TypeError(f"a task index in {where} is a whole number, not {index!r}") from None
    if number < 0 or isinstance(index, (bool, float)):
        raise InvalidArgumentError(f"a task index in {where} is 0 or more, not {index!r}")
    return number
