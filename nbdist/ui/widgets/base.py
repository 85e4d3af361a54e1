"""`StreamingView`: the base class of the live widgets, with snapshots, incremental frames and flow control.

`BundledWidget` is that of all widgets.

The page sends ``ready``, ``visible`` and ``snapshot`` with the number of the last frame that it has applied,
``ack`` for a frame that it has drawn, ``focus`` when a user enters or leaves a field, ``closed`` when the
view is removed, and the widget's own commands. The kernel sends numbered frames: a snapshot, then the
changes. No frame is widget state, so a saved notebook contains none.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

from nbdist.errors import NotFoundError
from nbdist.ui.widgets.frames import FlowControl

LOADED_AFTER = 3.0  # seconds after which a page that has not loaded the widget is taken for closed
STATIC = Path(__file__).parent.parent / "static"


@cache
def bundled(name: str) -> str:
    """Return a file of the built front end; raise NotFoundError with the build command if it is missing."""
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(
            f"no {STATIC / name}; build it with `npm ci && npm run build` in widget/"
        ) from None


class BundledWidget(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget has no types
    """A widget of the built front end."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    # ipywidgets 7 would show the widget by a method that drops the display's id: no picture could replace it.
    _ipython_display_ = None

    def __init__(self, bundle: str) -> None:
        super().__init__(_esm=bundled(f"{bundle}.js"), _css=bundled(f"{bundle}.css"))

    @abstractmethod
    def _beside(self) -> dict[str, Any]:
        """Return the display data for front ends that cannot show the widget."""

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        found = super()._repr_mimebundle_(**kwargs)
        data = found[0] if isinstance(found, tuple) else found
        if data is not None:
            data |= self._beside()
        return found

    def close(self) -> None:
        """Close the widget and its layout model, which would otherwise stay in a saved notebook."""
        layout = self.layout
        super().close()
        if layout is not None:
            layout.close()


class StreamingView(BundledWidget):
    """A widget that sends frames under flow control, on any thread; ``lock`` orders them, and may be held.

    A subclass implements `_send_frame`, `_handle_command` for the page's other messages, and `_as_text` for
    front ends without widgets. Its ``mime_type`` is the one of its saved output.
    """

    mime_type: ClassVar[str]

    def __init__(self, bundle: str, lock: AbstractContextManager[object]) -> None:
        self.lock = lock
        """Held for each send and change."""
        self.flow = FlowControl()
        self.now = 0.0
        self.snapshot_wanted = True
        self.finished = False
        self.views: set[str] = set()  # views that pages hold, visible or not
        self.focused: set[str] = set()  # those in a field of which a user types
        self.visibility_known = False
        """Whether a page has reported its visibility: it sends ``ready`` before it knows that."""
        self.closes_unseen = False
        super().__init__(bundle)
        self.on_msg(self._on_page_message)

    @abstractmethod
    def _send_frame(self, now: float) -> None:
        """Send a snapshot if ``snapshot_wanted``, else the changes; send nothing if nothing has changed."""

    @abstractmethod
    def _handle_command(self, kind: str, message: Mapping[str, Any]) -> None:
        """Handle a message of the page that this class does not handle itself."""

    @abstractmethod
    def _as_text(self) -> str:
        """Return the text for front ends that cannot show the widget, or that load it without a kernel."""

    @abstractmethod
    def _shown_id(self) -> str:
        """Return the id of the run or sweep that is shown; "" if it has none."""

    def _beside(self) -> dict[str, Any]:
        """Return a text, and the id of what is shown.

        A notebook that is saved now has no more of the view than that: without the widget, JupyterLab draws
        the run or the sweep from the Jupyter server by this id.
        """
        shown = self._shown_id()
        live = {self.mime_type: {"version": 1, "live": shown}} if shown else {}
        return {"text/plain": self._as_text(), **live}

    def tick(self, now: float) -> None:
        """Send at most one frame, if something has changed and flow control allows it; ``now`` in seconds."""
        with self.lock:
            self.now = now
            if self.flow.may_send(now):
                self._send_frame(now)

    def tick_unacknowledged(self, now: float) -> None:
        """Send a frame at longer intervals while a running cell delays the page's acknowledgements."""
        with self.lock:
            known = bool(self.views) and self.visibility_known
            if self.flow.may_send_unacknowledged(now, known):
                self.now = now
                self.snapshot_wanted = self.snapshot_wanted or not known  # the last frame may be lost
                self._send_frame(now)

    def send_the_end(self) -> None:
        """Send a last snapshot, which also replaces frames that were lost; no further tick is needed."""
        with self.lock:
            self.finished = self.snapshot_wanted = True
            self._send_last()

    def close_when_left(self) -> None:
        """Close when the last view is closed; until the first view opens, stay open."""
        self.closes_unseen = True

    def close_unseen(self) -> None:
        """Close as soon as no page holds the widget.

        A page that was loaded during the run has no other output, so its view stays open.
        """
        self.close_when_left()
        if self.views:
            return
        try:
            # A page that is still loading the widget raises an error if the widget is closed.
            asyncio.get_running_loop().call_later(LOADED_AFTER, self._close_if_unseen)
        except RuntimeError:  # no loop, no page
            self.close()

    def _on_page_message(self, _: object, message: Mapping[str, Any], __: object) -> None:
        kind, view = str(message.get("kind")), str(message.get("view"))
        with self.lock:
            if kind == "closed":
                self.flow.set_visible(view, False)
                self.views.discard(view)
                self.focused.discard(view)
                if self.closes_unseen:
                    self._close_if_unseen()
                    return
            elif kind == "focus":
                (self.focused.add if message.get("focused") else self.focused.discard)(view)
            elif kind == "ack":
                self.flow.acknowledged(int(message["sequence"]), self.now)
            elif kind in ("ready", "visible", "snapshot"):
                self.views.add(view)
                self.visibility_known = self.visibility_known or kind != "ready" or bool(message["visible"])
                self.flow.set_visible(view, bool(message["visible"]))
                self._catch_up(int(message["sequence"]))
            else:
                self._handle_command(kind, message)
            if self.finished:  # tick() is no longer called
                self._send_last()

    def _catch_up(self, applied: int) -> None:
        """Plan a snapshot unless the last frame that the page has applied is the last one sent."""
        if applied != self.flow.sequence or applied == 0:
            self.flow.reset()
            self.snapshot_wanted = True
        else:
            self.flow.acknowledged(applied, self.now)

    def _close_if_unseen(self) -> None:
        if not self.views:
            self.close()

    def _send_last(self) -> None:
        if self.snapshot_wanted and self.flow.has_room(self.now):
            self._send_frame(self.now)
