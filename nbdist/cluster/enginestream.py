"""sys.stdout and sys.stderr of an engine, for which a flush of nothing costs nothing."""

from __future__ import annotations

from ipykernel.iostream import OutStream


class EngineStream(OutStream):  # type: ignore[misc]  # ipykernel has no types
    """An `OutStream` that knows whether anything waits to be sent.

    A kernel flushes both streams twice for each call, and each flush hands over to another thread and back,
    which a short cell on several engines notices. What a body prints in a run goes another way.
    """

    _written = _sent = 0

    def write(self, string: str) -> int | None:
        """Take text."""
        self._written += 1
        written: int | None = super().write(string)
        return written

    def flush(self) -> None:
        """Send what waits, if anything does, and wait until it is sent."""
        if self._sent != self._written:
            super().flush()

    def _flush(self) -> None:
        written = self._written
        super()._flush()
        self._sent = written
