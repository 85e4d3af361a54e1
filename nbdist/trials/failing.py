"""Tells a sweep none of whose trials can do anything but fail: its body is wrong."""

from __future__ import annotations

from nbdist.errors import WorkerError
from nbdist.sweep.ledger import Ledger
from nbdist.sweep.trial import Trial

LEAST_FAILURES = 4


class Failing:
    """Looks at the failures since a driver began."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._before = ledger.counts["failed"]
        self._least = 1  # failures for another look

    def verdict(self, alive: int, over: bool, now: float) -> WorkerError | None:
        """Return the error of a sweep whose trials have all failed, None while that cannot be said.

        A thousand trials would not mend its body: some for each of the engines that are ``alive`` are enough,
        unless one is under way that has come further than they did. Of a sweep that is ``over`` it is all.
        """
        ledger = self._ledger
        failed = ledger.counts["failed"] - self._before
        if failed < self._least or ledger.closed:
            return None
        if ledger.counts["finished"] + ledger.counts["pruned"] + ledger.counts["stopped"]:
            return None
        if not over and failed < max(LEAST_FAILURES, 2 * alive):
            return None
        those = [trial for trial in ledger.trials.values() if trial.state == "failed"]
        longest = max(trial.seconds or 0.0 for trial in those)
        for number in ledger.running:
            trial = ledger.trials[number]
            if trial.step is not None or now - (trial.started_at or now) > longest:
                self._least = failed + 1
                return None
        return all_failed(those[0], failed)


def all_failed(first: Trial, count: int) -> WorkerError:
    """Return the error of a sweep none of whose trials has done anything but fail."""
    given = " ".join(f"{name}={value!r}" for name, value in first.parameters.items())
    error = WorkerError(
        f"all of the first {count} trials failed, and the sweep has ended. "
        f"Trial {first.number} ({given}):\n{first.error}"
    )
    error.ename, error.evalue = last_line(first.error)
    return error


def last_line(text: str) -> tuple[str, str]:
    """Return the name and the message of the error that a traceback ends with.

    >>> last_line("Traceback ...\\nValueError: no such width")
    ('ValueError', 'no such width')
    """
    last = text.rstrip().rpartition("\n")[2]
    name, _, message = last.partition(": ")
    return name, message
