"""Between the training loop and the file of its state: `ResumeAdapter` loads the state and saves it.

resume = ResumeAdapter(context, model, optimizer, history, config)      # without context.states: nothing
dataset, cursor = resume.begin(dataset, steps_per_epoch)        # the model has its weights
resume.resume(replica, epochs)                                  # slots and progress are restored
save = resume.saver(replica, cursor)                            # None without --checkpoint-every
save()                                                          # between two steps: saves it if it is time
resume.end(replica, cursor)
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from nbdist.checkpoint.manager import state_files, whole
from nbdist.checkpoint.stateful import Components
from nbdist.data import Dataset
from nbdist.data.steps import unseeded
from nbdist.optim import Optimizer
from nbdist.runtime.ps.client import StepStopped
from nbdist.train.callbacks import History
from nbdist.train.capabilities import JoinedState, ReplicaState, RestoredState
from nbdist.train.context import Context
from nbdist.train.replica import Replica, continuing, rate_of
from nbdist.train.resume import (
    DataCursor,
    SavedState,
    State,
    made_of,
    place_after,
    read_saved,
    require_family,
    require_same,
    settings_of,
)
from nbdist.train.trainable import Trainable

Array: TypeAlias = np.ndarray[Any, Any]
Config = Callable[[], dict[str, Any]]


COMPONENTS = ("origin", "history", "loss_scale", "rate_factor", "values")


class ResumeAdapter:
    """The state of one training on one replica, before and after it."""

    def __init__(
        self,
        context: Context,
        model: Trainable,
        optimizer: Optimizer,
        history: History,
        config: Config | None,
    ) -> None:
        self._context, self._model, self._optimizer = context, model, optimizer
        self._config, self._history = config or dict, history
        self.components = Components()
        """What has state beside parameters, slots and the place in the data, by its name in `State`."""
        for name, one in (("origin", _Origin(model)), ("history", history), ("values", context.loop.values)):
            self.components.register(name, one)
        self._found: SavedState | None = None
        self._seed = None if context.seed is None else context.seed + context.trainings - 1
        self._given_rate = optimizer.learning_rate
        self._epochs: int | None = 0
        self._stopped_before = context.control.stop_requested
        self._replicas = 1, 1
        self._place = DataCursor()
        self.updates_before = 0
        """The run's updates before this training, which the training loop sets: not the run's count less the
        replica's, since servers acknowledge updates between the two."""
        self.rate: float | None = None
        """The learning rate at which the training continues, if it is the saved one."""
        self._before: list[int] | None = None  # steps of each replica in earlier runs, if they step apart

    def begin(self, dataset: Dataset, steps: int | None) -> tuple[Dataset, DataCursor]:
        """Return the dataset in this training's order, and the position to begin at; load the model's values.

        Raises InvalidArgumentError, with the difference, if what is found is of a training unlike this one.
        """
        context, states, strategy = self._context, self._context.states, self._context.strategy
        part = dataset if dataset.policy is None else strategy.dataset(dataset, None)
        # What a worker reads of its own is part of what a continued training must have in common.
        self._data, self._steps, cursor = part if part.apart else dataset, steps, DataCursor()
        if states is not None:
            states.require_support(strategy)
            self._found = states.find(context.trainings)
            while context.is_chief and states.fallbacks:
                print(states.fallbacks.pop(0))
            if repeated := states.repeated(context.trainings - 1, context.loop.begun, "fit"):
                context.note(repeated)
            if self._found is not None:
                cursor = self._take(self._found)
            elif self._seed is None and strategy.continues and unseeded(dataset.steps):
                self._seed = secrets.randbits(32)  # so that a continued training has these orders
        self._began = context.progress.step
        return context.served(strategy.dataset(dataset, self._seed)), cursor

    def again(self, dataset: Dataset) -> Dataset:
        """Return the dataset of a further pass in this training's order.

        Where the place in the data is saved, passes go through data that came about alike. Raises
        InvalidArgumentError for other data.
        """
        strategy = self._context.strategy
        if self._context.states is not None:
            part = dataset if dataset.policy is None else strategy.dataset(dataset, None)
            own = part if part.apart else dataset
            require_same("the first pass of this loop", made_of(self._data), made_of(own))
        return self._context.served(strategy.dataset(dataset, self._seed))

    def _take(self, found: SavedState) -> DataCursor:
        """Check what is found, and give it to the model."""
        state, context, strategy = found.state, self._context, self._context.strategy
        where = str(context.states and context.states.read)
        require_family(where, state.made_with.pop("family", "synchronous"), strategy)
        own = self._model.all_arrays([value for _, value in self._model.variables])
        made_with = self._made_with(self._config(), own)
        # Another number of replicas makes the same steps on the same batches, up to the order of additions.
        self._replicas = state.made_with.pop("replicas", 1), made_with.pop("replicas")
        made_with.pop("family")
        require_same(where, state.made_with, made_with)
        for array, kept in zip(own, found.arrays, strict=True):
            np.copyto(array, kept)
        self._seed, context.progress.step = state.seed, state.began
        strategy.restored = RestoredState(found.slots, state.updates)
        self._optimizer.learning_rate = self._rate_of(state)
        self._place = state.place if state.steps is None else self._place_of_replica(state, state.steps)
        others = {"history"} if self._before is not None and strategy.replica_index else set[str]()
        if context.loop.values.restored:  # a training before has changed them
            others.add("values")
        if self._given_rate != state.given_rate:  # one that is given anew is used as it is
            others.add("rate_factor")
        self._restore(state, others)
        return self._place

    def _restore(self, state: State, others: Collection[str] = ()) -> None:
        """Put the components where they were, but for ``others``."""
        self.components.load_state_dict({n: getattr(state, n) for n in COMPONENTS if n not in others})

    def _rate_of(self, state: State) -> float:
        """Return the learning rate to continue with: the saved one, or one that was given anew."""
        return state.rate if self._given_rate == state.given_rate else self._given_rate

    def _place_of_replica(self, state: State, steps: Sequence[int]) -> DataCursor:
        """Return the position of this replica, which steps independently, in its own data.

        A replica that the saved training did not have begins where the chief was.
        """
        strategy, data = self._context.strategy, self._data
        chief = state.step - state.began  # all of its gradients are in the parameters
        self._before = [chief, *steps[1:]]
        if strategy.replica_index == 0:
            return state.place
        per_epoch = data.cardinality() if self._steps is None else self._steps
        return place_after(
            self._steps_before(strategy.replica_index), state, per_epoch, self._steps is not None
        )

    def resume(self, replica: Replica, epochs: int | None) -> None:
        """Put the replica and what counts progress where they were.

        ``epochs`` is None for a loop of one's own, whose length nothing knows.
        """
        found, self._found, self._epochs = self._found, None, epochs
        if found is None:
            return
        state, context = found.state, self._context
        context.strategy.restored = None
        kept = continuing(replica)
        if context.strategy.keeps_slots:
            kept.restore_slots(found.slots)
        as_given, rate = self._given_rate == state.given_rate, self._rate_of(state)
        kept.resume(state.updates, rate, found.mark)
        self.rate = rate if as_given else None
        index = 0 if self._before is None else context.strategy.replica_index
        step = state.step if self._before is None else state.began + self._steps_before(index)
        progress = context.progress
        progress.resume(step, state.examples, state.skipped)
        progress.global_step = state.updates_before + state.updates
        over = epochs is not None and self._place.epoch >= epochs
        if over:
            progress.total = step
        if context.is_chief:
            at = "" if as_given or isnan(rate) else f", at learning rate {rate:g}"
            then, now = self._replicas
            at += "" if then == now else f", on {now} replica{'s' * (now > 1)} instead of {then}"
            print(
                f"all {epochs} epochs are over: the training ended after step {state.step}, and none is made"
                if over
                else f"training continues after step {state.step}, in epoch {state.place.epoch + 1}{at}"
            )

    def saved_slots(self) -> RestoredState | None:
        """Return the optimizer's slots in the newest state of this training in the run's folder, if any.

        Every replica has them: they are in its folder, or fetched from another's host. A damaged one is left
        for the one before it.
        """
        states = self._context.states
        if states is None or states.folder is None:
            return None
        files = [*state_files(states.folder), *states.others()]
        files.sort(key=lambda path: path.name, reverse=True)
        for _, found in whole(files, read_saved, lambda path, error: None):
            if found.state.training == self._context.trainings and found.state.loop is None:
                return RestoredState(found.slots, found.state.updates)
        return None

    def joined_state(self, replica: Replica, cursor: DataCursor) -> JoinedState:
        """Return what a process that joins the training between two steps has to know."""
        state = self._now(replica, cursor).state
        arrays = self._model.all_arrays(replica.values)
        return JoinedState(state.to_config(), self._besides(arrays, replica.values))

    def join(self, joined: JoinedState) -> DataCursor:
        """Continue where the others were when this new process joined them; return its place in the data."""
        self._found, progress = None, self._context.progress
        state = State.from_config(joined.state)
        values = [value for _, value in self._model.variables]
        own = self._besides(self._model.all_arrays(values), values)
        for array, theirs in zip(own, joined.arrays, strict=True):
            np.copyto(array, theirs)
        self._restore(state)
        self._seed, self._began = state.seed, state.began
        progress.step, progress.skipped = state.step, 0
        progress.global_step = state.updates_before + state.updates
        return state.place

    @staticmethod
    def _besides(arrays: Sequence[Array], values: Sequence[Array]) -> list[Array]:
        """Return the arrays of a model that are no parameters."""
        return [array for array in arrays if not any(array is value for value in values)]

    def saver(self, replica: Replica, cursor: Callable[[], DataCursor]) -> Callable[[], float] | None:
        """Return what saves the state between two steps, once it is time; None if nothing does.

        ``cursor`` returns the place of the next step in the data. What is returned returns the seconds that
        it took, and raises StepStopped if the last step is never made, because others have stopped before it.
        """
        states = self._context.states
        if states is None or not states.saves or not self.leaves:
            return None
        progress = self._context.progress
        states.begin(progress.step)

        def save() -> float:
            if not self._context.is_chief or not states.is_due(progress.step):  # another may become the chief
                return 0.0
            if replica.state is not None and not replica.state.ask_state():
                return 0.0
            began = time.perf_counter()
            states.save(*self._moment, lambda: self._now(replica, cursor()).snapshot())
            self._context.note_span("compute", "state", began)
            return time.perf_counter() - began

        return save

    @property
    def leaves(self) -> bool:
        """Whether this training leaves its state: one after a stop does not, nor one that is repeated."""
        context, states = self._context, self._context.states
        if states is None or self._stopped_before or states.cut:
            return False
        return context.trainings >= states.awaited

    def end(self, replica: Replica, cursor: DataCursor) -> None:
        """Leave the state, if it is wanted; a failure ends nothing.

        It is called when all updates are applied; before, if servers keep the optimizer's slots.
        """
        states, strategy, leaves = self._context.states, self._context.strategy, self.leaves
        if states is None or not self._context.is_chief:
            return
        # Not by a callback, so that later trainings of the run do not begin where this one was to end.
        cut_short = (
            self._context.control.stop_requested if self._epochs is None else cursor.epoch < self._epochs
        )
        states.cut = states.cut or self._stopped_before or (cut_short and not self._history.stop_training)
        if not leaves:
            return
        if states.ends_with_state:
            with contextlib.suppress(StepStopped):  # others have left before its last step: an older state
                states.save(*self._moment, lambda: self._now(replica, cursor).snapshot())
            states.finish()
        if states.target is None:
            return
        if not strategy.continues:
            states.error = f"strategy {strategy.name} leaves no state from which a training can be continued"
            return
        states.keep(lambda: self._now(replica, cursor).snapshot())

    @property
    def _moment(self) -> tuple[int, int]:
        """The number of the training, and of its last step."""
        return self._context.trainings, self._context.progress.step

    def _now(self, replica: Replica, cursor: DataCursor) -> SavedState:
        """Return the state as it is now."""
        config, found = self._config(), continuing(replica).read_state()
        arrays = self._model.all_arrays(found.values)
        made_with = self._made_with(config, arrays)
        state = self._state(replica, found, cursor, made_with)
        return SavedState(state, arrays, found.slots, config)

    def _state(
        self,
        replica: Replica,
        found: ReplicaState,
        cursor: DataCursor,
        made_with: dict[str, Any],
    ) -> State:
        progress, rate = self._context.progress, rate_of(replica)
        components = self.components.state_dict()  # which may count a step that was left out
        return State(
            training=self._context.trainings,
            place=cursor,
            seed=self._seed,
            began=self._began,
            step=progress.step,
            updates_before=self.updates_before,
            updates=found.updates,
            examples=progress.examples,
            skipped=progress.skipped,
            given_rate=self._given_rate,
            rate=self._given_rate if rate is None else rate,
            made_with=made_with,
            steps=None if found.steps is None else self._all_steps(found.steps),
            **{**components, "values": components["values"] or None},
        )

    def _all_steps(self, steps: Sequence[int]) -> list[int]:
        """Return the steps of each replica, with those of earlier runs."""
        return [made + self._steps_before(replica) for replica, made in enumerate(steps)]

    def _steps_before(self, replica: int) -> int:
        """Return the steps that a replica had made when this run began."""
        before = self._before or [0]
        return before[replica] if replica < len(before) else before[0]

    def _made_with(self, config: dict[str, Any], arrays: list[Any]) -> dict[str, Any]:
        """Return what must be the same in a continued training."""
        kept = {name: config.get(name) for name in ("layers", "input_shape", "loss", "metrics")}
        return {
            **kept,
            "arrays": [f"{array.dtype} {array.shape}" for array in arrays],
            "optimizer": settings_of(self._optimizer),
            "data": made_of(self._data),
            "steps_per_epoch": self._steps,
            **({"data_repeats": True} if self._steps is not None and not self._data.endless else {}),
            "replicas": self._context.strategy.num_replicas_in_sync,
            "family": self._context.strategy.family,
        }


class _Origin:
    """What the random numbers of a model follow from."""

    def __init__(self, model: Trainable) -> None:
        self.state_dict, self.load_state_dict = model.origin, model.draw_from
