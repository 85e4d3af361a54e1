"""What may be wished of a sweep: each wish is written down, and done from then on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Literal

from nbdist.errors import InvalidArgumentError
from nbdist.sweep import wishes
from nbdist.sweep.events import Event
from nbdist.sweep.space import Space
from nbdist.sweep.spacetext import read_space
from nbdist.trials.known import Known


class Wishing(Known, ABC):
    """A sweep of which something may be wished, from any thread; what is refused raises an `NbdistError`."""

    @abstractmethod
    def _wish(self, wish: Callable[[float], list[Event]]) -> list[Event]:
        """Write down the events of a wish, given the time, and have them acted on."""

    @abstractmethod
    def _most(self) -> int:
        """Return how many engines there are for a trial."""

    def pause(self) -> None:
        """Start no more trials; those running go on, and then the cluster is free for other cells."""
        self._wish(lambda now: wishes.pause(self.ledger, now))

    def resume(self) -> None:
        """Go on, after a pause or with what a dead kernel has left."""
        self._wish(lambda now: wishes.resume(self.ledger, now))

    def close(self) -> None:
        """Stop the sweep: running trials stop and keep their checkpoints, and no further trial starts."""
        self._wish(lambda now: wishes.close(self.ledger, now))

    def add(self, trials: int) -> None:
        """Want so many trials more."""
        self._wish(lambda now: wishes.add(self.ledger, trials, now))

    def edit(
        self,
        space: Space | Mapping[str, object] | str | None = None,
        *,
        outside: Literal["finish", "stop"] = "finish",
        **changes: object,
    ) -> None:
        """Ask for trials from another space from here on; ``changes`` are parameters that change.

        Running trials outside of it "finish", or "stop".
        """

        def wished(now: float) -> list[Event]:
            new = as_space(space, self.ledger.space)
            new = new.with_changes(changes) if changes else new
            return wishes.edit(self.ledger, new, now, outside)

        self._wish(wished)

    def stop(self, number: int | None = None) -> None:
        """Stop a trial; its reports and checkpoint are kept. Without a number stop the sweep, as `close`."""
        if number is None:
            self.close()
        else:
            self._wish(lambda now: wishes.stop(self.ledger, number, now))

    def retry(self, number: int) -> None:
        """Start a trial that did not finish again, with its parameters and its seed."""
        self._wish(lambda now: wishes.retry(self.ledger, number, now))

    def clone(self, number: int, /, **changes: object) -> int:
        """Ask for a new trial with the parameters of another, some changed; returns its number."""
        events = self._wish(lambda now: wishes.clone(self.ledger, number, changes, now))
        return int(getattr(events[0], "number", -1))

    def promote(
        self,
        number: int | None = None,
        /,
        *,
        epochs: int | None = None,
        per_trial: int | None = None,
        **changes: object,
    ) -> None:
        """Let a trial that is over (without a number the best) go on from where its training ended.

        ``epochs`` is how many there are to be in all, ``per_trial`` on how many engines, ``changes`` are
        other names for its body. It goes on exactly: a pruned trial reports what it would have reported.
        """
        trial = self._chosen(number)
        path = self.checkpoint(trial.number)
        engines = self._most()
        if epochs is not None:
            if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
                raise InvalidArgumentError(f"epochs is a whole number above 0, not {epochs!r}")
            changes["epochs"] = epochs
        self._wish(
            lambda now: wishes.promote(
                self.ledger,
                trial.number,
                now,
                checkpoint=str(path),
                per_trial=per_trial,
                engines=engines,
                changes=changes,
            )
        )


def as_space(space: Space | Mapping[str, object] | str | None, now: Space | None = None) -> Space:
    """Return a space given as one, as text, or as a mapping; None is the one there is ``now``.

    >>> print(as_space("lr=log(1e-4, 1e-1) width=[32, 64]"))
    lr=log(0.0001, 0.1) width=[32, 64]
    """
    if space is None and now is not None:
        return now
    if isinstance(space, Space):
        return space
    if isinstance(space, str):
        return read_space(space)
    found = getattr(space, "space", None)  # of an editor
    if isinstance(found, Space):
        return found
    if isinstance(space, Mapping):
        return Space(space)
    raise InvalidArgumentError(
        f"a space is text such as 'lr=log(1e-4, 1e-1)', a dict, or an nbdist.sweep.Space, not {space!r:.80}"
    )
