"""Exports of runs that are only folders: each is read back with the target's own package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra
from nbdist.metrics.log import POINT, LogWriter
from nbdist.metrics.run_folder import RunFile, new_run_id, run_folder, write_run
from nbdist.metrics.table import parts_from_logs
from nbdist.run.export import export
from nbdist.run.export.contents import RunContents
from nbdist.run.export.registry import EXPORTERS, find_exporter
from nbdist.run.export.wandb import BLOCK, HEAD, records_in
from nbdist.run.history import ListedRun, runs
from nbdist.run.values.delivery import Given
from nbdist.run.values.inputs import describe_inputs
from nbdist.runtime.task import TaskInfo

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages, in their own code
BEGAN = 1_764_500_000.25
NAMES = ["loss", "accuracy", "val_loss"]
Point = tuple[int, str, int, float, float]
"""Replica, series, step, value, time."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name in ("NBDIST_HOME", "HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def a_log(folder: Path, replica: int, first: int, steps: int, file: str = "", nan: bool = True) -> None:
    """Write the log of a replica, in batches, with a validation by replica 0 and one value that is NaN."""
    troubles: list[str] = []
    log = LogWriter(folder / (file or f"metrics-{replica:04d}.log"), replica, troubles.append)
    for step in range(first, first + steps):
        at = BEGAN + step / 8 + replica / 1024 + 100 * bool(file)
        value = float("nan") if nan and step == 3 else 1 / (3 + step + replica)
        rows = [(0, step, value, at), (1, step, np.sqrt(step), at + 2**-13)]
        rows += [(2, step, -step / 7, at + 2**-4)] if replica == 0 and step % 4 == 0 else []
        log.append(NAMES if replica == 0 else NAMES[:2], np.array(rows, POINT))
    log.close()
    assert not troubles


@pytest.fixture
def run() -> ListedRun:
    """A run of two replicas, one of which was replaced, with inputs, labels and a checkpoint."""
    run_id = new_run_id("digits")
    folder = run_folder(run_id)
    tasks = [TaskInfo("worker", at, at, "h", 1, "tcp://h:1", "CPU:0", 1).to_dict() for at in range(2)]
    record = RunFile(
        run_id, "digits", created=BEGAN - 1, ended=BEGAN + 9, status="finished", seed=7,
        versions={"nbdist": "0.2.0", "numpy": "2.4.0"}, cluster={"members": tasks, "workers": [0, 1]},
        options={"strategy": "ps", "epochs": 3, "fetch": [], "tensorboard": False},
        given=describe_inputs("", Given({"rate": 0.1, "seed": 3, "data": np.arange(3)})),
    )  # fmt: skip
    write_run(record, wait=False)
    a_log(folder, 0, 0, 20)
    a_log(folder, 1, 0, 10)
    a_log(folder, 1, 7, 13, "metrics-0001.1.log")  # steps 7 to 9 are there twice
    (folder / "checkpoints" / "step-5").mkdir(parents=True)
    (folder / "checkpoints" / "step-5" / "model.safetensors").write_bytes(b"weights")
    (found,) = runs()
    assert isinstance(found, ListedRun)
    found.rename("first try")
    found.tag("baseline", "lr 0.1")
    found.note("better than before")
    return found


def original(run: ListedRun) -> list[Point]:
    parts = parts_from_logs(run_folder(run.id))
    return ordered(
        (replica, name, *point)
        for replica, name, *columns in parts
        for point in zip(*(one.tolist() for one in columns), strict=True)
    )


def ordered(points: Any) -> list[Point]:
    return sorted(points, key=lambda one: (*one[:3], one[4], repr(one[3])))


def unlabelled(name: str) -> tuple[int, str]:
    series, _, replica = name.rpartition("/replica ")
    return int(replica), series


def same(found: Any, expected: list[Point], seconds: float = 0.0) -> None:
    """Assert that points are equal, NaN too; times may differ by so much."""
    found = ordered(found)
    assert [one[:3] for one in found] == [one[:3] for one in expected]
    np.testing.assert_array_equal([one[3] for one in found], [one[3] for one in expected])
    np.testing.assert_allclose([one[4] for one in found], [one[4] for one in expected], rtol=0, atol=seconds)


def from_parquet(run: ListedRun, exported: Any) -> Iterator[Point]:
    import pandas

    table = pandas.read_parquet(exported.where)
    assert list(table) == ["replica", "series", "step", "value", "time"]
    yield from table.astype({"series": object}).itertuples(index=False, name=None)


def test_a_parquet_file_has_all_points(run: ListedRun, tmp_path: Path) -> None:
    from pyarrow import parquet

    exported = run.export(tmp_path / "all.parquet")
    same(from_parquet(run, exported), original(run))
    about = json.loads(parquet.read_schema(exported.where).metadata[b"nbdist"])
    assert (about["id"], about["name"], about["tags"]) == (run.id, "first try", ["baseline", "lr 0.1"])
    assert about["config"]["strategy"] == "ps"
    assert Path(exported.where).stat().st_mode & 0o777 == 0o600
    assert exported.points == len(original(run)) == 20 * 2 + 5 + 10 * 2 + 13 * 2


def test_event_files_have_all_points(run: ListedRun) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    exported = run.export(to="tensorboard")
    points: list[Point] = []
    for replica in (0, 1):
        for part, prefix in (("", ""), ("validation", "val_")):
            folder = Path(exported.where) / f"worker-{replica}" / part
            if not folder.is_dir():
                continue
            read = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
            read.Reload()
            for tag in read.Tags()["scalars"]:
                points += [(replica, prefix + tag, e.step, e.value, e.wall_time) for e in read.Scalars(tag)]
    same(points, [(*one[:3], float(np.float32(one[3])), one[4]) for one in original(run)])
    about = EventAccumulator(exported.where)
    about.Reload()
    assert "_hparams_/session_start_info" in about.summary_metadata
    assert any("single precision" in note for note in exported.notes)


@pytest.mark.slow
def test_mlflow_has_all_points(run: ListedRun, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    exported = run.export(to="mlflow", experiment="digits", tracking_uri=uri)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits").experiment_id
    (found,) = client.search_runs([experiment])
    number = found.info.run_id
    points = [
        (*unlabelled(key), one.step, one.value, one.timestamp / 1000)
        for key in found.data.metrics
        for one in client.get_metric_history(number, key)
    ]
    same(points, original(run), 0.0006)
    assert found.data.params["rate"] == "0.1"
    assert found.data.params["given.seed"] == "3"
    assert found.data.params["seed"] == "7"
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "first try"
    assert found.data.tags["nbdist.tags"] == "baseline, lr 0.1"
    assert found.data.tags["mlflow.note.content"] == "better than before"
    assert [one.path for one in client.list_artifacts(number, "checkpoints/step-5")] == [
        "checkpoints/step-5/model.safetensors"
    ]
    with pytest.raises(FailedPreconditionError, match="exported to mlflow before"):
        run.export(to="mlflow", experiment="digits", tracking_uri=uri)
    again = run.export(to="mlflow", experiment="digits", tracking_uri=uri, replace=True, files=False)
    (found,) = client.search_runs([experiment])
    assert found.info.run_id in again.where
    assert exported.points == again.points
    assert client.list_artifacts(found.info.run_id) == []


@pytest.mark.slow
def test_trackio_has_all_points(run: ListedRun) -> None:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    run.export(to="trackio", project="digits")
    (found,) = trackio.Api().runs("digits")
    assert found.config["strategy"] == "ps"
    assert found.config["run.tags"] == "baseline, lr 0.1"

    def points() -> Iterator[Point]:
        from datetime import datetime

        for row in SQLiteStorage.get_logs("digits", found.name, run_id=found.id):
            time = datetime.fromisoformat(row.pop("timestamp")).timestamp()
            step = row.pop("step")
            yield from ((*unlabelled(name), step, value, time) for name, value in row.items())

    same(points(), original(run), 0.001)
    with pytest.raises(FailedPreconditionError, match="exported to trackio before"):
        run.export(to="trackio", project="digits")
    run.export(to="trackio", project="digits", replace=True)
    same(points(), original(run), 0.001)


def wandb_records(folder: Path) -> list[Any]:
    """Return the records of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("*.wandb")
    return [Record.FromString(one) for one in records_in(path.read_bytes())]


def test_records_of_a_log_are_read_from_any_block() -> None:
    records = [bytes([number]) * 20_000 for number in range(5)]
    log = b"header." + b"".join(framed_for_wandb(records))
    assert list(records_in(log)) == records
    assert list(records_in(log[BLOCK:], 0)) == records[2:]  # the second one begins in the first block
    assert list(records_in(log[:-1])) == records[:-1]


def framed_for_wandb(records: list[bytes]) -> Iterator[bytes]:
    """Yield records in the log format of LevelDB, without checksums."""
    at = 7
    for record in records:
        first = True
        while first or record:
            if (room := BLOCK - at % BLOCK) <= HEAD.size:
                yield bytes(room)
                at, room = at + room, BLOCK
            part, record = record[: room - HEAD.size], record[room - HEAD.size :]
            kind = (1 if not record else 2) if first else (4 if not record else 3)
            yield HEAD.pack(0, len(part), kind) + part
            at, first = at + HEAD.size + len(part), False


@pytest.mark.slow
def test_wandb_has_all_points(run: ListedRun, tmp_path: Path) -> None:
    exported = run.export(tmp_path, to="wandb", project="digits")
    folder = Path(exported.where)
    records = wandb_records(folder)
    (about,) = (one.run for one in records if one.WhichOneof("record_type") == "run")
    config = {one.key: json.loads(one.value_json) for one in about.config.update}
    assert (about.run_id, about.display_name, about.notes) == (run.id, "first try", "better than before")
    assert list(about.tags) == ["baseline", "lr 0.1"]
    assert (config["rate"], config["given.seed"], config["seed"]) == (0.1, 3, 7)
    assert config["data"].startswith("int64 (3,)")
    points: list[Point] = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {
                "".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item
            }
            step, time = row.pop("step"), row.pop("_timestamp")
            points += [
                (*unlabelled(name), step, float(value), time)
                for name, value in row.items()
                if not name.startswith("_")
            ]
    same(points, original(run), 0.001)
    assert (folder / "files/checkpoints/step-5/model.safetensors").read_bytes() == b"weights"
    with pytest.raises(FailedPreconditionError, match="exported to wandb before"):
        run.export(tmp_path, to="wandb")
    (folder / "nbdist.txt").write_text("")  # as after an export that was killed
    run.export(tmp_path, to="wandb")
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 1


@pytest.mark.parametrize("to", ["parquet", "tensorboard"])
def test_a_second_export_is_refused_or_replaces_the_first(run: ListedRun, to: str) -> None:
    first = run.export(to=to)
    assert Path(first.where).is_relative_to(run_folder(run.id))
    with pytest.raises(FailedPreconditionError, match=f"exported to {to} before.*replace=True"):
        run.export(to=to)
    a_log(run_folder(run.id), 0, 20, 1, "metrics-0000.1.log")
    assert run.export(to=to, replace=True).points == first.points + 3
    assert not [one for one in Path(first.where).parent.iterdir() if one.name.startswith(".")]


@pytest.mark.parametrize("to", ["parquet", "tensorboard"])
def test_files_of_others_are_not_replaced(run: ListedRun, tmp_path: Path, to: str) -> None:
    path = tmp_path / "mine"
    if to == "parquet":
        path.write_text("important")
    else:
        path.mkdir()
        (path / "important").touch()
    with pytest.raises(InvalidArgumentError, match="is no export of run"):
        run.export(path, to=to, replace=True)
    assert path.exists()


@pytest.mark.parametrize("to", ["parquet", "tensorboard"])
def test_an_interrupt_leaves_nothing(
    run: ListedRun, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(line: object, done: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(export.ProgressLine, "show", interrupted)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        run.export(tmp_path / "out", to=to)
    assert sorted(tmp_path.iterdir()) == before
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"to": "wandbb"}, "no export to 'wandbb'; choose from zip, trackio, .*did you mean wandb"),
        ({"to": 3}, "no export to 3"),
        ({}, "export needs to=: one of zip, trackio, wandb"),
        ({"path": "x.png"}, "export to 'x.png' needs to="),
        ({"to": "parquet", "project": "a"}, "to parquet takes no project; its settings are path"),
        ({"to": "trackio", "path": "a"}, "to trackio takes no path; its settings are project"),
        ({"to": "wandb", "mode": "onlin"}, "no mode 'onlin'.*did you mean online"),
        ({"to": "wandb", "project": 3}, "project of the export to wandb is a text, not 3"),
        ({"to": "parquet", "replace": 1}, "replace is True or False, not 1"),
        ({"path": "missing/x.parquet"}, "there is no folder '.*missing'"),
        ({"to": "wandb", "path": "missing"}, "there is no folder '.*missing'"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: ListedRun, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        run.export(**asked)


def test_a_missing_package_is_named(run: ListedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbdist.run.export.spec.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r'pip install "nbdist\[mlflow\]" \(needed for exports to mlflow\)'
    ):
        run.export(to="mlflow")
    assert run.export(to="tensorboard").points  # it needs no package


def test_one_export_of_a_run_at_a_time(run: ListedRun) -> None:
    lock = export.OwnerLock(run_folder(run.id), export.LOCK)
    assert lock.take()
    with pytest.raises(FailedPreconditionError, match="is being exported at this moment"):
        run.export(to="parquet")
    lock.release()
    run.export(to="parquet")


def test_a_run_of_one_replica_has_plain_names(tmp_path: Path) -> None:
    folder = run_folder(new_run_id("alone"))
    a_log(folder, 0, 0, 5, nan=False)
    contents = RunContents(RunFile(folder.name, status="finished"), folder)
    assert list(contents.finals) == ["accuracy", "loss", "val_loss"]
    assert contents.finals["loss"] == 1 / 7
    assert contents.not_finite == []


def test_a_damaged_log_is_said_and_the_rest_is_exported(run: ListedRun) -> None:
    path = run_folder(run.id) / "metrics-0000.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data[:-3])
    exported = run.export(to="parquet")
    assert any("metrics-0000.log is damaged" in note for note in exported.notes)
    same(from_parquet(run, exported), original(run))


def test_a_long_run_is_read_in_parts(monkeypatch: pytest.MonkeyPatch, run: ListedRun) -> None:
    monkeypatch.setattr("nbdist.metrics.log.PIECE", 64)  # less than a frame
    contents = RunContents(run, run_folder(run.id))
    batches = list(contents.points())
    assert sum(len(one.points) for one in batches) == contents.index.points == len(original(run))
    assert len(batches) > 40
    same(from_parquet(run, run.export(to="parquet")), original(run))


def test_progress_is_shown_of_long_exports_only(run: ListedRun, capsys: pytest.CaptureFixture[str]) -> None:
    line = export.ProgressLine("export to x", RunContents(run, run_folder(run.id)))
    line.show(10)
    line.close()
    assert capsys.readouterr().err == ""
    line._due = 0.001
    line.show(10)
    line.close()
    assert capsys.readouterr().err.startswith("\rexport to x: 10 of 91 points")


def test_each_row_is_tested() -> None:
    others = {"zip"}  # tests/run/test_run_archive.py
    assert set(EXPORTERS) - others == {"trackio", "wandb", "mlflow", "tensorboard", "parquet"}
    assert all(find_exporter(name).help for name in EXPORTERS)
