"""All that the rest of the system asks about a strategy: one `StrategySpec` for each.

    SPEC = StrategySpec(
        "multi_worker",
        make=lambda config: MultiWorkerMirroredStrategy(world=config.world, **config.settings),
        synchronous=True,
        settings=(COLLECTIVE,),
    )

A strategy's spec stands beside its class, and :mod:`nbdist.distribute.registry` lists all of them. Flags, the
help, the checks of options and the fields of the record of a run follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbdist.errors import InvalidArgumentError, choices
from nbdist.numbers import is_whole
from nbdist.runtime.groups import World
from nbdist.train.strategy import Strategy
from nbdist.wire.collective.registry import COLLECTIVES, KINDS


@dataclass(frozen=True)
class Setting:
    """An option of some strategies: a field of ``Options``, a parameter of ``nb.launch``, and a flag.

    The flag is ``name`` with hyphens. ``read`` makes its value of text; None is for a switch without a value.
    ``shows`` is what stands for the value in the help. A value is one of ``choices``, or else ``is_valid``
    holds for it, which ``expected`` says in words. ``synchronous`` True or False: it belongs to --sync or to
    --async. ``group`` is its heading in the help, by default that of its strategy. A strategy that does not
    list it refuses it, unless ``ignored_elsewhere``.
    """

    name: str
    help: str
    read: Callable[[str], Any] | None = int
    shows: str = ""
    default: Any = None
    choices: tuple[str, ...] = ()
    is_valid: Callable[[Any], bool] = field(default=lambda value: True)
    expected: str = ""
    synchronous: bool | None = None
    group: str = ""
    ignored_elsewhere: bool = False

    @property
    def flag(self) -> str:
        """Its flag, such as "--min-workers"."""
        return f"--{self.name.replace('_', '-')}"

    def check(self, value: Any) -> None:
        """Raise InvalidArgumentError unless this is a value of the setting, or its default."""
        if value is None and self.default is None:
            return
        if self.choices and value not in self.choices:
            raise InvalidArgumentError(f"no {self.flag} {value!r}; {choices(value, self.choices)}")
        if not self.is_valid(value):
            raise InvalidArgumentError(f"{self.flag} is {self.expected}, got {value!r}")


def whole_number(
    name: str, shows: str, help: str, least: int, most: int | None = None, **options: Any
) -> Setting:
    """Return a setting that is a whole number of ``least`` or more, and of ``most`` at most.

    >>> whole_number("every", "TAU", "steps", 1).check(0)
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: --every is a whole number of 1 or more, got 0
    """

    def is_valid(value: Any) -> bool:
        return is_whole(value, least) and (most is None or value <= most)

    expected = f"a whole number of {least} or more" if most is None else f"a whole number, {least} to {most}"
    return Setting(name, help, int, shows, is_valid=is_valid, expected=expected, **options)


# Settings of several strategies.

COLLECTIVE = Setting(
    "collective",
    "how gradients are summed, and what nb.collective uses (default: the best)",
    read=str,
    shows="|".join(kind for kind in KINDS if kind not in COLLECTIVES or not COLLECTIVES[kind].single),
    default="auto",
    choices=KINDS,
    group="With --strategy mirrored, multi_worker and sharded",
)
TRANSPORT = Setting(
    "transport",
    "how parameters travel",
    read=str,
    shows="auto|socket",
    default="auto",
    choices=("auto", "socket"),
    ignored_elsewhere=True,
)


@dataclass(frozen=True)
class TrainingSpec:
    """How the replicas of a run train together: plain values, with all defaults resolved.

    - ``strategy``: the name of a strategy
    - ``synchronous``: whether replicas make each step together
    - ``transport``: how parameters travel, "auto" or "socket"
    - ``data``: what reads the batches. In an in-graph run the "client" or the "workers"; else "service" has
      data tasks read for the workers
    - ``seed``: the seed of the run, 0 or more; None draws one
    - ``epochs``: overrides the epochs of each ``fit``; None does not
    - ``precision``: the policy of models that are compiled without one
    - ``collective``: the kind of the groups that ``nb.collective`` uses
    - ``min_workers``: how many workers have to be left for training to continue after a death
    - ``awaits``: whether a step that needs a lost worker waits for its new process, which the run starts
    - ``settings``: the strategy's own settings that differ from their defaults, by name
    """

    strategy: str
    synchronous: bool = False
    transport: str = "auto"
    data: str = "client"
    seed: int | None = None
    epochs: int | None = None
    precision: str = "float32"
    collective: str = "auto"
    min_workers: int = 1
    awaits: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StrategyConfig:
    """What a strategy is made of on a task.

    ``world`` are the run's replicas, ``prefix`` begins the names of the run's shared memory.
    """

    world: World
    training: TrainingSpec
    prefix: str = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The strategy's own settings that differ from their defaults, by name."""
        return self.training.settings


def no_checks(settings: Mapping[str, Any], workers: int | None) -> None:
    """Accept all settings."""


def one_worker(settings: Mapping[str, Any], synchronous: bool, workers: int) -> int:
    """Return 1: each worker makes steps without the others."""
    return 1


@dataclass(frozen=True)
class StrategySpec:
    """All that the rest of the system asks about a strategy.

    - ``make(config)`` returns the strategy of one replica, on its task
    - ``synchronous``: True if replicas always make a step together, False if never; None: --sync and --async
      decide
    - ``survives_worker_loss``: whether the other replicas continue after the death of one
    - ``survives_chief_loss``: whether they continue after the death of the first one, too
    - ``takes_new_workers``: whether the new process of a lost worker can join the run
    - ``resizes``: whether workers can be added to a run, and leave it, between two steps
    - ``awaits_new_workers``: whether a synchronous step that needs a lost worker waits for that process
    - ``in_graph``: whether --replication in-graph takes it
    - ``uses_parameter_servers``: whether it needs ps tasks
    - ``for_trials``: whether a sweep's trial on several engines may use it
    - ``settings``: what a user can set of it
    - ``check(settings, workers)`` raises InvalidArgumentError for settings that contradict each other, or the
      number of workers (None: not yet known)
    - ``needed(settings, synchronous, workers)`` is how many workers' gradients a step needs
    """

    name: str
    make: Callable[[StrategyConfig], Strategy]
    synchronous: bool | None
    survives_worker_loss: bool = False
    survives_chief_loss: bool = False
    takes_new_workers: bool = False
    resizes: bool = False
    awaits_new_workers: bool = False
    in_graph: bool = False
    uses_parameter_servers: bool = False
    for_trials: bool = False
    settings: tuple[Setting, ...] = ()
    check: Callable[[Mapping[str, Any], int | None], None] = no_checks
    needed: Callable[[Mapping[str, Any], bool, int], int] = one_worker

    def check_steps(self, synchronous: bool | None) -> None:
        """Raise InvalidArgumentError if replicas cannot step as --sync (True) or --async (False) asks."""
        if self.synchronous and synchronous is False:
            raise InvalidArgumentError(
                f"replicas of --strategy {self.name} make every step together: drop --async, or take "
                "--strategy ps or elastic"
            )
        if self.synchronous is False and synchronous:
            raise InvalidArgumentError(
                f"replicas of --strategy {self.name} make steps of their own: drop --sync, or take "
                "--strategy multi_worker"
            )

    def check_servers(self, servers: int) -> None:
        """Raise InvalidArgumentError if the cluster lacks a parameter server that the strategy needs."""
        if self.uses_parameter_servers and not servers:
            raise InvalidArgumentError(
                f"--strategy {self.name} needs a parameter server and the cluster has none; "
                "start one with: %cluster stop, then %cluster start --workers 2 --ps 1"
            )
