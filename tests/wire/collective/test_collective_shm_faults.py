"""Ranks in their own processes: killed, frozen, interrupted twice; no files are left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from collective_worlds import Processes
from mpi_worlds import MpiWorld
from tiers import matrix
from waiting import PATIENCE, limit, until

from nbdist.wire.collective.shm import sync

pytestmark = pytest.mark.processes

NOTICED_SECONDS = 2.0  # to detect that a process has ended, or that the group was aborted
GROUPS = {
    "shm": ["here"] * 3,
    "ring": ["left", "middle", "right"],
    "hierarchical": ["left", "right", "left"],
    "mpi": ["here"] * 3,
    "mpi between hosts": ["left", "right", "left"],
}
Form = Callable[[str], Processes]


@pytest.fixture
def form() -> Iterator[Form]:
    made: list[Processes] = []
    worlds: list[MpiWorld] = []

    def form_one(kind: str) -> Processes:
        if kind.startswith("mpi"):
            worlds.append(MpiWorld(len(GROUPS[kind])))
        made.append(Processes(GROUPS[kind], worlds[-1].start if kind.startswith("mpi") else None))
        made[-1].form(kind)
        return made[-1]

    yield form_one
    for one in made:
        one.close()
        assert not one.files()
    for world in worlds:
        world.close()


def kinds(*first: str) -> pytest.MarkDecorator:
    """Test with these kinds of groups in the first tier, and with the others in the second one."""
    return pytest.mark.parametrize("kind", matrix(first, rest=[kind for kind in GROUPS if kind not in first]))


@kinds("hierarchical", "mpi between hosts")
def test_ranks_in_processes_work_and_their_files_have_no_names(form: Form, kind: str) -> None:
    group = form(kind)
    assert group.files() == []
    assert group.all(do="reduce", count=3) == [18.0] * 3
    assert group.all(do="reduce", count=700_000) == [6.0 * 700_000] * 3
    assert group.all(do="close") == [None] * 3


FIRST = [("shm", 400_000), ("ring", 400_000), ("hierarchical", 10), ("mpi", 400_000)]
REST = [(kind, count) for kind in GROUPS for count in (10, 400_000) if (kind, count) not in FIRST]


@pytest.mark.parametrize(("kind", "count"), matrix(FIRST, REST))
def test_all_ranks_detect_a_killed_rank(form: Form, kind: str, count: int) -> None:
    group = form(kind)
    assert group.all(do="reduce_without_end", count=count) == ["begun"] * 3
    group.ranks[1].kill()
    begun = time.monotonic()
    for rank in (group.ranks[0], group.ranks[2]):
        name, text = rank.answer()
        assert name in ("TaskDiedError", "UnavailableError"), text
        assert "rank 1 (/job:worker/task:1)" in text
        assert "collective #" in text
    assert time.monotonic() - begun < limit(NOTICED_SECONDS)


@kinds("shm", "ring")
def test_waiting_ranks_detect_a_killed_rank(form: Form, kind: str) -> None:
    group = form(kind)
    waiting = [group.ranks[0], group.ranks[2]]
    for rank in waiting:
        rank.ask(do="barrier")
        assert rank.answer() == "begun"
    group.ranks[1].kill()
    begun = time.monotonic()
    for rank in waiting:
        name, text = rank.answer()
        assert name in ("TaskDiedError", "UnavailableError"), text
        assert "rank 1 (/job:worker/task:1)" in text
    assert time.monotonic() - begun < limit(NOTICED_SECONDS)


@kinds("shm", "ring", "mpi")
def test_an_interrupt_twice_ends_the_group_and_the_next_one_works(form: Form, kind: str) -> None:
    group = form(kind)
    waiting = group.ranks[:2]
    for rank in waiting:
        rank.ask(do="barrier")
        assert rank.answer() == "begun"
    begun = time.monotonic()
    for _ in range(2):
        os.kill(group.ranks[0].process.pid, signal.SIGINT)
    name, _ = group.ranks[0].answer()
    assert name == "KeyboardInterrupt"
    assert time.monotonic() - begun < limit(3)
    group.ranks[2].ask(do="barrier_without_end")  # the first barrier may still complete
    for rank in group.ranks[1:]:
        name, text = rank.answer()
        assert name == "AbortedError", text
        assert "rank 0 (/job:worker/task:0)" in text
        assert "interrupted in barrier()" in text
    assert time.monotonic() - begun < limit(2 * NOTICED_SECONDS)
    group.ranks[0].ask(do="reduce", count=5)
    assert "broken" in group.ranks[0].answer()[1]
    group.form(kind)
    assert group.all(do="reduce", count=5) == [30.0] * 3
    assert group.all(do="reduce", count=400_000) == [6.0 * 400_000] * 3


@pytest.mark.parametrize("linux", [True, False])
def test_a_stopped_process_is_frozen_and_a_busy_one_is_not(
    linux: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not linux:  # a Mac has neither
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.setattr(sync, "PROC", tmp_path / "proc")
    script = "print('here', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as busy:
        assert busy.stdout
        busy.stdout.readline()
        one = sync.ProcessMonitor({3: busy.pid, 4: os.getpid()})
        assert one.frozen(0.0) == []
        busy.send_signal(signal.SIGSTOP)
        until(lambda: one.frozen(0.0) == [3], 10)
        assert one.frozen(PATIENCE) == []  # not for so long
        used = sync._state(busy.pid)[1]
        busy.send_signal(signal.SIGCONT)
        until(lambda: sync._state(busy.pid)[1] > used, 10)
        busy.send_signal(signal.SIGSTOP)
        until(lambda: sync._state(busy.pid)[0] in sync.STOPPED, 10)
        assert one.frozen(0.0) == []  # it has used its core since the last look
        until(lambda: one.frozen(0.0) == [3], 10)
        assert one.dead() == []
        busy.kill()
        busy.wait()
        assert one.dead() == [3]
        assert one.frozen(0.0) == []
        assert (one.seen(), one.unseen()) == ([3], [])
        one.replace(3, busy.pid)  # which is no process by now
        assert (one.seen(), one.unseen(), one.dead()) == ([], [3], [])
        one.close()
