"""The examples as users start them: processes with TF_CONFIG, some of which are killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from waiting import until

from nbdist.train import latest_checkpoint, list_variables, load_variable
from nbdist.wire.keys import ClusterKeys

pytestmark = pytest.mark.processes
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


class Program:
    """An example's tasks, each a process with its output in a file."""

    def __init__(self, folder: Path, script: str, *arguments: str, ps: int = 2, workers: int = 2) -> None:
        self.folder, self.command = folder, [sys.executable, str(EXAMPLES / script), *arguments]
        ClusterKeys.create().save(folder / "keys.json")
        with ExitStack() as held:
            sockets = [
                held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(ps + workers)
            ]
            addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
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
                assert process.wait(90) == 0, self.output(name)

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


def test_asynchronous_training_survives_a_parameter_server_and_the_chief(
    programs: list[Program], tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    program = Program(
        tmp_path, "async_mnist.py", "--epochs", "150", "--rate", "0.1", "--checkpoints", str(saved)
    )
    programs.append(program)
    until(lambda: program.steps("worker1") > 40 and latest_checkpoint(saved) is not None)
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


def test_a_table_in_shards_is_trained_and_saved(programs: list[Program], tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    program = Program(
        tmp_path, "embedding.py", "--words", "2000", "--steps", "600", "--checkpoints", str(saved), ps=3
    )
    programs.append(program)
    program.wait()
    shapes = dict(list_variables(saved))
    assert shapes["embedding"] == (2000, 20)
    latest = latest_checkpoint(saved)
    assert latest is not None
    assert len(list(saved.glob(f"{Path(latest).name}.*-of-3.safetensors"))) == 3
    table = load_variable(saved, "embedding")
    together = np.mean(np.sum(table[0:1000:10] * table[1:1001:10], axis=1))
    apart = np.mean(np.sum(table[0:1000:10] * table[1000:2000:10], axis=1))
    assert together > apart + 1.0
