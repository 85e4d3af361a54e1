"""A process counts as an engine while it lives, even if it does not answer heartbeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from zmq.eventloop.zmqstream import ZMQStream

from nbdist.cluster.supervisor.controller import EagerHeartMonitor


class Stream(ZMQStream):  # the monitor requires this type
    """A stream without a peer."""

    def __init__(self) -> None:
        self.socket = SimpleNamespace(poll=lambda timeout: 1)

    def send(self, message: Any) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> EagerHeartMonitor:
    monkeypatch.setattr(EagerHeartMonitor, "ended", set())
    one = EagerHeartMonitor(ping_stream=Stream(), pong_stream=Stream(), monitor_stream=Stream())
    one.tic, one.eager, one.hub_listens = 0.0, False, True
    one.hearts = {b"one", b"two"}
    one.handle_heart_failure = pytest.fail
    return one


def test_a_frozen_engine_stays_registered(monitor: EagerHeartMonitor) -> None:
    for _ in range(1000):
        monitor.responses.add(b"one")
        monitor.beat()
    assert monitor.hearts == {b"one", b"two"}
    assert monitor.on_probation == {b"two": 1000}


def test_an_ended_engine_is_removed_immediately(monitor: EagerHeartMonitor) -> None:
    monitor.beat()
    EagerHeartMonitor.ended.add(b"two")
    monitor.beat()
    assert monitor.hearts == {b"one"}
    assert monitor.on_probation == {b"one": 2}
    assert not EagerHeartMonitor.ended
