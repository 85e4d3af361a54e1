"""Commands on a sweep while its trials run, from any thread. On real engines."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiers import exhaustive, matrix
from trials_tools import COUNTED, GATED, TRAIN, began, finished, losses, states
from waiting import until

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.trials import driver
from nbdist.trials.workers import Engines

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.trials.sweep import Sweep

pytestmark = pytest.mark.engines
Begin = Callable[..., "Sweep"]

ENDLESS = {
    "fit": TRAIN.format(optimizer="SGD", epochs=10_000_000, callbacks=[]),
    "log": "lr\nstep = 0\nwhile True:\n    step += 1\n    nb.log(val_loss=float(step), step=step)",
    "loop": "nb.log(val_loss=1.0, step=1)\nwhile True:\n    lr",
    "sleep": "nb.log(val_loss=1.0, step=1)\nimport time\ntime.sleep(1000)",
}


def reported(sweep: Sweep, number: int = 0) -> Callable[[], bool]:
    return lambda: sweep.ledger.curve(number) is not None


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_trial_is_stopped_and_the_next_one_runs(
    begin: Begin, cluster: Cluster, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "REPLACE_AFTER", float("inf"))  # however slow the machine is
    if kind in ("fit", "log"):  # the stop command suffices, without a signal
        monkeypatch.setattr(driver, "SIGNAL_AFTER", float("inf"))
    endless = ENDLESS[kind].strip().replace("\n", "\n    ")
    body = f"if lr < 1:\n    lr, val_loss = lr, 0.5\nelse:\n    {endless}"
    options: dict[str, Any] = {"metric": "val_loss", "direction": "min", "cluster": cluster}
    sweep = begin(body, {"lr": [2.0, 0.1, 0.2]}, on="worker:0", **options)
    pid = cluster.tasks[0].pid
    until(reported(sweep))
    sweep.stop(0)
    sweep.stop(0)
    finished(sweep)
    assert states(sweep) == ["stopped", "finished", "finished"], sweep.trial(0).error
    assert sweep.trial(0).value is not None
    assert sweep.trial(0).attempt == 1
    assert cluster.tasks[0].pid == pid
    if kind == "fit":
        assert sweep.checkpoint(0).exists()


@pytest.mark.parametrize("kind", ["loop", "sleep"])
def test_a_signal_before_the_stop_command_stops_the_trial(
    begin: Begin, cluster: Cluster, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Server of a busy engine processes the stop command late."""
    monkeypatch.setattr(driver, "SIGNAL_AFTER", 0.0)
    monkeypatch.setattr(driver, "REPLACE_AFTER", float("inf"))
    monkeypatch.setattr(Engines, "stop", lambda *given: None)
    options: dict[str, Any] = {"metric": "val_loss", "direction": "min", "cluster": cluster}
    sweep = begin(ENDLESS[kind], {"lr": [2.0]}, on="worker:0", **options)
    until(reported(sweep))
    sweep.stop(0)
    finished(sweep)
    assert states(sweep) == ["stopped"], sweep.trial(0).error
    assert sweep.trial(0).value == 1.0


def test_a_signal_after_the_last_line_has_no_effect(begin: Begin, cluster: Cluster) -> None:
    body = """
import os, signal
from nbdist.run.task.agent import Agent
end = Agent.end
def interrupted(agent, *given):
    Agent.end = end
    os.kill(os.getpid(), signal.SIGINT)
    end(agent, *given)
Agent.end = interrupted
accuracy = width
"""
    sweep = finished(begin(body, "width=[1, 2, 3]", on="worker:0", cluster=cluster))
    assert states(sweep) == ["finished"] * 3
    assert start_run("n = 1", Options(), cluster=cluster).wait().results == {"n": 1}


def test_an_engine_that_does_not_stop_is_replaced(
    start: Callable[..., Cluster], begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SIGNAL_AFTER", 0.2)
    monkeypatch.setattr(driver, "REPLACE_AFTER", 0.6)
    cluster = start(workers=1)
    body = """
import signal, time
if width == 0:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
nb.log(accuracy=1.0, step=1)
if width == 0:
    time.sleep(1000)
accuracy = width
"""
    sweep = begin(body, "width=[0, 1, 2]", cluster=cluster)
    until(reported(sweep))
    pid = cluster.tasks[0].pid
    sweep.stop(0)
    finished(sweep)
    assert states(sweep) == ["stopped", "finished", "finished"]
    assert cluster.tasks[0].pid != pid
    assert sweep.trouble is None


def test_commands_from_many_threads(begin: Begin, cluster: Cluster, marks: Path) -> None:
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(12))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    wrong: list[BaseException] = []
    clones: list[int] = []

    def guarded(call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:  # checked below
            wrong.append(error)

    calls: list[Callable[[], Any]] = [
        *(lambda n=n: sweep.stop(n) for n in (0, 1)),
        *(lambda n=n: clones.append(sweep.clone(2, number=100 + n)) for n in range(4)),
        *(sweep.pause, sweep.resume) * 3,
        lambda: sweep.edit({"number": list(range(6))}),
        *(lambda: (sweep.state, sweep.trials, sweep.engines(), repr(sweep)) for _ in range(4)),
    ]
    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sweep.resume()
    until(lambda: {sweep.trial(n).state for n in (0, 1)} == {"stopped"})  # otherwise they may finish first
    (marks / "open").touch()
    finished(sweep)
    assert wrong == []
    assert len(set(clones)) == 4
    counts = sweep.ledger.counts
    assert counts["running"] == counts["waiting"] == 0
    assert [sweep.trial(one).state for one in clones] == ["finished"] * 4
    assert {sweep.trial(0).state, sweep.trial(1).state} == {"stopped"}
    started = began(marks)
    assert len({name.split("-")[1] for name in started}) == len(started)  # none ran twice


def test_a_retried_trial_gives_the_same_result(begin: Begin, cluster: Cluster, marks: Path) -> None:
    body = COUNTED.format(folder=str(marks)) + (
        TRAIN.format(optimizer="SGD", epochs=3, callbacks=[])
        + f"if lr == 0.2 and not os.path.exists({str(marks / 'ready')!r}): raise ValueError('not yet')\n"
    )
    sweep = finished(begin(body, "lr=[0.1, 0.2]", metric="val_loss", direction="min", cluster=cluster))
    assert states(sweep) == ["finished", "failed"]
    first = losses(sweep, 1)
    (marks / "ready").touch()
    sweep.retry(1)
    finished(sweep)
    assert states(sweep) == ["finished", "finished"]
    assert (sweep.trial(1).attempt, sweep.trial(1).error) == (2, "")
    assert losses(sweep, 1) == first
    with pytest.raises(FailedPreconditionError, match="is finished"):
        sweep.retry(1)
    with pytest.raises(NotFoundError, match="no trial 9"):
        sweep.retry(9)


def test_pause_frees_the_cluster_and_resume_continues(begin: Begin, cluster: Cluster, marks: Path) -> None:
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(8))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    with pytest.raises(FailedPreconditionError, match=sweep.id):
        start_run("n = 1", Options(), cluster=cluster)
    sweep.pause()
    assert sweep.state == "paused"
    (marks / "open").touch()
    until(lambda: not sweep.driven)
    assert (sweep.state, sweep.ledger.counts["finished"]) == ("paused", 3)
    assert start_run("n = 1", Options(), cluster=cluster).wait().results == {"n": 1}
    sweep.resume()
    finished(sweep)
    assert states(sweep) == ["finished"] * 8
    assert len(began(marks)) == 8


def test_resume_while_another_run_has_the_engines(begin: Begin, cluster: Cluster, marks: Path) -> None:
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(8))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    sweep.pause()
    (marks / "open").touch()
    until(lambda: not sweep.driven)
    gate = str(marks / "gate")
    run = start_run(
        f"import os, time\nwhile not os.path.exists({gate!r}): time.sleep(0.01)",
        Options(on="worker:0,1,2"),
        cluster=cluster,
    )
    sweep.resume()
    assert run.id in until(lambda: sweep.trouble)
    assert sweep.wait(0.01).state == "running"
    Path(gate).touch()
    run.wait()
    finished(sweep)
    assert states(sweep) == ["finished"] * 8
    assert sweep.trouble is None


def test_add_edit_and_close(begin: Begin, cluster: Cluster, marks: Path) -> None:
    body = GATED.format(folder=str(marks))
    sweep = begin(body, "number=int(0, 9)", trials=6, sampler="random", cluster=cluster)
    until(lambda: len(sweep.ledger.running) == 3 and len(began(marks)) >= 1)
    sweep.add(4)
    sweep.edit("number=int(20, 29)", outside="stop")
    until(lambda: [sweep.trial(n).state for n in range(3)] == ["stopped"] * 3)
    until(lambda: len(sweep.ledger.running) == 3)
    sweep.edit(number=[30, 31])
    assert {sweep.trial(n).state for n in sweep.ledger.running} == {"running"}
    (marks / "open").touch()
    finished(sweep)
    assert len(sweep.trials) == 10
    assert {trial.parameters["number"] for trial in sweep.trials[3:]} <= set(range(20, 32))
    assert {trial.parameters["number"] for trial in sweep.trials[6:]} <= {30, 31}
    with pytest.raises(InvalidArgumentError):
        sweep.edit("number=int(5, 1)")
    sweep.add(2)
    assert finished(sweep).ledger.counts["finished"] == 9
    sweep.stop()
    assert sweep.state == "stopped"
    for call in (lambda: sweep.add(1), lambda: sweep.clone(0), lambda: sweep.retry(0), sweep.resume):
        with pytest.raises(FailedPreconditionError, match="the sweep is over"):
            call()


def test_close_stops_running_trials(begin: Begin, cluster: Cluster, marks: Path) -> None:
    sweep = begin(GATED.format(folder=str(marks)), {"number": list(range(8))}, cluster=cluster)
    until(lambda: len(began(marks)) == 3)
    sweep.clone(0)
    sweep.close()
    finished(sweep)
    assert sweep.state == "stopped"
    assert states(sweep) == ["stopped"] * len(sweep.trials)
    assert len(began(marks)) == 3
    assert start_run("n = 1", Options(), cluster=cluster).wait().results == {"n": 1}


def test_a_finished_sweep_can_continue(begin: Begin, cluster: Cluster) -> None:
    body = TRAIN.format(optimizer="SGD", epochs=2, callbacks=[])
    options: dict[str, Any] = {"metric": "val_loss", "direction": "min", "cluster": cluster}
    sweep = finished(begin(body, "lr=log(0.01, 0.1)", trials=2, **options))
    sweep.add(1)
    assert states(finished(sweep)) == ["finished"] * 3
    clone = sweep.clone(0, lr=0.5)
    assert sweep.state == "running"
    finished(sweep)
    assert sweep.trial(clone).parameters == {"lr": 0.5}
    sweep.promote(clone, epochs=4)
    finished(sweep)
    assert sweep.trial(clone).attempt == 2
    assert sorted(losses(sweep, clone)) == list(range(1, 13))
    with pytest.raises(InvalidArgumentError, match="no parameter"):
        sweep.clone(0, width=3)


@exhaustive  # tests/run/test_run_notify.py has all about the delivery
def test_its_end_is_told(begin: Begin, cluster: Cluster, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = f"{sys.executable} -c 'import sys; open(sys.argv[1], \"w\").write(sys.stdin.read())' {told}"
    sweep = finished(begin("accuracy = lr", "lr=[0.25, 0.5]", cluster=cluster, name="rates", notify=command))
    until(lambda: told.exists() and told.read_text().endswith("}"))
    notice = json.loads(told.read_text())
    assert (notice["event"], notice["kind"], notice["id"]) == ("finished", "sweep", sweep.id)
    assert notice["metrics"] == {"best accuracy": 0.5}
    with pytest.raises(InvalidArgumentError, match="use https"):
        begin("accuracy = lr", "lr=[0.25]", cluster=cluster, notify="http://example.com/")


@pytest.mark.parametrize(
    ("how", "optimizer"),
    matrix(
        [("pruned", "SGD"), ("stopped", "Adam"), ("finished", "Adam")],
        rest=[("pruned", "Adam"), ("stopped", "SGD"), ("finished", "SGD")],
    ),
)
def test_a_promoted_trial_continues_exactly(
    begin: Begin, cluster: Cluster, marks: Path, optimizer: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SIGNAL_AFTER", float("inf"))  # a checkpoint may take longer on a busy disk
    gate = f"""
import os, time
from nbdist.train.context import current
class Gate(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        if epoch == 1 and gated and not os.path.exists({str(marks / "open")!r}):
            while not current().control.stop_requested: time.sleep(0.002)
"""
    body = gate + TRAIN.format(optimizer=optimizer, epochs=5, callbacks="[Gate()]")
    options: dict[str, Any] = {"metric": "val_loss", "direction": "min", "cluster": cluster}
    whole = finished(begin("gated = False\n" + body, "lr=[0.05]", **options))
    if how == "finished":
        sweep = finished(
            begin("gated = False\n" + body.replace("epochs=5", "epochs=2"), "lr=[0.05]", **options)
        )
        sweep.promote(0, epochs=5)
    else:
        sweep = begin("gated = True\n" + body, "lr=[0.05]", **options)
        until(lambda: reported(sweep)() and len(sweep.ledger.curve(0).values) == 2)  # type: ignore[union-attr]
        if how == "stopped":
            sweep.stop(0)
        else:
            with sweep.lock:
                prune(sweep, 0)
        finished(sweep)
        assert states(sweep) == [how]
        assert len(losses(sweep, 0)) < 15
        (marks / "open").touch()
        sweep.promote(0)
    finished(sweep)
    assert states(sweep) == ["finished"]
    for series in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert losses(sweep, 0, series) == losses(whole, 0, series), series
    assert sweep.trial(0).value == whole.trial(0).value
    ours, theirs = sweep.ledger.curve(0), whole.ledger.curve(0)
    assert (ours.steps, ours.values) == (theirs.steps, theirs.values)  # type: ignore[union-attr]
    for mine, its in zip(sweep.model(0).get_weights(), whole.model(0).get_weights(), strict=True):
        assert (mine == its).all()


def test_promotion_to_the_whole_cluster(begin: Begin, cluster: Cluster) -> None:
    body = TRAIN.format(optimizer="SGD", epochs=2, callbacks=[])
    options: dict[str, Any] = {"metric": "val_loss", "direction": "min", "cluster": cluster}
    sweep = finished(begin(body, "lr=[0.05, 0.1]", **options))
    before = sweep.trial(0).value
    sweep.promote(0, epochs=6, per_trial=2)
    finished(sweep)
    assert states(sweep) == ["finished"] * 2, sweep.trial(0).error
    assert len(sweep.trial(0).ranks) == 2
    assert sweep.trial(0).value < before  # type: ignore[operator]
    with pytest.raises(InvalidArgumentError, match="the cluster has 3 engines"):
        sweep.promote(0, per_trial=4)
    with pytest.raises(InvalidArgumentError, match="epochs"):
        sweep.promote(0, epochs=0)


def by_rate(lr: float) -> Any:
    import numpy as np

    import nbdist as nb

    x, y = np.eye(6, 4, dtype=np.float32), np.arange(6) % 3
    model = nb.nn.Sequential([nb.nn.Dense(3, "softmax")])
    model.compile(nb.optim.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model.fit(x, y, batch_size=3, epochs=2, validation_data=(x, y))


by_rate.__module__ = "__main__"


def test_names_that_a_trial_does_not_have_are_refused(begin: Begin, cluster: Cluster) -> None:
    sweep = finished(begin(by_rate, "lr=[0.1]", metric="val_loss", direction="min", cluster=cluster))
    with pytest.raises(InvalidArgumentError, match=r"by_rate\(\) takes no parameter width"):
        sweep.edit(width=[1, 2])
    with pytest.raises(InvalidArgumentError, match=r"not all trials have lr"):
        sweep.edit("lr=when([0.1], width=1) width=[1]")
    with pytest.raises(InvalidArgumentError, match=r"by_rate\(\) takes no parameter epoch"):
        sweep.promote(0, epoch=4)
    with pytest.raises(FailedPreconditionError, match="trial 0 is finished; clone it") as refused:
        sweep.retry(0)
    assert [frame.name for frame in refused.traceback][1:] == ["retry", "command"]  # no more of ours
    assert str(sweep.space) == "lr=[0.1]"
    assert states(sweep) == ["finished"]


def test_a_function_without_epochs_can_be_promoted(begin: Begin, cluster: Cluster) -> None:
    sweep = finished(begin(by_rate, "lr=[0.1]", metric="val_loss", direction="min", cluster=cluster))
    sweep.promote(0, epochs=4)
    finished(sweep)
    assert states(sweep) == ["finished"], sweep.trial(0).error
    assert sorted(losses(sweep, 0)) == list(range(1, 9))


def test_a_trial_that_calls_fit_in_a_loop_is_promoted_by_its_parameter(
    begin: Begin, cluster: Cluster
) -> None:
    body = TRAIN.format(optimizer="SGD", epochs=1, callbacks=[])
    looped = body.replace("history = ", "for _ in range(rounds):\n    history = ")
    options: dict[str, Any] = {"metric": "val_loss", "direction": "min", "cluster": cluster, "seed": 5}
    named = looped.replace("rounds", "epochs")
    whole = finished(begin(named, "lr=[0.1] epochs=4", **options)).trial(0).value
    sweep = finished(begin(named, "lr=[0.1] epochs=2", **options))
    assert sweep.trial(0).value != whole
    sweep.promote(0, epochs=4)
    assert finished(sweep).trial(0).value == whole  # of four fits with one epoch each
    other = finished(begin(looped, "lr=[0.1] rounds=2", **options))
    with pytest.raises(FailedPreconditionError, match=r"it trains 2 times, each time so many"):
        other.promote(0, epochs=4)
    assert (other.state, other.trial(0).attempt) == ("finished", 1)


def test_without_a_checkpoint_there_is_no_promotion(begin: Begin, cluster: Cluster) -> None:
    sweep = finished(begin("accuracy = width", "width=[1, 2]", cluster=cluster))
    with pytest.raises(FailedPreconditionError, match=r"trial 1 has no checkpoint at .*called no fit"):
        sweep.promote()
    assert sweep.state == "finished"


def prune(sweep: Sweep, number: int) -> None:
    """Prune a trial, as a pruner does."""
    import time

    from nbdist.sweep.events import Pruned

    trial = sweep.trial(number)
    sweep._record.write(Pruned(time.time(), number, trial.attempt, trial.step or 0))
    sweep._driver.wake()  # type: ignore[union-attr]
