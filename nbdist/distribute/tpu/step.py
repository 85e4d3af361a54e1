"""A training step as one function that XLA compiles: forward, gradients, sums over the mesh, the update.

    program = compiled_step(whole, mesh)
    loss, *metrics = program(x, y, scale, *replica.gradients())

Parameters, optimizer slots and states stay on the mesh: they go into the function and come out of it changed,
in the same memory (donated buffers). The batch is split over the mesh, so the gradient of a parameter that
each device has is a sum over devices, which XLA inserts (an all-reduce within the step).

An update with a NaN or infinite loss or gradient is not made: the function returns the old values, and says
so in the replica's ``gradients()``, where the training loop looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.distribute.tpu.mesh import DeviceMesh
from nbdist.graph.backend import Array
from nbdist.graph.xla.functional import FunctionalArray
from nbdist.graph.xla.trace import jax_module, pure_function, wide_types
from nbdist.optim import Optimizer
from nbdist.train.strategy import WholeStep

if TYPE_CHECKING:
    from nbdist.distribute.tpu.replica import MeshReplica


def compiled_step(step: WholeStep, mesh: DeviceMesh) -> Callable[..., tuple[Array, ...]]:
    """Return the program of a step, whose replicas are :class:`MeshReplica`."""
    jax, held = jax_module(), list(step.held)
    replicas: list[MeshReplica] = [one.replica for one in held]  # type: ignore[misc]
    trains = [bool(one.gradients) for one in held]
    kept = [[*one.variables, *replica.states] for one, replica in zip(held, replicas, strict=True)]
    others = list(step.others)
    gradients = [g for one in held for g in one.gradients]
    pure = pure_function(
        [*step.fetches, *step.checked, *gradients],
        feeds=step.feeds,
        shapes=step.shapes,
        variables=[*(v for one in kept for v in one), *others],
        updates={v: new for one in held for v, new in one.updates.items()},
        order=step.order,
    )

    def function(
        trained: Any, read: Any, other: Sequence[Any], fed: Sequence[Any], numbers: Sequence[Any]
    ) -> Any:
        given, rest = iter(trained), iter(read)
        states = [next(given) if trains_it else next(rest) for trains_it in trains]
        before = [value for state in states for value in (*state["values"], *state["states"])]
        found, after = pure(fed, [*before, *other])
        outputs = found[: len(step.fetches)]
        checked = found[len(step.fetches) :]
        flag = _nonfinite(jax, checked)
        new, following, ends = [], iter(checked[len(step.checked) :]), iter(numbers)
        at = 0
        for one, state, replica, trains_it in zip(held, states, replicas, trains, strict=True):
            values = after[at : at + len(one.variables)]
            moved = after[at + len(one.variables) : at + len(one.variables) + len(state["states"])]
            at += len(values) + len(moved)
            if trains_it:
                places = replica.placement["values"]
                changed = _updated(replica.optimizer, values, state["slots"], following, places, *next(ends))
                new.append({"values": changed[0], "slots": changed[1], "states": moved})
        old = [state for state, trains_it in zip(states, trains, strict=True) if trains_it]
        kept_or_new = jax.tree.map(lambda a, b: jax.numpy.where(flag == 0, a, b), new, old)
        placed = [
            jax.lax.with_sharding_constraint(one, replica.placement)
            for one, replica in zip(
                kept_or_new, (r for r, t in zip(replicas, trains, strict=True) if t), strict=True
            )
        ]
        return outputs, flag, placed, after[at:]

    compiled = jax.jit(function, donate_argnums=0)
    assigned = _assigned(step)

    def program(*arrays: Array) -> tuple[Array, ...]:
        with wide_types():
            fed = [jax.device_put(a, mesh.batch(a)) for a in arrays[: len(step.feeds)]]
            trained = [one.on_mesh for one, t in zip(replicas, trains, strict=True) if t]
            read = [one.on_mesh for one, t in zip(replicas, trains, strict=True) if not t]
            numbers = [
                (np.float64(one.optimizer.learning_rate), np.int64(one.global_step + 1))
                for one, t in zip(replicas, trains, strict=True)
                if t
            ]
            outputs, flag, placed, after = compiled(trained, read, list(step.others.values()), fed, numbers)
            for one, state in zip(
                (r for r, t in zip(replicas, trains, strict=True) if t), placed, strict=True
            ):
                one.take_over(state)
            for v, value in zip(others, after, strict=True):
                if v in assigned:
                    np.copyto(step.others[v], np.asarray(value))
            for flags in arrays[len(step.feeds) :]:
                flags[...] = np.asarray(flag)
            return tuple(np.asarray(one) for one in outputs)

    return program


def _updated(
    optimizer: Optimizer,
    values: Sequence[Any],
    slots: Sequence[dict[str, Any]],
    gradients: Any,
    places: Sequence[Any],
    rate: Any,
    number: Any,
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return parameters and slots after an optimizer's step, by the optimizer's own code."""
    own = copy(optimizer)
    own.learning_rate = FunctionalArray(rate)
    new, kept = [], []
    for value, slot, place in zip(values, slots, places, strict=True):
        # Flat, as everywhere, but for what is split: its parts would have to be brought together.
        shape = (-1,) if place.is_fully_replicated else value.shape
        p, g = (FunctionalArray(one.reshape(shape)) for one in (value, next(gradients)))
        state = {name: FunctionalArray(one.reshape(shape)) for name, one in slot.items()}
        own.apply(p, g, state, FunctionalArray(number))  # type: ignore[arg-type]  # in place of arrays
        new.append(p.value.reshape(value.shape))
        kept.append({name: one.value.reshape(slot[name].shape) for name, one in state.items()})
    return new, kept


def _nonfinite(jax: Any, arrays: Sequence[Any]) -> Any:
    """Return 0 if all values are finite, else NaN or infinity, as the first kind that is among them."""
    xp = jax.numpy
    nan, infinite = xp.zeros((), bool), xp.zeros((), bool)
    for array in arrays:
        nan, infinite = nan | xp.isnan(array).any(), infinite | xp.isinf(array).any()
    return xp.where(nan, xp.nan, xp.where(infinite, xp.inf, 0.0))


def _assigned(step: WholeStep) -> set[Any]:
    """Return the variables outside of replicas that the step assigns."""
    from nbdist.graph.compile.specs import value_order

    order = step.order if step.order is not None else value_order([*step.fetches, *step.checked])
    return {t.inputs[i] for t in order if t.op is not None for i in t.op.writes} & set(step.others)
