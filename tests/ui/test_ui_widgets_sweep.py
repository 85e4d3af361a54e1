import json
import math
from random import Random
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_shown import BEGAN, GridModel, GridPage, SentGrid, ShownSweep, random_event

from nbdist.errors import FailedPreconditionError
from nbdist.sweep.events import Asked
from nbdist.sweep.parse import read_space
from nbdist.ui.widgets.sweep import LONGEST_OUTPUT
from nbdist.ui.widgets.sweep_feed import SweepFeed

FIRST = {"lr": 0.01, "hidden": 64, "opt": "sgd"}


@pytest.fixture(scope="module", autouse=True)
def bundle() -> Any:
    """The page is the test, so its JavaScript need not have been built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbdist.ui.widgets.base.bundled", lambda name: f"/* {name} */")
        yield


@pytest.fixture
def sweep() -> ShownSweep:
    return ShownSweep().run(0, FIRST, [0.5, 0.75])


@pytest.fixture
def view(sweep: ShownSweep) -> SentGrid:
    return SentGrid(sweep)


def test_it_waits_for_a_page_and_then_sends_a_snapshot(view: SentGrid) -> None:
    view.tick(0.0)
    assert view.sent == []
    view.page_says("ready")
    view.tick(0.1)
    [(content, points)] = view.sent
    assert (content["kind"], content["sequence"], content["snapshot"]) == ("sweep", 1, True)
    assert content["trials"]["number"] == [0]
    assert len(points) == 16


def test_without_changes_nothing_is_sent(view: SentGrid, sweep: ShownSweep) -> None:
    page = GridPage(view)
    view.tick(0.0)
    page.take_all()
    view.tick(0.1)
    assert view.sent == []
    sweep.run(1, FIRST, [0.5])
    view.tick(0.2)
    assert [content["sequence"] for content, _ in view.sent] == [2]


def test_at_most_ten_frames_a_second_and_two_in_flight(view: SentGrid, sweep: ShownSweep) -> None:
    page = GridPage(view)
    view.tick(0.0)
    page.take_all()
    for tick in range(1, 101):
        sweep.run(tick, FIRST, [0.5])
        view.tick(tick / 100)
        page.take_all()
    assert 8 <= page.sequence <= 11
    for tick in range(101, 400):
        sweep.run(tick, FIRST, [0.5])
        view.tick(tick / 10)
    assert len(view.sent) == 2


def test_the_last_frame_is_complete(view: SentGrid, sweep: ShownSweep) -> None:
    page = GridPage(view)
    view.tick(0.0)
    page.take_all()
    sweep.end()
    view.finish()
    [(content, _)] = view.sent
    assert content["snapshot"]
    assert content["status"]["state"] == "finished"
    view.page_says("ready", view="another tab")
    assert view.sent[-1][0]["snapshot"]


@pytest.mark.parametrize(
    ("sent", "executed"),
    [
        ({"kind": "pause"}, ("pause", {})),
        ({"kind": "resume"}, ("resume", {})),
        ({"kind": "close"}, ("close", {})),
        ({"kind": "stop", "number": 3}, ("stop", {"number": 3})),
        ({"kind": "retry", "number": 3}, ("retry", {"number": 3})),
        ({"kind": "clone", "number": 3, "changes": {"lr": 0.1}},
         ("clone", {"number": 3, "changes": {"lr": 0.1}})),
        ({"kind": "promote", "number": 3, "epochs": 9, "per_trial": None, "changes": {}},
         ("promote", {"number": 3, "epochs": 9, "per_trial": None, "changes": {}})),
        ({"kind": "add", "trials": 8}, ("add", {"trials": 8})),
        ({"kind": "edit", "space": "lr=0.1", "outside": "stop"},
         ("edit", {"space": read_space("lr=0.1"), "changes": {}, "outside": "stop"})),
        ({"kind": "cell", "number": 3}, ("cell", {"number": 3})),
        ({"kind": "output", "number": 3}, ("output", {"number": 3})),
    ],
)  # fmt: skip
def test_each_command_is_executed_and_answered(
    view: SentGrid, sweep: ShownSweep, sent: dict[str, Any], executed: tuple[str, dict[str, Any]]
) -> None:
    view.page_says(**sent, request=41)
    assert sweep.executed == [executed]
    [answer] = view.answers
    assert (answer["kind"], answer["request"], answer["ok"]) == ("answer", 41, True)
    assert answer["message"]
    more = {"clone": {"number": 99}, "cell": {"text": "lr = 0.01\n"}, "output": {"text": "epoch 1\n"}}
    found = {key: answer[key] for key in ("number", "text") if key in answer}
    assert found == more.get(sent["kind"], {})
    sweep.refuses = FailedPreconditionError("the sweep is over; start another, its log keeps this one")
    view.page_says(**sent, request=42)
    assert view.answers[-1] == {
        "kind": "answer", "request": 42, "ok": False,
        "message": "the sweep is over; start another, its log keeps this one",
    }  # fmt: skip
    sweep.refuses = RuntimeError("<b>no\nloop</b>")
    view.page_says(**sent, request=43)
    assert view.answers[-1]["message"] == "RuntimeError: <b>no loop</b>"


def test_a_command_from_the_page_continues_a_finished_sweep(view: SentGrid, sweep: ShownSweep) -> None:
    page = GridPage(view)
    sweep.end()
    view.finish()
    page.take_all()
    sent: list[str] = []
    view.on_continued = lambda: sent.append("continued")
    view.page_says("cell", number=0, request=1)
    assert sent == []
    sweep.state, sweep.over = "running", False
    view.page_says("add", trials=2, request=2)
    assert sent == ["continued"]
    view.tick(1.0)
    page.take_all()
    assert page.model.status["state"] == "running"


@pytest.mark.parametrize(
    "sent",
    [
        {"kind": "stop"},
        {"kind": "stop", "number": "3"},
        {"kind": "stop", "number": 3.5},
        {"kind": "stop", "number": True},
        {"kind": "retry", "number": math.nan},
        {"kind": "add", "trials": math.inf},
        {"kind": "clone", "number": 1, "changes": [1]},
        {"kind": "promote", "number": 1, "epochs": "many"},
        {"kind": "edit", "space": "lr=1", "outside": "burn"},
    ],
)
def test_an_invalid_message_executes_nothing(view: SentGrid, sweep: ShownSweep, sent: dict[str, Any]) -> None:
    view.page_says(**sent, request=1)
    assert sweep.executed == []
    assert view.answers[0]["ok"] is False
    assert "Error" not in view.answers[0]["message"]


def test_an_unknown_message_is_not_answered(view: SentGrid) -> None:
    view.page_says("dance", request=1)
    assert view.answers == view.sent == []


def test_a_long_output_keeps_its_end(
    view: SentGrid, sweep: ShownSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "output", lambda number: "x" * LONGEST_OUTPUT + "end")
    view.page_says("output", number=0, request=1)
    assert view.answers[0]["text"].startswith("... 3 characters cut ...\nxxx")
    assert view.answers[0]["text"].endswith("end")


def test_front_ends_without_widgets_get_a_text(view: SentGrid) -> None:
    data = view._repr_mimebundle_()[0]
    assert data["text/plain"].startswith(
        "Grid of the sweep mnist (261120-2130-mnist); to reconnect, run nb.attach('261120-2130-mnist')"
    )
    assert data["application/vnd.nbdist.sweep+json"] == {"version": 1, "live": "261120-2130-mnist"}


def test_the_widgets_state_holds_no_data(view: SentGrid, sweep: ShownSweep) -> None:
    before = json.dumps(view.get_state(), default=str)
    for number in range(1, 100):
        sweep.run(number, FIRST, [0.5] * 10)
    view.page_says("ready")
    view.tick(0.0)
    assert json.dumps(view.get_state(), default=str) == before


def test_it_closes_when_no_page_holds_it(view: SentGrid, sweep: ShownSweep) -> None:
    view.page_says("ready", view="ran the cell")
    sweep.end()
    view.finish()
    view.close_unseen()
    assert view.comm is not None
    view.page_says("closed", view="ran the cell")
    assert view.comm is None


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32), st.floats(0, 0.4))
def test_a_page_with_lost_frames_ends_with_the_whole_state(seed: int, lost: float) -> None:
    dice = Random(seed)
    sweep = ShownSweep()
    view = SentGrid(sweep)
    page = GridPage(view, lambda: not view.finished and dice.random() < lost)
    for tick in range(60):
        sweep.tell(*random_event(sweep, dice, BEGAN + tick / 10))
        view.wall = BEGAN + tick / 10
        view.tick(tick / 10)
        page.take_all()
        if tick % 20 == 19:  # it has been quiet for long
            page.ask()
    sweep.tell(Asked(BEGAN + 6, sweep.ledger.next_number, FIRST, 1)).end("stopped")
    view.finish()
    page.take_all()
    fresh = GridModel()
    fresh.apply(*SweepFeed(sweep).everything(BEGAN + 7))
    assert page.model.seen() == fresh.seen()
    assert page.model.status == fresh.status


@settings(max_examples=examples(25))
@given(st.integers(0, 2**32))
def test_a_page_without_further_losses_has_the_whole_state_before_the_end(seed: int) -> None:
    dice = Random(seed)
    sweep = ShownSweep()
    view = SentGrid(sweep)
    calm = False
    page = GridPage(view, lambda: not calm and dice.random() < 0.3)
    for tick in range(60):
        calm = tick > 30
        sweep.tell(*random_event(sweep, dice, BEGAN + tick / 10))
        view.tick(tick / 10)
        page.take_all()
        if tick % 20 == 19:
            page.ask()
    view.tick(6.0)
    page.take_all()
    fresh = GridModel()
    fresh.apply(*SweepFeed(sweep).everything(BEGAN + 6))
    assert page.model.seen() == fresh.seen()
