"""Placement of variables on tasks: round robin, by size, and others. Pure functions.

setter = replica_device_setter(ps_tasks=2)
with device(setter):        # v on /job:ps/task:0, w on /job:ps/task:1, other ops on /job:worker
    ...
"""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.device import DeviceSpec
from nbdist.graph.op import show
from nbdist.graph.tensor import Tensor

__all__ = [
    "PS_OPS", "GreedyLoadBalancingStrategy", "RandomStrategy", "byte_size_load_fn",
    "replica_device_setter", "round_robin",
]  # fmt: skip

PS_OPS = frozenset({"Variable", "Accumulator", "TokenQueue", "Table"})
"""The types of ops that all workers share: they are placed on parameter servers."""


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Collection[str] | None = None,
    ps_strategy: Callable[[Tensor], SupportsIndex] | None = None,
) -> Callable[[Tensor], str] | None:
    """Return a device function: variables on the parameter servers, everything else on ``worker_device``.

    ``ps_strategy`` gets each op whose type is in ``ps_ops`` (default ``PS_OPS``) and returns which of the ps
    tasks takes it; the default takes turns, in order of creation. ``cluster``, a ClusterSpec or a dict of
    jobs, overrides ``ps_tasks``. Fields that the op sets itself win: an op that names another job gets no ps
    task, and with ``merge_devices=False`` an op that names any device keeps it. Returns None without
    parameter servers. As TensorFlow's function of this name.

    >>> from types import SimpleNamespace
    >>> setter = replica_device_setter(ps_tasks=2)
    >>> setter(SimpleNamespace(type="Variable", device="/device:CPU:0"))
    '/job:ps/task:0/device:CPU:0'
    >>> setter(SimpleNamespace(type="matmul", device=""))
    '/job:worker'
    """
    if ps_strategy is not None and not callable(ps_strategy):
        raise TypeError(f"ps_strategy is a function of an op that returns a task, not {ps_strategy!r}")
    if isinstance(ps_ops, str):
        raise TypeError(f"ps_ops is a list of types of ops, not {ps_ops!r}; write [{ps_ops!r}]")
    ps, worker = DeviceSpec.from_string(ps_device), DeviceSpec.from_string(worker_device)
    if ps_tasks < 0:
        raise InvalidArgumentError(f"ps_tasks is 0 or more, not {ps_tasks}")
    tasks = list(range(ps_tasks)) if cluster is None else _tasks_of(cluster, ps.job)
    if not tasks:
        return None
    on_ps = PS_OPS if ps_ops is None else frozenset(ps_ops)
    turns = itertools.cycle(range(len(tasks)))
    strategy = (lambda op: next(turns)) if ps_strategy is None else ps_strategy

    def replica_device(op: Tensor) -> str:
        if op.device and not merge_devices:
            return op.device
        own = DeviceSpec.from_string(op.device)
        if not ps_device or op.type not in on_ps:
            return worker.merge(own).to_string()
        # A task number is valid only in the ps job.
        if ps.job is None or own.job not in (None, ps.job):
            return ps.merge(own).to_string()
        return replace(ps, task=tasks[_checked_choice(strategy(op), op, len(tasks))]).merge(own).to_string()

    return replica_device


class GreedyLoadBalancingStrategy:
    """A ``ps_strategy`` that gives each op to the task with the least load so far, the first on a tie.

    ``load_fn`` gets an op and returns its load, a number of 0 or more in any unit.

    >>> from types import SimpleNamespace
    >>> strategy = GreedyLoadBalancingStrategy(2, byte_size_load_fn)
    >>> shapes = [(2, 2), (2, 1), (2, 2), (1, 3)]
    >>> [strategy(SimpleNamespace(name="v", shape=s, dtype=np.dtype(np.float32))) for s in shapes]
    [0, 1, 1, 0]
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Tensor], float]) -> None:
        if not callable(load_fn):
            raise TypeError(f"load_fn is a function of an op, like byte_size_load_fn, not {load_fn!r}")
        self._load_fn = load_fn
        self._loads = [0.0] * _checked_count(num_tasks)

    def __call__(self, op: Tensor) -> int:
        """Return the task for one more op and count its load there."""
        load = self._load_fn(op)
        if not 0 <= load < math.inf:
            raise InvalidArgumentError(f"the load of {op.name!r} is a number of 0 or more, not {load!r}")
        task = self._loads.index(min(self._loads))
        self._loads[task] += load
        return task


def byte_size_load_fn(op: Tensor) -> int:
    """Return an op's size in bytes: its elements times the size of one.

    Raises InvalidArgumentError if a size in its shape is unknown.

    >>> from types import SimpleNamespace
    >>> byte_size_load_fn(SimpleNamespace(name="w", shape=(784, 100), dtype=np.dtype(np.float32)))
    313600
    """
    sizes = [size for size in op.shape if size is not None]
    if len(sizes) < len(op.shape):
        raise InvalidArgumentError(
            f"{op.name!r} has the shape {show(op.shape)}, so its size in bytes is unknown; give every size"
        )
    return math.prod(sizes) * np.dtype(op.dtype).itemsize


class RandomStrategy:
    """A ``ps_strategy`` that draws a task from the op's name and the seed, the same one on every worker.

    >>> from types import SimpleNamespace
    >>> strategy = RandomStrategy(2, seed=0)
    >>> [strategy(SimpleNamespace(name=name)) for name in ("Variable", "Variable_1", "Variable_2")]
    [1, 0, 1]
    """

    def __init__(self, num_tasks: int, seed: int = 0) -> None:
        self._num_tasks = _checked_count(num_tasks)
        self._seed = int(operator.index(seed))

    def __call__(self, op: Tensor) -> int:
        """Return the task of an op."""
        # Not hash(), whose values for texts differ from process to process.
        digest = hashlib.md5(f"{op.name}_{self._seed}".encode(), usedforsecurity=False).hexdigest()
        return int(digest, 16) % self._num_tasks


def round_robin(variables: int, tasks: int) -> list[int]:
    """Return the task of each variable, in order of creation: 0, 1, ..., 0, 1, ...

    >>> round_robin(5, 2)
    [0, 1, 0, 1, 0]
    """
    if tasks < 1:
        raise InvalidArgumentError(f"variables need at least one task, got {tasks}")
    return [i % tasks for i in range(variables)]


def _tasks_of(cluster: Any, job: str | None) -> list[int]:
    """Return the indices of a job's tasks; a job with gaps keeps its indices, no job has no tasks."""
    jobs = cluster.as_dict() if hasattr(cluster, "as_dict") else cluster
    if not isinstance(jobs, Mapping):
        raise TypeError(f"cluster is a ClusterSpec or a dict of job -> addresses, not {cluster!r}")
    tasks = None if job is None else jobs.get(job)
    if tasks is None:
        return []
    if isinstance(tasks, Mapping):
        return sorted(int(index) for index in tasks)
    if isinstance(tasks, (list, tuple)):
        return list(range(len(tasks)))
    raise TypeError(f"job {job!r} takes a list of addresses or a dict of index -> address, not {tasks!r}")


def _checked_choice(choice: SupportsIndex, op: Tensor, num_tasks: int) -> int:
    try:
        number = operator.index(choice)
    except TypeError:
        raise TypeError(
            f"ps_strategy returned {choice!r} for {op.name!r}; expected a task's number"
        ) from None
    if not 0 <= number < num_tasks:
        raise InvalidArgumentError(
            f"ps_strategy put {op.name!r} on ps task {number}, but there are {num_tasks}, counted from 0; "
            "make the strategy with as many tasks as the ps job has"
        )
    return number


def _checked_count(num_tasks: int) -> int:
    if num_tasks < 1:
        raise InvalidArgumentError(f"a strategy chooses among 1 or more tasks, not {num_tasks}")
    return num_tasks
