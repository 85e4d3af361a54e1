"""Where the loops of one's own are: epochs, passes through datasets, values. It is saved and restored.

    for epoch in nb.train.epochs(10):                             # begins at the saved epoch
        for x, y in strategy.distribute_dataset(dataset):         # begins after the saved batch
            ...

The body of a resumed run runs from its first line, so the position is a count of what the body did: each loop
over `epochs`, each dataset and each `state` has a number, in the order in which the body makes them, and each
pass through a dataset has one. Passes that were over yield nothing; the one under way begins after its last
batch. A loop over `epochs` begins with the counts that it had at the begin of its epoch, as if the body had
completed the epochs before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from nbdist.checkpoint.stateful import Components
from nbdist.errors import InvalidArgumentError
from nbdist.numbers import is_whole

KINDS = ("epochs", "datasets", "values")


@dataclass
class DatasetPosition:
    """Passes through one dataset."""

    passes: int = 0
    """Passes that are over."""
    batches: int | None = None
    """Batches of the pass under way that are over; None between two passes."""
    opened: tuple[int, ...] = ()
    """What the order of the next pass, or of the one under way, follows from."""
    data: dict[str, Any] = field(default_factory=dict)
    """How the dataset came about."""


@dataclass
class EpochsPosition:
    """One loop over `epochs`."""

    epoch: int = 0
    """The epoch under way, or the number of epochs of a loop that is over."""
    made: dict[str, int] = field(default_factory=dict)
    """How many loops, datasets and states there were at its begin."""
    passes: dict[int, int] = field(default_factory=dict)
    """How many passes of each dataset were over at its begin."""


class SavedValues(dict[str, Any]):
    """Plain values by name that are saved with the state of a training; see `nbdist.train.state`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the values; raises InvalidArgumentError that names one that is not plain."""
        return checked_values(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the values that were saved."""
        self.update(state)


class LoopPosition:
    """The position of a run's loops on one replica. Pure but for the objects that it counts."""

    def __init__(self) -> None:
        self.made = dict.fromkeys(KINDS, 0)
        self.epochs: dict[int, EpochsPosition] = {}
        self.datasets: dict[int, DatasetPosition] = {}
        self.values = Components()
        """The `nbdist.train.state` dicts of the run, by number."""
        self.active: list[int] = []
        """Datasets with a pass under way, the outermost first."""
        self.ended = False
        """Whether the replicas have agreed to stop."""
        self.known = False
        """Whether a position is known that can be saved: of a dataset or of a loop over epochs."""
        self.owners: list[Any] = []
        """The variables of each strategy of the run that has loops."""
        self.begun = 0
        """How often an optimizer has begun to train variables in a loop."""
        self.saved_step = 0
        """The step of the state that was saved last."""
        self.joined = False
        """Whether this process has joined the loops of others, which go on."""
        self.restored: Any = None
        """The state that is continued."""
        self._saved_datasets: dict[int, DatasetPosition] = {}
        self._saved_epochs: dict[int, EpochsPosition] = {}

    def number(self, kind: str) -> int:
        """Return the number of a new loop over epochs, dataset or state."""
        number = self.made[kind]
        self.made[kind] += 1
        return number

    def begin_epochs(self) -> tuple[int, int]:
        """Return the number of a new loop over epochs, and its first epoch."""
        number = self.number("epochs")
        saved = self._saved_epochs.get(number)
        if saved is None:
            return number, 0
        self.made.update(saved.made)
        for one, passes in saved.passes.items():
            self.datasets.setdefault(one, DatasetPosition()).passes = passes
        return number, saved.epoch

    def begin_epoch(self, number: int, epoch: int) -> None:
        """Record that an epoch begins, or that as many are over as the loop has."""
        passes = {one: found.passes for one, found in self.datasets.items()}
        self.epochs[number] = EpochsPosition(epoch, dict(self.made), passes)
        self.known = True

    def begin_pass(
        self, number: int, opened: tuple[int, ...], data: dict[str, Any]
    ) -> DatasetPosition | None:
        """Begin a pass through a dataset; return where, or None if it was over.

        The result has the number of batches that are over, and the ``opened`` of the pass.
        """
        now = self.datasets.setdefault(number, DatasetPosition())
        saved = self._saved_datasets.get(number)
        if saved is not None and now.passes < saved.passes:
            now.passes += 1
            return None
        begun = saved is not None and now.passes == saved.passes
        if saved is not None and begun:
            del self._saved_datasets[number]
            opened = saved.opened
        now.batches, now.opened, now.data = (saved.batches or 0) if saved and begun else 0, opened, data
        self.active.append(number)
        self.known = True
        return now

    def end_pass(self, number: int, opened: tuple[int, ...]) -> None:
        """Record that a pass is over, or was left."""
        self.active.remove(number)
        now = self.datasets[number]
        now.passes, now.batches, now.opened = now.passes + 1, None, opened

    def saved_data(self, number: int) -> dict[str, Any] | None:
        """Return how a dataset came about whose pass is to be continued."""
        saved = self._saved_datasets.get(number)
        return None if saved is None else saved.data

    def add_values(self, values: SavedValues) -> None:
        """Restore a new state, and save it from now on."""
        self.values.register(str(self.number("values")), values)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, for :meth:`load_state_dict`."""
        # What was saved before and was not reached yet is still where it was.
        datasets = {**self._saved_datasets, **self.datasets}
        epochs = {**self._saved_epochs, **self.epochs}
        return {
            "epochs": {str(n): asdict(one) for n, one in epochs.items()},
            "datasets": {str(n): asdict(one) for n, one in datasets.items()},
            "values": self.values.state_dict(),
        }

    def load_state_dict(self, config: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was called."""
        for number, one in config["datasets"].items():
            found = DatasetPosition(**{**one, "opened": tuple(one["opened"])})
            self._saved_datasets[int(number)] = found
        for number, one in config["epochs"].items():
            passes = {int(n): passes for n, passes in one["passes"].items()}
            self._saved_epochs[int(number)] = EpochsPosition(one["epoch"], dict(one["made"]), passes)
        self.values.load_state_dict(config["values"])


def checked_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return plain values, or raise InvalidArgumentError that names another one.

    >>> checked_values({"best": 0.5, "names": ["a"]})
    {'best': 0.5, 'names': ['a']}
    """
    for name, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise InvalidArgumentError(
                f"nb.train.state: {name} is a {type(value).__name__}, and a state has numbers, texts, True, "
                "False, None, and lists and dicts of them; save float(value), or an array as a variable"
            ) from None
    return dict(values)


def iterate_epochs(position: LoopPosition, count: int, boundary: Any) -> Iterator[int]:
    """Yield the epochs that are still to come; ``boundary()`` is called before each of them."""
    if not is_whole(count, 0):
        raise InvalidArgumentError(f"epochs takes a whole number of 0 or more, got {count!r}")
    number, first = position.begin_epochs()
    for epoch in range(first, count):
        position.begin_epoch(number, epoch)
        boundary()
        if position.ended:
            return
        yield epoch
    position.begin_epoch(number, max(first, count))
