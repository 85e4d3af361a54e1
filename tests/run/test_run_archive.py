"""Runs of other machines: folders that were copied, and zip files, which may come from anybody."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

import nbdist as nb
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    ResourceExhaustedError,
)
from nbdist.metrics.run_folder import RunFile, runs_folder, write_run
from nbdist.run import archive
from nbdist.run.history import ListedRun, write_labels


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("NBDIST_HOME", str(home))


def a_run(run_id: str, **fields: Any) -> Path:
    folder = runs_folder() / run_id
    folder.mkdir(mode=0o700)
    write_run(RunFile(run_id, **{"status": "finished", "name": "digits", **fields}), wait=False)
    (folder / "output-0000.log").write_text("printed")
    (folder / ".token").write_text("hidden")
    (folder / "checkpoints" / "step-1").mkdir(parents=True)
    (folder / "checkpoints" / "step-1" / "weights.safetensors").write_bytes(bytes(10_000))
    (folder / "state-0001-000000000001.safetensors").write_bytes(bytes(10_000))
    return folder


def one_of(found: Any) -> ListedRun:
    (run,) = found
    assert isinstance(run, ListedRun)
    return run


def elsewhere(tmp_path: Path) -> Path:
    """Return a folder that was the home of another machine, with a run that is not here."""
    folder = a_run("r1")
    write_labels("r1", name="baseline", tags=("a",), note="good")
    (tmp_path / "there" / "runs").mkdir(parents=True)
    return Path(shutil.move(folder, tmp_path / "there" / "runs" / "r1")).parent.parent


def test_runs_in_a_folder_that_was_copied(tmp_path: Path) -> None:
    there = elsewhere(tmp_path)
    a_run("here")
    for place in (there, there / "runs", there / "runs" / "r1"):
        for found in (nb.runs(place), nb.runs(str(place)), nb.runs(folder=place)):
            run = one_of(found)
            assert (run.id, run.name, run.tags, run.remark) == ("r1", "baseline", ("a",), "good")
            assert run.folder == there / "runs" / "r1"
            assert run.bytes > 20_000
            assert run.id in repr(found)
    assert [run.id for run in nb.runs()] == ["here"]
    assert one_of(nb.runs("base", folder=there)).id == "r1"
    assert nb.runs("nothing like it", folder=there) == []
    run.rename("renamed")  # there
    assert one_of(nb.runs(there)).name == "renamed"
    assert nb.compare(run, "here").labels == ["renamed", "digits"]
    run.delete()
    assert not run.folder.exists()
    assert nb.runs(there) == []


def test_a_run_that_may_be_under_way_there_is_not_deleted(tmp_path: Path) -> None:
    run = one_of(nb.runs(elsewhere(tmp_path)))
    (run.folder / "run.json").write_text('{"id": "r1", "status": "running"}')
    with pytest.raises(FailedPreconditionError, match=r"running according to its run.json"):
        one_of(nb.runs(run.folder)).delete()
    assert run.folder.is_dir()


@pytest.mark.parametrize("given", ["/nowhere/at/all", "./nothing", "no.zip", Path("nothing")])
def test_a_place_that_is_not_there_is_refused(given: str | Path) -> None:
    with pytest.raises(NotFoundError, match=r"no folder or zip file .*words to find begin with no"):
        nb.runs(given)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(NotFoundError, match=r"no runs in .*photos: give the folder of a run"):
        nb.runs(tmp_path / "photos")
    with pytest.raises(InvalidArgumentError, match=r"takes one folder"):
        nb.runs(tmp_path, folder=tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"words to find as text, or a path, not 3"):
        nb.runs(3)  # type: ignore[arg-type]


def test_a_run_goes_through_a_zip_file(tmp_path: Path) -> None:
    folder = a_run("r1")
    (folder / "link").symlink_to("/etc/passwd")
    path = Path(one_of(nb.runs()).export(tmp_path / "r1.zip").where)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    shutil.rmtree(folder)
    run = one_of(nb.runs(str(path)))
    names = {one.relative_to(run.folder).as_posix() for one in run.folder.rglob("*") if one.is_file()}
    assert names == {
        "run.json", "output-0000.log", "state-0001-000000000001.safetensors",
        "checkpoints/step-1/weights.safetensors",
    }  # fmt: skip
    modes = {stat.S_IMODE(one.stat().st_mode) for one in (run.folder.parent, *run.folder.parent.rglob("*"))}
    assert modes == {0o600, 0o700}
    assert one_of(nb.runs(path)).folder == run.folder  # unpacked once
    for change in (lambda: run.rename("x"), lambda: run.tag("x"), lambda: run.note("x"), run.delete):
        with pytest.raises(FailedPreconditionError, match=r"r1.zip, and cannot be"):
            change()
    small = run.export(tmp_path / "small.zip", files=False).where
    assert {Path(name).name for name in zipfile.ZipFile(small).namelist()} == {"run.json", "output-0000.log"}
    with pytest.raises(InvalidArgumentError, match=r"export to 'x.tar' needs to=: one of zip, "):
        run.export("x.tar")
    assert [one.name for one in tmp_path.glob(".*")] == []


def test_an_export_replaces_only_its_own_archive(tmp_path: Path) -> None:
    a_run("r1")
    run = one_of(nb.runs())
    path = Path(run.export(tmp_path / "r1.zip").where)
    with pytest.raises(FailedPreconditionError, match=r"was exported to zip before"):
        run.export(path)
    assert run.export(path, replace=True).where == str(path)
    for name, content in {"photos.zip": b"", "text.zip": b"words"}.items():
        other = tmp_path / name
        with zipfile.ZipFile(other, "w") as archive:
            archive.writestr("a.jpg", b"1")
        if content:
            other.write_bytes(content)
        before = other.read_bytes()
        with pytest.raises(InvalidArgumentError, match=r"is there, and is no export of run r1"):
            run.export(other, replace=True)
        assert other.read_bytes() == before


def test_an_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run("r1")
    run = one_of(nb.runs())
    path = Path(run.export(tmp_path / "r1.zip").where)
    monkeypatch.setattr(archive, "LARGEST", 5_000)
    with pytest.raises(ResourceExhaustedError, match=r"4 files of 20 KB are more than.*files=False"):
        run.export(tmp_path / "r2.zip")
    with pytest.raises(ResourceExhaustedError, match=r"have 20 KB; at most 5.0 KB are unpacked"):
        nb.runs(path)
    monkeypatch.setattr(archive, "LARGEST_DIRECTORY", 10)
    with pytest.raises(ResourceExhaustedError, match=r"a list of them of over 10 B"):
        nb.runs(path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../../stolen", "leads out"),
        ("/tmp/stolen", "leads out"),
        ("r1/../../stolen", "leads out"),
        ("r1//stolen", "leads out"),
        ("r1/./stolen", "leads out"),
        ("..\\stolen", "leads out"),
        ("C:/stolen", "leads out"),
        ("r1/a\nb", "has a name that no file of a run has"),
        ("r1/" + "x" * 1_000, "has a name that no file of a run has"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, why: str) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("r1/run.json", '{"id": "r1"}')
        member = zipfile.ZipInfo("plain")
        member.filename = name
        file.writestr(member, "stolen")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidArgumentError, match=rf"x.zip is not opened: .*{why}.*Nothing was unpacked"):
        nb.runs(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFBLK])
def test_links_and_devices_are_refused(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        member = zipfile.ZipInfo("r1/run.json")
        member.external_attr = (kind | 0o777) << 16
        file.writestr(member, "/etc/passwd")
    with pytest.raises(InvalidArgumentError, match=r"is a link or a device"):
        nb.runs(path)


def test_odd_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("r1/run.json", "{}")
        with pytest.warns(UserWarning, match=r"Duplicate"):
            file.writestr("r1/run.json", "{}")
    with pytest.raises(InvalidArgumentError, match=r"two files in it have the same name"):
        nb.runs(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("r1/run.json", "{}")
    with pytest.raises(InvalidArgumentError, match=r"in another way than deflate"):
        nb.runs(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("r1", "a file")
        file.writestr("r1/run.json", "{}")
    with pytest.raises(NbdistError, match=r"x.zip"):
        nb.runs(path)


def test_a_bomb_unpacks_no_more_than_it_says(tmp_path: Path) -> None:
    """The directory says 10 bytes of a file that has a million."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("r1/run.json", bytes(1_000_000))
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<L", 1_000_000), struct.pack("<L", 10)))
    with pytest.raises(DataLossError, match=r"x.zip is damaged"):
        nb.runs(path)


@pytest.mark.parametrize("cut", [0, 10, 22, 100, -1, -30])
def test_a_damaged_archive_is_named(tmp_path: Path, cut: int) -> None:
    a_run("r1")
    path = Path(one_of(nb.runs()).export(tmp_path / "r1.zip").where)
    path.write_bytes(path.read_bytes()[:cut] + os.urandom(3))
    with pytest.raises(DataLossError, match=r"r1.zip is damaged, or no zip file"):
        nb.runs(path)
