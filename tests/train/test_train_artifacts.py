"""nb.save_artifact in a context with a folder, without a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    StorageError,
)
from nbdist.train import artifacts
from nbdist.train.artifacts import Artifacts, save_artifact
from nbdist.train.context import Context


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Artifacts]:
    made = Artifacts(tmp_path / "run" / "artifacts", "", 1)
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setattr(artifacts, "current", lambda: Context(artifacts=made))
    monkeypatch.chdir(tmp_path)
    yield made
    assert not [one for one in made.folder.rglob(".*") if one.name != artifacts.LOCK]


def a_file(name: str, content: bytes = b"x") -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_file_is_copied_and_a_later_one_replaces_it(place: Artifacts) -> None:
    a_file("plot.png", b"one")
    copy = save_artifact("plot.png")
    assert copy == place.folder / "plot.png"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert place.folder.stat().st_mode & 0o777 == 0o700
    a_file("plot.png", b"two")
    assert copy.read_bytes() == b"one"
    assert save_artifact("plot.png").read_bytes() == b"two"
    assert save_artifact("plot.png", "plots/last/confusion.png") == place.folder / "plots/last/confusion.png"


def test_a_folder_is_copied_with_all_below_it(place: Artifacts, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("out/a.txt", "out/b/c.txt", "out/.git/config", "out/.hidden"):
        a_file(name)
    Path("out/link.txt").symlink_to("a.txt")
    copy = save_artifact("out")
    assert sorted(one.relative_to(copy).as_posix() for one in copy.rglob("*")) == [
        "a.txt",
        "b",
        "b/c.txt",
        "link.txt",
    ]
    assert "2 hidden files or folders are left out, such as .git" in capsys.readouterr().out
    Path("out/a.txt").unlink()
    Path("out/link.txt").unlink()
    save_artifact("out")
    assert [one.name for one in copy.rglob("*.txt")] == ["c.txt"]


def test_other_replicas_have_a_folder_of_their_own(place: Artifacts) -> None:
    a_file("plot.png", b"chief")
    save_artifact("plot.png")
    other = Artifacts(place.folder, "worker-1", 1)
    assert other.save(a_file("plot.png", b"other"), None) == place.folder / "worker-1" / "plot.png"
    assert (place.folder / "plot.png").read_bytes() == b"chief"


def test_the_quota_holds_for_all_and_counts_a_replaced_file_once(place: Artifacts) -> None:
    a_file("big", bytes(600_000))
    save_artifact("big")
    save_artifact("big")
    with pytest.raises(
        ResourceExhaustedError, match=r"big has 0.6 MB.* take 0.6 MB of 1: .*--artifact-quota"
    ):
        save_artifact("big", "another")
    with pytest.raises(ResourceExhaustedError):
        Artifacts(place.folder, "worker-1", 1).save(Path("big"), None)
    assert [one.name for one in place.folder.iterdir() if one.name[0] != "."] == ["big"]


def test_replicas_that_save_at_once_keep_to_the_quota(place: Artifacts) -> None:
    a_file("part", bytes(300_000))
    refused: list[str] = []

    def save(replica: str) -> None:
        try:
            Artifacts(place.folder, replica, 1).save(Path("part"), None)
        except ResourceExhaustedError:
            refused.append(replica)

    threads = [threading.Thread(target=save, args=(f"worker-{number}",)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(refused) == 5


@pytest.mark.parametrize(
    ("path", "name", "error", "sentence"),
    [
        ("missing", None, NotFoundError, "no file or folder 'missing' in /"),
        ("plot.png", "../run.json", InvalidArgumentError, "'../run.json' is no name of an artifact"),
        ("plot.png", "/etc/passwd", InvalidArgumentError, "is no name of an artifact"),
        ("plot.png", ".hidden", InvalidArgumentError, "begins with a dot"),
        ("plot.png", "", InvalidArgumentError, "'' is no name of an artifact"),
        (".", None, InvalidArgumentError, "'' is no name of an artifact"),
        ("plot.png", "a/b/c/d/e/f/g", InvalidArgumentError, "characters in 5 parts"),
        ("empty", None, InvalidArgumentError, "empty has no files to save"),
        ("linked", None, InvalidArgumentError, "is a link to a folder"),
        ("pipes", None, InvalidArgumentError, "is a device, a pipe or a socket"),
    ],
)
def test_what_cannot_be_saved_is_refused(
    place: Artifacts, path: str, name: str | None, error: type[Exception], sentence: str
) -> None:
    a_file("plot.png")
    Path("empty").mkdir()
    a_file("linked/x")
    Path("linked/folder").symlink_to("../empty")
    Path("pipes").mkdir()
    os.mkfifo("pipes/one")
    with pytest.raises(error, match=sentence):
        save_artifact(path, name)


def test_an_error_of_the_disk_leaves_the_file_before(
    place: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_file("plot.png", b"one")
    copy = save_artifact("plot.png")

    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifacts.shutil, "copyfile", full)
    with pytest.raises(StorageError, match=r"plot\.png cannot be written: No space left on device"):
        save_artifact("plot.png")
    assert copy.read_bytes() == b"one"


def test_without_a_run_it_says_where_to_call_it() -> None:
    with pytest.raises(FailedPreconditionError, match="call it in a body of %%distribute"):
        save_artifact("plot.png")
