"""The examples as users start them: as programs, as a cell, and with TF_CONFIG, killed and started again."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ports import free_port
from tiers import matrix
from waiting import until

from nbdist.data import digits
from nbdist.graph.tensor import Graph
from nbdist.graph.variables import global_variables, global_variables_initializer
from nbdist.runtime.session.session import Session
from nbdist.train import latest_checkpoint, list_variables, load_variable
from nbdist.wire.keys import ClusterKeys

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


class Program:
    """An example's tasks, each a process with its output in a file."""

    def __init__(self, folder: Path, script: str, *arguments: str, ps: int = 2, workers: int = 2) -> None:
        self.folder, self.command = folder, [sys.executable, str(EXAMPLES / script), *arguments]
        ClusterKeys.create().save(folder / "keys.json")
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(ps + workers)]
        self.cluster = {"ps": addresses[:ps], "worker": addresses[ps:]}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for job, tasks in self.cluster.items():
            for index in range(len(tasks)):
                self.start(job, index)

    def start(self, job: str, index: int) -> None:
        config = {"cluster": self.cluster, "task": {"type": job, "index": index}}
        environment = {
            **os.environ, "TF_CONFIG": json.dumps(config), "NBDIST_KEYS": str(self.folder / "keys.json"),
        }  # fmt: skip
        with (self.folder / f"{job}{index}.log").open("ab") as log:
            self.processes[f"{job}{index}"] = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(10)

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def steps(self, name: str) -> int:
        return self.output(name).count("step ")

    def wait(self) -> None:
        """Wait for the workers."""
        for name, process in self.processes.items():
            if name.startswith("worker"):
                assert until(lambda process=process: process.poll() is not None)  # type: ignore[misc]
                assert process.poll() == 0, self.output(name)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.close()


@pytest.mark.processes
def test_asynchronous_training_survives_a_parameter_server_and_the_chief(
    programs: list[Program], tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    program = Program(
        tmp_path, "async_mnist.py", "--epochs", "200", "--rate", "0.15", "--checkpoints", str(saved)
    )
    programs.append(program)
    # Worker 1 has epochs left at all of these looks, however late they come.
    until(lambda: program.steps("worker1") > 20 and latest_checkpoint(saved) is not None)
    program.kill("ps1")
    program.start("ps", 1)
    until(lambda: "restored" in program.output("worker0"))
    assert re.search(r"restored w1, b1 on /job:ps/task:1 from \S+ckpt-\d+", program.output("worker0"))
    steps = program.steps("worker1")
    until(lambda: program.steps("worker1") > steps + 5)
    program.kill("worker0")
    steps = program.steps("worker1")
    until(lambda: program.steps("worker1") > steps + 5)  # without a chief
    program.start("worker", 0)
    program.wait()
    assert "joined the training" in program.output("worker0")
    accuracies = [float(re.findall(r"accuracy (\S+)", program.output(f"worker{i}"))[0]) for i in (0, 1)]
    assert min(accuracies) > 0.9


@pytest.mark.processes
def test_a_table_in_shards_is_trained_and_saved(programs: list[Program], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    program = Program(
        tmp_path, "embedding.py", "--words", "2000", "--steps", "600", "--checkpoints", str(saved)
    )
    programs.append(program)
    program.wait()
    shapes = dict(list_variables(saved))
    assert shapes["embedding"] == (2000, 20)
    latest = latest_checkpoint(saved)
    assert latest is not None
    assert len(list(saved.glob(f"{Path(latest).name}.*-of-2.safetensors"))) == 2
    table = load_variable(saved, "embedding")
    together = np.mean(np.sum(table[0:1000:10] * table[1:1001:10], axis=1))
    apart = np.mean(np.sum(table[0:1000:10] * table[1000:2000:10], axis=1))
    assert together > apart + 1.0


@pytest.fixture(scope="module")
def towers() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "towers.py"))


def trained(
    towers: dict[str, Any], count: int, steps: int = 3
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Make steps with towers on this device; return all variables after each, and logits of test digits."""
    x, y, x_test, _ = digits(flatten=False)
    values = []
    with Graph().as_default(), Session() as session:
        ops = towers["build"](["/device:CPU:0"] * count, "/device:CPU:0", 23)
        variables = {variable.name: variable for variable in global_variables()}
        session.run(global_variables_initializer())
        values.append(session.run(variables))
        for step in range(steps):
            rows = slice(60 * step, 60 * step + 60)
            session.run(ops["train"], {ops["images"]: x[rows], ops["labels"]: y[rows]})
            values.append(session.run(variables))
        logits = {name: ops[name] for name in ("weights", "average")}
        return values, session.run(logits, {ops["images"]: x_test[:8]})


def test_the_number_of_towers_does_not_change_what_they_train(towers: dict[str, Any]) -> None:
    (one, alone), (three, together) = trained(towers, 1), trained(towers, 3)
    assert {name for name in one[-1] if name.endswith("/kernel")} == {
        "conv1/kernel", "conv2/kernel", "hidden/kernel", "out/kernel",
    }  # fmt: skip
    for name in alone:
        np.testing.assert_allclose(together[name], alone[name], atol=1e-3)
    assert three[-1]["global_step"] == 3


def test_a_moving_average_of_the_weights_of_towers(towers: dict[str, Any]) -> None:
    values, logits = trained(towers, 2)
    average = values[0]["out/bias"]
    for step, one in enumerate(values[1:], 1):
        keep = min(towers["AVERAGE"], (1 + step) / (10 + step))
        average = keep * average + (1 - keep) * one["out/bias"]
        np.testing.assert_allclose(one["out/bias/average"], average, rtol=1e-5)
    assert np.abs(logits["weights"] - logits["average"]).max() > 1e-4


TOWERS = os.fspath(EXAMPLES / "towers.py")
CELL = f"import nbdist; nbdist.start_cluster(workers=3); exec(open({TOWERS!r}).read())"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "count"),
    matrix(
        [pytest.param([TOWERS], 2, id="program")],
        rest=[pytest.param(["-c", CELL], 3, id="cell on its cluster")],
    ),
)
def test_towers_train(command: list[str], count: int) -> None:
    shown = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    found = re.findall(r"(\d) towers, test accuracy: weights (\S+), .* average (\S+)", shown.stdout)
    ((number, weights, average),) = found
    assert int(number) == count
    assert min(float(weights), float(average)) > 0.95
