from __future__ import annotations

from pathlib import Path

from bench.sweep_core import drive, rebuild, tpe


def test_a_small_sweep_is_driven_and_rebuilt(tmp_path: Path) -> None:
    assert drive(tmp_path / "sweep.log", "grid", 12) > 0
    assert rebuild(tmp_path / "sweep.log", 12) > 0
    assert list(tpe(12)) == [12]
