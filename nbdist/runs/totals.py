"""What a run came to, in numbers: from what its bodies returned, and the points that they logged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from nbdist.metrics.store import RunStore
from nbdist.runs.progress import Standing, Tally


class Totals(ABC):
    """What all replicas came to together. ``outcomes`` are what bodies returned, by rank; it grows.

    ``tally`` has the progress of the replicas.
    """

    def __init__(self, outcomes: dict[int, dict[str, Any]], store: RunStore, tally: Tally) -> None:
        self.outcomes, self.store, self.tally = outcomes, store, tally

    @property
    def global_step(self) -> int:
        """Updates of the parameters by all replicas together."""
        return max((outcome.get("global_step", 0) for outcome in self.outcomes.values()), default=0)

    @property
    def dropped(self) -> int:
        """Gradients of all replicas that came too late for their synchronous step and were not applied."""
        return sum(outcome.get("dropped", 0) for outcome in self.outcomes.values())

    @property
    def skipped(self) -> int:
        """Gradients of all replicas that were no numbers, and left out as ``fit(nan="skip")`` asks."""
        return sum(outcome.get("skipped", 0) for outcome in self.outcomes.values())

    def last_epoch(self, replica: int) -> dict[str, float]:
        """Return a replica's mean loss and metrics over its last epoch."""
        for outcome in self.outcomes.values():
            if replica in outcome.get("last_epochs", ()):
                return dict(outcome["last_epochs"][replica])
        return {}

    @property
    def seconds(self) -> float:
        """Seconds of training, from the first point of a loss to the last, without pauses."""
        return training_seconds(self.store, self.tally)

    @property
    def steps_per_second(self) -> float:
        """Updates of the parameters per second of wall time, without pauses; 0.0 if nothing was trained.

        Synchronous replicas make one update together, others one each. The live view shows the same figure:
        the rate over the last seconds while the run is under way, over the whole run afterwards.
        """
        if not self.over:
            return self.standing().steps_per_second
        return self._updates / self.seconds if self.seconds > 0 else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples that all replicas together train on per second, without pauses; see `steps_per_second`."""
        if not self.over:
            return self.standing().examples_per_second
        return self.tally.examples / self.seconds if self.seconds > 0 else 0.0

    @property
    def _updates(self) -> int:
        last = [self.store.last(i, "loss") for i in self.store.replicas if "loss" in self.store.series]
        steps = [int(one.step) for one in last if one is not None]
        return (max(steps) if self.tally.synchronous else sum(steps)) if steps else 0

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether the run has ended."""

    @abstractmethod
    def standing(self) -> Standing:
        """Return the progress of the run now."""


def training_seconds(store: RunStore, tally: Tally) -> float:
    """Return the seconds of training between the first and the last point of a loss, without pauses."""
    spans = [store.points(i, "loss")[2] for i in store.replicas if "loss" in store.series]
    longest = max((float(times[-1] - times[0]) for times in spans if len(times) > 1), default=0.0)
    return max(0.0, longest - tally.rested)
