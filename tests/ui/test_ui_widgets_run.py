import asyncio
import json
import math
import struct

import pytest
from ui_runs import SentView, train

from nbdist.metrics.store import RunStore
from nbdist.ui.widgets.controls import KINDS
from nbdist.ui.widgets.frames import RECORD


@pytest.fixture
def view(store: RunStore) -> SentView:
    return SentView(store, ["/job:worker/task:0"], title="a run", total_steps=100)


def sequence_of(buffer: bytes) -> int:
    assert (len(buffer) - 4) % RECORD.itemsize == 0
    return int(struct.unpack_from("<I", buffer)[0])


def test_nothing_is_sent_before_a_page_is_ready(view: SentView, store: RunStore) -> None:
    train(store, 0, 0, 10)
    view.tick(0.0)
    assert view.sent == []


def test_the_first_frame_is_a_snapshot(view: SentView, store: RunStore) -> None:
    train(store, 0, 0, 10)
    view.page_says("ready")
    view.tick(0.0)
    [(content, buffer)] = view.sent
    assert content["snapshot"]
    assert content["head"]["title"] == "a run"
    assert content["head"]["charts"] == [{"title": "loss", "train": 0, "validation": None}]
    assert sequence_of(buffer) == 1


def test_later_frames_hold_what_is_new(view: SentView, store: RunStore) -> None:
    train(store, 0, 0, 10)
    view.page_says("ready")
    view.tick(0.0)
    view.page_says("ack", 1)
    view.tick(0.1)
    assert len(view.sent) == 1  # nothing is new, so nothing is sent
    train(store, 0, 10, 5)
    view.tick(0.15)  # before the next trend is due
    content, buffer = view.sent[-1]
    assert content == {"kind": "frame", "snapshot": False, "replaced": []}
    assert len(buffer) == 4 + 5 * 12


def test_at_most_two_frames_are_not_acknowledged(view: SentView, store: RunStore) -> None:
    view.page_says("ready")
    for tick in range(100):
        train(store, 0, tick, 1)
        view.tick(tick / 10)
    assert len(view.sent) == 2


def test_nothing_while_hidden_and_a_snapshot_after(view: SentView, store: RunStore) -> None:
    view.page_says("ready")
    view.tick(0.0)
    view.page_says("visible", 1, visible=False)
    for tick in range(1, 20):
        train(store, 0, tick, 1)
        view.tick(tick / 10)
    assert len(view.sent) == 1
    view.page_says("visible", 1, visible=True)
    view.tick(3.0)
    assert len(view.sent) == 2
    assert len(view.sent[-1][1]) == 4 + 3 * 19 * 12  # the points, their trend, and the clock


def test_a_lost_frame_causes_an_immediate_snapshot(view: SentView, store: RunStore) -> None:
    view.page_says("ready")
    for tick in range(3):
        train(store, 0, tick, 1)
        view.tick(tick / 10)
    view.page_says("snapshot", 0)
    view.tick(1.0)
    assert view.sent[-1][0]["snapshot"]


def test_a_request_without_a_loss_is_not_answered(view: SentView, store: RunStore) -> None:
    view.page_says("ready")
    train(store, 0, 0, 1)
    view.tick(0.0)
    view.page_says("snapshot", 1)  # it has been quiet, but the page has everything
    view.tick(1.0)
    assert len(view.sent) == 1


def test_the_last_frame_is_complete_and_waits_for_room(view: SentView, store: RunStore) -> None:
    view.page_says("ready")
    for tick in range(5):
        train(store, 0, tick, 1)
        view.tick(tick / 10)
    view.finish("finished")
    assert len(view.sent) == 2  # both are still on their way
    view.page_says("ack", 2)
    content, buffer = view.sent[-1]
    assert content["snapshot"]
    assert content["progress"]["state"] == "finished"
    assert len(buffer) == 4 + 3 * 5 * 12


def test_a_page_that_opens_after_the_end_gets_a_snapshot(view: SentView, store: RunStore) -> None:
    train(store, 0, 0, 50)
    view.finish("finished")
    assert view.sent == []
    view.page_says("ready")
    assert view.sent[0][0]["snapshot"]


def test_two_tabs_both_receive_frames(view: SentView, store: RunStore) -> None:
    view.page_says("ready", view="one")
    view.tick(0.0)
    view.page_says("ack", 1, view="one")
    view.page_says("ready", view="two")
    view.tick(0.1)
    assert [content["snapshot"] for content, _ in view.sent] == [True, True]
    view.page_says("closed", view="one")
    view.page_says("ack", 2, view="two")
    train(store, 0, 0, 1)
    view.tick(0.2)
    assert len(view.sent) == 3


def test_a_tab_that_stopped_responding_costs_two_frames(view: SentView, store: RunStore) -> None:
    view.page_says("ready", view="closed without a word")
    for tick in range(3000):  # five minutes
        train(store, 0, tick, 1)
        view.tick(tick / 10)
    assert len(view.sent) == 2
    view.page_says("ready", view="back")
    view.tick(301.0)
    content, buffer = view.sent[-1]
    assert content["snapshot"]
    assert len(buffer) < 4 + 3000 * 12


def test_progress_and_output_are_sent_with_the_points(view: SentView) -> None:
    view.page_says("ready")
    view.tick(0.0)
    view.page_says("ack", 1)
    view.progress(
        {"state": "running", "step": 3, "seconds_left": float("nan"), "per_replica": {0: {"step": 3}}}
    )
    view.output("/job:worker/task:0", "epoch 1\nepo")
    view.tick(0.1)
    content, _ = view.sent[-1]
    json.dumps(content, allow_nan=False)
    assert content["progress"]["per_replica"] == {"0": {"step": 3}}
    [printed] = content["output"]
    assert (printed["text"], printed["open"]) == ("epoch 1\n", "epo")


def test_commands_of_the_page_reach_the_callback(view: SentView) -> None:
    wanted: list[tuple[str, float | None]] = []
    view.on_control(lambda kind, value: wanted.append((kind, value)))
    for kind in KINDS:
        view.page_says(kind, learning_rate=0.25)
    assert wanted == [(kind, 0.25 if kind == "set" else None) for kind in KINDS]


def test_the_page_has_the_controls_with_a_callback(view: SentView) -> None:
    view.page_says("ready")
    view.tick(0.0)
    assert view.sent[-1][0]["head"]["controls"] == []
    view.page_says("ack", 1)
    view.on_control(lambda *_: None, ["stop"])
    view.tick(1.0)
    assert view.sent[-1][0]["head"]["controls"] == ["stop"]


@pytest.mark.parametrize("value", [None, "0.1", -1, math.nan, math.inf, True, [1]])
def test_an_invalid_rate_is_not_passed_on_and_its_error_is_shown(view: SentView, value: object) -> None:
    view.on_control(lambda *_: pytest.fail("it was called"))
    view.page_says("set", learning_rate=value)
    assert view.status["problem"]["text"].startswith("set: a learning rate is a number of at least 0, not")


def test_an_error_of_a_command_is_shown_until_the_next_command(view: SentView) -> None:
    def fails(kind: str, _: float | None) -> None:
        if kind == "pause":
            raise RuntimeError("<b>no\nloop</b>")

    view.on_control(fails)
    view.page_says("pause")
    view.page_says("pause")
    problem = {"kind": "pause", "number": 2, "text": "pause: RuntimeError: <b>no loop</b>"}
    assert view.status["problem"] == problem
    view.page_says("stop")
    assert view.status["problem"] is None


def test_front_ends_without_widgets_get_a_text(store: RunStore) -> None:
    again = "to reconnect, run nb.attach('r-7')"
    view = SentView(store, [], title="digits", run_id="r-7", again=again)
    data = view._repr_mimebundle_()[0]
    assert data["text/plain"] == f"Live view of digits (r-7); {again}"
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["application/vnd.nbdist.run+json"] == {"version": 1, "live": "r-7"}
    unnamed = SentView(store, [], title="digits")._repr_mimebundle_()[0]
    assert unnamed["text/plain"] == "Live view of digits"
    assert "application/vnd.nbdist.run+json" not in unnamed


def test_the_widgets_state_holds_no_data(view: SentView, store: RunStore) -> None:
    before = len(json.dumps(view.get_state(), default=str))
    train(store, 0, 0, 5000)
    view.output("/job:worker/task:0", "x\n" * 10_000)
    view.page_says("ready")
    view.tick(0.0)
    state = view.get_state()
    assert len(json.dumps(state, default=str)) == before
    assert "a run" not in json.dumps({k: v for k, v in state.items() if k != "_esm"}, default=str)


def test_closing_also_closes_the_layout(view: SentView) -> None:
    layout = view.layout
    assert view.comm is not None
    view.close()
    assert view.comm is None
    assert layout.comm is None


def test_a_page_without_another_output_keeps_the_widget(view: SentView, store: RunStore) -> None:
    view.page_says("ready", view="ran the cell")
    view.page_says("ready", view="loaded later")
    train(store, 0, 0, 10)
    view.finish("finished")
    view.close_unseen()
    view.page_says("closed", view="ran the cell")  # its output was replaced by the picture
    assert view.comm is not None
    view.page_says("snapshot", view="loaded later")
    assert view.sent[-1][0]["progress"]["state"] == "finished"
    view.page_says("closed", view="loaded later")
    assert view.comm is None


def test_a_page_that_still_loads_the_widget_finds_it(view: SentView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbdist.ui.widgets.base.LOADED_AFTER", 0.0)

    async def short_cell() -> None:
        view.finish("finished")
        view.close_unseen()
        assert view.comm is not None
        while view.comm is not None:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(short_cell(), 5))
