import asyncio
import threading
from typing import Any

import pytest
from sweep_shown import BEGAN, ShownSweep
from waiting import PATIENCE

from nbdist.sweep.events import Asked, Started
from nbdist.ui.api import dress
from nbdist.ui.display.sweep import SweepDisplay, follow_sweep_in_background
from nbdist.ui.frozen.sweep import SWEEP

FIRST = {"lr": 0.01, "hidden": 64, "opt": "sgd"}
Said = list[tuple[str, Any, Any]]


@pytest.fixture(autouse=True)
def bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is the test, so its JavaScript need not have been built, and pictures have few dots."""
    monkeypatch.setattr("nbdist.ui.frozen.sweep_figure.SHARPEST", 40)
    monkeypatch.setattr("nbdist.ui.widgets.base.bundled", lambda name: f"/* {name} */")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    said: Said = []
    for name, word in (("display", "display"), ("update_display", "update")):

        def tell(shown: Any, word: str = word, **more: Any) -> None:
            said.append((word, shown, more.get("display_id")))

        monkeypatch.setattr(f"IPython.display.{name}", tell)
    return said


@pytest.fixture
def sweep() -> ShownSweep:
    sweep = ShownSweep().run(0, FIRST, [0.5, 0.953])
    return sweep.tell(Asked(BEGAN + 20, 1, FIRST, 1), Started(BEGAN + 20, 1, 1, (1,)))


def test_a_terminal_gets_a_line_every_two_seconds_and_the_table_at_the_end(
    sweep: ShownSweep, said: Said
) -> None:
    lines: list[str] = []
    shown = SweepDisplay(sweep, report=lines.append)
    shown.show()
    for tick in range(50):
        shown.tick(tick / 10)
    line = "mnist: 1 of 24 trials, 1 running, best val_accuracy 0.953 (trial 0: lr=0.01 hidden=64 opt=sgd)"
    assert lines == [line] * 3
    sweep.trouble = "no engine is alive: %cluster restart"
    shown.tick(10.0)
    assert lines[-1] == f"{line}, no engine is alive: %cluster restart"
    sweep.end("stopped")
    shown.finish()
    shown.finish()
    assert len(lines) == 5
    assert lines[-1].startswith("mnist  ■ stopped · 1 of 24 trials")
    assert said == []


def test_the_picture_replaces_the_grid(sweep: ShownSweep, said: Said) -> None:
    shown = SweepDisplay(sweep, where="page")
    shown.show()
    view = shown.view
    assert view is not None
    shown.tick(0.0)
    sweep.end()
    shown.finish()
    (first, widget, there), (second, frozen, here) = said
    assert (first, second, there == here, widget is view) == ("display", "update", True, True)
    assert frozen[SWEEP]["status"]["state"] == "finished"
    assert "0.953" in frozen["text/html"]
    assert (view.comm, shown.view) == (None, None)
    shown.finish()
    assert len(said) == 2


def test_nbconvert_gets_words_and_then_the_picture(sweep: ShownSweep, said: Said) -> None:
    shown = SweepDisplay(sweep, where="batch")
    shown.show()
    shown.tick(0.0)
    sweep.end()
    shown.finish()
    (_, words, there), (_, frozen, here) = said
    assert words == {"text/plain": "mnist: running"}
    assert there == here
    assert SWEEP in frozen


def test_a_sweep_that_is_over_is_shown_again_with_everything(sweep: ShownSweep, said: Said) -> None:
    sweep.end()
    shown = SweepDisplay(sweep, where="page")
    shown.show_again()
    shown.finish()  # as a waiting thread may do
    [(_, view, _)] = said
    assert view.finished
    SweepDisplay(sweep, where="batch").show_again()
    assert SWEEP in said[-1][1]
    lines: list[str] = []
    SweepDisplay(sweep, where="terminal", report=lines.append).show_again()
    assert lines[0].startswith("mnist  ✓ finished")


def test_what_is_shown_again_waits_for_a_slow_page(
    sweep: ShownSweep, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbdist.ui.widgets.base.LOADED_AFTER", 0.0)
    sweep.end()

    async def cell() -> None:
        SweepDisplay(sweep, where="page").show_again()
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(cell())
    [(_, view, _)] = said
    assert view.comm is not None
    for kind in ("ready", "closed"):
        view._handle_custom_msg({"kind": kind, "view": "tab", "sequence": 0, "visible": False}, [])
    assert view.comm is None


def test_a_sweep_that_continues_is_shown_twice_as_one(sweep: ShownSweep, said: Said) -> None:
    shown = SweepDisplay(sweep, where="page")
    shown.show()
    shown.show_again()
    assert said[0] == said[1]


def test_it_is_followed_in_the_background_until_it_is_over(sweep: ShownSweep, said: Said) -> None:
    async def notebook() -> None:
        shown = SweepDisplay(sweep, where="page")
        shown.show()
        assert follow_sweep_in_background(sweep, shown)
        assert follow_sweep_in_background(sweep, shown)  # once is enough
        following = [task for task in asyncio.all_tasks() if task.get_name().startswith("nbdist shows")]
        assert len(following) == 1
        await asyncio.sleep(0)
        assert not shown.frozen
        sweep.end()
        while not shown.frozen:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(notebook(), 20))
    assert [word for word, *_ in said] == ["display", "update"]


def test_a_grid_in_which_a_user_types_is_not_replaced(sweep: ShownSweep, said: Said) -> None:
    async def notebook() -> None:
        shown = SweepDisplay(sweep, where="page")
        shown.show()
        assert shown.view is not None
        view = shown.view

        def says(focused: bool) -> None:
            message = {"kind": "focus", "view": "tab", "sequence": 0, "visible": True, "focused": focused}
            view._handle_custom_msg(message, [])

        says(True)
        assert follow_sweep_in_background(sweep, shown)
        sweep.end()
        while not view.finished:  # the page has the final state
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not shown.frozen
        says(False)
        while not shown.frozen:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(notebook(), 20))
    assert [word for word, *_ in said] == ["display", "update"]


def test_it_gets_a_display_if_it_has_none(
    sweep: ShownSweep, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbdist.ui.display.sweep.place", lambda: "page")

    async def notebook() -> None:
        sweep.end()
        assert follow_sweep_in_background(sweep)
        while len(said) < 2:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(notebook(), 20))
    assert SWEEP in said[1][1]


def test_without_a_loop_it_is_not_followed(sweep: ShownSweep, said: Said) -> None:
    assert not follow_sweep_in_background(sweep)
    assert said == []


def test_an_interrupt_of_another_cell_leaves_it_alone(
    sweep: ShownSweep, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = SweepDisplay(sweep, where="page")
    shown.show()
    ticks: list[float] = []

    def tick(now: float | None = None) -> None:
        ticks.append(0.0)
        if len(ticks) == 1:
            raise KeyboardInterrupt
        sweep.end()

    monkeypatch.setattr(shown, "tick", tick)

    async def notebook() -> None:
        follow_sweep_in_background(sweep, shown)
        while not shown.frozen:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(notebook(), 20))
    assert len(ticks) == 2


@pytest.mark.parametrize(("seen", "begun"), [(None, True), (False, True), (True, True), (True, False)])
def test_the_grid_moves_while_a_cell_has_the_thread(
    sweep: ShownSweep, said: Said, seen: bool | None, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("widgets.frames.UNACKNOWLEDGED", "widgets.frames.NO_PAGE", "display.sweep.LATE"):
        monkeypatch.setattr(f"nbdist.ui.{name}", 0.05)
    monkeypatch.setattr("nbdist.ui.frozen.sweep.picture", lambda ledger, limit: None)

    async def notebook() -> None:
        shown = SweepDisplay(sweep, where="page")
        shown.show()
        [(_, view, _)] = said
        frames: list[dict[str, Any]] = []
        drawn = threading.Event()

        def send(content: dict[str, Any], buffers: list[Any] | None = None) -> None:
            frames.append(content)
            drawn.set()

        view.send = send
        if seen is not None:  # a page that is ready does not know yet that it is seen
            view._handle_custom_msg({"kind": "ready", "view": "tab", "sequence": 0, "visible": seen}, [])
        follow_sweep_in_background(sweep, shown)
        if begun:
            await asyncio.sleep(0)  # it ticks once
            assert len(frames) == int(seen is True)
        for number in (2, 3):  # and then a cell computes
            drawn.clear()
            with sweep.lock:
                sweep.tell(Asked(BEGAN + 20 + number, number, FIRST, number))
            assert drawn.wait(60)
        assert [frame["sequence"] for frame in frames] == list(range(1, len(frames) + 1))
        sweep.end()
        while not shown.frozen:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(notebook(), 100))
    assert moving() == 0


def moving() -> int:
    """Return how many threads move grids, once those that are to end have had a moment."""
    threads = [one for one in threading.enumerate() if one.name.startswith("nbdist moves")]
    for thread in threads:
        thread.join(PATIENCE)
    return sum(thread.is_alive() for thread in threads)


def test_a_command_on_the_grid_of_a_finished_sweep_continues_it(sweep: ShownSweep, said: Said) -> None:
    async def notebook() -> None:
        sweep.end()
        shown = SweepDisplay(sweep, where="page")
        shown.show_again()
        [(_, view, _)] = said
        view._handle_custom_msg({"kind": "ready", "view": "tab", "sequence": 0, "visible": True}, [])
        sweep.state, sweep.over = "running", False
        view._handle_custom_msg({"kind": "add", "trials": 2, "request": 1, "view": "tab"}, [])
        assert shown.view is view
        await asyncio.sleep(0)
        sweep.end()
        while not shown.frozen:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(notebook(), 20))
    assert [word for word, *_ in said] == ["display", "update"]  # below the cell that shows it


def test_all_cells_show_one_grid_of_a_finished_sweep(sweep: ShownSweep, said: Said) -> None:
    """A command in one of them would otherwise leave the others, and the picture, as they were."""
    shown = SweepDisplay(sweep, where="page")
    shown.show()
    sweep.end()
    shown.finish()
    shown.show_again()
    shown.show_again()
    (_, first, cell), (_, picture, _), (_, grid, below), (_, same, again) = said
    assert SWEEP in picture
    assert (grid is same, grid is first, below == again, below == cell) == (True, False, True, False)
    del said[:]
    sweep.state, sweep.over = "running", False  # by a command
    shown.tick(1.0)
    shown.tick(2.0)
    assert said == [("update", grid, cell)]
    sweep.end()
    shown.finish()
    assert [(word, output) for word, _, output in said[1:]] == [("update", cell), ("update", below)]
    assert all(SWEEP in bundle for _, bundle, _ in said[1:])
    shown.show_again()
    assert said[-1][1] is not grid  # which is closed


def test_show_uses_the_display_that_the_sweep_has(
    sweep: ShownSweep, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbdist.ui.display.sweep.place", lambda: "page")
    monkeypatch.setattr(sweep, "shown_by", print, raising=False)
    dress(sweep, live=True)  # type: ignore[arg-type]  # its face is the same
    dress(sweep, live=True)  # type: ignore[arg-type]  # as nb.attach does with a sweep of this kernel
    assert said[0] == said[1]
    sweep.end()
    for _ in range(2):
        sweep.shown_by(sweep)  # type: ignore[attr-defined]
    assert SWEEP in said[2][1]
    assert said[3] == said[4]
