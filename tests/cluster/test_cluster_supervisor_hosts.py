"""The commands that bring up other hosts, as the head's supervisor reads them."""

from __future__ import annotations

import selectors
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from nbdist.cluster.launchers.spec import HostCommand
from nbdist.cluster.supervisor.hosts import Command, Hosts


@pytest.mark.processes
def test_a_command_that_prints_without_end_leaves_time_for_others() -> None:
    with selectors.DefaultSelector() as selector:
        supervisor: Any = SimpleNamespace(selector=selector)
        command = Command(HostCommand(("yes", "welcome"), ("a",)), {}, supervisor)
        try:
            for _ in range(3):
                for key, _ in selector.select():
                    key.data(key.fileobj)
        finally:
            command.signal(signal.SIGKILL)
            while (code := command.poll()) is None:
                selector.select(0.01)
        assert code == -signal.SIGKILL
        assert not selector.get_map()


def test_no_host_is_brought_up_when_the_cluster_ends() -> None:
    spec = SimpleNamespace(commands=lambda settings, names: [HostCommand(("no such program",), tuple(names))])
    told: list[Any] = []
    supervisor: Any = SimpleNamespace(
        launcher_spec=spec, plan={"settings": {}}, kill_at=None, broadcast=told.append
    )
    hosts = Hosts(supervisor)
    hosts.bring_up(["a"])
    assert [event["hosts"] for event in told] == [["a"]]
    supervisor.kill_at = 1.0
    hosts.bring_up(["a"])
    assert len(told) == 1
    assert hosts.ended
