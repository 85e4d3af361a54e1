"""The example of transformers as a cell on real engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nbdist.run.options import Options
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_the_trainer_of_transformers_trains_on_two_workers_and_draws_curves(cluster: Cluster) -> None:
    body = (EXAMPLES / "fine_tune.py").read_text()
    run = start_run(body, Options(framework="torch", on="worker:0-1"), cluster=cluster).wait()
    assert (run.results["ranks"], run.results["steps"]) == (2, 640 // (2 * 16) * 4)
    assert run.results["accuracy"] > 0.9
    assert run.model["classifier.weight"].shape == (2, 32)
    losses = [run.store.last(replica, "loss") for replica in range(2)]
    assert [point and point.step for point in losses] == [80, 80]
