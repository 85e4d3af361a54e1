"""States of loops of one's own: `save_if_due` writes one between two batches, `load` continues one.

    strategy.scope(), epochs(), state() ───► load: the step, the position of the loops
    strategy.run, a variable that is read ─► values of variables, once these are made
    the first update of an optimizer ──────► its slots, and its number of updates
    before a batch of the outermost pass ──► save_if_due

A state has all variables of the run's strategies by name, the slots of those that are trained, the position
of the loops (`LoopPosition`), and the values of `nbdist.train.state`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.runtime.ps.client import StepStopped
from nbdist.train.capabilities import JoinedState, RestoredState
from nbdist.train.context import Context, current
from nbdist.train.custom.position import SavedValues, iterate_epochs
from nbdist.train.custom.sync_rules import apart
from nbdist.train.replica import continuing, rate_of
from nbdist.train.resume import SavedState, State, require_family, require_same, settings_of

MOST_NAMED = 5

if TYPE_CHECKING:
    from nbdist.train.custom.replicas import VariableGroup
    from nbdist.train.custom.variables import StrategyVariables


def epochs(count: int) -> Iterator[int]:
    """Yield the numbers of the epochs of a loop of one's own, from 0; a resumed run begins at the saved one.

    - ``count``: the number of epochs, from the beginning of the training; 0 or more

    With ``--checkpoint-every`` the state may be saved before each epoch, and, inside of it, before each batch
    of ``strategy.distribute_dataset``. Ends early when the run is asked to stop. Raises InvalidArgumentError
    for another count. Runs on the workers, or in any process.

    >>> list(epochs(3))
    [0, 1, 2]
    """
    context = current()
    join(context, has_to=False)
    load(context)

    def boundary() -> None:
        save_if_due(context)
        # A stop at the end of a pass: the state of after it is saved first.
        context.loop.ended = context.loop.ended or any(owner.ended for owner in context.loop.owners)

    return iterate_epochs(context.loop, count, boundary)


def state(**values: Any) -> SavedValues:
    """Return a dict of plain values that is saved with the state of a training; restored in a resumed run.

    - ``values``: the initial values by name: numbers, text, True, False, None, lists and dicts of them

    Change the items in the loop. Runs on the workers, or in any process; the chief's values are saved, and
    all replicas continue with them::

        best = nb.train.state(loss=1e9, epoch=0)
        for epoch in nb.train.epochs(10):
            ...
            if loss < best["loss"]:
                best.update(loss=loss, epoch=epoch)

    >>> state(best=0.5)["best"]
    0.5
    """
    context = current()
    join(context, has_to=False)
    load(context)
    found = SavedValues(values)
    context.loop.add_values(found)
    return found


def load(context: Context) -> None:
    """Continue the state of a loop, once the trainings before it are made."""
    states, loop, joining = context.states, context.loop, context.strategy.joining
    if states is None or loop.restored is not None or (joining is not None and joining.joins_loops):
        return
    found = states.find_loop(context.trainings - loop.begun)
    if found is None:
        if states.values and not loop.values.restored and context.trainings + 1 >= states.awaited:
            loop.values.load_state_dict(states.values)
        return
    while context.is_chief and states.fallbacks:
        print(states.fallbacks.pop(0))
    _continue(context, found)
    state = found.state
    context.progress.resume(state.step, state.examples, state.skipped)
    if context.is_chief:
        print(f"training continues after step {state.step}")


def join(context: Context, has_to: bool = True) -> None:
    """Have the new process of a lost worker take its place in the others' loops, before it needs one.

    Waits until they admit it between two steps; they wait then until it has made its way to that step.
    If their loops have ended, raises FailedPreconditionError where it ``has_to`` join one; else it may still
    join them in a ``fit``.
    """
    joining = context.strategy.joining
    if joining is None or not joining.joins_loops:
        return
    joined = joining.join_loop()
    if joined is None and not has_to:
        return
    if joined is None:
        raise FailedPreconditionError("the others' loops have ended: this process takes no part in them")
    found = SavedState(State.from_config(joined.state), [*joined.arrays])
    context.loop.joined, context.progress.skipped = True, 0
    _continue(context, found)


def _continue(context: Context, found: SavedState) -> None:
    """Put the loops of a run where a state has them; variables take their values when they are made."""
    loop, progress, state = context.loop, context.progress, found.state
    for number, owner in enumerate(loop.owners):  # of scopes that were entered before, such as that of a fit
        owner.restore(RestoredLoop.of(found, number, owner))
    loop.restored, loop.saved_step = found, state.step
    loop.load_state_dict((state.loop or {})["position"])
    progress.step, progress.global_step = state.step, state.updates
    if context.states is not None:
        context.states.begin(state.step)


def joined_state(context: Context) -> JoinedState:
    """Return what a new process receives that joins the loops of a run between two steps."""
    found = _now(context)
    return JoinedState(found.state.to_config(), found.arrays)


def save_if_due(context: Context, dataset: int | None = None) -> None:
    """Save the state if it is time, between two batches of the outermost pass or between two epochs."""
    states, loop = context.states, context.loop
    if states is None or not states.saves or not context.is_chief:
        return
    if context.fitting or not loop.owners:  # a training that saves its own state, or nothing to save
        return
    if loop.active[:1] != ([] if dataset is None else [dataset]):  # an outer batch is not over
        return
    stops = context.control.stop_requested
    due = context.progress.step > loop.saved_step and (stops or states.is_due(context.progress.step))
    if not due or states.cut or loop.ended or context.trainings < states.awaited:
        return
    answers = [owner.ask_state() for owner in loop.owners]  # asks each
    if not all(answers):
        return  # the next boundary has it
    loop.saved_step = context.progress.step
    with suppress(StepStopped):  # the next step finds out
        states.save(max(1, context.trainings), loop.saved_step, lambda: _now(context).snapshot())
    if stops:
        states.finish()


def loop_state(owner: StrategyVariables) -> tuple[dict[str, Any], list[Array], list[dict[str, Array]]]:
    """Return the variables of one strategy as they are now: names and groups, values, slots.

    A group is what one optimizer trains: its variables, its settings, its updates and its learning rate.
    """
    trained: dict[str, tuple[Array, dict[str, Array]]] = {}
    groups: list[dict[str, Any]] = []
    for group in owner.groups:
        if not group.replicas:
            continue
        found = continuing(group.replicas[0]).read_state()
        own = [v.name for v in group.trained]
        trained.update(zip(own, zip(found.values, found.slots, strict=True), strict=True))
        rate = rate_of(group.replicas[0])
        groups.append({
            "variables": own,
            "updates": found.updates,
            "given_rate": group.given_rate,
            "rate": group.given_rate if rate is None else rate,
            "rate_factor": group.schedules[0].factor.state_dict() if group.schedules else 1.0,
            "optimizer": settings_of(group.optimizer),
        })  # fmt: skip
    names, arrays, slots = list[str](), list[Array](), list[dict[str, Array]]()
    for v, array in owner.first_values().items():
        value, kept = trained.get(v.name, (array, {}))
        names.append(v.name)
        arrays.append(value)
        slots.append(kept)
    return {"names": names, "groups": groups}, arrays, slots


def _now(context: Context) -> SavedState:
    names: list[str] = []
    arrays: list[Array] = []
    slots: list[dict[str, Array]] = []
    groups: list[dict[str, Any]] = []
    progress, loop = context.progress, context.loop
    for number, owner in enumerate(loop.owners):
        of, values, kept = loop_state(owner)
        names += [f"{number}/{name}" for name in of["names"]]
        groups += [{**one, "variables": [f"{number}/{v}" for v in one["variables"]]} for one in of["groups"]]
        arrays += values
        slots += kept
    config = {
        "names": names,
        "shapes": [list(array.shape) for array in arrays],  # in a file, a scalar is an array of one
        "groups": groups,
        "fits": context.trainings - loop.begun,
        "family": context.strategy.family,
        "position": loop.state_dict(),
        "updates_before": [owner.updates_before for owner in loop.owners],
        "scales": [owner.scales for owner in loop.owners],
    }
    state = State(
        training=max(1, context.trainings), seed=context.seed, step=progress.step,
        updates=progress.global_step, examples=progress.examples, skipped=progress.skipped, loop=config,
    )  # fmt: skip
    return SavedState(state, arrays, slots)


@dataclass
class RestoredLoop:
    """What a strategy's variables take from a saved state, each when it is made."""

    owner: StrategyVariables
    values: dict[str, Array]
    """Values that are not given yet, by the names of variables, as are the slots."""
    slots: dict[str, dict[str, Array]]
    groups: InitVar[Sequence[dict[str, Any]]]
    mark: int = 0
    joins: bool = False
    """Whether it is the state of other replicas that go on, and not that of a file."""
    updates_before: int = 0
    scales: Sequence[list[float]] = ()

    def __post_init__(self, groups: Sequence[dict[str, Any]]) -> None:
        self._groups = {tuple(one["variables"]): one for one in groups}
        self.alike = set(self.values) if self.joins else set[str]()
        """Names of the variables that the others have, which are alike on all."""

    @classmethod
    def of(cls, found: SavedState, number: int, owner: StrategyVariables) -> RestoredLoop:
        """Return what the run's strategy of that number has in a saved state."""
        saved = found.state.loop or {}
        require_family("the saved state", saved["family"], owner.strategy)
        mine, shapes, before = f"{number}/", saved["shapes"], saved["updates_before"]
        scales = saved.get("scales", [])
        indices = {n.removeprefix(mine): i for i, n in enumerate(saved["names"]) if n.startswith(mine)}
        groups = [
            {**one, "variables": [v.removeprefix(mine) for v in one["variables"]]}
            for one in saved["groups"]
            if all(v.startswith(mine) for v in one["variables"])
        ]
        return cls(
            owner,
            {name: found.arrays[i].reshape(shapes[i]) for name, i in indices.items()},
            {name: found.slots[i] if i < len(found.slots) else {} for name, i in indices.items()},
            groups,
            mark=found.mark,
            joins=owner.context.loop.joined,
            updates_before=before[number] if number < len(before) else 0,
            scales=scales[number] if number < len(scales) else [],
        )

    def give(self, variable: Any, array: Array) -> None:
        """Copy the saved value of a variable into its array, the first time."""
        value = self.values.pop(variable.name, None)
        if value is None:
            return
        if (value.shape, value.dtype) != (array.shape, array.dtype):
            raise InvalidArgumentError(
                f"variable {variable.name!r} was {value.dtype} {value.shape} in the saved state, and is "
                f"{array.dtype} {array.shape} now: continue it with the model that it was saved with"
            )
        strategy = self.owner.strategy
        if self.joins and apart(variable) and variable.aggregation == "sum":
            return  # the others have all of it
        alone = strategy.num_replicas_in_sync == 1 or strategy.replica_index == 0
        if alone or not (apart(variable) and variable.aggregation == "sum"):
            np.copyto(array, value)

    def begin(self, group: VariableGroup) -> None:
        """Prepare a group that begins to be trained: its learning rate, and the slots that servers keep."""
        saved = self._of(group)
        if saved is None:
            return
        require_same("the saved state", saved["optimizer"], settings_of(group.optimizer))
        if group.given_rate == saved["given_rate"]:
            group.optimizer.learning_rate = saved["rate"]
        if self.joins:
            self._enter(True)
            return
        self.owner.strategy.restored = RestoredState(self._slots_of(saved), saved["updates"])

    def _enter(self, enters: bool) -> None:
        if self.owner.strategy.joining is not None:
            self.owner.strategy.joining.enters_training = enters

    def resume(self, group: VariableGroup) -> int:
        """Give the slots to the replicas of a group; return the updates that they continue after."""
        self.owner.strategy.restored = None
        self._enter(False)
        saved = self._groups.pop(self._names(group), None)
        if saved is None:
            return 0
        if self.joins:  # the replica has its parameters, slots and rate from the others
            return group.replicas[0].report.global_step
        if self.owner.strategy.keeps_slots:
            for local, replica in zip(self.owner.local.all, group.replicas, strict=True):
                with local.scope:
                    continuing(replica).restore_slots(self._slots_of(saved))
        rate = group.optimizer.learning_rate
        self.owner.local.each(
            lambda i: continuing(group.replicas[i]).resume(saved["updates"], rate, self.mark)
        )
        for schedule in group.schedules if group.given_rate == saved["given_rate"] else ():
            schedule.factor.load_state_dict(saved.get("rate_factor", 1.0))
        return int(saved["updates"])

    def _of(self, group: VariableGroup) -> dict[str, Any] | None:
        return self._groups.get(self._names(group))

    def _names(self, group: VariableGroup) -> tuple[str, ...]:
        return tuple(v.name for v in group.trained)

    def _slots_of(self, saved: dict[str, Any]) -> list[dict[str, Array]]:
        return [self.slots[name] for name in saved["variables"]]


def finish_states(context: Context, whole: bool) -> None:
    """Wait for the disk at the end of a run's loops, and report what could not be saved or restored.

    No state is saved here: one of a loop that is over would be continued by no step, and without a step the
    body may not make its variables, which could not be restored then.
    """
    states, loop = context.states, context.loop
    if whole and loop.restored is not None and not loop.begun:  # all steps were made in earlier runs
        loop.begun, context.trainings = 1, context.trainings + 1
        context.progress.trainings = context.trainings
    if states is None or not context.is_chief or not loop.begun:
        return
    left = [name for owner in loop.owners for name in owner.not_restored]
    if whole and left:
        print(f"variables of the saved state that this run did not make: {', '.join(left[:MOST_NAMED])}")
    if not states.saves:
        return
    if whole and not loop.known and states.interval is not None:
        print(
            "no state was saved: --checkpoint-every needs a loop over strategy.distribute_dataset(...) "
            "or nb.train.epochs(...), which say where to continue"
        )
    states.finish()
