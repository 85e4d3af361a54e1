"""What a classifier gets right and wrong, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from nbdist.errors import InvalidArgumentError
from nbdist.nn.class_report import ClassReport


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    seed=st.integers(0, 1000),
    batch=st.integers(1, 20),
    one_hot=st.booleans(),
)
def test_it_counts_as_scikit_learn_does(labels: list[int], seed: int, batch: int, one_hot: bool) -> None:
    true = np.array(labels)
    outputs = np.random.default_rng(seed).dirichlet(np.ones(5), len(true)).astype(np.float32)
    report = ClassReport(most=7)
    for at in range(0, len(true), batch):
        some = true[at : at + batch]
        report.add(outputs[at : at + batch], np.eye(5)[some] if one_hot else some)
    predicted = outputs.argmax(axis=1)
    assert np.array_equal(report.confusion, confusion_matrix(true, predicted, labels=range(5)))
    scores = precision_recall_fscore_support(true, predicted, labels=range(5), zero_division=np.nan)
    found = [(one.precision, one.recall, one.f1, one.support) for one in report.classes]
    np.testing.assert_allclose(np.array(found, float).T, np.array(scores, float))
    assert report.accuracy == (true == predicted).mean()
    wrong = np.flatnonzero(true != predicted)
    best = sorted(wrong, key=lambda at: (-float(outputs[at].max()), at))[:7]
    assert [one.index for one in report.wrong] == best
    assert all((one.true, one.predicted) == (true[one.index], predicted[one.index]) for one in report.wrong)


def test_pairs_that_are_confused_most() -> None:
    report = ClassReport()
    outputs = np.eye(3)[[1, 1, 2, 0, 1]]
    report.add(outputs, np.array([0, 0, 0, 0, 1]))
    assert report.confused() == [(0, 1, 2), (0, 2, 1)]
    assert [one.taken_for for one in report.classes] == [1, -1, -1]


@pytest.mark.parametrize("from_logits", [False, True])
def test_one_output_is_that_of_class_1(from_logits: bool) -> None:
    outputs = np.array([[0.9], [0.2], [0.6]])
    report = ClassReport(from_logits=from_logits)
    report.add(np.log(outputs / (1 - outputs)) if from_logits else outputs, np.array([1, 0, 0]))
    assert report.confusion.tolist() == [[1, 1], [0, 1]]
    assert report.wrong[0].score == pytest.approx(0.6)


def test_logits_become_probabilities() -> None:
    report = ClassReport(from_logits=True)
    report.add(np.array([[800.0, 0.0, 0.0]]), np.array([2]))
    assert report.wrong[0].score == pytest.approx(1.0)


def test_outputs_that_are_not_finite_are_left_out_and_counted() -> None:
    report = ClassReport()
    report.add(np.array([[np.nan, 1.0], [0.1, 0.9]]), np.array([0, 1]))
    assert (report.unusable, report.seen, report.accuracy, report.confusion.sum()) == (1, 2, 1.0, 1)


@pytest.mark.parametrize(
    ("outputs", "labels", "said"),
    [
        (
            np.ones((2, 3)),
            np.array([0, 3]),
            "label 3 of row 1: the model has 3 outputs, so classes are 0 to 2",
        ),
        (np.ones((2, 3)), np.array([-1, 0]), "label -1 of row 0"),
        (np.ones((2, 3)), np.array([0.5, 1]), "are not classes of 2 examples"),
        (np.ones((2, 3)), np.ones((2, 3)), "not one-hot"),
        (np.ones((2, 3, 4)), np.array([0, 1]), "not those of a classifier"),
        (np.array([[3.2]]), np.array([1]), "an output of 3.2 is no probability.*from_logits=True"),
        (np.ones((2, 1001)), np.array([0, 1]), "1,001 classes; at most 1,000"),
    ],
)
def test_what_no_classifier_gives_is_refused(outputs: np.ndarray, labels: np.ndarray, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        ClassReport().add(outputs, labels)
