"""The interface of samplers, the history that they answer from, and the seeds of trials. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from nbdist.sweep.events import EndState
from nbdist.sweep.parameters import Value
from nbdist.sweep.space import Parameters


class Ask(NamedTuple):
    """A trial that was asked for; ``sampled`` is False if the user chose its parameters."""

    number: int
    parameters: Mapping[str, Value]
    sampled: bool


class Tell(NamedTuple):
    """The end of a trial: ``value`` at ``step`` is its last report, for a finished trial its result."""

    number: int
    state: EndState
    value: float | None
    step: int | None


History: TypeAlias = Sequence[Ask | Tell]
"""The asks and tells so far, in order; it only grows."""


class Sampler(ABC):
    """Chooses the parameters of trials; the same for the same space, seed, number and history.

    It may remember what it made of the history so far: that makes it faster, not different.
    """

    @abstractmethod
    def ask(self, history: History, number: int) -> Parameters | None:
        """Return the parameters of trial ``number``, or None if all there is was asked for (driver)."""

    @property
    def size(self) -> int | None:
        """How many trials it has in all, or None for as many as one likes."""
        return None


# Seeds of trials: functions of the sweep's seed and the trial's number only. Pure.


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of a trial, 0 to 2**32 - 1; two trials of a sweep never share one.

    >>> trial_seed(7, 0), trial_seed(7, 1)
    (49450524, 486743173)
    """
    # The sweep's seed says where to start; the mixer (MurmurHash3's last step) maps no two numbers to one.
    mixed = (int.from_bytes(blake2b(str(seed).encode(), digest_size=4).digest()) + number) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return mixed ^ mixed >> 16


def fraction(seed: int, number: int, name: str) -> float:
    """Return a random number, 0 up to (not including) 1, for one parameter of one trial.

    Each parameter has its own, so that an edit of one leaves the others' draws as they were.

    >>> round(fraction(7, 0, "lr"), 6)
    0.783341
    """
    digest = blake2b(f"{seed}/{number}/{name}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53
