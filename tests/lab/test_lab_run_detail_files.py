"""Files of a run's folder, and no access outside of it."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab_folders import RunFolder

from nbdist.errors import InvalidArgumentError, NbdistError, NotAllowedError, NotFoundError
from nbdist.lab.readers.run_detail import list_files, open_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "secret").write_text("secret")
    return tmp_path / "home"


@pytest.fixture
def run() -> RunFolder:
    one = RunFolder("r1", status="finished")
    (one.folder / "checkpoints").mkdir()
    one.raw("checkpoints/1.npz", b"weights")
    return one


def content(path: str, run_id: str = "r1") -> bytes:
    file, size = open_file(run_id, path)
    with file:
        found = file.read()
    assert len(found) == size
    return found


def test_files_are_listed_and_read(run: RunFolder) -> None:
    run.raw("<b>odd &name.txt", "x")
    assert [one["path"] for one in list_files("r1")] == ["<b>odd &name.txt", "checkpoints/1.npz", "run.json"]
    assert list_files("r1")[1]["bytes"] == 7
    assert content("checkpoints/1.npz") == b"weights"
    assert content("<b>odd &name.txt") == b"x"
    assert b'"r1"' in content("run.json")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    "path",
    [
        "../r2/run.json", "..", "../../secret", "checkpoints/../../../secret", "/etc/passwd", "//etc/passwd",
        "", "/", ".", "./run.json", "checkpoints/", "checkpoints//1.npz", "checkpoints/./1.npz",
        "run.json\0.txt", ".run.json.draft", "a/" * 40 + "b", "\ud800", "checkpoints/..",
    ],
)  # fmt: skip
def test_a_path_outside_of_the_folder_is_refused(path: str) -> None:
    with pytest.raises(NotAllowedError):
        open_file("r1", path)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    "path", ["nothing", "checkpoints/nothing", "nothing/at/all", "run.json/x", "a" * 300]
)
def test_missing_files_are_not_found(path: str) -> None:
    with pytest.raises((NotFoundError, NotAllowedError)):
        open_file("r1", path)


def test_no_link_is_followed(run: RunFolder, tmp_path: Path) -> None:
    (run.folder / "out").symlink_to(tmp_path / "secret")
    (run.folder / "in").symlink_to(run.folder / "run.json")
    (run.folder / "near").symlink_to("checkpoints/1.npz")
    (run.folder / "dangling").symlink_to(tmp_path / "nowhere")
    (run.folder / "deep").symlink_to(tmp_path / "folder")
    (run.folder / "up").symlink_to("..")
    for path in ("out", "in", "near", "dangling", "deep", "deep/secret", "up", "up/r1/run.json"):
        with pytest.raises(NotAllowedError, match="link"):
            open_file("r1", path)
    assert [one["path"] for one in list_files("r1")] == ["checkpoints/1.npz", "run.json"]


def test_a_hard_link_is_a_file_like_any_other(run: RunFolder, tmp_path: Path) -> None:
    os.link(tmp_path / "secret", run.folder / "hard")
    assert content("hard") == b"secret"


def test_only_ordinary_files_are_opened(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(run.folder / "pipe")
    monkeypatch.chdir(run.folder)  # socket paths are short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        for path in ("pipe", "socket", "checkpoints"):
            with pytest.raises(NotAllowedError, match="not a regular file"):
                open_file("r1", path)
        assert {one["path"] for one in list_files("r1")} == {"checkpoints/1.npz", "run.json"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_not_even_opened(run: RunFolder) -> None:
    try:
        os.mknod(run.folder / "null", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        (run.folder / "null").touch()
        (run.folder / "null").unlink()
        os.mkfifo(run.folder / "null")
    with pytest.raises(NotAllowedError, match="not a regular file"):
        open_file("r1", "null")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("run_id", ["../r1", "..", ".", "", "r1/checkpoints", "/etc", "r\0"])
def test_an_invalid_id_is_refused(run_id: str) -> None:
    for call in (lambda: open_file(run_id, "run.json"), lambda: list_files(run_id)):
        with pytest.raises(InvalidArgumentError):
            call()


def test_a_run_that_is_a_link_is_not_found(run: RunFolder, home: Path, tmp_path: Path) -> None:
    (home / "runs" / "r2").symlink_to(tmp_path / "folder")
    with pytest.raises(NotFoundError, match="no run"):
        open_file("r2", "secret")
    with pytest.raises(NotFoundError, match="no run"):
        list_files("r2")


def test_a_missing_state_folder_is_not_created(home: Path) -> None:
    with pytest.raises(NotFoundError):
        open_file("r1", "run.json")
    assert not home.exists()


def test_a_folder_swapped_for_a_link_is_not_followed(run: RunFolder, tmp_path: Path) -> None:
    """A folder repeatedly swapped for a link never gives access to the link's target."""
    inner, outer = run.folder / "swap", tmp_path / "folder"
    inner.mkdir()
    (inner / "secret").write_text("harmless")
    over = threading.Event()

    def swap() -> None:
        aside, link = run.folder / ".aside", run.folder / ".link"
        while not over.is_set():
            inner.rename(aside)
            link.symlink_to(outer)
            link.rename(inner)
            inner.unlink()
            aside.rename(inner)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(2000):
            try:
                assert content("swap/secret") == b"harmless"
            except (NotAllowedError, NotFoundError):
                continue
    finally:
        over.set()
        thread.join()


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(["..", ".", "", "checkpoints", "1.npz", "r1", "\\", "out", "~"]), max_size=6))
def test_no_path_leads_to_a_secret(run: RunFolder, parts: list[str]) -> None:
    out = run.folder / "out"
    if not out.is_symlink():
        out.symlink_to(run.folder.parent.parent.parent)
    for path in ("/".join(parts), "/".join([*parts, "secret"])):
        try:
            assert content(path) == b"weights"
        except NbdistError:
            continue


def test_very_many_files_are_listed_in_part(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbdist.lab.readers.run_detail.MOST_LISTED", 5)
    for i in range(9):
        run.raw(f"f{i}", "")
    assert len(list_files("r1")) == 5
