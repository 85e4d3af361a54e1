"""A replica's program for a traced step, on the replica's own values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from nbdist.graph.backend import Array, to_device, to_host
from nbdist.graph.compile.program import compile_program
from nbdist.graph.compile.specs import Specs, value_order
from nbdist.graph.op import Shape
from nbdist.graph.tensor import Tensor, Variable
from nbdist.train.custom.replicas import LocalReplica, TracedStep, VariableGroup
from nbdist.train.custom.trace import Gradient, Trace
from nbdist.train.custom.variables import StrategyVariables
from nbdist.train.replica import step_program, tables_in
from nbdist.train.trainable import Held, Program, ProgramSpec, Shapes, WholeStep

Trained: TypeAlias = Sequence[tuple[VariableGroup, tuple[Gradient, ...]]]
"""What a step trains, with gradients in the order of the group's variables."""


NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Call:
    """A replica's part of a call: the trace for its arguments, and the arrays among them."""

    trace: Trace
    arrays: list[Array]
    trained: Trained
    first_example: int
    """The number of its first example in the global batch, for random numbers."""
    scale: float
    """How many times as many examples the global batch has; 0 if this replica has none."""


def program_of(
    variables: StrategyVariables,
    made: Trace,
    local: LocalReplica,
    shapes: Shapes,
    trained: Trained,
) -> Program:
    """Return ``program(*arguments, *extra, *gradients) -> (*outputs, *losses, ..., *rows)`` of one replica.

    Gradients of the replicas' tables are not written to arrays: ``rows`` holds, for each table, the
    gradients of the rows and their row numbers.

    Each replica of a strategy wraps the program, one inside the other if there are several: it may need a
    call as soon as a gradient is complete.
    """
    if (compiler := variables.strategy.compiler) is not None:
        return compiler.compile_step(_whole_step(variables, made, local, shapes, trained))
    values: dict[Variable, Array] = {}
    written: dict[Tensor, Callable[[], object]] = {}

    def through(rest: Trained) -> Program:
        if not rest:
            return _program(variables, made, local, shapes, trained, values, written)
        (group, gradients), *others = rest

        def compiled(spec: ProgramSpec) -> Program:
            values.update(zip(group.trained, spec.values, strict=True))
            if spec.ready is not None:
                dense = [(i, g.whole) for i, g in enumerate(gradients) if i not in spec.tables]
                written.update({g: partial(spec.ready, number) for number, g in dense})
            return through(others)

        return step_program(group.replicas[local.index], TracedStep(compiled), shapes)

    return through(trained)


def _program(
    variables: StrategyVariables,
    made: Trace,
    local: LocalReplica,
    shapes: Shapes,
    trained: Trained,
    values: dict[Variable, Array],
    written: dict[Tensor, Callable[[], object]],
) -> Program:
    feeds, sizes = _fed(made, shapes)
    # Gradients are requested from the last variable's on: that is the order in which they are computed.
    into = [g.whole for group, found in trained for g in _apart(group, local, found)[1]][::-1]
    tables = [g for group, found in trained for g in _apart(group, local, found)[0]]
    rows = [[g.whole] if g.rows is None else [g.rows.values, g.rows.indices] for g in tables]
    fetches = [*made.fetches, *made.watched, *made.effects, *(part for parts in rows for part in parts)]
    order = _recorded_order(variables, made, [*fetches, *into], feeds, sizes)
    missing = [v for v in made.variables if v not in values]
    program = compile_program(
        fetches,
        feeds=feeds,
        shapes=sizes,
        values=values | variables.values(local, missing),
        into=into,
        xp=local.xp,
        order=order,
        kernels=lambda node: partial(_all_reduced, local, node.attrs["op"]),
        written=written,
        capture=None,
    )
    fed, others = len(feeds), len(fetches) - sum(map(len, rows))

    def run(*arrays: Array) -> tuple[Array, ...]:
        results = program(*arrays[:fed], *arrays[fed:][::-1])
        following = iter(results[others:])
        found = list(results[:others])
        for parts in rows:
            found.append(next(following))
            # A step may have a dense gradient for a table: convert it to the gradient of all rows.
            found.append(next(following) if len(parts) == 2 else np.arange(len(found[-1])))
        return tuple(found)

    return run


def _fed(made: Trace, shapes: Shapes) -> tuple[list[Tensor], list[Shape]]:
    """Return what is fed to a step, with its shapes: arguments, then what random numbers follow from."""
    extra = [*(d.fed for d in made.draws.values()), *made.scales.values()]
    extra += [] if made.replica is None else [made.replica]
    return [*made.feeds, *extra], [*shapes, *(t.shape for t in extra)]


def _recorded_order(
    variables: StrategyVariables,
    made: Trace,
    wanted: Sequence[Tensor],
    feeds: Sequence[Tensor],
    shapes: Sequence[Shape],
) -> list[Tensor] | None:
    """Return the tensors of a step in the order in which they were recorded; None if any order will do."""
    if not made.in_order:
        return None
    numbers = {t: n for n, t in enumerate(variables.graph.tensors)}
    return sorted(value_order(wanted, Specs.fed(feeds, shapes), frozenset(feeds)), key=numbers.__getitem__)


def _whole_step(
    variables: StrategyVariables,
    made: Trace,
    local: LocalReplica,
    shapes: Shapes,
    trained: Trained,
) -> WholeStep:
    """Return a step with its updates, for a strategy that compiles all of it."""
    feeds, sizes = _fed(made, shapes)
    held = [
        Held(group.replicas[local.index], group.trained, [g.whole for g in gradients])
        for group, gradients in trained
    ]
    updated = [group for group, _ in trained]
    held += [
        Held(group.replicas[local.index], group.trained)
        for group in variables.groups
        if group.replicas and group not in updated and group.reads(made.variables)
    ]
    inside = {v for one in held for v in one.variables}
    fetches = [*made.fetches, *made.watched, *made.effects]
    gradients = [g for one in held for g in one.gradients]
    return WholeStep(
        feeds,
        sizes,
        fetches,
        checked=made.watched,
        held=held,
        others=variables.values(local, [v for v in made.variables if v not in inside]),
        order=_recorded_order(variables, made, [*fetches, *gradients], feeds, sizes),
    )


def lookups_of(
    made: Trace, local: LocalReplica, shapes: Shapes, trained: Trained
) -> Callable[..., list[list[Array]]]:
    """Return ``lookups(*arguments)``: for each group, the row numbers that a step reads in each table.

    If they do not follow from the arguments, these are all rows.
    """
    replicas = [group.replicas[local.index] for group, _ in trained]
    wanted = [
        [made.lookups(group.trained[i]) for i in tables_in(replica)]
        for (group, _), replica in zip(trained, replicas, strict=True)
    ]
    ids = list(dict.fromkeys(t for ones in wanted for found in ones for t in found or ()))
    program = compile_program(ids, feeds=made.feeds, shapes=list(shapes))

    def lookups(*arrays: Array) -> list[list[Array]]:
        values = dict(zip(ids, program(*arrays), strict=True))

        def rows(found: list[Tensor] | None, table: Array) -> Array:
            if found is None:
                return np.arange(len(table))
            return np.concatenate([NO_ROWS, *(values[t].reshape(-1) for t in found)])

        return [
            [rows(found, replica.values[i]) for i, found in zip(tables_in(replica), ones, strict=True)]
            for replica, ones in zip(replicas, wanted, strict=True)
        ]

    return lookups


def _apart(
    group: VariableGroup, local: LocalReplica, gradients: Sequence[Gradient]
) -> tuple[list[Gradient], list[Gradient]]:
    """Return the gradients of a replica's tables, and all others."""
    tables = tables_in(group.replicas[local.index])
    numbered = list(enumerate(gradients))
    return [gradients[i] for i in tables], [g for i, g in numbered if i not in tables]


def _all_reduced(local: LocalReplica, how: str, x: Array) -> Array:
    return to_device(local.all_reduce(np.array(to_host(x)), how), local.xp)
