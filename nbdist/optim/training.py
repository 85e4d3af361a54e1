"""`minimize` in a graph: gradients of a loss, an update op for each variable, and the global step."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.gradients import gradients
from nbdist.graph.ops.state import group
from nbdist.graph.partitioned import PartitionedVariable
from nbdist.graph.scopes import Graph, Scope, control_dependencies
from nbdist.graph.sparse import IndexedSlices, as_dtype
from nbdist.graph.tensor import Tensor, Variable, constant, record, symbolic
from nbdist.graph.variables import filled, trainable_variables

if TYPE_CHECKING:
    from nbdist.optim.base import Optimizer

MOST_SLOTS = 8

Pairs: TypeAlias = list[tuple[Any, Variable]]
"""Gradients (tensors, IndexedSlices, or None) with the variables that they change."""


@dataclass
class OptimizerState:
    """The state of an optimizer in graphs: the slots of each variable, the count of steps of each graph."""

    slots: dict[Variable, dict[str, Variable]] = field(default_factory=dict)
    steps: dict[Graph, Variable] = field(default_factory=dict)
    rates: dict[str, Variable] = field(default_factory=dict)
    """Learning rates by device; variables of other devices have the optimizer's."""


def compute_gradients(loss: Any, var_list: Any, grad_loss: Any) -> Pairs:
    """Return the gradient of a loss with respect to each variable, None where it does not depend on it."""
    if not isinstance(loss, Tensor):
        raise InvalidArgumentError(f"a loss is a tensor, got {loss!r}")
    if loss.graph.rules is not None:
        loss = loss.graph.rules.scaled(loss)
    given = trainable_variables(loss.graph) if var_list is None else _listed(var_list)
    variables = [shard for v in given for shard in (v.shards if isinstance(v, PartitionedVariable) else [v])]
    if not variables:
        raise InvalidArgumentError(f"there is no variable to train for {loss!r}; give var_list=")
    for v in variables:
        if not isinstance(v, Variable):
            raise InvalidArgumentError(f"an optimizer changes variables, got {v!r}")
        if v.graph is not loss.graph:
            raise InvalidArgumentError(f"variable {v.name!r} belongs to another graph than {loss.name!r}")
    return list(zip(gradients(loss, variables, grad_loss), variables, strict=True))


def scaled_gradients(optimizer: Any, loss: Any, var_list: Any, grad_loss: Any) -> Pairs:
    """Return the gradients of the scaled loss, divided by the scale in the variables' dtypes."""
    rules = loss.graph.rules if isinstance(loss, Tensor) else None
    if isinstance(loss, Tensor) and rules is None:
        raise FailedPreconditionError(
            "LossScaleOptimizer scales losses in fit, and in a function that strategy.run(function, args) "
            "runs: a scale that changes from step to step belongs to the replicas of a strategy"
        )
    if rules is None:
        return compute_gradients(loss, var_list, grad_loss)  # which says what is wrong with the loss
    scale = rules.loss_scale(optimizer)
    above = scale.astype(loss.dtype) if grad_loss is None else grad_loss * scale.astype(grad_loss.dtype)
    pairs = compute_gradients(
        loss, var_list, symbolic.broadcast_to(above, loss.shape) if loss.shape else above
    )
    inverse = 1 / scale
    return [(None if g is None else as_dtype(g, v.dtype) * inverse.astype(v.dtype), v) for g, v in pairs]


def minimize(
    optimizer: Optimizer, loss: Any, global_step: Any, var_list: Any, grad_loss: Any, name: str | None
) -> Tensor:
    """Return the op that computes the gradients of a loss and applies them."""
    pairs = optimizer.compute_gradients(loss, var_list, grad_loss)
    if all(g is None for g, _ in pairs):
        raise InvalidArgumentError(
            f"{loss!r} depends on none of the variables {_names(pairs)}; look at what it is computed from"
        )
    if loss.graph.rules is not None:
        loss.graph.rules.watch(loss.graph.rules.scaled(loss))
    return optimizer.apply_gradients(pairs, global_step, name)


def apply_gradients(optimizer: Optimizer, pairs: Iterable[Any], global_step: Any, name: str | None) -> Tensor:
    """Return the op that applies gradients to their variables, on their devices, and counts the step."""
    applied = checked_pairs(pairs)
    graph = applied[0][1].graph
    if global_step is not None:
        check_step(global_step, graph)
    if graph.rules is not None:
        return graph.rules.update(optimizer, applied, global_step, name or type(optimizer).__name__)
    if graph.owner is not None:
        raise InvalidArgumentError(
            f"{type(optimizer).__name__} changes variables of a strategy in a function that "
            "strategy.run(function, args) runs; call minimize or apply_gradients there"
        )
    if optimizer.gradient_accumulation_steps:
        raise InvalidArgumentError(
            f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps} is for fit and for "
            "strategy.run under strategies that keep slots for it, and not for the update ops of a graph "
            "(in-graph replication, sessions): add gradients up in nb.ConditionalAccumulator, or take larger "
            "batches"
        )
    optimizer.check_names([v.name for _, v in applied])
    with graph.within(graph.scope):
        applied = _clipped(optimizer, applied)
        counter, step = _step(optimizer, graph, [v for _, v in applied], global_step)
        rate = _rate(optimizer, graph, counter)
        updates = [_update(optimizer, g, v, step, rate) for g, v in applied]
        if counter is None:
            return group(*updates, name=name or type(optimizer).__name__)
        with control_dependencies(updates):
            counted = counter.assign_add(1)
        return group(counted, name=name or type(optimizer).__name__)


def _clipped(optimizer: Optimizer, pairs: Pairs) -> Pairs:
    """Return the gradients as the optimizer clips them."""
    if not optimizer.clips:
        return pairs
    for g, v in pairs:
        if isinstance(g, IndexedSlices):
            raise InvalidArgumentError(
                f"{type(optimizer).__name__} clips gradients, and that of {v.name!r} in this graph is rows "
                f"of a table: drop {optimizer.settings_beside()}, or train with fit or strategy.run under "
                "another strategy, which clips it as a whole"
            )
    given = [(g if isinstance(g, Tensor) else constant(g), v) for g, v in pairs]
    if optimizer.clipvalue:
        return [(np.clip(g, -optimizer.clipvalue, optimizer.clipvalue), v) for g, v in given]
    largest = float(optimizer.clipnorm or optimizer.global_clipnorm or 0)
    squares = [np.sum(np.square(g.astype(np.float64))) for g, _ in given]
    if optimizer.global_clipnorm:
        squares = [sum(squares[1:], squares[0])] * len(squares)
    factors = [largest / np.maximum(np.sqrt(one), largest) for one in squares]
    return [(g * factor.astype(g.dtype), v) for (g, v), factor in zip(given, factors, strict=True)]


def slots_of(optimizer: Optimizer, variable: Variable) -> dict[str, Variable]:
    """Return the slots of a variable, made on its device at the first call."""
    slots = optimizer.graph_state.slots
    if variable not in slots:
        kind = type(optimizer).__name__.lower()
        first = optimizer.new_slots(np.zeros(1, variable.dtype))
        slots[variable] = {
            slot: filled(f"{variable.name}/{kind}/{slot}", variable, float(array[0]))
            for slot, array in first.items()
        }
    return slots[variable]


def op_name(slots: int, *, sparse: bool) -> str:
    """Return the name of the op that applies a gradient to a variable with so many slots."""
    if slots > MOST_SLOTS:
        raise InvalidArgumentError(f"an optimizer keeps at most {MOST_SLOTS} slots in a graph, not {slots}")
    return f"apply_{'sparse_' * sparse}gradient_{slots}"


def _step(
    optimizer: Optimizer, graph: Graph, variables: Sequence[Variable], global_step: Any
) -> tuple[Variable | None, Any]:
    """Return what counts the steps, if anything does, and the number of this step, from 1 on."""
    counter = global_step
    if counter is None and (optimizer.counts_steps or _takes_step(optimizer.learning_rate)):
        state = optimizer.graph_state
        if graph in state.steps and not any(v in state.slots for v in variables):
            others = _names([(None, v) for v in state.slots if v.graph is graph])
            raise InvalidArgumentError(
                f"this {type(optimizer).__name__} counts the steps of {others}, to which those of "
                f"{_names([(None, v) for v in variables])} would be added: give them an optimizer of their "
                "own, a global_step=, or all gradients in one apply_gradients"
            )
        if graph not in state.steps:
            with graph.within(Scope(colocated=variables[0], container=variables[0].container)):
                own = Variable(np.int64(0), trainable=False, name=f"{type(optimizer).__name__.lower()}/step")
            optimizer.graph_state.steps[graph] = own
        counter = optimizer.graph_state.steps[graph]
    if not optimizer.counts_steps:  # one that does not look is sent nothing
        return counter, np.ones((), np.int64)
    with graph.within(Scope(colocated=counter, control=graph.scope.control)):
        return counter, record("add", counter, np.ones((), counter.dtype), name=f"{counter.name}/next")


def _takes_step(rate: Any) -> bool:
    """Return whether a learning rate is a function of the step, not of nothing."""
    return callable(rate) and bool(inspect.signature(rate).parameters)


def _rate(optimizer: Optimizer, graph: Graph, counter: Variable | None) -> Tensor | None:
    """Return a learning rate that is a tensor or a function as one float64; None for a number."""
    rate = optimizer.learning_rate
    if not isinstance(rate, Tensor) and not callable(rate):
        return None
    if callable(rate):
        rate = rate(counter) if _takes_step(rate) else rate()
    with graph.as_default():
        tensor = rate if isinstance(rate, Tensor) else constant(rate)
    if tensor.shape != () or tensor.dtype.kind not in "iuf" or tensor.graph is not graph:
        raise InvalidArgumentError(
            "learning_rate is one number, or a tensor of one number in the graph of the variables, got "
            f"{tensor!r}"
        )
    return tensor if tensor.dtype == np.float64 else tensor.astype(np.float64)


def _update(
    optimizer: Optimizer, gradient: Any, variable: Variable, step: Any, chosen: Tensor | None
) -> Tensor:
    slots = slots_of(optimizer, variable)
    sparse = isinstance(gradient, IndexedSlices)
    parts = (gradient.values, gradient.indices) if sparse else (gradient,)
    graph, name = variable.graph, f"{variable.name}/{type(optimizer).__name__.lower()}/"
    with graph.within(Scope(name=name, colocated=variable, control=graph.scope.control)):
        if parts[0].dtype != variable.dtype:
            parts = (parts[0].astype(variable.dtype), *parts[1:])
        rate = optimizer.graph_state.rates.get(variable.device) if chosen is None else chosen
        return record(
            op_name(len(slots), sparse=sparse),
            variable,
            *slots.values(),
            *parts,
            step,
            *([] if rate is None else [rate]),
            name="apply",
            config=optimizer.config(optimizer.learning_rate if chosen is None else 0.0)
            | ({"weight_decay": 0.0} if optimizer.excluded and not optimizer.decays(variable.name) else {}),
            slots=tuple(slots),
            **({"use_locking": True} if optimizer.use_locking else {}),
            **({} if rate is None else {"rated": True}),
        )


def checked_pairs(pairs: Iterable[Any]) -> Pairs:
    """Return the pairs that have a gradient, or raise an error that names what is wrong."""
    given = [tuple(pair) for pair in pairs]
    if not given:
        raise InvalidArgumentError("apply_gradients: the list of gradients is empty; see compute_gradients")
    for pair in given:
        if len(pair) != 2:
            raise InvalidArgumentError(f"apply_gradients takes (gradient, variable) pairs, got {pair!r}")
        gradient, v = pair
        if isinstance(v, PartitionedVariable):
            raise InvalidArgumentError(
                f"apply_gradients: {v!r} is trained shard by shard; compute_gradients returns a pair for each"
            )
        if not isinstance(v, Variable):
            raise InvalidArgumentError(f"apply_gradients changes variables, got {v!r}")
        if v.dtype.kind != "f":
            raise InvalidArgumentError(
                f"variable {v.name!r} of {v.dtype} cannot be trained: expected a float dtype"
            )
        _check_gradient(gradient, v, given[0][1].graph)
    if all(g is None for g, _ in given):
        raise InvalidArgumentError(f"apply_gradients: there is no gradient for any of {_names(given)}")
    return [(g, v) for g, v in given if g is not None]


def _check_gradient(gradient: Any, v: Variable, graph: Graph) -> None:
    if v.graph is not graph:
        raise InvalidArgumentError(
            f"variable {v.name!r} belongs to another graph than the variables before it"
        )
    if gradient is None:
        return
    if not isinstance(gradient, (Tensor, IndexedSlices, np.ndarray)):
        raise InvalidArgumentError(f"the gradient of variable {v.name!r} is a tensor, got {gradient!r}")
    parts = (gradient.values, gradient.indices) if isinstance(gradient, IndexedSlices) else (gradient,)
    if any(isinstance(part, Tensor) and part.graph is not graph for part in parts):
        raise InvalidArgumentError(f"variable {v.name!r} belongs to another graph than its gradient")
    fits = len(gradient.shape) == len(v.shape) and all(
        n in (None, m) for n, m in zip(gradient.shape, v.shape, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            f"variable {v.name!r} of shape {v.shape} has a gradient of its shape, got {gradient.shape}"
        )


def check_step(global_step: Any, graph: Graph) -> None:
    """Raise InvalidArgumentError unless this can be the global step of a graph."""
    if not isinstance(global_step, Variable) or global_step.shape or global_step.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"global_step is a variable that holds one whole number, got {global_step!r}; "
            "see train.get_or_create_global_step()"
        )
    if global_step.graph is not graph:
        raise InvalidArgumentError(f"global_step {global_step.name!r} belongs to another graph")


def _listed(values: Any) -> Sequence[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _names(pairs: Sequence[Any]) -> str:
    names = [v.name for _, v in pairs]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
