"""Areas under curves, and weights of examples, against scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import linear_model
from sklearn import metrics as expected

import nbdist as nb
from nbdist import estimator as e
from nbdist.errors import InvalidArgumentError
from nbdist.estimator.metrics import area_under

QUIET = e.RunConfig(log_step_count_steps=None, save_summary_steps=None)
RNG = np.random.default_rng(5)
N = 120
X = RNG.normal(size=(N, 3))
YES = (X @ [1.0, -2.0, 0.5] + RNG.normal(size=N) > 0).astype(int)
WEIGHTS = RNG.choice([0.0, 0.5, 1.0, 3.0], N)
FEATURES = {"x": X, "w": WEIGHTS}
x = e.numeric_column("x", shape=3)


def data(labels: Any, **changes: Any) -> Any:
    features = {name: value for name, value in {**FEATURES, **changes}.items() if value is not None}
    return lambda: nb.data.Dataset.from_arrays(features, labels).batch(50)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from([0.5, 1.0, 2.0])), min_size=2))
def test_areas_with_ties_and_weights(rows: list[tuple[bool, int, float]]) -> None:
    labels, scores, weights = np.array(rows, float).T
    for curve, score in (("ROC", expected.roc_auc_score), ("PR", expected.average_precision_score)):
        found = area_under(curve, labels, scores, weights)
        if len(set(labels)) == 1 and (curve == "ROC" or not labels[0]):
            assert np.isnan(found)
        else:
            assert found == pytest.approx(score(labels, scores, sample_weight=weights), abs=1e-9)


@pytest.mark.parametrize("weighted", [True, False])
def test_metrics_of_a_classifier(tmp_path: Path, weighted: bool) -> None:
    column = "w" if weighted else None
    estimator = e.DNNClassifier([4], [x], tmp_path, config=QUIET, weight_column=column)
    estimator.train(data(YES), max_steps=3)
    found = estimator.evaluate(data(YES))
    scores = np.array([one["logistic"][0] for one in estimator.predict(data(YES, w=None))])
    w = WEIGHTS if weighted else np.ones(N)
    guesses, losses = scores > 0.5, -np.log(np.where(YES == 1, scores, 1 - scores))
    wanted = {
        "loss": np.mean(w * losses),
        "average_loss": expected.log_loss(YES, scores, sample_weight=w),
        "accuracy": expected.accuracy_score(YES, guesses, sample_weight=w),
        "precision": expected.precision_score(YES, guesses, sample_weight=w),
        "recall": expected.recall_score(YES, guesses, sample_weight=w),
        "auc": expected.roc_auc_score(YES, scores, sample_weight=w),
        "auc_precision_recall": expected.average_precision_score(YES, scores, sample_weight=w),
        "label/mean": np.average(YES, weights=w),
        "prediction/mean": np.average(scores, weights=w),
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)
    exported = e.ExportedModel(estimator.export(tmp_path / "e", {"x": X}))  # without weights
    np.testing.assert_allclose(exported({"x": X})["logistic"].ravel(), scores, rtol=1e-5)


def test_a_regression_fits_the_weighted_rows(tmp_path: Path) -> None:
    y = X @ [1.0, 2.0, 3.0] + np.where(WEIGHTS > 1, 1, -1)
    strategy = nb.distribute.MirroredStrategy(["CPU:0"] * 2)  # shares of batches, too
    estimator = e.LinearRegressor(
        [x], tmp_path, config=QUIET.replace(train_distribute=strategy), optimizer=nb.optim.SGD(0.1),
        weight_column=e.numeric_column("w"),
    )  # fmt: skip
    whole = lambda: nb.data.Dataset.from_arrays(FEATURES, y).batch(N)
    estimator.train(lambda: whole().repeat(), max_steps=150)
    fitted = linear_model.LinearRegression().fit(X, y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(
        estimator.get_variable_value("linear/x/weights").ravel(), fitted.coef_, atol=1e-3
    )
    found = estimator.evaluate(whole)
    error = (fitted.predict(X) - y) ** 2
    assert found["average_loss"] == pytest.approx(np.average(error, weights=WEIGHTS), rel=1e-4)


def test_an_area_in_a_model_function(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> e.EstimatorSpec:
        scores = (features @ nb.get_variable("w", (3, 1))).reshape(-1)
        loss = ((scores - labels) ** 2).mean()
        step = nb.train.get_or_create_global_step()
        metrics = {"area": e.AUC(labels, scores), "pr": e.AUC(labels == 1, scores, None, "PR")}
        train_op = nb.optim.SGD(0.1).minimize(loss, step)
        return e.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)

    def batches(labels: Any) -> Any:
        return lambda: nb.data.Dataset.from_arrays(X.astype(np.float32), labels).batch(7)

    estimator = e.Estimator(model_fn, tmp_path, QUIET).train(batches(YES), max_steps=5)
    found = estimator.evaluate(batches(YES))
    scores = (X.astype(np.float32) @ estimator.get_variable_value("w")).ravel()
    assert found["area"] == pytest.approx(expected.roc_auc_score(YES, scores))
    assert found["pr"] == pytest.approx(expected.average_precision_score(YES, scores))
    with pytest.raises(InvalidArgumentError, match="AUC 'area': labels are 0 and 1, and one is 2"):
        estimator.evaluate(batches(YES * 2))


def test_an_area_of_scores_without_an_order() -> None:
    labels, ones = np.array([0.0, 1.0, 1.0]), np.ones(3)
    assert np.isnan(area_under("ROC", labels, np.array([0.1, np.nan, 0.2]), ones))
    assert area_under("ROC", labels, np.array([np.inf, np.inf, 0.2]), ones) == 0.25  # a tie, and a wrong pair


def test_weights_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="weight_column is 3; expected the name of a feature"):
        e.LinearClassifier([x], tmp_path, weight_column=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="no curve 'RCO'; choose from ROC, PR; did you mean ROC"):
        e.AUC(YES, YES, curve="RCO")
    with pytest.raises(InvalidArgumentError, match=r"AUC: labels is array\(.*\s.*expected a tensor"):
        e.AUC(YES, nb.constant(YES))
    with pytest.raises(InvalidArgumentError, match="AUC: weights is 2; expected a tensor"):
        e.AUC(nb.constant(YES), nb.constant(YES), weights=2)
    estimator = e.LinearClassifier([x], tmp_path, config=QUIET, weight_column="w")
    with pytest.raises(InvalidArgumentError, match="weight_column 'w' are numbers from 0, and one is -1"):
        estimator.train(data(YES, w=np.full(N, -1.0)))
    with pytest.raises(InvalidArgumentError, match=r"numeric_column 'w' takes numbers.*complex128"):
        estimator.train(data(YES, w=np.full(N, 1j)))
    with pytest.raises(InvalidArgumentError, match="the features have no 'w'; choose from x"):
        estimator.train(data(YES, w=None))
