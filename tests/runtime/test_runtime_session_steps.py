"""Any step means the same on tasks: random graphs in real sessions, against what they mean by definition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from examples import examples
from graph_steps import EXCHANGE, Meaning, Step, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.graph.op import OPS
from nbdist.runtime.server import Server
from nbdist.runtime.session import cluster
from nbdist.runtime.session.session import Session
from nbdist.runtime.spec import ClusterSpec
from nbdist.wire.keys import ClusterKeys


@pytest.fixture(scope="module")
def targets() -> Iterator[list[str]]:
    """Two of three tasks on threads: one that is taken for another process's, and one that is not."""
    keys = ClusterKeys.create()
    servers = [Server({job: ["127.0.0.1:0"]}, job, 0, keys=keys) for job in "abc"]
    for server in servers:
        server.cluster = ClusterSpec({one.job: [one.address] for one in servers})
    cluster._here.pop(servers[1].target)
    OPS["exchange"] = EXCHANGE  # to travel
    yield [servers[1].target, servers[0].target]
    del OPS["exchange"]
    for server in servers:
        server.close()


@settings(max_examples=examples(100))
@given(steps(most=20), st.booleans(), st.sampled_from(("auto", "auto", "socket")))
def test_a_step_on_tasks(targets: list[str], step: Step, inside: bool, transport: str) -> None:
    with Session(targets[inside], step.graph, isolate=True, transport=transport) as session:  # type: ignore[arg-type]
        for v, value in step.values.items():
            session.set_value(v, value)
        for _ in range(2):
            meaning = Meaning(step)
            fetched = session.run(step.fetches, step.feeds)
            for t, got, expected in zip(step.fetches, fetched, meaning.fetched(), strict=True):
                assert (got is None) == (expected is None), t
                if got is not None:
                    np.testing.assert_array_equal(got, expected, err_msg=t.name)
            after = meaning.afterwards()
            for v in step.values:
                np.testing.assert_array_equal(session.run(v), after[v.name], err_msg=v.name)
            step.values = {v: after[v.name] for v in step.values}
