"""What a replica asks of parameter servers: its requests and offers, and what a training survives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_distribute_served_replica import Written

from nbdist.distribute import served_training
from nbdist.distribute.served_replica import ServedReplica
from nbdist.distribute.served_training import ServedTasks, ServedTraining, TrainingPlan, offering_initial
from nbdist.errors import UnavailableError
from nbdist.optim import SGD, Adam
from nbdist.runtime.ps.client import Link, ShardRequest, ShardState, TrainingOver
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.task import TaskInfo
from nbdist.train.capabilities import RestoredState
from nbdist.train.context import Context, Tolerance

Array = np.ndarray[Any, Any]
VARIABLES = [(name, np.full(2, number, np.float32)) for number, name in enumerate("abcd")]  # two a server
PLAN = TrainingPlan(
    shard="run/0", replica=0, rules=Rules(2, servers=2), variables=VARIABLES, optimizer=SGD(0.1, 0.9)
)
SYNC = replace(PLAN, rules=Rules(2, synchronous=True, servers=2))
AWAITING = replace(PLAN, rules=Rules(2, synchronous=True, servers=2, awaits=True))
TABLES = replace(AWAITING, tables=(0,))
STANDBYS = [{"rank": 3, "of": 2, "shared": True}, {"rank": 2, "of": 3, "shared": True}]
NOTHING, RESTORES, AWAITS = Tolerance.NOTHING, Tolerance.RESTORES, Tolerance.AWAITS


@pytest.mark.parametrize(
    ("plan", "tolerance"),
    [
        (PLAN, RESTORES),
        (SYNC, NOTHING),
        (AWAITING, RESTORES | AWAITS),
        (replace(PLAN, tables=(0,)), NOTHING),
        (TABLES, AWAITS),
        (replace(PLAN, tables=(0,), standbys=STANDBYS), RESTORES),
        (replace(SYNC, standbys=STANDBYS), RESTORES),
        (replace(AWAITING, tables=(0,), standbys=STANDBYS), RESTORES | AWAITS),
    ],
)
def test_what_a_training_survives(plan: TrainingPlan, tolerance: Tolerance) -> None:
    assert plan.tolerance == tolerance


def a_server(rank: int) -> TaskInfo:
    return TaskInfo("ps", rank, rank, "elsewhere", 100 + rank, "127.0.0.1:1", "CPU:0", 1)


class Servers(ServedTasks):
    """Two servers that answer."""

    def __init__(self) -> None:
        server = SimpleNamespace(on=lambda kind, handler: None, off=lambda kind: None)
        task: Any = SimpleNamespace(info=a_server(2), keys=None, roster=[], server=server)
        super().__init__(task, [a_server(0), a_server(1)], {}, lambda: None)

    def when_it_serves(self, server: int, open_shard: Callable[[TaskInfo], Link]) -> Link:
        return open_shard(self.servers[server])


class Opened(Written):
    """A link to a shard as it was asked for; ``error`` is that of its first pull."""

    def __init__(self, request: ShardRequest, error: Exception | None = None) -> None:
        super().__init__([])
        self.layout, self.parameters = request.layout, request.layout.buffer()
        self.buffers = [request.layout.buffer() for _ in self.buffers]
        self.tables = [array for _, array in request.tables]
        self.restored, self.closed, self._error = None, False, error

    def pull(self) -> None:
        if self._error is not None:
            raise self._error
        super().pull()

    def announce_done(self, *, stops: bool = False) -> None:
        raise UnavailableError("its connection broke")

    def close(self) -> None:
        self.closed = True


def begin(plan: TrainingPlan, context: Context) -> ServedReplica:
    return ServedTraining(plan, Servers(), context, None).begin()


@pytest.mark.parametrize("plans", [(AWAITING, TABLES), (TABLES, AWAITING)])
@pytest.mark.parametrize("first", [0, 1])
def test_a_body_survives_what_all_of_its_open_trainings_do(
    plans: tuple[TrainingPlan, TrainingPlan], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_training, "open_link", lambda connect, request, **how: Opened(request))
    context = Context()
    tolerance = context.tolerances
    tolerance.open("session", Tolerance.SESSION)
    opened = [begin(plan, context) for plan in plans]
    assert context.progress.tolerance == AWAITS | Tolerance.SESSION
    opened[first].close()
    assert context.progress.tolerance == plans[1 - first].tolerance | Tolerance.SESSION
    opened[1 - first].close()
    assert context.progress.tolerance == Tolerance.SESSION


@pytest.mark.parametrize("error", [UnavailableError("it died"), TrainingOver("it is over")])
@pytest.mark.parametrize("at_pull", [True, False])
def test_a_training_that_cannot_begin_leaves_nothing(
    error: Exception, at_pull: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, links = Context(), list[Opened]()

    def open_link(connect: object, request: ShardRequest, **how: object) -> Link:
        if links and not at_pull:
            raise error
        links.append(Opened(request, error if links else None))
        return links[-1]

    monkeypatch.setattr(served_training, "open_link", open_link)
    with pytest.raises(type(error)):
        begin(SYNC, context)
    assert [one.closed for one in links] == [True] * (1 + at_pull)
    context.tolerances.open("another", RESTORES)
    assert context.progress.tolerance == RESTORES


SAVED = RestoredState([{"velocity": np.full(2, 10.0 + i, np.float32)} for i in range(4)], updates=7)


class Asked(NamedTuple):
    """What is asked of two servers."""

    initial: list[list[float] | None]
    counts: list[bool]
    restored: list[int | None]


@pytest.mark.parametrize(
    ("plan", "asked"),
    [
        (PLAN, Asked([[0, 2], [1, 3]], [False, False], [None, None])),
        (SYNC, Asked([[0, 2], [1, 3]], [True, False], [None, None])),
        (replace(PLAN, restored=SAVED), Asked([[0, 2], [1, 3]], [False, False], [7, 7])),
        (replace(PLAN, replica=1), Asked([None, None], [False, False], [None, None])),
        (replace(PLAN, rejoins=True), Asked([None, None], [False, False], [None, None])),
        (replace(PLAN, tables=(0, 3)), Asked([[2], [1]], [False, False], [None, None])),
    ],
)
def test_the_chief_alone_gives_initial_values_and_the_state_that_continues(
    plan: TrainingPlan, asked: Asked
) -> None:
    requests = [plan.request(server) for server in range(2)]
    initial = [None if r.initial is None else [float(a[0]) for a in r.initial] for r in requests]
    restored = [None if r.restored is None else r.restored.updates for r in requests]
    assert Asked(initial, [r.counts for r in requests], restored) == asked
    assert [r.first for r in requests] == [True, False]
    assert {r.rejoins for r in requests} == {plan.rejoins}


def test_one_server_counts_the_updates_of_asynchronous_replicas_itself() -> None:
    assert replace(PLAN, rules=Rules(2)).request(0).counts


def test_each_server_has_its_part_of_the_variables_the_slots_and_the_standbys() -> None:
    plan = replace(PLAN, tables=(0, 3), restored=SAVED, standbys=STANDBYS)
    for server, (whole, table) in enumerate([(2, 0), (1, 3)]):
        request = plan.request(server)
        assert [entry.name for entry in request.layout.entries] == [VARIABLES[whole][0]]
        assert [name for name, _ in request.tables] == [VARIABLES[table][0]]
        assert request.restored is not None
        (view,) = request.layout.views(request.restored.slots["velocity"])
        assert view.tolist() == [10 + whole] * 2
        assert request.restored.tables == (SAVED.slots[table],)
        assert request.standby == STANDBYS[server]


def test_an_optimizer_without_slots_continues_with_its_updates() -> None:
    plan = replace(PLAN, optimizer=SGD(0.1), restored=RestoredState([], 5))
    assert plan.request(1).restored == ShardState(5, {})


class Remaining(Written):
    """A link to a process that has died, which may have left newer parameters in shared memory."""

    def __init__(self, left: int | None, has_copy: bool = True) -> None:
        super().__init__([])
        self.version, self.has_copy, self._left = 4, has_copy, left
        self.of_process = self.layout.buffer()

    def salvage(self) -> None:
        if self._left is not None:
            self.version = self._left

    def remains(self) -> tuple[Array, int]:
        return super().remains() if self._left is None else (self.of_process, self._left)


@pytest.mark.parametrize(
    ("plan", "left", "version", "is_own"),
    [
        (PLAN, None, 4, True),
        (PLAN, 6, 6, True),
        (AWAITING, None, 4, True),
        (AWAITING, 5, 5, False),  # the replica's own copy stays that of the step
        (replace(AWAITING, standbys=STANDBYS), 5, 4, True),
        (replace(PLAN, standbys=STANDBYS), 6, 6, True),
    ],
)
def test_a_replica_offers_the_newest_copy_that_it_can_read(
    plan: TrainingPlan, left: int | None, version: int, is_own: bool
) -> None:
    first = replace(plan, rejoins=True).request(0)
    old = Remaining(left)
    again = plan.again(0, old, True, lambda: None)
    assert again.offer is not None
    assert (again.offer.version, again.offer.replica, again.offer.done) == (version, 0, True)
    assert again.copy is (old.parameters if is_own else old.of_process)
    assert (again.initial, again.restored, again.rejoins) == (None, None, False)
    assert (again.shard, again.rules, again.standby) == (first.shard, first.rules, first.standby)


def test_a_replica_without_a_copy_offers_none() -> None:
    """It had not pulled from the process that died."""
    assert AWAITING.again(0, Remaining(None, has_copy=False), False, lambda: None).offer is None
    assert AWAITING.again(0, Remaining(5, has_copy=False), False, lambda: None).offer is not None


@pytest.mark.parametrize(
    ("newest", "continued", "updates"),
    [(None, None, None), (None, SAVED, 7), (SAVED, None, 7), (RestoredState(SAVED.slots, 9), SAVED, 9)],
)
def test_the_slots_of_a_new_process_are_those_of_the_newest_state(
    newest: RestoredState | None, continued: RestoredState | None, updates: int | None
) -> None:
    plan = replace(PLAN, restored=continued)
    saved = plan.again(1, Remaining(None), False, lambda: newest).saved()
    assert (None if saved is None else saved.updates) == updates
    if saved is not None:
        views = plan.request(1).layout.views(saved.slots["velocity"])
        assert [view.tolist() for view in views] == [[11, 11], [13, 13]]


def test_a_chief_offers_its_initial_values_to_a_new_process() -> None:
    request = offering_initial(replace(PLAN, restored=SAVED).request(0))
    assert request.offer is not None
    assert request.copy is not None
    assert (request.offer.version, request.offer.global_step, request.offer.began) == (0, 7, 7)
    assert [view.tolist() for view in request.layout.views(request.copy)] == [[0, 0], [2, 2]]
    saved = request.saved()
    assert saved is not None
    assert (request.initial, request.restored, saved.updates) == (None, None, 7)


@pytest.mark.parametrize(
    ("plan", "restored", "slots"),
    [
        (SYNC, {}, ""),
        (PLAN, {}, "gradients on their way to it count as dropped"),
        (SYNC, {"slots": "anew"}, "its slots of the optimizer (velocity) began anew"),
        (SYNC, {"slots": "1200"}, "its slots of the optimizer (velocity) are those after update 1,200"),
        (PLAN, {"slots": "5"}, "gradients on their way to it count as dropped; its slots of the optimizer "
         "(velocity) are those after update 5"),
        (replace(SYNC, optimizer=Adam(0.1)), {"slots": "anew"},
         "its slots of the optimizer (mean and square) began anew"),
        (PLAN, {"standby": "/job:ps/task:1", "slots": "5"}, "restored from its replica on /job:ps/task:1"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_server_that_was_restored(
    plan: TrainingPlan, restored: dict[str, Any], slots: str
) -> None:
    info = TaskInfo("ps", 0, 2, "here", 7, "127.0.0.1:1", "CPU:0", 5)
    assert plan.report(info, {"lost": 3, "global_step": 40, **restored}) == {
        "task": "/job:ps/task:0", "incarnation": 5, "lost": 3, "step": 40, "slots": slots,
    }  # fmt: skip
