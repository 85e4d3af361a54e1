"""All points of a run as a table: from the logs where they are here, with pandas and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nbdist.metrics import table as table_module
from nbdist.metrics.log import Batch, log_path
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.store import RunStore, columns_from_logs
from nbdist.metrics.table import every_point, table


def rows(columns: Any) -> list[tuple[Any, ...]]:
    return list(
        zip(*(columns[name].tolist() for name in ("replica", "series", "step", "value")), strict=True)
    )


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, RunStore]:
    """A run of two replicas; the log of the second is on another machine. The store has thinned points."""
    store = RunStore(limit=1_000)
    for replica in range(2):
        folder = tmp_path if replica == 0 else tmp_path / "elsewhere"
        folder.mkdir(exist_ok=True)
        recorder = Recorder(log_path(folder, replica), replica=replica)
        for step in range(5_000):
            recorder.add(recorder.series("loss"), step, step / 2)
        recorder.add(recorder.series("a<b>"), 7, np.nan)
        batch = recorder.close()
        assert batch is not None
        store.extend_batch(batch)
    return tmp_path, store


def test_every_point_is_there_where_the_log_is(run: tuple[Path, RunStore]) -> None:
    folder, store = run
    columns = every_point(folder, store)
    mine = columns["replica"] == 0
    assert {name: column[mine].tolist() for name, column in columns.items()}.keys() == columns.keys()
    loss = columns["value"][mine & (columns["series"] == "loss")]
    np.testing.assert_array_equal(loss, np.arange(5_000) / 2)
    thinned = columns["value"][~mine & (columns["series"] == "loss")]
    assert 100 < len(thinned) < 5_000
    assert (thinned[0], thinned[-1]) == (0.0, 2499.5)
    assert (np.diff(columns["replica"].astype(int)) >= 0).all()
    assert columns["series"][mine][0] == "a<b>"


def test_with_pandas_it_is_a_data_frame(run: tuple[Path, RunStore]) -> None:
    columns = every_point(*run)
    frame = table(columns)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == ["replica", "series", "step", "value", "time"]
    assert str(rows(frame)) == str(rows(columns))
    assert frame[frame["series"] == "loss"].groupby("replica")["value"].last().tolist() == [2499.5, 2499.5]


def test_without_pandas_it_is_columns(run: tuple[Path, RunStore], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "find_spec", lambda name: None)
    columns = table(every_point(*run))
    assert isinstance(columns, dict)
    assert isinstance(columns["value"], np.ndarray)


@pytest.mark.processes
def test_pandas_is_imported_for_a_table_only() -> None:
    code = (
        "import sys, nbdist.run.run, nbdist.metrics.table as t; assert 'pandas' not in sys.modules;"
        "t.table({}); assert 'pandas' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_logs_and_no_points(tmp_path: Path) -> None:
    columns = every_point(tmp_path, RunStore())
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(
        ("replica", "series", "step", "value", "time"), 0
    )
    assert len(table(columns)) == 0


def test_ten_thousand_series_are_read_in_one_go(tmp_path: Path) -> None:
    recorder = Recorder(log_path(tmp_path, 0), replica=0)
    for number in range(10_000):
        for step in range(3):
            recorder.add(recorder.series(f"metric {number}"), step, number)
    batch = recorder.close()
    assert batch is not None
    assert Batch.from_arrays(*batch.arrays()).points.tobytes() == batch.points.tobytes()
    assert sum(len(steps) for _, steps, _, _ in batch.by_series()) == 30_000
    columns = columns_from_logs(tmp_path)
    assert len(columns["value"]) == 30_000
    assert all(
        name == f"metric {value:.0f}" for name, value in zip(columns["series"], columns["value"], strict=True)
    )
