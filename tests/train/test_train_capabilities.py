"""The contract of each capability of a replica, for the replicas that have it.

Each begins two variables at 0, with SGD at rate 1; all make steps with gradients of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parameter_town import Town

from nbdist.distribute import (
    ElasticAveragingStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceReplica,
    OneDeviceStrategy,
    Replica,
    ShardedStrategy,
    Strategy,
)
from nbdist.distribute.all_reduce import AllReduceReplica
from nbdist.distribute.elastic import ElasticReplica
from nbdist.distribute.membership import GroupReplica, GroupStrategy
from nbdist.distribute.served_replica import ServedReplica
from nbdist.distribute.sharded import ShardedReplica
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NbdistError
from nbdist.optim import SGD, Optimizer
from nbdist.runtime.tables import RowGradient
from nbdist.testing.strategy import World, everywhere, thread_world
from nbdist.train.capabilities import Agreement, JoinedState, Measures, ReplicaState, RestoredState
from nbdist.train.context import Context
from nbdist.train.custom.replicas import NoVariables
from nbdist.train.replica import ReplicaLeft, change_rate, continuing, rate_of, step_program, tables_in
from nbdist.train.trainable import ProgramSpec


@dataclass
class Kind:
    """A kind of replica; ``make`` returns the strategy of a process, ``first`` is a value after one step."""

    replica: type[Replica]
    make: Callable[[Any], Strategy]
    size: int = 2
    first: float = -2.0


def served(synchronous: bool) -> Callable[[Any], Strategy]:
    return lambda place: town_of(place).strategy(place.index, synchronous=synchronous)


KINDS = {
    "one_device": Kind(OneDeviceReplica, lambda place: OneDeviceStrategy(), 1, -1.0),
    "multi_worker": Kind(AllReduceReplica, lambda place: MultiWorkerMirroredStrategy(world=place)),
    "sharded": Kind(ShardedReplica, lambda place: ShardedStrategy(world=place)),
    "elastic": Kind(ElasticReplica, lambda place: ElasticAveragingStrategy(1, 0.5, world=place), 2, -0.5),
    "ps --sync": Kind(ServedReplica, served(synchronous=True)),
    "ps": Kind(ServedReplica, served(synchronous=False), 1, -1.0),
}
towns: list[Town] = []


def town_of(place: Any) -> Town:
    if place.index == 0:
        towns.append(Town(ps=2, replicas=place.size))
    return towns[-1]


@pytest.fixture(autouse=True)
def no_town_is_left() -> Iterator[None]:
    yield
    while towns:
        towns.pop().close()


def having(capability: str, *without: str) -> pytest.MarkDecorator:
    """Run a test for each kind of replica with a capability."""
    kinds = [name for name, kind in KINDS.items() if getattr(kind.replica, capability) is not None]
    return pytest.mark.parametrize("kind", [name for name in kinds if name not in without])


Body = Callable[[Replica, Strategy, Context], Any]


def on_each(
    kind: str,
    body: Body,
    optimizer: Callable[[], Optimizer] = lambda: SGD(1.0),
    begin: Callable[[Strategy], object] = lambda strategy: None,
    **options: Any,
) -> list[Any]:
    """Run a body with each replica of a new training; return the results."""
    world: World = thread_world(KINDS[kind].make, KINDS[kind].size)

    def run(strategy: Strategy, context: Context) -> Any:
        context.fitting = True
        begin(strategy)
        variables = [("v", np.zeros((4, 2), np.float32)), ("w", np.zeros(3, np.float32))]
        replica = strategy.replica(variables, optimizer(), **options)
        try:
            return body(replica, strategy, context)
        except BaseException as error:
            if replica.agreement is not None:
                replica.agreement.abort(error)
            raise
        finally:
            replica.close()

    return everywhere(world, run)


def step(replica: Replica, gradient: float = 1.0, push: Callable[[], object] | None = None) -> None:
    replica.pull()
    for one in replica.gradients():
        one[...] = gradient
    (push or replica.push)()
    if replica.pending is not None:
        replica.pending.settle()


def values(replica: Replica) -> list[float]:
    """Return the newest value of each variable, all of whose elements are equal."""
    replica.reads.fetch_together(True)
    found = [np.unique(value) for value in replica.values]
    assert all(len(one) == 1 for one in found)
    return [float(one[0]) for one in found]


@having("checks", "ps")
def test_a_step_that_is_left_out_changes_nothing(kind: str) -> None:
    def body(replica: Replica, *_: Any) -> Any:
        step(replica, np.nan, replica.checks.overflow)
        once = replica.report.overflows
        step(replica, 5.0, replica.checks.skip)
        return once, replica.report.overflows, values(replica)

    for found in on_each(kind, body):
        assert found == (1, 1, [0, 0])


@having("checks")
def test_what_is_checked_has_every_gradient(kind: str) -> None:
    def body(replica: Replica, *_: Any) -> None:
        replica.pull()
        for one in replica.gradients():
            one[...] = 1
            flat = replica.checks.flat_gradients()
            before = sum(float(np.nansum(array)) for array in flat)
            one.reshape(-1)[-1] = 3
            assert sum(float(np.nansum(array)) for array in flat) == before + 2

    on_each(kind, body)


@having("reads", "ps")
def test_a_read_brings_what_the_last_step_has_made(kind: str) -> None:
    def body(replica: Replica, _: Any, context: Context) -> Any:
        step(replica)
        while context.is_chief and not replica.reads.ask_values():
            step(replica, 0.0)
        replica.reads.newest()
        newest = [float(value.reshape(-1)[0]) for value in replica.values]
        replica.reads.fetch()
        return newest, values(replica)

    first = KINDS[kind].first
    assert on_each(kind, body) == [([first, first], [first, first])] * KINDS[kind].size


@having("programs")
def test_a_program_writes_the_gradients_that_a_push_sends(kind: str) -> None:
    class Ones(NoVariables):
        def training_program(self, spec: ProgramSpec) -> Any:
            def program(*gradients: Any) -> tuple[Any, ...]:
                for number, one in reversed([*enumerate(gradients)]):
                    one[...] = 1
                    if spec.ready is not None:
                        spec.ready(number)
                return (np.float32(0),)

            return program

    def body(replica: Replica, *_: Any) -> list[float]:
        program = step_program(replica, Ones(), ((2, 1),))
        replica.pull()
        program(*replica.gradients())
        replica.push()
        return values(replica)

    assert on_each(kind, body) == [[KINDS[kind].first] * 2] * KINDS[kind].size


@having("rows", "sharded", "elastic", "ps")
def test_rows_change_the_rows_that_were_looked_up(kind: str) -> None:
    def body(replica: Replica, *_: Any) -> Any:
        rows, ids = replica.rows, np.array([3, 1, 3])
        assert rows is not None
        assert tables_in(replica) == rows.tables == (0,)
        rows.want([ids])
        replica.pull()
        (gradient,) = replica.gradients()
        gradient[...] = 0
        rows.take([RowGradient(ids, np.ones((3, 2), np.float32))])
        replica.push()
        if replica.pending is not None:
            replica.pending.settle()
        replica.reads.fetch()
        return replica.values[0][:, 0].tolist()

    first = KINDS[kind].first
    assert on_each(kind, body, tables=(0,)) == [[0, first, 0, 2 * first]] * KINDS[kind].size


@having("rate", "ps")
def test_a_rate_changes_for_all_replicas(kind: str) -> None:
    def body(replica: Replica, *_: Any) -> Any:
        before = rate_of(replica)
        change_rate(replica, 0.25)
        after = rate_of(replica)
        step(replica)
        return before, after, values(replica)

    found = on_each(kind, body)
    assert found[0][:2] == (1.0, 0.25)
    assert all(
        one[:2] in ((1.0, 0.25), (None, None)) for one in found
    )  # or the first one's, which it receives
    assert all(one[2] == [KINDS[kind].first / 4] * 2 for one in found)


def test_a_replica_without_a_rate_refuses_one() -> None:
    class Plain(OneDeviceReplica):
        rate = None

    plain = Plain([("w", np.ones(2, np.float32))], SGD(0.1))
    assert rate_of(plain) is None
    with pytest.raises(FailedPreconditionError, match="Plain cannot change its learning rate"):
        change_rate(plain, 0.2)


@having("agreement")
def test_a_stop_of_one_ends_all_after_the_same_step(kind: str) -> None:
    def body(replica: Replica, _: Any, context: Context) -> int:
        assert replica.agreement is not None
        for number in range(20):
            if replica.agreement.agree(number == 3 and not context.is_chief):
                return number
            step(replica)
        return 20

    assert on_each(kind, body) in ([3, 3], [4, 4])


@having("agreement")
@pytest.mark.parametrize("ends", [0, 1, None])
def test_an_epoch_ends_the_training_of_all_or_of_none(kind: str, ends: int | None) -> None:
    def body(replica: Replica, _: Any, context: Context) -> bool:
        assert replica.agreement is not None
        return replica.agreement.end_epoch(ends is not None and context.is_chief == (ends == 0))

    assert on_each(kind, body) == [ends is not None] * 2


@having("agreement")
def test_an_abort_ends_the_others_waits(kind: str) -> None:
    seen: list[str] = []

    def body(replica: Replica, _: Any, context: Context) -> None:
        if context.is_chief:
            raise ValueError("no first step")
        try:
            step(replica)
        except NbdistError as error:
            seen.append(str(error))
            raise

    with pytest.raises(ValueError, match="no first step"):
        on_each(kind, body)
    (text,) = seen
    assert "ValueError: no first step" in text


@having("membership")
def test_without_processes_that_come_or_leave_nothing_changes(kind: str) -> None:
    def body(replica: Replica, *_: Any) -> Any:
        one = replica.membership
        assert one is not None
        for _ in range(2):
            assert not one.admit()
            one.renew()
            step(replica)
        return one.joins_at, one.joined, one.left_out, one.regroups_next

    assert on_each(kind, body) == [(None, None, None, False)] * KINDS[kind].size


@having("membership", "ps", "ps --sync")
def test_new_processes_wait_while_the_training_has_no_place_for_them(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would begin elsewhere in the data than the others are; a replica that leaves does not wait."""
    admitted: list[Any] = []
    monkeypatch.setattr(GroupStrategy, "waiting", lambda self, digest: [7])
    monkeypatch.setattr(GroupReplica, "form_again", lambda self, *error, **given: admitted.append(given))

    def body(replica: Replica, *_: Any) -> Any:
        one = replica.membership
        assert isinstance(one, GroupReplica)
        found = []
        for leaving in (0, 1):
            one.note_changes(1, leaving)
            replica.hooks.position = None
            found.append((one.admit(), one.regroups_next))
            replica.hooks.position = lambda: JoinedState({}, [])
            found.append((one.admit(), one.regroups_next))
        return found

    kept, made, nothing = (False, True), (True, False), (False, False)
    assert on_each(kind, body) == [[kept, made, made, nothing]] * KINDS[kind].size
    size = KINDS[kind].size
    given = [{"admits": ranks, "leaves": False} for ranks in ([7], ())]
    assert [admitted.count(one) for one in given] == [size, size]


def test_an_independent_replica_leaves_when_it_is_asked() -> None:
    def body(replica: Replica, *_: Any) -> None:
        assert replica.membership is not None
        step(replica)
        with pytest.raises(ReplicaLeft):
            replica.membership.admit(leave=True)

    on_each("ps", body)


@having("state", "ps")
def test_another_replica_continues_with_a_state(kind: str) -> None:
    def made(replica: Replica, context: Context) -> ReplicaState | None:
        """Return what the chief reads, once the other replicas have sent what it needs."""
        state = continuing(replica)
        known = not context.is_chief or state.ask_state()
        step(replica, 0.0)
        assert known or state.ask_state()
        return deep(state.read_state()) if context.is_chief else None

    def trained(replica: Replica, _: Any, context: Context) -> Any:
        for _ in range(3):
            step(replica)
        return made(replica, context)

    saved = on_each(kind, trained, lambda: SGD(1.0, momentum=0.5))[0]
    assert saved.updates == 4

    def begin(strategy: Strategy) -> None:
        strategy.restored = RestoredState(saved.slots, saved.updates)

    def continued(replica: Replica, strategy: Strategy, context: Context) -> Any:
        state = continuing(replica)
        if strategy.keeps_slots:
            state.restore_slots(saved.slots)
        state.resume(saved.updates, 1.0, 7)
        return made(replica, context), rate_of(replica)

    again, rate = on_each(kind, continued, lambda: SGD(1.0, momentum=0.5), begin)[0]
    assert (again.updates, rate) == (saved.updates + 1, 1.0)
    for before, after in zip(saved.slots, again.slots, strict=True):
        assert before.keys() == after.keys()
        for name in before:  # the momentum, in a step without gradients
            assert before[name].any()
            np.testing.assert_allclose(after[name], before[name] / 2)


def deep(state: ReplicaState) -> ReplicaState:
    """Return a copy of a state, whose arrays are valid until the next step only."""
    slots = [{name: np.array(one) for name, one in slot.items()} for slot in state.slots]
    return ReplicaState([np.array(value) for value in state.values], slots, state.updates, state.steps)


@having("measures")
def test_what_is_measured_is_that_of_the_whole_batch(kind: str) -> None:
    def body(replica: Replica, _: Any, context: Context) -> Any:
        assert replica.measures is not None
        own = (0.75, 0.25) if context.is_chief else (0.5, 0.25)  # of which the parts add up to a half
        replica.measures.measure(Measures(own[0] * own[1], [], own[1], 0.5, False))
        step(replica)
        return replica.report.measured, values(replica)

    assert on_each(kind, body) == [((0.625,), [-4.0, -4.0])] * 2


@having("pending", "ps")
def test_a_settled_step_is_made(kind: str) -> None:
    def body(replica: Replica, *_: Any) -> Any:
        step(replica)
        return replica.report.unmade, values(replica)

    assert on_each(kind, body) == [(0, [-2.0, -2.0])] * 2


def test_a_class_that_does_not_say_what_it_can_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Forgets inherits from Agreement.*`agreement = itself`"):

        class Forgets(OneDeviceReplica, Agreement):
            pass


def test_every_capability_has_a_contract_here() -> None:
    names = {name for name in vars(Replica) if not name.startswith("_")}
    tested = {name for name in names if f'having("{name}"' in Path(__file__).read_text()}
    assert names - tested == {
        "pull", "gradients", "push", "finish", "close", "notes", "spans", "memory",
        "overlap",  # of JAX: tests/frameworks/test_frameworks_jax_step.py
    }  # fmt: skip
