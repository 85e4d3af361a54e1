"""A sweep on engines with homes of their own: logs, states and promotion of its trials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from other_homes import cluster_elsewhere, spools
from waiting import until

from nbdist.errors import FailedPreconditionError
from nbdist.metrics.log import logs_in, read_log
from nbdist.trials.protocol import trial_folder
from nbdist.trials.start import attach_sweep, leave_all, start_sweep

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

TRIAL = """
import numpy as np

y = np.arange(60) % 3
x = (np.random.default_rng(0).normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
print("rate", rate)
model = nb.nn.Sequential([nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.SGD(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(20), epochs=epochs)
loss = history.history["loss"][-1]
"""
SPACE = "rate: 0.1 to 0.2\nepochs: 3"


@pytest.fixture(scope="module")
def hosts(own_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hosts")
    folder.chmod(0o700)
    return folder


@pytest.fixture(scope="module")
def elsewhere(hosts: Path) -> Iterator[Cluster]:
    """Two workers on two hosts."""
    with cluster_elsewhere(hosts, [0, 1], workers=2) as cluster:
        yield cluster


def test_a_sweep_has_the_files_of_its_trials(elsewhere: Cluster, hosts: Path) -> None:
    sweep = start_sweep(
        TRIAL, {"rate": (0.1, 0.2), "epochs": [3]}, metric="loss", direction="min", trials=5, seed=1,
        cluster=elsewhere,
    ).wait()  # fmt: skip
    assert {trial.state for trial in sweep.trials} == {"finished"}
    assert sweep.trouble is None
    for number in range(5):
        folder = trial_folder(sweep.folder, number)
        assert "rate 0." in sweep.output(number)
        (log,) = logs_in(folder)
        assert len(read_log(log).points)
        assert sweep.checkpoint(number).is_relative_to(folder)
        assert isinstance(sweep.model(number).predict(np.zeros((1, 4), np.float32)), np.ndarray)
        assert all(path.stat().st_mode & 0o077 == 0 for path in folder.rglob("*"))
    until(lambda: not spools(hosts))
    before = {trial.number: trial.value for trial in sweep.trials}
    for number in range(5):  # on whichever host is free
        sweep.promote(number, epochs=6)
    sweep.wait()
    for trial in sweep.trials:
        assert trial.state == "finished", trial.error
        assert trial.value < before[trial.number]
        assert "training continues after step 9" in sweep.output(trial.number)
    until(lambda: not spools(hosts))


def test_a_sweep_whose_driver_ends_is_continued(elsewhere: Cluster, hosts: Path) -> None:
    sweep = start_sweep(
        TRIAL, {"rate": (0.1, 0.2), "epochs": [3]}, metric="loss", direction="min", trials=30, seed=1,
        cluster=elsewhere,
    )  # fmt: skip
    until(lambda: sweep.ledger.counts["finished"] > 4)
    leave_all()
    found = attach_sweep(sweep.id, cluster=elsewhere).wait()
    assert {trial.state for trial in found.trials} == {"finished"}
    for trial in found.trials:
        assert found.checkpoint(trial.number)
    until(lambda: not spools(hosts))


def test_a_trial_without_a_state_is_not_promoted(elsewhere: Cluster) -> None:
    sweep = start_sweep(
        "loss = rate", {"rate": (0.1, 0.2)}, metric="loss", trials=1, cluster=elsewhere
    ).wait()
    with pytest.raises(FailedPreconditionError, match="has no checkpoint"):
        sweep.promote(0)
