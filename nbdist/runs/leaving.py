"""An interrupt stops a run, unless this process ends: Jupyter says so just after its signal."""

from __future__ import annotations

import time
from collections.abc import Callable

RESTART_SECONDS = 0.25  # within which the word follows an interrupt that the kernel is being restarted


class Leaving:
    """Tells an interrupt from the end of this process, after which run ``run`` goes on without it.

    ``asked`` tells whether this process is ending; without it every interrupt is one at once.

    >>> Leaving("20261120-digits").signalled(again=False)
    True
    """

    def __init__(self, run: str) -> None:
        self.asked: Callable[[], bool] | None = None
        self._run = run
        self._stop_at: float | None = None

    @property
    def now(self) -> bool:
        """Whether this process ends."""
        return self.asked is not None and self.asked()

    def signalled(self, again: bool) -> bool:
        """Take note of an interrupt; whether the run is to stop at once, as it does ``again`` and again."""
        if self.asked is None or self._stop_at is not None or again:
            self._stop_at = None
            return True
        self._stop_at = time.monotonic() + RESTART_SECONDS
        return False

    def passed(self) -> bool:
        """Whether the run is to stop now, for no word of an end has followed an interrupt; said once."""
        if self._stop_at is None or time.monotonic() < self._stop_at or self.now:
            return False
        self._stop_at = None
        return True

    def stay(self) -> None:
        """Raise KeyboardInterrupt if this process ends."""
        if self.now:
            error = KeyboardInterrupt(f"the kernel ends; run {self._run} continues: nb.attach({self._run!r})")
            # A whole traceback takes IPython a second, and Jupyter waits little longer for the kernel's end.
            # IPython asks every exception for this method, of which its type knows nothing.
            error._render_traceback_ = lambda: [f"KeyboardInterrupt: {error}"]  # type: ignore[attr-defined]
            raise error
