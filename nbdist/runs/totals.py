"""What a run came to, in numbers: from what its bodies returned, and the points that they logged."""

from __future__ import annotations

from typing import Any

from nbdist.metrics.store import RunStore


class Totals:
    """What all replicas came to together. ``outcomes`` are what bodies returned, by rank; it grows.

    >>> Totals({0: {"global_step": 20}, 1: {"global_step": 21}, 2: {}}, RunStore()).global_step
    21
    """

    def __init__(self, outcomes: dict[int, dict[str, Any]], store: RunStore) -> None:
        self.outcomes, self.store = outcomes, store

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
    def steps_per_second(self) -> float:
        """Steps of all replicas together per second of training; 0.0 if nothing was trained."""
        spans = [self.store.points(i, "loss") for i in self.store.replicas if "loss" in self.store.series]
        spans = [span for span in spans if len(span[0]) > 1]
        if not spans:
            return 0.0
        seconds = max(times[-1] for _, _, times in spans) - min(times[0] for _, _, times in spans)
        return float(sum(int(steps[-1]) for steps, _, _ in spans) / seconds) if seconds > 0 else 0.0
