"""The variables of a strategy's custom loops in this process, their values, and the replicas that train them.

A variable has a host array: its own, or that of the model it belongs to. Once an optimizer trains it, the
newest value is in the strategy's replicas, and is fetched into the host array when it is read. If one process
has several replicas, each :class:`LocalReplica` has its own values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.backend import to_host
from nbdist.graph.compile.program import compile_program
from nbdist.graph.compile.specs import value_order
from nbdist.graph.partitioned import PartitionedVariable
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Tensor, Variable
from nbdist.runtime.ps.client import StepStopped
from nbdist.train.boundary import Boundary
from nbdist.train.capabilities import JoinedState
from nbdist.train.context import MODEL, StrategyContext, current, save_variables
from nbdist.train.custom import sync_rules
from nbdist.train.custom.replicas import LocalReplica, LocalReplicas, StepRecorder, VariableGroup
from nbdist.train.custom.resume import RestoredLoop, joined_state, load
from nbdist.train.custom.trace import Applied, Trace, tracing
from nbdist.train.replica import Replica, RetryStep, rate_of
from nbdist.train.schedule import RateSchedule

if TYPE_CHECKING:
    from nbdist.train.strategy import Strategy

Array: TypeAlias = np.ndarray[Any, Any]
MOVE_IN = "make what a step uses inside `with strategy.scope():` of the strategy that runs it"


class StrategyVariables:
    """All variables of one strategy in this process. Calls come from one thread."""

    def __init__(self, strategy: Strategy) -> None:
        here = current()
        load(here)
        self.strategy = strategy
        self.context = here if here.strategy is strategy else StrategyContext(here, strategy)
        self.graph = Graph()
        self.graph.owner, self.graph.hint = self, MOVE_IN
        self.host_values: dict[Variable, Array] = {}
        self.copied: set[Variable] = set()
        """Variables that steps assign."""
        self.groups: list[VariableGroup] = []
        self.ended = False
        """Whether the training was asked to stop, or another replica has left it."""
        self.stop_requested = False
        """Whether this process asks the others to stop before their next step."""
        self.at_finish: Callable[[], object] | None = None
        """Called when replicas finish, while they still have what their optimizers keep."""
        self.updates_before = 0
        """Updates of the run before those that are trained now."""
        self.takes_over = False
        """Whether a process that replaces a lost one may continue at the step that parameter servers have
        counted for it: its loop finds its place from :attr:`joined_at`."""
        self.joined_at: int | None = None
        """How many steps a lost process had made in the place of this one, which has taken over from it."""
        self._counted: dict[Variable, int] = {}
        self._settled: set[Variable] = set()
        self.local = LocalReplicas(strategy, self.context, self._cut_off)
        self.savers: list[tuple[Sequence[Variable], Callable[[Sequence[Any], Path], bool]]] = []
        """What writes models whose weights are variables of this strategy: these, given their values."""
        self.recorder = StepRecorder(self.context, self.local.all[0].xp)
        loop = self.context.loop
        self._restored = (
            None if loop.restored is None else RestoredLoop.of(loop.restored, len(loop.owners), self)
        )
        loop.owners.append(self)
        self.boundary = Boundary(
            self.context, self._training, self._updates, lambda folder: save_loop(self, folder)
        )

    @property
    def steps(self) -> int:
        """Steps of the run on this replica: those of all its loops and trainings."""
        return self.context.progress.step

    def group_for(self, applied: Applied) -> VariableGroup:
        """Return the variables that an optimizer trains together, or raise if they are not those it did."""
        wanted = set(applied.variables)
        for v in wanted & self.copied:
            raise InvalidArgumentError(
                f"variable {v.name!r} is trained and assigned: an assignment would go past the update that "
                "all replicas make together. Make it trainable=False, or train it only"
            )
        for group in self.groups:
            if group.given is applied.optimizer and set(group.trained) == wanted:
                return group
            for v in wanted & set(group.trained):
                names = ", ".join(v.name for v in group.trained)
                raise InvalidArgumentError(
                    f"variable {v.name!r} is trained already, by another {type(group.optimizer).__name__} or "
                    f"with other variables ({names}): make an optimizer once, outside of the function that "
                    "run is given, and let it train the same variables in every step"
                )
        group = VariableGroup(applied.optimizer, applied.variables, applied.counter)
        self.groups.append(group)
        if applied.counter is not None:
            self._counted.setdefault(applied.counter, int(self.host_value(applied.counter)))
        return group

    def begin(self, group: VariableGroup, step: Trace) -> None:
        """Transfer variables to the strategy's replicas, which train them from this step on."""
        if self.context.states is not None:
            self.context.states.require_support(self.strategy)
        found = {v: g for one in step.applied for v, g in zip(one.variables, one.gradients, strict=True)}
        tables = [
            number
            for number, v in enumerate(group.trained)
            if found[v].rows is not None
            and not (self.strategy.pulls_rows and step.lookups(v) is None)  # it requests rows
        ]
        self.restore_values()
        group.begin([(v.name, self.host_value(v)) for v in group.trained], tables)
        restored = self._restored
        if not any(other.replicas for other in self.groups):
            self.updates_before = self.context.progress.global_step
        if restored is not None:
            restored.begin(group)
        companions = self.strategy.companions(self.context, group, group.optimizer)
        contexts = [self.context, *companions]
        made: dict[int, Replica] = {}
        try:
            self.local.each(lambda i: made.update({i: group.replica(contexts[i], self.takes_over)}))
        except BaseException:
            for replica in made.values():
                replica.close()
            self.strategy.end()
            raise
        group.replicas = [made[i] for i in range(len(contexts))]
        if (schedule := group.optimizer.schedule) is not None:
            group.schedules = [
                RateSchedule(lambda updates, epoch: schedule(updates), self.boundary, one, rate_of(replica))
                for one, replica in zip(contexts, group.replicas, strict=True)
            ]
        membership = made[0].membership
        if self.takes_over and self.joined_at is None and membership and membership.joins_at is not None:
            self.joined_at, progress = membership.joins_at, self.context.progress
            progress.step += self.joined_at
            progress.joined, progress.left_out = progress.step, membership.left_out
        if restored is not None and (updates := restored.resume(group)):
            self.updates_before = restored.updates_before
            if group.counter is not None:
                self._counted[group.counter] -= updates
            if restored.joins:
                self.context.world.enters, self.context.progress.joined = False, self.context.progress.step
        alone = self.strategy is self.context.strategy and len(self.local.all) == 1
        if alone and self.context.loop.known and (own := group.own) is not None:  # new processes can join
            own.hooks.position = lambda: JoinedState(
                {"updates": own.report.global_step, "rate": rate_of(own)}, []
            )
        states, loop = self.context.states, self.context.loop
        if states is not None and (repeated := states.repeated(self.context.trainings, loop.begun, "loop")):
            self.context.note(repeated)
        loop.begun += 1
        self.context.trainings += 1
        self.boundary.show_rate()
        self.context.note_own_passes()
        self._settled.update(group.trained)  # they begin with the first one's values
        self.context.progress.trainings, self.context.progress.state = self.context.trainings, "running"
        if self.context.step_log is not None:
            self.context.step_log.begin(group.replicas[0])
        for note in group.replicas[0].notes:
            print(note)
        for local in self.local.all:
            local.programs.clear()
            for v in group.trained:  # the replica has the value from now on
                local.arrays.pop(v, None)

    def restore(self, restored: RestoredLoop) -> None:
        """Continue from a state that has arrived after the variables were begun to be made."""
        if self._training():  # in a loop before, which was over when the state was saved
            self.finish()
        self.fetch_local()
        for local in self.local.made:  # what replicas have follows from the restored values
            local.arrays.clear()
            local.programs.clear()
        self._restored = restored
        self.restore_values()
        for counter in self._counted:
            self._counted[counter] = int(self.host_value(counter))

    def admit(self) -> None:
        """Have new processes join before the next step, if the replicas have agreed on it in the last one."""
        training = [group.own.membership for group in self.groups if group.own is not None and group.replicas]
        if any(membership is not None and membership.regroups_next for membership in training):
            if self.strategy.joining is not None:
                self.strategy.joining.admit_to_loop(lambda: joined_state(self.context))
            for group in self.groups:
                group.stepped = False  # the new processes do not end what was stepped without them

    def continue_from(self, restored: RestoredLoop) -> None:
        """Begin the next training with these values, slots and counts; not one that is resumed by its run."""
        if self._restored is None or not self._restored.values:
            self._restored = restored
            self.restore_values()

    def count_from(self, counter: Variable, value: int) -> None:
        """Begin to count steps at a number, in a variable that the next training counts them in."""
        self.host_value(counter)[...] = value
        self._counted[counter] = value

    def handle_control(self) -> None:
        """Handle new messages of the run's control, if something is trained."""
        boundary = self.boundary
        if self.context.control.messages != boundary.handled and self._training():
            with contextlib.suppress(StepStopped):  # the next step finds out
                self.recorder.exclude(boundary.handle())

    def values(self, local: LocalReplica, variables: Sequence[Variable]) -> dict[Variable, Array]:
        """Return where a replica has its values of variables."""
        found: dict[Variable, Array] = {}
        for group in self.groups:
            if group.replicas:
                found.update(zip(group.trained, group.replicas[local.index].values, strict=True))
        return {v: found[v] if v in found else self._own(local, v) for v in variables}

    def settle(self, variables: Sequence[Variable]) -> None:
        """Give all replicas the first one's values of variables that are alike on all and not trained.

        This comes before any of them changes its own.
        """
        trained = {v for group in self.groups if group.replicas for v in group.trained}
        for v in variables:
            if v in self._settled or v in trained:
                continue
            if self._restored is not None and v.name in self._restored.alike:
                self._settled.add(v)
                continue
            self._settled.add(v)
            own = [to_host(self._own(local, v)) for local in self.local.all]
            if self.strategy.num_replicas_in_sync > 1 and not sync_rules.apart(v):
                self._spread(v, self.local.all_reduce(own, "first"))

    def remember(self, variables: Sequence[Variable], at: LocalReplica | None = None) -> Callable[[], None]:
        """Return a function that resets variables to the current values of this process's replicas.

        ``at`` selects one replica.
        """
        chosen = self.local.all if at is None else [at]
        kept = []
        for local in chosen:
            with local.scope:
                arrays = [self._own(local, v) for v in variables]
                kept += [(local, array, local.xp.array(array)) for array in arrays]

        def restore() -> None:
            for local, array, before in kept:
                with local.scope:
                    array[...] = before

        return restore

    def host_value(self, variable: Variable) -> Array:
        """Return the array that has a variable's value outside of steps."""
        if variable not in self.host_values:
            value = variable.initial_value
            if isinstance(value, Tensor):
                order = value_order([value])
                values = {v: self.host_value(v) for v in order if isinstance(v, Variable)}
                (value,) = compile_program([value], values=values)()
            self.host_values[variable] = np.array(value)
            if self._restored is not None:
                self._restored.give(variable, self.host_values[variable])
        return self.host_values[variable]

    def restore_values(self) -> None:
        """Give the variables that were made so far, those of models too, the values of the restored state."""
        if self._restored is not None and self._restored.values:
            for variable, array in self.host_values.items():
                self._restored.give(variable, array)

    @property
    def saved_scales(self) -> Sequence[list[float]]:
        """The loss scales of the restored state, in the order in which optimizers first made steps."""
        return () if self._restored is None else self._restored.scales

    @property
    def scales(self) -> list[list[float]]:
        """The loss scales of this process's first replica, after its last step."""
        found = [one.state_dict() for local in self.local.made[:1] for one in local.scalings.values()]
        return [scale for scale in found if scale is not None]

    @property
    def not_restored(self) -> list[str]:
        """The names of variables of the restored state that were not made yet."""
        return [] if self._restored is None else list(self._restored.values)

    def first_values(self) -> dict[Variable, Array]:
        """Return the values of all variables of this process's first replica; of trained ones old values."""
        trained = {v for group in self.groups if group.replicas for v in group.trained}
        first = self.local.all[0]
        with first.scope:
            return {
                v: host if v in trained else to_host(self._own(first, v))
                for v, host in list(self.host_values.items())
            }

    def read(self, variable: Any) -> Array:
        """Return the newest value of a variable, as it is outside of replicas."""
        if isinstance(variable, PartitionedVariable) or not isinstance(variable, Variable):
            return self.evaluate(variable, None)  # type: ignore[no-any-return]  # what a tensor is
        if variable.graph is not self.graph:
            raise InvalidArgumentError(f"{variable!r} is not a variable of this strategy; {MOVE_IN}")
        how = sync_rules.read(variable, self.strategy.num_replicas_in_sync)
        if how != "own":
            own = [to_host(self._own(local, variable)) for local in self.local.all]
            return self.local.all_reduce(own, how)
        self.restore_values()
        self.refresh()
        return self.host_value(variable).copy()

    def refresh(self) -> None:
        """Fetch the newest values of all replicas into the host arrays."""
        for group in self.groups:
            if group.replicas:
                with contextlib.suppress(StepStopped):
                    group.replicas[0].reads.fetch()
        self.fetch_local()

    def fetch_local(self) -> None:
        """Copy the values of this process's first replica into the host arrays."""
        for group in self.groups:
            if group.replicas:
                self._copy_to_host(group)
        first = next(iter(self.local.made), None)
        if first is not None and first.xp is not np:
            for v, array in first.arrays.items():
                np.copyto(self.host_value(v), to_host(array))

    def count(self, local: LocalReplica) -> None:
        """Bring the variables that count steps up to date on a replica."""
        for counter, before in self._counted.items():
            steps = sum(g.steps(local.index) for g in self.groups if g.counter is counter)
            with local.scope:
                self._own(local, counter)[...] = before + steps

    def count_updates(self) -> None:
        """Report the updates that this replica knows of."""
        self.context.progress.global_step = self._updates()

    def evaluate(self, tensor: Any, feeds: Any) -> Any:
        """Return the value of a tensor outside of steps; what it assigns is assigned on all replicas."""
        if self.graph.rules is not None and tracing() is not None:
            raise FailedPreconditionError(f"{tensor!r} has no value yet: the step is being traced")
        if isinstance(tensor, Variable):
            return self.read(tensor)
        wanted = tensor.as_tensor() if isinstance(tensor, PartitionedVariable) else tensor
        fed = dict(feeds or {})
        order = value_order([wanted], given=fed)
        numbers = {t: n for n, t in enumerate(self.graph.tensors)}
        order.sort(key=numbers.__getitem__)
        written = {t.inputs[i] for t in order if t.op is not None for i in t.op.writes}
        if any(v in written for group in self.groups if group.replicas for v in group.trained):
            self.finish()
        variables = (v for v in order if isinstance(v, Variable))
        arrays = {v: self.host_value(v) if v in written else self.read(v) for v in variables}
        shapes = [np.shape(a) for a in fed.values()]
        program = compile_program([wanted], feeds=list(fed), shapes=shapes, values=arrays, order=order)
        (value,) = program(*(np.asarray(a, t.dtype) for t, a in fed.items()))
        result = None if wanted.op is not None and not wanted.op.has_value else np.array(value)
        for v in written:
            assert isinstance(v, Variable)
            self._spread(v, arrays[v])
        return result

    def finish(self) -> None:
        """Wait until all replicas' updates are applied, fetch the final values, and close the replicas."""
        keeps = self.at_finish if self._training() else None
        with contextlib.suppress(StepStopped):
            if keeps is not None and not self.strategy.keeps_slots:  # the servers release them at the end
                keeps()
        if keeps is not None:
            self.ask_state()
        for group in [g for g in self.groups if g.replicas]:
            self.local.each(group.finish)
            self._copy_to_host(group)
            self.count_updates()
        # No step counts that this replica has pushed and that was not made, because others had stopped.
        unmade = max((g.replicas[0].report.unmade for g in self.groups if g.replicas), default=0)
        self.context.progress.step -= unmade
        if keeps is not None and self.strategy.keeps_slots:
            keeps()
        self.boundary.end()
        self._close_replicas()

    def ask_state(self) -> bool:
        """Return whether the chief has all that a state needs; if not, the next step brings it."""
        states = [group.replicas[0].state for group in self.groups if group.replicas]
        answers = [state.ask_state() for state in states if state is not None]  # asks each
        return all(answers)

    def abandon(self) -> None:
        """Close the replicas without waiting for any, in any state; fetch the values as they are."""
        for group in [g for g in self.groups if g.replicas]:
            self._copy_to_host(group)
        self._close_replicas()
        self.local.leave_group()

    def _close_replicas(self) -> None:
        if self.recorder.events is not None:
            self.recorder.events.flush()
        for counter in self._counted:
            self._counted[counter] = int(self.host_value(counter))
        for group in self.groups:
            group.close()
        self.strategy.end()
        self.local.release()

    def _copy_to_host(self, group: VariableGroup) -> None:
        for v, value in zip(group.trained, group.replicas[0].values, strict=True):
            if value is not self.host_value(v):  # tables are trained in place
                np.copyto(self.host_value(v), to_host(value))
        for local in self.local.made[:1]:
            self.count(local)

    def _training(self) -> list[Replica]:
        """Return this process's replicas of all that is trained now."""
        return [replica for group in self.groups for replica in group.replicas]

    def _updates(self) -> int:
        """Return how many updates all replicas have made in the run, as far as this process knows."""
        steps = [group.steps(0) for group in self.groups if group.replicas]
        return self.updates_before + max(steps, default=0)

    def _own(self, local: LocalReplica, variable: Variable) -> Array:
        if variable not in local.arrays:
            value = self.host_value(variable)
            shared = local.index == 0 and local.xp is np
            with local.scope:
                local.arrays[variable] = value if shared else local.xp.asarray(value.copy())
        return local.arrays[variable]

    def _spread(self, variable: Variable, value: Array) -> None:
        """Give all replicas of this process a value that was assigned outside of steps."""
        summed = sync_rules.apart(variable) and variable.aggregation == "sum"
        for local in self.local.all:
            first = local.context.strategy.replica_index == 0 or self.strategy.num_replicas_in_sync == 1
            # Of a sum the first replica has all, so that it is what was assigned.
            given = value if first or not summed else np.zeros_like(value)
            with local.scope:
                self._own(local, variable)[...] = local.xp.asarray(given)
        if self.local.all[0].xp is not np:
            np.copyto(self.host_value(variable), value)

    def _cut_off(self, index: int, error: BaseException) -> None:
        if isinstance(error, (StepStopped, RetryStep)):
            return
        self.local.all[index].context.on_error(error)
        for group in self.groups:
            if index < len(group.replicas) and (agreement := group.replicas[index].agreement) is not None:
                agreement.abort(error)
        self.local.abort_group(index, error)


# Checkpoints of a custom loop: models that its steps call, and variables outside of models.


def save_loop(owner: StrategyVariables, folder: Path) -> Path:
    """Write the variables of a strategy, as its replicas have them now; return the first file's path.

    Each model that was called in a step is a file of its own, model.safetensors, model-2.safetensors and so
    on. Variables that belong to none are in variables.safetensors, by name.
    """
    owner.fetch_local()
    paths: list[Path] = []
    written: set[Variable] = set()
    for variables, save in owner.savers:
        path = folder / MODEL if not paths else folder / f"model-{len(paths) + 1}.safetensors"
        if save([owner.host_value(v) for v in variables], path):
            paths.append(path)
            written.update(variables)
    others = [(v.name, array) for v, array in owner.host_values.items() if v not in written]
    if others:
        paths.append(save_variables(others, folder))
    return paths[0]
