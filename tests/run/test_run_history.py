"""Names, tags and notes of runs, the list and its filter, deletion."""

from __future__ import annotations

import os
import stat
import string
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.cluster.description import living_incarnations, write_description
from nbdist.cluster.folder import claim, this_process
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
)
from nbdist.metrics.run_folder import RunFile, read_run, run_folder, runs_folder, write_run
from nbdist.run.history import (
    LABELS,
    Labels,
    age_of,
    checked_labels,
    clean,
    delete_run,
    read_labels,
    runs,
    write_labels,
)
from nbdist.runtime.task import TaskInfo


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("NBDIST_HOME", str(home))


def a_run(run_id: str, **fields: Any) -> Path:
    folder = runs_folder() / run_id
    folder.mkdir(mode=0o700)
    write_run(RunFile(**{"id": run_id, "status": "finished", "name": "run", **fields}), wait=False)
    return folder


def test_labels_are_not_written_through_a_link(tmp_path: Path) -> None:
    a_run("r1").rename(tmp_path / "elsewhere")
    (runs_folder() / "r1").symlink_to(tmp_path / "elsewhere")
    a_run("r2")
    with pytest.raises(NotAllowedError, match="r1 is a link"):
        write_labels("r1", name="stolen")
    assert not (tmp_path / "elsewhere" / LABELS).exists()
    assert [run.id for run in runs() if run.status == "finished"] == ["r2"]


def test_a_run_is_renamed_tagged_and_noted() -> None:
    folder = a_run("r1", name="mnist [3]", trained=True)
    (run,) = runs()
    run.rename("baseline")
    run.tag("two workers", "lr 0.1")
    run.tag("lr 0.1")
    run.note("the one for the paper\nsecond line")
    assert (run.name, run.tags, run.remark) == (
        "baseline",
        ("two workers", "lr 0.1"),
        "the one for the paper\nsecond line",
    )
    run.untag("lr 0.1", "never there")
    assert run.labels == Labels("baseline", ("two workers",), "the one for the paper\nsecond line")
    assert stat.S_IMODE((folder / LABELS).stat().st_mode) == 0o600
    assert read_run("r1").name == "mnist [3]"  # the client that drives it writes that file
    (again,) = runs(tag="two workers")
    assert (again.name, again.remark.splitlines()[0]) == ("baseline", "the one for the paper")
    assert "two workers" in repr(runs())
    run.rename("")
    assert runs()[0].name == "mnist [3]"


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"name": 3, "tags": [], "note": ""}', "[" * 100_000])
def test_damaged_labels_are_reported_and_replaced(damage: str) -> None:
    (a_run("r1") / LABELS).write_text(damage)
    (run,) = runs()
    assert (run.name, run.tags) == ("run", ())
    assert "labels.json is damaged" in run.remark
    run.note("")
    assert runs()[0].remark == ""


def test_labels_are_not_read_through_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"name": "secret", "tags": [], "note": ""}')
    (a_run("r1") / LABELS).symlink_to(secret)
    assert "damaged" in runs()[0].remark
    runs()[0].rename("mine")
    assert "secret" in secret.read_text()


@given(
    name=st.text(max_size=250), tags=st.lists(st.text(max_size=70), max_size=40), note=st.text(max_size=50)
)
def test_invalid_labels_are_refused(name: str, tags: list[str], note: str) -> None:
    try:
        labels = checked_labels(name, tags, note)
    except InvalidArgumentError:
        return
    assert checked_labels(*vars(labels).values()) == labels
    assert all(text.encode() is not None and "\n" not in text for text in (labels.name, *labels.tags))


@pytest.mark.parametrize("name", [7, "a\nb", "x" * 201, " a", "\x00", "\ud800"])
def test_a_refused_name_is_in_the_message(name: Any) -> None:
    a_run("r1")
    with pytest.raises(InvalidArgumentError, match=r"name|letter"):
        runs()[0].rename(name)
    assert not (run_folder("r1") / LABELS).exists()


def test_the_list_is_filtered() -> None:
    a_run("1-mnist", name="mnist [3] ps async", trained=True, created=3.0)
    a_run("2-print", name="mnist [4]", trained=False, created=2.0)
    a_run("3-old", status="failed", options={"strategy": "ps"}, created=1.0)  # of an earlier version

    def ids(**wanted: Any) -> list[str]:
        return [run.id for run in runs(**wanted)]

    assert ids() == ["1-mnist", "2-print", "3-old"]
    assert ids(trained=True) == ["1-mnist", "3-old"]
    assert ids(trained=False) == ["2-print"]
    assert ids(find="PS mnist") == ["1-mnist"]
    assert ids(status="failed") == ["3-old"]
    assert repr(runs("nothing")) == "no run matches; nb.runs() lists all"
    with pytest.raises(InvalidArgumentError, match="no run status 'done'; choose from"):
        runs(status="done")


def test_a_plain_cell_of_an_earlier_version_has_empty_logs() -> None:
    folder = a_run("r1")
    (folder / "metrics-0000.log").write_bytes(b"x" * 44)
    assert not runs()[0].trains
    (folder / "metrics-0001.log").write_bytes(b"x" * 440)
    assert runs()[0].trains


def test_a_deleted_run_leaves_nothing() -> None:
    folder = a_run("r1")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "1.npz").write_bytes(b"x" * 1000)
    (run,) = runs()
    assert run.bytes > 1000
    run.delete()
    assert list(runs_folder().iterdir()) == []
    with pytest.raises(NotFoundError, match=r"no run 'r1'.*nb\.runs\(\)"):
        run.delete()
    for act in (lambda: run.rename("b"), lambda: run.tag("b"), lambda: run.note("b")):
        with pytest.raises(NotFoundError):
            act()


def test_the_next_deletion_completes_an_interrupted_one() -> None:
    a_run("r1").rename(runs_folder() / ".deleted-r1-0a0a")
    a_run("r2")
    assert [run.id for run in runs()] == ["r2"]
    delete_run("r2")
    assert list(runs_folder().iterdir()) == []


def test_a_deletion_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("mine")
    (a_run("r1") / "link").symlink_to(outside)
    (runs_folder() / "r2").symlink_to(outside)
    delete_run("r1")
    with pytest.raises(NotAllowedError, match="r2 is a link"):
        delete_run("r2")
    for name in ("../outside", ".", "a/b"):
        with pytest.raises(InvalidArgumentError, match="is not a run id"):
            delete_run(name)
    assert (outside / "kept").read_text() == "mine"


def test_an_active_run_cannot_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    members, earlier = (
        [TaskInfo("worker", 0, 0, "here", 1, "", "CPU:0", incarnation).to_dict()] for incarnation in (7, 6)
    )
    folder, lock = claim("c1")
    write_description(folder, {"tasks": members})
    try:
        a_run("r1", status="running", cluster={"id": "c1", "members": members})
        a_run("r2", status="running", cluster={"id": "c1", "members": earlier})  # an earlier c1
        with pytest.raises(FailedPreconditionError, match=r"run r1 is under way: stop it first"):
            delete_run("r1")
        looked = Mock(wraps=living_incarnations)
        monkeypatch.setattr("nbdist.run.record.living_incarnations", looked)
        assert clean(keep=0) == ["r2"]
        looked.assert_called_once()  # whatever the number of runs
        assert clean(keep=0, dry_run=False) == ["r2"]
        assert repr(clean(keep=0)) == "would delete 0 runs, 0 B\nkept r1: it is under way"
    finally:
        os.close(lock)
    delete_run("r1")  # lost: its cluster has ended


def test_an_in_graph_run_is_active_while_its_process_lives() -> None:
    graph = {"replication": "in-graph"}
    a_run("r1", status="running", options=graph, cluster={"id": "c1", "owner": this_process()})
    with pytest.raises(FailedPreconditionError, match="under way"):
        delete_run("r1")
    a_run("r2", status="running", options=graph, cluster={"owner": {**this_process(), "started": 1.0}})
    delete_run("r2")


def test_old_runs_are_cleaned() -> None:
    now = time.time()
    for number, days in enumerate((1, 20, 40, 60)):
        a_run(f"r{number}", created=now - days * 86_400)
    assert clean(older_than="30d") == ["r2", "r3"]
    assert len(runs()) == 4  # nothing was deleted
    shown = repr(clean(older_than=timedelta(days=30), keep=3))
    assert shown.startswith("would delete 1 run, ")
    assert shown.splitlines()[1:] == ["  r3", "dry run: to delete these runs, add dry_run=False"]
    done = clean(keep=1, dry_run=False)
    assert (done, [run.id for run in runs()]) == (["r1", "r2", "r3"], ["r0"])
    assert done.bytes > 100
    assert repr(done).startswith("deleted 3 runs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"older_than='30d', keep=20, or both; 0 runs take 0 B"),
        ({"keep": -1}, "not -1"),
        ({"keep": True}, "not True"),
        ({"older_than": "soon"}, "not 'soon'"),
        ({"older_than": float("nan")}, "not nan"),
        ({"keep": 1, "dry_run": "no"}, "dry_run is True or False, not 'no'"),
    ],
)
def test_clean_up_refuses_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        clean(**arguments)


@given(st.text(string.printable, max_size=12))
def test_any_text_is_a_valid_age_or_refused(text: str) -> None:
    try:
        age = age_of(text)
    except InvalidArgumentError:
        return
    assert age >= 0


def test_labels_of_an_unknown_run() -> None:
    assert read_labels(runs_folder() / "r1") == Labels()
    with pytest.raises(NotFoundError, match="no run 'r1'"):
        write_labels("r1", name="a")


def test_a_folder_with_an_invalid_run_id_hides_no_run() -> None:
    a_run("r1")
    for name in ("my notes", "r..1", "ä"):
        (runs_folder() / name).mkdir()
        (runs_folder() / name / "run.json").write_text("{}")
    assert [run.id for run in runs()] == ["r1"]
    assert "r1" in repr(runs())
    assert "r1" in runs()._repr_html_()


@pytest.mark.parametrize("owner", [{"pid": "x"}, {"pid": 10**30, "started": 1}, {"pid": 1, "started": []}])
def test_a_run_with_a_damaged_owner_can_be_deleted(owner: dict[str, Any]) -> None:
    named = {"host": this_process()["host"], **owner}
    a_run("r1", status="running", options={"replication": "in-graph"}, cluster={"owner": named})
    assert list(clean(keep=0, dry_run=False)) == ["r1"]


def test_deletions_at_the_same_time_do_not_fail() -> None:
    ids = [f"r{i}" for i in range(24)]
    for run_id in ids:
        folder = a_run(run_id)
        for i in range(20):
            (folder / f"part{i}").write_bytes(b"x")
    with ThreadPoolExecutor(4) as pool:
        assert all(size > 0 for size in pool.map(delete_run, ids))
    assert list(runs_folder().iterdir()) == []


def test_a_lone_surrogate_in_a_record_can_be_shown() -> None:
    a_run("r1", name="half \ud800", status="failed", error="ValueError: \udcff")
    repr(runs()).encode()
    runs()._repr_html_().encode()
