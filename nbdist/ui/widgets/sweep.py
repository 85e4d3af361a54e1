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
from typing import Any, Literal, Protocol

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.ui.formatting import clip
from nbdist.ui.widgets.base import PacedView
from nbdist.ui.widgets.sweep_feed import SweepFeed, SweepSeen


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


#     What a page wishes of a sweep, done and answered.
#
#     {"kind": "clone", "number": 7, "changes": {"lr": 0.1}, "asked": 3}
#     {"kind": "answer", "asked": 3, "ok": True, "message": "trial 25 is a clone of trial 7", "number": 25}
#
# The page gives each wish a number of its own, ``asked``. A wish that is refused has ``ok`` False and says
# why.

LONGEST_OUTPUT = 200_000  # characters of a trial's output that a page is sent
LONGEST_MESSAGE = 600


class SweepHandle(SweepSeen, Protocol):
    """A sweep of which something may be wished, from any thread; what is refused raises an `NbdistError`."""

    def pause(self) -> object:
        """Start no more trials."""

    def resume(self) -> object:
        """Start trials again."""

    def close(self) -> object:
        """End the sweep."""

    def add(self, trials: int, /) -> object:
        """Want so many trials more."""

    def edit(self, space: str, /, *, outside: Literal["finish", "stop"] = ...) -> object:
        """Ask for trials from another space from here on."""

    def stop(self, number: int, /) -> object:
        """Stop a trial."""

    def retry(self, number: int, /) -> object:
        """Start a trial again."""

    def clone(self, number: int, /, **changes: Any) -> int:
        """Ask for a trial with some parameters changed; returns its number."""

    def promote(
        self, number: int, /, *, epochs: int | None = ..., per_trial: int | None = ..., **changes: Any
    ) -> object:
        """Let a trial go on from its checkpoint."""

    def output(self, number: int, /) -> str:
        """Return what a trial has printed."""

    def as_code(self, number: int, /) -> str:
        """Return a cell with a trial's parameters."""


Answer = dict[str, Any]
"""A message, and what else the page asked for."""


def answer(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    """Do what the page wishes, and return what it is told: nobody else would see what goes wrong."""
    told: Answer = {"kind": "answer", "asked": message.get("asked")}
    try:
        return {**told, "ok": True, **WISHES[str(message.get("kind"))](sweep, message)}
    except NbdistError as error:
        said = str(error)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return {**told, "ok": False, "message": clip(said, LONGEST_MESSAGE)}


def _pause(sweep: SweepHandle, _: Mapping[str, Any]) -> Answer:
    sweep.pause()
    return {"message": "paused: trials that run go on, no more are started"}


def _resume(sweep: SweepHandle, _: Mapping[str, Any]) -> Answer:
    sweep.resume()
    return {"message": "resumed"}


def _close(sweep: SweepHandle, _: Mapping[str, Any]) -> Answer:
    sweep.close()
    return {"message": "the sweep is being stopped"}


def _stop(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    number = _whole(message, "number")
    sweep.stop(number)
    return {"message": f"trial {number} is being stopped"}


def _retry(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    number = _whole(message, "number")
    sweep.retry(number)
    return {"message": f"trial {number} starts again"}


def _clone(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    number = _whole(message, "number")
    made = sweep.clone(number, **_changes(message))
    return {"message": f"trial {made} is a clone of trial {number}", "number": made}


def _promote(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    number = _whole(message, "number")
    epochs, per_trial = (
        None if message.get(name) is None else _whole(message, name) for name in ("epochs", "per_trial")
    )
    sweep.promote(number, epochs=epochs, per_trial=per_trial, **_changes(message))
    return {"message": f"trial {number} is promoted"}


def _add(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    more = _whole(message, "trials")
    sweep.add(more)
    return {"message": f"{more:,} more {'trial' if more == 1 else 'trials'}"}


def _edit(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    outside = message.get("outside", "finish")
    if outside not in ("finish", "stop"):
        raise InvalidArgumentError(f"trials outside of the new space can finish or stop, not {outside!r:.80}")
    sweep.edit(str(message.get("space", "")), outside=outside)
    return {"message": "new trials come from the edited space"}


def _cell(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    number = _whole(message, "number")
    return {"message": f"a cell with the parameters of trial {number}", "text": sweep.as_code(number)}


def _output(sweep: SweepHandle, message: Mapping[str, Any]) -> Answer:
    number = _whole(message, "number")
    printed = sweep.output(number)
    cut = len(printed) - LONGEST_OUTPUT
    text = printed if cut <= 0 else f"... {cut:,} characters cut ...\n{printed[cut:]}"
    return {"message": f"what trial {number} printed", "text": text}


def _whole(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise InvalidArgumentError(f"{name} is a whole number, not {value!r:.80}")
    return int(value)


def _changes(message: Mapping[str, Any]) -> dict[str, Any]:
    changes = message.get("changes") or {}
    if not isinstance(changes, Mapping):
        raise InvalidArgumentError(f"changes are names and values, not {changes!r:.80}")
    return {str(name): value for name, value in changes.items()}


WISHES: dict[str, Callable[[SweepHandle, Mapping[str, Any]], Answer]] = {
    "pause": _pause, "resume": _resume, "close": _close, "stop": _stop, "retry": _retry, "clone": _clone,
    "promote": _promote, "add": _add, "edit": _edit, "cell": _cell, "output": _output,
}  # fmt: skip
"""Each wish that a page may have."""
