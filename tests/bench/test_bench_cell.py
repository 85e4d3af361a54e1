"""P9's sides: real cells in a real kernel, and a page's stand-in that looks at them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cell
from bench.notebook import CellError, Notebook

ROOT = Path(__file__).parent.parent.parent


def test_pids_are_read_from_what_either_side_prints() -> None:
    assert cell.pids_in("[stdout:3] pid 26114\n[stdout:1] pid 26107\n") == {"26114", "26107"}
    assert cell.pids_in("run  finished\n\n[worker 0]\npid 12\n\n[worker 1]\npid 13") == {"12", "13"}


@pytest.mark.engines
def test_a_cell_of_ours_runs_on_every_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    outcome = cell.measure("distribute", "%%distribute", "pass", cells=2, home=str(tmp_path))
    assert outcome["check"] == {"engines": 4}


@pytest.mark.slow
def test_a_cell_that_raises_or_does_not_end_is_said(tmp_path: Path) -> None:
    with Notebook({"IPYTHONDIR": str(tmp_path)}) as notebook:
        assert notebook.run("print(1 + 1)")[1] == "2\n"
        with pytest.raises(CellError, match="ZeroDivisionError"):
            notebook.run("1 / 0")
        with pytest.raises(CellError, match=r"not over after 0\.01 s"):
            notebook.run("import time; time.sleep(600)", patience=0.01)
