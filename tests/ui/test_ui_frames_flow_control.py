from nbdist.ui.widgets.frames import FlowControl


def with_visible_view() -> FlowControl:
    flow = FlowControl()
    flow.set_visible("tab", True)
    return flow


def test_at_most_ten_frames_a_second_however_often_it_ticks() -> None:
    flow, sent = with_visible_view(), 0
    for tick in range(3000):  # 3 seconds, a thousand ticks a second
        if flow.may_send(tick / 1000):
            flow.acknowledged(flow.sent(tick / 1000), tick / 1000)
            sent += 1
    assert 29 <= sent <= 31


def test_ten_frames_a_second_with_uneven_ticks() -> None:
    flow, sent = with_visible_view(), 0
    for tick in range(100):
        now = tick / 10 + (0.03 if tick % 2 else 0)
        if flow.may_send(now):
            flow.acknowledged(flow.sent(now), now)
            sent += 1
    assert sent >= 95


def test_two_frames_may_be_in_flight() -> None:
    flow = with_visible_view()
    first = flow.sent(0.0)
    assert flow.may_send(0.1)
    flow.sent(0.1)
    assert not flow.may_send(0.3)
    flow.acknowledged(first, 0.3)
    assert flow.may_send(0.3)


def test_one_frame_when_acknowledgements_are_slow() -> None:
    flow = with_visible_view()
    flow.acknowledged(flow.sent(0.0), 0.8)
    flow.sent(1.0)
    assert not flow.may_send(1.2)


def test_an_acknowledgement_removes_earlier_lost_frames() -> None:
    flow = with_visible_view()
    flow.sent(0.0)
    second = flow.sent(0.1)
    flow.acknowledged(second, 0.2)
    assert not flow.in_flight


def test_no_frames_while_no_view_is_visible() -> None:
    flow = with_visible_view()
    flow.set_visible("other tab", True)
    flow.set_visible("tab", False)
    assert flow.may_send(0.0)
    flow.set_visible("other tab", False)
    assert not flow.may_send(0.0)


def sent_while_busy(flow: FlowControl, seconds: range, known: bool) -> list[int]:
    return [second for second in seconds if flow.may_send_unacknowledged(second, known) and flow.sent(second)]


def test_a_busy_kernel_sends_a_frame_a_second() -> None:
    flow = with_visible_view()
    flow.sent(0.0)
    flow.sent(0.25)
    assert not flow.may_send_unacknowledged(1.0, known=True)
    assert sent_while_busy(flow, range(1, 9), known=True) == [2, 3, 4, 5, 6, 7, 8]
    flow.acknowledged(flow.sequence, 9.0)
    assert flow.may_send(9.0)


def test_a_busy_kernel_sends_nothing_to_a_hidden_page() -> None:
    flow = with_visible_view()
    flow.set_visible("tab", False)
    assert sent_while_busy(flow, range(100), known=True) == []


def test_a_busy_kernel_sends_a_snapshot_every_five_seconds_to_an_unknown_page() -> None:
    assert sent_while_busy(FlowControl(), range(12), known=False) == [0, 5, 10]
