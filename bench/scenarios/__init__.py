"""Faults that are no signal to a task: the second table of ``python -m bench faults``.

Each function makes one fault from outside at real processes: it starts a small cluster, a kernel, hosts or a
browser of its own in a state folder of its own, ends all of it, and adds figures and the bounds that were
not kept to a `Found`. Where a fault needs what this machine lacks, it raises `NotThere` with the reason.
"""

from __future__ import annotations

from bench.scenarios.bodies import calls_that_differ, holds_the_lock, nan_on_one_rank
from bench.scenarios.clients import interrupts, kernel_restarts, other_versions
from bench.scenarios.clock import clock_jumps
from bench.scenarios.frame import Scenario
from bench.scenarios.hosts import resets_in_mid_frame, silent_partition, slow_replica_and_link
from bench.scenarios.page import closed_tab
from bench.scenarios.saves import killed_saves

SCENARIOS = (
    Scenario(10, "kernel restarted, magic run again", kernel_restarts),
    Scenario(12, "a native call holds the GIL 30 s", holds_the_lock),
    Scenario(13, "a silent partition between two hosts", silent_partition),
    Scenario(14, "connections reset inside a frame", resets_in_mid_frame),
    Scenario(15, "a slow worker, a slow link", slow_replica_and_link),
    Scenario(17, "calls of collectives that differ", calls_that_differ),
    Scenario(18, "two interrupts in a collective", interrupts),
    Scenario(19, "a NaN gradient on one rank", nan_on_one_rank),
    Scenario(23, "a save killed at each call", killed_saves),
    Scenario(27, "a client of another version", other_versions),
    Scenario(28, "a browser's tab closed, then two", closed_tab),
    Scenario(31, "a clock that jumps by an hour", clock_jumps),
)
