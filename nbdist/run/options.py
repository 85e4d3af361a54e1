"""What a run may be asked for, checked before anything starts. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from nbdist.distribute.parameter_server import require_standbys
from nbdist.distribute.registry import SETTINGS, STRATEGIES, default_strategy, names_of, owners, training_spec
from nbdist.distribute.spec import COLLECTIVE, StrategySpec, TrainingSpec
from nbdist.errors import InvalidArgumentError, choices
from nbdist.frameworks.environment import FRAMEWORKS
from nbdist.numbers import is_whole
from nbdist.optim.precision import BFLOAT16, checked_precision
from nbdist.runtime.task import Roster, TaskInfo
from nbdist.train.state_writer import parse_interval
from nbdist.wire.collective.registry import COLLECTIVES

REPLICATIONS = ("between-graph", "in-graph")
DATA = ("client", "workers", "service")
HELPERS = {
    "ps": "parameter servers only keep parameters",
    "data": "data tasks only read for them (--data service)",
}
"""Jobs with tasks that run no bodies, and what they do instead."""
MOST_RESTARTS = 3  # lost workers of a run that are replaced, by default


@dataclass(frozen=True)
class Options:
    """How a body is run on the tasks.

    ``strategy`` None means: parameter servers if the cluster has any, else each replica by itself, or with
    ``synchronous`` a copy of the parameters on each worker. ``synchronous`` None means what the strategy
    does of itself. ``backups`` to ``host_devices`` are settings of single strategies: each is declared in the
    strategy's `StrategySpec`, and listed in :data:`nbdist.distribute.registry.SETTINGS`.
    ``replication`` is "between-graph", where every task runs the body and builds a graph of its own, or
    "in-graph", where the notebook's process runs it and one graph drives all tasks. ``data`` says whether
    in that case the "client" (the notebook) feeds every batch, or the "workers" read them; between-graph,
    "service" has the cluster's data tasks read for the workers, which otherwise read for themselves.
    ``on`` selects tasks, such as ``worker:0-2`` or ``worker:0,2``; None means all workers. ``tensorboard``
    has each task write event files beside its log. ``push`` names notebook values to send to bodies.
    ``checkpoint_every`` is how often the state of a training is written, such as "30s", or a number of steps;
    ``resume`` is the id of the run whose newest state the body continues.
    ``max_restarts`` is how many lost workers, and servers of sessions, a run replaces (its restart budget);
    None is 3.
    ``precision`` is the policy of models that are compiled without one.
    ``framework`` is the one whose own distribution the body uses, one of
    :data:`nbdist.frameworks.environment.FRAMEWORKS`: its tasks then have the environment of its launcher. A
    strategy beside it is that of ``nb.frameworks.<framework>.fit``.
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
    precision: str = "float32"
    fetch: tuple[str, ...] = ()
    transport: str = "auto"
    backups: int | None = None
    aggregate: int | None = None
    staleness: int | None = None
    ps_replicas: int | None = None
    locking: bool = False
    collective: str = "auto"
    min_workers: int | None = None
    every: int | None = None
    alpha: float | None = None
    stage: int | None = None
    host_devices: int | None = None
    tensorboard: bool = False
    push: tuple[str, ...] = ()
    checkpoint_every: str | int | None = None
    resume: str | None = None
    max_restarts: int | None = None
    framework: str | None = None

    def __post_init__(self) -> None:
        self._check_framework()
        if self.strategy is not None:
            choose("--strategy", self.strategy, tuple(STRATEGIES))
        choose("--replication", self.replication, REPLICATIONS)
        if self.replication == "in-graph" and self.spec is not None and not self.spec.in_graph:
            taken = " or ".join(spec.name for spec in STRATEGIES.values() if spec.in_graph)
            raise InvalidArgumentError(
                f"--strategy {self.strategy} has every worker keep parameters of its own, and --replication "
                "in-graph has this notebook drive all workers together, with the parameters in one place: "
                f"drop one of the two, or take --strategy {taken}"
            )
        if self.spec is not None:
            self.spec.check_steps(self.synchronous)
        self._check_settings()
        choose("--data", self.data, DATA)
        if self.data == "workers" and self.replication != "in-graph":
            raise InvalidArgumentError(
                "--data workers belongs to --replication in-graph; between-graph, each worker reads its own "
                "data in any case: drop --data"
            )
        if self.data == "service" and self.replication == "in-graph":
            raise InvalidArgumentError(
                "--data service belongs to --replication between-graph; in-graph, this notebook feeds the "
                "devices, or with --data workers each reads its own batches"
            )
        if self.epochs is not None and not is_whole(self.epochs, 1):
            raise InvalidArgumentError(f"--epochs is a whole number above 0, got {self.epochs!r}")
        checked_precision("--precision", self.precision)
        if self.precision == BFLOAT16 and self.framework is None and self.strategy not in (None, "tpu"):
            raise InvalidArgumentError(
                f"--precision {BFLOAT16} belongs to --strategy tpu, which XLA compiles: NumPy has no "
                "bfloat16. Use mixed_float16"
            )
        if self.precision != "float32" and self.replication == "in-graph":
            raise InvalidArgumentError(
                f"--precision {self.precision} belongs to --replication between-graph: in-graph replicas "
                "compute in float32. Drop one of the two"
            )
        if self.seed is not None and not is_whole(self.seed, 0):
            raise InvalidArgumentError(f"--seed is a whole number of 0 or more, got {self.seed!r}")
        if self.max_restarts is not None and not is_whole(self.max_restarts, 0):
            raise InvalidArgumentError(
                f"--max-restarts is a whole number of 0 or more, got {self.max_restarts!r}"
            )
        replaces = self.replication != "in-graph" and (self.spec is None or self.spec.takes_new_workers)
        if self.max_restarts and not replaces:
            able = " or ".join(name for name, spec in STRATEGIES.items() if spec.takes_new_workers)
            given = "in-graph" if self.replication == "in-graph" else self.strategy
            raise InvalidArgumentError(
                f"--max-restarts {self.max_restarts} belongs to --strategy {able}; {given} replaces no "
                "workers: drop it"
            )
        if self.on is not None:
            parse_on(self.on)
        if self.checkpoint_every is not None:
            parse_interval(self.checkpoint_every)
        for flag, value in (("--checkpoint-every", self.checkpoint_every), ("--resume", self.resume)):
            if value is not None and self.replication == "in-graph":
                raise InvalidArgumentError(
                    f"{flag} belongs to --replication between-graph: an in-graph body is in this notebook's "
                    "process and ends with it. Save its variables with nb.train.Saver"
                )
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
        given = {one.name: getattr(self, one.name) for one in SETTINGS.values() if not one.ignored_elsewhere}
        return {name: value for name, value in given.items() if value != defaults[name]}

    @property
    def wants_training(self) -> bool:
        """Whether something was asked for that has a meaning only for a body that trains."""
        chosen = self.strategy is not None or self.synchronous or self.data != "client"
        return bool(chosen or self.settings().keys() - {COLLECTIVE.name} or self.epochs is not None) or (
            self.precision != "float32"
        )

    def resolve(self, has_servers: bool) -> Options:
        """Return the options for a cluster with or without parameter servers, with the strategy they imply.

        Raises InvalidArgumentError if the strategy needs a parameter server and there is none.

        >>> Options(every=5).resolve(has_servers=False).strategy
        'elastic'
        """
        found = self
        if found.spec is not None:
            found.spec.check_servers(has_servers)
            if found.spec.synchronous:
                found = replace(found, synchronous=True)
        if found.framework is not None and not found._chooses_strategy:
            return found
        if found.replication == "in-graph":  # without a parameter server the first worker has the variables
            return found
        if found.strategy is None and found.synchronous:
            found = replace(found, strategy=default_strategy(has_servers, together=True))
        named = [name for name in found.settings() if name != COLLECTIVE.name]
        if found.strategy is None and named:  # a setting of one strategy alone selects it
            return replace(found, strategy=owners(SETTINGS[named[0]])[0]).resolve(has_servers)
        return replace(found, synchronous=bool(found.synchronous))

    def training(self, has_servers: bool, seed: int) -> TrainingSpec:
        """Return how the replicas train, from resolved options, with the default strategy if none is named.

        >>> Options(min_workers=2, seed=7).resolve(has_servers=True).training(True, 7).min_workers
        2
        """
        return training_spec(
            self._strategy_on(has_servers),
            self.settings(),
            synchronous=bool(self.synchronous),
            transport=self.transport,
            data=self.data,
            seed=seed,
            epochs=self.epochs,
            precision=self.precision,
        )

    def least(self, workers: int, servers: int) -> int | None:
        """Return how many workers have to be left for training to continue after a death; None: all of them.

        >>> Options(strategy="ps", synchronous=True, backups=1).least(workers=4, servers=1)
        3
        """
        spec = self.spec or STRATEGIES[default_strategy(bool(servers))]
        needed = spec.needed(self.settings(), bool(self.synchronous), workers)
        if not spec.survives_worker_loss or needed >= workers or self.replication == "in-graph":
            return None
        return max(needed, self.min_workers or 1)

    @property
    def needs_chief(self) -> bool:
        """Whether the run ends with the first worker, whatever the others do.

        >>> Options(strategy="ps").needs_chief, Options(strategy="multi_worker").needs_chief
        (True, False)
        """
        return self.spec is None or not self.spec.survives_chief_loss

    @property
    def most_restarts(self) -> int:
        """The restart budget: how many lost tasks of the run are replaced."""
        return MOST_RESTARTS if self.max_restarts is None else self.max_restarts

    def replaces_workers(self, servers: int) -> bool:
        """Return whether the new process of a lost worker can join the run, from resolved options.

        >>> Options(strategy="ps").replaces_workers(servers=1), Options().replaces_workers(servers=0)
        (True, False)
        """
        spec = self.spec or STRATEGIES[default_strategy(bool(servers))]
        fixed = self.replication == "in-graph" or self.framework is not None
        return spec.takes_new_workers and not fixed

    def why_fixed(self, servers: int) -> str:
        """Return why no workers can join or leave the run, from resolved options; empty if they can.

        >>> Options(strategy="multi_worker").why_fixed(servers=0)
        ''
        >>> Options(strategy="multi_worker", on="worker:0-1").why_fixed(servers=0)
        'it runs on --on worker:0-1'
        """
        name = self._strategy_on(bool(servers))
        if self.framework is not None:
            return f"the processes of --framework {self.framework} are a fixed group"
        if self.replication == "in-graph":
            return "the graph of an in-graph run is made for its workers"
        if self.on is not None:
            return f"it runs on --on {self.on}"
        if name == "ps" and self.synchronous:
            return (
                "synchronous replicas of ps neither join nor leave; asynchronous ones (--async), and those "
                "of --strategy multi_worker, do"
            )
        if not STRATEGIES[name].resizes:
            return f"replicas of {name} neither join nor leave; those of {', '.join(names_of('resizes'))} do"
        return ""

    def awaits_workers(self, workers: int, servers: int) -> bool:
        """Return whether a step that needs a lost worker waits for its new process, from resolved options.

        >>> Options(strategy="ps", synchronous=True).awaits_workers(workers=2, servers=1)
        True
        >>> Options(strategy="ps", synchronous=True, max_restarts=0).awaits_workers(workers=2, servers=1)
        False
        """
        spec = self.spec or STRATEGIES[default_strategy(bool(servers))]
        needed = spec.needed(self.settings(), bool(self.synchronous), workers)
        waits = spec.awaits_new_workers and bool(self.synchronous) and needed <= workers
        return waits and self.replaces_workers(servers) and self.most_restarts > 0

    @property
    def uses_servers(self) -> bool:
        """Whether parameter servers, if there are any, take part."""
        return self.spec is None or self.spec.uses_parameter_servers

    @property
    def spec(self) -> StrategySpec | None:
        """What there is to know about the strategy, if one was named."""
        if self.framework is not None and not self._chooses_strategy:
            return STRATEGIES[default_strategy()]  # for nbdist its replicas are independent
        return None if self.strategy is None else STRATEGIES[self.strategy]

    @property
    def _chooses_strategy(self) -> bool:
        """Whether an option says how replicas work together."""
        return self.strategy is not None or self.synchronous is not None or bool(self.settings())

    def _strategy_on(self, has_servers: bool) -> str:
        """Return the strategy on a cluster with or without parameter servers."""
        return default_strategy(has_servers) if self.spec is None else self.spec.name

    def _check_framework(self) -> None:
        """Raise for options that do not go with a framework's own processes, which are a fixed group."""
        if self.framework is None:
            return
        choose("--framework", self.framework, tuple(FRAMEWORKS))
        given = {
            "--replication": self.replication if self.replication == "in-graph" else None,
            "--max-restarts": self.max_restarts or None,
            "--data": self.data if self.data != "client" else None,
        }
        for flag, value in given.items():
            if value is not None:
                named = flag if isinstance(value, bool) else f"{flag} {value}"
                raise InvalidArgumentError(
                    f"{named} does not go with --framework {self.framework}, whose processes are a fixed "
                    f"group: drop {flag}, or --framework (nb.frameworks.{self.framework}.fit needs none)"
                )

    def _check_settings(self) -> None:
        settings = self.settings()
        for name in settings:
            setting = SETTINGS[name]
            strategies, synchronous = owners(setting), setting.synchronous
            if self.replication == "in-graph":
                raise InvalidArgumentError(
                    f"{setting.flag} belongs to --replication between-graph, where every worker steps by "
                    "itself"
                )
            if self.strategy is not None and self.strategy not in strategies:
                raise InvalidArgumentError(
                    f"{setting.flag} belongs to --strategy {' or '.join(strategies)}, not {self.strategy}"
                )
            if synchronous is not None and bool(self.synchronous) is not synchronous:
                raise InvalidArgumentError(
                    f"{setting.flag} belongs to {'--sync' if synchronous else '--async'}: replicas that "
                    f"{'make a step together' if synchronous else 'go at their own pace'}. "
                    f"{'Add --sync' if synchronous else 'Drop --sync'}"
                )
        for spec in STRATEGIES.values():
            spec.check(settings, None)
        for setting in SETTINGS.values():
            setting.check(getattr(self, setting.name))


def check_numbers(options: Options, workers: int, servers: int) -> None:
    """Raise if the options ask for more workers or parameter servers than there are."""
    if options.ps_replicas:
        require_standbys(servers)
    given = options.settings()
    for spec in STRATEGIES.values():
        own = {one.name for one in spec.settings} - {COLLECTIVE.name}
        if spec is options.spec or own & given.keys():
            spec.check(given, workers)
    collective = COLLECTIVES.get(options.collective)
    if collective is not None and collective.single and workers > 1:
        raise InvalidArgumentError(
            f"--collective {collective.name} is for one worker alone, and {workers} take part; drop it, or "
            "choose one with --on"
        )
    if options.min_workers is not None and options.min_workers > workers:
        raise InvalidArgumentError(
            f"--min-workers {options.min_workers}: only {workers} workers take part; start more, or give less"
        )


def choose(what: str, value: str, allowed: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``allowed``.

    >>> choose("--data", "disk", DATA)
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: no --data 'disk'; choose from client, workers, service
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
    if job in HELPERS:
        raise InvalidArgumentError(f"--on {job}: a body runs on workers; {HELPERS[job]}")
    if indices is None:
        return tasks
    known = {info.index: info for info in tasks}
    missing = [i for i in indices if i not in known]
    if missing:
        raise InvalidArgumentError(
            f"--on {on}: no task {', '.join(map(str, missing))} in job {job!r}; it has 0 to {max(known)}"
        )
    return [known[i] for i in indices]
