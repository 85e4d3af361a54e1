"""A file of frames is read in pieces, despite damage and replacement."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.lab.readers import files as tails
from nbdist.lab.readers.files import ReplacedError, Tail
from nbdist.metrics.log import FORMAT, MAGIC, POINT, POINTS, LogPart, parse


def points(count: int, start: int = 0) -> bytes:
    made = np.zeros(count, POINT)
    made["step"] = np.arange(start, start + count)
    return FORMAT.frame(POINTS, made.tobytes())


def steps(tail: Tail[LogPart]) -> list[int]:
    found: list[int] = []
    while (part := tail.read()) is not None:
        found += part.points["step"].tolist()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics-0000.log"


@pytest.fixture
def tail(path: Path) -> Tail[LogPart]:
    return Tail(path, FORMAT, parse)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "PIECE", 64)
    monkeypatch.setattr(tails, "MAX_TORN", 2048)


def test_new_frames_are_read_once(path: Path, tail: Tail[LogPart]) -> None:
    path.write_bytes(MAGIC + points(3))
    assert steps(tail) == [0, 1, 2]
    assert steps(tail) == []
    with path.open("ab") as file:
        file.write(points(2, 3))
    assert steps(tail) == [3, 4]
    assert (tail.left, tail.torn, tail.damaged) == (0, 0, 0)


@pytest.mark.usefixtures("small")
def test_a_long_log_and_a_long_frame_are_read_in_pieces(path: Path) -> None:
    path.write_bytes(MAGIC + b"".join(points(1, i) for i in range(50)) + points(60, 50))
    assert steps(Tail(path, FORMAT, parse)) == list(range(110))


@pytest.mark.usefixtures("small")
def test_a_long_stretch_of_damage_is_skipped(path: Path) -> None:
    path.write_bytes(MAGIC + points(2) + b"x" * 5000 + points(2, 2))
    tail = Tail(path, FORMAT, parse)
    assert steps(tail) == [0, 1, 2, 3]
    assert tail.damaged == 5000


def test_an_incomplete_frame_waits_for_its_end(path: Path, tail: Tail[LogPart]) -> None:
    whole = MAGIC + points(2) + points(3, 2)
    path.write_bytes(whole[:-5])
    assert steps(tail) == [0, 1]
    assert tail.torn == len(points(3)) - 5
    path.write_bytes(whole)
    assert steps(tail) == [2, 3, 4]


def test_a_new_empty_log(path: Path, tail: Tail[LogPart]) -> None:
    path.write_bytes(MAGIC[:4])
    assert steps(tail) == []
    path.write_bytes(MAGIC)
    assert steps(tail) == []
    path.write_bytes(MAGIC + points(1))
    assert steps(tail) == [0]
    assert not tail.error


def test_a_file_that_is_not_a_log_is_reported_and_not_read(path: Path, tail: Tail[LogPart]) -> None:
    path.write_bytes(b"\x7fELF, or whatever")
    assert steps(tail) == []
    assert "is not a metrics log" in tail.error
    assert tail.left == 0


def test_a_pipe_does_not_block(path: Path, tail: Tail[LogPart]) -> None:
    os.mkfifo(path)
    assert steps(tail) == []
    assert "is not a regular file" in tail.error


def test_a_link_is_not_followed(path: Path, tail: Tail[LogPart], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(MAGIC + points(1))
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        tail.read()


@pytest.mark.parametrize("again", [b"", MAGIC + points(1)])
def test_a_replaced_log_is_noticed(path: Path, tail: Tail[LogPart], again: bytes) -> None:
    path.write_bytes(MAGIC + points(5))
    steps(tail)
    (path.parent / "new").write_bytes(again)
    (path.parent / "new").replace(path)
    with pytest.raises(ReplacedError):
        tail.read()


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_random_bytes_never_raise(tmp_path_factory: pytest.TempPathFactory, rubbish: bytes, cut: int) -> None:
    path = tmp_path_factory.mktemp("tail") / "metrics-0000.log"
    path.write_bytes(
        (MAGIC + points(2) + rubbish + FORMAT.frame(9, rubbish) + FORMAT.frame(1, rubbish))[:cut]
    )
    tail = Tail(path, FORMAT, parse)
    steps(tail)
    assert steps(tail) == []
