"""All that the rest of the system asks about a strategy: one `StrategySpec` for each.

    SPEC = StrategySpec(
        "multi_worker",
        make=lambda config: MultiWorkerMirroredStrategy(world=config.world, **config.settings),
        synchronous=True,
        options=CollectiveOptions,
    )

A strategy's spec stands beside its class and its options (see `nbdist.train.options`), and
:mod:`nbdist.distribute.registry` lists all of them. The help and the checks of options follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.runtime.groups import World
from nbdist.train.options import RunOption, option, rows
from nbdist.train.strategy import Strategy
from nbdist.wire.collective.registry import COLLECTIVES, KINDS


@dataclass(frozen=True, kw_only=True)
class CollectiveOptions:
    """The options of strategies that sum gradients by a collective."""

    collective: str = option(
        "auto",
        "how gradients are summed, and what nb.collective uses (default: the best)",
        shows="|".join(kind for kind in KINDS if kind not in COLLECTIVES or not COLLECTIVES[kind].single),
        doc=f"how gradients are summed, and what nb.collective uses: {', '.join(map(repr, KINDS))}; auto is "
        "the best for the tasks",
        choices=KINDS,
        group="With --strategy mirrored, multi_worker and sharded",
    )


@dataclass(frozen=True, kw_only=True)
class TransportOptions:
    """The options of strategies that have parameter servers."""

    transport: str = option(
        "auto",
        "how parameters travel",
        doc='how parameters travel: "auto" takes shared memory between processes of a host, "socket" never',
        choices=("auto", "socket"),
        group="With --strategy ps",
        ignored_elsewhere=True,
    )


@dataclass(frozen=True)
class StrategyConfig:
    """What a strategy is made of on a task.

    - ``world``: the run's replicas
    - ``settings``: the values of its options that differ from their defaults, by name
    - ``synchronous``: whether replicas make each step together, where --sync and --async decide
    - ``awaits``: whether a step that needs a lost worker waits for its new process, which the run starts
    - ``prefix``: begins the names of the run's shared memory
    """

    world: World
    settings: Mapping[str, Any] = field(default_factory=dict)
    synchronous: bool = False
    awaits: bool = False
    prefix: str = ""


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
    - ``options``: the class of what a user can set of it; None for nothing
    - ``check(settings, workers)`` raises InvalidArgumentError for settings that contradict each other, or the
      number of workers (None: not yet known)
    - ``needed(settings, synchronous, workers)`` is how many workers' gradients a step needs: one, if each
      makes steps without the others
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
    options: type | None = None
    check: Callable[[Mapping[str, Any], int | None], None] = lambda settings, workers: None
    needed: Callable[[Mapping[str, Any], bool, int], int] = lambda settings, synchronous, workers: 1

    @property
    def settings(self) -> Mapping[str, RunOption]:
        """The rows of its options, by name."""
        return {} if self.options is None else rows(self.options)

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
