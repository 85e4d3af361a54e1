"""What the widgets that move have in common: a page that says what it has, and frames it can keep up with.

From the page come ``ready``, ``visible`` and ``snapshot`` with what it has, ``ack`` for a frame that it has
drawn, ``gone``, and whatever else a widget knows. To the page go frames with a number: a snapshot, then what
is new. Nothing of it is widget state, so nothing of it is saved with a notebook.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets
from numpy.typing import ArrayLike, NDArray

from nbdist.errors import NotFoundError

LOADED_AFTER = 3.0  # seconds in which a page has loaded the widget, or never will
STATIC = Path(__file__).parent.parent / "static"


@cache
def bundled(name: str) -> str:
    """Return a file of the built front end; NotFoundError says how to build it."""
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(
            f"no {STATIC / name}; build it with `npm ci && npm run build` in widget/"
        ) from None


class PacedView(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget has no types
    """A widget that sends frames, calmly. All methods belong to the kernel's main thread.

    A subclass says what is in a frame (`_send_frame`), what else the page may say (`_said`), and what stands
    for it in words (`_in_words`).
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)

    def __init__(self, bundle: str) -> None:
        self.pace = Pace()
        self.now = 0.0
        self.snapshot_wanted = True
        self.finished = False
        self.views: set[str] = set()  # in pages, on a screen or not
        self.placed = False
        """Whether a page has said if it is seen: it is ready before it knows that."""
        self.closes_unseen = False
        super().__init__(_esm=bundled(f"{bundle}.js"), _css=bundled(f"{bundle}.css"))
        self.on_msg(self._on_page_message)

    @abstractmethod
    def _send_frame(self, now: float) -> None:
        """Send everything if ``snapshot_wanted``, else what is new; nothing if there is nothing new."""

    @abstractmethod
    def _said(self, kind: str, message: Mapping[str, Any]) -> None:
        """The page said something that is none of the above."""

    @abstractmethod
    def _in_words(self) -> str:
        """Return what stands for the widget where none can be shown, or not any more."""

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return what is displayed, with words for those who cannot show a widget, or not any more."""
        found = super()._repr_mimebundle_(**kwargs)
        data = found[0] if isinstance(found, tuple) else found
        if data is not None:
            data["text/plain"] = self._in_words()
        return found

    def tick(self, now: float) -> None:
        """Send at most one frame, if something is new and the page keeps up; ``now`` in seconds."""
        self.now = now
        if self.pace.may_send(now):
            self._send_frame(now)

    def send_the_end(self) -> None:
        """No further tick is needed: the last picture is complete, whatever was lost before."""
        self.finished = self.snapshot_wanted = True
        self._send_last()

    def close(self) -> None:
        """Take the widget off the page, and its layout model too, which would stay in a saved notebook."""
        layout = self.layout
        super().close()
        if layout is not None:
            layout.close()

    def close_when_left(self) -> None:
        """Close when the last page that holds the widget gives it up; it waits for the first one."""
        self.closes_unseen = True

    def close_unseen(self) -> None:
        """Close as soon as no page holds the widget: one that was loaded in mid-run has no other output."""
        self.close_when_left()
        if self.views:
            return
        try:
            # A page that is still loading the widget stumbles over one that is gone.
            asyncio.get_running_loop().call_later(LOADED_AFTER, self._close_if_unseen)
        except RuntimeError:  # no loop, no page
            self.close()

    def _on_page_message(self, _: object, message: Mapping[str, Any], __: object) -> None:
        kind, view = str(message.get("kind")), str(message.get("view"))
        if kind == "gone":
            self.pace.looked_at(view, False)
            self.views.discard(view)
            if self.closes_unseen:
                self._close_if_unseen()
                return
        elif kind == "ack":
            self.pace.acknowledged(int(message["sequence"]), self.now)
        elif kind in ("ready", "visible", "snapshot"):
            self.views.add(view)
            self.placed = self.placed or kind != "ready" or bool(message["visible"])
            self.pace.looked_at(view, bool(message["visible"]))
            self._catch_up(int(message["sequence"]))
        else:
            self._said(kind, message)
        if self.finished:  # nobody ticks any more
            self._send_last()

    def _catch_up(self, has: int) -> None:
        """The page has drawn everything up to a frame; if that is not the last one, start over."""
        if has != self.pace.sequence or has == 0:
            self.pace.start_over()
            self.snapshot_wanted = True
        else:
            self.pace.acknowledged(has, self.now)

    def _close_if_unseen(self) -> None:
        if not self.views:
            self.close()

    def _send_last(self) -> None:
        if self.snapshot_wanted and self.pace.has_room(self.now):
            self._send_frame(self.now)


# When a frame may go to the page: a pure state machine that is told the time.

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


#     The bytes that go to the page: ``sequence`` and then records of twelve bytes, little-endian.
#
# sequence u32, then [replica u16, series u16, step u32, value f32]*

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
