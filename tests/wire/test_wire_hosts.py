"""The address of this host that other tasks use."""

from __future__ import annotations

import pytest

from nbdist.wire.hosts import address_towards


@pytest.mark.parametrize(
    "tasks", [[], ["127.0.0.1:1"], ["localhost:1"], ["[::1]:1"], ["no such host:1"], ["127.0.0.2:1"]]
)
def test_the_address_is_loopback_if_all_tasks_are_on_this_host(tasks: list[str]) -> None:
    assert address_towards(tasks) == "127.0.0.1"
