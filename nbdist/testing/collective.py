"""The contract of collectives: calls that all ranks of a group make together.

    class TestMine(CollectiveContract):
        def make_world(self, size, **options):
            return my_group(size, **options)      # one `Collective` for each rank

Each rank has a thread of this process; see `World`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    UnavailableError,
)
from nbdist.testing.waiting import together
from nbdist.wire.collective.base import Collective

Array: TypeAlias = np.ndarray[Any, Any]
SECONDS = 20
"""After which a rank counts as hanging."""
STACKED = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
DTYPES = ["?", "i1", "<i4", "<i8", "u2", "f2", "f4", "f8", "g", "c8", "c16", ">f4", ">i4"]
CHANCE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
"""The machine may be busy, and sizes are random: neither is a failure."""
Work = Callable[[Collective], Any]
RECORD = np.dtype([(f"a_field_with_a_long_name_{n}", "f4") for n in range(30)])
"""A dtype whose name is longer than what ranks tell each other of a call."""
MISMATCHES: dict[str, tuple[tuple[Work, Work], list[str]]] = {
    "shape": (
        (lambda g: g.all_reduce(np.ones(3)), lambda g: g.all_reduce(np.ones((2, 2)))),
        ["shape=(3,)", "shape=(2, 2)"],
    ),
    "dtype": (
        (lambda g: g.all_reduce(np.ones(3)), lambda g: g.all_reduce(np.ones(3, "f4"))),
        ["float64", "float32"],
    ),
    "op": (
        (lambda g: g.all_reduce(np.ones(3), "sum"), lambda g: g.all_reduce(np.ones(3), "max")),
        ["'sum'", "'max'"],
    ),
    "root": (
        (lambda g: g.broadcast(np.ones(3), 0), lambda g: g.broadcast(np.ones(3), 1)),
        ["root=0", "root=1"],
    ),
    "call": ((lambda g: g.barrier(), lambda g: g.all_gather(np.ones(3))), ["barrier()", "all_gather"]),
    "size": (
        (lambda g: g.all_reduce(np.ones(10)), lambda g: g.all_reduce(np.ones(900_000))),
        ["shape=(10,)", "shape=(900000,)"],
    ),
    "large": (
        (lambda g: g.broadcast(np.ones(900_000)), lambda g: g.reduce_scatter(np.ones(900_000))),
        ["broadcast", "reduce_scatter"],
    ),
    "fields": (
        (lambda g: g.all_gather(np.ones(3, RECORD)), lambda g: g.all_gather(np.ones(4, RECORD))),
        ["shape=(3,)", "shape=(4,)"],
    ),
}
"""The calls of two ranks that do not match, and what an error about them names."""


class World:
    """All ranks of a group as threads of this process."""

    def __init__(self, ranks: Sequence[Collective]) -> None:
        self.ranks = ranks

    def all(self, work: Work) -> list[Any]:
        """Run the same function on all ranks; return the results or exceptions."""
        return self.each([work] * len(self.ranks))

    def each(self, works: Sequence[Work]) -> list[Any]:
        """Run one function on each rank; return the results or exceptions."""

        def doing(rank: int) -> str:
            return f"rank {rank}, in {getattr(self.ranks[rank], 'doing', '') or 'no call'},"

        return together(len(works), lambda rank: works[rank](self.ranks[rank]), doing, SECONDS)

    def close(self) -> None:
        """Close the ranks."""
        self.all(lambda rank: rank.close())


def expected(op: str, values: Sequence[Array]) -> Array:
    """NumPy's result, combined in the order of ranks."""
    with np.errstate(all="ignore"):
        if op == "mean":
            return np.asarray(np.mean(np.stack(values), axis=0))
        result = values[0].astype(values[0].dtype.newbyteorder("="))
        for value in values[1:]:
            result = np.asarray(STACKED[op](result, value), result.dtype)
        return result


def same(one: Any, other: Any) -> bool:
    """Equal in dtype, shape and every significant bit."""
    return (
        isinstance(one, np.ndarray)
        and one.dtype == other.dtype
        and one.shape == other.shape
        and bits(one) == bits(other)
    )


def bits(x: Array) -> bytes:
    """The significant bytes of an array: a long double of 16 bytes has 10."""
    raw = np.frombuffer(x.tobytes(), np.uint8)
    return (
        raw.reshape(-1, 16)[:, :10].tobytes()
        if x.dtype == np.dtype("g") and x.itemsize == 16
        else raw.tobytes()
    )


def quiet(work: Work) -> Work:
    """Suppress NumPy's warnings of overflows, which are set for each thread; they are expected here."""

    def run(group: Collective) -> Any:
        with np.errstate(all="ignore"):
            return work(group)

    return run


@st.composite
def ranks_values(draw: st.DrawFn, size: int) -> list[Array]:
    """One array per rank, of one shape and dtype, with any strides."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    whole = tuple(2 * side for side in shape)
    seed = draw(st.integers(0, 1000))
    form = draw(st.sampled_from(["plain", "every second", "transposed", "reversed"]))
    values = []
    for rank in range(size):
        random = np.random.default_rng(seed + rank)
        value = (random.normal(0, 3, whole if form == "every second" else shape)).astype(dtype)
        if form == "every second":
            value = value[(slice(None, None, 2),) * value.ndim]
        elif form == "reversed":
            value = value[(slice(None, None, -1),) * value.ndim]
        values.append(value.T if form == "transposed" else value)
    return values


class CollectiveContract:
    """What a collective promises to the ranks of a group, whatever carries its messages.

    Results are NumPy's, and bitwise equal on all ranks, for every dtype, shape and stride. If a rank makes
    another call, fails, aborts or leaves, all others raise an error that names it; those that wait when one
    aborts do so within two seconds.

    The inheriting class gives :meth:`make_world`. It may give other ``sizes``, and ``ordered = False``.
    """

    sizes: tuple[int, ...] = (1, 2, 3)
    """Numbers of ranks to test with."""
    ordered = True
    """Whether ranks are combined in the order 0, 1, 2, ..., as NumPy does over a stack of them."""

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        """Return the collectives of a new group, in the order of ranks; each is used by one thread.

        - ``size``: the number of ranks: one of ``sizes``, or 1, 2 or 3
        - ``options``: fields of a `nbdist.wire.collective.base.Member`, such as ``check``
        """
        raise NotImplementedError(f"{type(self).__name__} has no make_world(size, **options)")

    def limit(self, seconds: float) -> float:
        """Return how long a call may take that is promised to end within ``seconds``.

        A class for a machine that is slow at times may return more.
        """
        return seconds

    def examples(self, count: int) -> int:
        """Return how many of ``count`` random examples a property is tested with, or rounds of calls."""
        return count

    def holds(self, count: int, what: Callable[[st.DataObject], None]) -> None:
        """Run a property with ``count`` examples."""
        chosen = settings(max_examples=self.examples(count), deadline=None, suppress_health_check=CHANCE)
        chosen(given(st.data())(what))()

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls) -> Iterator[Callable[[int], World]]:
        """Worlds that several tests share; they do not break them."""
        made: dict[int, World] = {}
        own = cls()

        def get(size: int) -> World:
            if size not in made or isinstance(made[size].all(lambda group: group.barrier())[0], Exception):
                made[size] = World(own.make_world(size))
            return made[size]

        yield get
        for world in made.values():
            world.close()

    @pytest.fixture
    def fresh(self) -> Iterator[Callable[..., World]]:
        """A new world for one test, which may break it."""
        with ExitStack() as stack:

            def get(size: int, **options: Any) -> World:
                world = World(self.make_world(size, **options))
                stack.callback(world.close)
                return world

            yield get

    def agree(self, results: Sequence[Any], wanted: Array) -> None:
        """Check that all ranks have the same result, which is NumPy's."""
        for result in results:
            assert not isinstance(result, BaseException), repr(result)
            assert same(result, results[0]), "ranks differ"
        if self.ordered or wanted.dtype.kind not in "fc":
            assert same(results[0], wanted)
        else:
            tolerance = 16 * float(np.finfo(wanted.dtype).eps)
            assert results[0].dtype == wanted.dtype
            scale = float(np.max(np.abs(wanted), initial=1.0, where=np.isfinite(wanted)))
            np.testing.assert_allclose(results[0], wanted, rtol=tolerance, atol=tolerance * scale * 8)

    def test_all_reduce_equals_numpy(self, worlds: Callable[[int], World]) -> None:
        def reduce(data: st.DataObject) -> None:
            world = worlds(data.draw(st.sampled_from(self.sizes)))
            values = data.draw(ranks_values(len(world.ranks)))
            op = data.draw(st.sampled_from(["sum", "mean", "min", "max", "product"]))
            results = world.all(quiet(lambda group: group.all_reduce(values[group.rank], op)))
            if values[0].dtype == "f2" and op != "mean" and not self.ordered:
                assert all(same(result, results[0]) for result in results), "ranks differ"
                return  # no tolerance is meaningful for products of float16
            self.agree(results, expected(op, values))

        self.holds(25, reduce)

    def test_reduce_scatter_returns_a_part_of_an_all_reduce(self, worlds: Callable[[int], World]) -> None:
        def scatter(data: st.DataObject) -> None:
            world = worlds(data.draw(st.sampled_from(self.sizes)))
            values = data.draw(ranks_values(len(world.ranks)).filter(lambda values: values[0].ndim > 0))
            results = world.all(quiet(lambda group: group.reduce_scatter(values[group.rank], "max")))
            for result, part in zip(results, np.array_split(expected("max", values), len(results))):
                assert same(result, part)

        self.holds(15, scatter)

    def test_all_gather_and_broadcast(self, worlds: Callable[[int], World]) -> None:
        def gather(data: st.DataObject) -> None:
            world = worlds(data.draw(st.sampled_from(self.sizes)))
            values = data.draw(ranks_values(len(world.ranks)))
            native = [value.astype(value.dtype.newbyteorder("=")) for value in values]
            root = data.draw(st.integers(0, len(values) - 1))
            for result in world.all(lambda group: group.all_gather(values[group.rank])):
                assert same(result, np.stack(native))
            for result in world.all(lambda group: group.broadcast(values[group.rank], root)):
                assert same(result, native[root])

        self.holds(15, gather)

    @pytest.mark.parametrize("count", [100_003, 900_001])
    @pytest.mark.parametrize("op", ["mean", "sum"])
    def test_large_arrays(self, worlds: Callable[[int], World], count: int, op: str) -> None:
        def check(world: World) -> None:
            ranks = range(len(world.ranks))
            values = [np.random.default_rng(rank).normal(size=count).astype("f4") for rank in ranks]
            results = world.all(lambda group: group.all_reduce(values[group.rank], op))
            self.agree(results, expected(op, values))
            places = [value.copy() for value in values]
            in_place = world.all(lambda group: group.all_reduce(places[group.rank], op, places[group.rank]))
            assert all(one is place for one, place in zip(in_place, places))
            self.agree(in_place, expected(op, values))

        for size in self.sizes:
            check(worlds(size))

    def test_large_arrays_in_the_other_calls(self, worlds: Callable[[int], World]) -> None:
        def check(world: World) -> None:
            size = len(world.ranks)
            values = [np.random.default_rng(rank).integers(0, 99, (203, 1003)) for rank in range(size)]
            total = np.sum(values, axis=0)
            parts = world.all(lambda group: group.reduce_scatter(values[group.rank], "sum"))
            for part, wanted in zip(parts, np.array_split(total, size)):
                assert same(part, wanted)
            for one in world.all(lambda group: group.all_gather(values[group.rank])):
                assert same(one, np.stack(values))
            for one in world.all(lambda group: group.broadcast(values[group.rank], group.size - 1)):
                assert same(one, values[-1])
            for one in world.all(lambda group: group.all_reduce(values[group.rank].T, "mean")):
                assert same(one, np.mean([value.T for value in values], axis=0))
            halves = [value.astype("f2") for value in values]  # whole numbers, exact in any order
            for one in world.all(lambda group: group.all_reduce(halves[group.rank], "mean")):
                assert same(one, np.mean(halves, axis=0))

        for size in self.sizes:
            check(worlds(size))

    def test_an_output_that_overlaps_the_input(self, worlds: Callable[[int], World]) -> None:
        for size in self.sizes:

            def shifted(group: Collective) -> Any:
                memory = np.arange(300_001.0) + group.rank
                return group.all_reduce(memory[:-1], "max", memory[1:])

            for result in worlds(size).all(shifted):
                assert same(result, np.arange(300_000.0) + size - 1)

    def test_symmetric_buffers_are_reduced_in_place(self, worlds: Callable[[int], World]) -> None:
        for size in self.sizes:

            def reduce(group: Collective) -> Any:
                small, large = group.symmetric_buffer((3, 5), "f4"), group.symmetric_buffer((400, 1000), "f4")
                assert not small.any()
                assert not large.any()
                for number in range(4):
                    small[:], large[:] = group.rank + number, np.arange(1000) * (group.rank + 1) + number
                    assert group.all_reduce(small, "max", small) is small
                    assert (small == group.size - 1 + number).all()
                    assert group.all_reduce(large, "sum", large) is large
                    total = group.size * (group.size + 1) / 2
                    assert (large == np.arange(1000) * total + number * group.size).all()
                    group.all_reduce(large[1:], "mean", large[1:])  # a part of it is an ordinary array
                    assert (large[1:] == large[0]).all()
                return group.all_reduce(large, "mean", large)

            results = worlds(size).all(reduce)
            for result in results:
                assert same(result, results[0]), results

    @pytest.mark.parametrize("count", [3, 120_000])
    def test_sharded_calls_in_place(self, worlds: Callable[[int], World], count: int) -> None:
        """A reduce-scatter into this rank's row, and an all-gather from it, of symmetric and other arrays."""
        for size in self.sizes:

            def both(group: Collective, count: int = count, size: int = size) -> Any:
                found = []
                for rows in (group.symmetric_buffer((size, count), "f4"), np.zeros((size, count), "f4")):
                    own = rows[group.rank : group.rank + 1]
                    for number in range(2):
                        rows[:] = np.arange(count) % 7 + np.arange(size)[:, None] + group.rank + number
                        assert group.reduce_scatter(rows, "sum", out=own) is own
                        own += 1
                        assert group.all_gather(own[0], out=rows) is rows
                        found.append(rows.copy())
                return np.array(found)

            base = np.arange(count) % 7 + np.arange(size)[:, None]
            wanted = np.array(
                [size * (base + n) + size * (size - 1) // 2 + 1 for n in (0, 1)] * 2, np.float32
            )
            for result in worlds(size).all(both):
                assert same(result, wanted), result

    def test_many_calls_of_all_sizes_in_a_row(self, worlds: Callable[[int], World]) -> None:
        rounds = self.examples(60)
        for size in self.sizes:

            def many(group: Collective) -> list[float]:
                sums = []
                for number in range(rounds):
                    count = (1, 40_000, 7, 300_000, 9_000)[number % 5]
                    x = np.full(count, number + group.rank, "f4")
                    sums.append(float(group.all_reduce(x, "sum")[-1]))
                    sums.append(float(group.all_gather(x[:number])[:, :1].sum()))
                    sums.append(float(group.broadcast(x, number % group.size)[-1]))
                    sums.append(float(group.reduce_scatter(x.reshape(1, -1).repeat(4, 0), "max").sum()))
                    group.barrier()
                return sums

            results = worlds(size).all(many)
            assert all(isinstance(one, list) for one in results), results
            for result in results:
                for number in range(rounds):
                    total = sum(number + rank for rank in range(size))
                    assert result[4 * number] == total
                    assert result[4 * number + 1] == (total if number else 0)
                    assert result[4 * number + 2] == number + number % size

    def test_a_barrier_waits_for_all(self, worlds: Callable[[int], World]) -> None:
        arrived: list[int] = []

        def late(group: Collective) -> int:
            if group.rank == 0:
                deadline = time.monotonic() + SECONDS
                while len(arrived) < group.size - 1 and time.monotonic() < deadline:
                    time.sleep(0)
            arrived.append(group.rank)
            group.barrier()
            return len(arrived)

        for size in self.sizes:
            arrived.clear()
            assert worlds(size).all(late) == [size] * size

    @pytest.mark.parametrize("mismatch", MISMATCHES)
    @pytest.mark.parametrize("odd", [0, 1, 2])
    def test_all_ranks_raise_a_mismatch_that_names_both_calls(
        self, fresh: Callable[..., World], mismatch: str, odd: int
    ) -> None:
        world, (works, words) = fresh(3), MISMATCHES[mismatch]
        for one in world.all(lambda group: group.all_reduce(1, "sum")):
            assert one == 3
        results = world.each([works[rank == odd] for rank in range(3)])
        for result in results:
            assert isinstance(result, InvalidArgumentError), result
            assert "collective #2" in str(result)
            assert f"rank {odd} (" in str(result)
            assert all(word in str(result) for word in words), result
        for result in world.all(lambda group: group.barrier()):
            assert isinstance(result, InvalidArgumentError)
            assert "broken" in str(result)

    def test_invalid_arguments_are_refused(self, worlds: Callable[[int], World]) -> None:
        world, invalid = worlds(1), cast(Array, [1, 2, 3])
        bad: list[tuple[Work, str]] = [
            (lambda g: g.all_reduce(np.ones(3), out=invalid), "out of"),
            (lambda g: g.all_reduce(np.ones(3), "median"), "no op 'median'; choose from"),
            (lambda g: g.all_reduce(np.array(["a"])), "cannot reduce"),
            (lambda g: g.all_reduce(np.array([None])), "fixed size"),
            (lambda g: g.broadcast(np.ones(3), 7), "ranks are 0 to 0"),
            (lambda g: g.reduce_scatter(np.ones(())), "first axis"),
            (lambda g: g.all_reduce(np.ones(3), out=np.ones(4)), "it has to be float64"),
            (lambda g: g.all_reduce(np.ones(3, int), "mean", np.ones(3, int)), "it has to be float64"),
        ]
        for work, text in bad:
            (error,) = world.all(work)
            assert isinstance(error, InvalidArgumentError), error
            assert text in str(error)
        assert world.all(lambda group: group.all_reduce(1.0)) == [1.0], "the group still works"

    def test_an_abort_ends_all_waits_with_the_first_reason(self, fresh: Callable[..., World]) -> None:
        world = fresh(3)
        world.all(lambda group: group.barrier())
        begun = time.monotonic()
        timer = threading.Timer(0.05, lambda: world.ranks[2].abort("the body raised ValueError"))
        timer.start()
        results = world.each([lambda group: group.barrier(), lambda group: group.barrier(), lambda group: 0])
        timer.join()
        assert time.monotonic() - begun < self.limit(2.05)
        for result in [*results[:2], *world.all(lambda group: group.barrier())]:
            assert isinstance(result, AbortedError), result
            assert "rank 2 (" in str(result)
            assert "the body raised ValueError" in str(result)

    @pytest.mark.parametrize("kind", [AbortedError, UnavailableError, OSError])
    def test_an_error_of_the_abort_check_ends_all_waits(
        self, fresh: Callable[..., World], kind: type[Exception]
    ) -> None:
        flag, ended = threading.Event(), kind("the run was ended")
        raised: list[int] = []

        def check() -> None:
            if flag.is_set() and not raised:
                raised.append(threading.get_ident())
                raise ended

        def wait(group: Collective) -> int:
            try:
                group.barrier()
            finally:
                threads[group.rank] = threading.get_ident()
            return 0

        world = fresh(3, check=check)
        assert world.all(lambda group: group.all_reduce(1, "sum")) == [3] * 3
        threads: dict[int, int] = {}
        begun = time.monotonic()
        timer = threading.Timer(0.05, flag.set)
        timer.start()
        results = world.each([wait, wait, lambda group: 0])
        timer.join()
        assert time.monotonic() - begun < self.limit(2.05)
        for rank, result in enumerate(results[:2]):
            if threads[rank] in raised:
                assert result is ended
            else:
                assert isinstance(result, kind if kind is not OSError else AbortedError), result
                assert "the run was ended" in str(result)

        # The rank that did not wait may still complete the call of the others: they sent their part before.
        def two_more(group: Collective) -> None:
            group.barrier()
            group.barrier()

        for result in world.all(two_more):
            assert "the run was ended" in str(result), result

    def test_the_abort_check_is_called_between_short_waits(self, fresh: Callable[..., World]) -> None:
        flag = threading.Event()

        def check() -> None:
            if flag.is_set():
                raise AbortedError("the run was ended")

        def again_and_again(group: Collective) -> int:
            for number in range(10**9):
                group.all_reduce(1, "sum")
                if number == 10:
                    flag.set()
            return 0

        begun = time.monotonic()
        for result in fresh(2, check=check).all(again_and_again):
            assert isinstance(result, AbortedError), result
        assert time.monotonic() - begun < self.limit(2.0)

    def test_an_error_in_a_call_ends_the_waits_of_the_others(self, fresh: Callable[..., World]) -> None:
        world = fresh(3)

        def strict(group: Collective) -> Any:
            with np.errstate(all="raise"):
                return group.all_reduce(np.full(3, 3e38, "f4"), "sum")

        results = world.all(strict)
        assert any(isinstance(one, FloatingPointError) for one in results)
        results = world.all(lambda group: group.barrier())
        assert all(isinstance(one, AbortedError) and "overflow" in str(one) for one in results), results

    def test_ranks_do_not_wait_for_a_rank_that_leaves(self, fresh: Callable[..., World]) -> None:
        world = fresh(3)
        world.all(lambda group: group.barrier())
        results = world.each(
            [lambda group: group.barrier(), lambda group: group.close(), lambda g: g.barrier()]
        )
        for result in (results[0], results[2]):
            assert isinstance(result, UnavailableError), result
            assert "rank 1 (" in str(result)
            assert "has left" in str(result)
        assert isinstance(world.all(lambda group: group.barrier())[1], FailedPreconditionError)

    def test_ranks_may_leave_directly_after_the_last_call(self, fresh: Callable[..., World]) -> None:
        for _ in range(5):
            world = fresh(3)

            def last(group: Collective) -> float:
                result = group.all_reduce(np.full(70_000, group.rank + 1.0), "sum")
                group.close()
                return float(result[-1])

            assert world.all(last) == [6.0] * 3

    def test_an_exception_in_the_with_block_aborts(self, fresh: Callable[..., World]) -> None:
        world = fresh(2)

        def body(group: Collective) -> None:
            with group:
                if group.rank:
                    raise ValueError("bad data")
                group.barrier()

        one, other = world.all(body)
        assert isinstance(one, AbortedError), one
        assert "bad data" in str(one)
        assert isinstance(other, ValueError)

    def test_a_second_thread_in_a_call_is_refused(self, fresh: Callable[..., World]) -> None:
        world = fresh(2)
        group = world.ranks[0]
        begun = threading.Thread(target=group.barrier, daemon=True)
        begun.start()
        deadline = time.monotonic() + SECONDS
        found: list[NbdistError] = []
        while not found and time.monotonic() < deadline:
            if group.sequence:
                with pytest.raises(FailedPreconditionError, match="another thread") as raised:
                    group.barrier()
                found.append(raised.value)
        world.each([lambda _: None, lambda other: other.barrier()])
        begun.join(SECONDS)
        assert not begun.is_alive()
        assert found
