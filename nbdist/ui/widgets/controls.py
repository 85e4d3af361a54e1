"""What people want of a run, as the page asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.ui.formatting import clip

KINDS = ("pause", "resume", "stop", "checkpoint", "set")

Callback = Callable[[str, float | None], object]


class Controls:
    """Who acts on what is wanted, and what did not work.

    >>> controls = Controls()
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
        """Call back with what is wanted, if it is of these kinds: ``callback(kind, learning_rate)``."""
        self.callbacks.append((callback, kinds))

    @property
    def kinds(self) -> list[str]:
        """What somebody acts on."""
        return [kind for kind in KINDS if any(kind in kinds for _, kinds in self.callbacks)]

    def act(self, kind: str, value: object = None) -> dict[str, Any] | None:
        """Have it done; returns what went wrong, for the page to show."""
        return self.trying(kind, lambda: self._act(kind, rate_of(value) if kind == "set" else None))

    def _act(self, kind: str, rate: float | None) -> None:
        for callback, kinds in self.callbacks:
            if kind in kinds:
                callback(kind, rate)

    def trying(self, kind: str, do: Callable[[], object]) -> dict[str, Any] | None:
        """Do what the page asked for; returns what went wrong: nobody else would see it."""
        try:
            do()
        except Exception as error:
            self.problems += 1
            what = str(error) if isinstance(error, NbdistError) else f"{type(error).__name__}: {error}"
            return {"kind": kind, "number": self.problems, "text": clip(f"{kind}: {what}", 300)}
        return None


def rate_of(value: object) -> float:
    """Return what the page wants as the learning rate; InvalidArgumentError if it is none.

    >>> rate_of(1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InvalidArgumentError(f"a learning rate is a number of at least 0, not {value!r}")
    return float(value)
