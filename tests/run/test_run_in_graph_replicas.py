"""Towers as replicas of a run: each has its own points, progress and last epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nbdist.metrics.log import read_log
from nbdist.metrics.timeline import Span
from nbdist.run.in_graph.towers import Towers
from nbdist.train.callbacks import History
from nbdist.train.context import Context
from nbdist.train.options import TrainingOptions


@pytest.fixture
def main() -> Context:
    return Context(seed=5, options=TrainingOptions(epochs=7), quiet=True)


@pytest.fixture
def towers(tmp_path: Path, main: Context) -> Iterator[Towers]:
    tmp_path.chmod(0o700)
    found = Towers(tmp_path, 2, main)
    main.towers = found.context
    yield found
    found.close()


def step(towers: Towers, number: int, losses: tuple[float, float]) -> None:
    """Make a step of both towers; then record it for the body's training, as its loop does."""
    for i, loss in enumerate(losses):
        towers.on_tower(i, number, loss, [loss / 10], examples=2 + i, seconds=0.5)
    towers.main.progress.step += 1


def points(folder: Path, i: int) -> list[tuple[str, int, float]]:
    log = read_log(folder / f"metrics-{i:04d}.log")
    assert log.replica == i
    return [(log.names[p["series"]], int(p["step"]), round(float(p["value"]), 6)) for p in log.points]


def test_synchronous_towers(towers: Towers, main: Context, tmp_path: Path) -> None:
    history = History(context=main, metric_names=["accuracy"])
    step(towers, 1, (1.0, 3.0))
    history.step(1, 2.0, [2.0, 0.2], None, 0.5, 5)  # recorded by the loop, for all towers together
    main.progress.total, main.progress.state = 10, "running"
    news = towers.replicas()
    assert [replica for replica, _, _ in news] == [0, 1]
    for i, (_, progress, batch) in enumerate(news):
        assert (progress["step"], progress["total"], progress["state"]) == (1, 10, "running")
        assert (progress["examples"], progress["spent"]["compute"]) == (2 + i, 0.5)
        assert batch is not None
        assert batch.replica == i
        assert list(batch.names.values()) == ["loss", "accuracy", "step_ms"]
    history.validated({"loss": 9.0}, 1)
    towers.close()
    assert points(tmp_path, 0) == [
        ("loss", 1, 1.0), ("accuracy", 1, 0.1), ("step_ms", 1, 500.0), ("val_loss", 1, 9.0),
    ]  # fmt: skip
    assert points(tmp_path, 1) == [("loss", 1, 3.0), ("accuracy", 1, 0.3), ("step_ms", 1, 500.0)]


def traced(step: int, busy: tuple[float, float]) -> list[Span]:
    """Return the trace of a step of one second: each worker computes, then waits for the rest."""
    return [
        Span(f"/job:worker/task:{i}", "CPU:0", kind, "step", start, seconds, step)
        for i, own in enumerate(busy)
        for kind, start, seconds in (("compute", 0.0, own), ("wait", own, 1.0 - own))
    ]


def test_traces_give_each_synchronous_tower_its_times(tmp_path: Path, main: Context) -> None:
    tmp_path.chmod(0o700)
    towers = Towers(tmp_path, 2, main, tasks=[f"/job:worker/task:{i}" for i in range(2)])
    History(context=main, metric_names=["accuracy"])
    main.progress.spent["compute"] = 10.0
    for number, busy in enumerate([(0.1, 0.1), (0.5, 1.0), (0.9, 0.3), (0.5, 1.0), (0.5, 1.0)], 1):
        towers.on_trace(traced(number, busy))
        step(towers, number, (0.0, 0.0))
    spent = [progress["spent"] for _, progress, _ in towers.replicas()]
    # The first trace does not count, and before there are three more each tower is taken to work throughout.
    assert [one["compute"] for one in spent] == [0.5 * (3 + 2 * 0.5), 0.5 * 5]
    assert [one["compute"] + one["wait"] for one in spent] == [10.0, 10.0]
    towers.close()


def test_each_tower_has_its_means_over_the_last_epoch(towers: Towers, main: Context) -> None:
    history = History(context=main, metric_names=["accuracy"])
    for epoch in range(2):
        for number in (1, 2):
            step(towers, 2 * epoch + number, (epoch + number, 10.0 * number))
            history.step(1, 0.0, [0.0, 0.0], None, 0.5, 5)
        history.end_epoch(epoch)
    assert towers.last_epochs() == {
        0: {"loss": 2.5, "accuracy": pytest.approx(0.25)}, 1: {"loss": 15.0, "accuracy": pytest.approx(1.5)},
    }  # fmt: skip


def test_steps_of_a_second_training_follow_those_of_the_first(
    towers: Towers, main: Context, tmp_path: Path
) -> None:
    History(context=main, metric_names=["accuracy"])
    for number in (1, 2, 1, 2):
        step(towers, number, (0.0, 0.0))
    towers.close()
    assert [at for name, at, _ in points(tmp_path, 1) if name == "loss"] == [1, 2, 3, 4]


def test_an_asynchronous_tower_has_its_own_context(towers: Towers, main: Context, tmp_path: Path) -> None:
    own = towers.context(1)
    assert towers.context(1) is own
    assert own.control is main.control
    assert (own.seed, own.options.epochs, own.is_chief, own.towers, own.trainings) == (5, 7, False, None, 0)
    assert own.progress is not main.progress
    history = History(context=own, metric_names=[])
    history.step(4, 0.5, [0.5], None, 0.1, 3)
    history.end_epoch(0)
    own.progress.step, own.progress.state = 4, "running"
    first, second = towers.replicas()
    assert (first[1]["step"], second[1]["step"], second[1]["state"]) == (0, 4, "running")
    assert towers.last_epochs()[1] == {"loss": 0.5}
    assert own.end_everywhere is not None
    own.end_everywhere(3)
    assert main.control.ended_training == 3
    towers.close()
    assert points(tmp_path, 1) == [("loss", 4, 0.5), ("step_ms", 4, 100.0)]
    assert not (tmp_path / "metrics-0000.log").exists()  # it has no points


def test_a_worker_with_part_of_a_tower_has_no_steps(towers: Towers, main: Context) -> None:
    History(context=main, metric_names=[])
    main.progress.total, main.progress.state = 10, "running"
    assert [progress["state"] for _, progress, _ in towers.replicas()] == ["running", "running"]
    towers.on_tower(0, 1, 1.0, [], 5, 0.1)
    first, second = (progress for _, progress, _ in towers.replicas())
    assert (first["step"], first["total"], first["state"]) == (1, 10, "running")
    assert (second["step"], second["total"], second["state"]) == (0, 0, "part of a tower")


def test_all_towers_end_with_the_body(towers: Towers, main: Context) -> None:
    towers.context(1).progress.state = "waiting for the others"
    assert towers.replicas()[1][1]["state"] == "waiting for the others"
    main.progress.state = "finished"
    assert towers.replicas()[1][1]["state"] == "finished"
