"""What a run may be asked for, checked before anything starts. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from nbdist.errors import InvalidArgumentError, choices
from nbdist.runtime.task import Roster, TaskInfo

STRATEGIES = ("ps", "mirrored", "multi_worker", "central", "elastic", "one_device")
TRIAL_STRATEGIES = ("multi_worker", "mirrored")  # of the engines that train one trial together
TOGETHER = ("mirrored", "multi_worker", "central")
"""Strategies whose replicas make every step together."""


SURVIVING = ("mirrored", "multi_worker", "ps")
"""Strategies whose replicas go on after a death of one; synchronous servers only with backups."""


REPLICATIONS = ("between-graph", "in-graph")
DATA = ("client", "workers")
IN_GRAPH = (None, "ps", "central")
"""Strategies that in-graph replication has a meaning for."""


COLLECTIVE_KINDS = ("auto", "local", "shm", "ring", "hierarchical", "nccl", "mpi")
BELONGS: dict[str, tuple[tuple[str, ...], bool | None]] = {
    "backups": (("ps",), True),
    "aggregate": (("ps",), True),
    "staleness": (("ps",), False),
    "locking": (("ps",), None),
    "collective": (("mirrored", "multi_worker", "elastic", "one_device"), None),
    "min_workers": (SURVIVING, None),
    "every": (("elastic",), None),
    "alpha": (("elastic",), None),
}
"""Settings by the strategies that they belong to, and whether those must be synchronous."""


@dataclass(frozen=True)
class Options:
    """How a body is run on the tasks.

    ``strategy`` None means: parameter servers if the cluster has any, else each replica by itself, or with
    ``synchronous`` a copy of the parameters on each worker. ``synchronous`` None means what the strategy
    does of itself. ``backups`` to ``alpha`` are settings of single strategies, see :data:`BELONGS`.
    ``replication`` is "between-graph", where every task runs the body and builds a graph of its own, or
    "in-graph", where the notebook's process runs it and one graph drives all tasks. ``data`` says whether
    in that case the "client" (the notebook) feeds every batch, or the "workers" read them.
    ``on`` selects tasks, such as ``worker:0-2`` or ``worker:0,2``; None means all workers. ``tensorboard``
    has each task write event files beside its log. ``push`` names notebook values to send to bodies.
    """

    strategy: str | None = None
    synchronous: bool | None = None
    replication: str = "between-graph"
    data: str = "client"
    on: str | None = None
    name: str = "run"
    seed: int | None = None
    live: tuple[str, ...] | None = None
    show: bool = True
    background: bool = False
    epochs: int | None = None
    fetch: tuple[str, ...] = ()
    transport: str = "auto"
    backups: int | None = None
    aggregate: int | None = None
    staleness: int | None = None
    locking: bool = False
    collective: str = "auto"
    min_workers: int | None = None
    every: int | None = None
    alpha: float | None = None
    tensorboard: bool = False
    push: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.strategy is not None:
            choose("--strategy", self.strategy, STRATEGIES)
        choose("--replication", self.replication, REPLICATIONS)
        if self.replication == "in-graph" and self.strategy not in IN_GRAPH:
            raise InvalidArgumentError(
                f"--strategy {self.strategy} has every worker keep parameters of its own, and --replication "
                "in-graph has this notebook drive all workers together, with the parameters in one place: "
                "drop one of the two, or take --strategy ps or central"
            )
        self._check_steps()
        self._check_settings()
        choose("--data", self.data, DATA)
        if self.data == "workers" and self.replication != "in-graph":
            raise InvalidArgumentError(
                "--data workers belongs to --replication in-graph; between-graph, each worker reads its own "
                "data in any case: drop --data"
            )
        choose("--transport", self.transport, ("auto", "socket"))
        if self.epochs is not None and not _whole(self.epochs, 1):
            raise InvalidArgumentError(f"--epochs is a whole number above 0, got {self.epochs!r}")
        if self.seed is not None and not _whole(self.seed, 0):
            raise InvalidArgumentError(f"--seed is a whole number of 0 or more, got {self.seed!r}")
        if self.on is not None:
            parse_on(self.on)
        for name in self.fetch:
            if not name.isidentifier():
                raise InvalidArgumentError(f"--fetch takes names of variables, got {name!r}")
        for name in self.push:
            if not name.isidentifier():
                raise InvalidArgumentError(
                    f"--push takes names of variables, such as --push x,y; got {name!r}"
                )

    def settings(self) -> dict[str, Any]:
        """Return the settings of single strategies that were given.

        >>> Options(strategy="elastic", every=5).settings()
        {'every': 5}
        """
        defaults = {field.name: field.default for field in fields(self)}
        given = {name: getattr(self, name) for name in BELONGS}
        return {name: value for name, value in given.items() if value != defaults[name]}

    @property
    def wants_training(self) -> bool:
        """Whether something was asked for that has a meaning only for a body that trains."""
        chosen = self.strategy is not None or self.synchronous or self.data != "client"
        return bool(chosen or self.settings().keys() - {"collective"} or self.epochs is not None)

    def least(self, workers: int, servers: int) -> int | None:
        """Return how many workers have to be left for training to go on after a death; None: all of them.

        >>> Options(strategy="ps", synchronous=True, backups=1).least(workers=4, servers=1)
        3
        """
        strategy = self.strategy or ("ps" if servers else None)
        needed = 1
        if strategy == "ps" and self.synchronous:
            needed = workers - (self.backups or 0) if self.aggregate is None else self.aggregate
        if strategy not in SURVIVING or needed >= workers or self.replication == "in-graph":
            return None
        return max(needed, self.min_workers or 1)

    @property
    def uses_servers(self) -> bool:
        """Whether parameter servers, if there are any, take part."""
        return self.strategy in (None, "ps")

    def _check_steps(self) -> None:
        if self.strategy in TOGETHER and self.synchronous is False:
            raise InvalidArgumentError(
                f"replicas of --strategy {self.strategy} make every step together: drop --async, or take "
                "--strategy ps or elastic"
            )
        if self.strategy in ("elastic", "one_device") and self.synchronous:
            raise InvalidArgumentError(
                f"replicas of --strategy {self.strategy} make steps of their own: drop --sync, or take "
                "--strategy multi_worker"
            )

    def _check_settings(self) -> None:
        for name in self.settings():
            strategies, synchronous = BELONGS[name]
            name = name.replace("_", "-")
            if self.replication == "in-graph":
                raise InvalidArgumentError(
                    f"--{name} belongs to --replication between-graph, where every worker steps by itself"
                )
            if self.strategy is not None and self.strategy not in strategies:
                raise InvalidArgumentError(
                    f"--{name} belongs to --strategy {' or '.join(strategies)}, not {self.strategy}"
                )
            if synchronous is not None and bool(self.synchronous) is not synchronous:
                raise InvalidArgumentError(
                    f"--{name} belongs to {'--sync' if synchronous else '--async'}: replicas that "
                    f"{'make a step together' if synchronous else 'go at their own pace'}. "
                    f"{'Add --sync' if synchronous else 'Drop --sync'}"
                )
        if self.backups is not None and self.aggregate is not None:
            raise InvalidArgumentError(
                "--backups N and --aggregate R say the same (R is the workers less the backups): give one"
            )
        for name, value, least in (
            ("backups", self.backups, 0),
            ("aggregate", self.aggregate, 1),
            ("staleness", self.staleness, 0),
            ("min_workers", self.min_workers, 1),
            ("every", self.every, 1),
        ):
            if value is not None and not _whole(value, least):
                name = name.replace("_", "-")
                raise InvalidArgumentError(f"--{name} is a whole number of {least} or more, got {value!r}")
        if self.alpha is not None and not (isinstance(self.alpha, (int, float)) and 0 < self.alpha <= 1):
            raise InvalidArgumentError(f"--alpha is a number above 0 and at most 1, got {self.alpha!r}")
        choose("--collective", self.collective, COLLECTIVE_KINDS)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_numbers(options: Options, workers: int) -> None:
    """Raise if the options ask for more workers than take part."""
    if options.backups is not None and options.backups >= workers:
        raise InvalidArgumentError(
            f"--backups {options.backups} of {workers} workers leaves none whose gradients make a step; "
            f"at most {workers - 1} can be"
        )
    if options.collective == "local" and workers > 1:
        raise InvalidArgumentError(
            f"--collective local is for one worker alone, and {workers} take part; drop it, or choose one "
            "with --on"
        )
    if options.min_workers is not None and options.min_workers > workers:
        raise InvalidArgumentError(
            f"--min-workers {options.min_workers}: only {workers} workers take part; start more, or give less"
        )


def choose(what: str, value: str, allowed: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``allowed``.

    >>> choose("--data", "disk", DATA)
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: no --data 'disk'; choose from client, workers
    """
    if value not in allowed:
        raise InvalidArgumentError(f"no {what} {value!r}; {choices(value, allowed)}")


def parse_on(text: str) -> tuple[str, list[int] | None]:
    """Return job and task indices of a selection; None stands for all.

    >>> parse_on("worker:0-2,4"), parse_on("worker")
    (('worker', [0, 1, 2, 4]), ('worker', None))
    """
    job, _, numbers = text.partition(":")
    if not job or (":" in text and not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", numbers)):
        raise InvalidArgumentError(
            f"--on takes a job and task numbers such as worker:0-2 or worker:0,2, got {text!r}"
        )
    if not numbers:
        return job, None
    found: list[int] = []
    for part in numbers.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise InvalidArgumentError(f"--on {text!r}: {part} counts backwards")
        found.extend(range(int(low), int(high or low) + 1))
    return job, sorted(set(found))


def select(roster: Roster, on: str | None) -> list[TaskInfo]:
    """Return the tasks that a body runs on, the chief first."""
    job, indices = parse_on(on) if on else ("worker", None)
    tasks = sorted((info for info in roster if info.job == job), key=lambda info: info.index)
    if not tasks:
        jobs = ", ".join(sorted({info.job for info in roster}))
        raise InvalidArgumentError(f"the cluster has no job {job!r}; its jobs are {jobs}")
    if job == "ps":
        raise InvalidArgumentError("--on ps: a body runs on workers; parameter servers only keep parameters")
    if indices is None:
        return tasks
    known = {info.index: info for info in tasks}
    missing = [i for i in indices if i not in known]
    if missing:
        raise InvalidArgumentError(
            f"--on {on}: no task {', '.join(map(str, missing))} in job {job!r}; it has 0 to {max(known)}"
        )
    return [known[i] for i in indices]
