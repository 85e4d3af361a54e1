"""Which strategy an order asks for; imported where it is used, for a task needs one of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nbdist.runtime.groups import World
from nbdist.train.strategy import OneDeviceStrategy, Strategy

if TYPE_CHECKING:
    from nbdist.runs.body import Order

REPLICATED = {
    "mirrored": ("nbdist.distribute.mirrored", "MirroredStrategy"),
    "multi_worker": ("nbdist.distribute.multi_worker", "MultiWorkerMirroredStrategy"),
    "elastic": ("nbdist.distribute.elastic", "ElasticAveragingStrategy"),
}
"""Strategies whose replicas keep parameters of their own."""


def strategy_of(order: Order, world: World, prefix: str) -> Strategy:
    """Return the strategy of an order, for the replica that this task is in its world."""
    assert world.task is not None
    settings = {name: value for name, value in order.settings.items() if name != "min_workers"}
    if order.strategy == "one_device":
        return OneDeviceStrategy()
    if order.strategy in REPLICATED:
        module, name = REPLICATED[order.strategy]
        made: Callable[..., Strategy] = getattr(import_module(module), name)
        return made(world=world, **settings)
    if order.strategy == "central":
        from nbdist.distribute.central import CentralStorageStrategy

        return CentralStorageStrategy(world=world, prefix=prefix, transport=order.transport)
    from nbdist.distribute.parameter_server import ParameterServerStrategy

    return ParameterServerStrategy(
        world.task,
        ranks=world.ranks,
        run=world.run,
        prefix=prefix,
        check=world.check,
        synchronous=order.synchronous,
        transport=order.transport,
        **_of_servers(settings, world.size),
    )


def _of_servers(settings: dict[str, Any], replicas: int) -> dict[str, Any]:
    """Return the settings of parameter servers: backups are replicas whose gradients a step does not need."""
    settings.pop("collective", None)  # that is for what the body itself does together
    backups = settings.pop("backups", None)
    if backups is not None:
        settings["aggregate"] = replicas - backups
    return settings
