"""What no step changes is the chief's on every replica, also on one that joins a run later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nbdist.errors import AbortedError, UnavailableError
from nbdist.runtime.groups import World
from nbdist.runtime.server import Server
from nbdist.runtime.task import Task, TaskInfo, host_identity
from nbdist.testing.worlds import worlds
from nbdist.train import fixed
from nbdist.train.context import Context
from nbdist.train.strategy import Strategy
from nbdist.train.trainable import Trainable
from nbdist.wire.keys import ClusterKeys

CHIEFS = [np.arange(6, dtype=np.float32), np.ones((2, 3))]


def model(arrays: list[np.ndarray]) -> Trainable:
    return cast("Trainable", SimpleNamespace(fixed=arrays))


def zeros() -> list[np.ndarray]:
    return [np.zeros_like(array) for array in CHIEFS]


@pytest.fixture
def tasks() -> Iterator[list[Task]]:
    keys = ClusterKeys.create()
    servers = [Server({"worker": ["127.0.0.1:0"]}, keys=keys) for _ in range(3)]
    roster = tuple(
        TaskInfo("worker", rank, rank, host_identity(), 1, one.address, "CPU:0", 7)
        for rank, one in enumerate(servers)
    )
    made = [Task(roster[rank], roster, servers[rank], keys, cluster_id="c1") for rank in range(3)]
    yield made
    for one in made:
        one.close()


def joining(task: Task, training: int = 1, **own: Any) -> Context:
    world = World(task=task, ranks=(0, 1, 2), run="r1", rejoins=True, **own)
    return replace(Context(world=world), trainings=training)


def test_replicas_that_begin_together_have_the_chiefs() -> None:
    theirs = [[array.copy() for array in CHIEFS], zeros()]
    threads = [
        threading.Thread(target=fixed.share_fixed, args=(Context(world=world), model(arrays)))
        for world, arrays in zip(worlds(2), theirs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine, chiefs in zip(theirs[1], CHIEFS, strict=True):
        np.testing.assert_array_equal(mine, chiefs)


def test_replicas_of_parameter_servers_ask_the_chief(tasks: list[Task]) -> None:
    chief, worker = (
        Context(
            world=World(task=task, ranks=(0, 1, 2), run="r1"),
            strategy=cast("Strategy", SimpleNamespace(keeps_slots=False)),
            trainings=1,
        )
        for task in tasks[:2]
    )
    own = zeros()
    fixed.share_fixed(chief, model(CHIEFS))  # waits for none: worker 2 may be lost
    fixed.share_fixed(worker, model(own))
    for mine, chiefs in zip(own, CHIEFS, strict=True):
        np.testing.assert_array_equal(mine, chiefs)


def test_a_process_that_joins_has_the_chiefs_from_any_replica_that_lives(tasks: list[Task]) -> None:
    tasks[2].server.on(fixed.FIXED, fixed.lender("r1", 1, CHIEFS))  # 0 has not begun
    own = zeros()
    fixed.share_fixed(joining(tasks[1]), model(own))
    for mine, chiefs in zip(own, CHIEFS, strict=True):
        np.testing.assert_array_equal(mine, chiefs)
    tasks[2].server.off(fixed.FIXED)
    again = zeros()
    fixed.share_fixed(joining(tasks[0]), model(again))  # from the one that has joined
    np.testing.assert_array_equal(again[1], CHIEFS[1])


def test_a_joining_process_waits_until_a_replica_has_begun_the_training(
    tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed, "POLL_SECONDS", 0.0)
    chief, checks = tasks[0].server, []
    chief.on(fixed.FIXED, fixed.lender("r1", 1, [one + 5 for one in CHIEFS]))  # the training before

    def check() -> None:
        checks.append(len(checks))
        chief.on(fixed.FIXED, fixed.lender("r1", 2, CHIEFS))

    own = zeros()
    fixed.share_fixed(joining(tasks[1], 2, check=check), model(own))
    assert checks == [0]
    np.testing.assert_array_equal(own[0], CHIEFS[0])


def test_a_training_that_the_others_have_completed_leaves_the_values(tasks: list[Task]) -> None:
    tasks[0].server.on(fixed.FIXED, fixed.lender("r1", 2, CHIEFS))
    own = zeros()
    fixed.share_fixed(joining(tasks[1]), model(own))
    assert not own[0].any()


def test_a_joining_process_obeys_an_abort_and_gives_up_with_advice(
    tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks[0].server.on(fixed.FIXED, fixed.lender("another run", 1, CHIEFS))

    def check() -> None:
        raise AbortedError("the run has ended")

    with pytest.raises(AbortedError, match="the run has ended"):
        fixed.share_fixed(joining(tasks[1], check=check), model(zeros()))
    monkeypatch.setattr(fixed, "GIVE_UP_SECONDS", 0.0)
    with pytest.raises(UnavailableError, match="frozen weights would not be the chief's"):
        fixed.share_fixed(joining(tasks[1]), model(zeros()))
