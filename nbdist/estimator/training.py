"""`train`: an Estimator's steps under a strategy, with hooks, checkpoints and summaries.

    restore ─► batches ─► strategy.run(step) ─► hooks ─► checkpoint, summaries ─► the final checkpoint

All replicas run it. The chief writes; a hook of any replica ends the training of all that wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.arguments import members
from nbdist.errors import InvalidArgumentError, NbdistError, NotFoundError, StorageError
from nbdist.estimator.checkpoints import ModelCheckpoints, Trained
from nbdist.estimator.model_function import TrainingFunction, lacks
from nbdist.estimator.spec import RunConfig
from nbdist.graph.backend import Array, to_host
from nbdist.graph.sparse import dense
from nbdist.graph.tensor import Tensor, Variable
from nbdist.runtime.ps.client import StepStopped, TrainingOver
from nbdist.sessions.coordinator import Coordinator
from nbdist.sessions.hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from nbdist.summary import SummaryOp
from nbdist.summary.values import Written
from nbdist.summary.writer import release, shared_writer
from nbdist.train.custom.api import active_runner
from nbdist.train.custom.reduce import PerReplica, of_replica
from nbdist.train.custom.resume import RestoredLoop, loop_state
from nbdist.train.custom.trace import tree_leaves, tree_map
from nbdist.train.strategy import Strategy

SAVE_SECONDS = 600.0
MOST_NAMED = 5
ASYNCHRONOUS = "asynchronous"
"""The family of strategies whose replicas train independently, on parameter servers."""


class Training:
    """One call of ``Estimator.train``.

    - ``config``: of the Estimator
    - ``strategy``: whose replicas train
    - ``function``: the training step in the strategy's graph
    - ``restored``: path and content of the checkpoint where the training begins; None for initial values
    - ``warm``: whether only variables that the checkpoint has begin with its values
    - ``model_dir``: the folder of checkpoints and summaries
    - ``hooks``: SessionRunHooks of all replicas
    - ``listeners``: CheckpointSaverListeners of the chief
    """

    def __init__(
        self,
        config: RunConfig,
        strategy: Strategy,
        function: TrainingFunction,
        restored: tuple[str, Trained] | None,
        warm: bool,
        model_dir: str,
        hooks: Sequence[SessionRunHook],
        listeners: Sequence[CheckpointSaverListener],
    ) -> None:
        self._strategy, self._config, self._model_dir = strategy, config, model_dir
        self._runner = active_runner(strategy)
        self._variables = self._runner.variables
        self._graph = self._variables.graph
        self._graph.seed = config.tf_random_seed
        self._function, self._store, self._global_step = function, function.store, function.global_step
        hooks = members("Estimator.train: hooks", hooks, "SessionRunHooks")
        listeners = members("Estimator.train: saving_listeners", listeners, "CheckpointSaverListeners")
        self._hooks, self._listeners = list(hooks), list(listeners)
        self._is_chief = self._variables.context.is_chief
        for what, given, kind in (
            ("hooks", hooks, SessionRunHook),
            ("saving_listeners", listeners, CheckpointSaverListener),
        ):
            for one in given:
                if not isinstance(one, kind):
                    raise InvalidArgumentError(
                        f"Estimator.train: {what} are instances of {kind.__name__}, not {one!r}"
                    )
        for hook in hooks:
            if isinstance(hook, CheckpointSaverHook):
                raise InvalidArgumentError(
                    "an Estimator saves its checkpoints itself: give RunConfig(save_checkpoints_steps=...) "
                    "and saving_listeners instead of a CheckpointSaverHook"
                )
        self._variables.takes_over, self._variables.joined_at = strategy.family == ASYNCHRONOUS, None
        self.begun = False
        """Whether there was a batch, or the others have ended the training before it."""
        self._begin_from(None if restored is None else restored[1])
        self._restored = None if restored is None else (restored[0], frozenset(restored[1].values))
        self._warm = warm
        self._session = TrainingSession(self)
        self._last: Trained | None = None
        self._coordinator = Coordinator()
        self._summaries = _Summaries(self) if self._is_chief and config.save_summary_steps else None
        self._checkpoints = _Checkpoints(self, self._listeners) if self._is_chief else None

    @property
    def global_step(self) -> int:
        """The step that this replica knows of; its own last one may not be in the variable yet."""
        made = self._variables.steps - self._steps_before
        return max(int(self._variables.host_value(self._global_step)), self._begun_at + made)

    def run(self, dataset: Dataset, last_step: int | None) -> None:
        """Train to the data's end or ``last_step``.

        A process that takes over from a lost one goes through the data to where that one was.
        """
        variables, begun, passed = self._variables, False, 0
        variables.ended, variables.stop_requested = False, False
        variables.at_finish = self._keep_last if self._is_chief else None
        try:
            with self._strategy.scope():
                for share, features, labels in self._batches(dataset):
                    self.begun = True
                    if not begun:
                        self._begin(share, features, labels)
                        begun = True
                        if self._coordinator.should_stop():
                            break
                    passed += 1
                    if passed <= (variables.joined_at or 0):
                        continue
                    try:
                        self._step(share, features, labels)
                    except StepStopped:  # a checkpoint or a hook found that the others had ended before it
                        break
                    if last_step is not None and self.global_step >= last_step:
                        break
                    if self._ends():
                        break
                if self._coordinator.should_stop():
                    variables.context.progress.ended_early = True
                self._strategy.finish()
                self._end(begun)
        except TrainingOver:
            print("this training has ended on the other workers: it is left out here")
        except BaseException:
            for hook in self._hooks:
                hook.abort()
            if self._summaries is not None:
                self._summaries.close()
            if self._checkpoints is not None:
                self._checkpoints.abort()
            raise
        finally:
            variables.at_finish = None

    def _ends(self) -> bool:
        """Return whether a hook ends the training after this step: of any replica that waits for this one."""
        stop, local = self._coordinator.should_stop(), self._variables.local
        joint = local.has_group or any(group.joint for group in self._variables.groups if group.replicas)
        if joint and self._strategy.num_replicas_in_sync > len(local.all):
            stop = bool(local.all_reduce([np.array(stop, np.int64)] * len(local.all), "sum"))
        return stop

    def _keep_last(self) -> None:
        """Keep what the optimizers have at the end, which the last checkpoint needs."""
        last = self.trained()
        self._last = replace(
            last, slots=tree_map(np.array, last.slots), values=tree_map(np.array, last.values)
        )

    def final(self) -> Trained:
        """Return the model after the last update of all replicas."""
        if self._last is None:
            return self.trained()
        values = {name: np.array(self._variables.host_value(v)) for name, v in self._store.all().items()}
        return replace(self._last, step=self.global_step, values=values)

    def has_state(self) -> bool:
        """Return whether this replica has what a checkpoint needs; if not, the next step brings it."""
        return self._variables.ask_state()

    def trained(self) -> Trained:
        """Return the model and its optimizers as they are now."""
        state, arrays, slots = loop_state(self._variables)
        values, kept = {}, {}
        own = {v.name: name for name, v in self._store.all().items()}
        for name, value, of in zip(state["names"], arrays, slots, strict=True):
            if name in own:
                values[own[name]] = to_host(value)
                kept[own[name]] = {k: to_host(a) for k, a in of.items()}
        groups = [
            {
                **one,
                "variables": [own[v] for v in one["variables"]],
                "slots": [slot for first in one["variables"][:1] for slot in kept[own[first]]],
            }
            for one in state["groups"]
            if set(one["variables"]) <= set(own)
        ]
        return Trained(self.global_step, values, kept, groups)

    def _begin_from(self, restored: Trained | None) -> None:
        """Give variables, as they are made, the values of a checkpoint, and optimizers their slots."""
        self._begun_at = 0 if restored is None else restored.step
        self._steps_before = self._variables.steps
        self._variables.count_from(self._global_step, self._begun_at)
        if restored is None:
            return
        before = self._store.prefix
        values = {before + name: value for name, value in restored.values.items()}
        slots = {before + name: kept for name, kept in restored.slots.items()}
        groups = [{**one, "variables": [before + v for v in one["variables"]]} for one in restored.groups]
        self._variables.continue_from(RestoredLoop(self._variables, values, slots, groups))

    def _batches(self, dataset: Dataset) -> Iterator[tuple[Any, Any, Any]]:
        """Yield each batch's share, features and labels, of each replica of this process.

        A replica without examples gets one with the share 0, whose gradient is 0.
        """
        runner = self._runner
        alone = self._strategy.num_replicas_in_sync == 1
        for element in self._strategy.distribute_dataset(dataset):
            features, labels = split_element(element)
            if alone:
                yield None, features, labels
                continue
            count = len(self._variables.local.all)
            parts = [of_replica((features, labels), i, count) for i in range(count)]
            shares = []
            for i, part in enumerate(parts):
                leaves = [a for a in tree_leaves(part) if a is not None]
                scale = next((known[2] for known in runner.yielded if known[0] is leaves[0]), 0.0)
                if not len(leaves[0]):
                    parts[i] = self._one_example(part)
                shares.append(np.array(1.0 / scale if scale else 0.0, np.float32))
            joined = parts[0] if count == 1 else _join(parts)
            yield shares[0] if count == 1 else PerReplica(tuple(shares)), *joined

    def _one_example(self, part: Any) -> Any:
        """Return one example in place of none, from the whole batch."""
        runner = self._runner
        wholes = {id(known[0]): known[3] for known in runner.yielded}

        def one(leaf: Any) -> Any:
            if leaf is None:
                return None
            taken = np.array(wholes[id(leaf)][:1])
            runner.yielded.append((taken, 0, 0.0, wholes[id(leaf)]))
            return taken

        return tree_map(one, part)

    def _begin(self, share: Any, features: Any, labels: Any) -> None:
        """Record the model, and begin the hooks."""
        variables = self._variables
        self._runner.prepare(self._function.step(), (share, features, labels))
        if variables.context.loop.joined or variables.joined_at is not None:
            # The others' step, and not that of the checkpoint.
            self._begun_at, self._steps_before = int(variables.host_value(self._global_step)), variables.steps
        self._check_restored()
        recording = self._function.first
        assert recording is not None
        self._hooks += recording.spec.training_hooks
        if self._is_chief:
            self._hooks += recording.spec.training_chief_hooks
        with self._graph.as_default():
            for hook in self._hooks:
                hook.begin()
        session: Any = self._session
        for hook in self._hooks:
            hook.after_create_session(session, self._coordinator)
        for one in (self._checkpoints, self._summaries):
            if one is not None:
                one.begin()

    def _check_restored(self) -> None:
        """Raise NotFoundError for a variable that the checkpoint lacks; of a warm start print which."""
        if self._restored is None:
            return
        path, known = self._restored
        missing = [name for name in self._store.all() if name not in known]
        if missing and not (self._warm and len(missing) < len(self._store.all())):
            raise NotFoundError(
                f"{lacks(self._function.model, missing[0], path)}; to train anew, choose another model_dir"
                if not self._warm
                else f"warm_start_from: {path} has no variable of {self._function.model.name}, which has "
                f"{', '.join(missing[:MOST_NAMED])}"
            )
        if missing and self._is_chief:
            print(f"{path} has no {', '.join(missing)}: they begin with their initial values")

    def _step(self, share: Any, features: Any, labels: Any) -> Array:
        recording = self._function.first
        assert recording is not None
        session: Any = self._session
        asked: list[Any] = []
        contexts = []
        for hook in self._hooks:
            context = SessionRunContext(SessionRunArgs(recording.spec.train_op), session)
            wanted = hook.before_run(context)
            if wanted is not None and wanted.feed_dict:
                raise InvalidArgumentError(
                    f"{type(hook).__name__} feeds values, and an Estimator's batches are those of its input "
                    "function: put them into the Dataset"
                )
            contexts.append(context)
            asked.append(None if wanted is None else wanted.fetches)
        extra = self._summaries.wanted() if self._summaries is not None else {}
        names = [*(name for name, _ in extra.values()), *(n for tree in asked for n in self._names(tree))]
        results = self._strategy.run(self._function.step(names), (share, features, labels))
        own = of_replica(results, 0, len(self._variables.local.all))
        for hook, context, tree in zip(self._hooks, contexts, asked, strict=True):
            values = None if tree is None else self._values(tree, own)
            hook.after_run(context, SessionRunValues(values))
            if context.stop_requested:
                self._coordinator.request_stop()
        step, loss = self.global_step, np.asarray(own["loss"])
        if self._summaries is not None:
            values = {tag: make(own[name]) for tag, (name, make) in extra.items()}
            self._summaries.add(step, loss, values)
        if self._checkpoints is not None and self._checkpoints.save_if_due(step):
            self._coordinator.request_stop()
        return loss

    def _end(self, begun: bool) -> None:
        if not begun:
            return
        session: Any = self._session
        for hook in self._hooks:
            hook.end(session)
        if self._summaries is not None:
            self._summaries.close()
        if self._checkpoints is not None:
            self._checkpoints.end(self.global_step)

    def _names(self, tree: Any) -> Iterator[str]:
        """Yield the names of the tensors that a hook fetches, but for variables."""
        recording = self._function.first
        assert recording is not None
        for leaf in tree_leaves(tree):
            for one in leaf.fetched if isinstance(leaf, SummaryOp) else [leaf]:
                if isinstance(one, str):
                    if self._variable(one) is None:
                        yield one.removesuffix(":0")
                elif isinstance(one, Variable) or (
                    one is not None and one.op is not None and not one.op.has_value
                ):
                    continue
                elif one is not None:
                    yield recording.name_of(one)

    def _values(self, tree: Any, results: dict[str, Any]) -> Any:
        recording = self._function.first
        assert recording is not None

        def one(leaf: Any) -> Any:
            if isinstance(leaf, SummaryOp):
                return {
                    part.tag.removeprefix(recording.scope): part.make(results[recording.name_of(part.tensor)])
                    for part in leaf.parts
                }
            if isinstance(leaf, str):
                variable = self._variable(leaf)
                return results[leaf.removesuffix(":0")] if variable is None else self._session.run(variable)
            if isinstance(leaf, Variable):
                return self._session.run(leaf)
            return results.get(recording.name_of(leaf)) if leaf is not None else None

        return tree_map(one, tree)

    def _variable(self, name: str) -> Variable | None:
        name = name.removesuffix(":0")
        return self._global_step if name == "global_step" else self._store.all().get(name)


class TrainingSession:
    """What hooks of an Estimator get as their session: it reads variables of the strategy.

    - ``training``: the training under way
    """

    def __init__(self, training: Training) -> None:
        self._training = training

    @property
    def graph(self) -> Any:
        """The strategy's graph."""
        return self._training._graph

    def run(self, fetches: Any, feed_dict: Any = None) -> Any:
        """Return the values of variables, or of tensors computed from variables alone, in a pytree."""
        training = self._training

        def one(leaf: Any) -> Any:
            if isinstance(leaf, str):
                found = training._variable(leaf)
                if found is None:
                    raise InvalidArgumentError(
                        f"the session of an Estimator's hook has no variable {leaf!r}; fetch a tensor of the "
                        "step with before_run"
                    )
                leaf = found
            if leaf is training._global_step:
                return np.int64(training.global_step)
            return training._strategy.read(dense(leaf) if not isinstance(leaf, Tensor) else leaf)

        return tree_map(one, fetches)

    def should_stop(self) -> bool:
        """Return whether a hook has asked to stop."""
        return self._training._coordinator.should_stop()


class _Checkpoints:
    """When the chief saves."""

    def __init__(self, training: Training, listeners: Sequence[CheckpointSaverListener]) -> None:
        config = training._config
        seconds = config.save_checkpoints_secs
        if seconds is None and config.save_checkpoints_steps is None:
            seconds = SAVE_SECONDS
        self._timer = SecondOrStepTimer(seconds, config.save_checkpoints_steps)
        self._training, self._listeners = training, listeners
        self._files = ModelCheckpoints(
            training._model_dir, config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours
        )
        self._error: NbdistError | None = None
        """Why the last checkpoint was not written."""

    def begin(self) -> None:
        for listener in self._listeners:
            listener.begin()
        step = self._training.global_step
        self._timer.update_last_triggered_step(step)
        if step == 0:
            self._save(step)

    def save_if_due(self, step: int) -> bool:
        """Save if it is time; return whether a listener ends the training."""
        due = self._timer.should_trigger_for_step(step)
        if not due or not self._training.has_state():  # which the next step brings, then
            return False
        self._timer.update_last_triggered_step(step)
        return self._save(step)

    def end(self, step: int) -> None:
        self._finish()
        if self._files.saved_step != step or self._error is not None:
            self._save(step, self._training.final())
            self._finish()
        session: Any = self._training._session
        for listener in self._listeners:
            listener.end(session, step)
        if self._error is not None:
            raise self._error
        self._files.close()

    def _finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        try:
            self._files.wait()
        except NbdistError as error:
            self._report(error)

    def _report(self, error: NbdistError) -> None:
        self._error = error
        print(f"no checkpoint was written, training continues: {error}")

    def abort(self) -> None:
        """Wait for the checkpoint that is being written: the next training begins at it."""
        try:
            self._files.close()
        except NbdistError as error:
            print(f"the last checkpoint is not complete: {error}")

    def _save(self, step: int, trained: Trained | None = None) -> bool:
        self._finish()
        self._error = None
        session: Any = self._training._session
        for listener in self._listeners:
            listener.before_save(session, step)
        try:
            self._files.save(trained or self._training.trained())
            if self._listeners:
                self._files.wait()
        except NbdistError as error:
            self._report(error)
            return False
        stops = [bool(listener.after_save(session, step)) for listener in self._listeners]
        return any(stops)


class _Summaries:
    """The chief's loss, speed and summaries, for TensorBoard and as lines of its output."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._writer = shared_writer(training._model_dir)
        self._timer = SecondOrStepTimer(every_steps=training._config.save_summary_steps)
        lines = training._config.log_step_count_steps
        self._lines = None if lines is None else SecondOrStepTimer(every_steps=lines)
        self._printed: tuple[float, int] | None = None
        self._due = False

    def begin(self) -> None:
        # An earlier training may have gone beyond its checkpoint.
        self._writer.purge(self._training.global_step + 1)
        self._written: tuple[float, int] | None = None

    def wanted(self) -> dict[str, tuple[str, Callable[[Any], Written]]]:
        """Return this step's summaries by tag: the tensor's name, and what makes the written value."""
        recording = self._training._function.first
        assert recording is not None
        self._due = self._timer.should_trigger_for_step(self._training.global_step + 1)
        return recording.summaries if self._due else {}

    def add(self, step: int, loss: Array, values: dict[str, Written]) -> None:
        now = time.monotonic()
        if self._due:
            self._timer.update_last_triggered_step(step)
            points: dict[str, Written] = {"loss": float(loss), **values}
            if self._written is not None and step > self._written[1]:
                points["global_step/sec"] = (step - self._written[1]) / (now - self._written[0])
            self._written = now, step
            self._writer.add_summary(points, step)
        if self._lines is not None and self._lines.should_trigger_for_step(step):
            self._lines.update_last_triggered_step(step)
            speed = ""
            if self._printed is not None and step > self._printed[1]:
                speed = f", {(step - self._printed[1]) / (now - self._printed[0]):.1f} steps/s"
            self._printed = now, step
            replicas = self._training._strategy.num_replicas_in_sync
            whose = " of this replica's share" if replicas > 1 else ""
            print(f"step {step}: loss {float(loss):.4g}{whose}{speed}")

    def close(self) -> None:
        try:
            release(self._writer)
        except StorageError as error:  # it must not cost the last checkpoint
            print(error)


def split_element(element: Any) -> tuple[Any, Any]:
    """Return features and labels of a dataset's element; labels are None where it is not a pair."""
    if isinstance(element, tuple):
        if len(element) == 2:
            return element[0], element[1]
        raise InvalidArgumentError(
            "an input function's dataset has elements (features, labels), or features, not tuples of "
            f"{len(element)}"
        )
    return element, None


def _join(parts: Sequence[Any]) -> Any:
    columns = [list(tree_leaves(part)) for part in parts]
    rows = iter(zip(*columns, strict=True))

    def one(_: Any) -> Any:
        row = next(rows)
        return None if row[0] is None else PerReplica(row)

    return tree_map(one, parts[0])
