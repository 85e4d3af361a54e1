"""States of trainings, each in one file, from which a training is continued bit for bit: `TrainingStates`.

    context.states = TrainingStates(write=folder / "state.safetensors", read=earlier)      # before the body
    model.fit(data, epochs=10)         # continues `earlier`, and writes its own state at its end

The file is a model's (``nb.nn.load`` reads it) and also has the optimizer's slots, and as JSON in the header
all that is not an array. It is written under a temporary name and renamed. A run with ``--checkpoint-every``
also writes states while it trains: see `nbdist.checkpoint.manager`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from nbdist.checkpoint.manager import CHECK, CheckpointManager, Snapshot, checksum
from nbdist.checkpoint.tensor_file import TensorFile
from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.data.steps import all_steps, comparable, has_token
from nbdist.errors import AbortedError, DataLossError, InvalidArgumentError, NotFoundError
from nbdist.graph.backend import Array
from nbdist.optim import Optimizer
from nbdist.runtime.ps.client import StepStopped
from nbdist.train.strategy import Strategy

MODEL, STATE = "nbdist", "nbdist.training"


@dataclass(frozen=True)
class SavedState:
    """A state with its arrays; ``mark`` identifies one that was read."""

    state: State
    arrays: Sequence[Array]
    slots: Sequence[dict[str, Array]] = ()
    model: dict[str, Any] = field(default_factory=dict)
    """The model's settings, with which `nbdist.nn.load` reads the file."""
    mark: int = 0

    def snapshot(self) -> Snapshot:
        """Return what a file has of it; see :func:`read_saved`."""
        tensors = {f"{i:04d}": array for i, array in enumerate(self.arrays)}
        for i, one in enumerate(self.slots):
            tensors |= {f"slot.{name}.{i:04d}": array for name, array in one.items()}
        return Snapshot({MODEL: json.dumps(self.model), STATE: json.dumps(self.state.to_config())}, tensors)


class TrainingStates(CheckpointManager):
    """The files of a run's training states: those to write, and the one to continue; ``context.states``.

    Each ``fit`` of the run writes its state to ``write`` when it ends: after its epochs, because it was asked
    to stop between two steps, or because a callback has ended it. Not when it fails, nor after one that was
    stopped. The chief writes, into a folder that is there. A failure to write is printed once, and is in
    ``error``; training continues. With an ``interval`` the states of a ``fit`` also go to ``folder``, at the
    interval and at the end.

    ``read`` is such a file, or several of one run, the newest first: a damaged one is left for the next, and
    ``fallbacks`` has the reason. The training of the run that has its number continues it: its losses,
    weights and history are then, bit for bit, those of a training that was never stopped. Earlier trainings
    of the run are made again as they were, from the same seed, and leave no state. All replicas are given
    the same file, or copies of it. ``fit(epochs=)`` counts from the beginning: a
    larger number trains on, and if all epochs are over no step is made. The batches of the epoch under way,
    or of all epochs if the data is endless, are made again and put aside. Anything that differs is an
    InvalidArgumentError that names it, but for a learning rate that is given anew, which is used; a damaged
    or foreign file is a DataLossError.

    Exact for replicas that step together (one_device, mirrored, multi_worker, sharded, central, ps with
    --sync and without backups), if the data comes in an order that follows from seeds; on another number of
    replicas but for the order of additions. Of replicas that step independently (ps with --async, elastic) it
    is a snapshot: the parameters and slots of the servers as they are, with the number of steps of each
    replica that are in them; or the center, with the chief's slots. What callbacks keep is not kept: they
    begin anew.
    """

    passing = (StepStopped, AbortedError)
    others: Callable[[], Sequence[Path]] = staticmethod(tuple)
    """Returns copies of the newest states that replicas on other hosts have written, the newest first."""
    cut = False
    """Whether a training was cut short: later ones of the run leave no state."""
    _chosen: State | None = None

    @property
    def awaited(self) -> int:
        """The number of the training that continues ``read``, once a training has looked for it."""
        return 0 if self._chosen is None else self._chosen.training

    def require_support(self, strategy: Strategy) -> None:
        """Raise InvalidArgumentError if a state is to be read or saved that a strategy cannot continue."""
        if strategy.continues:
            return
        if self.read is not None:
            raise InvalidArgumentError(
                f"strategy {strategy.name} cannot continue a training from {self.read}: train anew, without "
                "it, or between-graph"
            )
        if self.are_asked_for():
            raise InvalidArgumentError(
                f"strategy {strategy.name} cannot save the state of a training: drop --checkpoint-every"
            )

    def find(self, training: int) -> SavedState | None:
        """Return the state that this training of the run continues, if there is one.

        Raises NotFoundError if there is no file, DataLossError if all of them are damaged or foreign.
        """
        return self._find(lambda state: state.loop is None and state.training == training)

    def find_loop(self, fits: int) -> SavedState | None:
        """Return the state of a loop of one's own, to continue after so many trainings of `fit`, if any.

        Raises as `find` does.
        """
        return self._find(lambda state: state.loop is not None and state.loop["fits"] == fits)

    def _find(self, is_wanted: Callable[[State], bool]) -> SavedState | None:
        """Return the state to continue from if it is the wanted one; all files are checked the first time."""
        if self.read is None:
            return None
        saved: SavedState | None = None
        with self.loading:
            if self._chosen is None:  # all of it is checked at once: a later training could not go back
                saved = self.load(read_saved)
                self._chosen = saved.state
        return (saved or read_saved(self.read)) if is_wanted(self._chosen) else None

    def repeated(self, trainings: int, loops: int, what: str) -> str:
        """Return what to say of a ``fit`` or a loop that comes before the state, and is made again; else "".

        ``what`` is "fit" or "loop"; so many trainings have begun before it, with those of ``loops``.
        """
        chosen = self._chosen
        if chosen is None:
            return ""
        saved, begun = (chosen.training - 1, True), trainings
        if chosen.loop is not None:  # its place is among the fits
            saved, begun = (chosen.loop["fits"], False), trainings - loops
        if (begun, what == "fit") >= saved:
            return ""
        return (
            f"the saved state is of a later part of the body than this {what}, whose steps are made again "
            "from the beginning. To skip them, save what it trains and load it in the body"
        )

    @property
    def values(self) -> dict[str, Any] | None:
        """What `nbdist.train.state` had in the state that is continued, where that is of no loop."""
        return None if self._chosen is None or self._chosen.loop is not None else self._chosen.values


def read_saved(path: Path) -> SavedState:
    """Return a state with its arrays, checked; NotFoundError or DataLossError if it is not whole."""
    state, texts, tensors = _read(path)
    arrays = [array for name, array in sorted(tensors.items()) if name.isdigit()]
    slots: dict[int, dict[str, Array]] = {}
    for name, array in tensors.items():
        if not name.isdigit():
            _, slot, number = name.split(".")
            slots.setdefault(int(number), {})[slot] = array
    by_array = [slots.get(i, {}) for i in range(max(slots, default=-1) + 1)]
    return SavedState(state, arrays, by_array, json.loads(texts[MODEL]), int(texts[CHECK]))


def trainings_in(path: Path) -> int:
    """Return which training of its run a state is of, counted from 1; DataLossError if it is damaged."""
    with TensorFile(path, "a state of a training") as file:
        try:
            return int(json.loads(file.texts[STATE])["training"])
        except (LookupError, TypeError, ValueError) as error:
            raise file.damaged(error) from None


def _read(path: Path) -> tuple[State, dict[str, str], dict[str, Array]]:
    if not path.is_file():
        raise NotFoundError(f"no state of a training at {str(path)!r}: give the file that one has left")
    try:
        with TensorFile(path, "a state of a training") as file:
            texts = file.texts
            if STATE not in texts:
                raise ValueError("it says nothing of a training")
            tensors = {name: file.read(name) for name in file.shapes}
        if int(texts[CHECK]) != checksum(texts, tensors):
            raise ValueError("its checksum is wrong")
        return State.from_config(json.loads(texts[STATE])), texts, tensors
    except DataLossError as error:
        raise DataLossError(f"{error}; train anew, without it") from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataLossError(
            f"{str(path)!r} is not a state of a training, or is damaged: {error}; train anew, without it"
        ) from None


# The state of a training without its arrays, and the check that another training can continue it.

FORMAT = 1
LOOKED_THROUGH = ("prefetch",)  # what changes nothing about the batches


@dataclass(frozen=True, kw_only=True)
class State:
    """The position of a training, and what it was made with; plain values."""

    training: int
    """Which training of its run it is, counted from 1."""
    place: DataCursor = field(default_factory=lambda: DataCursor(opened=()))
    seed: int | None
    """What the orders of its data follow from."""
    origin: list[int] = field(default_factory=list)
    """What its random numbers follow from."""
    began: int = 0
    """The step of the run at which it began."""
    step: int
    updates_before: int = 0
    """Updates of earlier trainings of the run."""
    updates: int
    """Its own: the optimizer's count of steps."""
    examples: int
    skipped: int
    given_rate: float = 0.0
    """The learning rate that it was begun with."""
    rate: float = 0.0
    """The one of its next update."""
    rate_factor: float = 1.0
    """What a rate that a user has asked for multiplies those of a loop's scheduler by."""
    history: dict[str, Any] = field(default_factory=dict)
    made_with: dict[str, Any] = field(default_factory=dict)
    """What must be the same in a training that continues this one."""
    steps: list[int] | None = None
    """The steps of each replica that are in the parameters, if replicas step independently."""
    loss_scale: list[float] | None = None
    """In mixed precision: the scale of the loss, and how many finite steps in a row it has had."""
    loop: dict[str, Any] | None = None
    """Of loops of one's own: their variables and their position; see `nbdist.train.custom.resume`."""
    values: dict[str, Any] | None = None
    """Of a training with a place of its own: what `nbdist.train.state` keeps, by number."""

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
        return cls(place=DataCursor(place["epoch"], place["batches"], tuple(place["opened"])), **fields)


def made_of(dataset: Dataset) -> dict[str, Any]:
    """Return what is known of how a dataset came about, without what is drawn anew each time.

    >>> made_of(Dataset.range(10).shuffle(4).batch(5))["steps"]
    [['from_arrays'], ['shuffle', 4, None, True], ['batch', 5, False]]
    """
    steps = comparable(dataset.steps, without=("with_seed", *LOOKED_THROUGH))
    rows = None if dataset.source is None else dataset.source.count
    return {"rows": rows, "batches": dataset.cardinality(), "steps": steps}


def place_after(steps: int, state: State, per_epoch: int | None, endless: bool) -> DataCursor:
    """Return the position of a replica that has made so many steps, where replicas step independently.

    It follows from the chief's, whose passes have as many batches: ``per_epoch`` where that is known.
    """
    chief = state.place
    if per_epoch is None and chief.epoch:
        per_epoch = (state.step - state.began - chief.batches) // chief.epoch
    if per_epoch is None:  # in a first pass of unknown length
        return DataCursor(0, min(steps, chief.batches), chief.opened)
    epoch, batches = divmod(steps, per_epoch)
    if chief.opened is None or endless:
        return DataCursor(epoch, batches, chief.opened)
    each = [n // chief.epoch if chief.epoch and n % chief.epoch == 0 else 1 for n in chief.opened]
    opened = [max(0, n + (epoch - chief.epoch) * one) for n, one in zip(chief.opened, each, strict=True)]
    return DataCursor(epoch, batches, tuple(opened))


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return name and settings of an optimizer, without its learning rate."""
    rates = ("learning_rate", "schedule", "factor")
    return {name: value for name, value in optimizer.to_config().items() if name not in rates}


FAMILIES = {
    "synchronous": "replicas that step together",
    "asynchronous": "replicas that step independently (ps --async)",
    "elastic": "elastic averaging",
}


def require_family(where: str, family: str, strategy: Strategy) -> None:
    """Raise InvalidArgumentError unless a strategy's replicas step as those of a saved training did."""
    if family != strategy.family:
        then, now = (FAMILIES.get(one, one) for one in (family, strategy.family))
        raise InvalidArgumentError(
            f"{where} is the state of a training with {then}, and strategy {strategy.name} has {now}: "
            "continue it with the strategy and the --sync or --async of the run"
        )


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

    A list is as good as a tuple, and "1" as the key 1: a file has these.

    >>> difference("", {"layers": [{"units": 8}]}, {"layers": [{"units": 9}]})
    'layers[0].units was 8 and is 9 now'
    """
    if isinstance(then, dict) and isinstance(now, dict):
        then, now = ({str(key): value for key, value in one.items()} for one in (then, now))
        for key in [*then, *(key for key in now if key not in then)]:
            called = f"{name}.{key}" if name else key
            if found := difference(called, then.get(key), now.get(key)):
                return found
        return None
    if isinstance(then, (list, tuple)) and isinstance(now, (list, tuple)):
        for i, (a, b) in enumerate(zip(then, now)):
            if found := difference(f"{name}[{i}]", a, b):
                return found
        return None if len(then) == len(now) else f"{name} had {len(then)} parts and has {len(now)} now"
    return None if then == now else f"{name} was {then!r:.80} and is {now!r:.80} now"


# The batches of a dataset, epoch by epoch, from the beginning or from a saved position.
#
# batches = EpochBatches(strategy, dataset, steps_per_epoch, cursor, control.check)
# for epoch in range(cursor.epoch, epochs):
#     for arrays, size in batches.next_epoch():
#         ...
#     batches.end_epoch(steps, whole=True)

Batch: TypeAlias = tuple[tuple[Array, ...], int]


@dataclass(frozen=True)
class DataCursor:
    """The position of a training in its data: between two batches of an epoch."""

    epoch: int = 0
    """How many epochs are over."""
    batches: int = 0
    """How many batches of the next one are."""
    opened: tuple[int, ...] | None = None
    """How often each shuffle had been opened when the pass began that the next batch is of."""


def batches_of_pass(dataset: Dataset) -> int | None:
    """Return how many batches each pass has, if that is known and it opens each shuffle once."""
    steps = list(all_steps(dataset.steps))
    opened = [step[-1] for step in steps if has_token(step)]
    once = len(set(opened)) == len(opened) and not any(step[0] == "repeat" for step in steps)
    return dataset.cardinality() if once else None


class EpochBatches:
    """One pass over ``dataset`` for each epoch, or one for all if it is endless.

    With ``reuse_buffers`` a batch is valid until the next one is taken. ``once`` is how many batches an
    endless dataset has before it begins anew, if that is known.
    """

    def __init__(
        self,
        strategy: Strategy,
        dataset: Dataset,
        steps: int | None,
        cursor: DataCursor,
        check: Callable[[], object],
        meter: Meter | None = None,
        reuse_buffers: bool = True,
        once: int | None = None,
    ) -> None:
        self._reuse, self._once = reuse_buffers, once
        self._strategy, self.dataset, self._steps, self._check = strategy, dataset, steps, check
        self._meter = meter
        if cursor.opened is not None:
            dataset.reopen(cursor.opened)
        self._opened, self._epoch, self._batches = dataset.opened, cursor.epoch, cursor.batches
        self._within = False
        self._is_endless = dataset.endless and steps is not None  # else each pass is one of its own
        self._current: Iterator[Batch] | None = None
        self._over = cursor.batches
        if self._is_endless:
            self._over += cursor.epoch * (steps or 0)

    def change_dataset(self, dataset: Dataset) -> None:
        """Make the next passes through another dataset, in the orders that follow those so far."""
        if not self._is_endless:
            if len(dataset.opened) == len(self.dataset.opened):
                dataset.reopen(self.dataset.opened)
            self.dataset = dataset

    @property
    def cursor(self) -> DataCursor:
        """The position of the training between two epochs, or after the last step."""
        begun = self._within or self._is_endless
        return DataCursor(self._epoch, self._batches, self._opened if begun else self.dataset.opened)

    def cursor_within(self, steps: int) -> DataCursor:
        """Return the position after so many steps in this process since the last epoch has ended."""
        at = self.cursor
        return DataCursor(at.epoch, at.batches + steps, at.opened)

    def advance(self, steps: int) -> None:
        """Move past so many batches.

        Batches are counted without making them where the order of each epoch follows from its number.
        """
        per_epoch = batches_of_pass(self.dataset)
        if self._is_endless:
            self._over += steps
            self._epoch, self._batches = divmod(self._over, self._steps or self._over + 1)
            return
        steps += self._batches
        if per_epoch is not None:
            epochs, self._batches = divmod(steps, per_epoch)
            self._epoch += epochs
            self.dataset.reopen(tuple(count + epochs for count in self.dataset.opened))
            self._over = self._batches
            return
        while steps:
            opened = self.dataset.opened
            batches = self._strategy.batches(self.dataset)
            passed = 0
            for _ in itertools.islice(batches, steps):
                self._check()
                passed += 1
            if passed == steps and next(batches, None) is not None:
                self.dataset.reopen(opened)
                self._batches = self._over = passed
                return
            if not passed:
                return  # the loop reports that the dataset is empty
            steps, self._epoch = steps - passed, self._epoch + 1

    def next_epoch(self) -> Iterator[Batch]:
        """Return the batches of the next epoch that are still to come."""
        if not self._is_endless:
            self._opened, self._within = self.dataset.opened, True
        elif self._over and self._once:
            passes, self._over = divmod(self._over, self._once)
            self.dataset.reopen(tuple(count + passes for count in self.dataset.opened))
        if not self._is_endless or self._current is None:
            batches = self._strategy.batches(self.dataset, self._meter, self._reuse)
            self.close()
            self._current = batches
        batches = self._current
        for number in range(self._over):  # skipped, so that the batches after them are those that followed
            self._check()
            if next(batches, None) is None:
                raise InvalidArgumentError(
                    f"the dataset has ended after {number} batches, and the training that is continued had "
                    f"had {self._over}: continue it on the same data"
                )
        self._over = 0
        return itertools.islice(batches, None if self._steps is None else self._steps - self._batches)

    def close(self) -> None:
        """End the threads and processes that make the batches."""
        if isinstance(self._current, Generator):
            self._current.close()

    def end_epoch(self, steps: int, whole: bool) -> None:
        """Record that an epoch has ended, after so many steps."""
        self._within = not whole
        if whole:
            self._epoch, self._batches = self._epoch + 1, 0
        else:
            self._batches += steps
