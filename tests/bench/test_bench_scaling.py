"""P14's counts: a real cluster sends in each step what the simulation says, and nothing through the hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import matrix

from bench import scaling
from nbdist.distribute.simulation import Cost

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.engines
@pytest.mark.parametrize("transport", matrix(["auto"], rest=["socket"]))
def test_a_cluster_sends_what_is_simulated(
    transport: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "nbdist"))
    monkeypatch.setattr(scaling, "STEPS", (100, 300))
    real = scaling.step(2, transport)["check"]
    assert real == scaling.simulated_with(2, transport, Cost(cores=2))["check"]
    assert real["through the hub"] == 0
