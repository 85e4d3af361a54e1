"""Commands from other processes through a file: the process that drives the sweep executes them."""

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
from nbdist.trials import command_file
from nbdist.trials.command_file import ANSWER, COMMAND, CommandFile, read_small, send_command
from nbdist.trials.sweep import Sweep

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster


class Target:
    """Stands in for a sweep: records its commands, and refuses them with an error."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.refuses: Exception | None = None

    def command(self, name: str, /, **arguments: object) -> None:
        if self.refuses is not None:
            raise self.refuses
        assert not arguments
        self.commands.append(name)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    monkeypatch.setattr(command_file, "POLL_SECONDS", 0.02)
    one = Target()
    file = CommandFile(one, tmp_path)
    yield one
    file.close()
    until(lambda: threads(tmp_path) == 0)


def threads(folder: Path) -> int:
    return sum(thread.name == f"nbdist commands {folder.name}" for thread in threading.enumerate())


def test_each_command_is_executed_once_and_leaves_no_file(target: Target, tmp_path: Path) -> None:
    for command in ("pause", "resume", "stop"):
        send_command(tmp_path, command)
    assert target.commands == ["pause", "resume", "close"]
    assert os.listdir(tmp_path) == [ANSWER]
    assert stat.S_IMODE((tmp_path / ANSWER).stat().st_mode) == 0o600


def test_a_refusal_reaches_the_sender_with_its_reason(target: Target, tmp_path: Path) -> None:
    target.refuses = FailedPreconditionError("the sweep is over")
    with pytest.raises(FailedPreconditionError, match="the sweep is over"):
        send_command(tmp_path, "pause")
    with pytest.raises(
        FailedPreconditionError, match=r"no sweep command 'fly'; choose from pause, resume, stop"
    ):
        send_command(tmp_path, "fly")
    target.refuses = ZeroDivisionError("of ours")
    with pytest.raises(FailedPreconditionError, match="ZeroDivisionError: of ours"):
        send_command(tmp_path, "stop")
    target.refuses = None
    send_command(tmp_path, "pause")
    assert target.commands == ["pause"]


def test_no_process_reads_the_file(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"has not answered for 0\.1 s"):
        send_command(tmp_path, "stop", seconds=0.1)
    assert os.listdir(tmp_path) == []


def test_a_second_command_does_not_replace_the_first(tmp_path: Path) -> None:
    (tmp_path / COMMAND).write_text(json.dumps({"token": "another", "command": "pause"}))
    with pytest.raises(FailedPreconditionError, match="not yet handled an earlier command"):
        send_command(tmp_path, "stop")
    assert os.listdir(tmp_path) == [COMMAND]
    assert read_small(tmp_path / COMMAND)["command"] == "pause"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"command": "stop"}', b"\xff" * 99, b" " * 9999, b"[" * 4000]
)
def test_an_invalid_file_is_deleted(target: Target, tmp_path: Path, content: bytes) -> None:
    (tmp_path / COMMAND).write_bytes(content)
    until(lambda: not (tmp_path / COMMAND).exists())
    send_command(tmp_path, "pause")
    assert target.commands == ["pause"]


def test_a_stale_command_is_deleted(target: Target, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.write_text(json.dumps({"token": "old", "command": "stop"}))
    os.utime(draft, (1.0, 1.0))
    draft.rename(tmp_path / COMMAND)
    until(lambda: not (tmp_path / COMMAND).exists())
    assert target.commands == []


def test_a_link_is_not_followed(target: Target, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"token": "mine", "command": "stop"}))
    (tmp_path / COMMAND).symlink_to(elsewhere)
    until(lambda: not (tmp_path / COMMAND).is_symlink())
    assert (target.commands, elsewhere.exists()) == ([], True)


def test_the_thread_ends_when_the_sweep_is_collected(tmp_path: Path) -> None:
    one = Target()
    CommandFile(one, tmp_path)
    assert threads(tmp_path) == 1
    del one
    gc.collect()
    until(lambda: threads(tmp_path) == 0)


@pytest.mark.engines
def test_a_sweep_is_paused_resumed_and_stopped(
    begin: Callable[..., Sweep], cluster: Cluster, marks: Path
) -> None:
    body, space = GATED.format(folder=str(marks)), {"number": list(range(12))}
    sweep = begin(body, space, on="worker:0", cluster=cluster)
    until(lambda: began(marks, 0))
    send_command(sweep.folder, "pause")
    assert sweep.ledger.paused
    (marks / "open-0").touch()
    until(lambda: not sweep.driven)  # nothing runs, and it still reads commands
    assert len(began(marks)) == 1
    send_command(sweep.folder, "resume")
    until(lambda: began(marks, 1))
    send_command(sweep.folder, "stop")
    finished(sweep)
    assert sweep.ledger.closed
    assert sweep.ledger.counts["finished"] == 1
    until(lambda: threads(sweep.folder) == 0)
    with pytest.raises(UnavailableError):
        send_command(sweep.folder, "pause", seconds=0.1)


@pytest.mark.engines
def test_a_finished_sweep_that_continues_reads_commands_again(
    begin: Callable[..., Sweep], cluster: Cluster
) -> None:
    sweep = begin("accuracy = number", {"number": [1, 2]}, on="worker:0", cluster=cluster)
    finished(sweep)
    until(lambda: threads(sweep.folder) == 0)
    sweep.pause()
    sweep.clone(0, number=3)
    send_command(sweep.folder, "resume")
    finished(sweep)
    assert sweep.best is not None
    assert sweep.best.value == 3.0
    sweep.leave()
    until(lambda: threads(sweep.folder) == 0)
