import gc
from collections.abc import Iterator
from typing import Any

import comm
import pytest
from sweep_shown import ShownSweep

from nbdist.ui.display.sweep import SweepDisplay
from nbdist.ui.widgets.sweep_commands import take_commands, target_of


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """What the kernel's side of the comms sends; no comm of another test's sweep is among the kernel's."""
    gc.collect()  # a sweep closes its comm at the manager that the process has then: before, and afterwards
    sent: list[tuple[str, Any]] = []
    manager = comm.base_comm.CommManager()

    class Channel(comm.DummyComm):
        def publish_msg(self, msg_type: str, data: Any = None, *_: Any, **__: Any) -> None:
            sent.append((msg_type, data))

    monkeypatch.setattr(comm, "create_comm", Channel)
    monkeypatch.setattr(comm, "get_comm_manager", lambda: manager)
    yield sent
    gc.collect()


def send(sweep: ShownSweep, content: Any) -> None:
    """Send a message of a page, as a kernel delivers it."""
    [channel] = comms(target_of(sweep.id))
    message: dict[str, Any] = {"content": {"comm_id": channel, "data": content}}
    comm.get_comm_manager().comm_msg(None, "", message)  # type: ignore[arg-type]  # no stream


def comms(target: str) -> list[str]:
    """The ids of the comms that the kernel has for a target."""
    return [key for key, one in comm.get_comm_manager().comms.items() if one.target_name == target]


def test_the_picture_of_a_sweep_takes_commands(sent: list[tuple[str, Any]]) -> None:
    sweep = ShownSweep()
    take_commands(sweep)
    take_commands(sweep)
    assert len(comms(target_of(sweep.id))) == 1
    assert sent == []  # a page that does not know the target would report a comm that is opened
    send(sweep, {"kind": "add", "trials": 2, "request": 7})
    assert sweep.executed == [("add", {"trials": 2})]
    [(kind, answer)] = sent
    assert (kind, answer["request"], answer["ok"]) == ("comm_msg", 7, True)


def test_what_is_no_command_is_refused(sent: list[tuple[str, Any]]) -> None:
    sweep = ShownSweep()
    take_commands(sweep)
    send(sweep, {"kind": "drop", "request": 8})
    send(sweep, ["add"])  # no page of nbdist sends that
    assert [(answer["request"], answer["ok"]) for _, answer in sent] == [(8, False)]
    assert sweep.executed == []


def test_pages_learn_that_nothing_holds_the_sweep_any_more(sent: list[tuple[str, Any]]) -> None:
    first, again = ShownSweep(), ShownSweep()  # such as of a sweep that is attached again
    take_commands(first)
    take_commands(again)
    del first
    gc.collect()
    assert [kind for kind, _ in sent] == ["comm_close"]
    send(again, {"kind": "add", "trials": 2, "request": 7})
    assert again.executed == [("add", {"trials": 2})]
    target = target_of(again.id)
    del again
    gc.collect()
    assert comms(target) == []


def test_a_command_to_the_picture_brings_the_grid_back(
    sent: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shows: list[Any] = []
    for name in ("display", "update_display"):
        monkeypatch.setattr(f"IPython.display.{name}", lambda shown, **_: shows.append(shown))
    monkeypatch.setattr("nbdist.ui.frozen.sweep.picture", lambda ledger, limit: None)
    sweep = ShownSweep()
    shown = SweepDisplay(sweep, where="page")
    shown.show()
    sweep.end()
    shown.finish()
    send(sweep, {"kind": "add", "trials": 2, "request": 7})
    sweep.state, sweep.over = "running", False
    shown.tick(1.0)
    grid, picture, again = shows
    assert again is shown.view is not None
    assert again is not grid  # which is closed
    assert "text/html" in picture
