"""A notebook's kernel dies or is restarted in the middle of a run: training continues, and is shown again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from forked_kernels import forked_kernels
from jupyter_client.manager import KernelManager
from tiers import matrix
from waiting import PATIENCE, until

from nbdist.metrics.store import columns_from_logs

pytestmark = pytest.mark.engines

START = "%load_ext nbdist\nimport nbdist as nb\n"
UNHURRIED = "import nbdist.run.follow as follow\nfollow.RESTART_SECONDS = 60.0"
"""What tells an end from an interrupt may come late."""
FLAGS = "--strategy one_device --seed 5 --name {name} --on worker:0"
BODY = """
import os, time
x, y, x_test, y_test = nb.data.digits()
print("begun")
class Gate(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        print("epoch", epoch)
        while epoch == 1 and not os.path.exists({gate!r}):
            time.sleep(0.01)
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
data = nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(200)
history = model.fit(data, epochs={epochs}, callbacks=[Gate()])
"""
STEPS = 2 * 8  # to the gate: 1,438 digits in batches of 200


class Notebook:
    """A kernel of a notebook: it is restarted or killed, and there is another one for the same notebook."""

    def __init__(self, home: Path) -> None:
        self.home = home
        environment = {**os.environ, "NBDIST_HOME": str(home), "JPY_SESSION_NAME": str(home / "mine.ipynb")}
        self.manager = KernelManager(kernel_name="python3")
        self.manager.transport_encryption = "auto"
        self.manager.shutdown_wait_time = 2 * PATIENCE  # it ends its cluster first
        self.manager.start_kernel(env={**environment, "OPENBLAS_NUM_THREADS": "1"})
        self.connect()

    def connect(self) -> None:
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=90)

    def start(self, code: str) -> str:
        return str(self.client.execute(code, stop_on_error=False))

    def messages(self, code: str, timeout: float = 90) -> list[tuple[str, dict[str, Any]]]:
        """Run a cell; return the kinds and contents of what it has sent."""
        request, found = self.start(code), []
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") == request:
                found.append((message["msg_type"], message["content"]))
                if found[-1][1].get("execution_state") == "idle":
                    return found
        raise AssertionError(f"no end of: {code}")

    def run(self, code: str) -> str:
        """Run a cell; return what it has printed, and what it raised."""
        return "".join(
            content["text"] if kind == "stream" else "\n".join(content["traceback"])
            for kind, content in self.messages(code)
            if kind in ("stream", "error")
        )

    def value(self, expression: str) -> str:
        printed = self.run(f"print(repr(({expression})))")
        return printed.strip()

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel()
        self.connect()

    def kill(self) -> None:
        """Kill the kernel, and start another."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.connect()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """One notebook for all tests, without a cluster."""
    with forked_kernels():
        notebook = Notebook(tmp_path_factory.mktemp("notebook") / "home")
        yield notebook
        notebook.close()


@pytest.fixture
def notebook(opened: Notebook) -> Iterator[Notebook]:
    """The notebook, with no names of other tests and no cluster of theirs."""
    opened.run("%reset -f")
    opened.run(START)
    yield opened
    opened.run("%load_ext nbdist\n%cluster attach\n%cluster stop")
    until(lambda: not engines(opened.home))


def engines(home: Path) -> list[int]:
    """The processes of clusters under a home: the supervisor, the controller, the engines."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("NBDIST_HOME") == str(home)
            if ours and "nbdist.cluster" in " ".join(process.cmdline()):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def run_of(home: Path, name: str) -> Path | None:
    return next(iter(home.glob(f"runs/*-{name}")), None)


def at_gate(home: Path, name: str) -> bool:
    folder = run_of(home, name)
    if folder is None:
        return False
    columns = columns_from_logs(folder)
    return bool(np.count_nonzero(columns["series"] == "loss") == STEPS)


def status(folder: Path) -> str:
    """The status in a run's ``run.json``, which may have more keys than `RunFile`."""
    return str(json.loads((folder / "run.json").read_text())["status"])


def body(gate: Path, epochs: int = 4) -> str:
    return BODY.format(gate=str(gate), epochs=epochs)


SAME = """
from nbdist.metrics.store import columns_from_logs
import numpy as np
logs, ours = columns_from_logs(run.folder), run.store.columns()
order = [np.lexsort((c["series"].astype(str), c["replica"])) for c in (logs, ours)]
print(len(logs["step"]), all(np.array_equal(logs[n][order[0]], ours[n][order[1]]) for n in logs))
"""


def begin(notebook: Notebook, gate: Path, name: str, awaited: bool = True, epochs: int = 4) -> None:
    """Start a run on a fresh cluster, in a cell that waits for it."""
    code = body(gate, epochs)
    notebook.run("%cluster start --workers 2 --orphan-timeout 120")
    if awaited:
        notebook.start(f"%%distribute {FLAGS.format(name=name)}\n{code}")
    else:
        notebook.start(f"nb.launch({code!r}, strategy='one_device', seed=5, name={name!r}, on='worker:0')")
    until(lambda: at_gate(notebook.home, name))


def test_a_killed_kernels_run_comes_back_whole(notebook: Notebook, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    begin(notebook, gate, "left")
    notebook.kill()
    printed = notebook.run(START + "%cluster attach")
    folder = run_of(notebook.home, "left")
    assert folder is not None
    assert f"run {folder.name} is under way on it; to follow it: nb.attach('{folder.name}')" in printed
    assert notebook.run("run = nb.attach()") == ""
    assert notebook.value("run.id, run.status") == f"('{folder.name}', 'running')"
    transcript = "run.view._display.transcripts['/job:worker/task:0'].text()"
    assert notebook.value(transcript) == repr("begun\nepoch 0\nepoch 1\n")
    gate.touch()
    assert "Error" not in notebook.run("finished = run.wait()")
    assert notebook.value("run.status, len(run.history['loss'])") == "('finished', 4)"
    points, same = notebook.run(SAME).split()
    assert int(points) >= 4 * 8
    assert same == "True"
    again = notebook.run(f"%%distribute {FLAGS.format(name='undisturbed')}\n{body(gate)}")
    assert "Error" not in again
    assert notebook.value(
        "all(np.array_equal(a, b) for a, b in zip(finished.model.get_weights(), run.model.get_weights()))"
    ) == ("True")
    assert (
        notebook.value("finished.history.history == run.history.history, finished is run") == "(True, False)"
    )
    assert status(folder) == "finished"
    shown = notebook.messages("_ = nb.attach(finished.id)")
    *_, frozen = (content for kind, content in shown if kind in ("display_data", "update_display_data"))
    assert {"image/png", "text/html", "application/vnd.nbdist.run+json"} <= set(frozen["data"])
    assert "application/vnd.jupyter.widget-view+json" not in frozen["data"]


@pytest.mark.parametrize("awaited", [True, False], ids=["awaited", "blocking"])
def test_a_restart_does_not_stop_the_run(notebook: Notebook, tmp_path: Path, awaited: bool) -> None:
    """Jupyter interrupts the cell first; and the cluster ends with its kernel only if nothing is running."""
    gate, name = tmp_path / "open", "awaited" if awaited else "blocking"
    notebook.run(UNHURRIED)
    begin(notebook, gate, name, awaited, epochs=1_000_000)  # so that the word to stop is in time
    notebook.restart()
    folder = run_of(notebook.home, name)
    assert folder is not None
    assert status(folder) == "running"
    printed = notebook.run(START + "%cluster start --workers 3")
    assert "from before the kernel's restart is running and is used again" in printed
    assert "it has 2 workers and not 3" in printed
    assert f"nb.attach('{folder.name}')" in printed
    assert len(engines(notebook.home)) == 4  # one cluster: supervisor, controller, two engines
    busy = notebook.run("%%distribute --on worker:0\nprint(1)")
    assert f"is busy with run {folder.name}" in busy
    assert f"nb.attach('{folder.name}')" in busy
    notebook.run(f"run = nb.attach({folder.name!r})")
    notebook.run("run.stop()")
    gate.touch()
    assert "Error" not in notebook.run("finished = run.wait()")
    assert notebook.value("run.status, run.model is not None") == "('stopped', True)"
    assert notebook.run(SAME).split()[1] == "True"
    assert status(folder) == "stopped"
    notebook.restart()  # nothing is running any more
    until(lambda: not engines(notebook.home))


def test_an_interrupt_still_stops_a_run(notebook: Notebook, tmp_path: Path) -> None:
    begin(notebook, tmp_path / "never", "interrupted")
    notebook.manager.interrupt_kernel()
    assert notebook.value("run.status, run.model is not None") == "('stopped', True)"


SWEEP = """%%sweep x=[1, 2, 3, 4, 5] --metric value --name swept
import os, time
with open({starts!r}, "a") as file: print(x, file=file)
while not os.path.exists({gate!r}): time.sleep(0.01)
value = 10 * x
"""


@pytest.mark.parametrize("end", matrix(["restart"], rest=["kill"]))
def test_a_sweep_is_taken_over_and_no_trial_runs_twice(notebook: Notebook, tmp_path: Path, end: str) -> None:
    gate, starts = tmp_path / "gate", tmp_path / "starts"
    notebook.run("%cluster start --workers 2")
    notebook.run(SWEEP.format(gate=str(gate), starts=str(starts)))
    until(lambda: starts.exists() and len(starts.read_text().split()) == 2)
    name = notebook.value("sweep.id").strip("'")
    getattr(notebook, end)()
    gate.touch()  # both trials end while no process drives the sweep
    notebook.run(START)
    notebook.run(f"sweep = nb.attach({name!r}).wait()")
    assert notebook.value("sweep.state, sweep.best.value, sweep.ledger.counts['finished']") == (
        "('finished', 50.0, 5)"
    )
    assert sorted(starts.read_text().split()) == ["1", "2", "3", "4", "5"]
    assert notebook.value("{trial.attempt for trial in sweep.trials}") == "{1}"
