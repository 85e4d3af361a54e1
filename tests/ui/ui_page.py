"""A page as the kernel sees it: reads frames as widget/src (comm, chart) does, and may lose some."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from ui_runs import SentView

from nbdist.ui.widgets.frames import RECORD

Curve = list[tuple[int, bytes]]  # step, and the four bytes of its value


class Page:
    """One view in a page, connected to a live view; ``loses`` decides about each frame."""

    def __init__(self, view: SentView, loses: Callable[[], bool] = lambda: False) -> None:
        self.view, self.loses = view, loses
        self.sequence = self.lost = self.frames = 0
        self.visible = True
        self.curves: dict[tuple[int, int], Curve] = {}
        self.progress: dict[str, Any] = {}
        self.printed: dict[str, str] = {}
        self.say("ready")

    def say(self, kind: str) -> None:
        """Tell the kernel what this page has."""
        self.view.page_says(kind, self.sequence, visible=self.visible)

    def take_all(self) -> None:
        """Take what the kernel has sent, and what it sends in answer."""
        while self.view.sent:
            content, frame = self.view.sent.pop(0)
            self.frames += 1
            if self.loses():
                self.lost += 1
            else:
                self.take(content, frame)

    def take(self, content: dict[str, Any], frame: bytes) -> None:
        """Apply a frame if it is its turn, else ask for everything."""
        (sequence,) = struct.unpack_from("<I", frame)
        if not (content["snapshot"] or sequence == self.sequence + 1 > 1):
            self.sequence = 0
            self.say("snapshot")
            return
        self.sequence = sequence
        if "head" in content:
            self.curves.clear()
        if content["snapshot"]:
            self.printed.clear()
        for key in map(tuple, content["replaced"]):
            self.curves.pop(key, None)
        for replica, series, step, value in np.frombuffer(frame, RECORD, offset=4):
            self.curves.setdefault((int(replica), int(series)), []).append((int(step), value.tobytes()))
        self.progress = content.get("progress", self.progress)
        for news in content.get("output", ()):
            self.printed[news["task"]] = self.printed.get(news["task"], "") + news["text"]
        if self.visible:
            self.say("ack")
