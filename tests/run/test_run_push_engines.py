"""Values of the client in bodies on engines: shared memory, arguments, names that are not there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist.cluster.cluster import Cluster, set_current
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, WorkerError
from nbdist.metrics.run_folder import read_run
from nbdist.run.run import Run
from nbdist.trials.start import attach_sweep, start_sweep
from nbdist.ui import magics
from nbdist.ui.api import launch
from nbdist.ui.magics import begin_sweep

pytestmark = pytest.mark.engines

LOOK = """
with open("/proc/self/maps") as maps:
    inodes = sorted({line.split()[4] for line in maps if "/nbdist-" in line and "r--s" in line})
print(inodes, x.sum(), x.flags.writeable, words)
"""


def quiet(body: str | Callable[..., Any], cluster: Cluster, **options: Any) -> Run:
    return launch(body, cluster=cluster, live=False, **options)


def segments(cluster: Cluster) -> list[str]:
    """Return the names of a cluster's segments, once its tasks have released what earlier runs had."""
    for info in cluster.tasks:  # a connection keeps its order: the releases are before this call
        cluster.peer(info.rank).call("ping")
    return sorted(path.name for path in Path("/dev/shm").glob(f"nbdist-{cluster.id}-*"))


@pytest.fixture
def current(cluster: Cluster) -> Iterator[None]:
    """Have magics use the cluster of the session: without one they start a small one."""
    set_current(cluster)
    yield
    set_current(None)


def test_workers_of_one_host_map_one_copy(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    x, before = np.arange(200_000.0), segments(cluster)
    run = quiet(LOOK, cluster, push={"x": x, "words": ["a", "b"]})
    lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3
    assert len(set(lines)) == 1, "the same file, the same values"
    assert lines[0].endswith(f"{x.sum()} False ['a', 'b']")
    assert "[]" not in lines[0]
    assert segments(cluster) == before
    assert "x" not in run.results


def test_pushed_names_are_there_for_one_run_and_what_was_there_comes_back(cluster: Cluster) -> None:
    quiet("x, y = 'mine', 'kept'", cluster)
    run = quiet("seen = (x, z)\nz = z + 1", cluster, push={"x": 1, "z": 2})
    assert run.results["seen"] == (1, 2)
    run = quiet("seen = (x, y, z)", cluster)
    assert run.results["seen"] == ("mine", "kept", 3), "what the body bound anew stays"
    quiet("del x, y, z", cluster)


def test_a_function_has_arguments_and_what_it_closes_over(cluster: Cluster) -> None:
    table, scale = np.arange(9000.0), 3

    def helper(i: int) -> float:
        return float(table[i]) * scale

    def body(i: int, data: Any, *, more: int) -> Any:
        return helper(i) + more, data["x"].sum(), table.flags.writeable

    body.__module__ = "__main__"  # as in a notebook
    data = {"x": np.ones(5000)}
    run = quiet(body, cluster, args=(7, data), kwargs={"more": 2})
    assert run.results["result"] == (23.0, 5000.0, False)
    record = read_run(run.id)
    assert "return helper(i) + more" in record.code
    assert (record.given["i"], record.given["more"]) == (7, 2)
    assert str(record.given["data"]).startswith("{'x':")
    with pytest.raises(InvalidArgumentError, match="args and kwargs are for a body that is a function"):
        quiet("x = 1", cluster, args=(1,))


@pytest.mark.usefixtures("current")
def test_a_name_of_the_notebook_that_a_worker_lacks_is_named(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbdist.run.values.delivery.user_namespace", lambda: {"size": 3})
    with pytest.raises(WorkerError, match=r"defined in the notebook.* pass it with push=\{'size': size\}"):
        quiet("print(size)", cluster)
    with pytest.raises(WorkerError) as caught:
        magics.begin("--no-live --push n", "\nprint(n)\nprint(size)\n", {"n": 3}).wait()
    assert "add --push n,size" in str(caught.value)
    assert "line 4, in <module>\n    print(size)" in str(caught.value), "the first line is the magic's"
    with pytest.raises(WorkerError) as caught:
        quiet("print(never)", cluster)
    assert "notebook" not in str(caught.value)


def test_what_cannot_be_pushed_starts_nothing(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match=r"stream cannot be pushed: it is of type list_iterator"):
        quiet("x = 1", cluster, push={"stream": iter([])})
    with pytest.raises(InvalidArgumentError, match=r"no 'data'; did you mean dataa\?"):
        magics.begin("--push data", "x = 1", {"dataa": 3})
    with pytest.raises(InvalidArgumentError, match="SyntaxError in line 3 of the cell") as caught:
        magics.begin("", "x = 1\ny = (\n", {})
    assert str(caught.value).endswith("    y = (\n        ^")
    assert quiet("seen = 1", cluster).results == {"seen": 1}


def test_an_in_graph_body_finds_them_in_this_process(cluster: Cluster) -> None:
    x = np.arange(3)
    run = quiet("same = x", cluster, push={"x": x}, replication="in-graph")
    assert run.results["same"] is x
    run = quiet(lambda n: n + x, cluster, args=(1,), replication="in-graph")
    assert run.results["result"].tolist() == [1, 2, 3]


def test_trials_find_pushed_values_and_what_a_function_closes_over(cluster: Cluster) -> None:
    x, scale, before = np.ones(9000), 2, segments(cluster)

    def trial(lr: float) -> dict[str, float]:
        return {"score": lr * scale * x.sum(), "writeable": float(x.flags.writeable)}

    trial.__module__ = "__main__"
    sweep = start_sweep(trial, "lr=[1, 2, 3]", metric="score", sampler="grid", cluster=cluster).wait()
    assert sorted(one.value for one in sweep.trials) == [18000, 36000, 54000]
    text = start_sweep(
        "score = x.sum() * lr", {"lr": [1, 2]}, metric="score", sampler="grid", cluster=cluster,
        push={"x": x, "lr": 100},
    ).wait()  # fmt: skip
    assert sorted(one.value for one in text.trials) == [9000, 18000], "a parameter wins"
    gc.collect()
    assert segments(cluster) == before
    sweep.leave()
    text.leave()


def test_a_sweep_of_another_kernel_asks_for_its_pushed_values(cluster: Cluster) -> None:
    first = start_sweep(
        "score = n * lr", {"lr": [1, 2]}, metric="score", sampler="grid", cluster=cluster, push={"n": 5}
    ).wait()
    first.leave()
    mine = attach_sweep(first.id, cluster=cluster)
    assert mine.over, "what is over can be looked at without them"
    with pytest.raises(FailedPreconditionError, match=r"were pushed .*attach\(.*, push=\{'n': n\}\)"):
        mine.clone(0)
    with pytest.raises(InvalidArgumentError, match="was started with pushed values n, and push has m"):
        attach_sweep(first.id, cluster=cluster, push={"m": 3})
    with pytest.raises(InvalidArgumentError, match="is a cell, which its log has: attach without trial="):
        attach_sweep(first.id, cluster=cluster, trial=attach_sweep)
    assert attach_sweep(first.id, cluster=cluster, push={"n": 7}) is mine  # with what it was given
    mine.clone(0)
    mine.wait()
    assert max(one.value for one in mine.trials) in (10, 14)
    mine.leave()


@pytest.mark.usefixtures("current")
def test_a_trial_that_lacks_a_name_says_what_to_add(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbdist.run.values.delivery.user_namespace", lambda: {"size": 3})
    namespace: dict[str, Any] = {"n": 3}
    sweep, _ = begin_sweep(
        "lr=[1] --metric score --push n --no-live", "\nscore = lr * n * size\n", namespace, may_wait=False
    )
    with pytest.raises(WorkerError):
        sweep.wait()
    error = sweep.trials[0].error
    assert error.endswith("`size` is defined in the notebook, not on the workers: add --push n,size")
    assert "line 3, in <module>" in error
    sweep.leave()
