"""Counts what a task sends: bells rung in shared memory, frames by kind, and messages to ipyparallel's hub.

`cluster.run("from bench import counting; counting.install()")`, then `counting.COUNTS` on each task.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

COUNTS: Counter[str] = Counter()


def install() -> None:
    """Count from now on, in this process."""
    from jupyter_client.session import Session

    from nbdist.wire.rpc.client import Peer
    from nbdist.wire.rpc.server import Listener
    from nbdist.wire.shm import Ringer

    count(Ringer, "ring", lambda message: "bells")
    count(Peer, "_transmit", lambda role, sequence, frame, *_: frame.kind)
    count(Listener, "transmit", lambda identity, role, sequence, frame: frame.kind)
    count(Session, "send", lambda *_, **__: "hub")


def count(kind: type, method: str, name: Any) -> None:
    """Count the calls of a method; `name` makes the name of the count from its arguments."""
    original = getattr(kind, method)
    if getattr(original, "counts", False):
        return

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        COUNTS[name(*arguments, **named)] += 1
        return original(self, *arguments, **named)

    counted.counts = True  # type: ignore[attr-defined]  # so that it is wrapped once
    setattr(kind, method, counted)
