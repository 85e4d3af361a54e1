"""What has state: `Stateful`, and the `Components` of a training, each restored once it is there.

    components = Components()
    components.register("history", history)
    components.load_state_dict(saved)       # restores the history; the rest waits for its components
    components.register("scale", scale)     # is restored at once
    components.state_dict()                 # {"history": ..., "scale": ...}, and what still waits

A body that continues runs from its first line, and makes the parts of its training one after the other. So a
part is restored when it is registered, and one that a run has not reached yet stays as it was saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Stateful(Protocol):
    """Something whose state is saved between two steps, and restored in another process."""

    def state_dict(self) -> Any:
        """Return the state for :meth:`load_state_dict`: plain values, which later changes do not reach.

        Parts of a framework also have its tensors.
        """

    def load_state_dict(self, state: Any, /) -> None:
        """Continue from what :meth:`state_dict` returned."""


class Components:
    """Parts of a training by name; it is `Stateful` itself."""

    def __init__(self) -> None:
        self._parts: dict[str, Stateful] = {}
        self._waiting: dict[str, Any] = {}
        self.restored = False
        """Whether a state was given."""

    def register(self, name: str, part: Stateful) -> None:
        """Add a part, or put it in the place of another one; it is restored if its state waits."""
        self._parts[name] = part
        if name in self._waiting:
            part.load_state_dict(self._waiting.pop(name))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parts, and those that wait for theirs."""
        return {**self._waiting, **{name: part.state_dict() for name, part in self._parts.items()}}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the parts that are there; the states of others wait until these are registered."""
        self.restored = True
        for name, one in (state or {}).items():
            if name in self._parts:
                self._parts[name].load_state_dict(one)
            else:
                self._waiting[name] = one
