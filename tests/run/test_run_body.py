"""Bodies: functions, output, names bound again, errors of any kind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import InvalidArgumentError, NanLossError, NbdistError, WorkerError
from nbdist.run.body_error import body_error, error_from_record
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.run.task.body import MOST_MESSAGE, MOST_TRACEBACK, describe_error
from nbdist.run.task.reporting import SCREEN, Output, printing_to
from nbdist.run.task.spawned import described
from nbdist.runtime.task import TaskInfo
from nbdist.terminal.ansi import plain
from nbdist.terminal.transcript import Transcript
from nbdist.train.context import Context, Control, use
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.ui.display.run import PrintedView, summary_of


def raised(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function()
    return caught.value


def test_a_long_message_is_truncated_with_a_note() -> None:
    def fail() -> None:
        raise ValueError("x" * 3_000_000)

    record = describe_error(raised(fail), Control())
    assert len(record["message"]) < MOST_MESSAGE + 100
    assert len(record["traceback"]) < MOST_TRACEBACK + 100
    assert "characters cut" in record["traceback"]
    assert record["traceback"].startswith("Traceback")


def test_a_lone_surrogate_in_an_error_is_escaped() -> None:
    """A kernel cannot send a lone surrogate: its cell would never end."""
    info = TaskInfo("worker", 1, 1, "host", 7, "", "CPU:0", 0)
    name = b"caf\xe9".decode("utf-8", "surrogateescape")  # like os.listdir for a name that is not UTF-8
    error = body_error(info, describe_error(ValueError(f"no picture in {name}"), Control()))
    assert error.evalue == "no picture in caf\\udce9"
    assert "ValueError: no picture in caf\\udce9\n" in str(error)


def test_a_framework_without_a_launcher_names_the_flag() -> None:
    code = compile("def inside():\n    raise ValueError(message)\ninside()", "torch/rendezvous.py", "exec")
    body = compile("exec(code, given)", "<distribute r>", "exec")
    for missing, flag in (
        ("env:// rendezvous: environment variable RANK expected, but not set", "--framework torch"),
        ("coordinator_address should be defined.", "--framework jax"),
    ):
        given = {"message": missing}
        record = describe_error(
            raised(lambda given=given: exec(body, {"code": code, "given": given})),  # type: ignore[misc]
            Control(),
        )
        *_, error, advice = record["traceback"].splitlines()
        assert error == f"ValueError: {missing}"
        assert advice.startswith(f"the ranks of a cell have these variables with {flag}")
        assert "in inside" not in record["traceback"]  # frames of a rendezvous say nothing to a user
        assert 'File "<distribute r>", line 1' in record["traceback"]


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("late"), "ValueError", "late"),
        (ValueError("two\nlines: of it"), "ValueError", "two\nlines: of it"),
        (NanLossError("the loss is NaN"), "NanLossError", "the loss is NaN"),
        (KeyError("x"), "KeyError", "'x'"),
        (ZeroDivisionError(), "ZeroDivisionError", ""),
        (
            SyntaxError("'(' was never closed", ("body", 1, 5, "x = (", 1, 6)),
            "SyntaxError",
            "'(' was never closed",
        ),
    ],
    ids=repr,
)
def test_an_error_round_trips_through_its_record(error: Exception, name: str, message: str) -> None:
    def fail() -> None:
        raise error

    info = TaskInfo("worker", 1, 1, "host", 7, "", "CPU:0", 0)
    record = str(body_error(info, describe_error(raised(fail), Control())))
    again = error_from_record(record)
    assert isinstance(again, WorkerError)
    assert (str(again), again.task, again.ename, again.evalue) == (record, info.name, name, message)


def test_another_record_becomes_a_plain_error() -> None:
    again = error_from_record("the cluster is ending")
    assert (type(again), str(again)) == (NbdistError, "the cluster is ending")


def test_an_error_that_cannot_be_printed_is_reported() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def fail() -> None:
        raise Mute

    record = describe_error(raised(fail), Control())
    assert (record["type"], record["message"]) == ("Mute", "(its message cannot be printed: RuntimeError)")


def test_a_kept_stdout_prints_to_the_current_run(tmp_path: Path) -> None:
    first, second = Output(tmp_path / "1"), Output(tmp_path / "2")
    with printing_to(first):
        held = sys.stdout
        print("one")
        held.close()
    with printing_to(second):
        print("two", file=held)
        print("three")
    assert (first.take(), second.take()) == ("one\n", "two\nthree\n")
    assert (SCREEN.encoding, SCREEN.output) == ("utf-8", None)
    for output in (first, second):
        output.finish()


def test_a_thread_that_a_run_has_left_behind_does_not_print_into_the_next_run(tmp_path: Path) -> None:
    first, second = Output(tmp_path / "1"), Output(tmp_path / "2")
    go = threading.Event()

    def speak() -> None:
        print("mine")
        go.wait(30)
        print("too late")

    with use(Context()), printing_to(first):
        left = threading.Thread(target=speak)
        left.start()
        until(lambda: "\n" in first._waiting)  # print writes the end of the line by itself
    with use(Context()), printing_to(second):
        print("next")
        go.set()
        left.join(30)
    assert (first.take(), second.take()) == ("mine\n", "next\n")
    for output in (first, second):
        output.finish()


def test_a_thread_of_what_trains_under_another_strategy_prints_into_its_run(tmp_path: Path) -> None:
    output = Output(tmp_path / "1")
    with use(Context()), printing_to(output):
        with OneDeviceStrategy().scope():
            own = threading.Thread(target=print, args=("mine",))
            own.start()
        own.join(30)
    assert output.take() == "mine\n"
    output.finish()


@pytest.mark.engines
def test_a_name_bound_to_the_same_number_again_is_fetched(cluster: Cluster) -> None:
    for _ in range(2):
        run = start_run("n, word = 5, 'five'", Options(on="worker:0"), cluster=cluster).wait()
        assert run.results == {"n": 5, "word": "five"}


@pytest.mark.engines
def test_only_names_that_the_body_binds_are_fetched(cluster: Cluster) -> None:
    start_run("model, table = 1, [1]", Options(on="worker:0"), cluster=cluster).wait()
    code = "other = 2\nif other == 3:\n    table = []"
    assert start_run(code, Options(on="worker:0"), cluster=cluster).wait().results == {"other": 2}
    run = start_run("other = 2", Options(on="worker:0", fetch=("table",)), cluster=cluster).wait()
    assert run.results == {"other": 2, "table": [1]}


MODEL = """
import numpy as np
{name} = nb.nn.Sequential([nb.nn.Dense(2, activation="softmax")])
{name}.compile("sgd")
other = nb.nn.Sequential([nb.nn.Dense(1)])
"""
FIT = "history = {name}.fit(np.ones((4, 3)), np.zeros(4, int), epochs={epochs})"


@pytest.mark.engines
def test_a_model_of_an_earlier_body_is_fetched_if_trained(cluster: Cluster) -> None:
    start_run(MODEL.format(name="model"), Options(on="worker:0"), cluster=cluster).wait()
    run = start_run(FIT.format(name="model", epochs=2), Options(on="worker:0"), cluster=cluster).wait()
    assert set(run.results) == {"history", "model"}  # not the model that was not trained
    assert run.model.predict([[1, 1, 1]]).shape == (1, 2)
    code = "evaluated = model.evaluate(np.ones((4, 3)), np.zeros(4, int))"
    run = start_run(code, Options(on="worker:0"), cluster=cluster).wait()
    assert set(run.results) == {"evaluated"}


@pytest.mark.engines
def test_a_model_trained_in_a_function_is_fetched_under_its_name(cluster: Cluster) -> None:
    start_run(MODEL.format(name="net"), Options(on="worker:0"), cluster=cluster).wait()
    code = "def train():\n    " + FIT.format(name="net", epochs=2) + "\ntrain()"
    run = start_run(code, Options(on="worker:0"), cluster=cluster).wait()
    assert (run.model is run.results["net"], [*run.results]) == (True, ["net"])
    assert run.notes == ["run.model is net, which the body has trained"]


@pytest.mark.engines
def test_a_history_of_the_users_own_is_not_taken_for_that_of_fit(cluster: Cluster) -> None:
    code = MODEL.format(name="net") + FIT.format(name="net", epochs=2).replace("history", "fitted")
    run = start_run(f"{code}\nhistory = [0.5, 0.25]", Options(on="worker:0"), cluster=cluster).wait()
    assert run.history is run.results["fitted"]
    assert run.results["history"] == [0.5, 0.25]
    assert summary_of(run).metrics == {"loss": run.history["loss"][-1]}
    alone = start_run("history = np.arange(3)", Options(on="worker:0"), cluster=cluster).wait()
    assert (alone.history, summary_of(alone).metrics) == (None, {})


@pytest.mark.engines
def test_several_trained_models_are_named(cluster: Cluster) -> None:
    code = MODEL.format(name="first") + MODEL.format(name="second")
    code += FIT.format(name="first", epochs=1) + "\n" + FIT.format(name="second", epochs=1)
    run = start_run(code + "\nboth = second", Options(on="worker:0"), cluster=cluster).wait()
    assert run.model is None
    assert run.notes == ["run.model is None: the body has trained first, second, as run.results['first']"]


@pytest.mark.engines
def test_a_stopped_run_keeps_a_model_of_an_earlier_body(cluster: Cluster) -> None:
    start_run(MODEL.format(name="model"), Options(on="worker:0"), cluster=cluster).wait()
    run = start_run(FIT.format(name="model", epochs=10**7), Options(on="worker:0"), cluster=cluster)
    while not run.store.series:
        run.poll()
    run.stop()
    assert run.wait().status == "stopped"
    assert run.model.predict([[1, 1, 1]]).shape == (1, 2)


@pytest.mark.engines
def test_an_error_shows_the_users_lines_only(cluster: Cluster) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"line 2 of the body: 'return' outside function\n    return x"
    ):
        start_run("x = 1\nreturn x", Options(on="worker:0"), cluster=cluster)
    with pytest.raises(WorkerError) as caught:
        start_run("x = 1", Options(on="worker:0", fetch=("nowhere",)), cluster=cluster).wait()
    assert "body.py" not in str(caught.value)
    assert str(caught.value).startswith(
        "nbdist.errors.InvalidArgumentError: --fetch nowhere: the body defined no 'nowhere'"
    )


@pytest.mark.engines
def test_a_function_of_a_script_knows_nb(cluster: Cluster) -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec("def body():\n    return nb.task.rank\ndef wrong():\n    return 1 / 0", script)
    run = start_run(script["body"], Options(on="worker:1"), cluster=cluster).wait()
    assert run.results == {"result": 1}
    with pytest.raises(WorkerError) as caught:
        start_run(script["wrong"], Options(on="worker:1"), cluster=cluster).wait()
    assert "body.py" not in str(caught.value)


@pytest.mark.engines
def test_an_interrupted_body_keeps_the_trained_model(cluster: Cluster) -> None:
    code = (
        "import threading\n"
        "import numpy as np\n"
        "model = nb.nn.Sequential([nb.nn.Dense(2, activation='softmax')])\n"
        "model.compile('sgd')\n"
        "model.fit(np.ones((4, 3)), np.zeros(4, int))\n"
        "print('trained')\n"
        "threading.Event().wait(60)"
    )
    run = start_run(code, Options(on="worker:0"), cluster=cluster, make_view=lambda run: InterruptAt(run))
    assert run.wait().status == "stopped"
    assert run.model.predict([[1, 1, 1]]).shape == (1, 2)


class InterruptAt:
    """A view that interrupts the run at its first output."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def tick(self) -> None:
        pass

    def progress(self, standing: Any) -> None:
        pass

    def output(self, task: str, text: str) -> None:
        self.run.interrupt()

    def end(self, run: Any) -> None:
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is needed: /dev/full")
def test_output_survives_a_full_disk() -> None:
    output = Output(Path("/dev/full"))
    with printing_to(output):
        print("kept")
    shown = output.take()
    assert shown.startswith("kept\n[output cannot be written to /dev/full: No space left on device. ")
    output.finish()


ASYNCHRONOUS = """
import asyncio
async def later(value):
    await asyncio.sleep(0)
    return value
second = await later(2)
third = await asyncio.gather(later(3), later(nb.task.rank))
await later(None)
"""


@pytest.mark.engines
def test_a_body_may_await_and_run_an_event_loop(cluster: Cluster) -> None:
    options = Options(on="worker:0")
    for _ in range(2):  # the engine's own loop runs as before
        run = start_run(ASYNCHRONOUS, options, cluster=cluster).wait()
        assert [run.results[name] for name in ("second", "third")] == [2, [3, 0]]
        first = start_run("first = asyncio.run(later([1]))", options, cluster=cluster).wait()
        assert first.results["first"] == [1]

    async def body() -> dict[str, int]:
        import asyncio

        await asyncio.sleep(0)
        return {"fourth": 4}

    body.__module__ = "__main__"  # sent by its code, as one of a notebook
    assert start_run(body, options, cluster=cluster).wait().results["fourth"] == 4


@pytest.mark.engines
@pytest.mark.parametrize(
    "call", ["quit()", "exit()", "input()", "breakpoint()", "import pdb; pdb.set_trace()"]
)
def test_what_needs_a_terminal_is_refused_by_a_sentence(cluster: Cluster, call: str) -> None:
    run = start_run(f"x = 1\n{call}\nx += 1", Options(on="worker:0"), cluster=cluster)
    with pytest.raises(WorkerError, match=r"(no keyboard on|would end) (a|this) worker") as error:
        run.wait()
    assert cluster.run("x", on=0) == [1]  # the process is there, and has its names
    assert ("in a cell without %%distribute" in str(error.value)) == ("pdb" in call or "break" in call)


@pytest.mark.engines
@pytest.mark.parametrize("bar", ["tqdm", "tqdm.auto", "tqdm.autonotebook", "tqdm.notebook"])
def test_a_progress_bar_is_a_line_that_moves(
    cluster: Cluster, bar: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = f"""
from {bar} import tqdm, trange
for name in tqdm(["a", "b"], desc="names", mininterval=0): pass
for step in trange(3, desc="steps", mininterval=0): pass
"""
    run = start_run(body, Options(on="worker:0"), cluster=cluster, make_view=PrintedView).wait()
    printed = (run.folder / "output-0000.log").read_bytes().decode()
    assert printed.count("names: ") <= 2, "of a bar that moves the file has states now and then, and the last"
    transcript = Transcript()
    transcript.append(printed)
    lines = [line.partition("|")[0] for line in transcript.text().splitlines()]
    assert list(map(plain, lines)) == ["names: 100%", "steps: 100%"]
    assert "[worker 0] steps: 100%|" in capsys.readouterr().err, "where tqdm prints its bars"


@pytest.mark.engines
def test_a_spawned_process_gets_functions_and_classes_of_the_body(cluster: Cluster) -> None:
    body = """
import multiprocessing
table = np.arange(3000.0)
class Row:
    def __init__(self, at):
        self.at = at
    def value(self):
        return table[self.at]
def double(row):
    return 2 * row.value()
with multiprocessing.get_context("spawn").Pool(1) as pool:
    doubled = pool.map(double, [Row(3), Row(2000)])
    (row,) = pool.map(Row, [5])
is_row = isinstance(row, Row)
"""
    run = start_run(f"import numpy as np{body}", Options(on="worker:0"), cluster=cluster).wait()
    assert run.results["doubled"] == [6.0, 4000.0]
    assert run.results["is_row"]


def test_what_a_spawned_process_cannot_get_is_named() -> None:
    namespace = {"__name__": "__main__", "held": threading.Lock()}
    exec("def locked():\n    return held", namespace)
    with pytest.raises(InvalidArgumentError, match=r"process cannot get locked of this body: "):
        described(namespace["locked"])


@pytest.mark.engines
def test_a_body_that_parses_arguments_finds_none(cluster: Cluster) -> None:
    body = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
epochs, given = parser.parse_args().epochs, sys.argv
"""
    results = start_run(body, Options(on="worker:0"), cluster=cluster).wait().results
    assert (results["epochs"], results["given"]) == (3, [""])
