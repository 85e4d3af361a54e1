"""Keeps what takes long to make of a run's or a sweep's logs, for pages that ask again and again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHARE = 0.05  # of a core that one of them may take while its logs grow
Bundle = dict[str, Any]


class Bundles:
    """The last few that were made, by name; may be used from any thread.

    What has not changed is not made again. What changes all the time is made the more seldom the longer it
    takes, unless it has come to another state.

    >>> bundles = Bundles()
    >>> bundles.get("r1", mark=1, state="running", make=lambda: {"step": 1})
    {'step': 1}
    >>> bundles.get("r1", mark=1, state="running", make=lambda: {"step": 2})
    {'step': 1}
    >>> bundles.get("r1", mark=2, state="finished", make=lambda: {"step": 3})
    {'step': 3}
    """

    def __init__(self, most: int = 4, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, mark: object, state: object, make: Callable[[], Bundle]) -> Bundle:
        """Return what was made of ``name`` at this mark, or not long ago in this state; or make it."""
        with self._lock:
            known = self._kept.get(name)
            if known is not None and known.serves(mark, state, self._clock()):
                self._kept.move_to_end(name)
                return known.made
        began = self._clock()
        made = make()
        ended = self._clock()
        with self._lock:
            self._kept[name] = _Kept(mark, state, made, ended + (ended - began) / SHARE)
            self._kept.move_to_end(name)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


@dataclass(frozen=True)
class _Kept:
    mark: object
    state: object
    made: Bundle
    due: float

    def serves(self, mark: object, state: object, now: float) -> bool:
        return self.state == state and (self.mark == mark or now < self.due)
