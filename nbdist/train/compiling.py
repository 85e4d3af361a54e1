"""A replica's program for a traced step, on the replica's own values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from nbdist.graph.backend import Array, to_device, to_host
from nbdist.graph.op import Shape
from nbdist.graph.program import compile_program
from nbdist.graph.specs import Specs, value_order
from nbdist.graph.tensor import Tensor, Variable
from nbdist.train.held import Held
from nbdist.train.places import Place
from nbdist.train.traced import Trace
from nbdist.train.updates import Group, Program, Ready, Stepping

Trained: TypeAlias = Sequence[tuple[Group, tuple[Tensor, ...]]]
"""What a step trains, with gradients in the order of the group's variables."""


@dataclass(frozen=True)
class Call:
    """A replica's part of a call: the trace for its arguments, and the arrays among them."""

    trace: Trace
    arrays: list[Array]
    trained: Trained
    place: int
    """Where its first example is in the global batch, for random numbers."""
    scale: float
    """How many times as many examples the global batch has; 0 if this replica has none."""


def program_of(
    held: Held,
    made: Trace,
    place: Place,
    shapes: tuple[tuple[int, ...], ...],
    trained: Trained,
) -> Program:
    """Return ``program(*arguments, *extra, *gradients) -> (*outputs, *losses, ...)`` of one replica.

    Each replica of a strategy is asked for its program, one inside the other where there are several: it may
    want to be told of gradients as soon as they are there.
    """
    values: dict[Variable, Array] = {}
    written: dict[Tensor, Callable[[], object]] = {}

    def through(rest: Trained) -> Program:
        if not rest:
            return _program(held, made, place, shapes, trained, values, written)
        (group, gradients), *others = rest

        def compiled(own: Sequence[Array], ready: Ready | None) -> Program:
            values.update(zip(group.trained, own, strict=True))
            if ready is not None:
                written.update({g: partial(ready, number) for number, g in enumerate(gradients)})
            return through(others)

        return group.replicas[place.index].program(Stepping(compiled), shapes)

    return through(trained)


def _program(
    held: Held,
    made: Trace,
    place: Place,
    shapes: tuple[tuple[int, ...], ...],
    trained: Trained,
    values: dict[Variable, Array],
    written: dict[Tensor, Callable[[], object]],
) -> Program:
    extra = [d.fed for d in made.draws.values()] + ([made.replica] if made.replica is not None else [])
    feeds = [*made.feeds, *extra]
    sizes: list[Shape] = [*shapes, *(t.shape for t in extra)]
    # Gradients are asked for from the last variable's on: that is the order in which they come to be.
    into = [g for _, gradients in trained for g in gradients][::-1]
    fetches = [*made.fetches, *made.watched, *made.effects]
    order = None
    if made.in_order:
        numbers = {t: n for n, t in enumerate(held.graph.tensors)}
        order = sorted(
            value_order([*fetches, *into], Specs.fed(feeds, sizes), frozenset(feeds)), key=numbers.__getitem__
        )
    missing = [v for v in made.variables if v not in values]
    program = compile_program(
        fetches,
        feeds=feeds,
        shapes=sizes,
        values=values | held.values(place, missing),
        into=into,
        xp=place.xp,
        order=order,
        kernels=lambda node: partial(_all_reduced, place, node.attrs["op"]),
        written=written,
    )
    fed = len(feeds)
    return lambda *arrays: program(*arrays[:fed], *arrays[fed:][::-1])


def _all_reduced(place: Place, how: str, x: Array) -> Array:
    return to_device(place.all_reduce(np.array(to_host(x)), how), place.xp)
