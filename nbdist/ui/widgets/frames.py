"""The bytes that go to the page: ``sequence`` and then records of twelve bytes, little-endian.

sequence u32, then [replica u16, series u16, step u32, value f32]*
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

RECORD = np.dtype([("replica", "<u2"), ("series", "<u2"), ("step", "<u4"), ("value", "<f4")])
MEAN = 0xFFFF  # stands where a replica does: the aggregate of all of them
CLOCK = 0xFFFF  # stands where a series does: the value is the seconds since the run began
TREND = 0x8000  # added to a series: not its points, but the means of neighbouring points

Records = NDArray[np.void]


def records(replica: ArrayLike, series: ArrayLike, steps: ArrayLike, values: ArrayLike) -> Records:
    """Return the records of points; replica and series may be one for all."""
    steps, values = np.asarray(steps), np.asarray(values, dtype=np.float64)
    made = np.empty(len(steps), dtype=RECORD)
    made["replica"], made["series"], made["step"] = replica, series, steps
    with np.errstate(over="ignore", invalid="ignore"):
        made["value"] = values  # beyond single precision is inf, and drawn as such
    return made


def frame(sequence: int, parts: list[Records]) -> bytes:
    """Return one frame's bytes.

    >>> frame(7, [records(0, 1, [10], [0.5])]).hex(" ", 4)
    '07000000 00000100 0a000000 0000003f'
    """
    return b"".join([np.uint32(sequence).astype("<u4").tobytes(), *(part.tobytes() for part in parts)])


# When a frame may go to the page: a pure state machine that is given the time. A page acknowledges the frames
# that it has drawn; a page that is slow gets fewer of them.
INTERVAL = 0.1  # seconds between frames: ten a second, and the Jupyter server's own limit stays far away
UNHEARD = 1.0  # seconds between frames while the kernel cannot hear the page
UNSEEN = 5.0  # and from one picture to the next while it has not even heard that there is a page
SLOW = 0.5  # seconds for an acknowledgement above which only one frame may be on its way


@dataclass
class Pace:
    """At most ten frames a second, at most two on their way, none while nobody looks.

    >>> pace = Pace()
    >>> pace.may_send(0.0)          # no page has asked for anything yet
    False
    >>> pace.looked_at("tab", True)
    >>> pace.may_send(0.0), pace.sent(0.0), pace.may_send(0.04), pace.may_send(0.1)
    (True, 1, False, True)
    """

    sequence: int = 0
    on_their_way: dict[int, float] = field(default_factory=dict)  # sequence -> when it was sent
    round_trip: float = 0.0
    due: float = float("-inf")
    last: float = float("-inf")
    """When the last frame was sent."""
    watching: set[str] = field(default_factory=set)  # views that are on a screen now

    def may_send(self, now: float) -> bool:
        """Whether a frame may be sent now (seconds on any steady clock)."""
        return now >= self.due and self.has_room(now)

    def has_room(self, now: float) -> bool:
        """Whether somebody looks and the page keeps up, however recent the last frame."""
        allowed = 1 if self.latency(now) > SLOW else 2
        return bool(self.watching) and len(self.on_their_way) < allowed

    def may_send_unheard(self, now: float, known: bool) -> bool:
        """Whether a frame may be sent while nothing of what the page says comes through, for a cell computes.

        ``known`` is whether a page was heard of before that; one that was hidden then gets nothing.
        """
        return now - self.last >= (UNHEARD if known else UNSEEN) and (bool(self.watching) or not known)

    def sent(self, now: float) -> int:
        """Count one frame as sent; returns its sequence number."""
        self.sequence, self.last = self.sequence + 1, now
        self.on_their_way[self.sequence] = now
        # A tick that came late may be followed by one that is a little early, so ticks need not be even.
        self.due = max(self.due, now - INTERVAL / 2) + INTERVAL
        return self.sequence

    def acknowledged(self, sequence: int, now: float) -> None:
        """The page has drawn this frame; earlier ones are settled too, lost or not."""
        if sequence in self.on_their_way:
            self.round_trip = now - self.on_their_way[sequence]
        self.on_their_way = {s: t for s, t in self.on_their_way.items() if s > sequence}

    def start_over(self) -> None:
        """Nothing is on its way any more: the page asked for everything anew."""
        self.on_their_way.clear()

    def looked_at(self, view: str, visible: bool) -> None:
        """A view of the page came onto the screen, or left it."""
        (self.watching.add if visible else self.watching.discard)(view)

    def latency(self, now: float) -> float:
        """Seconds that an acknowledgement takes, counting what is still waited for."""
        waiting = [now - sent for sent in self.on_their_way.values()]
        return max([self.round_trip, *waiting])
