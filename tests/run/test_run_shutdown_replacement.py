"""The last step of the escalation: a task that does not stop is killed and replaced; all others are kept."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from freezing import freeze
from recording_view import RecordingView
from tiers import matrix
from waiting import limit, until

from nbdist.errors import FailedPreconditionError, TaskDiedError, UnavailableError, WorkerError
from nbdist.run.attach import attach_run
from nbdist.run.options import Options
from nbdist.run.recovery import failure_detector, shutdown
from nbdist.run.recovery.shutdown import Escalation
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.wire.rpc.client import Peer

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Start = Callable[..., "Cluster"]
engines = pytest.mark.engines

# Each prints when no signal can end it any more, or at once if it ends at one.
MASKED = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print('on', flush=True)
time.sleep(1000)
"""
HOLDING = """
import ctypes, os, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print('on')
while not os.path.exists(GATE): threading.Event().wait(0.01)
open(GATE + '-passed', 'w').close()
ctypes.PyDLL(None).sleep(1000)  # native code that holds the GIL: no thread of this process runs
"""
SWALLOWING = """
import time
while True:
    try:
        print('on')
        time.sleep(1000)
    except BaseException:
        pass
"""
LISTENING = "import threading\nprint('on')\nwhile True: threading.Event().wait(0.01)"

MODEL = """
import numpy as np
x = np.random.default_rng(0).random((96, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, activation="tanh"), nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.01), "mse")  # stale gradients of 0.1 may diverge
data = nb.data.Dataset.from_arrays(x, x[:, :1]).batch(24)
"""
TRAIN = MODEL + "history = model.fit(data, epochs=3)\nends = [w for w in model.get_weights()]"
# While a test waits for something else, the engines need the processor little.
ENDLESS = (
    MODEL
    + """
import threading
def slow(*batch):
    threading.Event().wait(0.005)
    return batch
history = model.fit(data.map(slow), epochs=10_000_000)
"""
)


@pytest.fixture
def view() -> RecordingView:
    return RecordingView()


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 0.3)
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 1.0)


@pytest.fixture
def no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give bodies unlimited time to stop at the signal; `last_step` then starts the replacement."""
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 0.3)
    monkeypatch.setattr(shutdown, "FAILED_AFTER", 0.3)
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 600.0)


def last_step(run: Run, *stuck: int) -> None:
    """Start the replacement of the ``stuck`` ranks as soon as all others have ended."""
    ranks = {info.rank for info in run.members.infos}
    until(lambda: ranks - run.outcomes.keys() == set(stuck), during=run)
    escalation = run._followed.escalation
    escalation._steps = [(0.0, step) for _, step in escalation._steps]


def body_by_rank(stuck: dict[int, str], others: str) -> str:
    """Return a body that runs ``stuck[rank]``, or ``others`` on all other ranks."""
    return f"exec({stuck!r}.get(nb.task.rank, {others!r}))"


def all_print(run: Run, view: RecordingView) -> Callable[[], object]:
    return lambda: len(view.text) == len(run.tasks)


def start_and_wait_for_output(cluster: Cluster, body: str, view: RecordingView, **options: Any) -> Run:
    run = start_run(body, Options(**options), cluster=cluster, make_view=lambda run: view)
    until(all_print(run, view), during=run)
    return run


def check_training_equals_one_device(cluster: Cluster) -> None:
    """Check that a training on all workers gives the weights of one device."""
    import numpy as np

    together = Options(strategy="multi_worker", seed=3, fetch=("ends",))
    alone = Options(strategy="one_device", on="worker:0", seed=3, fetch=("ends",))
    many = start_run(TRAIN, together, cluster=cluster).wait()
    assert len(many.tasks) == sum(info.job == "worker" for info in cluster.tasks)
    one = start_run(TRAIN, alone, cluster=cluster).wait()
    for a, b in zip(many.results["ends"], one.results["ends"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_escalation_steps() -> None:
    now = 0.0
    escalation = Escalation(lambda: now)
    assert escalation.due() is None
    escalation.begin()
    steps = {}
    for now in (0.0, 1.4, 1.5, 3.9, 4.0, 9.0):
        steps[now] = escalation.due()
    assert {at: step for at, step in steps.items() if step} == {1.5: "signal", 4.0: "replace"}
    now = 0.0
    escalation = Escalation(lambda: now)
    escalation.begin(failed=True)
    now = 1.0
    assert escalation.due() == "signal"
    now = 0.0
    body_here = Escalation(lambda: now, aborts=True)
    assert body_here.interrupt()
    assert not body_here.interrupt()  # a second interrupt skips to the signal, not to giving up
    assert [body_here.due() for _ in range(3)] == ["abort", "signal", None]
    now = 5.0
    assert body_here.due() == "give up"


def test_a_late_poll_skips_no_step_and_keeps_the_delays() -> None:
    """After a busy notebook polls again, a task first has time to stop at the signal, then is replaced."""
    now = 0.0
    escalation = Escalation(lambda: now)
    escalation.begin()
    now = 30.0
    assert [escalation.due(), escalation.due()] == ["signal", None]
    now = 32.4
    assert escalation.due() is None
    now = 32.5
    assert escalation.due() == "replace"
    now = 0.0
    escalation = Escalation(lambda: now)
    escalation.interrupt()
    now = 1.0
    escalation.interrupt()
    assert [escalation.due(), escalation.due()] == ["signal", None]
    now = 4.0  # a second interrupt does not postpone the replacement
    assert escalation.due() == "replace"


@engines
@pytest.mark.parametrize(
    "body",
    matrix(
        [pytest.param(HOLDING, id="holding"), pytest.param(SWALLOWING, id="swallowing")],
        rest=[pytest.param(MASKED, id="masked")],  # the following tests have it, too
    ),
)
def test_an_unstoppable_task_is_replaced(
    start: Start,
    view: RecordingView,
    no_timeout: None,
    body: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    cluster = start(workers=2, ps=1)
    cluster.run("kept = 5")
    before = cluster.tasks
    gate = tmp_path / "gate"
    run = start_and_wait_for_output(
        cluster, body_by_rank({1: body.replace("GATE", repr(str(gate)))}, LISTENING), view
    )
    gate.touch()
    if body is HOLDING:
        until((tmp_path / "gate-passed").exists, during=run)
        until(lambda: is_unresponsive(cluster, 1), during=run)
    run.interrupt()
    last_step(run, 1)
    assert run.wait().status == "stopped"
    old, new = before[1], cluster.tasks[1]
    printed = capsys.readouterr().out
    assert f"/job:worker/task:1 (pid {old.pid}) did not stop within" in printed
    assert f"was replaced: its namespace is new (pid {new.pid})" in printed
    assert "All other tasks are as they were: their namespaces are kept." in printed
    assert not psutil.pid_exists(old.pid)
    assert [cluster.tasks[0], cluster.tasks[2]] == [before[0], before[2]]
    assert cluster.run("'kept' in globals()", on=[0, 1, 2]) == [True, False, True]
    assert start_run("n = nb.task.rank", Options(), cluster=cluster).wait().results == {"n": 0}
    check_training_equals_one_device(cluster)


def is_unresponsive(cluster: Cluster, rank: int) -> bool:
    info = cluster.tasks[rank]
    with Peer(info.address, cluster.keys) as peer:
        try:
            peer.call("ping", timeout=0.3)
        except UnavailableError:
            return True
    return False


@engines
def test_replacement_takes_about_five_seconds(start: Start, view: RecordingView) -> None:
    cluster = start(workers=2, ps=1)
    run = start_and_wait_for_output(cluster, MASKED, view, on="worker:0")
    began = time.monotonic()
    run.interrupt()
    until(run.poll)
    assert time.monotonic() - began < limit(15)  # 4.2 s on an idle machine
    assert run.status == "stopped"
    assert cluster.run("1 + 1", on=0) == [2]


@engines
def test_several_tasks_and_the_chief_are_replaced_together(
    start: Start, view: RecordingView, no_timeout: None
) -> None:
    cluster = start(workers=3, ps=1)
    before = cluster.tasks
    cluster.run("kept = 5")
    run = start_and_wait_for_output(cluster, body_by_rank({0: MASKED, 2: SWALLOWING}, LISTENING), view)
    run.stop()  # like the Stop button
    last_step(run, 0, 2)
    until(run.poll)
    assert run.status == "stopped"
    assert [info.rank for info in cluster.tasks if info not in before] == [0, 2]
    assert cluster.run("'kept' in globals()", on=[0, 1, 2]) == [False, True, False]
    check_training_equals_one_device(cluster)


ALL, PS = (pytest.param({"strategy": name}, id=id) for name, id in (("multi_worker", "all"), ("ps", "ps")))


@engines
@pytest.mark.parametrize("options", matrix([ALL], rest=[PS]))
def test_a_frozen_worker_is_replaced_and_the_model_is_kept(
    start: Start,
    view: RecordingView,
    no_timeout: None,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        failure_detector, "MEMBER_FROZEN_SECONDS", 60.0
    )  # the stop is not to come after its loss
    cluster = start(workers=2, ps=1)
    run = start_run(ENDLESS, Options(**options), cluster=cluster, make_view=lambda run: view)
    until(lambda: len(run.store.replicas) == 2, during=run)
    frozen = cluster.tasks[1].pid
    freeze(frozen)
    run.interrupt()
    last_step(run, 1)
    until(run.poll)
    assert run.status == "stopped", run.error
    assert run.model is not None
    assert not psutil.pid_exists(frozen)
    check_training_equals_one_device(cluster)


@engines
def test_after_an_error_a_hanging_task_is_replaced_and_the_error_raised(
    start: Start, view: RecordingView, no_timeout: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster = start(workers=3, ps=1)
    cluster.run("kept = 5")
    hangs = str(tmp_path / "hangs")  # a body not yet started at the error would never start
    fails = f"import os\nwhile not os.path.exists({hangs!r}): pass\nraise ZeroDivisionError('mine')"
    masked = MASKED.replace("time.sleep", f"open({hangs!r}, 'w').close(); time.sleep")
    run = start_run(body_by_rank({0: fails, 1: masked}, LISTENING), Options(), cluster=cluster)
    pid = cluster.tasks[1].pid
    last_step(run, 1)
    with pytest.raises(WorkerError, match=r"(?s)Traceback.*ZeroDivisionError: mine.*/job:worker/task:0"):
        run.wait()
    assert run.status == "failed"
    assert f"/job:worker/task:1 (pid {pid}) did not stop" in capsys.readouterr().out
    assert cluster.run("'kept' in globals()", on=[0, 1, 2]) == [True, False, True]


@engines
def test_an_attached_client_may_replace_a_task_and_the_starter_gets_an_error(
    start: Start, view: RecordingView, no_timeout: None
) -> None:
    cluster = start(workers=2, ps=1)
    run = start_and_wait_for_output(cluster, body_by_rank({1: SWALLOWING}, LISTENING), view)
    old = cluster.tasks[1]
    attached = attach_run(run.id)
    attached.interrupt()
    last_step(attached, 1)
    until(attached.poll)
    assert attached.status == "stopped"
    assert any(f"(pid {old.pid}) did not stop" in note for note in attached.notes)
    with pytest.raises(TaskDiedError, match=rf"\(pid {old.pid}\) was replaced by pid"):
        run.wait()
    assert start_run("n = 2", Options(), cluster=cluster).wait().results == {"n": 2}


@engines
def test_a_run_on_a_frozen_task_fails_with_advice(start: Start) -> None:
    cluster = start(workers=2, ps=1)
    start_run("1", Options(), cluster=cluster).wait()
    freeze(cluster.tasks[1].pid)
    cluster.peer(1).timeout = 0.5
    words = r"worker/task:1 .* did not answer .*%cluster restart worker:1"
    with pytest.raises(UnavailableError, match=words):
        start_run("1", Options(), cluster=cluster)
    cluster.restart("worker:1", report=lambda line: None)
    check_training_equals_one_device(cluster)


@engines
@pytest.mark.parametrize("options", matrix([PS], rest=[ALL]))
def test_a_dead_worker_can_be_restarted_during_the_run(
    start: Start, view: RecordingView, options: dict[str, Any]
) -> None:
    cluster = start(workers=3, ps=1)
    run = start_run(ENDLESS, Options(max_restarts=0, **options), cluster=cluster, make_view=lambda run: view)
    until(lambda: len(run.store.replicas) == 3, during=run)
    with pytest.raises(FailedPreconditionError, match=f"run {run.id} is using /job:worker/task:2"):
        cluster.restart("worker:2")
    os.kill(cluster.tasks[2].pid, signal.SIGKILL)
    until(lambda: "training continues on 2 workers" in view.text.get("/job:worker/task:2", ""), during=run)
    until(lambda: restarted(cluster), during=run)
    step = run.standing().step
    until(lambda: run.standing().step > step + 10, during=run)
    run.interrupt()
    until(run.poll)
    assert (run.status, run.error) == ("stopped", None)
    assert run.model is not None
    check_training_equals_one_device(cluster)


def restarted(cluster: Cluster) -> bool:
    """Return whether the dead task was restarted; refused until the first worker notices the death."""
    try:
        return bool(cluster.restart(report=lambda line: None))
    except FailedPreconditionError:
        return False


@engines
def test_two_clients_that_interrupt_replace_a_task_once(
    start: Start, view: RecordingView, short_delays: None
) -> None:
    cluster = start(workers=2)
    run = start_and_wait_for_output(cluster, body_by_rank({1: MASKED}, LISTENING), view)
    attached = attach_run(run.id)
    run.interrupt()
    attached.interrupt()
    until(run.poll)
    pid = cluster.tasks[1].pid
    until(attached.poll)
    assert cluster.tasks[1].pid == pid
    assert cluster.run(os.getpid, on=1) == [pid]
    assert run.status == "stopped"
    assert attached.error is None or "was replaced by pid" in str(attached.error)


@engines
def test_repeated_interrupts_change_nothing(start: Start, view: RecordingView, short_delays: None) -> None:
    cluster = start(workers=2, ps=1)
    run = start_and_wait_for_output(cluster, body_by_rank({1: MASKED}, LISTENING), view)

    def poll() -> bool:
        run.interrupt()  # before every poll
        return run.poll()

    until(poll)
    assert run.status == "stopped"
    assert cluster.run("nbdist.task.rank if 'nbdist' in globals() else 7", on=[0, 1]) == [7, 7]


@engines
def test_an_interrupt_during_a_replacement_is_harmless(
    start: Start, view: RecordingView, short_delays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbdist.cluster.resize import ReplaceTask

    cluster = start(workers=2, ps=1)
    run = start_and_wait_for_output(cluster, body_by_rank({1: MASKED}, LISTENING), view)
    poll, polls = ReplaceTask.poll, itertools.count()

    def poll_with_interrupts(replacement: ReplaceTask) -> bool:
        if next(polls) in (3, 9, 20):
            replacement._steps = interrupted()
        return poll(replacement)

    monkeypatch.setattr(ReplaceTask, "poll", poll_with_interrupts)
    run.interrupt()
    assert run.wait().status == "stopped"
    monkeypatch.undo()
    assert start_run("n = 2", Options(), cluster=cluster).wait().results == {"n": 2}


def interrupted() -> Iterator[None]:
    raise KeyboardInterrupt
    yield
