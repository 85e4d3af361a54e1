"""A strategy that a cell defines and trains under, on three engines: that of docs/strategies.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

pytestmark = pytest.mark.engines

PAGE = Path(__file__).parent.parent.parent / "docs" / "strategies.md"


@pytest.fixture(scope="module")
def cell() -> str:
    (found,) = re.findall(
        r"^```python\n%%distribute[^\n]*\n(.*?class LocalSGD.*?)^```", PAGE.read_text(), re.M | re.S
    )
    return found


@pytest.fixture
def begin(cluster: Cluster) -> Callable[[str], Run]:
    return lambda body: start_run(body, Options(strategy="one_device", seed=3), cluster=cluster)


def test_three_workers_train_and_end_with_one_mean(begin: Callable[[str], Run], cell: str) -> None:
    run = begin(cell + "losses = history['loss']\n").wait()
    weights, losses = run.results["weights"], run.results["losses"]
    assert len(weights) == len(run.tasks) == 3
    assert (weights == weights[0]).all()
    assert losses[-1] < losses[0] / 2
    assert {outcome["step"] for outcome in run.outcomes.values()} == {3 * 16}


def test_a_stop_ends_all_at_one_step(begin: Callable[[str], Run], cell: str) -> None:
    run = begin(cell.replace("epochs=3", "epochs=1_000_000"))
    until(lambda: len(run.store.replicas) == len(run.tasks), during=run)
    run.stop()
    run.wait()
    assert run.status == "stopped"
    assert len({outcome["step"] for outcome in run.outcomes.values()}) == 1
    assert (run.results["weights"] == run.results["weights"][0]).all()


def test_a_worker_that_fails_ends_the_others_waits(begin: Callable[[str], Run], cell: str) -> None:
    failing = cell.replace(
        "        self.steps += 1\n", "        self.steps += 1\n        self.fail()\n"
    ).replace(
        "    def close(self):",
        "    def fail(self):\n"
        "        if self.steps == 5 and self.group.rank == 1:\n"
        "            raise ValueError('no fifth step')\n\n"
        "    def close(self):",
    )
    with pytest.raises(WorkerError, match="no fifth step"):
        begin(failing).wait()
