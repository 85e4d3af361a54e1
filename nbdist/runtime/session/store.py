"""What a task keeps between steps: variables, and what else sessions share, in containers, by name.

    store = Store()
    cell = store.cell("ps", "w", spec)      # the same cell for every session
    cell.array[:] = 0; cell.ready = True

A variable lives under (container, name): sessions on one task that use one name share it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from nbdist.errors import AbortedError, DeadlineExceededError, InvalidArgumentError, ResourceExhaustedError
from nbdist.graph.backend import Array, backend, gpu_scope
from nbdist.graph.compile.specs import size_of
from nbdist.graph.op import Spec, show


@dataclass(eq=False)
class Cell:
    """A variable's memory; ``ready`` once it was assigned.

    ``lock`` is there once something changes it with ``use_locking``; then all take it.
    """

    container: str
    name: str
    array: Array
    ready: bool = False
    lock: threading.Lock | None = None
    device: str = "CPU:0"

    def write(self, fill: Callable[[Array], object]) -> None:
        """Have ``fill(array)`` write a new value."""
        with gpu_scope(self.device):
            fill(self.array)


class Store:
    """The containers of one task. ``limit`` is how many bytes variables and programs may take together."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.resets = 0
        """How often containers were emptied; what was opened before does not use the store any more."""
        self.training: tuple[str, ...] = ()
        """What identifies the training that the variables belong to; a chief's session sets it."""
        self.closed = False
        """Whether the task has ended: nothing that is waited for here will come."""
        self.locked = 0
        """How many cells have a lock; programs on a cell that was given one since are made anew."""
        self._cells: dict[tuple[str, str, str], Cell] = {}
        self._shared: dict[tuple[str, str, str], tuple[Hashable, Shared[Any]]] = {}
        self._taken: dict[object, int] = {}
        self._lock = threading.Lock()

    def cell(self, container: str, name: str, spec: Spec, device: str = "CPU:0") -> Cell:
        """Return the memory of a variable, made at the first use.

        Raises InvalidArgumentError if it is there with another shape or dtype.
        """
        key = (device, container, name)
        with self._lock:
            cell = self._cells.get(key)
            if cell is None:
                self._check_room(size_of(spec), f"variable {name!r} {show(spec.shape)} {spec.dtype}")
                shape = tuple(n or 0 for n in spec.shape)
                with gpu_scope(device):
                    memory = backend(device).empty(shape, spec.dtype)
                cell = self._cells[key] = Cell(container, name, memory, device=device)
            found = Spec(tuple(cell.array.shape), np.dtype(cell.array.dtype))
            if found != Spec(spec.shape, spec.dtype):
                raise InvalidArgumentError(
                    f"variable {name!r} in container {container!r} is {found.dtype} {show(found.shape)} here "
                    f"and {spec.dtype} {show(spec.shape)} in this graph: were different graphs built, or "
                    "is this another model? Empty the container with Session.reset, or use container(...)"
                )
            return cell

    def find(self, container: str, name: str, device: str = "CPU:0") -> Cell | None:
        """Return the memory of a variable; None if no graph has used it."""
        with self._lock:
            return self._cells.get((device, container, name))

    def lock(self, cell: Cell) -> None:
        """Have all later users of a cell take its lock."""
        with self._lock:
            if cell.lock is None:
                cell.lock = threading.Lock()
                self.locked += 1

    def shared(
        self, container: str, name: str, kind: Hashable, make: Callable[[], Any], device: str = "CPU:0"
    ) -> Shared[Any]:
        """Return what sessions share under a name, of a ``kind`` (which is printed), made at the first use.

        Raises InvalidArgumentError if something of another kind is there.
        """
        key = (device, container, name)
        with self._lock:
            if key not in self._shared:
                self._shared[key] = kind, Shared(make())
            found, shared = self._shared[key]
        if found != kind:
            raise InvalidArgumentError(
                f"{name!r} in container {container!r} is {found} here and {kind} in this graph: were "
                "different graphs built? Empty the container with Session.reset, or use container(...)"
            )
        return shared

    def close(self) -> None:
        """Wake all waiting threads: the task has ended."""
        self.closed = True
        with self._lock:
            there = list(self._shared.values())
        for _, shared in there:
            shared.ring()

    def take(self, owner: object, nbytes: int, what: str) -> None:
        """Count memory that ``owner`` takes for the buffers of a program."""
        with self._lock:
            self._check_room(nbytes, what)
            self._taken[owner] = self._taken.get(owner, 0) + nbytes

    def require(self, nbytes: int, what: str) -> None:
        """Raise ResourceExhaustedError if ``nbytes`` more would exceed the limit."""
        with self._lock:
            self._check_room(nbytes, what)

    def holds(self, owner: object, nbytes: int) -> None:
        """Count that ``owner`` has so much memory, and no more."""
        with self._lock:
            self._taken[owner] = nbytes

    def give_back(self, owner: object) -> None:
        """Forget what ``owner`` has taken."""
        with self._lock:
            self._taken.pop(owner, None)

    def used(self) -> int:
        """Return the bytes that are taken now."""
        variables = sum(int(cell.array.nbytes) for cell in list(self._cells.values()))
        return variables + sum(list(self._taken.values()))

    def names(self, container: str | None = None, ready: bool | None = None) -> list[str]:
        """Return the names of the variables here."""
        with self._lock:
            return [
                cell.name
                for cell in self._cells.values()
                if container in (None, cell.container) and ready in (None, cell.ready)
            ]

    def reset(self, containers: Collection[str]) -> None:
        """Empty containers, all of them if none is named; sessions that have them open fail."""
        with self._lock:
            self.resets += 1
            self.training = ()
            before = list(self._shared.values())
            self._keep(lambda container: bool(containers) and container not in containers)
        for _, shared in before:
            shared.ring()

    def drop_all(self, prefix: str) -> None:
        """Empty the unused containers whose names begin with ``prefix``."""
        with self._lock:
            self._keep(lambda container: not container.startswith(prefix))

    def _keep(self, which: Callable[[str], bool]) -> None:
        self._cells = {key: cell for key, cell in self._cells.items() if which(key[1])}
        self._shared = {key: shared for key, shared in self._shared.items() if which(key[1])}

    def _check_room(self, nbytes: int, what: str) -> None:
        if self.limit is not None and self.used() + nbytes > self.limit:
            raise ResourceExhaustedError(
                f"{nbytes:,} bytes are needed for {what}, and of this task's limit of {self.limit:,} bytes "
                f"{self.used():,} are taken; put part of the model on other tasks (device scopes, stages=, "
                "split=), or raise the limit (start_cluster(memory=...), %cluster start --memory)"
            )


# Shared resources beside variables, and ops that wait for another session's change.
#
# shared = Shared(Tokens())
# with shared.changing() as tokens:       # then waiting threads look again
#     tokens.put([3])
# waiting.until(shared, lambda tokens: tokens.take(me, now), late=lambda tokens: "why it takes so long")

State = TypeVar("State")
Found = TypeVar("Found")
LOOK_EVERY = 0.5  # seconds after which a waiting thread checks that what it waits for can still happen


class Shared(Generic[State]):
    """A state that several threads use, one at a time."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._bells: list[Callable[[], None]] = []

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Give access to the state, inside a ``with``; then wake all waiting threads."""
        with self._lock:
            yield self._state
        self.ring()

    def look(self, at: Callable[[State], Found]) -> Found:
        """Return what ``at`` finds, without a change of the state."""
        with self._lock:
            return at(self._state)

    def ring(self) -> None:
        """Wake all waiting threads."""
        for ring in list(self._bells):
            ring()

    @contextmanager
    def wakes(self, ring: Callable[[], None]) -> Iterator[None]:
        """Have ``ring`` called, on the thread that changes something, inside a ``with``."""
        self._bells.append(ring)
        try:
            yield
        finally:
            self._bells.remove(ring)


class Waiting:
    """Waits of one thread for shared state.

    ``pause(seconds)`` ends early when ``ring()`` is called; ``check()`` raises if the wait cannot succeed.
    ``patience`` is how many seconds an op may wait, None for no limit. ``fence`` is entered for each attempt,
    which may change the state; entering it raises if the step may no longer change anything.
    """

    def __init__(
        self,
        ring: Callable[[], None],
        pause: Callable[[float], object],
        check: Callable[[], object],
        patience: float | None,
        fence: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._ring, self._pause, self._check, self._patience = ring, pause, check, patience
        self._fence: AbstractContextManager[Any] = nullcontext() if fence is None else fence
        self._on_abort: list[Callable[[BaseException], None]] = []

    def until(
        self,
        shared: Shared[State],
        attempt: Callable[[State], Found | None],
        late: Callable[[State], str],
        *,
        patient: bool = False,
    ) -> Found:
        """Return what ``attempt`` finds, when it is not None; ``patient`` waits have no limit."""
        found = self._attempt(shared, attempt)
        if found is not None:
            return found
        begun, patience = time.monotonic(), None if patient else self._patience
        with shared.wakes(self._ring):
            while True:
                self._check()
                found = self._attempt(shared, attempt)
                if found is not None:
                    return found
                left = LOOK_EVERY
                if patience is not None:
                    left = begun + patience - time.monotonic()
                    if left <= 0:
                        raise DeadlineExceededError(
                            f"nothing arrived within {patience:g} s (the session's operation_timeout): "
                            f"{shared.look(late)}"
                        )
                self._pause(min(left, LOOK_EVERY))

    def _attempt(self, shared: Shared[State], attempt: Callable[[State], Found | None]) -> Found | None:
        with self._fence:
            return shared.look(attempt)

    def on_abort(self, callback: Callable[[BaseException], None]) -> None:
        """Call ``callback(error)`` if the running step is aborted, or was the last one of its thread."""
        self._on_abort.append(callback)

    def begin(self) -> None:
        """Begin a step: the last one was not aborted."""
        self._on_abort.clear()

    def cut_off(self, error: BaseException) -> None:
        """Run the callbacks of the aborted step."""
        callbacks, self._on_abort = self._on_abort, []
        for callback in callbacks:
            callback(error)


class Bell:
    """Wakes waits in this process, for a session without a cluster."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._cancelled = False

    def waiting(self, patience: float | None) -> Waiting:
        """Return the waits of this thread."""
        return Waiting(self._rung.set, self._pause, self._check, patience)

    def cancel(self) -> None:
        """End the waiting; from any thread."""
        self._cancelled = True
        self._rung.set()

    def _pause(self, seconds: float) -> None:
        self._rung.wait(seconds)
        self._rung.clear()

    def _check(self) -> None:
        if self._cancelled:
            raise AbortedError("the session was closed in the middle of a step")
