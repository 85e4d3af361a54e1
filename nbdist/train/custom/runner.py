"""Runs a function on all replicas of this process: pull, the traced step's program, push.

    loss = strategy.run(step, (x, y))

The function is traced once for arguments of one form (see `trace.py`), for all replicas; each replica has
a program of its own, on its own values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import AbortedError, InvalidArgumentError
from nbdist.graph.backend import to_device
from nbdist.graph.compile.capture import notes_to
from nbdist.runtime.ps.client import StepStopped, TrainingOver
from nbdist.train.boundary import read_values
from nbdist.train.context import use_here
from nbdist.train.custom.compile import Call, lookups_of, program_of
from nbdist.train.custom.reduce import joined, of_replica
from nbdist.train.custom.replicas import LocalReplica, VariableGroup
from nbdist.train.custom.trace import MOST_FUNCTIONS, Trace, Traces, arrays_in, trace, tree_leaves, tree_map
from nbdist.train.custom.variables import StrategyVariables
from nbdist.train.replica import RetryStep, tables_in
from nbdist.train.step import Step
from nbdist.train.step_timing import StepEvents
from nbdist.train.trainable import Shapes

Array: TypeAlias = np.ndarray[Any, Any]
MOST_PROGRAMS = 64  # of one replica


class Runner:
    """Runs functions on the replicas that a strategy has in this process."""

    def __init__(self, variables: StrategyVariables, number: int = 0) -> None:
        self.variables, self.number = variables, number
        self._traces: dict[Any, Traces[Trace]] = {}
        self._recorder = variables.recorder
        self.yielded: list[tuple[Array, int, float, Array]] = []
        """Arrays of the batch that was handed out last, with the number of their first example in it, how
        many times as many examples the whole batch has, and the array of the whole batch."""
        self._skip_nan = False
        self.over = False
        """Whether the run that it belongs to has ended, and with it the other replicas."""

    def run(self, function: Callable[..., Any], arguments: Any = (), skip_nan: bool = False) -> Any:
        """Run a function on every replica of this process; return what it returned, with arrays."""
        variables, self._skip_nan = self.variables, skip_nan
        if not isinstance(arguments, (tuple, list)):
            raise InvalidArgumentError(f"run: args is a tuple of arguments, got {arguments!r}; write (x,)")
        with use_here(variables.context):
            while True:
                try:
                    return self._run(function, arguments)
                except RetryStep:  # replicas were lost, and the others repeat the step
                    arguments = self._cut_again(arguments)

    def prepare(self, function: Callable[..., Any], arguments: Any) -> None:
        """Trace a function for arguments of this form, as `run` does at its first call.

        A process that takes over from a lost one also begins to train, so that it knows where; raises
        TrainingOver if the others have ended that training.
        """
        variables = self.variables
        with use_here(variables.context):
            count = len(variables.local.all)
            calls = [self._call(function, of_replica(tuple(arguments), i, count), i) for i in range(count)]
            if not (variables.takes_over and variables.context.world.rejoins):
                return
            over: TrainingOver | None = None
            for group, _ in calls[0].trained:  # each has a training of its own, which has to be counted
                if not group.replicas:
                    try:
                        variables.begin(group, calls[0].trace)
                    except TrainingOver as error:
                        over = error
                        variables.context.trainings += 1
            if over is not None:
                variables.abandon()
                raise over

    def _run(self, function: Callable[..., Any], arguments: Any) -> Any:
        variables = self.variables
        count = len(variables.local.all)
        calls = [self._call(function, of_replica(tuple(arguments), i, count), i) for i in range(count)]
        variables.restore_values()
        groups = [group for group, _ in calls[0].trained]
        if any([group for group, _ in call.trained] != groups for call in calls):
            raise InvalidArgumentError(
                f"{calls[0].trace.name} trains other variables on some replicas than on others"
            )
        updating = bool(groups) and self._ready(groups, calls)
        return joined(self._steps(calls, groups, updating))

    def _cut_again(self, arguments: Any) -> Any:
        """Return arguments in which shares of a batch are cut anew, for as many replicas as there are now."""
        strategy, cut = self.variables.strategy, list[tuple[Array, int, float, Array]]()
        strategy.require_shared()

        def share(leaf: Any) -> Any:
            whole = next((known[3] for known in self.yielded if known[0] is leaf), None)
            if whole is None or len(self.variables.local.all) > 1:
                return leaf
            mine = whole[strategy.share(len(whole))]
            scale = len(whole) / len(mine) if len(mine) else 0.0
            cut.append((mine, strategy.first_example(len(whole)), scale, whole))
            return mine

        arguments = tree_map(share, arguments)
        self.yielded = cut or self.yielded
        return arguments

    def stopping(self) -> bool:
        """Return whether no step follows, because the run was asked to stop or another replica has left."""
        variables = self.variables
        variables.handle_control()
        variables.context.control.check()
        stop = variables.context.control.stop_requested or variables.stop_requested
        training = [group for group in variables.groups if group.replicas]
        for group in training:
            if not group.agreed and not variables.ended:
                group.agreed = True
                variables.ended = self._agreed(group, stop)
        enters = variables.context.world.enters  # the others wait for this process: it stops with them
        variables.ended = variables.ended or (stop and not training and not enters)
        if variables.ended and training:
            variables.context.loop.ended = True
            variables.finish()
        return variables.ended

    def _agreed(self, group: VariableGroup, stop: bool) -> bool:
        """Return whether the replicas stop before the next step, given whether this process is asked to."""
        variables = self.variables
        if not group.joint and variables.local.has_group:
            # Else they would stop one by one, and the others would wait in their next reduction.
            count = len(variables.local.all)
            stop = bool(variables.local.all_reduce([np.array(stop, np.int64)] * count, "sum"))
        # Asked from this thread: agree() does not wait, and waking all threads would cost more.
        answers = [stop if one.agreement is None else one.agreement.agree(stop) for one in group.replicas]
        return any(answers)

    def end_pass(self) -> None:
        """End a pass through the data, with all replicas."""
        variables, stop = self.variables, self.variables.context.control.stop_requested
        for group in variables.groups:
            if group.replicas and group.stepped:
                group.stepped = False
                ends = variables.local.each(lambda i, group=group: group.end_epoch(i, stop))  # type: ignore[misc]
                variables.ended = variables.ended or any(ends)
        if variables.ended:
            variables.finish()

    def next_seed(self) -> int | None:
        """Return the seed of another dataset: for the first that of a run's first training."""
        seed = self.variables.context.seed
        return None if seed is None else seed + self.variables.context.loop.made["datasets"]

    def _call(self, function: Callable[..., Any], arguments: Any, index: int) -> Call:
        variables = self.variables
        given = list(tree_leaves(arguments))
        strategy = variables.local.all[index].context.strategy
        elsewhere = strategy.replica_index << 32, float(strategy.num_replicas_in_sync)
        first, scale = next((known[1:3] for a in given for known in self.yielded if a is known[0]), elsewhere)
        arguments = arrays_in(arguments)
        arrays = [a for a in tree_leaves(arguments) if isinstance(a, np.ndarray)]
        if function not in self._traces:
            if len(self._traces) >= MOST_FUNCTIONS:
                raise InvalidArgumentError(
                    f"run was given {MOST_FUNCTIONS} different functions, and traces each: define the step "
                    "once, before the loop (a lambda or a def in the loop is a new function each time)"
                )
            self._traces[function] = Traces(getattr(function, "__name__", "the function"))
        made = self._traces[function].find(
            arguments,
            tuple(a.shape for a in arrays),
            lambda shapes: trace(
                variables.graph, variables.strategy, function, arguments, shapes, variables.copied
            ),
        )
        trained = []
        for applied in made.applied:
            group = variables.group_for(applied)
            of = dict(zip(applied.variables, applied.gradients, strict=True))
            trained.append((group, tuple(of[v] for v in group.trained)))
        return Call(made, arrays, trained, first, scale)

    def _ready(self, groups: Sequence[VariableGroup], calls: Sequence[Call]) -> bool:
        """Begin to train what is not trained yet; return whether there is to be an update."""
        variables = self.variables
        if variables.ended:
            raise AbortedError(
                f"{calls[0].trace.name} updates variables, and the training has ended: the run was asked "
                "to stop, or another replica has left. A loop over strategy.distribute_dataset(...) ends then"
            )
        for group in groups:
            if not group.replicas:
                variables.begin(group, calls[0].trace)
        ends = self.stopping()
        for group in groups:
            for replica in group.replicas:
                if replica.membership is not None:
                    replica.membership.renew()
        return not ends

    def _steps(self, calls: Sequence[Call], groups: Sequence[VariableGroup], updating: bool) -> list[Any]:
        variables = self.variables
        variables.settle(calls[0].trace.variables)
        alone = variables.strategy.num_replicas_in_sync == 1
        restore = None if alone else variables.remember(calls[0].trace.assigned)
        try:
            results = variables.local.each(lambda i: self._step(calls[i], variables.local.all[i], updating))
        except RetryStep:
            if restore is not None:
                restore()
            raise
        except StepStopped:  # this step cannot be completed any more: variables stay as they are
            variables.ended = True
            variables.finish()
            if calls[0].trace.communicates:
                raise AbortedError(
                    f"{calls[0].trace.name} brings values of all replicas together, and another replica has "
                    "left; what was trained until then is kept"
                ) from None
            return self._steps(calls, groups, False)
        except BaseException:
            if not alone:
                variables.abandon()
            raise
        if updating:
            for group in groups:
                group.agreed, group.stepped = False, True
            self._count(calls)
        return results

    def _count(self, calls: Sequence[Call]) -> None:
        variables, progress = self.variables, self.variables.context.progress
        progress.step += 1
        progress.examples += sum(len(call.arrays[0]) for call in calls if call.arrays and call.arrays[0].ndim)
        variables.count_updates()

    def _step(self, call: Call, local: LocalReplica, updating: bool) -> Any:
        """Run a step on one replica, on its thread."""
        variables, is_first = self.variables, local.index == 0
        groups = [group for group, _ in call.trained] if updating else []
        replicas = [group.replicas[local.index] for group in groups]
        skips = self._skip_nan and bool(replicas)
        step = Step(
            local.context,
            replicas,
            variables.steps + 1,
            scalings=[local.scaling(one, variables.saved_scales) for one in call.trace.scales],
            events=self._recorder.events if is_first else None,
            skips=skips,
            advice="strategy.run(fn, args, nan='skip')",
        )
        tables = [replica for replica in replicas for _ in tables_in(replica)]
        if tables:  # the pull needs the row numbers first
            lookups = self._compiled(
                call, local, "lookups", lambda shapes: lookups_of(call.trace, local, shapes, call.trained)
            )
            for replica, ids in zip(replicas, lookups(*call.arrays), strict=True):
                if replica.rows is not None:
                    replica.rows.want(ids)
        step.pull()
        for group in groups if updating else ():
            if group.schedules:
                group.schedules[local.index].follow(group.replicas[local.index])
        for group in variables.groups:
            if group.replicas and group not in groups and group.reads(call.trace.variables):
                with suppress(StepStopped):
                    group.replicas[local.index].reads.fetch()
        variables.count(local)
        trained = call.trained if updating else []
        program = self._compiled(
            call, local, updating, lambda shapes: program_of(variables, call.trace, local, shapes, trained)
        )
        for replica in replicas:
            replica.hooks.withholds = self._skip_nan
        step.restore = variables.remember(call.trace.assigned, local) if skips else None
        feeds = [to_device(a, local.xp) for a in [*call.arrays, *self._extra(call, local)]]
        with notes_to(local.context.note):
            found = program(*feeds, *step.gradients)
        if step.events is not None:
            step.events.mark(StepEvents.COMPUTED)
        outputs, watched = len(call.trace.fetches), len(call.trace.watched)
        rows = found[len(found) - 2 * len(tables) :]  # of each table: gradients, and where they belong
        flats = [flat for replica in replicas for flat in replica.checks.flat_gradients()]
        results, squares = read_values(found[: outputs + watched], [*flats, *rows[::2]])
        losses = results[outputs:]
        step.check(self._loss(call, losses), squares, rows)
        values = iter([np.array(value) for value in results[:outputs]])
        returned = tree_map(lambda t: None if t is None else next(values), call.trace.outputs)
        step.push()
        if replicas and is_first:
            boundary, messages = variables.boundary, variables.context.control.messages
            paused = boundary.paused_since() if messages != boundary.handled else 0.0
            self._recorder.add(step, losses if call.scale and not step.wrong else (), call.scale, paused)
        variables.count(local)
        return returned

    def _extra(self, call: Call, local: LocalReplica) -> list[Array]:
        """Return what is fed beside arguments: what random numbers follow from, the replica's number."""
        step = self.variables.steps
        draws = [
            np.array([d.seed, d.training, step, call.first_example], np.int64)
            for d in call.trace.draws.values()
        ]
        draws += [local.scalings[one].array(local.xp) for one in call.trace.scales]
        if call.trace.replica is None:
            return draws
        return [*draws, np.array(local.context.strategy.replica_index, np.int32)]

    def _loss(self, call: Call, losses: Sequence[Array]) -> float:
        """Return the sum of a step's losses; a mean over no examples may be NaN, and counts as 0."""
        empty = any(a.size == 0 for a in call.arrays)
        return 0.0 if empty else sum(float(np.sum(x)) for x in losses)

    def _compiled(
        self, call: Call, local: LocalReplica, kind: bool | str, make: Callable[[Shapes], Any]
    ) -> Callable[..., Any]:
        """Return the cached program of a call's trace for these shapes; ``make`` builds it the first time."""
        shapes = tuple(a.shape for a in call.arrays)
        key = (id(call.trace), shapes, kind)
        if key not in local.programs:
            if len(local.programs) >= MOST_PROGRAMS:
                del local.programs[next(iter(local.programs))]
            local.programs[key] = make(shapes)
        found: Callable[..., Any] = local.programs[key]
        return found
