"""`model_to_estimator`: a compiled model of ``nb.nn`` as an Estimator."""

from __future__ import annotations

import os
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.estimator.estimator import Estimator
from nbdist.estimator.spec import EstimatorSpec, ModeKeys, RunConfig
from nbdist.graph.variables import get_or_create_global_step
from nbdist.nn.measures import one_per_example
from nbdist.nn.model import Model


def model_to_estimator(
    model: Model, model_dir: str | os.PathLike[str] | None = None, config: RunConfig | None = None
) -> Estimator:
    """Return an Estimator that trains a model with its loss, optimizer and metrics.

    - ``model``: a model that is built and compiled; its weights are the initial values. It stays as it is:
      the trained values are in the checkpoints of ``model_dir``
    - ``model_dir``, ``config``: as for :class:`Estimator`

    Predictions are called ``predictions``. Raises FailedPreconditionError for a model without weights or
    without a loss.
    """
    if not isinstance(model, Model):
        raise InvalidArgumentError(f"model_to_estimator takes a model of nb.nn, not {model!r:.200}")
    if model.network is None:
        raise FailedPreconditionError(
            "model_to_estimator: build the model first, with model.build(example_shape)"
        )
    loss_of, metrics, optimizer = model.compiled_loss, model.compiled_metrics, model.optimizer
    if loss_of is None or optimizer is None:
        raise FailedPreconditionError(
            "model_to_estimator: compile the model first, with model.compile(optimizer, loss, metrics)"
        )

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        predicted = model(features, training=mode == ModeKeys.TRAIN)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions={"predictions": predicted})
        loss = one_per_example(loss_of(labels, predicted)).mean()
        if mode == ModeKeys.EVAL:
            found = {name: one_per_example(one(labels, predicted)) for name, one in metrics.items()}
            return EstimatorSpec(mode, loss=loss, eval_metric_ops=found)
        train_op = optimizer.minimize(loss, get_or_create_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    return Estimator(model_fn, model_dir, config)
