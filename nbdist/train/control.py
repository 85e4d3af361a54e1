"""What others ask of a training: to stop, to pause, another learning rate, a checkpoint.

    control.pause()                     # on the server's thread
    if control.words != heard:          # in the training's thread, once a step: nothing else costs it time
        control.rest()
        control.wait(heard)             # until it goes on, is stopped, or is asked for more

A word is for all replicas of a process; each takes it in at its own next step (see boundary.py). A pause has
a number: replicas of other processes hear of it from the client, and from the first replica that it rests.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from nbdist.errors import AbortedError


@dataclass
class Control:
    """What others ask of a training. Set on the server's thread, looked at once a step."""

    stop_requested: bool = False
    aborted: str | None = None
    ended_training: int = 0
    """The number of the last training that the chief's callbacks have ended for all replicas."""
    words: int = 0
    """How often something was asked for that is heeded between steps; it changes last."""
    paused: bool = False
    """Whether a pause is asked for."""
    resting: bool = False
    """Whether a replica that others wait for rests: nobody may be far behind."""
    pause_number: int = 0
    rate: float = 0.0
    """The learning rate that was asked for last, if ``rates`` is above 0."""
    rates: int = 0
    """How often a learning rate was asked for."""
    checkpoint: int = 0
    """The number of the checkpoint that was asked for last."""
    waits: bool = False
    """Whether a replica is seen to wait for others while these rest: so it makes no step either."""
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False, compare=False)
    _over: int = 0
    _rested: float = 0.0
    _since: float = 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; who waits is woken by a stop and by an abort, whoever says so."""
        super().__setattr__(name, value)
        if name in ("stop_requested", "aborted") and hasattr(self, "_changed"):
            with self._changed:
                self._changed.notify_all()

    def check(self) -> None:
        """Raise AbortedError if the run was aborted; called once in a while by who waits for others."""
        if self.aborted is not None:
            raise AbortedError(self.aborted)
        if self.resting:
            self.waits = True

    def pause(self, number: int | None = None) -> None:
        """Have replicas rest at their next steps."""
        with self._changed:
            number = self._over + 1 if number is None else number
            if not self.paused and number > self._over:
                self.paused, self.pause_number = True, number
                self._say()

    def rest(self, number: int | None = None) -> None:
        """Note that a replica rests, here or elsewhere, in the pause of a number, unless that is over."""
        with self._changed:
            self.pause(number)
            if self.paused and not self.resting:
                self._since, self.resting, self.waits = time.perf_counter(), True, False
                self._say()

    def resume(self) -> None:
        """Have replicas go on."""
        with self._changed:
            if self.resting:
                self._rested += time.perf_counter() - self._since
            if self.paused:
                self.paused = self.resting = self.waits = False
                self._over = self.pause_number
                self._say()

    def set_rate(self, rate: float) -> None:
        """Ask for another learning rate."""
        with self._changed:
            self.rate, self.rates = rate, self.rates + 1
            self._say()

    def ask_checkpoint(self, number: int) -> None:
        """Ask for a checkpoint; the answer bears the number."""
        with self._changed:
            self.checkpoint = number
            self._say()

    @property
    def rests(self) -> bool:
        """Whether a replica is to make no step now: it is paused, and nothing ends the pause."""
        return self.paused and not self.stop_requested and self.aborted is None

    def wait(self, heard: int) -> None:
        """Wait while paused, until something is asked for that is not among the ``heard`` words."""
        with self._changed:
            self._changed.wait_for(lambda: self.words != heard or not self.rests)

    def rested(self) -> float:
        """Return for how many seconds replicas have rested in all pauses so far."""
        with self._changed:
            return self._rested + (time.perf_counter() - self._since if self.resting else 0.0)

    def _say(self) -> None:
        self.words += 1
        self._changed.notify_all()
