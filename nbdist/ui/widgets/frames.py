"""The binary frames for the page, and their flow control.

A frame is a sequence number and records of twelve bytes each, little-endian:

sequence u32, then [replica u16, series u16, step u32, value f32]*
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

RECORD = np.dtype([("replica", "<u2"), ("series", "<u2"), ("step", "<u4"), ("value", "<f4")])
MEAN = 0xFFFF  # in place of a replica: the mean over all replicas
CLOCK = 0xFFFF  # in place of a series: the value is the time in seconds since the run began
EPOCHS = 0xFFFE  # in place of a series: the value is the number of the epoch that begins after the step
TREND = 0x8000  # added to a series: the record holds a mean of neighbouring points

Records = NDArray[np.void]


def records(replica: ArrayLike, series: ArrayLike, steps: ArrayLike, values: ArrayLike) -> Records:
    """Return points as records; ``replica`` and ``series`` are scalars or one value per point."""
    steps, values = np.asarray(steps), np.asarray(values, dtype=np.float64)
    made = np.empty(len(steps), dtype=RECORD)
    made["replica"], made["series"], made["step"] = replica, series, steps
    with np.errstate(over="ignore", invalid="ignore"):
        made["value"] = values  # values beyond single precision become inf
    return made


def frame(sequence: int, parts: list[Records]) -> bytes:
    """Return one frame's bytes.

    >>> frame(7, [records(0, 1, [10], [0.5])]).hex(" ", 4)
    '07000000 00000100 0a000000 0000003f'
    """
    return b"".join([np.uint32(sequence).astype("<u4").tobytes(), *(part.tobytes() for part in parts)])


# Flow control: decides when a frame may be sent; the caller passes the time. The page acknowledges the frames
# that it has drawn, so a slow page gets fewer frames.
INTERVAL = 0.1  # seconds between frames, well below the message rate limit of the Jupyter server
UNACKNOWLEDGED = 1.0  # seconds between frames while a busy kernel cannot receive acknowledgements
NO_PAGE = 5.0  # seconds between snapshots while no page has sent a message yet
SLOW = 0.5  # seconds until an acknowledgement, above which only one frame may be in flight


@dataclass
class FlowControl:
    """Allows at most ten frames a second, at most two in flight, and none while no view is visible.

    >>> flow = FlowControl()
    >>> flow.may_send(0.0)          # no view is visible yet
    False
    >>> flow.set_visible("tab", True)
    >>> flow.may_send(0.0), flow.sent(0.0), flow.may_send(0.04), flow.may_send(0.1)
    (True, 1, False, True)
    """

    sequence: int = 0
    in_flight: dict[int, float] = field(default_factory=dict)  # sequence number -> time of sending
    round_trip: float = 0.0
    due: float = float("-inf")
    last: float = float("-inf")
    """When the last frame was sent."""
    visible_views: set[str] = field(default_factory=set)

    def may_send(self, now: float) -> bool:
        """Whether a frame may be sent now (seconds on any steady clock)."""
        return now >= self.due and self.has_room(now)

    def has_room(self, now: float) -> bool:
        """Whether a view is visible and the number of frames in flight permits another one."""
        allowed = 1 if self.latency(now) > SLOW else 2
        return bool(self.visible_views) and len(self.in_flight) < allowed

    def may_send_unacknowledged(self, now: float, known: bool) -> bool:
        """Whether a frame may be sent while a running cell keeps the kernel from receiving acknowledgements.

        ``known`` is whether a page has reported its visibility; while its views are hidden it gets no frames.
        """
        if known:
            return bool(self.visible_views) and now - self.last >= UNACKNOWLEDGED
        return now - self.last >= NO_PAGE

    def sent(self, now: float) -> int:
        """Count one frame as sent and return its sequence number."""
        self.sequence, self.last = self.sequence + 1, now
        self.in_flight[self.sequence] = now
        # Up to half an interval of delay is made up for, so that uneven ticks still give ten frames a second.
        self.due = max(self.due, now - INTERVAL / 2) + INTERVAL
        return self.sequence

    def acknowledged(self, sequence: int, now: float) -> None:
        """Record that the page has drawn a frame; it and earlier ones, even lost, are no longer in flight."""
        if sequence in self.in_flight:
            self.round_trip = now - self.in_flight[sequence]
        self.in_flight = {s: t for s, t in self.in_flight.items() if s > sequence}

    def reset(self) -> None:
        """Forget the frames in flight: the page has requested a snapshot."""
        self.in_flight.clear()

    def set_visible(self, view: str, visible: bool) -> None:
        """Record whether a view is visible on the screen."""
        (self.visible_views.add if visible else self.visible_views.discard)(view)

    def latency(self, now: float) -> float:
        """The time in seconds until an acknowledgement; a frame in flight counts with its age."""
        waiting = [now - sent for sent in self.in_flight.values()]
        return max([self.round_trip, *waiting])
