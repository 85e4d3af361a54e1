"""Synchronous parameter servers as a `World` of `nbdist.testing`: `served_world`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parameter_town import SEED, Town

from nbdist.testing.strategy import World, everywhere
from nbdist.testing.worlds import worlds
from nbdist.train.context import Context
from nbdist.train.custom.api import end_loops


@contextmanager
def served_world(ps: int, replicas: int) -> Iterator[World]:
    """Return the processes of a run, each a thread; its collective reduces values other than gradients."""
    town = Town(ps=ps, replicas=replicas)
    found: World = []
    for i, place in enumerate(worlds(replicas)):
        strategy = town.strategy(i, synchronous=True)
        context = Context(
            strategy=strategy, seed=SEED, quiet=True, world=place, is_chief=i == 0, control=town.controls[i]
        )
        found.append((context, strategy))
    yield found
    if not any(one.aborted for one in town.controls):
        everywhere(found, lambda strategy, _: strategy.finish())  # as at a run's end
    for context_of_one, _ in found:
        end_loops(context_of_one, whole=False)
    town.close()
