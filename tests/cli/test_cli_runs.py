"""``nbdist runs``: runs that are only folders."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from nbdist.cli.__main__ import main
from nbdist.metrics.run_folder import RunFile, runs_folder, write_run
from nbdist.runtime.task import TaskInfo


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("NBDIST_HOME", str(home))
    for number, name in enumerate(["mnist", "digits", "mnist"]):
        a_run(f"26112{number}-{name}", name=f"{name} {number}", created=1_000.0 + number)


def a_run(run_id: str, **fields: Any) -> Path:
    folder = runs_folder() / run_id
    folder.mkdir(mode=0o700)
    write_run(RunFile(**{"id": run_id, "status": "finished", "ended": 2_000.0, **fields}), wait=False)
    return folder


def run(line: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    """Run a line; return what it printed, its errors if they are expected."""
    assert main(line.split()) == status, capsys.readouterr()
    shown = capsys.readouterr()
    return shown.err if status else shown.out


def ids(text: str) -> list[str]:
    return [one["id"] for one in json.loads(text)]


def test_the_list_is_the_newest_first(capsys: pytest.CaptureFixture[str]) -> None:
    everything = ["261122-mnist", "261121-digits", "261120-mnist"]
    assert ids(run("runs list --json", capsys)) == everything
    assert ids(run("runs list mnist --json", capsys)) == [everything[0], everything[2]]
    assert ids(run("runs list --limit 1 --json", capsys)) == everything[:1]
    assert ids(run("runs list --limit 1 --all --json", capsys)) == everything
    head, first, rest = run("runs list --limit 1", capsys).splitlines()
    assert head.split()[:3] == ["id", "name", "status"]
    assert first.startswith("261122-mnist  mnist 2  finished")
    assert rest == "and 2 older: --all lists them, --limit N more of them"
    assert ids(run("runs list --status failed --json", capsys)) == []
    assert run("runs list nothing", capsys) == "no run matches; nb.runs() lists all\n"


def test_a_run_is_found_by_a_part_of_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run("runs show digits --json", capsys))["id"] == "261121-digits"
    assert "digits 1  ✓ finished" in run("runs show 1121", capsys)
    assert "2 runs fit 'mnist': 261122-mnist, 261120-mnist" in run("runs show mnist", capsys, 2)
    assert "no run 'cnn'; the latest are 261122-mnist" in run("runs show cnn", capsys, 1)


def test_labels(capsys: pytest.CaptureFixture[str]) -> None:
    run("runs rename digits baseline", capsys)
    run("runs tag digits good wide", capsys)
    run("runs tag digits wide --remove", capsys)
    run("runs note digits see-mail", capsys)
    (found,) = json.loads(run("runs list --tag good --json", capsys))
    assert (found["name"], found["tags"], found["note"]) == ("baseline", ["good"], "see-mail")
    assert "a tag is one to 64 characters" in run("runs tag digits a,b", capsys, 2)


def test_output_of_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    members = [TaskInfo("worker", rank, rank, "host", 9, "a:1", "CPU:0", 1).to_dict() for rank in (0, 1)]
    folder = a_run("261123-out", cluster={"id": "c", "workers": [0, 1], "members": members})
    for rank in (0, 1):
        (folder / f"output-{rank:04d}.log").write_text(f"from {rank}\n")
    assert run("runs logs out", capsys) == "==> worker:0 <==\nfrom 0\n==> worker:1 <==\nfrom 1\n"
    assert run("runs logs out --task worker:1", capsys) == "from 1\n"
    assert run("runs logs out --follow", capsys) == "from 0\nfrom 1\n"
    assert "no output of 'worker:7'; there is that of worker:0, worker:1" in run(
        "runs logs out --task worker:7", capsys, 1
    )
    assert run("runs logs digits", capsys) == ""
    assert json.loads(run("runs logs out --json", capsys)) == {"worker:0": "from 0\n", "worker:1": "from 1\n"}
    assert "leave out --follow" in run("runs logs out --json --follow", capsys, 2)


def test_stderr_of_tasks_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [TaskInfo("worker", 0, 0, "host", 9, "a:1", "CPU:0", 1).to_dict()]
    folder = a_run("261123-err", cluster={"id": "c", "workers": [0], "members": members})
    (folder / "output-0000.log").write_bytes(
        "out é\n\x1b[220mslow \x1b[31mred\x1b[0m\n\x1b[221mout\n\x1b".encode()
    )
    for chunk in (1 << 16, 1, 2, 3, 5, 7):  # codes and letters lie in two chunks
        monkeypatch.setattr("nbdist.cli.runs.CHUNK", chunk)
        assert main(["runs", "logs", "err"]) == 0
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("out é\nout\n\x1b", "slow \x1b[31mred\x1b[0m\n")
    assert json.loads(run("runs logs err --json", capsys)) == {
        "worker:0": "out é\nslow \x1b[31mred\x1b[0m\nout\n\x1b"
    }


def test_what_has_ended_is_not_said_to_be_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("stop", "pause"):
        assert "no run under way: 261121-digits (finished)" in run(f"runs {verb} digits", capsys, 1)


def test_a_log_that_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    (a_run("261123-torn") / "metrics-0000.log").write_bytes(b"this is not a log of metrics")
    found = json.loads(run("runs compare torn digits --json", capsys))
    assert "its points cannot be read: " in found["notes"][0]


def test_runs_of_another_machine_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    there = tmp_path / "there" / "261101-other"
    there.mkdir(parents=True)
    (there / "run.json").write_text('{"id": "261101-other", "status": "finished", "name": "other"}')
    found = json.loads(run(f"runs list --folder {there.parent} --json", capsys))
    assert [one["id"] for one in found] == ["261101-other"]


def test_runs_are_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a_run("261123-seeded", name="seeded", seed=3)
    found = json.loads(run("runs compare seeded digits --json", capsys))
    assert found["runs"] == ["261123-seeded", "261121-digits"]
    assert found["differences"]["seed"] == ["3", ""]
    head, *lines = run("runs compare seeded digits", capsys).splitlines()
    assert head.split() == ["what", "differs", "seeded", "digits", "1"]
    assert ["seed", "3"] in [line.split() for line in lines]
    assert "2 to 8 different runs" in run("runs compare seeded", capsys, 2)
    line = f"runs compare seeded digits --picture {tmp_path / 'a.svg'}"
    assert "none of these runs has logged a metric" in run(line, capsys, 1)


def test_deletion_asks_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["runs", "delete", "digits"]) == 130
    assert len(ids_now(capsys)) == 3
    assert "deleted 1 run(s)" in run("runs delete digits --yes", capsys)
    assert ids_now(capsys) == ["261122-mnist", "261120-mnist"]
    assert "would delete 1 run" in run("runs clean --keep 1", capsys)
    assert len(ids_now(capsys)) == 2
    assert json.loads(run("runs clean --keep 1 --yes --json", capsys))["runs"] == ["261120-mnist"]
    assert ids_now(capsys) == ["261122-mnist"]
    assert "say which runs to delete" in run("runs clean", capsys, 2)


def ids_now(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    return ids(run("runs list --json", capsys))


def test_runs_are_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    shown = run(f"runs export digits --path {path}", capsys)
    assert shown.splitlines()[0] == f"run 261121-digits: 0 points exported to parquet, {path}"
    assert path.is_file()
    both = "runs export 1120 digits --to parquet --to tensorboard --json"
    written = json.loads(run(both, capsys))
    assert [(one["run"], one["to"]) for one in written] == [
        ("261120-mnist", "parquet"), ("261120-mnist", "tensorboard"),
        ("261121-digits", "parquet"), ("261121-digits", "tensorboard"),
    ]  # fmt: skip
    assert "exported to parquet before" in run("runs export digits --to parquet", capsys, 1)
    run("runs export digits --to parquet --replace --no-files", capsys)
    assert "no export to 'wand'; choose from zip, trackio" in run("runs export digits --to wand", capsys, 2)
    assert "takes no project; its settings are path" in run(
        "runs export digits --to parquet --project a", capsys, 2
    )
    assert "is for one run and one target" in run(f"runs export 1120 digits --path {path}", capsys, 2)
    assert "needs to=" in run("runs export digits", capsys, 2)
