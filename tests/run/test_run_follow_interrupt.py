"""An interrupt stops a run, unless the process is ending: then the run continues without it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recording_view import RecordingView
from waiting import PATIENCE, limit, until

from nbdist import interrupts
from nbdist.metrics.run_folder import RunFile, read_run, run_folder, write_run
from nbdist.run import follow
from nbdist.run.follow import RESTART_SECONDS
from nbdist.run.membership import MembershipRules
from nbdist.run.options import Options
from nbdist.run.remote import EndedTasks
from nbdist.run.run import Run
from nbdist.runtime.task import TaskInfo
from nbdist.ui import api

WORKER = TaskInfo("worker", 0, 0, "", 0, "", "", 0)


class Body:
    """A body that runs until it is ended, and calls ``then`` at each poll."""

    def __init__(self) -> None:
        self.then: list[Callable[[], object]] = []
        self.ended = False

    def ready_ranks(self) -> list[int]:
        if self.then:
            self.then.pop(0)()
        return [0] if self.ended else []

    def outcome(self, rank: int) -> Any:
        return {"rank": 0}

    def end(self) -> None:
        self.ended = True

    def interrupt(self) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def body() -> Body:
    return Body()


@pytest.fixture
def run(own_home: Path, body: Body) -> Run:
    folder = run_folder("interrupted")
    folder.mkdir(mode=0o700, exist_ok=True)
    tasks, record = EndedTasks([WORKER]), RunFile("interrupted", status="running")
    write_run(record)
    return Run(tasks, record, folder, [WORKER], MembershipRules.of(Options(), 1, 0), body)


def fail(*run: Run) -> None:
    _ = 1 / 0


def asked_to_stop(run: Run) -> bool:
    return run._followed.interrupted


def test_an_interrupt_stops_after_a_moment(run: Run, body: Body) -> None:
    began = time.monotonic()
    asked: list[float] = []
    run.process_ends = lambda: False

    def look() -> None:
        if asked_to_stop(run):
            asked.append(time.monotonic() - began)
            body.end()
        else:
            body.then.append(look)

    body.then = [body.interrupt, look]
    run.wait()
    assert asked[0] >= RESTART_SECONDS
    assert run.status == "stopped"


def test_where_no_kernel_ends_an_interrupt_stops_at_once(run: Run, body: Body) -> None:
    body.then = [body.interrupt, body.end]
    run.wait()
    assert run.status == "stopped"


def signalled() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("at", "follows"),
    [
        *((at, False) for at in ("raise_if_ending", "is_due", "becomes_owner", "interrupt")),
        *((at, True) for at in ("is_due", "becomes_owner")),
    ],
)
def test_an_interrupt_at_any_point_of_a_wait_stops_the_run(
    run: Run, body: Body, at: str, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a wait's loop, in a poll, and while it is being stopped."""
    of = run._debounce if at in ("raise_if_ending", "is_due") else run
    once, original = [signalled], getattr(of, at)

    def interrupted(*given: Any) -> Any:
        if once:
            once.pop()()
        return original(*given)

    def end_when_asked() -> None:
        body.ended = asked_to_stop(run)
        body.then.append(end_when_asked)

    monkeypatch.setattr(of, at, interrupted)
    body.then = [body.interrupt] if at == "interrupt" else []
    body.then.append(end_when_asked)
    before = signal.getsignal(signal.SIGINT)
    asyncio.run(run.follow()) if follows else run.wait()
    assert signal.getsignal(signal.SIGINT) is before
    assert read_run("interrupted").status == run.status == "stopped"


@pytest.mark.parametrize("follows", [False, True])
def test_an_interrupt_that_comes_too_late_is_raised_when_all_is_done(
    run: Run, body: Body, follows: bool
) -> None:
    run.deliver = lambda run: signalled()
    body.end()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run.follow()) if follows else run.wait()
    assert read_run("interrupted").status == run.status == "finished"


def test_an_interrupt_whose_run_ends_before_it_counts_is_raised(run: Run, body: Body) -> None:
    run.process_ends = lambda: False
    body.then = [signalled, body.end]
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert (run.status, asked_to_stop(run)) == ("finished", False)


def test_three_interrupts_of_a_slow_end_cut_nothing_off(run: Run, body: Body) -> None:
    delivered: list[Run] = []

    def deliver(run: Run) -> None:
        signalled(), signalled(), signalled()
        delivered.append(run)

    run.deliver = deliver
    body.end()
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert read_run("interrupted").status == "finished"
    assert (run.wait(), delivered) == (run, [run])


@pytest.mark.parametrize("on_thread", [False, True])
@pytest.mark.parametrize("fails", ["deliver", "at_end"])
def test_an_end_whose_step_fails_is_shown_whole_and_raises_in_wait(
    own_home: Path, run: Run, body: Body, fails: str, on_thread: bool
) -> None:
    made = Run(
        EndedTasks([WORKER]), read_run("interrupted"), run.folder, [WORKER],
        MembershipRules.of(Options(), 1, 0), body, **({"at_end": fail} if fails == "at_end" else {}),
    )  # fmt: skip
    if fails == "deliver":
        made.deliver = fail
    view = RecordingView()
    made.show_in(view)
    body.end()
    if on_thread:
        made.follow_on_thread()
        until(lambda: made.settled)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            made.wait()
    assert view.ended == [made.status] == [read_run("interrupted").status] == ["finished"]
    assert made.notes == ["the end of run interrupted failed: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize("hangs", ["deliver", "_at_end"])
def test_an_end_that_hangs_can_be_interrupted_and_goes_on(
    own_home: Path, run: Run, body: Body, hangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "HELD_SECONDS", 0.0)
    begun: list[str] = []

    def hang(*run: Run) -> None:
        begun.append(hangs)
        signalled(), signalled(), signalled()
        pytest.fail("it hangs")

    made = Run(
        EndedTasks([WORKER]), read_run("interrupted"), run.folder, [WORKER],
        MembershipRules.of(Options(), 1, 0), body, **({"at_end": hang} if hangs == "_at_end" else {}),
    )  # fmt: skip
    if hangs == "deliver":
        made.deliver = hang
    body.end()
    with suppress(KeyboardInterrupt):
        made.wait()
    made.wait()
    assert (begun, made.settled) == ([hangs], True)
    assert read_run("interrupted").status == made.status


def test_a_users_own_handler_gets_the_interrupts_of_a_wait(run: Run, body: Body) -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: handled.append(number))
    try:
        body.then = [signalled, lambda: None, signalled, body.end]
        run.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (handled, run.status, asked_to_stop(run)) == ([signal.SIGINT] * 2, "finished", False)


def test_an_interrupt_within_a_poll_in_the_background_cancels_the_cell(run: Run, body: Body) -> None:
    """A cell that awaits has a handler that cancels it: `asyncio.run` has such a one, as ipykernel has."""

    async def cell() -> None:
        background = asyncio.ensure_future(api._follow(run))
        await asyncio.shield(background)

    body.then = [signalled, *[lambda: None] * 3, body.end]
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    assert not asked_to_stop(run)


def test_an_interrupt_while_results_are_fetched_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.status = "finished"
    monkeypatch.setattr(run, "_is_followed_elsewhere", lambda: True)
    monkeypatch.setattr(run, "_has_ended", SimpleNamespace(is_set=lambda: False, wait=lambda _: signalled()))
    with pytest.raises(KeyboardInterrupt, match=r"interrupted has ended \(finished\), and its results are"):
        run.wait()


def test_a_second_interrupt_does_not_wait(run: Run, body: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "RESTART_SECONDS", 10 * PATIENCE)
    run.process_ends = lambda: False
    body.then = [body.interrupt, body.interrupt, body.end]
    began = time.monotonic()
    run.wait()
    assert run.status == "stopped"
    assert time.monotonic() - began < limit(1)


def test_a_process_that_ends_leaves_its_run_alone(run: Run, body: Body) -> None:
    """As in Jupyter: first the signal, then the message to shut down."""
    ends: list[bool] = []
    run.process_ends = lambda: bool(ends)
    body.then = [body.interrupt, *[lambda: None] * 5, lambda: ends.append(True)]
    with pytest.raises(
        KeyboardInterrupt, match=r"the kernel ends; run interrupted continues: nb.attach\('interrupted'\)"
    ):
        run.wait()
    assert not asked_to_stop(run)
    assert run.status == "running"


def test_without_a_signal_it_leaves_too(run: Run, body: Body) -> None:
    run.process_ends = lambda: True
    with pytest.raises(KeyboardInterrupt, match="the kernel ends"):
        run.wait()
    assert not asked_to_stop(run)


async def followed(run: Run, body: Body, then: Callable[[asyncio.Task[Run]], object]) -> None:
    task = asyncio.ensure_future(run.follow())
    body.then = [lambda: then(task)]
    await task


def test_a_users_own_cancel_stops_the_run(run: Run, body: Body) -> None:
    run.process_ends = lambda: False

    def cancel(task: asyncio.Task[Run]) -> None:
        task.cancel()
        body.then = [lambda: body.then.append(end)]

    def end() -> None:
        (body.end if asked_to_stop(run) else lambda: body.then.append(end))()

    asyncio.run(followed(run, body, cancel))
    assert run.status == "stopped"


def test_a_task_that_is_cancelled_by_a_kernel_that_ends_stops_nothing(run: Run, body: Body) -> None:
    ends: list[bool] = []
    run.process_ends = lambda: bool(ends)

    def cancel(task: asyncio.Task[Run]) -> None:
        task.cancel()
        ends.append(True)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(followed(run, body, cancel))
    assert not asked_to_stop(run)


def test_a_loop_that_ends_stops_nothing(run: Run) -> None:
    async def ends() -> None:
        following = run.follow()
        following.send(None)
        following.close()  # GeneratorExit

    asyncio.run(ends())
    assert not asked_to_stop(run)
    assert run.status == "running"


def test_the_stop_button_acts_at_once(run: Run, body: Body) -> None:
    run.process_ends = lambda: False
    run.interrupt()
    assert asked_to_stop(run)
    body.end()
    run.wait()
