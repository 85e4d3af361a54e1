"""A stand-in for a Mac: processes without what macOS lacks (standin/sitecustomize.py). No Mac has run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import exhaustive

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STRATEGIES = ("mirrored", "multi_worker", "sharded", "ps", "central", "elastic", "one_device")


def standin(folder: Path, *program: str) -> str:
    """Run a Python program in the stand-in, and return what it printed."""
    # A home as a Mac's: too long for the address of a socket in a cluster's folder.
    home = folder / "Users" / "a-user-of-a-mac" / "Library" / "Application Support" / "nbdist"
    memory = folder / "T"  # with the files of shared memory, some of which a killed cluster leaves
    memory.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE / "standin"), str(ROOT)]),
        "NBDIST_HOME": str(home),
        "TMPDIR": str(memory),
        "OPENBLAS_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, *program],
        env=environment, cwd=folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.processes
def test_the_standin_takes_away_what_a_mac_lacks(tmp_path: Path) -> None:
    printed = standin(tmp_path, str(HERE / "limits.py"))
    assert printed.split() == ["missing", "refused", "kept"]


@pytest.mark.engines
@pytest.mark.timeout(300)
def test_strategies_a_sweep_and_recovery_run_on_the_standin_for_a_mac(tmp_path: Path) -> None:
    printed = standin(tmp_path, str(HERE / "program.py"), *STRATEGIES)
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("trained")] == [*STRATEGIES]
    trained = (line.split() for line in printed.splitlines() if line.startswith("trained"))
    losses = {strategy: float(loss) for _, strategy, loss in trained}
    assert losses["mirrored"] == losses["multi_worker"]
    # The others add their losses up in float32, with the gradients; it adds them up apart, in float64.
    assert losses["sharded"] == pytest.approx(losses["mirrored"], rel=1e-6)
    for words in ("tuned: best of 4", "recovered", "ended: 4 processes", "all of it"):
        assert words in printed


@exhaustive
@pytest.mark.engines
@pytest.mark.frameworks
@pytest.mark.timeout(300)
def test_a_run_on_jax_devices_on_the_standin_for_a_mac(tmp_path: Path) -> None:
    assert "trained tpu" in standin(tmp_path, str(HERE / "program.py"), "tpu")
