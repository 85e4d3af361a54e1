"""Collectives over all replicas of a run, for custom training loops.

    %%distribute --no-live
    total = nb.collective.all_reduce(np.array([nb.collective.rank()]), "sum")

Every replica makes the same calls in the same order. One that makes another call, leaves or dies ends the
call of all with an error that names it. In the notebook, outside of a run, this process is rank 0 of 1.

The group is formed at the first call; ``%%distribute --collective`` says of which kind, by default the best.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import UnavailableError
from nbdist.runtime.groups import World
from nbdist.train.context import current

__all__ = [
    "all_gather", "all_reduce", "barrier", "broadcast", "kind", "local_rank", "local_size", "rank",
    "reduce_scatter", "size",
]  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]
_alone = World()


def rank() -> int:
    """Return this replica's number among those of the run."""
    return _world().index


def size() -> int:
    """Return how many replicas the run has."""
    return _world().size


def local_rank() -> int:
    """Return this replica's number among those of its host."""
    return _world().local_index


def local_size() -> int:
    """Return how many replicas the run has on this host."""
    return _world().local_size


def kind() -> str:
    """Return how values travel: "local", "shm", "ring", "hierarchical", "nccl" or "mpi"."""
    return _world().common.kind


def all_reduce(x: Any, op: str = "mean", out: Array | None = None) -> Array:
    """Return the reduction of all replicas' ``x``, equal bit for bit on each.

    - ``x``: an array (or numbers) of the same shape and dtype on all replicas
    - ``op``: "sum", "mean", "min", "max" or "product"
    - ``out``: an array for the result, of the shape of ``x`` and the dtype of the result; it may be ``x``

    The result has the dtype of ``x``; means of integers are float64. All replicas make the same calls, in the
    same order. Raises InvalidArgumentError on all of them if their calls differ, UnavailableError if one has
    died or a connection was lost (the call is not repeated), AbortedError if the run was aborted. Source:
    ring all-reduce (Patarasuk and Yuan 2009) between hosts; in shared memory each rank reduces a part.

    >>> all_reduce(np.array([1.0, 2.0]), "sum")
    array([1., 2.])
    """
    with _explained():
        return _world().common.all_reduce(x, op, out)


def all_gather(x: Any, out: Array | None = None) -> Array:
    """Return all replicas' ``x``, stacked along a new first axis: (replicas, *shape).

    ``x`` has the same shape and dtype on all; ``out`` is an array for the result, or None. Raises what
    :func:`all_reduce` raises.

    >>> all_gather([3, 4])
    array([[3, 4]])
    """
    with _explained():
        return _world().common.all_gather(x, out)


def reduce_scatter(x: Any, op: str = "mean", out: Array | None = None) -> Array:
    """Return this replica's rows of the reduction of all replicas' ``x``.

    - ``x``: an array (rows, ...) of the same shape and dtype on all replicas; rows are divided among replicas
      as ``np.array_split`` does
    - ``op``: as in :func:`all_reduce`
    - ``out``: an array for the result, or None

    Raises what :func:`all_reduce` raises.

    >>> reduce_scatter([1.0, 2.0], "sum")
    array([1., 2.])
    """
    with _explained():
        return _world().common.reduce_scatter(x, op, out)


def broadcast(x: Any, root: int = 0, out: Array | None = None) -> Array:
    """Return the root's ``x`` on all replicas.

    - ``x``: an array of the same shape and dtype on all; its values count on the root only
    - ``root``: the number of a replica, from 0
    - ``out``: an array for the result, or None

    Raises what :func:`all_reduce` raises.

    >>> broadcast(5.0)
    array(5.)
    """
    with _explained():
        return _world().common.broadcast(x, root, out)


def barrier() -> None:
    """Return when every replica has called it."""
    with _explained():
        _world().common.barrier()


def formed() -> bool:
    """Whether the group of these calls exists: from the first call until :func:`leave`."""
    return _world().formed


def leave() -> None:
    """Leave the group; the next call forms another, with all other replicas."""
    _world().close()


@contextmanager
def _explained() -> Iterator[None]:
    """Add to the error of a lost replica or connection why the call is not repeated."""
    try:
        yield
    except UnavailableError as error:
        raise type(error)(
            f"{error}. A call of nb.collective is not repeated: its arrays are perhaps half written, and "
            "other replicas may have completed it. Run the cell again; fit() and loops over a strategy's "
            "dataset repeat the step by themselves"
        ) from None


def _world() -> World:
    world = current().world
    return world if world.task is not None else _alone
