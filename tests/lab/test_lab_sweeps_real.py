"""A real sweep on real engines, read from its folder only."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import PATIENCE

from nbdist.cluster.cluster import Cluster
from nbdist.lab.readers.sweep_detail import sweep_bundle, sweep_details
from nbdist.lab.readers.sweeps import Sweeps
from nbdist.trials.start import start_sweep
from nbdist.trials.sweep import Sweep

pytestmark = pytest.mark.engines

TRIAL = """
for step in range(5):
    nb.log(accuracy=width / 100 + step / 1000, step=step)
accuracy = width / 100
"""


@pytest.fixture
def sweep(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sweep]:
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/sweep.ipynb")
    one = start_sweep(TRIAL, "width=[8, 16, 32, 64]", metric="accuracy", sampler="grid", cluster=cluster)
    yield one
    one.close()
    one.leave()


def item_of(sweeps: Sweeps, sweep: Sweep) -> dict[str, Any]:
    return next(item for item in sweeps.poll() if item["id"] == sweep.id)


def test_a_sweep_is_listed_to_its_end(sweep: Sweep, cluster: Cluster) -> None:
    sweeps = Sweeps()
    first = item_of(sweeps, sweep)
    assert (first["cluster"], first["session"]) == (cluster.id, "notebooks/sweep.ipynb")
    if first["state"] == "running":  # otherwise the sweep ended before this poll
        assert first["can"] == {"pause": True, "resume": False, "stop": True}
    deadline, pause = time.monotonic() + 60 + PATIENCE, threading.Event()
    while item_of(sweeps, sweep)["state"] != "finished":
        assert time.monotonic() < deadline
        pause.wait(0.02)
    item = item_of(sweeps, sweep)
    assert (item["wanted"], item["counts"]["finished"]) == (4, 4)
    assert item["best"] == {"number": 3, "value": 0.64, "parameters": {"width": 64}}
    assert item["curve"]["y"][-1] == 0.64
    assert sweep_details(sweep.id)["code"] == TRIAL
    bundle = sweep_bundle(sweep.id)
    json.dumps(bundle, allow_nan=False)
    assert (bundle["of"], bundle["status"]["state"]) == (4, "finished")
