"""How long a cluster without a client lives: a while if it is idle, longer while it works. Decides only."""

from __future__ import annotations

from dataclasses import dataclass

IDLE_SECONDS, BUSY_SECONDS = 60.0, 3600.0
LOOK_SECONDS = 1.0  # between two looks whether a run is on an orphan still


@dataclass
class Orphan:
    """Tells when a cluster has to end; ``idle`` and ``busy`` are seconds, None stands for ever.

    An idle one has been without a client and without a run for so long, a busy one without a client.

    >>> orphan = Orphan(idle=60.0, busy=3600.0)
    >>> orphan.look(0.0, left=True, works=True), orphan.look(100.0, left=True, works=False)
    (False, False)
    >>> orphan.look(159.0, left=True, works=False), orphan.look(160.0, left=True, works=False)
    (False, True)
    """

    idle: float | None
    busy: float | None
    left_at: float | None = None
    idle_at: float | None = None

    @classmethod
    def of(cls, patience: float | None) -> Orphan:
        """Return the orphan for an ``orphan_timeout``: None is the ordinary one, a number holds for both.

        >>> Orphan.of(None).busy, Orphan.of(5).busy
        (3600.0, 5.0)
        """
        return cls(IDLE_SECONDS, BUSY_SECONDS) if patience is None else cls(float(patience), float(patience))

    def look(self, now: float, left: bool, works: bool) -> bool:
        """Take note that no client is left ``now``, that a run is on a task; whether it is time to end."""
        if not left or self.idle is None or self.busy is None:
            self.left_at = self.idle_at = None
            return False
        self.left_at = now if self.left_at is None else self.left_at
        if works:
            self.idle_at = None
            return now >= self.left_at + self.busy
        self.idle_at = now if self.idle_at is None else self.idle_at
        return now >= self.idle_at + self.idle

    def wait(self, now: float, left: bool) -> float | None:
        """Return the seconds until the next look that can matter; None if only another event can."""
        if not left or self.idle is None or self.busy is None:
            return None
        if self.left_at is None:
            return 0.0
        end = self.left_at + self.busy if self.idle_at is None else self.idle_at + self.idle
        return max(0.0, min(end - now, LOOK_SECONDS))
