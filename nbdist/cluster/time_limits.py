"""Limits of time: when runs write a state before their hosts' job ends, how long a cluster may be unused.

    save_time(ends, before)                  # each task gets it as `SAVE_AT_VARIABLE`
    timeout = IdleTimeout(1800.0, now)
    timeout.expired(now, busy)                # the head's supervisor ends the cluster then

The head's supervisor knows the time, so both hold when the notebook's kernel has ended. `LIMITS`
are the settings that ask for them: keywords of `start_cluster`, flags and fields of the sidebar. Pure.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial

from nbdist.cluster.launchers.spec import LauncherSetting, LauncherSpec
from nbdist.errors import InvalidArgumentError

SAVE_BEFORE = 300.0  # seconds before the end of the hosts' job
SAVE_AT_VARIABLE = "NBDIST_SAVE_AT"  # in a task's environment: a time of its host's monotonic clock
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LEAST_UNUSED = 1.0  # seconds: the accuracy with which a use is known
CHECKS = 60  # of the runs under way, in the time that a cluster may be unused
MOST_SECONDS = 365 * 86_400.0


def parse_seconds(name: str, value: str | float, least: float = 0.0) -> float:
    """Return the seconds of a time: a number, or a text such as "90s", "5m" or "1.5h".

    ``name`` is the argument's, for the error. Raises InvalidArgumentError for anything else, for less than
    ``least`` seconds, and for more than a year.

    >>> parse_seconds("idle", "30m"), parse_seconds("save_before", 0)
    (1800.0, 0.0)
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,20})?) ?([smhd]?)", str(value).strip(), re.ASCII)
    seconds = float(found[1]) * SECONDS[found[2]] if found and not isinstance(value, bool) else math.nan
    if not least <= seconds <= MOST_SECONDS:
        raise InvalidArgumentError(
            f"{name} is a time such as 90s, 5m or 1h, or a number of seconds, from {least:g} s to a year, "
            f"not {value!r:.60}"
        )
    return seconds


def check_idle(value: str | float) -> None:
    """Raise InvalidArgumentError for what is no time that a cluster may be unused."""
    parse_seconds("idle", value, LEAST_UNUSED)


def check_save_before(value: str | float) -> None:
    """Raise InvalidArgumentError for what is no time before the end of a job."""
    parse_seconds("save_before", value)


def check_switch(name: str, value: object) -> None:
    """Raise InvalidArgumentError for what is neither True nor False; ``name`` is the argument's."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} is True or False, not {value!r:.60}")


IDLE = LauncherSetting(
    "idle", "end the cluster when no cell and no run has used it for so long", shows="30m", check=check_idle
)
SAVE = LauncherSetting(
    "save_before", "runs write a state so long before the hosts' job ends (default 5m; 0: none)",
    shows="5m", check=check_save_before,
)  # fmt: skip
REQUEUE = LauncherSetting(
    "requeue", "submit the hosts' job again when it has no time left or was preempted",
    None, default=False, check=partial(check_switch, "requeue"),
)  # fmt: skip
LIMITS = (IDLE, SAVE, REQUEUE)


def limits_of(spec: LauncherSpec) -> tuple[LauncherSetting, ...]:
    """Return those of the limits that clusters of a launcher can have here."""
    requeues = not spec.needs_settings() and not spec.not_requeued(spec.read_settings({}))
    return IDLE, *([SAVE] if spec.timed else ()), *([REQUEUE] if requeues else ())


def describe_seconds(seconds: float) -> str:
    """Return a time as short as a user gives it.

    >>> describe_seconds(1800.0), describe_seconds(90.0), describe_seconds(7200.0)
    ('30 min', '90 s', '2 h')
    """
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


def save_time(ends: float | None, before: float) -> float | None:
    """Return when runs write a state for the end of the job; None if no end is known, or ``before`` is 0.

    >>> save_time(1000.0, 300.0), save_time(None, 300.0), save_time(1000.0, 0.0)
    (700.0, None, None)
    """
    return None if ends is None or not before else ends - before


@dataclass
class IdleTimeout:
    """Tells when a cluster has not been used for ``seconds``; None means that it may be unused forever.

    - ``used``: when it was used last, by the clock of all calls

    >>> timeout = IdleTimeout(1800.0, used=0.0)
    >>> timeout.expired(1000.0, busy=True), timeout.expired(2799.0, busy=False)
    (False, False)
    >>> timeout.expired(2800.0, busy=False)
    True
    """

    seconds: float | None
    used: float

    def expired(self, now: float, busy: bool) -> bool:
        """Return whether the cluster has to end ``now``; while it is ``busy`` it is used."""
        if busy:
            self.used = now
        return self.seconds is not None and now >= self.used + self.seconds

    def left(self, now: float) -> float | None:
        """Return the seconds until it ends, if it is not used before; None for no limit."""
        return None if self.seconds is None else max(0.0, self.used + self.seconds - now)

    def next_check(self, now: float) -> float | None:
        """Return the seconds until `expired` has to be called again, to see what is busy meanwhile."""
        left = self.left(now)
        return left if left is None or self.seconds is None else min(left, max(1.0, self.seconds / CHECKS))

    @property
    def reason(self) -> str:
        """Why the cluster has ended.

        >>> IdleTimeout(1800.0, 0.0).reason
        'stopped after 30 min without use (--idle)'
        """
        return f"stopped after {describe_seconds(self.seconds or 0.0)} without use (--idle)"
