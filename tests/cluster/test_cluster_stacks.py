"""Where tasks are: what is read from a process that hangs, how it is grouped and said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import until

from nbdist.cli.__main__ import main
from nbdist.cluster.cluster import set_current
from nbdist.cluster.stacks import Frame, Stacks, TaskStack, parse_dump, parse_py_spy, shortened
from nbdist.cluster.supervisor import stacks as reading
from nbdist.cluster.supervisor.stacks import RANKS_AT_ONCE, StackProcess, catches, is_whole, read_stacks
from nbdist.errors import InvalidArgumentError
from nbdist.ui.api import launch
from nbdist.ui.magics import DistributedMagics

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

BODY = ["body", "<distribute r>", 7, "hang"]
LIBRARY = ["library", "/usr/lib/python3.11/re/__init__.py", 166, "match"]


def stack(task: str, *frames: list[Any], state: str = "running", others: int = 0) -> TaskStack:
    threads = [{"name": "", "main": True, "frames": [list(one) for one in frames]}]
    threads += [{"name": f"t{n}", "main": False, "frames": [list(LIBRARY)]} for n in range(others)]
    answer = {"pid": 7, "state": state, "by": "py-spy", "threads": shortened(threads, 1 << 15)}
    return TaskStack.of(task, 7, json.loads(json.dumps(answer)))


def code(frame: Frame) -> str:
    return "hang()" if frame.origin == "body" else ""


def test_the_odd_one_out_is_said_first_and_equal_ones_together() -> None:
    waiting = (
        ["body", "<distribute r>", 9, "<module>"],
        ["nbdist", "/x/nbdist/collective.py", 74, "all_reduce"],
    )
    many = [
        stack(f"worker:{n}", *waiting, ["nbdist", "/x/nbdist/a.py", n, "wait"], others=2) for n in range(9)
    ]
    found = Stacks([*many[:4], stack("worker:9", BODY, LIBRARY, others=3), *many[4:]], code)
    first, second = found.summary.splitlines()
    assert first == "worker:9 is at line 7 of the body, in hang: hang() (calls match, re/__init__.py)"
    assert second.startswith("worker:0, worker:1, worker:2, worker:3 and 5 others are at line 9 of the body")
    assert second.endswith("(calls all_reduce, nbdist/collective.py)")
    text = str(found)
    assert text.count("all_reduce") == 2  # once in the sentence, and in one stack for all nine
    assert "\n  > body, line 7, in hang" in text
    assert "3 other threads run no code of yours (--all shows them)" in text
    assert str(Stacks(found.tasks, code, full=True)).count("read by py-spy") == 10


def test_a_thread_that_makes_batches_is_said_too() -> None:
    wrapper = ["nbdist", "/x/nbdist/keras_arguments.py", 2, "keras_arguments.<locals>.checked"]
    fit = ["nbdist", "/x/nbdist/nn/model.py", 9, "Model.fit"]
    threads = [
        {
            "name": "map",
            "main": False,
            "frames": [["library", "/usr/lib/python3.11/threading.py", 9, "run"], BODY],
        },
        {"name": "", "main": True, "frames": [["body", "<distribute r>", 13, "<module>"], wrapper, fit]},
    ]
    answer = {"pid": 7, "by": "faulthandler", "threads": shortened(threads, 1 << 15)}
    found = Stacks([TaskStack.of("worker:1", 7, answer)], code)
    said = "at line 13 of the body: hang() (calls Model.fit, nbdist/nn/model.py)"
    assert found.summary == f"worker:1 is {said}; a thread of it at line 7 of the body, in hang: hang()"
    assert "  thread map:\n  > body, line 7, in hang" in str(found)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "worker:1: it has ended: killed by SIGKILL"),
        ({"pid": 9, "state": "stopped", "threads": {}}, "worker:1: it is stopped, as by SIGSTOP"),
        ({"pid": 9, "state": "disk-sleep"}, "worker:1: it waits in the kernel, for a file system"),
        ({"pid": 9, "state": "running"}, "worker:1: it wrote no stacks within 2 s"),
        ({"pid": "x", "state": 3, "threads": {"threads": [7, {"frames": [[1]]}]}}, "worker:1 is not in"),
    ],
)  # fmt: skip
def test_why_there_is_no_stack_is_said(answer: Any, said: str) -> None:
    one = TaskStack.of("worker:1", 7, answer, "it has ended: killed by SIGKILL")
    assert Stacks([one]).summary.startswith(said)


def test_a_stopped_task_with_a_stack_says_both() -> None:
    found = Stacks([stack("worker:1", BODY, state="stopped")])
    assert found.summary == "worker:1 is stopped, as by SIGSTOP, and is at line 7 of the body, in hang"


def test_what_is_read_is_bounded() -> None:
    wide = {"name": "n", "main": False, "frames": [["library", "f" * 500, 1, "g" * 500]] * 300}
    kept = shortened([wide] * 100, 1 << 15)
    assert len(json.dumps(kept)) < 3 << 16
    assert len(kept["threads"]) + kept["left_out"] == 100
    assert parse_py_spy(b"[" * 100_000) == parse_py_spy(b"nonsense") == parse_dump("nonsense") == []
    refused: list[Any] = []
    StackProcess(None).read(range(RANKS_AT_ONCE + 1), refused.append)  # type: ignore[arg-type]
    assert "the most are 16" in refused[0]["error"]


# A process that holds the interpreter's lock in C code that never returns.

HANGS = """
import faulthandler, re, sys, threading
from nbdist.cluster.supervisor.stacks import answer_signal
if {answers}:
    answer_signal({folder!r}, 3)
threading.Thread(target=threading.Event().wait, daemon=True).start()
source = "def hang():\\n    re.match(r'(a+)+$', 'a' * 99 + 'b')\\nprint('here', flush=True)\\nhang()"
exec(compile(source, "<distribute r>", "exec"))
"""
Hang = Callable[[bool], subprocess.Popen[str]]


@pytest.fixture
def hang(tmp_path: Path) -> Iterator[Hang]:
    begun = []

    def begin(answers: bool) -> subprocess.Popen[str]:
        text = HANGS.format(answers=answers, folder=str(tmp_path))
        one = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        begun.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == "here\n"
        return one

    yield begin
    for one in begun:
        one.kill()
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "run_py_spy", lambda pids, stopped: {})


def hanging(pid: int, folder: Path) -> TaskStack:
    return TaskStack.of("worker:3", pid, read_stacks({3: pid}, folder, os.getpid())["3"])


@pytest.mark.processes
def test_code_that_never_returns_is_read_without_its_help(
    hang: Hang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_py_spy(monkeypatch)
    pid = hang(True).pid
    for _ in range(2):  # the file of the first dump does not stay in the way
        until(lambda: hanging(pid, tmp_path).main.called is not None)
        one = hanging(pid, tmp_path)
        assert (one.by, len(one.threads)) == ("faulthandler", 2)
        assert [frame.function for frame in one.main.users] == ["<module>", "hang"]
        assert one.main.called is not None
        assert one.main.called.function == "match"
    assert (tmp_path / "stacks-3").stat().st_mode & 0o777 == 0o600
    os.kill(pid, signal.SIGSTOP)
    until(lambda: read_stacks({3: pid}, tmp_path, os.getpid())["3"]["state"] == "stopped")
    assert read_stacks({3: pid}, tmp_path, os.getpid())["3"]["threads"]["threads"] == []
    assert read_stacks({3: pid}, tmp_path, os.getppid()) == {}  # no child of that process: another one's pid


@pytest.mark.processes
def test_a_process_without_the_handler_is_not_signalled(
    hang: Hang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_py_spy(monkeypatch)
    one = hang(False)
    assert not catches(one.pid)
    assert read_stacks({3: one.pid}, tmp_path, os.getpid())["3"]["by"] == ""
    assert one.poll() is None


@pytest.mark.processes
@pytest.mark.skipif(reading.find_py_spy() is None, reason="py-spy is not installed")
def test_py_spy_reads_a_stopped_process(hang: Hang, tmp_path: Path) -> None:
    pid = hang(False).pid
    if hanging(pid, tmp_path).by == "":
        pytest.skip("this machine does not let py-spy read other processes")
    until(lambda: hanging(pid, tmp_path).main.called is not None)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: hanging(pid, tmp_path).is_stopped)
    found = hanging(pid, tmp_path)
    assert (found.by, found.main.users[-1].function) == ("py-spy", "hang")


def test_a_dump_that_is_being_written_is_not_whole() -> None:
    assert not is_whole("")
    assert not is_whole('Thread 0x7f (most recent call first):\n  File "a.py", line 8 in _bootstrap\n')
    assert not is_whole('Thread 0x7f (most recent call first):\n  File "a.py", line 8 in <mod')


# With engines.

WAITS = """
import os, time
def wait():
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
if nb.task.index == 1:
    wait()
nb.collective.barrier()
"""


@pytest.mark.engines
def test_a_rank_that_keeps_the_others_waiting_is_found(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = tmp_path / "gate"
    run = launch(WAITS.format(gate=str(gate)), cluster=cluster, background=True, live=False)
    try:
        until(lambda: "barrier" in (text := cluster.stacks("worker:*").summary) and ", in wait" in text)
        found = cluster.stacks("worker:*")
        first, second = found.summary.splitlines()
        assert first.startswith("worker:1 is at line ")
        assert " of the body, in wait: " in first
        assert second.startswith("worker:0 and worker:2 are at line 8 of the body: nb.collective.barrier()")
        assert len(cluster.stacks().tasks) == 4
        set_current(cluster)
        DistributedMagics().cluster("stacks worker:1")
        assert capsys.readouterr().out.startswith("worker:1 is at line")
        assert main(["cluster", "stacks", "worker:1", "--cluster", cluster.id, "--json", "--all"]) == 0
        (task,) = json.loads(capsys.readouterr().out)["tasks"]
        lines = [frame["code"] for frame in task["threads"][0]["frames"] if frame["origin"] == "body"]
        assert lines[0] == "wait()"
        for wrong, said in (("worker:9", "no task 'worker:9'"), ("job:*", "no task 'job:*'")):
            with pytest.raises(InvalidArgumentError, match=said.replace("*", r"\*")):
                cluster.stacks(wrong)
    finally:
        gate.touch()
        run.wait()
    assert "ps:0 is not in code of yours" in cluster.stacks("ps:0").summary
