"""Conditional accumulators: gradients of several replicas collected beside a variable, without stale ones.

    accumulator = ConditionalAccumulator(np.float32, (784, 10))        # on the device of the enclosing scope
    accepted = accumulator.apply_grad(gradient, local_step)
    mean = accumulator.take_grad(3)                                    # waits for three gradients

Like a variable, an accumulator is kept by its task, in a container, by name: sessions that use one name share
it. The executor of a piece runs these ops itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.op import Shape, Spec, define_external, fits, show
from nbdist.graph.scopes import default_graph
from nbdist.graph.sparse import IndexedSlices, check_row_numbers
from nbdist.graph.tensor import Tensor, record

REDUCTIONS = ("MEAN", "SUM")


class Resource:
    """What a task keeps by its name, as a variable: sessions that use one name share it."""

    def __init__(self, op_name: str, name: str, **attrs: Any) -> None:
        graph = default_graph()
        with graph.within(replace(graph.scope, control=())):
            self.handle = record(op_name, name=name, **attrs)

    @property
    def name(self) -> str:
        """Its name in the graph."""
        return self.handle.name

    def _record(self, op_name: str, *inputs: Any, **attrs: Any) -> Tensor:
        graph = self.handle.graph
        with graph.within(replace(graph.scope, name="", colocated=self.handle)):
            return record(op_name, self.handle, *inputs, name=f"{self.name}/{op_name}", **attrs)


class _Accumulator(Resource):
    """Base of both kinds of accumulators."""

    sparse = False

    def __init__(
        self,
        dtype: Any,
        shape: Sequence[int] = (),
        reduction_type: str = "MEAN",
        *,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
    ) -> None:
        self.dtype, self.shape = np.dtype(dtype), tuple(int(n) for n in shape)
        self.reduction_type = reduction_type
        if reduction_type not in REDUCTIONS:
            raise InvalidArgumentError(
                f"{name}: no reduction_type {reduction_type!r}; {choices(reduction_type, REDUCTIONS)}"
            )
        if self.dtype.kind not in ("fc" if reduction_type == "MEAN" else "iufc"):
            raise InvalidArgumentError(f"{name}: gradients of {self.dtype} have no {reduction_type}")
        if self.sparse and not self.shape:
            raise InvalidArgumentError(f"{name}: a single number has no rows; use ConditionalAccumulator")
        super().__init__(
            "Accumulator",
            name,
            shape=self.shape,
            dtype=self.dtype,
            reduction=reduction_type,
            sparse=self.sparse,
            key=shared_name or "",
        )

    def num_accumulated(self) -> Tensor:
        """Return how many gradients are collected now."""
        return self._record("accumulator_count")

    def num_dropped(self) -> Tensor:
        """Return how many gradients were too old, since the accumulator was made or last begun."""
        return self._record("accumulator_dropped")

    def set_global_step(self, new_global_step: Any) -> Tensor:
        """Return the op after which gradients older than this step are dropped."""
        return self._record("accumulator_set_step", whole(new_global_step))

    def begin(self, step: Any) -> Tensor:
        """Return the op that clears gradients and counts, and sets the accumulator's step to ``step``."""
        return self._record("accumulator_begin", whole(step))

    def withdraw(self, giver: str) -> Tensor:
        """Return the op that drops what ``giver`` has given, and what the former process of its task has."""
        return self._record("accumulator_withdraw", giver=giver)

    def close(self) -> Tensor:
        """Return the op that closes it: waiting replicas get an OutOfRangeError."""
        return self._record("accumulator_close")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {show(self.shape)} {self.dtype}>"


class ConditionalAccumulator(_Accumulator):
    """Collects dense gradients of one variable; as TensorFlow's class of this name.

    A gradient is accepted if its local step is not older than the accumulator's step; older ones are dropped
    and counted. ``take_grad(n)`` waits for n, returns the mean (or the sum) of all that are there, and begins
    the next step. They are added in the order of the names of the tasks that hold their local steps,
    not in the order of arrival.

    - ``dtype``, ``shape``: of the gradients
    - ``reduction_type``: "MEAN" or "SUM"
    - ``name``: the name of its op
    - ``shared_name``: the name under which sessions share it; None is ``name``

    Source: TensorFlow's synchronous replicas (Chen et al. 2016, arXiv:1604.00981).

    >>> from nbdist.graph.tensor import Graph
    >>> with Graph().as_default():
    ...     accumulator = ConditionalAccumulator(np.float32, (2,))
    ...     accumulator.apply_grad([1.0, 2.0], local_step=0), accumulator.take_grad(1).shape
    (<Tensor 'conditional_accumulator/accumulator_apply' () bool>, (2,))
    """

    def apply_grad(self, grad: Any, local_step: Any = 0, *, giver: str = "") -> Tensor:
        """Return the op that offers a gradient; its value is whether it was accepted.

        ``grad`` is the gradient, ``local_step`` the step of the parameters that it was computed from.
        ``giver`` identifies the graph of its replica, for ``withdraw``.
        """
        gradient = grad if isinstance(grad, Tensor) else np.asarray(grad, self.dtype)
        return self._record(
            "accumulator_apply",
            gradient,
            whole(local_step),
            shape=self.shape,
            dtype=self.dtype,
            giver=giver,
        )

    def take_grad(self, num_required: Any, *, patient: bool = False) -> Tensor:
        """Return the mean or sum of all gradients, when there are ``num_required`` (1 or more) of them.

        It waits at most a session's ``operation_timeout``, or as long as the session lasts if ``patient``.
        """
        return self._record(
            "accumulator_take", needed(num_required), shape=self.shape, dtype=self.dtype, patient=patient
        )


class SparseConditionalAccumulator(_Accumulator):
    """Collects gradients that hold some rows only; as TensorFlow's class of this name.

    It has the parameters and the rules of :class:`ConditionalAccumulator`. In the mean, each row is divided
    by the number of gradients that hold that row.

    >>> from nbdist.graph.tensor import Graph
    >>> with Graph().as_default():
    ...     accumulator = SparseConditionalAccumulator(np.float32, (10, 2))
    ...     accumulator.take_indexed_slices_grad(2)
    <IndexedSlices of (?, 2) rows in (10, 2) float32>
    """

    sparse = True

    def apply_indexed_slices_grad(self, grad: IndexedSlices, local_step: Any = 0) -> Tensor:
        """Return the op that offers a gradient; its value is whether it was accepted.

        ``grad`` is the gradient, ``local_step`` the step of the parameters that it was computed from.
        """
        return self.apply_grad(grad.indices, grad.values, local_step)

    def apply_grad(
        self, grad_indices: Any, grad_values: Any, local_step: Any = 0, *, giver: str = ""
    ) -> Tensor:
        """Return the op that offers the rows ``grad_values`` at ``grad_indices``, made at ``local_step``."""
        values = grad_values if isinstance(grad_values, Tensor) else np.asarray(grad_values, self.dtype)
        return self._record(
            "accumulator_apply_rows",
            values,
            whole(grad_indices),
            whole(local_step),
            shape=self.shape,
            dtype=self.dtype,
            giver=giver,
        )

    def take_indexed_slices_grad(self, num_required: Any, *, patient: bool = False) -> IndexedSlices:
        """Return the mean or sum of all gradients by row, when there are ``num_required`` of them.

        ``patient`` is as in :meth:`ConditionalAccumulator.take_grad`.
        """
        rows = self._record("accumulator_take_rows", needed(num_required), patient=patient)
        values = self._record("accumulator_rows", rows, shape=self.shape, dtype=self.dtype)
        return IndexedSlices(values, rows, self.shape)

    take_grad = take_indexed_slices_grad


def whole(value: Any) -> Any:
    """Return whole numbers: a tensor as it is, other numbers as int64."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidArgumentError(f"a step or a row is a whole number, got {value!r}")
    return array.astype(np.int64)


def needed(count: Any) -> Any:
    """Return the number of gradients to take; raises InvalidArgumentError below 1."""
    if not isinstance(count, Tensor) and int(whole(count)) < 1:
        raise InvalidArgumentError(f"take at least 1 gradient, got {count}")
    return whole(count)


NOTHING = Spec((), np.dtype(bool))
COUNT = Spec((), np.dtype(np.int64))


def on_handle(name: str, spec: Any, *, waits: bool = False, has_value: bool = True) -> None:
    """Register an op on a resource, its first input; a step runs such ops in order of creation."""
    define_external(
        name,
        spec=spec,
        has_value=has_value,
        writes=frozenset({0}),
        waits=waits,
    )


def check_step(step: Spec) -> None:
    """Raise an InvalidArgumentError for a step that is not one whole number."""
    if step.shape or step.dtype.kind not in "iu":
        raise InvalidArgumentError(f"a step is one whole number, got {show(step.shape)} {step.dtype}")


def _check(gradient: Spec, shape: Shape, dtype: np.dtype[Any]) -> None:
    if not fits(gradient.shape, shape) or gradient.dtype != dtype:
        raise InvalidArgumentError(
            f"a gradient {show(gradient.shape)} {gradient.dtype} does not fit an accumulator {show(shape)} "
            f"{dtype}"
        )


def _applied(
    handle: Spec, gradient: Spec, step: Spec, shape: Shape, dtype: np.dtype[Any], giver: str
) -> Spec:
    check_step(step)
    _check(gradient, tuple(shape), dtype)
    return NOTHING


def _applied_rows(
    handle: Spec, values: Spec, indices: Spec, step: Spec, shape: Shape, dtype: np.dtype[Any], giver: str
) -> Spec:
    check_step(step)
    check_row_numbers(indices)
    size = values.shape[0] if values.shape else None
    if None not in (size, *indices.shape) and indices.shape != (size,):
        raise InvalidArgumentError(f"{size} rows have {show(indices.shape)} row numbers")
    _check(values, (size, *shape[1:]), dtype)
    return NOTHING


def _stepped(handle: Spec, step: Spec) -> Spec:
    check_step(step)
    return NOTHING


define_external(  # the handle of the accumulator
    "Accumulator",
    spec=lambda shape, dtype, reduction, sparse, key: NOTHING,
)
on_handle("accumulator_apply", _applied)
on_handle("accumulator_apply_rows", _applied_rows)
on_handle("accumulator_take", lambda handle, n, shape, dtype, patient: Spec(tuple(shape), dtype), waits=True)
on_handle(  # the numbers of the rows; the rows themselves are the next op's
    "accumulator_take_rows", lambda handle, n, patient: Spec((None,), np.dtype(np.int64)), waits=True
)
on_handle("accumulator_rows", lambda handle, rows, shape, dtype: Spec((None, *shape[1:]), dtype))
on_handle("accumulator_count", lambda handle: COUNT)
on_handle("accumulator_dropped", lambda handle: COUNT)
on_handle("accumulator_set_step", _stepped, has_value=False)
on_handle("accumulator_begin", _stepped, has_value=False)
on_handle("accumulator_withdraw", lambda handle, giver: NOTHING, has_value=False)
on_handle("accumulator_close", lambda handle: NOTHING, has_value=False)
