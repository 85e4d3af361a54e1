"""Training through parameter servers with backups, several batches a step, and a bound on staleness."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from parameter_town import PATIENCE, SEED, Town
from staleness import most_stale
from tiers import matrix

from nbdist.data import Dataset
from nbdist.distribute import ParameterServerStrategy
from nbdist.distribute.served_replica import ServedReplica
from nbdist.errors import InvalidArgumentError
from nbdist.nn import Dense, Sequential
from nbdist.optim import SGD, Adam, Optimizer
from nbdist.runtime.ps.sync import Rules
from nbdist.train import Callback
from nbdist.train.callbacks import History
from nbdist.train.context import Context, use_here
from nbdist.train.replica import Replica

Array = np.ndarray[Any, Any]


@pytest.fixture
def town() -> Iterator[Callable[[int, int], Town]]:
    towns: list[Town] = []

    def make(ps: int, replicas: int) -> Town:
        towns.append(Town(ps, replicas))
        return towns[-1]

    yield make
    for one in towns:
        one.close()


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> dict[int, ServedReplica]:
    """Return the replicas by number, each from the start of its training."""
    begun: dict[int, ServedReplica] = {}
    make = ParameterServerStrategy.replica

    def noted(strategy: ParameterServerStrategy, *arguments: Any) -> Replica:
        replica = make(strategy, *arguments)
        assert isinstance(replica, ServedReplica)
        begun[strategy.replica_index] = replica
        return replica

    monkeypatch.setattr(ParameterServerStrategy, "replica", noted)
    return begun


def points(rows: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 3
    return (rng.normal(size=(rows, 4)) * 0.5 + np.eye(3, 4)[y]).astype(np.float32), y


def fit(
    dataset: Dataset, epochs: int = 3, optimizer: Optimizer | None = None, callbacks: Sequence[Callback] = ()
) -> tuple[list[Array], History]:
    made = Sequential([Dense(6, activation="tanh"), Dense(3, activation="softmax")], seed=5)
    made.compile(optimizer or SGD(0.3, momentum=0.5), "sparse_categorical_crossentropy")
    history = made.fit(dataset, epochs=epochs, callbacks=list(callbacks))
    return made.get_weights(), history


def one_device(dataset: Dataset, epochs: int = 3) -> list[Array]:
    """Train on one device, as the comparison."""
    with use_here(Context(seed=SEED, quiet=True)):
        return fit(dataset, epochs)[0]


def shuffled(rows: int, size: int) -> Dataset:
    return Dataset.from_arrays(*points(rows)).shuffle(rows).batch(size)


def raised(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def same(ours: list[Array], theirs: list[Array]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def close(ours: list[Array], theirs: list[Array]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("locking", "ps"), matrix([(True, 1), (False, 2)], rest=[(False, 1), (True, 2)]))
def test_aggregating_all_replicas_equals_the_default_bit_for_bit(
    town: Callable[[int, int], Town], ps: int, locking: bool
) -> None:
    plain, explicit = (
        raised(
            town(ps, 3).train(
                lambda i: fit(shuffled(62, 20), optimizer=Adam(0.01)), synchronous=True, **options
            )
        )
        for options in ({}, {"aggregate": 3, "locking": locking})
    )
    for (ours, _), (theirs, _) in zip(plain, explicit, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize(
    ("ps", "transport"), matrix([(1, "auto"), (2, "socket")], rest=[(1, "socket"), (2, "auto")])
)
def test_with_one_backup_the_fastest_train_on_their_shares(
    town: Callable[[int, int], Town],
    replicas: dict[int, ServedReplica],
    monkeypatch: pytest.MonkeyPatch,
    ps: int,
    transport: str,
) -> None:
    """Replica 2 is late in every step: the update is the mean over the other two of three shares."""
    x, y = points(60)
    of_two = np.arange(60) % 12 < 8  # a batch of 12 is three shares of 4, in order
    expected = one_device(Dataset.from_arrays(x[of_two], y[of_two]).batch(8))
    others_done, has_pulled = threading.Semaphore(0), threading.Event()

    class Done(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            others_done.release()

    def late(self: ServedReplica) -> None:
        if self is not replicas.get(2):
            assert has_pulled.wait(PATIENCE)
        elif not self.report.dropped:
            has_pulled.set()
            for _ in range(2 * 3):  # epochs of both the others
                assert others_done.acquire(timeout=PATIENCE)
        push(self)

    push = ServedReplica.push
    monkeypatch.setattr(ServedReplica, "push", late)
    noted: dict[History, list[int]] = {}
    note = History.step

    def step(self: History, step: int, *rest: Any) -> None:
        noted.setdefault(self, []).append(step)
        note(self, step, *rest)

    monkeypatch.setattr(History, "step", step)

    def body(i: int) -> tuple[list[Array], History]:
        return fit(Dataset.from_arrays(x, y).batch(12), callbacks=[Done()] if i < 2 else [])

    place = town(ps, 3)
    results = raised(place.train(body, synchronous=True, aggregate=2, transport=transport))
    for weights, history in results:
        close(weights, expected)
        assert history.global_step == 15
    for _, history in results[:2]:
        assert noted[history] == list(range(1, 16))
    first, *then = noted[results[2][1]]
    assert first == 1
    assert then in ([], [16])  # the others' step, not its own count
    # It may have pushed another gradient before the others left.
    assert [replicas[i].report.dropped for i in range(3)] in ([0, 0, 1], [0, 0, 2])
    assert [one.progress.dropped for one in place.contexts] == [replicas[i].report.dropped for i in range(3)]
    for statistics in replicas[0].statistics:
        assert (statistics.made, statistics.dropped[:2]) == ([15, 15, 0], [0, 0])
        assert 1 <= statistics.dropped[2] <= replicas[2].report.dropped
    assert "30 gradients applied; " in replicas[1].outcome
    assert "dropped (replica 2: " in replicas[1].outcome
    spans = place.services[0].logs.spans("r", "/job:ps/task:0")
    assert next(s.step for s in spans if s.kind == "drop") == 1
    assert not [s for s in spans if s.kind == "apply" and s.name == "gradient of replica 2"]


@pytest.mark.parametrize(
    ("aggregate", "ps", "transport"),
    matrix(
        [(1, 1, "auto"), (1, 2, "socket"), (2, 2, "auto")],
        rest=[(1, 1, "socket"), (1, 2, "auto"), (2, 1, "auto"), (2, 1, "socket"), (2, 2, "socket")],
    ),
)
def test_with_backups_everyone_ends_with_the_same_values(
    town: Callable[[int, int], Town],
    replicas: dict[int, ServedReplica],
    ps: int,
    transport: str,
    aggregate: int,
) -> None:
    results = raised(
        town(ps, 3).train(
            lambda i: fit(shuffled(60, 6), epochs=5),
            synchronous=True,
            aggregate=aggregate,
            transport=transport,
        )
    )
    for weights, _ in results[1:]:
        same(weights, results[0][0])
    for statistics in replicas[0].statistics:
        assert sum(statistics.made) % aggregate == 0
        assert sum(statistics.made) + sum(statistics.dropped) <= 150
    if ps == 1:
        assert results[0][1].global_step == sum(replicas[0].statistics[0].made) // aggregate
        assert [replicas[i].report.dropped for i in range(3)] == replicas[0].statistics[0].dropped


@pytest.mark.parametrize("ps", [1, 2])
def test_one_replica_that_contributes_several_batches_makes_larger_ones(
    town: Callable[[int, int], Town], ps: int
) -> None:
    expected = one_device(shuffled(60, 30))
    ((weights, history),) = raised(
        town(ps, 1).train(lambda i: fit(shuffled(60, 10)), synchronous=True, aggregate=3)
    )
    close(weights, expected)
    assert history.global_step == 6


@pytest.mark.parametrize(
    ("aggregate", "ps", "transport"),
    matrix(
        [(3, 1, "auto"), (3, 2, "socket"), (4, 2, "auto")],
        rest=[(3, 1, "socket"), (3, 2, "auto"), (4, 1, "auto"), (4, 1, "socket"), (4, 2, "socket")],
    ),
)
def test_several_batches_a_step_lose_none(
    town: Callable[[int, int], Town],
    replicas: dict[int, ServedReplica],
    ps: int,
    transport: str,
    aggregate: int,
) -> None:
    """Two replicas with 20 batches each; 40 gradients are 13 steps of 3 and one left over, or 10 of 4."""
    results = raised(
        town(ps, 2).train(
            lambda i: fit(shuffled(60, 6), epochs=2),
            synchronous=True,
            aggregate=aggregate,
            transport=transport,
        )
    )
    same(results[0][0], results[1][0])
    assert [history.global_step for _, history in results] == [40 // aggregate] * 2
    for statistics in replicas[0].statistics:
        assert (sum(statistics.made), sum(statistics.dropped)) == (40 - 40 % aggregate, 40 % aggregate)


@pytest.mark.parametrize(
    ("bound", "ps", "transport"),
    matrix(
        [(0, 1, "auto"), (1, 2, "auto"), (3, 2, "socket")],
        rest=[
            (0, 1, "socket"), (0, 2, "auto"), (0, 2, "socket"),
            (1, 1, "auto"), (1, 1, "socket"), (1, 2, "socket"),
            (3, 1, "auto"), (3, 1, "socket"), (3, 2, "auto"),
        ],
    ),
)  # fmt: skip
def test_no_replica_exceeds_the_staleness_bound(
    town: Callable[[int, int], Town],
    replicas: dict[int, ServedReplica],
    ps: int,
    transport: str,
    bound: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slowest begins each step only when another is held back: the slowest possible schedule."""
    # On one core fit reads no batch ahead: the map is called when the step begins.
    monkeypatch.setattr("nbdist.data.dataset.count_cores", lambda: 1)
    place = town(ps, 3)
    ahead: list[int] = []

    def held_back() -> bool:
        """Return whether the others cannot continue: a shard holds one back, or is not open yet."""
        hosted = [one for service in place.services for one in service._hosted.values()]
        shards = [one.shard for one in hosted if one.shard is not None]
        return len(shards) < ps or any(shard.waited_for for shard in shards)

    def body(i: int) -> tuple[list[Array], History]:
        def slow(x: Array, y: Array) -> tuple[Array, Array]:
            if i == 0:
                while not held_back() and any(one.progress.step < 12 for one in place.contexts[1:]):
                    assert not place.controls[0].aborted
                    threading.Event().wait(0.0005)
                steps = [context.progress.step for context in place.contexts]
                ahead.append(max(steps) - steps[0])
            return x, y

        return fit(Dataset.from_arrays(*points(24)).batch(4).map(slow), epochs=2)

    raised(place.train(body, staleness=bound, transport=transport))
    # A step that is done counts once its gradient is sent; the server has had at most as many of the slowest.
    # With a bound of 0 the others count theirs at the same moment as the slowest.
    assert min(bound, 1) <= max(ahead) <= bound + 1
    for statistics in replicas[0].statistics:
        assert statistics.made == [12, 12, 12]
        most = most_stale(Rules(3, staleness=bound))
        assert most is not None
        assert statistics.staleness[1] <= most


@pytest.mark.parametrize("transport", ["auto", "socket"])
def test_with_locking_asynchronous_replicas_count_every_update(
    town: Callable[[int, int], Town], transport: str
) -> None:
    results = raised(
        town(2, 3).train(lambda i: fit(shuffled(50, 8), epochs=2), locking=True, transport=transport)
    )
    for weights, history in results:
        assert history.global_step == 3 * 2 * 7
        same(weights, results[0][0])


def test_invalid_options_are_refused_before_the_start(town: Callable[[int, int], Town]) -> None:
    one = town(1, 2)
    with pytest.raises(InvalidArgumentError, match="aggregate=0"):
        one.strategy(0, synchronous=True, aggregate=0)
    with pytest.raises(InvalidArgumentError, match=r"aggregate=2 .* add synchronous=True"):
        one.strategy(0, aggregate=2)
    with pytest.raises(InvalidArgumentError, match=r"staleness=1 .* drop one of the two"):
        one.strategy(0, synchronous=True, staleness=1)


def test_more_gradients_a_step_than_there_will_ever_be_are_an_error_on_all(
    town: Callable[[int, int], Town],
) -> None:
    results = town(1, 2).train(lambda i: fit(shuffled(60, 20), epochs=2), synchronous=True, aggregate=13)
    for result in results:
        assert isinstance(result, InvalidArgumentError)
        assert "aggregate=13: a step takes 13 gradients, and 2 replicas with 6 batches each never" in str(
            result
        )
    ((_, history), _) = raised(
        town(1, 2).train(lambda i: fit(shuffled(60, 20), epochs=2), synchronous=True, aggregate=12)
    )
    assert history.global_step == 1
