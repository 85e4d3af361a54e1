"""Bad records that are left out and counted: tables, images, and functions in threads and processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist.data import Dataset, FixedLenFeature, make_example, parse_example
from nbdist.errors import InvalidArgumentError, StorageError


@pytest.mark.parametrize("settings", [{}, {"num_parallel_calls": 2}, {"workers": 2}])
def test_a_parse_that_runs_beside_the_training(tmp_path: Path, settings: dict[str, Any]) -> None:
    pytest.importorskip("google_crc32c")
    records = [make_example({"x": [1.0] * (2 + number % 3)}) for number in range(9)]
    nb.data.write_tfrecords(tmp_path / "a.tfrecord", records)
    features = {"x": FixedLenFeature((2,), "f4")}

    def parse(record: bytes) -> Any:
        return parse_example(record, features)

    source = Dataset.tfrecords(tmp_path / "a.tfrecord")
    some = source.map(parse, on_error="skip", **settings)
    assert some.cardinality() is None
    assert len(list(some)) == 3
    assert some.skipped == 6
    assert "6 records were left out" in some.skipped_note()
    assert "3 values" in some.skipped_note()
    assert "raised by parse for element 1 of this pass" in some.skipped_note()
    with pytest.raises(InvalidArgumentError, match="3 values"):
        list(source.map(parse, **settings))


@pytest.mark.parametrize("settings", [{}, {"num_parallel_calls": 2}, {"workers": 1}])
def test_what_is_not_a_records_fault_is_raised(settings: dict[str, Any]) -> None:
    def read(number: Any) -> Any:
        raise StorageError("the store does not answer")

    with pytest.raises(StorageError, match="does not answer"):
        list(Dataset.range(3).map(read, on_error="skip", **settings))


def test_all_threads_of_an_interleave_count(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n" + "1\nx\n" * 200)
    some = Dataset.range(4).interleave(
        lambda _: Dataset.csv(tmp_path / "a.csv", {"n": int}, on_error="skip"), num_parallel_calls=4
    )
    assert len(list(some)) == 800
    assert some.skipped == 800


def test_rows_and_files_of_tables(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"n": [1, None, 3, None], "x": [0.5, 1.5, None, 2.5]})
    parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no table PAR1")
    some = Dataset.parquet(tmp_path / "*.parquet", on_error="skip")
    found = list(some)
    assert [row["n"] for row in found] == [1, 3]
    assert np.isnan(found[1]["x"])
    assert some.skipped == 3
    assert "row 1: column 'n' (int64) is null" in some.skipped_note()
    assert len(list(Dataset.parquet(tmp_path / "a.parquet", defaults={"n": 0}, on_error="skip"))) == 4
    with pytest.raises(InvalidArgumentError, match=r"row 1: .*on_error='skip'"):
        list(Dataset.parquet(tmp_path / "a.parquet"))


def training(data: Dataset) -> None:
    model = nb.nn.Sequential([nb.nn.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, epochs=1)


def estimator(data: Dataset) -> None:
    column = nb.estimator.numeric_column("x")
    config = nb.estimator.RunConfig(log_step_count_steps=None, save_summary_steps=None)
    named = data.map(lambda x, y: ({"x": x}, y))
    with_repeat = nb.estimator.LinearRegressor([column], config=config)
    with_repeat.train(named.repeat, max_steps=4)  # ends within the second pass
    with_repeat.evaluate(lambda: named)


@pytest.mark.parametrize(("run", "notes"), [(training, ["epoch 1: 2"]), (estimator, ["4", "evaluation: 2"])])
def test_a_run_says_how_many(
    capsys: pytest.CaptureFixture[str], run: Callable[[Dataset], None], notes: list[str]
) -> None:
    def decode(n: Any) -> Any:
        if n < 2:
            raise ValueError(f"{n} is damaged")
        return np.ones(1, np.float32), np.ones(1, np.float32)

    run(Dataset.range(8).map(decode, on_error="skip").batch(2))
    shown = capsys.readouterr().out
    for note in notes:
        assert f"{note} records were left out (on_error='skip'), such as: ValueError: 0 is damaged" in shown
