"""The grid of a sweep: a widget that sends the sweep's state to the page and executes the page's commands.

    view = SweepView(sweep)
    display(view)
    ...                       # ten times a second:
    view.tick(time.monotonic())
    view.finish()             # once it is over

The frames to the page are built by `nbdist.ui.widgets.sweep_feed`. The page sends commands, each with its
request id (``request``), and receives one answer to each; if a command fails, ``ok`` is False and ``message``
is the reason:

    {"kind": "clone", "number": 7, "changes": {"lr": 0.1}, "request": 3}
    {"kind": "answer", "request": 3, "ok": True, "message": "trial 25 is a clone of trial 7", "number": 25}

The commands and their arguments are the rows of `nbdist.sweep.commands.COMMANDS`, and two queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nbdist.errors import NbdistError
from nbdist.sweep.commands import COMMANDS, NUMBER
from nbdist.text import clip
from nbdist.trials.sweep import Sweep
from nbdist.ui.widgets.base import StreamingView
from nbdist.ui.widgets.sweep_feed import SweepFeed


class SweepView(StreamingView):
    """Trials, curves, engines and controls of one sweep.

    Any thread may tick, and the page's messages may arrive on any thread; the sweep's lock orders them.
    ``clock`` returns seconds since 1970, as in the sweep's events.
    """

    mime_type = "application/vnd.nbdist.sweep+json"

    def __init__(self, sweep: Sweep, clock: Callable[[], float] = time.time) -> None:
        self.sweep = sweep
        self.clock = clock
        self.feed = SweepFeed(sweep)
        self.on_continued: Callable[[], object] = lambda: None
        """Called when a command from the page has continued a finished sweep; the caller must tick again."""
        super().__init__("sweep", sweep.lock)

    def finish(self) -> None:
        """Send the final state; no further tick is needed unless the sweep continues."""
        self.send_the_end()

    def _shown_id(self) -> str:
        return self.sweep.id

    def _as_text(self) -> str:
        name, id_ = clip(self.sweep.name), clip(self.sweep.id)
        named = f"{name} ({id_})" if id_ not in ("", name) else name
        return f"Grid of the sweep {named}; to reconnect, run nb.attach({id_!r})"

    def _handle_command(self, kind: str, message: Mapping[str, Any]) -> None:
        if kind in COMMANDS or kind in QUERIES:
            self.send(answer(self.sweep, message))
            if self.finished and not self.sweep.over:
                self.finished = False
                self.on_continued()

    def _send_frame(self, now: float) -> None:
        wall = self.clock()
        content, points = self.feed.everything(wall) if self.snapshot_wanted else self.feed.news(wall)
        if not content:
            return
        self.snapshot_wanted = False
        sequence = self.flow.sent(now)
        self.send({"kind": "sweep", "sequence": sequence, **content}, [points])


LONGEST_OUTPUT = 200_000  # characters of a trial's output that the page receives
LONGEST_MESSAGE = 600


Answer = dict[str, Any]
"""The fields of an answer: ``message``, and the result of the command or query."""


def answer(sweep: Sweep, message: Mapping[str, Any]) -> Answer:
    """Execute the command or query in a message and return the answer; an exception becomes its text."""
    head: Answer = {"kind": "answer", "request": message.get("request")}
    try:
        return {**head, "ok": True, **_execute(sweep, str(message.get("kind")), message)}
    except NbdistError as error:
        reason = str(error)
    except Exception as error:  # shown in the page: no cell would show it
        reason = f"{type(error).__name__}: {error}"
    return {**head, "ok": False, "message": clip(reason, LONGEST_MESSAGE)}


def _execute(sweep: Sweep, kind: str, message: Mapping[str, Any]) -> Answer:
    if (query := QUERIES.get(kind)) is not None:
        return query(sweep, NUMBER.check(message.get("number")))
    row = COMMANDS[kind]
    arguments = row.from_message(message)
    return row.answer(arguments, sweep.command(kind, **arguments))


def _cell(sweep: Sweep, number: int) -> Answer:
    return {"message": f"a cell with the parameters of trial {number}", "text": sweep.as_code(number)}


def _output(sweep: Sweep, number: int) -> Answer:
    printed = sweep.output(number)
    cut = len(printed) - LONGEST_OUTPUT
    text = printed if cut <= 0 else f"... {cut:,} characters cut ...\n{printed[cut:]}"
    return {"message": f"output of trial {number}", "text": text}


QUERIES: dict[str, Callable[[Sweep, int], Answer]] = {"cell": _cell, "output": _output}
"""The queries about one trial."""
