from nbdist.ui.widgets.frames import Pace


def watched() -> Pace:
    pace = Pace()
    pace.looked_at("tab", True)
    return pace


def test_at_most_ten_frames_a_second_however_often_it_ticks() -> None:
    pace, sent = watched(), 0
    for tick in range(3000):  # 3 seconds, a thousand ticks a second
        if pace.may_send(tick / 1000):
            pace.acknowledged(pace.sent(tick / 1000), tick / 1000)
            sent += 1
    assert 29 <= sent <= 31


def test_ten_frames_a_second_although_the_ticks_are_not_even() -> None:
    pace, sent = watched(), 0
    for tick in range(100):
        now = tick / 10 + (0.03 if tick % 2 else 0)
        if pace.may_send(now):
            pace.acknowledged(pace.sent(now), now)
            sent += 1
    assert sent >= 95


def test_two_frames_may_be_on_their_way() -> None:
    pace = watched()
    first = pace.sent(0.0)
    assert pace.may_send(0.1)
    pace.sent(0.1)
    assert not pace.may_send(0.3)
    pace.acknowledged(first, 0.3)
    assert pace.may_send(0.3)


def test_one_frame_when_acknowledgements_are_slow() -> None:
    pace = watched()
    pace.acknowledged(pace.sent(0.0), 0.8)
    pace.sent(1.0)
    assert not pace.may_send(1.2)


def test_an_acknowledgement_settles_lost_frames_before_it() -> None:
    pace = watched()
    pace.sent(0.0)
    second = pace.sent(0.1)
    pace.acknowledged(second, 0.2)
    assert not pace.on_their_way


def test_nothing_while_nobody_looks() -> None:
    pace = watched()
    pace.looked_at("other tab", True)
    pace.looked_at("tab", False)
    assert pace.may_send(0.0)
    pace.looked_at("other tab", False)
    assert not pace.may_send(0.0)


def unheard(pace: Pace, seconds: range, known: bool) -> list[int]:
    return [second for second in seconds if pace.may_send_unheard(second, known) and pace.sent(second)]


def test_while_the_page_cannot_be_heard_a_frame_a_second_goes_out() -> None:
    pace = watched()
    pace.sent(0.0)
    pace.sent(0.25)
    assert not pace.may_send_unheard(1.0, known=True)
    assert unheard(pace, range(1, 9), known=True) == [2, 3, 4, 5, 6, 7, 8]
    pace.acknowledged(pace.sequence, 9.0)
    assert pace.may_send(9.0)


def test_a_page_that_was_hidden_when_last_heard_gets_nothing() -> None:
    pace = watched()
    pace.looked_at("tab", False)
    assert unheard(pace, range(100), known=True) == []


def test_a_page_that_was_never_heard_gets_a_picture_now_and_then() -> None:
    assert unheard(Pace(), range(12), known=False) == [0, 5, 10]
