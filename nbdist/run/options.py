"""What a run may be asked for: the table of options, and their checks before anything starts. Pure.

`LaunchOptions` has the options that %%distribute, nb.launch and the run's record name alike, with those of
training and of the strategies; `Options` has the others, too, and the checks. See `nbdist.train.options` for
what a row is, and how to add one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nbdist.checkpoint.manager import parse_interval
from nbdist.distribute.elastic import ElasticOptions
from nbdist.distribute.parameter_server import ServerOptions, require_standbys
from nbdist.distribute.registry import STRATEGIES, default_strategy, names_of, owners
from nbdist.distribute.sharded import ShardedOptions
from nbdist.distribute.spec import StrategySpec
from nbdist.distribute.tpu.strategy import TPUOptions
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.registry import FRAMEWORKS
from nbdist.optim.precision import BFLOAT16
from nbdist.run.export.registry import EXPORTERS, check_exporters
from nbdist.run.notify import target_of
from nbdist.run.replication import DATA, REPLICATIONS, Replication
from nbdist.runtime.task import Roster, TaskInfo
from nbdist.train.options import RunOption, TrainingOptions, option, rows, whole
from nbdist.wire.collective.registry import COLLECTIVES

HELPERS = {
    "ps": "parameter servers only keep parameters",
    "data": "data tasks only read for them (--data service)",
}
"""Jobs with tasks that run no bodies, and what they do instead."""
MOST_RESTARTS = 3  # lost workers of a run that are replaced, by default
TOGETHER = "How replicas work together"
IN_NOTEBOOK = (
    "an in-graph body is in this notebook's process and ends with it. Save its variables with nb.train.Saver"
)


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


def words_of(text: str) -> list[str]:
    """Return the words of a line, as a shell reads them.

    >>> words_of("--lr 0.1 --name 'two words'")
    ['--lr', '0.1', '--name', 'two words']
    """
    try:
        return shlex.split(text)
    except (ValueError, AttributeError) as error:
        raise InvalidArgumentError(
            f"--argv takes words as a shell reads them, got {text!r:.80}: {error}"
        ) from None


def names_of_variables(flag: str) -> Callable[[tuple[str, ...]], None]:
    """Return a check that names the first text which cannot name a variable."""

    def check(given: tuple[str, ...]) -> None:
        for name in given:
            if not name.isidentifier():
                raise InvalidArgumentError(
                    f"{flag} takes names of variables, such as {flag} x,y; got {name!r}"
                )

    return check


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(TPUOptions, ShardedOptions, ElasticOptions, ServerOptions, TrainingOptions):
    """The options of a run that flags, nb.launch and the run's record name alike."""

    strategy: str | None = option(
        None,
        "how replicas share parameters (default: ps if the cluster has one)",
        choices=tuple(STRATEGIES),
        doc=f"how replicas share parameters: {', '.join(STRATEGIES)}. None is ps if the cluster has "
        "parameter servers; else each replica trains by itself, or with ``sync`` as multi_worker",
        group=TOGETHER,
        trains=True,
    )
    replication: str = option(
        "between-graph",
        "a graph per worker (default), or one graph for all, run by this notebook",
        choices=tuple(REPLICATIONS),
        doc='"between-graph", where each worker runs the body and builds a graph of its own, or '
        '"in-graph", where this process runs it and one graph drives all workers',
        group=TOGETHER,
    )
    framework: str | None = option(
        None,
        "run the cell as its launcher does: for torch.distributed, jax.distributed",
        choices=tuple(FRAMEWORKS),
        doc='"torch" gives each task the environment that torchrun gives to a script, for '
        'torch.distributed and what is built on it; "jax" does so for jax.distributed.initialize(). A '
        "strategy beside it is that of nb.frameworks.torch.fit, which needs no framework= (see "
        "docs/frameworks.md)",
        group=TOGETHER,
    )
    min_workers: int | None = option(
        None,
        f"continue on N or more workers ({', '.join(names_of('survives_worker_loss'))}; default 1)",
        "N",
        "continue when workers die, as long as so many or more are left; None is 1",
        **whole(1),
        group="When a worker dies",
        strategies=names_of("survives_worker_loss"),
    )
    data: str = option(
        "client",
        "the reader: data tasks (service); in-graph, this notebook or each worker",
        choices=DATA,
        doc='what reads the batches: "client" (each worker its own; in-graph, this notebook), in-graph '
        '"workers", or "service": the cluster\'s data tasks read and transform for the workers '
        "(docs/data.md)",
        group="The data",
        trains=True,
    )
    on: str | None = option(
        None,
        "which tasks run the body (default: all workers)",
        "worker:0-2",
        'which tasks run the body, such as "worker:0-2" or "worker:0,2"; None is all workers',
        check_value=parse_on,
    )
    checkpoint_every: str | int | None = option(
        None,
        "writes the training's state: every 30 s, or every 500 steps",
        "30s|500",
        "the chief writes the training's state into the run's folder at this interval: "
        '"30s", "5m", "1h", or a number of steps such as 500; None writes none (see docs/runs.md)',
        check_value=parse_interval,
        between_graph=IN_NOTEBOOK,
    )
    resume: str | None = option(
        None,
        "continues the training of a run from its newest state",
        "RUN",
        "the id of a run that has ended and left a state; the body's training continues from it, on any "
        "number of workers. Its seed and interval are used where none are given. Raises NotFoundError "
        "for an unknown id, FailedPreconditionError if the run is under way or has left no state",
        is_valid=lambda value: isinstance(value, str),
        expected="the id of a run, as text, such as run.id",
        between_graph=IN_NOTEBOOK,
    )
    background: bool = option(
        False,
        "return immediately; `run` is the run's handle",
        doc="return immediately and follow the run in the background, also in a plain script, so that "
        "run.over and run.standing() advance; run.wait() and run.wait_until(step=...) wait for it",
    )
    tensorboard: bool = option(
        False,
        "also write event files, for tensorboard --logdir RUN_FOLDER",
        doc="True also writes event files: tensorboard --logdir {run.folder}/tensorboard",
    )
    max_restarts: int | None = option(
        None,
        "replace at most N tasks that die or freeze (default 3)",
        "N",
        "how many tasks (workers and parameter servers) that die or freeze are replaced during the run, "
        "0 or more; None is 3",
        **whole(0),
    )
    log_to: tuple[str, ...] = option(
        (),
        "at its end, export the run to these",
        "wandb,mlflow",
        f"names of targets to which the run is exported when it has ended, also if it has failed: "
        f"{', '.join(EXPORTERS)}. Raises MissingExtra if the package of one is not installed; see "
        "docs/runs.md",
        check_value=check_exporters,
    )
    argv: str | None = option(
        None,
        "what a script finds in sys.argv after its name",
        "'--lr 0.1'",
        "words that the body finds in sys.argv, after its name, as a shell reads them; None leaves sys.argv "
        "as it is",
        check_value=words_of,
    )
    notify: str | None = option(
        None,
        "told when the run ends or loses a task: a command, or an address",
        "'CMD'|URL",
        "a command, or an https address, that is told when the run ends or loses a task: the command by JSON "
        "on its stdin and by NBDIST_EVENT, NBDIST_TEXT, ... in its environment, the address by a POST of "
        "that JSON (docs/runs.md). This process tells; a failure of it is a note of the run",
        check_value=target_of,
    )
    fetch: tuple[str, ...] = option(
        (),
        "more variables to fetch from the chief",
        "a,b",
        doc="names of more variables of the body to fetch from the chief; run.results has them",
        check_value=names_of_variables("--fetch"),
    )


@dataclass(frozen=True, kw_only=True)
class Options(LaunchOptions):
    """How a body is run on the tasks: the values of all options, checked.

    Those of nb.launch have the same names and meanings here, but ``synchronous`` (its ``sync``), ``live`` and
    ``show`` (its ``live``), and ``push``, which has the names of the values.
    """

    synchronous: bool | None = option(
        None,
        "whether replicas step together",
        switches={
            "--sync": (True, "replicas share each batch and step together"),
            "--async": (False, "replicas step independently (default of ps)"),
        },
        group=TOGETHER,
        trains=True,
    )
    name: str = option("run", "a name for the run", "NAME")
    live: tuple[str, ...] | None = option(None, "the curves to show", "loss,accuracy")
    show: bool = option(
        True,
        "whether a view is shown",
        switches={"--no-live": (False, "show no view; print the output of the tasks")},
    )
    push: tuple[str, ...] = option(
        (),
        "values and functions of this notebook, for the cell",
        "x,make_model",
        check_value=names_of_variables("--push"),
    )

    def __post_init__(self) -> None:
        for row in rows(Options).values():
            row.check(getattr(self, row.name))
        self._check_framework()
        if self.replicated.in_client:
            self._check_in_graph()
        if self.spec is not None:
            self.spec.check_steps(self.synchronous)
        self._check_settings()
        self.replicated.check_data(self.data)
        if self.precision == BFLOAT16 and self.framework is None and self.strategy not in (None, "tpu"):
            raise InvalidArgumentError(
                f"--precision {BFLOAT16} belongs to --strategy tpu, which XLA compiles: NumPy has no "
                "bfloat16. Use mixed_float16"
            )
        replaces = not self.replicated.why_fixed and (self.spec is None or self.spec.takes_new_workers)
        if self.max_restarts and not replaces:
            given = self.replication if self.replicated.why_fixed else self.strategy
            raise InvalidArgumentError(
                f"--max-restarts {self.max_restarts} belongs to --strategy "
                f"{' or '.join(names_of('takes_new_workers'))}; {given} replaces no workers: drop it"
            )
        if self.max_restarts and (why := self.takes_no_process):
            raise InvalidArgumentError(
                f"--max-restarts {self.max_restarts} with --collective {self.collective}: {why}, so that no "
                "worker is replaced: drop it, or use --collective ring"
            )

    def without_secrets(self) -> Options:
        """Return the options for tasks and for run.json: what ``notify`` names is of this process alone.

        >>> Options(notify="https://hooks.example.com/secret").without_secrets().notify
        """
        return replace(self, notify=None)

    def settings(self) -> dict[str, Any]:
        """Return the options of single strategies that were given.

        >>> Options(strategy="elastic", every=5).settings()
        {'every': 5}
        """
        given = {row.name: getattr(self, row.name) for row in SETTINGS.values() if not row.ignored_elsewhere}
        return {name: value for name, value in given.items() if value != SETTINGS[name].default}

    @property
    def takes_no_process(self) -> str:
        """Why the collective of this run takes no new process into its groups; empty if it does."""
        return COLLECTIVES[self.collective].takes_none if self.collective in COLLECTIVES else ""

    @property
    def wants_training(self) -> bool:
        """Whether something was asked for that has a meaning only for a body that trains."""
        return bool(self.flags_for_training)

    @property
    def flags_for_training(self) -> list[str]:
        """The flags that were given and have a meaning only for a body that trains.

        >>> Options(epochs=3, name="a", strategy="mirrored", synchronous=True).flags_for_training
        ['--epochs', '--strategy']
        """
        implied = {"synchronous"} if self.strategy is not None else set()
        table = {name: row for name, row in rows(Options).items() if name not in implied}
        given = {name: getattr(self, name) for name, row in table.items() if row.trains}
        named = [name for name, value in given.items() if value and value != table[name].default]
        found = dict.fromkeys([*named, *self._strategy_settings])
        return [next(iter(table[name].switches or [table[name].flag])) for name in found]

    @property
    def _strategy_settings(self) -> list[str]:
        """The options of single strategies that were given, but the collective, which nb.collective has."""
        return [name for name in self.settings() if name != "collective"]

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
        if found.replicated.in_client:  # without a parameter server the first worker has the variables
            return found
        if found.strategy is None and found.synchronous:
            found = replace(found, strategy=default_strategy(has_servers, together=True))
        named = found._strategy_settings
        if found.strategy is None and named:  # a setting of one strategy alone selects it
            return replace(found, strategy=SETTINGS[named[0]].strategies[0]).resolve(has_servers)
        return replace(found, synchronous=bool(found.synchronous))

    def placed(self, roster: Roster) -> tuple[Options, list[TaskInfo]]:
        """Return the options resolved for a cluster, and the workers that take part, the chief first.

        Raises InvalidArgumentError if the cluster does not have the tasks that they ask for.
        """
        servers = sum(info.job == "ps" for info in roster)
        found, workers = self.resolve(bool(servers)), select(roster, self.on)
        check_numbers(found, len(workers), servers)
        return found, workers

    @property
    def spec(self) -> StrategySpec | None:
        """What there is to know about the strategy, if one was named."""
        if self.framework is not None and not self._chooses_strategy:
            return STRATEGIES[default_strategy()]  # for nbdist its replicas are independent
        return None if self.strategy is None else STRATEGIES[self.strategy]

    def spec_on(self, has_servers: bool) -> StrategySpec:
        """Return what there is to know about the strategy on a cluster with or without parameter servers.

        >>> Options().spec_on(has_servers=True).name, Options(strategy="elastic").spec_on(True).name
        ('ps', 'elastic')
        """
        return self.spec or STRATEGIES[default_strategy(has_servers)]

    @property
    def replicated(self) -> Replication:
        """What there is to know about ``replication``."""
        return REPLICATIONS[self.replication]

    @property
    def _chooses_strategy(self) -> bool:
        """Whether an option says how replicas work together."""
        return self.strategy is not None or self.synchronous is not None or bool(self.settings())

    def _check_framework(self) -> None:
        """Raise for options that do not go with a framework's own processes, which are a fixed group."""
        if self.framework is None:
            return
        given = {
            "--replication": self.replication if self.replicated.in_client else None,
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

    def _check_in_graph(self) -> None:
        """Raise for options that belong to --replication between-graph."""
        if self.spec is not None and not self.spec.in_graph:
            raise InvalidArgumentError(
                f"--strategy {self.strategy} has every worker keep parameters of its own, and --replication "
                "in-graph has this notebook drive all workers together, with the parameters in one place: "
                f"drop one of the two, or take --strategy {' or '.join(names_of('in_graph'))}"
            )
        given = self.settings()
        for row in rows(Options).values():
            value, why = getattr(self, row.name), row.between_graph
            if row.name in given and not why:
                why = "in-graph, no worker steps by itself. Drop one of the two"
            if why and value != row.default:
                named = row.flag if isinstance(value, bool) else f"{row.flag} {value}"
                raise InvalidArgumentError(f"{named} belongs to --replication between-graph: {why}")

    def _check_settings(self) -> None:
        settings = self.settings()
        for name in settings:
            row = SETTINGS[name]
            strategies, synchronous = row.strategies, row.synchronous
            if self.strategy is not None and self.strategy not in strategies:
                raise InvalidArgumentError(
                    f"{row.flag} belongs to --strategy {' or '.join(strategies)}, not {self.strategy}"
                )
            if synchronous is not None and bool(self.synchronous) is not synchronous:
                raise InvalidArgumentError(
                    f"{row.flag} belongs to {'--sync' if synchronous else '--async'}: replicas that "
                    f"{'make a step together' if synchronous else 'go at their own pace'}. "
                    f"{'Add --sync' if synchronous else 'Drop --sync'}"
                )
        for spec in STRATEGIES.values():
            spec.check(settings, None)


SETTINGS: dict[str, RunOption] = {
    name: replace(row, strategies=row.strategies or owners(name))
    for name, row in rows(Options).items()
    if row.strategies or owners(name)
}
"""The options of single strategies by name, each with the strategies that it belongs to."""


def check_numbers(options: Options, workers: int, servers: int) -> None:
    """Raise if the options ask for more workers or parameter servers than there are."""
    if options.ps_replicas:
        require_standbys(servers)
    given = options.settings()
    for spec in STRATEGIES.values():
        if spec is options.spec or spec.settings.keys() & set(options._strategy_settings):
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
