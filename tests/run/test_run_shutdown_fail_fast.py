"""One rank raises: the cell ends on all ranks, shows this rank's traceback and keeps all namespaces."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import PATIENCE, limit, until

from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.recovery import shutdown
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

MODEL = """
import numpy as np
x = np.random.default_rng(0).random((96, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, activation="tanh"), nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.01), "mse")
class Fail(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        if nb.task.rank == 2 and epoch == 1:
            raise ValueError("mine")
data = nb.data.Dataset.from_arrays(x, x[:, :1]).batch(24)
model.fit(data, epochs=1_000_000, callbacks=[Fail()])
"""
# No body fails before all have started: after the abort the others would not start.
BEGUN = """
import os, pathlib
kept = nb.task.rank
pathlib.Path({folder!r}, str(kept)).touch()
while kept == 2 and len(os.listdir({folder!r})) < 3: pass
"""
PLAIN = "kept = nb.task.rank\nif nb.task.rank == 2: raise ValueError('mine')\n"
SESSION = """
with nb.Graph().as_default(), nb.Session(nb.task.target) as session:
    x = nb.placeholder("float32", (1000, 1000))
    y = x @ x
    import numpy as np
    ones = np.ones((1000, 1000), np.float32)
    while True:
        session.run(y, {x: ones})
        if nb.task.rank == 2: raise ValueError("mine")
"""
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "sleep": (PLAIN + "import time; time.sleep(1000)", {}),
    "compute": (PLAIN + "while True: pass", {}),
    "input": (PLAIN + "import os; os.read(os.pipe()[0], 1)", {}),
    "collective": (PLAIN + "nb.collective.barrier()", {}),
    "ring": (PLAIN + "nb.collective.barrier()", {"collective": "ring"}),
    "session": (SESSION, {}),
    "each by itself": (MODEL, {"strategy": "one_device"}),
    "ps async": (MODEL, {"strategy": "ps", "synchronous": False}),
    "ps sync": (MODEL, {"strategy": "ps", "synchronous": True}),
    "ps staleness": (MODEL, {"strategy": "ps", "staleness": 1}),
    "multi_worker": (MODEL, {"strategy": "multi_worker"}),
    "mirrored": (MODEL, {"strategy": "mirrored"}),
    "sharded": (MODEL, {"strategy": "sharded"}),
    "central": (MODEL, {"strategy": "central"}),
    "elastic": (MODEL, {"strategy": "elastic", "every": 3}),
}


@pytest.mark.parametrize("mode", MODES)
def test_an_error_on_one_rank_ends_the_cell(
    cluster: Cluster, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 60.0)  # a signal stops the body, even on a slow machine
    body, options = MODES[mode]
    body = BEGUN.format(folder=str(tmp_path)) + body
    pids = [info.pid for info in cluster.tasks]
    run = start_run(body, Options(**options), cluster=cluster)
    until(lambda: run.poll() or 2 in run.outcomes)
    raised = time.monotonic()
    until(run.poll)
    assert time.monotonic() - raised < limit(2)
    error = run.error
    assert isinstance(error, WorkerError)
    assert (error.task, error.ename, error.evalue) == ("/job:worker/task:2", "ValueError", "mine")
    assert str(error).startswith("Traceback (most recent call last):\n")
    assert "raised on /job:worker/task:2 (pid " in str(error).splitlines()[-1]
    assert [info.pid for info in cluster.tasks] == pids
    assert cluster.run("kept", on=[0, 1, 2]) == [0, 1, 2]
    assert start_run("kept += 1", Options(), cluster=cluster).wait().results == {"kept": 1}


def test_a_body_not_yet_started_at_the_abort_never_starts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its task was in another call when the abort arrived, and no signal follows after the start."""
    monkeypatch.setattr(shutdown, "FAILED_AFTER", 60.0)
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)
    start_run("1", Options(), cluster=cluster).wait()
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    code = f"import os, threading\nwhile not os.path.exists({str(gate)!r}): threading.Event().wait(0.01)"
    call = cluster.submit(exec, code, on=0)
    body = PLAIN + f"open({str(begun)!r} + str(kept), 'w').close()\nwhile nb.task.rank == 0: pass"
    run = start_run(body, Options(on="worker:0,2"), cluster=cluster)
    deadline, pause = time.monotonic() + 10 + PATIENCE, threading.Event()
    while run.error is None:
        run.poll()
        assert time.monotonic() < deadline
        pause.wait(0.005)
    cluster.peer(0).call("run.hello")  # a task processes messages in order
    gate.touch()
    with pytest.raises(WorkerError, match="ValueError: mine"):
        run.wait()
    assert call.results(PATIENCE) == [None]
    assert run.outcomes[0]["error"]["type"] == "AbortedError"
    assert not list(tmp_path.glob("begun*"))
