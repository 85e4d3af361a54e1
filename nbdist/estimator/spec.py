"""What a model function returns, and how an Estimator trains and evaluates: plain values.

    def model_fn(features, labels, mode, params):
        ...
        return EstimatorSpec(mode, predictions=..., loss=..., train_op=..., eval_metric_ops=...)

Source of the names: TensorFlow's tf.estimator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Any

from nbdist.data.arguments import any_path, members
from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.tensor import Tensor
from nbdist.numbers import is_whole

if TYPE_CHECKING:
    from nbdist.estimator.exporting import Exporter
    from nbdist.sessions.hooks import SessionRunHook
    from nbdist.train.strategy import Strategy


class ModeKeys:
    """What a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "predict"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


@dataclass(frozen=True)
class EstimatorSpec:
    """What a model function returns.

    - ``mode``: the mode that it was called with
    - ``predictions``: a tensor, or a dict of tensors, whose first axis counts the examples of the batch;
      needed for ``predict``
    - ``loss``: one number, the mean over the batch; needed for ``train`` and ``evaluate``
    - ``train_op``: what ``optimizer.minimize(loss, global_step=...)`` returns; needed for ``train``
    - ``eval_metric_ops``: a dict of metrics. A tensor with a value for each example is averaged over all
      examples; a tensor of one number is averaged over batches by their sizes; a pair ``(total, count)`` is
      added up, and the metric is the quotient; an :class:`AUC` is an area under a curve
    - ``training_hooks``: SessionRunHooks of the training
    - ``training_chief_hooks``: those of the chief alone
    - ``export_outputs``: predictions that an export has; None for ``predictions``

    Raises InvalidArgumentError for anything else.
    """

    mode: str
    predictions: Any = None
    loss: Tensor | None = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] = field(default_factory=dict)
    training_hooks: Sequence[SessionRunHook] = ()
    training_chief_hooks: Sequence[SessionRunHook] = ()
    export_outputs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgumentError(f"EstimatorSpec: no mode {self.mode!r}; {choices(self.mode, MODES)}")
        needed = {"train": ("loss", "train_op"), "eval": ("loss",), "predict": ("predictions",)}[self.mode]
        for name in needed:
            if getattr(self, name) is None:
                raise InvalidArgumentError(f"EstimatorSpec: mode {self.mode!r} needs {name}=")
        if self.loss is not None and (not isinstance(self.loss, Tensor) or self.loss.shape not in ((), (1,))):
            raise InvalidArgumentError(
                "EstimatorSpec: loss is a tensor of one number, such as np.mean(per_example), not "
                f"{self.loss!r}"
            )
        if self.train_op is not None and not isinstance(self.train_op, Tensor):
            raise InvalidArgumentError(
                f"EstimatorSpec: train_op is {self.train_op!r:.200}; expected what optimizer.minimize(loss, "
                "global_step=...) returns, or nb.group(...) of several"
            )
        if not isinstance(self.eval_metric_ops, Mapping):
            raise InvalidArgumentError(
                f"EstimatorSpec: eval_metric_ops is {self.eval_metric_ops!r:.200}; expected a dict of "
                "tensors or pairs (total, count) by name, such as {'accuracy': right}"
            )
        for name in ("training_hooks", "training_chief_hooks"):
            members(f"EstimatorSpec: {name}", getattr(self, name), "SessionRunHooks")


@dataclass(frozen=True)
class RunConfig:
    """How an Estimator trains, evaluates and saves.

    - ``model_dir``: its folder of checkpoints and summaries, or an fsspec URL; None for the Estimator's own
    - ``tf_random_seed``: the seed of initial values and of dropout, a whole number
    - ``save_summary_steps``: steps between two summaries, from 1; None for none
    - ``save_checkpoints_steps``, ``save_checkpoints_secs``: steps or seconds between two checkpoints, above
      0; at most one is given. By default 600 s
    - ``keep_checkpoint_max``: how many checkpoints stay, from 1; 0 or None keeps all
    - ``keep_checkpoint_every_n_hours``: one checkpoint of each of these periods stays for good
    - ``log_step_count_steps``: steps between two lines with step, loss and speed, from 1; None for none
    - ``train_distribute``: the strategy of ``train``; None for that of the run around (``%%distribute``), or
      one device
    - ``eval_distribute``: the run's strategy, ``nb.get_strategy()``, for ``evaluate`` on all workers of the
      run together; None for each process alone

    Raises InvalidArgumentError for other values.

    >>> RunConfig(save_checkpoints_steps=100).replace(keep_checkpoint_max=2).keep_checkpoint_max
    2
    """

    model_dir: str | os.PathLike[str] | None = None
    tf_random_seed: int = 0
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = 10_000.0
    log_step_count_steps: int | None = 100
    train_distribute: Strategy | None = None
    eval_distribute: Strategy | None = None

    def __post_init__(self) -> None:
        for name in ("save_summary_steps", "save_checkpoints_steps", "log_step_count_steps"):
            check_steps("RunConfig", name, getattr(self, name))
        if self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            raise InvalidArgumentError(
                "RunConfig: give save_checkpoints_steps or save_checkpoints_secs, not both"
            )
        keep = self.keep_checkpoint_max
        if keep is not None and not (is_whole(keep) and keep >= 0):
            raise InvalidArgumentError(
                f"RunConfig: keep_checkpoint_max is a whole number from 0, or None, not {keep!r}"
            )
        for name in ("save_checkpoints_secs", "keep_checkpoint_every_n_hours"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise InvalidArgumentError(f"RunConfig: {name} is {value!r}; expected a number above 0")
        for name in ("train_distribute", "eval_distribute"):
            value = getattr(self, name)
            if value is not None and not hasattr(value, "num_replicas_in_sync"):
                raise InvalidArgumentError(
                    f"RunConfig: {name} is {value!r}; expected a strategy, such as nb.get_strategy() or "
                    "nb.distribute.MirroredStrategy(), or None"
                )
        if self.model_dir is not None:
            any_path("RunConfig: model_dir", self.model_dir)
        if not is_whole(self.tf_random_seed):
            raise InvalidArgumentError(
                f"RunConfig: tf_random_seed is a whole number, not {self.tf_random_seed!r}"
            )

    def replace(self, **changes: Any) -> RunConfig:
        """Return the same with other values; raises InvalidArgumentError for an unknown name."""
        known = [one.name for one in fields(self)]
        for name in changes:
            if name not in known:
                raise InvalidArgumentError(f"RunConfig has no {name!r}; {choices(name, known)}")
        return replaced(self, **changes)


@dataclass(frozen=True)
class TrainSpec:
    """The training of ``train_and_evaluate``.

    - ``input_fn``: returns a Dataset of batches, as for :meth:`Estimator.train`
    - ``max_steps``: the global step at which the training ends, from 1; None to train until the data ends
    - ``hooks``: SessionRunHooks of the training
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[SessionRunHook] = ()

    def __post_init__(self) -> None:
        _check_function("TrainSpec", self.input_fn)
        check_steps("TrainSpec", "max_steps", self.max_steps)
        members("TrainSpec: hooks", self.hooks, "SessionRunHooks")


@dataclass(frozen=True)
class EvalSpec:
    """The evaluations of ``train_and_evaluate``.

    - ``input_fn``: returns a Dataset of batches
    - ``steps``: how many batches an evaluation takes, from 1; None for all of them
    - ``name``: a name, where several evaluations are compared
    - ``exporters``: what exports the model after an evaluation, such as ``LatestExporter``
    - ``start_delay_secs``, ``throttle_secs``: seconds before the first evaluation, and between two of them
    """

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    exporters: Sequence[Exporter] = ()
    start_delay_secs: float = 0.0
    throttle_secs: float = 600.0

    def __post_init__(self) -> None:
        _check_function("EvalSpec", self.input_fn)
        check_steps("EvalSpec", "steps", self.steps)
        for one in members("EvalSpec: exporters", self.exporters, "exporters, such as LatestExporter"):
            if not callable(getattr(one, "export", None)):
                raise InvalidArgumentError(
                    f"EvalSpec: an exporter is {one!r:.200}; expected a LatestExporter, a "
                    "BestExporter, or an Exporter of your own"
                )
        if self.name is not None:
            check_folder_name("EvalSpec: name", self.name)
        for name in ("start_delay_secs", "throttle_secs"):
            if not is_number(getattr(self, name)) or not getattr(self, name) >= 0:
                raise InvalidArgumentError(
                    f"EvalSpec: {name} is a number of seconds from 0, not {getattr(self, name)!r}"
                )


def check_steps(what: str, name: str, value: Any) -> None:
    """Raise InvalidArgumentError unless a value is a number of steps from 1, or None."""
    if value is not None and not (is_whole(value) and value >= 1):
        raise InvalidArgumentError(f"{what}: {name} is a whole number from 1, or None, not {value!r}")


def check_folder_name(what: str, name: Any) -> None:
    """Raise InvalidArgumentError unless a value can be the name of a folder."""
    if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
        raise InvalidArgumentError(f"{what} is {name!r:.80}; expected the name of a folder, such as 'best'")


def is_number(value: Any) -> bool:
    """Whether a value is a number, not a truth value and not NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _check_function(what: str, function: Any) -> None:
    if not callable(function):
        raise InvalidArgumentError(f"{what}: input_fn is a function that returns a Dataset, not {function!r}")
