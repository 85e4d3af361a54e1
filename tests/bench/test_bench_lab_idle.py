"""lab.idle on a small cluster returns all its figures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiers import exhaustive

from bench import lab_idle
from bench.table import chosen


@exhaustive
@pytest.mark.engines
def test_what_the_server_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(lab_idle, "SETTLE", 0.1)
    monkeypatch.setenv("NBDIST_HOME", f"{os.environ['NBDIST_HOME']}/idle")
    monkeypatch.setenv("PYTHONPATH", str(Path(lab_idle.__file__).parent.parent))
    found = lab_idle.measure(tasks=2, runs=1, seconds=0.2, home=tmp_path)
    [survey] = chosen(["lab.idle"])
    assert found.keys() == {goal.name for goal in survey.goals}
    assert all(figure >= 0 for figure in found.values())
