"""The checks of `make gpu`, rehearsed with NumPy, so that they run when a GPU is at hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "gpu_check.py"


@pytest.mark.engines
def test_every_check_that_needs_no_gpu_passes(tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    tests = "tests/wire/collective/test_collective_gpu.py"  # one that is skipped without a GPU
    command = [sys.executable, str(SCRIPT), "--on-cpu", "--report", str(report)]
    command += ["--benchmarks", "g2", "--tests", tests]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    text = report.read_text()
    assert text.splitlines()[1].startswith("REHEARSAL WITHOUT A GPU")
    assert "both sides computed the same" in text
    assert "profile: not measured: nsys" in text
    lines = [line for line in report.read_text().splitlines() if line.startswith(("PASS", "FAIL"))]
    assert [line.partition(":")[0] for line in lines] == [
        "PASS ops", "PASS program", "PASS fit on one device", "PASS fit on all devices",
        "PASS cluster and NCCL", "PASS tests that need a GPU",
    ]  # fmt: skip
