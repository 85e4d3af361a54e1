"""`PageControls`: passes the commands of a run's page to callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.text import clip

KINDS = ("pause", "resume", "stop", "checkpoint", "set")

Callback = Callable[[str, float | None], object]


class PageControls:
    """Passes commands of the page to callbacks and returns their errors for the page.

    >>> controls = PageControls()
    >>> controls.on(lambda kind, rate: print(kind, rate), ["stop", "set"])
    >>> controls.act("set", 0.1)
    set 0.1
    >>> controls.act("set", -1)["text"]
    'set: a learning rate is a number of at least 0, not -1'
    """

    def __init__(self) -> None:
        self.callbacks: list[tuple[Callback, Sequence[str]]] = []
        self.problems = 0

    def on(self, callback: Callback, kinds: Sequence[str] = KINDS) -> None:
        """Register ``callback(kind, learning_rate)`` for commands of these kinds."""
        self.callbacks.append((callback, kinds))

    @property
    def kinds(self) -> list[str]:
        """The kinds of commands that have a callback."""
        return [kind for kind in KINDS if any(kind in kinds for _, kinds in self.callbacks)]

    def act(self, kind: str, value: object = None) -> dict[str, Any] | None:
        """Call the callbacks of a command; return an error for the page to show, or None."""
        return self.attempt(kind, lambda: self._act(kind, rate_of(value) if kind == "set" else None))

    def _act(self, kind: str, rate: float | None) -> None:
        for callback, kinds in self.callbacks:
            if kind in kinds:
                callback(kind, rate)

    def attempt(self, kind: str, do: Callable[[], object]) -> dict[str, Any] | None:
        """Call ``do``; return its exception as an error for the page: no cell would show it."""
        try:
            do()
        except Exception as error:
            self.problems += 1
            what = str(error) if isinstance(error, NbdistError) else f"{type(error).__name__}: {error}"
            return {"kind": kind, "number": self.problems, "text": clip(f"{kind}: {what}", 300)}
        return None


def rate_of(value: object) -> float:
    """Return the learning rate that the page sent; raise InvalidArgumentError if it is invalid.

    >>> rate_of(1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InvalidArgumentError(f"a learning rate is a number of at least 0, not {value!r}")
    return float(value)
