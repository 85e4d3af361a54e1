"""How far a run is and how fast, from what its replicas write once a second. Pure: clocks are handed in.

What a run's driver hears ten times a second stands here in files, so that this feeds the same sums: a first
word is heard as two (at the start of what it tells of, and now), and one that does not change is heard again
with the time that has passed, so that a rate falls to 0 when nothing goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.lab.record import mapping, number, text, whole
from nbdist.metrics.store import RunStore
from nbdist.runs.progress import PAUSED, Standing, Tally
from nbdist.runs.stragglers import BUSY

SPENT = (*BUSY, "wait")
LONGEST = 1 << 16  # bytes of a progress file
SILENT_SECONDS = 2.5  # without a new word, after which the old one is heard again
NOTHING = RunStore(limit=1, recent=1)  # progress alone tells how far a run is


@dataclass(frozen=True)
class Word:
    """What a replica's progress file says; times in seconds, ``time`` since 1970 on the replica's clock."""

    state: str
    step: int
    total: int | None
    training: int
    spent: Mapping[str, float]
    time: float
    global_step: int = 0
    learning_rate: float | None = None
    """The current rate; None if the replicas have several."""
    rested: float = 0.0
    """Seconds of the pauses that a step has followed."""

    def heard(self, step: int | None = None) -> dict[str, Any]:
        """Return it as replicas send it; with ``step`` 0, as it was when the replica began."""
        return {
            "step": self.step if step is None else step,
            "total": self.total,
            "examples": 0,
            "state": self.state,
            "spent": self.spent if step is None else {},
            "trainings": self.training,
            "rested": self.rested,
            "learning_rate": self.learning_rate,
        }


def word_of(content: bytes) -> Word | None:
    """Return what a progress file says; None for what is none, whatever it is.

    >>> word_of(b'{"version": 1, "state": "running", "step": 3, "total": 9, "time": 1e9}').step
    3
    >>> word_of(b'["rubbish"]')
    """
    try:
        found = mapping(json.loads(content)) if len(content) <= LONGEST else {}
    except (ValueError, RecursionError):
        return None
    state, step, time = text(found.get("state")), whole(found.get("step")), number(found.get("time"))
    if not state or step is None or time is None:
        return None
    spent = mapping(found.get("spent"))
    return Word(
        state=state[:40],
        step=step,
        total=whole(found.get("total")),
        training=whole(found.get("training")) or 0,
        spent={part: max(0.0, number(spent.get(part)) or 0.0) for part in SPENT},
        time=time,
        global_step=whole(found.get("global_step")) or 0,
        learning_rate=number(found.get("learning_rate")),
        rested=max(0.0, number(found.get("rested")) or 0.0),
    )


class Pace:
    """Adds up the words of a run's replicas, by their index."""

    def __init__(self, replicas: int, synchronous: bool) -> None:
        self.words: dict[int, Word] = {}
        """The last of each replica."""
        self._replicas, self._synchronous = replicas, synchronous
        self._tally = self._new()
        self._heard: dict[int, float] = {}
        self._told: set[int] = set()  # replicas of which two words are known, so that a rate is
        self._latest = 0.0  # seconds since 1970, on the replicas' clock

    def hear(self, replica: int, word: Word, now: float) -> None:
        """Take in a replica's new word; ``now`` is the reader's own clock, in seconds."""
        if not 0 <= replica < self._replicas:
            return
        before = self.words.get(replica)
        if before is not None and (word.time < before.time or word.step < before.step):
            # Its clock was put right, or another process goes on in its place: what was measured is void.
            self._tally, self._told, self._latest = self._new(), set(), 0.0
            words, self.words = {**self.words, replica: word}, {}
            for other, last in words.items():
                self.hear(other, last, self._heard.get(other, now))
            self._heard[replica] = now
            return
        took = sum(word.spent.values())
        if before is None and took > 0:
            self._tally.hear(replica, word.heard(step=0), word.time - took)
        if before is not None or took > 0:
            self._told.add(replica)
        self._tally.hear(replica, word.heard(), word.time)
        self.words[replica], self._heard[replica] = word, now
        self._latest = max(self._latest, word.time)

    def _new(self) -> Tally:
        return Tally(self._replicas, self._synchronous)

    def pass_time(self, now: float) -> None:
        """Let replicas that say nothing new be as far as they were, at this later time."""
        for replica, word in self.words.items():
            silent = now - self._heard[replica]
            if silent > SILENT_SECONDS:
                self._tally.hear(replica, word.heard(), word.time + silent)
                self._latest = max(self._latest, word.time + silent)

    def standing(self) -> Standing | None:
        """Return how far the run is; None before any replica has said so."""
        return self._tally.standing(0.0, NOTHING) if self.words else None

    @property
    def knows_rate(self) -> bool:
        """Whether rates are known, and not only 0 because nothing was measured yet."""
        return bool(self._told)

    @property
    def paused(self) -> bool:
        """Whether all that have not ended rest."""
        states = {word.state for word in self.words.values()} - {"finished"}
        return states == {PAUSED}

    @property
    def paused_seconds(self) -> float:
        """Seconds of all pauses so far, also of the current one."""
        return self._tally.paused(self._latest) if self.words else 0.0

    @property
    def done(self) -> bool:
        """Whether every replica has said that its body is over."""
        return len(self.words) == self._replicas and {word.state for word in self.words.values()} == {
            "finished"
        }

    def by_replica(self) -> dict[int, dict[str, Any]]:
        """Return the state, step, steps per second and slowness of each replica that has said something."""
        standing = self.standing()
        if standing is None:
            return {}
        return {
            replica: {
                "state": word.state,
                "step": word.step,
                "steps_per_second": rounded(max(0.0, standing.replicas[replica].steps_per_second))
                if replica in self._told and word.state != PAUSED
                else None,
                "straggler": standing.replicas[replica].slowness,
            }
            for replica, word in sorted(self.words.items())
        }


def rounded(value: float, digits: int = 3) -> float:
    """Return a number with so many significant digits: what does not matter is no news.

    >>> rounded(1234.56), rounded(0.012345)
    (1230.0, 0.0123)
    """
    return float(f"{value:.{digits}g}")
