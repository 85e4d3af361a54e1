"""Estimators with a model function of their own: linear models, dense networks, and both together.

    classifier = DNNClassifier([64, 32], feature_columns=columns, n_classes=3, model_dir="runs/flowers")
    classifier.train(train_data, max_steps=1000)

Features are dicts of arrays by name; their feature columns turn them into numbers, on the host. Source of the
names: TensorFlow's tf.estimator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbdist.data.arguments import members
from nbdist.errors import InvalidArgumentError
from nbdist.estimator.columns import (
    FeatureColumn,
    NumericColumn,
    checked_columns,
    export_inputs,
    input_layer,
    linear_model,
    numeric_column,
    texts_of,
    transform_features,
    transformed_columns,
)
from nbdist.estimator.estimator import Estimator
from nbdist.estimator.exporting import Served
from nbdist.estimator.metrics import AUC
from nbdist.estimator.spec import EstimatorSpec, ModeKeys, RunConfig
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import default_graph, name_scope
from nbdist.graph.tensor import Tensor, Variable, symbolic
from nbdist.graph.variables import get_or_create_global_step
from nbdist.nn.functional import checked_rate, sigmoid, softmax, sparse_softmax_cross_entropy
from nbdist.nn.layers import BatchNorm, Dense, Dropout
from nbdist.nn.layers.activations import checked_activation
from nbdist.nn.measures import one_per_example
from nbdist.nn.model import Sequential
from nbdist.numbers import is_whole
from nbdist.optim import Adagrad, Optimizer
from nbdist.optim import get as optimizer_of

_UNITS = "whole numbers from 1, such as [64, 32]"
WEIGHTS = "/weights"  # among the transformed features; no feature's name begins so
RATE = 0.05  # of Adagrad, TensorFlow's for these Estimators


@dataclass(frozen=True)
class Head:
    """What logits mean: the loss, the predictions, the metrics.

    - ``logits``: numbers of an example
    - ``vocabulary``: the classes' labels; None where labels are class numbers, or real numbers
    - ``regression``: whether labels are real numbers
    """

    logits: int
    vocabulary: tuple[Any, ...] | None = None
    regression: bool = False

    def labels(self, labels: Any) -> Any:
        """Return a batch's labels as numbers; on the host."""
        found = np.asarray(labels)
        if not found.ndim:
            raise InvalidArgumentError(
                f"labels are {labels!r:.100}; expected an array with a label per example"
            )
        width = self.logits if self.regression else 1
        if found.size != len(found) * width:
            raise InvalidArgumentError(
                f"a batch's labels have the shape {found.shape}; expected ({len(found)}, {width}), "
                + ("as label_dimension says" if self.regression else "one class for each example")
            )
        if self.regression:
            try:
                return found.astype(np.float32).reshape(len(found), -1)
            except ValueError:
                raise InvalidArgumentError(f"labels are real numbers, and these are {found!r:.100}") from None
        found = found.reshape(len(found))
        if self.vocabulary is None:
            if found.dtype.kind not in "biu":
                raise InvalidArgumentError(
                    f"labels are class numbers from 0 to {self.classes - 1}, and are of {found.dtype}; give "
                    "label_vocabulary= for texts"
                )
            ids = found.astype(np.int64)
        else:
            known = {value: number for number, value in enumerate(self.vocabulary)}
            values = texts_of(found) if isinstance(self.vocabulary[0], str) else found
            ids = np.array([known.get(value.item(), -1) for value in values], np.int64)
        wrong = (ids < 0) | (ids >= self.classes)
        if wrong.any():
            allowed = (
                f"class numbers from 0 to {self.classes - 1}"
                if self.vocabulary is None
                else f"those of label_vocabulary, {self.vocabulary!r:.100}"
            )
            raise InvalidArgumentError(f"labels are {allowed}, and one is {found[wrong][0].item()!r}")
        return ids

    @property
    def classes(self) -> int:
        """The number of classes."""
        return max(self.logits, 2)

    @property
    def names(self) -> Any:
        """The labels of the classes, an array: those of the vocabulary, or the class numbers as text."""
        return np.array(self.vocabulary or [str(number) for number in range(self.classes)])

    def losses(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Return the loss of each example."""
        if self.regression:
            error = logits - labels
            result: Tensor = (error * error).mean(axis=1)
        elif self.logits == 1:
            z, y = logits.reshape(-1), labels.astype(np.float32)
            result = symbolic.maximum(z, 0.0) - z * y + symbolic.log1p(symbolic.exp(-symbolic.abs(z)))
        else:
            result = sparse_softmax_cross_entropy(labels, logits)
        return result

    def predictions(self, logits: Tensor) -> dict[str, Tensor]:
        """Return what `predict` yields."""
        if self.regression:
            return {"predictions": logits}
        if self.logits == 1:
            positive = sigmoid(logits)
            probabilities = symbolic.concatenate([1.0 - positive, positive], axis=1)
            found = {"logits": logits, "logistic": positive, "probabilities": probabilities}
        else:
            found = {"logits": logits, "probabilities": softmax(logits)}
        return {**found, "class_ids": symbolic.argmax(found["probabilities"], axis=-1)}

    def metrics(
        self, labels: Tensor, logits: Tensor, losses: Tensor, weights: Tensor | None
    ) -> dict[str, Any]:
        """Return what `evaluate` computes beside the loss; ``weights`` are those of examples, (batch,)."""

        def mean(values: Tensor) -> Any:
            each = one_per_example(values)
            return each if weights is None else ((each * weights).sum(), weights.sum())

        if self.regression:
            means = {"average_loss": losses, "label/mean": labels, "prediction/mean": logits}
            return {name: mean(values) for name, values in means.items()}
        ids = self.predictions(logits)["class_ids"]
        found = {"average_loss": mean(losses), "accuracy": mean((ids == labels).astype(np.float32))}
        if self.logits == 1:
            score = sigmoid(logits).reshape(-1)
            yes, right = (ids == 1).astype(np.float32), (labels == 1).astype(np.float32)
            found["label/mean"], found["prediction/mean"] = mean(right), mean(score)
            if weights is not None:
                yes = yes * weights
            hits, true = (yes * right).sum(), right if weights is None else right * weights
            found["precision"], found["recall"] = (hits, yes.sum()), (hits, true.sum())
            found["auc"] = AUC(labels, score, weights)
            found["auc_precision_recall"] = AUC(labels, score, weights, "PR")
        return found


class _ColumnEstimator(Estimator):
    """An Estimator of feature columns, with a linear part, a dense network, or both."""

    def __init__(
        self,
        head: Head,
        model_dir: str | os.PathLike[str] | None,
        config: RunConfig | None,
        warm_start_from: str | os.PathLike[str] | None,
        *,
        linear: Sequence[FeatureColumn] | None = None,
        dnn: Sequence[FeatureColumn] | None = None,
        hidden_units: Sequence[int] = (),
        activation: str = "relu",
        dropout: float | None = None,
        batch_norm: bool = False,
        optimizers: Mapping[str, str | Optimizer | None],
        weight_column: str | NumericColumn | None = None,
    ) -> None:
        what = type(self).__name__
        columns = {
            part: checked_columns(given)
            for part, given in (("linear", linear), ("dnn", dnn))
            if given is not None
        }
        if dnn is not None and (
            not members(f"{what}: hidden_units", hidden_units, _UNITS)
            or not all(is_whole(units, 1) for units in hidden_units)
        ):
            raise InvalidArgumentError(
                f"{what}: hidden_units are whole numbers from 1, such as [64, 32], not {hidden_units!r}"
            )
        checked_activation(activation)
        rate = None if dropout is None else checked_rate(dropout)
        rules = {part: optimizer_of(optimizers[part] or Adagrad(RATE)) for part in columns}

        weight = _weight(what, weight_column)

        def network(x: Tensor, training: bool) -> Tensor:
            layers: list[Any] = []
            for units in hidden_units:
                layers.append(Dense(units, activation))
                layers += [BatchNorm()] if batch_norm else []
                layers += [Dropout(rate)] if rate else []
            result: Tensor = Sequential([*layers, Dense(head.logits)])(x, training=training)
            return result

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            logits: Any = None
            for part, own in columns.items():
                with name_scope(part):
                    if part == "linear":
                        added = linear_model(features, own, head.logits)
                    else:
                        added = network(input_layer(features, own), mode == ModeKeys.TRAIN)
                logits = added if logits is None else logits + added
            if mode == ModeKeys.PREDICT:
                return EstimatorSpec(mode, predictions=head.predictions(logits))
            if labels is None:
                raise InvalidArgumentError(
                    f"{what} needs labels to {'train' if mode == ModeKeys.TRAIN else 'evaluate'}: input_fn's "
                    "dataset has elements (features, labels), such as those of "
                    "Dataset.from_arrays(features, labels).batch(32), and gave features alone"
                )
            losses, weights = head.losses(labels, logits), None
            if weight is not None:
                weights = features[WEIGHTS]
            loss = (losses if weights is None else losses * weights).mean()
            if mode == ModeKeys.EVAL:
                metrics = head.metrics(labels, logits, losses, weights)
                return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
            step = get_or_create_global_step()
            last = list(columns)[-1]  # counts the step
            updates = [
                rules[part].minimize(loss, step if part == last else None, _variables_of(part))
                for part in columns
            ]
            return EstimatorSpec(mode, loss=loss, train_op=group(*updates))

        super().__init__(model_fn, model_dir, config, None, warm_start_from)
        each = {id(one): one for own in columns.values() for one in own}  # both parts may have a column
        transform = transform_features(each.values())

        def prepare(features: Any, *labels: Any, predicts: bool = False) -> Any:
            found = transform(features)
            if not labels:
                return found
            if weight is not None and not predicts:
                found = {**found, WEIGHTS: weights_of(what, features, weight)}
            return (found, *map(head.labels, labels))

        self._prepare = prepare
        self._columns = transformed_columns(each.values())
        self._head = head

    def _served(self, features: Any) -> Served:
        columns = export_inputs(self._columns, features)
        arrays = {name: (one.source or one.column).transform(features) for name, one in columns.items()}

        def given_of(inputs: dict[str, Tensor]) -> Any:
            made = (one.record(inputs[name]) for name, one in columns.items())
            return dict(zip(self._columns, made, strict=True))

        return Served(arrays, given_of, columns)

    def _all_metrics(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return metrics with the accuracy of always predicting the more frequent of two classes."""
        if self._head.logits != 1 or self._head.regression or "label/mean" not in results:
            return results
        share = results["label/mean"]
        return {**results, "accuracy_baseline": max(share, 1 - share)}

    def _all_predictions(self, found: Any) -> Any:
        """Return predictions with the labels of the predicted classes."""
        return found if self._head.regression else {**found, "classes": self._head.names[found["class_ids"]]}


def _weight(what: str, column: Any) -> NumericColumn | None:
    found = numeric_column(column) if isinstance(column, str) else column
    if found is not None and (not isinstance(found, NumericColumn) or found.shape != (1,)):
        raise InvalidArgumentError(
            f"{what}: weight_column is {column!r:.200}; expected the name of a feature with a number for "
            "each example, or a numeric_column of one number"
        )
    return found


def weights_of(what: str, features: Any, column: NumericColumn) -> Any:
    """Return the weights of a batch's examples, (batch,) float32; on the host.

    Raises InvalidArgumentError if there are none, and for one below 0 or that is not finite.
    """
    weights = column.transform(features).reshape(-1)
    wrong = weights[~((weights >= 0) & (weights < np.inf))]
    if len(wrong):
        raise InvalidArgumentError(
            f"{what}: weights of weight_column {column.key!r} are numbers from 0, and one is {wrong[0]:g}"
        )
    return weights


def _variables_of(part: str) -> list[Variable]:
    """Return what a part of the model trains, in the recording under way."""
    store = default_graph().store
    assert store is not None
    return [v for name, v in store.all().items() if name.startswith(f"{part}/") and v.trainable]


def _classes(what: str, n_classes: Any, vocabulary: Sequence[Any] | None) -> Head:
    if not is_whole(n_classes, 2):
        raise InvalidArgumentError(f"{what}: n_classes is a whole number from 2, not {n_classes!r}")
    labels = None
    if vocabulary is not None:
        labels = tuple(members(f"{what}: label_vocabulary", vocabulary, "a label for each class"))
    if labels is not None and (len(labels) != n_classes or len(set(labels)) != n_classes):
        raise InvalidArgumentError(
            f"{what}: label_vocabulary has a label for each of {n_classes} classes, and not {labels!r:.200}"
        )
    return Head(1 if n_classes == 2 else n_classes, labels)


def _numbers(what: str, dimension: Any) -> Head:
    if not is_whole(dimension, 1):
        raise InvalidArgumentError(f"{what}: label_dimension is a whole number from 1, not {dimension!r}")
    return Head(dimension, regression=True)


class LinearClassifier(_ColumnEstimator):
    """A linear model of classes: a weight for each number, and for each value of a categorical column.

    - ``feature_columns``: any feature columns
    - ``model_dir``, ``config``, ``warm_start_from``: as for :class:`Estimator`
    - ``n_classes``: the number of classes, from 2
    - ``label_vocabulary``: the labels of the classes, where they are not class numbers
    - ``optimizer``: an optimizer of ``nb.optim``, or its name; None for Adagrad with the rate 0.05
    - ``weight_column``: the name of a feature (or a numeric column) with a weight for each example, from 0.
      The loss is the mean of weight times loss over a batch; metrics are weighted means. ``predict`` and
      ``export`` need no weights

    Predictions are ``logits``, ``probabilities``, ``class_ids``, ``classes`` (labels of the vocabulary, or
    class numbers as text), and ``logistic`` with two classes; metrics ``accuracy``, ``average_loss``, and
    with two classes ``accuracy_baseline`` (of always predicting the more frequent class), ``precision``,
    ``recall``, ``auc`` and ``auc_precision_recall`` (see :class:`AUC`). An export has all but ``classes``.
    Raises InvalidArgumentError for other arguments, and for labels that are no class.
    """

    def __init__(
        self,
        feature_columns: Sequence[FeatureColumn],
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        label_vocabulary: Sequence[Any] | None = None,
        optimizer: str | Optimizer | None = None,
        config: RunConfig | None = None,
        warm_start_from: str | os.PathLike[str] | None = None,
        weight_column: str | NumericColumn | None = None,
    ) -> None:
        head = _classes(type(self).__name__, n_classes, label_vocabulary)
        super().__init__(
            head, model_dir, config, warm_start_from, linear=feature_columns,
            optimizers={"linear": optimizer}, weight_column=weight_column,
        )  # fmt: skip


class LinearRegressor(_ColumnEstimator):
    """A linear model of real numbers, with the squared error.

    - ``label_dimension``: numbers of a label, from 1
    - the others: as for :class:`LinearClassifier`

    Predictions are ``predictions``; metrics ``average_loss``, ``label/mean``, ``prediction/mean``.
    """

    def __init__(
        self,
        feature_columns: Sequence[FeatureColumn],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        optimizer: str | Optimizer | None = None,
        config: RunConfig | None = None,
        warm_start_from: str | os.PathLike[str] | None = None,
        weight_column: str | NumericColumn | None = None,
    ) -> None:
        head = _numbers(type(self).__name__, label_dimension)
        super().__init__(
            head, model_dir, config, warm_start_from, linear=feature_columns,
            optimizers={"linear": optimizer}, weight_column=weight_column,
        )  # fmt: skip


class DNNClassifier(_ColumnEstimator):
    """A dense network of classes.

    - ``hidden_units``: units of each hidden layer, whole numbers from 1
    - ``feature_columns``: dense feature columns: numeric, bucketized, indicator, embedding
    - ``activation_fn``: the name of an activation, as for ``nb.nn.Dense``
    - ``dropout``: the rate of dropout after each hidden layer, from 0 to below 1; None for none
    - ``batch_norm``: whether each hidden layer is followed by a BatchNorm
    - the others: as for :class:`LinearClassifier`
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[FeatureColumn],
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        label_vocabulary: Sequence[Any] | None = None,
        optimizer: str | Optimizer | None = None,
        activation_fn: str = "relu",
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: str | os.PathLike[str] | None = None,
        batch_norm: bool = False,
        weight_column: str | NumericColumn | None = None,
    ) -> None:
        head = _classes(type(self).__name__, n_classes, label_vocabulary)
        super().__init__(
            head, model_dir, config, warm_start_from, dnn=feature_columns, hidden_units=hidden_units,
            activation=activation_fn, dropout=dropout, batch_norm=batch_norm, optimizers={"dnn": optimizer},
            weight_column=weight_column,
        )  # fmt: skip


class DNNRegressor(_ColumnEstimator):
    """A dense network of real numbers, with the squared error; arguments as for :class:`DNNClassifier`.

    - ``label_dimension``: numbers of a label, from 1
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[FeatureColumn],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        optimizer: str | Optimizer | None = None,
        activation_fn: str = "relu",
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: str | os.PathLike[str] | None = None,
        batch_norm: bool = False,
        weight_column: str | NumericColumn | None = None,
    ) -> None:
        head = _numbers(type(self).__name__, label_dimension)
        super().__init__(
            head, model_dir, config, warm_start_from, dnn=feature_columns, hidden_units=hidden_units,
            activation=activation_fn, dropout=dropout, batch_norm=batch_norm, optimizers={"dnn": optimizer},
            weight_column=weight_column,
        )  # fmt: skip


class DNNLinearCombinedClassifier(_ColumnEstimator):
    """A linear model and a dense network, added up and trained together (Cheng et al. 2016, wide and deep).

    - ``linear_feature_columns``, ``linear_optimizer``: of the linear model
    - ``dnn_feature_columns``, ``dnn_optimizer``, ``dnn_hidden_units``, ``dnn_activation_fn``,
      ``dnn_dropout``: of the network, as for :class:`DNNClassifier`
    - the others: as for :class:`LinearClassifier`
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        linear_feature_columns: Sequence[FeatureColumn] = (),
        linear_optimizer: str | Optimizer | None = None,
        dnn_feature_columns: Sequence[FeatureColumn] = (),
        dnn_optimizer: str | Optimizer | None = None,
        dnn_hidden_units: Sequence[int] = (),
        dnn_activation_fn: str = "relu",
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        label_vocabulary: Sequence[Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: str | os.PathLike[str] | None = None,
        batch_norm: bool = False,
        weight_column: str | NumericColumn | None = None,
    ) -> None:
        head = _classes(type(self).__name__, n_classes, label_vocabulary)
        super().__init__(
            head, model_dir, config, warm_start_from, linear=linear_feature_columns, dnn=dnn_feature_columns,
            hidden_units=dnn_hidden_units, activation=dnn_activation_fn, dropout=dnn_dropout,
            batch_norm=batch_norm, optimizers={"linear": linear_optimizer, "dnn": dnn_optimizer},
            weight_column=weight_column,
        )  # fmt: skip
