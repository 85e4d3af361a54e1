"""nb.log: accepted values, destination, and errors for values that are not numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbdist as nb
from nbdist.errors import InvalidArgumentError
from nbdist.metrics.log import read_log
from nbdist.metrics.recorder import Recorder
from nbdist.run.control import progress_message
from nbdist.train import logging
from nbdist.train.callbacks import Callback
from nbdist.train.context import Context, use, use_here


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    recorder = Recorder(tmp_path / "metrics-0000.log", replica=0)
    context = Context(recorder=recorder, quiet=True)
    with use(context):
        yield context
    recorder.close()


def points(context: Context) -> list[tuple[str, int, float]]:
    assert context.recorder is not None
    context.recorder.flush()
    if not context.recorder.path.exists():  # it is made for its first points
        return []
    log = read_log(context.recorder.path)
    return [(log.names[p["series"]], int(p["step"]), float(p["value"])) for p in log.points]


def test_points_have_the_replicas_step_or_the_given_one(context: Context) -> None:
    nb.log(lr=0.5)
    context.progress.step = 7
    nb.log(lr=0.25, norm=2)
    nb.log({"a/b": 1.0, "step": 3}, step=12)
    nb.log({"lr": 1}, lr=2, step=np.int64(13))
    nb.log()
    assert points(context) == [
        ("lr", 0, 0.5), ("lr", 7, 0.25), ("norm", 7, 2.0), ("a/b", 12, 1.0),
        ("step", 12, 3.0), ("lr", 13, 2.0),
    ]  # fmt: skip


def test_the_first_loss_that_is_not_finite_is_noted(context: Context) -> None:
    nb.log(
        {
            "loss": 1.0,
            "best_val_loss": math.inf,
            "Val_loss": math.nan,
            "loss_scale": math.inf,
            "norm": math.inf,
        }
    )
    nb.log(loss=2.0)
    assert context.progress.not_finite == []
    nb.log({"loss": math.nan, "aux_loss": math.inf})
    nb.log(loss=math.nan, step=9)
    assert context.progress.not_finite == ["loss", "nan", 2]


def test_a_loss_in_a_training_by_nbdist_is_left_to_its_policy(context: Context) -> None:
    context.trainings = 1
    nb.log(loss=math.nan)
    assert context.progress.not_finite == []


def test_without_training_each_series_counts_its_values(context: Context) -> None:
    nb.log(a=0.5)
    nb.log(a=0.25, b=2)
    nb.log(a=0.1, step=9)
    nb.log(a=0.2)
    context.trainings = 1
    nb.log(a=0.3)
    assert points(context) == [
        ("a", 0, 0.5), ("a", 1, 0.25), ("b", 0, 2.0), ("a", 9, 0.1), ("a", 2, 0.2), ("a", 0, 0.3),
    ]  # fmt: skip


@pytest.mark.parametrize(("first", "framework", "step"), [(0, None, 50), (1, None, 50), (0, "jax", 0)])
def test_the_steps_of_a_loop_of_ones_own_count_from_0_or_1(
    context: Context, first: int, framework: str | None, step: int
) -> None:
    context.framework = framework  # the steps that a loop of JAX logs are no count
    for number in range(first, first + 50):
        nb.log({"loss": 0.5}, step=number)
    assert progress_message(context)["step"] == step
    context.trainings = 1
    assert progress_message(context)["step"] == 0


@pytest.mark.parametrize(
    "value",
    [2, 2.0, np.float32(2), np.int8(2), np.array(2.0), np.array([[2]]), np.array([2.0], ">f8"), Fraction(2)],
)
def test_numbers_of_all_kinds(context: Context, value: Any) -> None:
    nb.log(x=value)
    assert points(context) == [("x", 0, 2.0)]


def test_values_that_are_not_finite_are_recorded(context: Context) -> None:
    nb.log(a=math.nan, b=math.inf, c=np.float32(-np.inf), d=True)
    assert [str(value) for _, _, value in points(context)] == ["nan", "inf", "-inf", "1.0"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.5", "text '0.5', and takes a number: print it"),
        (b"0.5", "text b'0.5'"),
        (None, "None, and takes a number: leave it out"),
        (
            np.ones((2, 3)),
            r"an array of shape \(2, 3\), and takes a number: log its mean, or elements as x/0",
        ),
        (np.empty(0), r"an array of shape \(0,\)"),
        (1j, "the complex number 1j"),
        (np.complex64(1), "the complex number"),
        ([1.0], r"list \[1.0\]"),
        ({"y": 1.0}, "dict"),
        (10**400, "int too large"),
        (np.datetime64("2026-11-20"), "log something|log each"),
        (np.array("text"), "log each"),
    ],
)
def test_the_error_for_a_value_that_is_not_a_number_names_the_series(
    context: Context, value: Any, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"nb.log: series 'x' is given.*({message})"):
        nb.log(good=1.0, x=value)
    assert points(context) == []  # a refused call records nothing


def test_a_tensor_has_no_value_yet(context: Context) -> None:
    with nb.Graph().as_default(), pytest.raises(InvalidArgumentError, match="return it from the step"):
        nb.log(x=nb.constant(1.0))


@pytest.mark.parametrize("step", [-1, 2**32, 1.5, "3", None.__class__])
def test_steps_are_whole_numbers(context: Context, step: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"step is a whole number from 0 to 4,294,967,295, not "):
        nb.log(x=1.0, step=step)


@pytest.mark.parametrize("name", ["", "x" * 201, 3, "\ud800"])
def test_names_are_text_of_some_length(context: Context, name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="series"):
        nb.log({name: 1.0})
    assert points(context) == []


@given(st.text(min_size=1, max_size=200).filter(lambda name: name.isprintable()))
def test_any_text_is_a_name(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    recorder = Recorder(tmp_path_factory.mktemp("run") / "metrics-0000.log", replica=0)
    context = Context(recorder=recorder)
    with use_here(context):
        nb.log({name: 1.0})
    assert points(context) == [(name, 0, 1.0)]
    recorder.close()


def test_without_a_run_it_prints_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 100.5, 101.5, 103.0])
    monkeypatch.setattr(logging, "_printed", float("-inf"))
    only_here = SimpleNamespace(monotonic=lambda: next(clock))  # other threads have the real clock
    monkeypatch.setattr(logging, "time", only_here)
    nb.log(lr=0.1, step=3)
    nb.log(lr=0.2)
    nb.log(lr=0.3)
    nb.log({f"x{i}": float(i) for i in range(10)})
    assert capsys.readouterr().out.splitlines() == [
        "step 3: lr 0.1 (nb.log prints where no run is on, once a second at most)",
        "step 0: lr 0.3",
        "step 0: x0 0, x1 1, x2 2, x3 3, x4 4, x5 5, x6 6, x7 7 and 2 more",
    ]
    with pytest.raises(InvalidArgumentError):  # the same errors as in a run
        nb.log(lr="high")
    with pytest.raises(InvalidArgumentError):
        nb.log({"": 1.0})


def test_from_a_callback_of_fit(context: Context) -> None:
    class Log(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            nb.log(epoch=epoch + 1)

    model = nb.nn.Sequential([nb.nn.Dense(2)])
    model.compile(nb.optim.SGD(0.1), "mse")
    data = nb.data.Dataset.from_arrays(np.ones((6, 3), np.float32), np.ones((6, 2), np.float32)).batch(2)
    model.fit(data, epochs=2, callbacks=[Log()])
    assert [point for point in points(context) if point[0] == "epoch"] == [
        ("epoch", 3, 1.0),
        ("epoch", 6, 2.0),
    ]


def test_a_thread_reports_into_the_run_in_which_it_began(tmp_path: Path) -> None:
    """What it reports after that run's end, and what a thread reports that it has begun then, is dropped."""
    first, second = (
        Context(recorder=Recorder(tmp_path / f"metrics-{run}.log", replica=0), run=run) for run in "ab"
    )
    begun, go, ended = Event(), Event(), Event()

    def report() -> None:
        nb.log(own=1.0)
        begun.set()
        go.wait(30)
        nb.log(own=999.0)
        child = Thread(target=nb.log, kwargs={"own": 998.0})
        child.start()
        child.join(30)
        ended.set()

    with use(first):
        left = Thread(target=report)
        left.start()
        assert begun.wait(30)
    assert first.recorder is not None
    assert second.recorder is not None
    first.recorder.close()
    with use(second):
        go.set()
        assert ended.wait(30)
        own = Thread(target=nb.log, kwargs={"own": 2.0})
        own.start()
        own.join(30)
        left.join(30)
        assert points(second) == [("own", 0, 2.0)]
    assert points(first) == [("own", 0, 1.0)]
    assert len(second.noted) == 1
    second.recorder.close()


def test_a_thread_of_a_body_in_the_notebook_reports_into_its_run(context: Context) -> None:
    other = Context(recorder=context.recorder, run="in-graph")
    with use_here(other):
        thread = Thread(target=nb.log, kwargs={"own": 1.0})
        thread.start()
        thread.join(30)
    assert other.logged == {"own": 0}
    assert context.logged == {}
