"""Actions of pages: one at a time for each item, and their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import until_async

from nbdist.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError
from nbdist.lab.actions import manager
from nbdist.lab.actions import manager as acting
from nbdist.lab.actions.manager import Actions


class FakeAction:
    """Reports a line, waits for the test, then returns or fails."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self.go = asyncio.Event()
        self.fails, self.undone = fails, False

    async def __call__(
        self, request: Mapping[str, Any], report: Callable[[str], object], seconds: float, folder: str | None
    ) -> None:
        self.requests.append(request)
        report("controller 0.4 s")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.undone = True
            raise
        if self.fails is not None:
            raise self.fails


def test_an_action_is_listed_until_it_ends() -> None:
    async def main() -> None:
        changed: list[int] = []
        action = FakeAction()
        actions = Actions(lambda: changed.append(1), perform=action)
        actions.begin("clusters", "a", "stop", {"do": "stop", "id": "a"})
        await until_async(lambda: actions.pending[0].lines)
        [now] = actions.pending
        assert (now.about, now.id, now.doing, now.error) == ("clusters", "a", "stop", None)
        with pytest.raises(FailedPreconditionError, match="a: it is being stopped; wait"):
            actions.begin("clusters", "a", "grow", {})
        actions.begin("runs", "a", "stop", {})  # another kind of item with the same id
        action.go.set()
        await until_async(lambda: not actions.pending)
        assert len(changed) == 6

    asyncio.run(main())


def test_an_error_is_listed_until_the_next_action() -> None:
    async def main() -> None:
        action = FakeAction(UnavailableError("it does not answer"))
        actions = Actions(lambda: None, perform=action)
        action.go.set()
        actions.begin("clusters", "a", "grow", {})
        await until_async(lambda: actions.pending[0].error)
        assert actions.pending[0].error == "it does not answer"
        action.go.clear()
        actions.begin("clusters", "a", "restart", {})
        assert actions.pending[0].error is None
        await actions.close()

    asyncio.run(main())


def test_a_start_can_be_cancelled_and_a_failure_dismissed() -> None:
    async def main() -> None:
        action = FakeAction()
        actions = Actions(lambda: None, perform=action)
        actions.begin("clusters", "a", "start", {}, {"workers": 1})
        await until_async(lambda: action.requests)
        actions.cancel("clusters", "a", {"do": "stop"})
        assert actions.pending[0].doing == "stop"
        await until_async(lambda: action.undone)
        action.go.set()
        await until_async(lambda: not actions.pending)
        assert action.requests[1:] == [{"do": "stop"}]  # the start may have been complete by then
        action.fails = FailedPreconditionError("no")
        action.go.set()
        actions.begin("clusters", "a", "start", {}, {"workers": 1})
        await until_async(lambda: actions.pending[0].error)
        actions.cancel("clusters", "a", {"do": "stop"})
        assert not actions.pending

    asyncio.run(main())


def test_only_the_last_failures_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "MAX_FAILED", 2)

    async def main() -> None:
        action = FakeAction(FailedPreconditionError("no"))
        action.go.set()
        actions = Actions(lambda: None, perform=action)
        for id in "abcd":
            actions.begin("clusters", id, "grow", {})
            await until_async(lambda: actions.pending[-1].error)
        assert [one.id for one in actions.pending] == ["c", "d"]

    asyncio.run(main())


def test_the_end_of_the_server_ends_its_actions() -> None:
    async def main() -> None:
        action = FakeAction()
        actions = Actions(lambda: None, perform=action)
        actions.begin("clusters", "a", "start", {}, {"workers": 1})
        await until_async(lambda: action.requests)
        await actions.close()
        assert action.undone

    asyncio.run(main())


# The process that performs an action, replaced by others.


def acting_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    script = tmp_path / "act.py"
    script.write_text(code)
    monkeypatch.setattr(manager, "COMMAND", (sys.executable, str(script)))


def perform(seconds: float = 60.0, lines: list[str] | None = None) -> None:
    report = lines.append if lines is not None else print
    asyncio.run(manager.perform({"do": "x", "id": "a"}, report, seconds))


def test_lines_and_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    acting_by(
        monkeypatch,
        tmp_path,
        "import json, sys\nasked = json.loads(sys.stdin.readline())\n"
        "print(json.dumps({'line': asked['do']}))\nprint(json.dumps({'done': True}))",
    )
    lines: list[str] = []
    perform(lines=lines)
    assert lines == ["x"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ('print(\'{"error": "it is full"}\')', "it is full"),
        ("import sys; sys.exit('boom')", r"its process ended \(exit code 1\): boom"),
        ("import os; os.kill(os.getpid(), 9)", r"its process ended \(exit code -9\): it printed nothing"),
        ("print('no json')", "its process ended"),
        ("print('x' * 1000000)", "its process ended"),
        ('import sys\nwhile True: sys.stdout.write(\'{"line": "more"}\\n\')', "its process ended"),
        ("import sys; sys.stderr.write('y' * 1000000); print('{\"error\": \"no\"}')", "no"),
    ],
)
def test_errors_of_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, message: str
) -> None:
    acting_by(monkeypatch, tmp_path, code)
    with pytest.raises(FailedPreconditionError, match=message):
        perform()


@pytest.mark.slow
def test_a_too_long_action_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(manager, "UNDO_SECONDS", 0.2)
    (tmp_path / "pid").touch()  # on a busy machine the process may not write its own
    acting_by(
        monkeypatch,
        tmp_path,
        "import os, signal, threading\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nthreading.Event().wait()",
    )
    with pytest.raises(DeadlineExceededError, match="took more than 2 s and was cancelled"):
        perform(2.0)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text() or 0) or 1 << 30)


def test_an_action_ends_when_the_server_ends(tmp_path: Path) -> None:
    """The system closes the server's end of the pipe, however it died."""
    code = (
        "import signal, sys, threading\nfrom nbdist.lab.actions import __main__ as act\n"
        "def wait(report, **rest):\n    report('waiting')\n    threading.Event().wait()\n"
        "act.ACTIONS['wait'] = wait\nsys.exit(act.main())"
    )
    reading, writing = os.pipe()
    import subprocess

    process = subprocess.Popen([sys.executable, "-c", code], stdin=reading, stdout=subprocess.PIPE)
    os.close(reading)
    assert process.stdout is not None
    try:
        os.write(writing, b'{"do": "wait"}\n')
        assert process.stdout.readline() == b'{"line": "waiting"}\n'
        os.close(writing)
        assert process.stdout.readline() == b'{"error": "it was cancelled"}\n'
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
