"""Points as a training loop would add them, and a live view that keeps what it would have sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.metrics.store import RunStore
from nbdist.ui.widgets.run import LiveView


def train(store: RunStore, replica: int, start: int, count: int, series: str = "loss") -> None:
    """Add points as a training loop would."""
    steps = np.arange(start, start + count)
    store.extend(replica, series, steps, np.exp(-steps / 100), 1e9 + steps / 10)


class SentView(LiveView):
    """A live view whose page is the test."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[tuple[dict[str, Any], bytes]] = []
        super().__init__(*args, **kwargs)

    def send(self, content: dict[str, Any], buffers: Any = None) -> None:
        self.sent.append((content, buffers[0]))

    def page_says(
        self, kind: str, sequence: int = 0, view: str = "tab", visible: bool = True, **more: Any
    ) -> None:
        said = {"kind": kind, "sequence": sequence, "view": view, "visible": visible, **more}
        self._handle_custom_msg(said, [])
