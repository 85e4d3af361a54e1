"""The magics in a real IPython shell without a kernel, and the transformer that makes a cell awaited."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell

import nbdist
from nbdist.cluster.cluster import Cluster, set_current
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    WorkerError,
)
from nbdist.metrics.run_folder import RunFile
from nbdist.trials.store import LOG, new_sweep_folder
from nbdist.ui.api import attach, launch
from nbdist.ui.magics import awaited

TRAIN = """
import numpy as np
x, y = np.eye(6, 4, dtype=np.float32), np.arange(6) % 3
model = nb.nn.Sequential([nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy", ["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x, y).batch(2), epochs=2)
"""


@pytest.fixture(scope="module")
def one_shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "nbdist")
    yield shell
    InteractiveShell.clear_instance()


def test_the_extension_defines_nb_if_the_name_is_free() -> None:
    shell = InteractiveShell()
    nbdist.load_ipython_extension(shell)
    assert shell.user_ns["nb"] is nbdist
    shell.user_ns["nb"] = 3
    nbdist.load_ipython_extension(shell)
    assert shell.user_ns["nb"] == 3


@pytest.fixture
def shell(one_shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    with monkeypatch.context() as patch:
        patch.setattr(gc, "collect", lambda: 0)  # of all that other tests have left: up to 0.7 s
        one_shell.reset(new_session=False)
    set_current(None)
    return one_shell


Run = Callable[[str], Any]


@pytest.fixture
def run(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a cell; returns its error (None) and what the cell showed."""

    def run_one(code: str) -> tuple[BaseException | None, str]:
        result = shell.run_cell(code)
        return result.error_before_exec or result.error_in_exec, capsys.readouterr().out

    return run_one


# The transformer.


def call_of(lines: list[str]) -> tuple[str, str]:
    """Return flags and body as the rewritten cell hands them over."""
    (line,) = awaited(lines)
    tree = ast.parse(line, mode="exec")
    (statement,) = tree.body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Await)
    call = statement.value.value
    assert isinstance(call, ast.Call)
    flags, body, before = (ast.literal_eval(argument) for argument in call.args)
    assert before == 1 + next(i for i, one in enumerate(lines) if one.strip())
    return flags, body


@pytest.mark.parametrize(
    ("cell", "flags", "body"),
    [
        ("%%distribute\nx = 1\n", "", "x = 1\n"),
        ("%%distribute --sync   --name a\nx = 1", "--sync   --name a", "x = 1"),
        ("\n\n  \n%%distribute --sync\nx = 1\n", "--sync", "x = 1\n"),
        ("%%distribute   \n\n\nx = 1\n\n", "", "\n\nx = 1\n\n"),
        ("%%distribute", "", ""),
        (
            "%%distribute --name 'a b' \\ \"\n'''q''' \"\"\"\\n\\\\\n",
            "--name 'a b' \\ \"",
            "'''q''' \"\"\"\\n\\\\\n",
        ),
        ("%%distribute --sync # no comment here\n# comment\n", "--sync # no comment here", "# comment\n"),
        ("%%distribute\n%%distribute\n", "", "%%distribute\n"),
        ("%%distribute\n\tif x:\n\t\ty\n", "", "\tif x:\n\t\ty\n"),
        ("%%distribute\nprint('\N{SNOWMAN}\\x00')\r\n", "", "print('\N{SNOWMAN}\\x00')\r\n"),
    ],
)
def test_cells_become_awaited_calls(cell: str, flags: str, body: str) -> None:
    assert call_of(cell.splitlines(keepends=True)) == (flags, body)


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "\n\n",
        "x = 1\n",
        "# a comment first\n%%distribute\nx\n",
        "%%distributed\nx\n",
        "%distribute\nx\n",
        "%%distribute?\n",
        "%%distribute ?\n",
        "%%distribute ??\n",
        "'''\n%%distribute\n'''\n",
        "%%writefile cell.py\n%%distribute\nx\n",
        "%%time\nx\n",
        "%%time\n",
    ],
)
def test_other_cells_stay_as_they_are(cell: str) -> None:
    lines = cell.splitlines(keepends=True)
    assert awaited(lines) == lines


def test_a_magic_above_is_kept_or_done_by_the_awaited_call() -> None:
    call = "__import__('nbdist.ui.magics', fromlist=[''])."
    assert awaited(["%%time\n", "\n", "%%sweep lr=[1]\n", "x\n"]) == [
        f"await {call}timed({call}await_sweep('lr=[1]', 'x\\n', 3))\n"
    ]
    assert awaited(["%%timeit -n 1\n", "%%capture out\n", "%%distribute\n", "x\n"]) == [
        "%%timeit -n 1\n", "%%capture out\n", f"{call}run_distribute('', 'x\\n', 3)\n"
    ]  # fmt: skip


@pytest.mark.parametrize("given", [3, RunFile("digits")], ids=["number", "run"])
def test_attaching_to_what_is_no_id(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"takes the id of a run or a sweep as text.*one\.id"):
        attach(given)


def test_attaching_to_neither_a_run_nor_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    with pytest.raises(NotFoundError, match=r"no run 'nope'.*, nb\.runs\(\) lists all$"):
        attach("nope")
    (new_sweep_folder("rates") / LOG).touch()
    with pytest.raises(NotFoundError, match=r"no run 'nope'.*not a sweep either: nb\.sweeps\(\) lists those"):
        attach("nope")


@given(
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"))).map(str.strip),
    st.lists(st.text(st.characters(exclude_categories=("Cs",)))),
)
def test_any_flags_and_any_body_survive(flags: str, lines: list[str]) -> None:
    body = [line + "\n" for line in lines]
    if flags not in ("?", "??"):
        assert call_of([f"%%distribute {flags}\n", *body]) == (flags, "".join(body))


def test_loading_twice_transforms_once(shell: InteractiveShell) -> None:
    shell.run_line_magic("reload_ext", "nbdist")
    names = [getattr(t, "__name__", "") for t in shell.input_transformers_cleanup]
    assert names.count("awaited") == 1


# Mistakes, before anything is started.


@pytest.mark.parametrize(
    ("cell", "kind", "words"),
    [
        ("%%distribute --strtegy ps\nx = 1", InvalidArgumentError, "did you mean --strategy?"),
        (
            "%%distribute ps\nx = 1",
            InvalidArgumentError,
            "%%distribute: unexpected word 'ps'; the flags are --strategy",
        ),
        (
            "%%distribute --strategy mirored\nx",
            InvalidArgumentError,
            "no --strategy 'mirored'; choose from ps",
        ),
        (
            "%%distribute --epochs 0\nx",
            InvalidArgumentError,
            "--epochs is a whole number of 1 or more",
        ),
        (
            "%%distribute --fetch 1a\nx",
            InvalidArgumentError,
            "--fetch takes names of variables",
        ),
        ("%%distribute --seed", InvalidArgumentError, "--seed needs a value"),
        ("%%distribute", InvalidArgumentError, "the body is empty: there is nothing to run"),
        ("%%distribute --sync\n\n  \n", InvalidArgumentError, "the body is empty"),
        ("%cluster", NotFoundError, "this process has no cluster; start one"),
        ("%cluster stop", NotFoundError, "this process has no cluster"),
        ("%cluster restart", NotFoundError, "this process has no cluster"),
        ("%cluster restart worker:1", NotFoundError, "this process has no cluster"),
        ("%cluster grow", NotFoundError, "this process has no cluster"),
        ("%cluster shrink 2", NotFoundError, "this process has no cluster"),
        ("%cluster grwo", InvalidArgumentError, "did you mean grow?"),
        ("%cluster strat", InvalidArgumentError, "no command 'strat'; did you mean start?"),
        ("%cluster start --worker 3", InvalidArgumentError, "did you mean --workers?"),
        ("%cluster start 3", InvalidArgumentError, "unexpected word '3'; the flags are --workers"),
        ("%cluster stop 3", InvalidArgumentError, "unexpected word '3'; the only flag is --force"),
        ("%cluster start --workers 0", InvalidArgumentError, "0"),
        ("%cluster start --launcher rocket", InvalidArgumentError, "rocket"),
        ("%cluster doctor a", InvalidArgumentError, "unexpected word 'a'; the flags are --hosts"),
        ("%cluster doctor --hosts a,a", InvalidArgumentError, "a is listed twice"),
        ("%cluster attach nobody", NotFoundError, "no cluster 'nobody' is running"),
    ],
)
def test_mistakes_are_a_line_not_a_traceback(
    run: Run, cell: str, kind: type[BaseException], words: str
) -> None:
    error, shown = run(cell)
    assert type(error) is kind
    assert words in shown
    assert shown.count("\n") <= 2
    assert "Traceback" not in shown


def test_a_doctor_without_hosts_examines_this_one(run: Run) -> None:
    error, shown = run("%cluster doctor   # this one alone")
    assert error is None
    assert shown.splitlines()[0].split()[:3] == ["host", "python", "nbdist"]
    assert shown.splitlines()[1].startswith("this host ")


def test_help_shows_examples_and_flags(run: Run) -> None:
    for cell, words in (("%%distribute?", "--transport auto|socket"), ("%cluster?", "--gpu-memory")):
        error, shown = run(cell)
        assert error is None
        assert words in shown
        assert "Flags" in shown


# On a cluster.


@pytest.fixture
def on_cluster(shell: InteractiveShell, cluster: Cluster) -> Iterator[None]:
    set_current(cluster)
    yield
    set_current(None)


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_a_cell_trains_and_its_names_are_in_the_notebook(shell: InteractiveShell, run: Run) -> None:
    error, shown = run(
        f"\n%%distribute --strategy ps --sync --no-live --name cell --seed 3{TRAIN}result = len(x)"
    )
    assert error is None, shown
    names = shell.user_ns
    assert names["run"].status == "finished"
    assert names["run"].seed == 3
    assert "-cell" in names["run"].id
    assert names["history"].global_step == 6
    assert names["result"] == 6
    np.testing.assert_array_equal(names["x"], np.eye(6, 4))
    assert names["model"].predict(names["x"]).shape == (6, 3)


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
@pytest.mark.parametrize(
    "above", ["%%time\n{}", "%%capture out\n{}", "%%timeit -n 1 -r 1\n{}", "%%prun -q\n{}", "{}%%time\n"]
)
def test_a_cell_below_or_above_another_magic_trains_as_without(
    shell: InteractiveShell, run: Run, above: str
) -> None:
    error, shown = run(above.format("%%distribute --strategy one_device --no-live --on worker:0\n") + TRAIN)
    assert error is None, shown
    assert shell.user_ns["model"].predict(np.eye(6, 4)).shape == (6, 3)
    assert shell.user_ns["history"].global_step == 6
    assert ("Wall time: " in shown) == ("%%time\n" in above)
    assert ("out" in shell.user_ns) == ("out" in above)


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_a_magic_that_would_keep_the_bodys_names_is_refused_inside(run: Run) -> None:
    error, shown = run("%%distribute --no-live\n%%capture out\nx = 1")
    assert isinstance(error, InvalidArgumentError)
    assert "%%capture in the body would keep the names of the body to itself" in shown
    error, shown = run("%%time\n%%distribute --no-live\nx = (")
    assert "SyntaxError in line 3 of the cell" in shown


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_the_magic_and_the_call_do_the_same(shell: InteractiveShell, run: Run, cluster: Cluster) -> None:
    run(f"%%distribute --sync --no-live --seed 5 --epochs 3{TRAIN}")
    called = launch(TRAIN, sync=True, live=False, seed=5, epochs=3)
    assert shell.user_ns["history"].history == called.history.history  # type: ignore[union-attr]
    shell.run_cell_magic("distribute", "--sync --no-live --seed 5 --epochs 3", TRAIN)  # without await
    assert shell.user_ns["history"].history == called.history.history  # type: ignore[union-attr]


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_the_handle_is_run_whatever_the_body_calls_so(shell: InteractiveShell, run: Run) -> None:
    error, _ = run("%%distribute --no-live --on worker:1\nrun, other = 5, nb.task.index")
    assert error is None
    assert shell.user_ns["run"].results == {"run": 5, "other": 1}
    assert shell.user_ns["other"] == 1


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_a_name_that_keeps_its_earlier_value_is_told_of(shell: InteractiveShell, run: Run) -> None:
    shell.user_ns |= {"kept": 1, "strategy": 1, "each": 1}
    own = "\nstrategy, each = nb.distribute.MirroredStrategy(), iter([])"  # which no user expects to be sent
    error, shown = run("%%distribute --no-live --on worker:0\nkept, other, n = {1}, {2}, 3" + own)
    assert error is None
    assert "the notebook's kept is as before: what the body has under this name cannot be fetched" in shown
    assert (shell.user_ns["kept"], "other" in shell.user_ns, shell.user_ns["n"]) == (1, False, 3)


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_an_in_graph_cell_runs_in_the_notebooks_own_namespace(shell: InteractiveShell, run: Run) -> None:
    run("before = [1]")
    body = "before.append(2)\ndef later(): return before\nprint(nb.task.name)"
    error, shown = run(f"%%distribute --replication in-graph --no-live\n{body}")
    assert error is None, shown
    assert shown == "[client 0] /job:client/task:0\n"
    assert shell.user_ns["later"]() is shell.user_ns["before"] == [1, 2]
    error, shown = run("%%distribute --replication in-graph --strategy one_device\n1")
    assert isinstance(error, InvalidArgumentError)
    assert "drop one of the two" in shown
    error, shown = run("%%distribute --replication in-between\n1")
    assert "no --replication 'in-between'; choose from between-graph, in-graph" in shown


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_a_failing_cell_shows_the_tasks_traceback_alone(shell: InteractiveShell, run: Run) -> None:
    error, shown = run("%%distribute --no-live\nbefore = 1\nif nb.task.rank == 2:\n    1 / 0")
    assert isinstance(error, WorkerError)
    lines = shown.strip().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "    1 / 0" in lines
    assert "ZeroDivisionError: division by zero" in lines
    assert lines[-2].startswith("raised on /job:worker/task:2 (pid ")
    assert lines[-1].startswith("%cluster debug worker:2 shows its frames")
    assert "run.py" not in shown
    assert "magics.py" not in shown
    assert shell.user_ns["run"].status == "failed"


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_a_body_that_does_not_train_with_a_strategy(run: Run) -> None:
    error, shown = run("%%distribute --strategy ps --no-live\nx = 1")
    assert isinstance(error, FailedPreconditionError)
    assert shown.startswith("FailedPreconditionError: the body never trained")


@pytest.mark.engines
@pytest.mark.usefixtures("on_cluster")
def test_the_state_of_the_cluster_is_a_table(run: Run, cluster: Cluster) -> None:
    error, shown = run("%cluster")
    assert error is None
    lines = shown.splitlines()
    assert lines[0] == repr(cluster)
    assert lines[1].split() == ["rank", "task", "device", "pid", "address", "state"]
    for line, info in zip(lines[2:], cluster.tasks, strict=True):
        assert line.split() == [
            str(info.rank), info.name, info.device, str(info.pid), info.address, "running",
        ]  # fmt: skip
    assert run("%cluster status")[1] == shown
    error, shown = run("%cluster start --workers 2")
    assert isinstance(error, InvalidArgumentError)
    assert "is up already; use it, or end it first with %cluster stop" in shown


def grow_and_shrink(run: Run) -> None:
    """On a cluster with one worker."""
    error, shown = run("%cluster grow")
    assert error is None, shown
    assert shown.startswith("grown in ")
    assert "by /job:worker/task:1 (rank 1, pid " in shown
    error, shown = run("%cluster grow --workers 2")
    assert "): 4 workers" in shown
    assert "[worker 3] 3" in run("%%distribute --no-live\nprint(nb.task.index)")[1]
    error, shown = run("%cluster shrink 3")
    assert error is None, shown
    assert shown.startswith("shrunk in ")
    assert shown.endswith(": 1 worker\n")
    for line, words in (
        ("grow 0", "workers is a whole number of 1 to 511, not 0"),
        ("grow -1", "workers is a whole number of 1 to 511, not -1"),
        ("grow all", "%cluster grow takes a number of workers, such as %cluster grow 2, not 'all'"),
        ("grow 1 2", "%cluster grow takes a number of workers, such as %cluster grow 2, not '1 2'"),
        ("grow --ps 1", "%cluster grow: no flag '--ps'. The valid ones are --workers"),
        ("grow --workers two", "--workers 'two': expected a whole number"),
        ("shrink", "the cluster has one worker, the chief, which stays"),
    ):
        error, shown = run(f"%cluster {line}")
        assert isinstance(error, NbdistError)
        assert words in shown
        assert "Traceback" not in shown


@pytest.mark.engines
def test_a_cluster_of_ones_own(run: Run, shell: InteractiveShell) -> None:
    error, shown = run("%cluster start --workers 1 --id magical")
    assert error is None, shown
    assert "magical" in shown
    try:
        error, shown = run("%%distribute --no-live\nx = nb.task.name")
        assert error is None, shown
        assert shell.user_ns["x"] == "/job:worker/task:0"
        assert run("again = %cluster attach magical")[0] is None
        assert shell.user_ns["again"].tasks == Cluster.current().tasks
        pid = Cluster.current().tasks[0].pid
        error, shown = run("%cluster restart worker:0")
        assert error is None, shown
        assert shown.startswith("restarted in ")
        assert f"/job:worker/task:0 (pid {pid} -> " in shown
        assert "no task of cluster magical is dead" in run("%cluster restart")[1]
        error, shown = run("%cluster restart worker:4")
        assert "no task 'worker:4'; the tasks are worker:0 (rank 0)" in shown
        assert "Traceback" not in shown
        grow_and_shrink(run)
    finally:
        error, shown = run("%cluster stop")
    assert error is None, shown
    assert shown == "cluster magical is stopped\n"
    assert isinstance(run("%cluster")[0], NotFoundError)


@pytest.mark.processes
def test_the_extension_loads_without_front_end_packages() -> None:
    """Widgets and figures are loaded when something is shown, not with the magics."""
    code = (
        "import sys; from IPython.core.interactiveshell import InteractiveShell\n"
        "InteractiveShell.instance().run_line_magic('load_ext', 'nbdist')\n"
        "print([name for name in ('sklearn', 'torch', 'jax', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
