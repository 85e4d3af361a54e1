"""Wishes that come from other processes by a file: the process that drives takes them, and nothing else."""

from __future__ import annotations

import gc
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from trials_tools import GATED, began, finished
from waiting import until

from nbdist.errors import FailedPreconditionError, UnavailableError
from nbdist.trials.requests import ANSWER, WISH, Listening, read_small, wish_of
from nbdist.trials.sweep import Sweep

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster


class Heard:
    """Stands in for a sweep: what was wished of it, and what it refuses."""

    def __init__(self) -> None:
        self.wishes: list[str] = []
        self.refuses: Exception | None = None

    def _do(self, wish: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.wishes.append(wish)

    def pause(self) -> None:
        self._do("pause")

    def resume(self) -> None:
        self._do("resume")

    def close(self) -> None:
        self._do("close")


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    one = Heard()
    listening = Listening(one, tmp_path)  # type: ignore[arg-type]  # it is given a stand-in
    yield one
    listening.end()
    until(lambda: listeners(tmp_path) == 0)


def listeners(folder: Path) -> int:
    return sum(thread.name == f"nbdist wishes {folder.name}" for thread in threading.enumerate())


def test_each_wish_is_done_once_and_leaves_no_wish(heard: Heard, tmp_path: Path) -> None:
    for wish in ("pause", "resume", "stop"):
        wish_of(tmp_path, wish)
    assert heard.wishes == ["pause", "resume", "close"]
    assert os.listdir(tmp_path) == [ANSWER]
    assert stat.S_IMODE((tmp_path / ANSWER).stat().st_mode) == 0o600


def test_what_is_refused_is_told_with_the_reason(heard: Heard, tmp_path: Path) -> None:
    heard.refuses = FailedPreconditionError("the sweep is over")
    with pytest.raises(FailedPreconditionError, match="the sweep is over"):
        wish_of(tmp_path, "pause")
    with pytest.raises(
        FailedPreconditionError, match=r"no sweep command 'fly'; choose from pause, resume, stop"
    ):
        wish_of(tmp_path, "fly")
    heard.refuses = ZeroDivisionError("of ours")
    with pytest.raises(FailedPreconditionError, match="ZeroDivisionError: of ours"):
        wish_of(tmp_path, "stop")
    heard.refuses = None
    wish_of(tmp_path, "pause")
    assert heard.wishes == ["pause"]


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"has not answered for 0\.1 s"):
        wish_of(tmp_path, "stop", seconds=0.1)
    assert os.listdir(tmp_path) == []


def test_two_at_once_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / WISH).write_text(json.dumps({"token": "another", "wish": "pause"}))
    with pytest.raises(FailedPreconditionError, match="not yet handled an earlier command"):
        wish_of(tmp_path, "stop")
    assert os.listdir(tmp_path) == [WISH]
    assert read_small(tmp_path / WISH)["wish"] == "pause"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"wish": "stop"}', b"\xff" * 99, b" " * 9999, b"[" * 4000]
)
def test_what_is_no_wish_is_thrown_away(heard: Heard, tmp_path: Path, content: bytes) -> None:
    (tmp_path / WISH).write_bytes(content)
    until(lambda: not (tmp_path / WISH).exists())
    wish_of(tmp_path, "pause")
    assert heard.wishes == ["pause"]


def test_a_wish_of_the_dead_is_thrown_away(heard: Heard, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.write_text(json.dumps({"token": "old", "wish": "stop"}))
    os.utime(draft, (1.0, 1.0))
    draft.rename(tmp_path / WISH)
    until(lambda: not (tmp_path / WISH).exists())
    assert heard.wishes == []


def test_a_link_is_not_followed(heard: Heard, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"token": "mine", "wish": "stop"}))
    (tmp_path / WISH).symlink_to(elsewhere)
    until(lambda: not (tmp_path / WISH).is_symlink())
    assert (heard.wishes, elsewhere.exists()) == ([], True)


def test_nobody_holds_the_sweep_any_more(tmp_path: Path) -> None:
    one = Heard()
    Listening(one, tmp_path)  # type: ignore[arg-type]  # it is given a stand-in
    assert listeners(tmp_path) == 1
    del one
    gc.collect()
    until(lambda: listeners(tmp_path) == 0)


@pytest.mark.engines
def test_a_sweep_is_paused_resumed_and_stopped(
    begin: Callable[..., Sweep], cluster: Cluster, marks: Path
) -> None:
    body, space = GATED.format(folder=str(marks)), {"number": list(range(12))}
    sweep = begin(body, space, on="worker:0", cluster=cluster)
    until(lambda: began(marks, 0))
    wish_of(sweep.folder, "pause")
    assert sweep.ledger.paused
    (marks / "open-0").touch()
    until(lambda: not sweep.driven)  # nothing runs, and still it listens
    assert len(began(marks)) == 1
    wish_of(sweep.folder, "resume")
    until(lambda: began(marks, 1))
    wish_of(sweep.folder, "stop")
    finished(sweep)
    assert sweep.ledger.closed
    assert sweep.ledger.counts["finished"] == 1
    until(lambda: listeners(sweep.folder) == 0)
    with pytest.raises(UnavailableError):
        wish_of(sweep.folder, "pause", seconds=0.1)


@pytest.mark.engines
def test_a_sweep_that_is_done_and_goes_on_listens_again(
    begin: Callable[..., Sweep], cluster: Cluster
) -> None:
    sweep = begin("accuracy = number", {"number": [1, 2]}, on="worker:0", cluster=cluster)
    finished(sweep)
    until(lambda: listeners(sweep.folder) == 0)
    sweep.pause()
    sweep.clone(0, number=3)
    wish_of(sweep.folder, "resume")
    finished(sweep)
    assert sweep.best is not None
    assert sweep.best.value == 3.0
    sweep.leave()
    until(lambda: listeners(sweep.folder) == 0)
