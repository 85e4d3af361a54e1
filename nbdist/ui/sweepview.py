"""The grid of a sweep: a widget that follows the sweep's ledger, and passes on what the page wishes.

    view = SweepView(sweep)
    display(view)
    ...                       # ten times a second:
    view.tick(time.monotonic())
    view.finish()             # once it is over

What travels is in sweepdata.py (to the page) and sweepwishes.py (from it, each with an answer).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nbdist.ui.paced import PacedView
from nbdist.ui.shorten import clip
from nbdist.ui.sweepdata import SweepFeed
from nbdist.ui.sweepwishes import WISHES, SweepHandle, answer


class SweepView(PacedView):
    """Trials, curves, engines and controls of one sweep.

    Any thread may tick, and the page's words may come in any: one at a time has it, who has the sweep's lock.
    ``clock`` tells the time in seconds since 1970, as the sweep's events do.
    """

    def __init__(self, sweep: SweepHandle, clock: Callable[[], float] = time.time) -> None:
        self.sweep = sweep
        self.clock = clock
        self.feed = SweepFeed(sweep)
        self.goes_on: Callable[[], object] = lambda: None
        """Called when a sweep that was over goes on, since the page wished so: somebody has to tick again."""
        super().__init__("sweep")

    def tick(self, now: float) -> None:
        """Send at most one frame, if something is new and the page keeps up; ``now`` in seconds."""
        with self.sweep.lock:
            super().tick(now)

    def tick_unheard(self, now: float) -> None:
        """Send a frame now and then although what the page says does not come through."""
        with self.sweep.lock:
            known = bool(self.views) and self.placed
            if self.pace.may_send_unheard(now, known):
                self.now = now
                self.snapshot_wanted = self.snapshot_wanted or not known  # it may have missed the one before
                self._send_frame(now)

    def finish(self) -> None:
        """The sweep is over; no further tick is needed, unless it goes on."""
        with self.sweep.lock:
            self.send_the_end()

    def _on_page_message(self, widget: object, message: Mapping[str, Any], buffers: object) -> None:
        with self.sweep.lock:
            super()._on_page_message(widget, message, buffers)

    def _in_words(self) -> str:
        name, id_ = clip(self.sweep.name), clip(self.sweep.id)
        named = f"{name} ({id_})" if id_ not in ("", name) else name
        return f"Grid of the sweep {named}; to reconnect, run nb.attach({id_!r})"

    def _said(self, kind: str, message: Mapping[str, Any]) -> None:
        if kind in WISHES:
            self.send(answer(self.sweep, message))
            if self.finished and not self.sweep.over:
                self.finished = False
                self.goes_on()

    def _send_frame(self, now: float) -> None:
        with self.sweep.lock:
            wall = self.clock()
            content, points = self.feed.everything(wall) if self.snapshot_wanted else self.feed.news(wall)
        if not content:
            return
        self.snapshot_wanted = False
        sequence = self.pace.sent(now)
        self.send({"kind": "sweep", "sequence": sequence, **content}, [points])
