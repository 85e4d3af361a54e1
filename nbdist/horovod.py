"""Training loops in the style of Horovod: every worker runs the same program, and gradients are averaged.

    %%distribute
    import nbdist.horovod as hvd

    hvd.init()
    data = nb.data.Dataset.from_arrays(x, y).shard(hvd.size(), hvd.rank()).batch(50)
    model.compile(hvd.DistributedOptimizer(nb.optim.SGD(0.1 * hvd.size())), "sparse_categorical_crossentropy")
    hvd.broadcast_parameters(model)
    model.fit(data, epochs=5)

Ranks are the run's workers in their order, which fills hosts as ``-H host1:2,host2:2`` does. Sergeev and Del
Balso, "Horovod: fast and easy distributed deep learning in TensorFlow" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, ClassVar, TypeAlias

import numpy as np

import nbdist.collective as collective
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, choices
from nbdist.optim import Optimizer
from nbdist.train.context import current

__all__ = [
    "DistributedOptimizer", "allgather", "allreduce", "broadcast", "broadcast_parameters", "init",
    "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size",
]  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]
_OPS = {"average": "mean", "mean": "mean", "sum": "sum", "min": "min", "max": "max", "product": "product"}


def init() -> None:
    """Join the group of all workers of the run; each calls it before any other function."""
    collective.barrier()


def is_initialized() -> bool:
    """Whether `init` was called in this run."""
    return collective.formed()


def rank() -> int:
    """Return this worker's number among those of the run.

    Raises FailedPreconditionError before ``init()``, as do ``size``, ``local_rank`` and ``local_size``.

    >>> init()
    >>> rank(), size()
    (0, 1)
    """
    return _initialized("rank", collective.rank)


def size() -> int:
    """Return how many workers the run has."""
    return _initialized("size", collective.size)


def local_rank() -> int:
    """Return this worker's number among those of its host."""
    return _initialized("local_rank", collective.local_rank)


def local_size() -> int:
    """Return how many workers the run has on this host."""
    return _initialized("local_size", collective.local_size)


def _initialized(name: str, ask: Callable[[], int]) -> int:
    if not is_initialized():
        raise FailedPreconditionError(
            f"horovod.{name}(): the workers have not met yet; call horovod.init() first, on every worker"
        )
    return ask()


def shutdown() -> None:
    """Leave the group; a later call forms another, with all others."""
    collective.leave()


def allreduce(
    tensor: Any, average: bool | None = None, op: str = "average", name: str | None = None
) -> Array:
    """Return the mean (or sum, min, max, product) of all ranks' ``tensor``.

    - ``tensor``: an array or a number, of the same shape and dtype on all ranks
    - ``average``: True or False for the mean or the sum (Horovod's older parameter); None: ``op`` decides
    - ``op``: "average", "sum", "min", "max" or "product"
    - ``name``: accepted for programs that give one; calls of ranks are matched by their order

    Raises InvalidArgumentError on all ranks if their calls differ, UnavailableError if one has died.

    >>> allreduce([1.0, 3.0])
    array([1., 3.])
    """
    if op not in _OPS:
        raise InvalidArgumentError(f"allreduce: no op {op!r}; {choices(op, _OPS)}")
    if average is not None:
        op = "average" if average else "sum"
    return collective.all_reduce(tensor, _OPS[op])


def allgather(tensor: Any, name: str | None = None) -> Array:
    """Return all ranks' ``tensor`` one after the other along the first axis.

    The first axis may differ between ranks: its lengths are gathered first. The other axes and the dtype are
    the same on all. ``name`` is ignored. Raises InvalidArgumentError for a single number.

    >>> allgather([[1, 2], [3, 4]])
    array([[1, 2],
           [3, 4]])
    """
    tensor = np.asarray(tensor)
    if tensor.ndim == 0:
        raise InvalidArgumentError("allgather joins along the first axis, and this is a single number")
    lengths = collective.all_gather(np.array(len(tensor)))
    padded = np.zeros((int(lengths.max()), *tensor.shape[1:]), tensor.dtype)
    padded[: len(tensor)] = tensor
    return np.concatenate([rows[:n] for rows, n in zip(collective.all_gather(padded), lengths)])


def broadcast(tensor: Any, root_rank: int = 0, name: str | None = None) -> Array:
    """Return the root's ``tensor`` on every rank.

    ``tensor`` has the same shape and dtype on all; ``root_rank`` is from 0; ``name`` is ignored.

    >>> broadcast([1.0, 2.0])
    array([1., 2.])
    """
    return collective.broadcast(tensor, root_rank)


def broadcast_parameters(parameters: Any, root_rank: int = 0) -> None:
    """Copy the root's parameters to every rank, in place.

    ``parameters`` is a model that has weights, or arrays in a list or a dict; ``root_rank`` is from 0. Raises
    InvalidArgumentError for anything else.
    """
    weights = getattr(parameters, "weights", parameters)
    if weights is not parameters and not weights:
        raise FailedPreconditionError(
            "the model has no weights yet: call build(input_shape) before broadcast_parameters"
        )
    arrays: Sequence[Array] = list(weights.values()) if isinstance(weights, dict) else list(weights)
    for array in arrays:
        if not isinstance(array, np.ndarray):
            raise InvalidArgumentError(f"broadcast_parameters takes arrays, got {type(array).__name__}")
        collective.broadcast(array, root_rank, out=array)


class DistributedOptimizer(Optimizer):
    """An optimizer that averages gradients over all ranks before it applies them.

    It is for ``fit`` without a strategy, on every rank and for the same number of steps; a strategy reduces
    gradients itself.

    - ``optimizer``: one of ``nb.optim``
    - ``op``: "average" or "sum"
    - ``name``: ignored

    Raises InvalidArgumentError for another ``optimizer`` or ``op``. Source: Sergeev and Del Balso 2018
    (arXiv:1802.05799).

    >>> from nbdist.optim import SGD
    >>> DistributedOptimizer(SGD(0.1)).learning_rate
    0.1
    """

    slots: ClassVar[tuple[str, ...]] = ()
    takes_rows = False  # ranks look up different rows; the all-reduce needs gradients of one size

    def __init__(self, optimizer: Optimizer, op: str = "average", name: str | None = None) -> None:
        if not isinstance(optimizer, Optimizer):
            raise InvalidArgumentError(f"DistributedOptimizer wraps an optimizer, got {optimizer!r}")
        if not optimizer.is_plain:
            raise InvalidArgumentError(
                f"DistributedOptimizer averages gradients and then applies {type(optimizer).__name__} alone, "
                f"without {optimizer.settings_beside()}: drop that, or train under --strategy multi_worker"
            )
        if op not in ("average", "mean", "sum"):
            raise InvalidArgumentError(f"DistributedOptimizer: no op {op!r}; choose from average, sum")
        self._inner, self._op = optimizer, _OPS[op]
        self._rows: dict[Any, Array] = {}

    @property
    def learning_rate(self) -> float:
        """The rate of the inner optimizer."""
        rate: float = self._inner.learning_rate
        return rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._inner.learning_rate = rate

    def in_training(self) -> DistributedOptimizer:
        """Return a copy with a rate that is a number, if the inner optimizer's is a schedule."""
        own = copy(self)
        own._inner = self._inner.in_training()
        own.schedule = own._inner.schedule
        return own

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Average the gradient over all ranks, and change ``parameters`` by it, alike on all."""
        group = current().world.common
        key = (group, gradient.shape, gradient.dtype)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = group.symmetric_buffer(gradient.shape, gradient.dtype)
        np.copyto(row, gradient)
        group.all_reduce(row, self._op, out=row)
        self._inner.apply(parameters, row, slots, step)

    def new_slots(self, parameters: Array) -> dict[str, Array]:
        """Return the slots of the inner optimizer."""
        return self._inner.new_slots(parameters)

    def to_config(self) -> dict[str, Any]:
        """Return the inner optimizer as plain values: the client's copy of a model has no ranks."""
        return self._inner.to_config()

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._inner!r})"
