"""What the widgets that move have in common: a page that says what it has, and frames it can keep up with.

From the page come ``ready``, ``visible`` and ``snapshot`` with what it has, ``ack`` for a frame that it has
drawn, ``gone``, and whatever else a widget knows. To the page go frames with a number: a snapshot, then what
is new. Nothing of it is widget state, so nothing of it is saved with a notebook.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbdist.errors import NotFoundError
from nbdist.ui.widgets.frames import Pace

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
