"""The state in which a training ended, but for its arrays; and whether another one can go on from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError
from nbdist.optim import Optimizer
from nbdist.train.passes import Place

FORMAT = 1
LOOKED_THROUGH = ("prefetch",)  # what changes nothing about the batches


@dataclass(frozen=True)
class State:
    """Where a training was, and what it was made with; plain values."""

    training: int
    """Which training of its run it is, counted from 1."""
    place: Place
    seed: int | None
    """What the orders of its data follow from."""
    origin: list[int]
    """What its random numbers follow from."""
    began: int
    """The step of the run at which it began."""
    step: int
    updates_before: int
    """Updates of earlier trainings of the run."""
    updates: int
    """Its own: the optimizer's count of steps."""
    examples: int
    skipped: int
    given_rate: float
    """The learning rate that it was begun with."""
    rate: float
    """The one of its next update."""
    history: dict[str, Any]
    made_with: dict[str, Any]
    """What has to be the same for a training that goes on from here."""

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for :meth:`from_config`."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> State:
        """Return the state that :meth:`to_config` described; raises TypeError, LookupError or ValueError."""
        fields = dict(config)
        if fields.pop("format") != FORMAT:
            raise ValueError(f"its format is {config['format']!r}, and this version reads {FORMAT}")
        place = fields.pop("place")
        return cls(place=Place(place["epoch"], place["batches"], tuple(place["opened"])), **fields)


def made_of(dataset: Dataset) -> dict[str, Any]:
    """Return what is known of how a dataset came about, without what is drawn anew each time.

    >>> made_of(Dataset.range(10).shuffle(4).batch(5))["steps"]
    [['from_arrays'], ['shuffle', 4, None, True], ['batch', 5, False]]
    """
    steps = [
        list(step[:-1] if step[0] == "shuffle" else step)
        for step in dataset.steps
        if step[0] not in ("with_seed", *LOOKED_THROUGH)
    ]
    rows = None if dataset.source is None else dataset.source.count
    return {"rows": rows, "batches": dataset.cardinality(), "steps": steps}


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return name and settings of an optimizer, without its learning rate."""
    return {name: value for name, value in optimizer.to_config().items() if name != "learning_rate"}


def require_same(where: str, then: Any, now: Any) -> None:
    """Raise InvalidArgumentError, with the first difference, unless two trainings are made with the same."""
    found = difference("", then, now)
    if found is not None:
        raise InvalidArgumentError(
            f"{where} is the state of another training: {found}. Continue it with what it was made with, or "
            "train anew, without it"
        )


def difference(name: str, then: Any, now: Any) -> str | None:
    """Return the first difference of two plain values in words; None if there is none.

    >>> difference("", {"layers": [{"units": 8}]}, {"layers": [{"units": 9}]})
    'layers[0].units was 8 and is 9 now'
    """
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            called = f"{name}.{key}" if name else str(key)
            if found := difference(called, then.get(key), now.get(key)):
                return found
        return None
    if isinstance(then, (list, tuple)) and isinstance(now, (list, tuple)):
        for i, (a, b) in enumerate(zip(then, now)):
            if found := difference(f"{name}[{i}]", a, b):
                return found
        return None if len(then) == len(now) else f"{name} had {len(then)} parts and has {len(now)} now"
    return None if then == now else f"{name} was {then!r:.80} and is {now!r:.80} now"
