"""Locked calls on variables: readers see a whole update or none, and no update is lost.

A kernel call holds the locks of all variables that it reads or changes. All threads take locks in one order,
so they cannot deadlock. An external op, such as a send, may wait while it uses a value: it gets a copy, and
holds no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeAlias

from nbdist.graph.backend import Array
from nbdist.graph.compile.values import Values
from nbdist.graph.tensor import Tensor, Variable

Lock: TypeAlias = AbstractContextManager[Any]
Locks: TypeAlias = Mapping[Variable, Lock]
Kernel: TypeAlias = Callable[..., Any]


def guarded(kernel: Kernel, nodes: Sequence[Tensor], values: Values, locks: Locks) -> Kernel:
    """Return a kernel for ``nodes`` that takes the locks of the variables which they read or change."""
    if not locks:
        return kernel
    (node, *_) = nodes
    if node.op is not None and node.op.external:
        return _with_copies(kernel, [_lock_of(i, values, locks) for i in node.inputs])
    touched = [i for one in nodes for i in values.reads(one)]
    touched += [values.direct[one] for one in nodes if one in values.direct]
    return _under(kernel, [_lock_of(i, values, locks) for i in touched])


def fenced(kernel: Kernel, nodes: Sequence[Tensor], values: Values, fence: Lock | None) -> Kernel:
    """Return a kernel that enters ``fence`` if ``nodes`` change a variable; entering it may raise.

    The fence is inside the locks of the variables, so a kernel waits for no lock between fence and change. An
    op that waits for other steps enters the fence itself, for each attempt: the fence is not held meanwhile.
    """
    changes = any(
        (one.op is not None and one.op.writes and not one.op.waits) or one in values.direct for one in nodes
    )
    return _under(kernel, [fence]) if changes and fence is not None else kernel


def _lock_of(value: Tensor, values: Values, locks: Locks) -> Lock | None:
    root = values.roots.get(value, value)
    return locks.get(root) if isinstance(root, Variable) else None


def _under(kernel: Kernel, wanted: Iterable[Lock | None]) -> Kernel:
    # In one order everywhere: two threads that hold each other's second lock would wait forever.
    held = sorted({id(lock): lock for lock in wanted if lock is not None}.values(), key=id)
    if not held:
        return kernel
    if len(held) == 1:
        (lock,) = held

        def under_one(*arrays: Array) -> Any:
            with lock:
                return kernel(*arrays)

        return under_one

    def under_all(*arrays: Array) -> Any:
        with ExitStack() as stack:
            for lock in held:
                stack.enter_context(lock)
            return kernel(*arrays)

    return under_all


def _with_copies(kernel: Kernel, locks: Sequence[Lock | None]) -> Kernel:
    if not any(lock is not None for lock in locks):
        return kernel

    def with_copies(*arrays: Array) -> Any:
        return kernel(*(_copied(a, lock) for a, lock in zip(arrays, locks, strict=True)))

    return with_copies


def _copied(array: Array, lock: Lock | None) -> Array:
    if lock is None:
        return array
    with lock:
        return array.copy()
