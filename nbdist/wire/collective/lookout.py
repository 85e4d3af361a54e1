"""What a rank looks at beside its group while it waits: a run's abort flag, for example.

lookout = Lookout.of(member.check)
lookout()               # often; it calls the check every 0.1 s at most
lookout.raised          # what the check raised, to be raised where the call was made
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY = 0.1  # seconds; whoever sleeps wakes as often, so that no look is more than 0.2 s late


class Lookout:
    """Calls a check from time to time; without one it does nothing."""

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        self._check = check
        self.watches = check is not None
        """Whether there is anything to look at."""
        self._next = 0.0
        self.raised: BaseException | None = None
        """What the check has raised."""

    @classmethod
    def of(cls, check: Callable[[], None] | None) -> Lookout:
        """Return a check's lookout; a lookout is its own, so that the parts of a group can share one."""
        return check if isinstance(check, cls) else cls(check)

    @property
    def nap(self) -> float | None:
        """For how many seconds at most a rank may sleep; None for as long as it likes."""
        return None if self._check is None else LOOK_EVERY

    def __call__(self) -> None:
        """Look, if it is time to; raise what the check raises."""
        if self._check is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_EVERY
        try:
            self._check()
        except BaseException as error:
            self.raised = error
            raise
