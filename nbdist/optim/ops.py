"""The optimizers' ops: update a variable and its slots in place, on the device that holds them.

``apply_gradient_n`` takes (variable, n slots, gradient, step), ``apply_sparse_gradient_n`` takes (variable,
n slots, rows, their indices, step) and touches these rows only. The optimizer is in the attributes, as plain
values, and its ``apply`` is the one that a parameter server of a strategy calls as well. What is ``rated``
takes the learning rate as one more input, the last one, and not from the attributes. With
``use_locking`` no other op reads or changes the variable and its slots during the op.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Spec, define, fits, show
from nbdist.graph.sparse import check_row_numbers
from nbdist.graph.xla.forms import UPDATES
from nbdist.graph.xla.functional import FunctionalArray
from nbdist.optim.base import Optimizer
from nbdist.optim.table import from_config
from nbdist.optim.training import MOST_SLOTS, op_name


def _apply(xp: Any, variable: Array, *rest: Array, slots: tuple[str, ...], **how: Any) -> Array:
    rule, rest = _rated(xp, rest, how)
    *state, gradient, step = rest
    kept = {name: _flat(array) for name, array in zip(slots, state, strict=True)}
    rule.decay(_flat(variable))
    rule.apply(_flat(variable), gradient.reshape(-1), kept, _number(xp, step))
    return variable


def _apply_sparse(xp: Any, variable: Array, *rest: Array, slots: tuple[str, ...], **how: Any) -> Array:
    """Change the rows in question and nothing else: the time does not depend on how many there are."""
    rule, rest = _rated(xp, rest, how)
    *state, values, indices, step = rest
    rule.apply_rows(variable, values, indices, dict(zip(slots, state, strict=True)), _number(xp, step))
    return variable


def _number(xp: Any, step: Array) -> Any:
    """Return the number of the step; on a GPU it stays there, because the host would wait for it."""
    return int(step) if xp is np else step


def _rated(xp: Any, inputs: tuple[Array, ...], how: dict[str, Any]) -> tuple[Optimizer, tuple[Array, ...]]:
    """Return the rule to apply, and the inputs that are its own."""
    settings = tuple(how["config"].items())
    if not how.get("rated"):
        return _rule(settings), inputs
    if xp is np:
        return _rule(settings, float(inputs[-1])), inputs[:-1]
    rule = copy(_rule(settings))
    rule.learning_rate = inputs[-1]
    return rule, inputs[:-1]


@lru_cache(maxsize=64)
def _rule(settings: tuple[tuple[str, Any], ...], rate: float | None = None) -> Optimizer:
    # Threads share a rule: another rate makes another one.
    return from_config(dict(settings) | ({} if rate is None else {"learning_rate": rate}))


def _flat(array: Array) -> Array:
    if not array.flags.c_contiguous:
        raise InvalidArgumentError(f"a variable of strides {array.strides} cannot be changed in place")
    return array.reshape(-1)


def _spec(variable: Spec, *rest: Spec, **how: Any) -> Spec:
    *state, gradient, step = _unrated(rest, **how)
    _check(variable, state, gradient, variable.shape, step, **how)
    return variable


def _unrated(inputs: tuple[Spec, ...], rated: bool = False, **how: Any) -> tuple[Spec, ...]:
    """Return the inputs without the learning rate."""
    if rated and inputs[-1] != Spec((), np.dtype(np.float64)):
        raise InvalidArgumentError(f"a learning rate is one float64, got {inputs[-1]}")
    return inputs[:-1] if rated else inputs


def _sparse_spec(variable: Spec, *rest: Spec, **how: Any) -> Spec:
    *state, values, indices, step = _unrated(rest, **how)
    check_row_numbers(indices)
    _check(variable, state, values, (*indices.shape, *variable.shape[1:]), step, **how)
    return variable


def _check(
    variable: Spec,
    state: list[Spec],
    gradient: Spec,
    wanted: tuple[int | None, ...],
    step: Spec,
    config: dict[str, Any],
    slots: tuple[str, ...],
    use_locking: bool = False,
    rated: bool = False,
) -> None:
    if not fits(gradient.shape, wanted) or gradient.dtype != variable.dtype or variable.dtype.kind != "f":
        raise InvalidArgumentError(
            f"a gradient {show(gradient.shape)} {gradient.dtype} does not fit a variable "
            f"{show(variable.shape)} {variable.dtype}"
        )
    if step.shape or step.dtype.kind not in "iu":
        raise InvalidArgumentError(f"a step is a whole number, got {show(step.shape)} {step.dtype}")
    needed = tuple(_rule(tuple(config.items())).new_slots(np.zeros(1, variable.dtype)))
    if tuple(slots) != needed or any(s != variable for s in state) or len(state) != len(needed):
        raise InvalidArgumentError(f"{config.get('name')} keeps {needed} for each element, got {slots}")


# Under XLA arrays cannot be written to: an update returns new ones.


def _updated(jax: Any, variable: Any, *rest: Any, slots: tuple[str, ...], **how: Any) -> list[Any]:
    rule, rest = _rated(jax.numpy, rest, how)
    *state, gradient, step = rest
    old = [variable, *state]
    arrays: list[Any] = [FunctionalArray(one.reshape(-1)) for one in old]  # in place of NumPy's
    g: Any = FunctionalArray(gradient.reshape(-1))
    number: Any = FunctionalArray(step)
    if how.get("rated"):
        rule.learning_rate = FunctionalArray(rule.learning_rate)
    rule.decay(arrays[0])
    rule.apply(arrays[0], g, dict(zip(slots, arrays[1:], strict=True)), number)
    return [new.value.reshape(one.shape) for new, one in zip(arrays, old, strict=True)]


def _updated_rows(jax: Any, variable: Any, *rest: Any, slots: tuple[str, ...], **how: Any) -> list[Any]:
    """Change the rows in question and nothing else, by an update of all rows: shapes are static."""
    at = len(slots)
    values, indices = rest[at : at + 2]
    gradient = jax.numpy.zeros_like(variable).at[indices].add(values)
    touched = jax.numpy.zeros(len(variable), bool).at[indices].set(True)
    touched = touched.reshape(-1, *(1,) * (variable.ndim - 1))
    new = _updated(jax, variable, *rest[:at], gradient, *rest[at + 2 :], slots=slots, **how)
    old = (variable, *rest[:at])
    return [jax.numpy.where(touched, a, b) for a, b in zip(new, old, strict=True)]


for _slots in range(MOST_SLOTS + 1):
    _written = frozenset(range(_slots + 1))
    define(op_name(_slots, sparse=False), forward=_apply, spec=_spec, writes=_written)
    define(op_name(_slots, sparse=True), forward=_apply_sparse, spec=_sparse_spec, writes=_written)
    UPDATES[op_name(_slots, sparse=False)] = _updated
    UPDATES[op_name(_slots, sparse=True)] = _updated_rows
