"""Files that users name: complete or not there, and never in the place of a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist.draft import draft_of
from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.frameworks.torch.weights import StateDict

WRITERS: dict[str, Callable[[Any], object]] = {
    "write_tfrecords": lambda path: nb.data.write_tfrecords(path, [b"one"]),
    "Model.save": lambda path: nb.nn.Sequential([nb.nn.Dense(1)]).build((2,)).save(path),
    "StateDict.save": lambda path: StateDict(w=np.zeros(2, np.float32)).save(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_pipe_is_refused_and_the_target_of_a_link_replaced(tmp_path: Path, name: str) -> None:
    write = WRITERS[name]
    os.mkfifo(tmp_path / "pipe")  # as of a device: a file in its place would hide it
    with pytest.raises(
        InvalidArgumentError, match="is a folder, a device or a pipe; give the path of a file"
    ):
        write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "file")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "file").is_file()
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["disk", "file", "link", "pipe"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_text_that_names_no_file_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"^''|path is empty"):
        WRITERS[name]("")
    with pytest.raises(InvalidArgumentError, match=r"^'models/' is a folder.*; give the path of a file"):
        WRITERS[name]("models/")
    assert not any(tmp_path.iterdir())


def write_half(path: Path) -> None:
    with draft_of(path) as draft:
        draft.write_text("half")
        raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(StorageError, match=r"a cannot be written: .*No space left.*\. No part of it is kept"):
        write_half(tmp_path / "a")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"
