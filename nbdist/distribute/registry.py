"""The table of strategies, one row each, and what follows from it.

    strategy = make_strategy("multi_worker", options, world)

To add a strategy, write its file (class, options and `StrategySpec`) and add its row here. Options of its own
are bases of ``nbdist.run.options.LaunchOptions``: flags, nb.launch and the help follow.
"""

from __future__ import annotations

from nbdist.distribute import central, elastic, mirrored, multi_worker, parameter_server, sharded
from nbdist.distribute.spec import CollectiveOptions, StrategyConfig, StrategySpec
from nbdist.distribute.tpu import strategy as tpu
from nbdist.runtime.groups import World
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.train.strategy import Strategy

ONE_DEVICE = StrategySpec(
    OneDeviceStrategy.name,
    make=lambda config: OneDeviceStrategy(),
    synchronous=False,
    options=CollectiveOptions,
)

STRATEGIES: dict[str, StrategySpec] = {
    spec.name: spec
    for spec in (
        parameter_server.SPEC,
        mirrored.SPEC,
        multi_worker.SPEC,
        central.SPEC,
        elastic.SPEC,
        sharded.SPEC,
        tpu.SPEC,
        ONE_DEVICE,
    )
}

TOGETHER = multi_worker.SPEC
"""The strategy of several workers that step together, if none is named and there is no parameter server."""


def names_of(having: str) -> tuple[str, ...]:
    """Return the strategies for which a field of their spec is true; first those that need no server.

    >>> names_of("survives_worker_loss")
    ('mirrored', 'multi_worker', 'elastic', 'ps')
    """
    found = [spec for spec in STRATEGIES.values() if getattr(spec, having)]
    return tuple(spec.name for spec in sorted(found, key=lambda spec: spec.uses_parameter_servers))


def owners(setting: str) -> tuple[str, ...]:
    """Return the strategies that have an option, the first is the default; none for an option of all runs.

    >>> owners("collective")
    ('mirrored', 'multi_worker', 'elastic', 'sharded', 'one_device')
    """
    found = [spec for spec in STRATEGIES.values() if setting in spec.settings]
    return tuple(spec.name for spec in sorted(found, key=lambda spec: spec.uses_parameter_servers))


def default_strategy(servers: bool = False, together: bool = False) -> str:
    """Return the strategy where none is named: of a cluster with parameter servers, of workers in step.

    >>> default_strategy(servers=True), default_strategy(together=True), default_strategy()
    ('ps', 'multi_worker', 'one_device')
    """
    spec = parameter_server.SPEC if servers else TOGETHER if together else ONE_DEVICE
    return spec.name


def trial_strategies() -> tuple[str, ...]:
    """Return the strategies of a sweep's trial on several engines, the default first.

    >>> trial_strategies()
    ('multi_worker', 'mirrored')
    """
    found = (spec for spec in STRATEGIES.values() if spec.for_trials)
    return tuple(spec.name for spec in sorted(found, key=lambda spec: spec is not TOGETHER))


def make_strategy(
    name: str,
    options: object,
    world: World,
    *,
    synchronous: bool = False,
    awaits: bool = False,
    prefix: str = "",
) -> Strategy:
    """Return the strategy of one replica, with those of a run's options that it lists.

    The rest is explained at `StrategyConfig`.

    >>> make_strategy("one_device", CollectiveOptions(collective="ring"), World()).name
    'one_device'
    """
    spec = STRATEGIES[name]
    given = {name: getattr(options, name) for name in spec.settings}
    settings = {name: value for name, value in given.items() if value != spec.settings[name].default}
    return spec.make(StrategyConfig(world, settings, synchronous, awaits, prefix))
