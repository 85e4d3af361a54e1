"""The command line with a real cluster: one, for all of a session's verbs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from waiting import until

from nbdist.cli.__main__ import main
from nbdist.metrics.run_folder import read_run

pytestmark = pytest.mark.engines
TRAIN = """
from __future__ import annotations
import sys
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
print("with", sys.argv[1:])
history = model.fit(x, y, batch_size=100, epochs=int(sys.argv[1]))
"""
COMMAND = [sys.executable, "-m", "nbdist"]


@pytest.fixture(scope="module")
def cluster(own_home: Path) -> Iterator[str]:
    line = [*COMMAND, "cluster", "start", "--workers", "2"]
    started = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    (found,) = started.stdout.split()
    yield found
    assert main(["cluster", "stop", found]) == 0


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


def test_a_cluster_lives_on_and_runs_a_script(
    cluster: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "list", "--json"]) == 0
    (row,) = [one for one in json.loads(capsys.readouterr().out) if one["id"] == cluster]
    assert (row["workers"], row["runs"]) == (2, [])
    line = ["run", "--cluster", cluster, "--strategy", "multi_worker", script]
    assert main([*line, "--json", "--", "2"]) == 0
    shown = capsys.readouterr()
    ended = json.loads(shown.out)
    assert (ended["status"], len(ended["history"]["loss"])) == ("finished", 2)
    assert "[worker 1] with ['2']" in shown.err
    assert main(["runs", "show", ended["id"]]) == 0
    assert "%%distribute --strategy multi_worker" in capsys.readouterr().out
    assert main(["attach", ended["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["history"] == ended["history"]
    assert main([*line, "--", "two"]) == 1
    assert "invalid literal for int() with base 10: 'two'" in capsys.readouterr().err


def test_an_interrupt_stops_the_run_and_another_terminal_does(cluster: str, script: str) -> None:
    line = [*COMMAND, "run", "--cluster", cluster, "--json", script, "--", "100000"]
    for end in ("interrupt", "verb"):
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            try:
                (run,) = until(partial(runs_on, cluster))
                until(partial(trains, run))
                if end == "interrupt":
                    running.send_signal(signal.SIGINT)
                else:
                    assert main(["runs", "stop", run]) == 0
                out, _ = running.communicate(timeout=60)
            finally:
                running.kill()
        assert running.returncode == 130
        assert (json.loads(out)["id"], json.loads(out)["status"]) == (run, "stopped")


def trains(run: str) -> bool:
    return read_run(run).status == "running"


def runs_on(cluster: str) -> list[str]:
    line = [*COMMAND, "cluster", "list", "--json"]
    found = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    return [run for row in found if row["id"] == cluster for run in row["runs"]]
