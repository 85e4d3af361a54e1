"""Who watches the runs on a task: each is pushed the news, until it goes away or does not read."""

from __future__ import annotations

from nbdist.wire.rpc.client import Sender
from nbdist.wire.rpc.frame import Frame


class Watchers:
    """The connections that are told the news, by run. All on the Server's thread."""

    def __init__(self) -> None:
        self._of: dict[str, list[Sender]] = {}

    def add(self, run: str, sender: Sender) -> None:
        """Have a connection told from now on; once, however often it asks."""
        if not self.has(run, sender):
            self._of.setdefault(run, []).append(sender)

    def push(self, run: str, frame: Frame) -> None:
        """Send a frame to all who watch a run."""
        for sender in list(self._of.get(run, ())):
            try:
                sender.push(frame)
            except ConnectionError:  # a client that went away, or does not read: the log has it all
                self._of[run].remove(sender)

    def has(self, run: str, sender: Sender) -> bool:
        """Whether a connection is told the news of a run."""
        return sender in self._of.get(run, ())

    def any(self, run: str) -> bool:
        """Whether anybody is."""
        return bool(self._of.get(run))

    def drop(self, run: str) -> None:
        """Tell nobody of a run any more."""
        self._of.pop(run, None)

    def clear(self) -> None:
        """Tell nobody of anything any more."""
        self._of.clear()
