"""A background run without an event loop: a thread of its own follows it, and others wait for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from waiting import PATIENCE, until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, WorkerError
from nbdist.run.run import Run
from nbdist.trials.store import sweeps_folder
from nbdist.ui.api import attach, launch, under_way

pytestmark = pytest.mark.engines

FIT = """
import numpy as np
x, y = np.eye(16, 4, dtype=np.float32), np.arange(16) % 3
model = nb.nn.Sequential([nb.nn.Dense(3, activation="softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
print("built")
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(8), epochs={epochs})
"""
# While a test waits for something else, the engines need the processor little.
ENDLESS = """
import threading
def slow(*batch):
    threading.Event().wait(0.005)
    return batch
""" + FIT.replace(".batch(8)", ".batch(8).map(slow)").format(epochs=10_000_000)


@pytest.fixture
def begin(cluster: Cluster) -> Iterator[Callable[..., Run]]:
    begun: list[Run] = []

    def begin_one(body: str, **options: Any) -> Run:
        begun.append(launch(body, background=True, cluster=cluster, live=False, **options))
        return begun[-1]

    yield begin_one
    for run in begun:
        run.stop()
        until(lambda run=run: run.over)


@contextmanager
def interrupted_when(condition: Callable[[], bool]) -> Iterator[None]:
    entered = threading.Event()

    def interrupt() -> None:
        assert entered.wait(
            PATIENCE
        )  # not inside of start(), which the test does not expect to be interrupted
        until(condition)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    entered.set()
    yield
    helper.join()


def test_it_advances_and_ends_without_anyone_waiting(
    begin: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = begin(ENDLESS, strategy="ps")
    until(lambda: run.standing().step > 0)
    step = run.standing().step
    until(lambda: run.standing().step > step)
    assert run.status == "running"
    run.stop()
    until(lambda: run.over)
    assert run.status == "stopped"
    assert run.wait().model is not None
    assert capsys.readouterr().out.count("built") == 3  # once for each worker


def test_steering_from_another_thread(begin: Callable[..., Run]) -> None:
    run = begin(ENDLESS, strategy="ps")
    run.wait_until(step=5).pause()
    until(lambda: run.standing().state == "paused")
    run.set(learning_rate=0.5)
    run.resume()
    assert run.checkpoint().exists()


def test_an_error_is_raised_by_wait(begin: Callable[..., Run]) -> None:
    run = begin("1 / 0")
    until(lambda: run.over)
    assert run.status == "failed"
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        run.wait()


def test_an_interrupted_wait_stops_it(begin: Callable[..., Run]) -> None:
    run = begin(ENDLESS, strategy="ps")
    waits, main = threading.Event(), threading.main_thread()
    run.process_ends = lambda: threading.current_thread() is main and waits.set() is not None
    with interrupted_when(lambda: waits.is_set() and run.standing().step > 0):
        assert run.wait().status == "stopped"


def test_waiting_until_a_step(begin: Callable[..., Run]) -> None:
    run = begin(ENDLESS, strategy="ps", sync=True)
    assert run.wait_until(step=20) is run
    assert run.standing().step >= 20
    assert not run.over
    with pytest.raises(DeadlineExceededError, match="before step 1000000000: it continues"):
        run.wait_until(step=1_000_000_000, timeout=0.05)
    waits, main = threading.Event(), threading.main_thread()
    run.process_ends = lambda: threading.current_thread() is main and waits.set() is not None
    with interrupted_when(waits.is_set), pytest.raises(KeyboardInterrupt):
        run.wait_until(step=1_000_000_000)
    assert not run.over
    with pytest.raises(InvalidArgumentError, match="step is a whole number of 0 or more, got -1"):
        run.wait_until(step=-1)
    run.stop()
    until(lambda: run.over)
    with pytest.raises(FailedPreconditionError, match=r"ended \(stopped\) after \d+ updates, before step"):
        run.wait_until(step=1_000_000_000)


def test_an_attached_run_is_followed_too(begin: Callable[..., Run]) -> None:
    run = begin(ENDLESS, strategy="ps")
    other = attach(run.id)
    assert other is not run
    until(lambda: other.standing().step > 0)
    run.stop()
    until(lambda: other.over)
    assert other.status == "stopped"


SCRIPT = """
import sys
import nbdist as nb
cluster = nb.Cluster.attach({cluster!r})
run = nb.launch({body!r}, strategy="ps", background=True, cluster=cluster, live=False)
run.wait_until(step=3)
sys.stdout.write(f"the id is {{run.id}} \\n")  # in one piece: another thread prints what workers print
"""


def test_a_script_that_ends_leaves_the_run(cluster: Cluster) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(cluster=cluster.id, body=ENDLESS)],
        capture_output=True, text=True, timeout=60 + PATIENCE, check=False,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    run = attach(ended.stdout.partition("the id is ")[2].split()[0])
    run.wait_until(step=run.standing().step + 1)
    run.stop()
    assert run.wait().status == "stopped"


HOLDER = """
import sys
from pathlib import Path
from nbdist.sweep.event_log import take_lock
lock = take_lock(Path({path!r}))
print("held", flush=True)
sys.stdin.read()
"""


def test_attach_without_an_id_takes_the_newest_under_way_and_names_the_others(
    begin: Callable[..., Run], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    older = begin(ENDLESS, strategy="ps", on="worker:0", name="older")
    until(lambda: older.standing().step > 0)
    newer = begin(ENDLESS, strategy="ps", on="worker:1", name="newer")
    until(lambda: newer.standing().step > 0)
    assert under_way() == sorted([older.id, newer.id], reverse=True)
    found = attach()
    assert found.id == max(older.id, newer.id)
    assert f"also under way: {min(older.id, newer.id)}" in capsys.readouterr().out
    sweep = sweeps_folder() / "991231-235959-latest"  # the state of a sweep while it serves trials
    sweep.mkdir(mode=0o700)
    (sweep / "sweep.log").touch()
    busy = cluster.folder / "busy" / str(cluster.tasks[-1].pid)
    assert not busy.exists()
    busy.write_text(sweep.name)
    try:
        assert under_way()[0] == sweep.name
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER.format(path=str(sweep / "sweep.log"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert attach().id == max(older.id, newer.id)
        printed = capsys.readouterr().out
        assert f"sweep {sweep.name} is under way in process {holder.pid}, which drives it" in printed
        holder.communicate()
    finally:
        (sweep / "sweep.log.lock").unlink(missing_ok=True)
        busy.unlink()
        (sweep / "sweep.log").unlink()
        sweep.rmdir()
    for run in (older, newer):
        run.stop()
    until(lambda: found.over)
    until(lambda: under_way() == [])
