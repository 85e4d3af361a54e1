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

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.distribute.tpu.mesh import DeviceMesh
from nbdist.graph.backend import Array
from nbdist.graph.compile.specs import value_order
from nbdist.graph.op import show
from nbdist.graph.tensor import Variable
from nbdist.graph.xla.cache import compile_once
from nbdist.graph.xla.devices import jax_module, wide_types
from nbdist.graph.xla.functional import FunctionalArray, prepared, updated
from nbdist.graph.xla.trace import pure_function
from nbdist.train.context import current
from nbdist.train.trainable import WholeStep

if TYPE_CHECKING:
    from nbdist.distribute.tpu.replica import MeshReplica


def compiled_step(step: WholeStep, mesh: DeviceMesh) -> Callable[..., tuple[Array, ...]]:
    """Return the program of a step, whose replicas are :class:`MeshReplica`."""
    jax = jax_module()
    trained = [one for one in step.held if one.gradients]
    held = [*trained, *(one for one in step.held if not one.gradients)]
    replicas: list[MeshReplica] = [one.replica for one in held]  # type: ignore[misc]  # the strategy's own
    updating, reading = replicas[: len(trained)], replicas[len(trained) :]
    pure = pure_function(
        [*step.fetches, *step.checked, *(g for one in trained for g in one.gradients)],
        feeds=step.feeds,
        shapes=step.shapes,
        variables=[
            *(
                v
                for one, replica in zip(held, replicas, strict=True)
                for v in (*one.variables, *replica.states)
            ),
            *step.others,
        ],
        updates={v: new for one in trained for v, new in one.updates.items()},
        order=step.order,
    )

    def function(states: Any, read: Any, others: Sequence[Any], fed: Sequence[Any], numbers: Any) -> Any:
        before = [value for state in (*states, *read) for value in (*state["values"], *state["states"])]
        found, after = pure(fed, [*before, *others])
        outputs, checked = found[: len(step.fetches)], found[len(step.fetches) :]
        flag = _nonfinite(jax, checked)
        left, gradients = iter(after), iter(checked[len(step.checked) :])
        new = []
        for replica, state, number in zip(updating, states, numbers, strict=True):
            values = list(islice(left, len(state["values"])))
            moved = list(islice(left, len(state["states"])))
            new.append({**_updated(replica, values, state["slots"], gradients, number), "states": moved})
        kept = jax.tree.map(lambda a, b: jax.numpy.where(flag == 0, a, b), new, states)
        places = [replica.placement for replica in updating]
        return outputs, flag, jax.lax.with_sharding_constraint(kept, places), after[len(before) :]

    jitted = jax.jit(function, donate_argnums=0, keep_unused=True)
    compiled: Callable[..., Any] | None = None
    assigned = _assigned(step)

    def program(*arrays: Array) -> tuple[Array, ...]:
        nonlocal compiled
        fed, flags = arrays[: len(step.feeds)], arrays[len(step.feeds) :]
        with wide_types():
            arguments = (
                [replica.on_mesh for replica in updating],
                [replica.on_mesh for replica in reading],
                list(step.others.values()),
                [jax.device_put(a, mesh.batch(a)) for a in fed],
                [replica.numbers for replica in updating],
            )
            if compiled is None:
                compiled = _compiled(jitted, arguments, mesh, step)
            outputs, flag, states, after = compiled(*arguments)
            for replica, state in zip(updating, states, strict=True):
                replica.take_over(state)
            for (v, array), value in zip(step.others.items(), after, strict=True):
                if v in assigned:
                    np.copyto(array, np.asarray(value))
            for one in flags:
                one[...] = np.asarray(flag)
            return tuple(np.asarray(value) for value in outputs)

    return program


def _compiled(jitted: Any, arguments: Sequence[Any], mesh: DeviceMesh, step: WholeStep) -> Callable[..., Any]:
    """Return the compiled step, and print how long XLA took, if it was not compiled before."""
    note = current().note
    fed = ", ".join(
        f"{t.name} {show(shape)}" for t, shape in zip(step.feeds, step.shapes, strict=True) if shape
    )
    program, seconds = compile_once(
        jitted,
        arguments,
        mesh.devices,
        lambda: note(f"XLA compiles the step for {fed}; the step waits for it"),
    )
    if seconds is not None:
        print(f"XLA has compiled the step for {fed} in {seconds:.1f} s")  # also if the last took as long
    return program


def _updated(
    replica: MeshReplica,
    values: Sequence[Any],
    slots: Sequence[dict[str, Any]],
    gradients: Iterator[Any],
    numbers: tuple[Any, Any],
) -> dict[str, list[Any]]:
    """Return parameters and slots after a step of the optimizer, by the optimizer's own code."""
    optimizer, (rate, step) = copy(replica.optimizer), map(FunctionalArray, numbers)
    optimizer.learning_rate = rate
    new: dict[str, list[Any]] = {"values": [], "slots": []}
    values, own = prepared(optimizer, values, list(islice(gradients, len(values))))
    for value, gradient, slot, place in zip(values, own, slots, replica.placement["values"], strict=True):
        after, kept = updated(optimizer, value, gradient, slot, step, place.is_fully_replicated)
        new["values"].append(after)
        new["slots"].append(kept)
    return new


def _nonfinite(jax: Any, arrays: Sequence[Any]) -> Any:
    """Return 0 if all values are finite, NaN if any is NaN, else infinity."""
    xp = jax.numpy
    nan, infinite = xp.zeros((), bool), xp.zeros((), bool)
    for array in arrays:
        nan, infinite = nan | xp.isnan(array).any(), infinite | xp.isinf(array).any()
    return xp.where(nan, xp.nan, xp.where(infinite, xp.inf, 0.0))


def _assigned(step: WholeStep) -> set[Variable]:
    """Return the variables outside of replicas that the step assigns."""
    order = step.order if step.order is not None else value_order([*step.fetches, *step.checked])
    written = {t.inputs[i] for t in order if t.op is not None for i in t.op.writes}
    return {v for v in step.others if v in written}
