"""The table of strategies, one row each, and what follows from it.

    training = training_spec("multi_worker", {"collective": "ring"}, seed=7)
    strategy = make_strategy(training, world)

To add a strategy, write its file (class and `StrategySpec`) and add its row here. A setting of its own also
needs a field in ``nbdist.run.options.Options`` and a parameter of ``nb.launch``;
``tests/distribute/test_distribute_registry.py`` names what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbdist.distribute import central, elastic, mirrored, multi_worker, parameter_server, sharded
from nbdist.distribute.spec import (
    COLLECTIVE,
    Setting,
    StrategyConfig,
    StrategySpec,
    TrainingSpec,
    whole_number,
)
from nbdist.distribute.tpu import strategy as tpu
from nbdist.runtime.groups import World
from nbdist.train.strategy import OneDeviceStrategy, Strategy

ONE_DEVICE = StrategySpec(
    OneDeviceStrategy.name,
    make=lambda config: OneDeviceStrategy(),
    synchronous=False,
    settings=(COLLECTIVE,),
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


MIN_WORKERS = whole_number(
    "min_workers",
    "N",
    f"continue on N or more workers ({', '.join(names_of('survives_worker_loss'))}; default 1)",
    least=1,
    group="When a worker dies",
)
"""A setting of the run, which only strategies that survive the loss of a worker allow."""


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for settings in (*(spec.settings for spec in STRATEGIES.values()), (MIN_WORKERS,))
    for setting in settings
}


def owners(setting: Setting) -> tuple[str, ...]:
    """Return the strategies that a setting belongs to; the first is the default.

    >>> owners(COLLECTIVE)
    ('mirrored', 'multi_worker', 'elastic', 'sharded', 'one_device')
    """
    if setting is MIN_WORKERS:
        return names_of("survives_worker_loss")
    found = [spec for spec in STRATEGIES.values() if setting in spec.settings]
    return tuple(spec.name for spec in sorted(found, key=lambda spec: spec.uses_parameter_servers))


def headings() -> dict[str, list[Setting]]:
    """Return the settings under their headings in the help.

    >>> [setting.flag for setting in headings()["With --strategy elastic"]]
    ['--every', '--alpha']
    """
    found: dict[str, list[Setting]] = {}
    for setting in SETTINGS.values():
        found.setdefault(setting.group or f"With --strategy {owners(setting)[0]}", []).append(setting)
    return found


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


def training_spec(strategy: str, settings: Mapping[str, Any], **options: Any) -> TrainingSpec:
    """Return how replicas train, from all settings that were given; ``options`` are its other fields.

    The strategy gets those that it lists. The collective and the number of workers that must be left are
    also for the run's groups.

    >>> training_spec("ps", {"collective": "ring", "backups": 1}).settings
    {'backups': 1}
    """
    own = {setting.name for setting in STRATEGIES[strategy].settings}
    return TrainingSpec(
        strategy,
        collective=settings.get(COLLECTIVE.name, COLLECTIVE.default),
        min_workers=settings.get(MIN_WORKERS.name, 1),
        settings={name: value for name, value in settings.items() if name in own},
        **options,
    )


def make_strategy(training: TrainingSpec, world: World, prefix: str = "") -> Strategy:
    """Return the strategy of one replica; ``prefix`` begins the names of the run's shared memory."""
    return STRATEGIES[training.strategy].make(StrategyConfig(world, training, prefix))
