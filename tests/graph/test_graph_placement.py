"""Which task a variable is put on, and where what is computed goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.graph.device import device_of
from nbdist.graph.placement import (
    PS_OPS,
    GreedyLoadBalancingStrategy,
    RandomStrategy,
    byte_size_load_fn,
    replica_device_setter,
)

CLUSTER = {"ps": ["ps0:2222", "ps1:2222"], "worker": ["worker0:2222", "worker1:2222", "worker2:2222"]}


@dataclass
class Fake:
    """An op, as far as placement reads it."""

    type: str = "Variable"
    name: str = "v"
    shape: tuple[int | None, ...] = ()
    dtype: Any = np.float32
    device: str = ""


class Spec:
    """What a ClusterSpec, which lives above, shows of itself."""

    def as_dict(self) -> dict[str, list[str]]:
        return CLUSTER


def placed(setter: Any, *scopes: Any, **fields: Any) -> str:
    """Return the device of a variable (or of another type) made inside the setter's scope and others."""
    return device_of(Fake(**fields), [setter, *scopes])


def some(count: int) -> Any:
    """Return a setter over ``count`` parameter servers."""
    return replica_device_setter(ps_tasks=count)


def test_variables_take_turns_and_the_rest_goes_to_the_worker() -> None:
    setter = some(2)
    assert [placed(setter), placed(setter), placed(setter)] == [f"/job:ps/task:{i}" for i in (0, 1, 0)]
    assert placed(setter, type="add") == "/job:worker"


def test_an_inner_device_is_merged_and_the_turn_continues() -> None:
    setter = some(2)
    assert placed(setter, "/cpu:0") == "/job:ps/task:0/device:CPU:0"
    assert placed(setter) == "/job:ps/task:1"
    assert placed(setter, "/cpu:0", type="add") == "/job:worker/device:CPU:0"


@pytest.mark.parametrize("kind", ["Variable", "Accumulator", "TokenQueue", "Table"])
def test_what_all_workers_share_goes_to_the_parameter_servers(kind: str) -> None:
    assert kind in PS_OPS
    assert placed(some(1), type=kind) == "/job:ps/task:0"


@pytest.mark.parametrize("kind", ["Placeholder", "Constant", "Iterator", "matmul"])
def test_what_a_worker_has_for_itself_stays_there(kind: str) -> None:
    assert placed(some(1), type=kind) == "/job:worker"


def test_ps_ops_choose_which_types() -> None:
    setter = replica_device_setter(ps_tasks=2, ps_ops=["Iterator"])
    assert placed(setter, type="Iterator") == "/job:ps/task:0"
    assert placed(setter, type="Variable") == "/job:worker"


def test_ps_ops_are_a_list() -> None:
    with pytest.raises(TypeError, match=r"ps_ops is a list of types of ops, not 'Variable'"):
        replica_device_setter(ps_tasks=1, ps_ops="Variable")


@pytest.mark.parametrize("cluster", [CLUSTER, Spec()])
def test_a_cluster_overrides_ps_tasks(cluster: Any) -> None:
    setter = replica_device_setter(ps_tasks=5, cluster=cluster)
    assert [placed(setter) for _ in range(3)] == [f"/job:ps/task:{i}" for i in (0, 1, 0)]


def test_a_job_with_gaps_keeps_its_indices() -> None:
    setter = replica_device_setter(cluster={"ps": {3: "b:1", 0: "a:1"}})
    assert [placed(setter), placed(setter)] == ["/job:ps/task:0", "/job:ps/task:3"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"ps_tasks": 0},
        {"ps_tasks": 2, "cluster": {"worker": ["w:1"]}},
        {"ps_tasks": 2, "cluster": {"ps": []}},
        {"ps_device": "/cpu:0", "cluster": CLUSTER},
    ],
)
def test_without_parameter_servers_there_is_no_setter(arguments: Any) -> None:
    assert replica_device_setter(**arguments) is None


@pytest.mark.parametrize("cluster", [3, ["ps"], {"ps": "ps0:2222"}, {"ps": 2}])
def test_what_is_no_cluster_is_a_type_error(cluster: Any) -> None:
    with pytest.raises(TypeError, match=r"cluster is a ClusterSpec or a dict|takes a list of addresses"):
        replica_device_setter(cluster=cluster)


def test_a_variable_that_names_another_job_gets_no_task() -> None:
    setter = some(2)
    assert placed(setter) == "/job:ps/task:0"
    assert placed(setter, "/job:moon") == "/job:moon"
    assert placed(setter, "/job:moon", "/job:ps") == "/job:ps/task:1"


def test_explicit_fields_win() -> None:
    setter = some(2)
    assert placed(setter, "/job:ps/task:1") == "/job:ps/task:1"
    assert placed(setter, "/job:chief/gpu:1", type="add") == "/job:chief/device:GPU:1"
    assert placed(setter, "/task:2", type="add") == "/job:worker/task:2"


def test_outer_scopes_fill_what_the_setter_leaves_open() -> None:
    assert device_of(Fake(), ["/job:moon/gpu:0", some(2)]) == "/job:ps/task:0/device:GPU:0"


def test_without_merging_an_op_with_a_device_is_left_alone() -> None:
    setter = replica_device_setter(cluster=CLUSTER, merge_devices=False)
    assert placed(setter) == "/job:ps/task:0"
    assert placed(setter, "/job:ps") == "/job:ps"
    assert placed(setter, "/cpu:0", type="add") == "/device:CPU:0"
    assert placed(setter, type="add") == "/job:worker"
    assert placed(setter) == "/job:ps/task:1"


def test_the_jobs_may_have_other_names() -> None:
    cluster = {"sun": ["s:0", "s:1", "s:2"], "moon": ["m:0", "m:1"]}
    setter = replica_device_setter(ps_device="/job:moon/cpu:0", worker_device="/job:sun", cluster=cluster)
    assert [placed(setter), placed(setter)] == [f"/job:moon/task:{i}/device:CPU:0" for i in (0, 1)]
    assert placed(setter, type="add") == "/job:sun"


def test_a_ps_device_without_a_job_has_no_tasks() -> None:
    setter = replica_device_setter(ps_tasks=1, ps_device="/cpu:0")
    assert placed(setter) == "/device:CPU:0"
    assert placed(setter, "/job:moon") == "/job:moon/device:CPU:0"
    assert placed(setter, type="add") == "/job:worker"


def test_no_ps_device_leaves_variables_with_the_worker() -> None:
    assert placed(replica_device_setter(ps_tasks=1, ps_device="")) == "/job:worker"


def test_no_worker_device_leaves_the_rest_open() -> None:
    assert placed(replica_device_setter(ps_tasks=1, worker_device=""), type="add") == ""


def test_wrong_devices_fail_where_the_setter_is_made() -> None:
    with pytest.raises(InvalidArgumentError, match="no device field 'jobs'"):
        replica_device_setter(ps_tasks=1, worker_device="/jobs:worker")
    with pytest.raises(InvalidArgumentError, match="ps_tasks is 0 or more, not -1"):
        replica_device_setter(ps_tasks=-1)


def test_a_strategy_decides() -> None:
    setter = replica_device_setter(ps_tasks=3, ps_strategy=lambda op: np.int64(len(op.name)))
    assert placed(setter, name="aa") == "/job:ps/task:2"
    assert placed(setter, name="a") == "/job:ps/task:1"


@pytest.mark.parametrize("ps_tasks", [0, 2])
def test_a_strategy_that_is_not_callable_is_a_type_error(ps_tasks: int) -> None:
    with pytest.raises(TypeError, match="ps_strategy is a function of an op that returns a task, not 3"):
        replica_device_setter(ps_tasks=ps_tasks, ps_strategy=3)  # type: ignore[arg-type]


def test_a_strategy_for_more_tasks_than_there_are_is_named() -> None:
    setter = replica_device_setter(ps_tasks=2, ps_strategy=lambda op: 2)
    with pytest.raises(InvalidArgumentError, match="put 'w' on ps task 2, but there are 2, counted from 0"):
        placed(setter, name="w")


def test_a_strategy_that_returns_no_number_is_a_type_error() -> None:
    setter = replica_device_setter(ps_tasks=2, ps_strategy=lambda op: "/job:ps")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="ps_strategy returned '/job:ps' for 'v'; expected a task's number"):
        placed(setter)


def test_greedy_by_bytes_takes_the_least_loaded_task() -> None:
    setter = replica_device_setter(
        cluster=CLUSTER, ps_strategy=GreedyLoadBalancingStrategy(2, byte_size_load_fn)
    )
    tasks = [placed(setter, shape=shape)[-1] for shape in ((2, 2), (2, 1), (2, 2), (1, 3))]
    assert tasks == ["0", "1", "1", "0"]


def test_greedy_with_equal_loads_takes_turns() -> None:
    strategy = GreedyLoadBalancingStrategy(3, lambda op: 1)
    assert [strategy(Fake()) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 5))
def test_greedy_loads_differ_by_no_more_than_the_largest(loads: list[int], tasks: int) -> None:
    strategy = GreedyLoadBalancingStrategy(tasks, lambda op: int(op.name))
    total = [0] * tasks
    for load in loads:
        chosen = strategy(Fake(name=str(load)))
        assert chosen == total.index(min(total))
        total[chosen] += load
    assert max(total) - min(total) <= max(loads, default=0)


@pytest.mark.parametrize("load", [-1, float("nan"), float("inf")])
def test_a_load_is_a_number_of_0_or_more(load: float) -> None:
    with pytest.raises(InvalidArgumentError, match="the load of 'v' is a number of 0 or more"):
        GreedyLoadBalancingStrategy(2, lambda op: load)(Fake())


def test_bytes_are_elements_times_item_size() -> None:
    assert byte_size_load_fn(Fake(shape=(3, 5), dtype=np.dtype(np.float64))) == 120
    assert byte_size_load_fn(Fake(shape=(), dtype=np.dtype(np.int16))) == 2
    assert byte_size_load_fn(Fake(shape=(0, 4))) == 0


def test_bytes_of_an_unknown_shape_are_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'v' has the shape \(\?, 3\)"):
        byte_size_load_fn(Fake(shape=(None, 3)))


def test_random_hashes_the_name_with_the_seed() -> None:
    strategy = RandomStrategy(2, seed=0)
    names = ["Variable", "Variable_1", "Variable_2", "Variable_3", "A unicode \u018e string \xf1"]
    assert [strategy(Fake(name=name)) for name in names] == [1, 0, 1, 1, 1]
    # md5 of "Variable_0" and of "Variable_7", as integers
    assert RandomStrategy(1 << 128)(Fake(name="Variable")) == 0xD34A03D6FF6EEAD51313AEAF7D22604F
    assert RandomStrategy(1 << 128, seed=7)(Fake(name="Variable")) == 0x61A96A6DA498678630A08189DEEDD015


@given(st.text(max_size=10), st.integers(), st.integers(1, 9))
def test_random_is_the_same_on_every_worker(name: str, seed: int, tasks: int) -> None:
    one, other = RandomStrategy(tasks, seed), RandomStrategy(tasks, seed)
    other(Fake(name="another"))
    assert 0 <= one(Fake(name=name)) < tasks
    assert one(Fake(name=name)) == other(Fake(name=name))


@pytest.mark.parametrize(
    "make", [RandomStrategy, lambda tasks: GreedyLoadBalancingStrategy(tasks, byte_size_load_fn)]
)
def test_a_strategy_needs_a_task(make: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="among 1 or more tasks, not 0"):
        make(0)


def test_a_load_function_is_callable() -> None:
    with pytest.raises(TypeError, match="load_fn is a function of an op"):
        GreedyLoadBalancingStrategy(2, 3)  # type: ignore[arg-type]
