"""Supervisors of several hosts, simulated by processes: a lost one is noticed, and no other is lost."""

from __future__ import annotations

import time

import pytest
from tiers import exhaustive
from waiting import limit

from bench.many_hosts import busy_cores, many_hosts


# On two quiet cores 64 hosts take 17 s to join; `python -m bench hosts.64` measures them.
@exhaustive
@pytest.mark.processes
@pytest.mark.timeout(120)
def test_of_many_hosts_only_the_frozen_one_is_lost() -> None:
    with many_hosts(8) as head:
        assert head.processor_seconds(2.0) < 6.0
        with busy_cores():
            assert head.lose("n3") < limit(10)
        assert sorted(head.pids()) == ["n0", "n1", "n2", "n4", "n5", "n6", "n7"]
        begun = time.monotonic()
    assert time.monotonic() - begun < limit(5)
