"""What a parameter server notes of each gradient, for timelines."""

from __future__ import annotations

from nbdist.runtime.ps.trace import KEPT_RUNS, ServiceLog, ServiceLogs, gradient_of, parameters_for

PS = "/job:ps/task:0"


def test_gradients_are_numbered_as_the_steps_that_they_come_from() -> None:
    log = ServiceLog(2)
    for replica, at in ((0, 1.0), (1, 2.0), (0, 3.0)):
        log.gradient("mailbox", replica, at, at + 0.5, "applied")
    assert [(s.kind, s.name, s.step, s.start, s.seconds) for s in log.spans(PS)] == [
        ("apply", gradient_of(0), 1, 1.0, 0.5),
        ("apply", gradient_of(1), 1, 2.0, 0.5),
        ("apply", gradient_of(0), 2, 3.0, 0.5),
    ]


def test_a_gradient_that_does_not_end_a_synchronous_step_is_received_only() -> None:
    log = ServiceLog(2)
    log.gradient("mailbox", 0, 1.0, 1.1, "collected")
    log.gradient("mailbox", 1, 2.0, 2.5, "applied")
    assert [(span.kind, span.name) for span in log.spans(PS)] == [
        ("receive", gradient_of(0)),
        ("apply", gradient_of(1)),
    ]


def test_one_that_is_dropped_is_counted_and_shown_as_dropped() -> None:
    log = ServiceLog(1)
    log.gradient("mailbox", 0, 1.0, 1.1, "dropped")
    log.gradient("mailbox", 0, 2.0, 2.1, "applied")
    assert [(span.kind, span.name, span.step) for span in log.spans(PS)] == [
        ("drop", gradient_of(0), 1),
        ("apply", gradient_of(0), 2),
    ]


def test_lanes_are_threads() -> None:
    log = ServiceLog(1)
    log.gradient("socket", 0, 1.0, 1.1, "applied")
    log.parameters("socket", 0, 2.0, 2.1)
    log.gradient("mailbox", 0, 3.0, 3.1, "applied")
    spans = sorted(log.spans(PS), key=lambda span: span.start)
    assert [span.lane for span in spans] == ["socket", "socket", "mailbox"]
    assert (spans[1].kind, spans[1].name, spans[1].step) == ("send", parameters_for(0), None)


def test_the_last_runs_are_kept() -> None:
    logs = ServiceLogs()
    for number in range(KEPT_RUNS + 1):
        logs.of(f"r{number}", 1).gradient("mailbox", 0, 1.0, 1.1, "applied")
    assert logs.spans("r0", PS) == []
    assert len(logs.spans(f"r{KEPT_RUNS}", PS)) == len(logs.spans("r1", PS)) == 1
    assert logs.of("r1", 1) is logs.of("r1", 1)
