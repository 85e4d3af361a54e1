"""What a client receives from a task: values, printed text, errors, progress."""

from __future__ import annotations

import ast
import errno
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.errors import AbortedError, InvalidArgumentError, ResourceExhaustedError
from nbdist.metrics.run_folder import RunFile
from nbdist.metrics.store import RunStore
from nbdist.nn import Dense, Sequential
from nbdist.run.control import progress_message
from nbdist.run.membership import MembershipRules
from nbdist.run.options import Options
from nbdist.run.progress import WINDOW, ProgressTracker
from nbdist.run.recovery.member import Members, State
from nbdist.run.recovery.replacement import Restart
from nbdist.run.remote import EndedTasks
from nbdist.run.run import Run
from nbdist.run.task import reporting
from nbdist.run.task.body import assigned_names, certain_names, describe_error
from nbdist.run.task.reporting import Output
from nbdist.run.values import outcome
from nbdist.run.values.outcome import pack, unpack
from nbdist.runtime.task import TaskInfo
from nbdist.train.callbacks import History
from nbdist.train.context import Context, Control, Progress

# Values.

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(plain)
def test_plain_values_round_trip(value: Any) -> None:
    fetched = unpack(pack(value))
    assert fetched == value
    assert type(fetched) is type(value)


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.array(1.5), np.zeros((0, 3), np.float32), np.array(["a", "bc"])]
)
def test_arrays_round_trip(array: Any) -> None:
    fetched = unpack(pack({"one": [array]}))["one"][0]
    np.testing.assert_array_equal(fetched, array)
    assert fetched.dtype == array.dtype


def test_numpy_scalars_arrive_as_numbers() -> None:
    assert unpack(pack(np.float32(1.5))) == 1.5
    assert type(unpack(pack(np.int64(3)))) is int
    assert type(unpack(pack(np.float64(3)))) is float
    assert unpack(pack([np.bool_(True)])) == [True]


def test_a_model_and_a_history_round_trip() -> None:
    model = Sequential([Dense(2, "softmax")], seed=3).build((4,))
    fetched = unpack(pack(model))
    np.testing.assert_array_equal(fetched.weights[0], model.weights[0])
    fetched.weights[0][:] = 9
    assert not (model.weights[0] == 9).any()
    history = History()
    history.history, history.epoch, history.global_step = {"loss": [2.0, 1.0]}, [0, 1], 8
    again = unpack(pack(history))
    assert (again.history, again.epoch, again.global_step) == ({"loss": [2.0, 1.0]}, [0, 1], 8)


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: 1, "a function cannot be fetched; return numbers, arrays or a model"),
        (object(), "a object cannot be fetched"),
        ({1, 2}, "a set cannot be fetched"),
        ({(1, 2): 3}, "a dict cannot be fetched"),
        ([1, [object()]], "a object inside of it cannot be fetched; return a dict"),
        (np.array([object()]), "an array of objects stays"),
        (nested(20), "nested too deeply"),
        (Sequential([Dense(2)]), "a model without weights stays where it is"),
    ],
)
def test_values_that_cannot_be_fetched_are_named_with_the_reason(value: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        pack(value)


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArgumentError, match="nested too deeply"):
        pack(endless)


def test_too_large_values_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "LIMIT_BYTES", 1000)
    with pytest.raises(
        ResourceExhaustedError, match=r"8,0\d\d bytes are more than the 1,000 that may be fetched"
    ):
        pack({"a": np.zeros(1000)})
    with pytest.raises(ResourceExhaustedError):
        pack("x" * 2000)
    pack(np.zeros(100))


# Names.


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("a = b = 1", ["a", "b"]),
        ("(a, [b, *c]) = x", ["a", "b", "c"]),
        ("a: int = 1\nb += 2", ["a", "b"]),
        ("for i in x:\n    j = i", ["i", "j"]),
        ("with f() as g:\n    h = g", ["g", "h"]),
        ("if x:\n    a = 1\nelse:\n    b = 2", ["a", "b"]),
        ("def f():\n    inside = 1\nclass C:\n    attribute = 1", []),
        ("f = lambda: (y := 1)", ["f"]),
        ("(z := 3)", ["z"]),
        ("_private = 1\nimport numpy as np", []),
        ("x.attribute = 1\nx[0] = 2\ndel x", []),
        ("try:\n    a = 1\nexcept E as e:\n    b = 2", ["a", "b"]),
    ],
)
def test_names_that_a_body_binds(code: str, names: list[str]) -> None:
    assert assigned_names(ast.parse(code)) == names


def test_names_that_a_body_binds_in_any_case() -> None:
    code = "a = 1\nb: int\nc: int = 2\nd += 1\nfor e in x: f = 1\nif x: g = 1\n_h = 1\ni, j = 1, 2"
    assert certain_names(ast.parse(code)) == {"a", "c", "d", "i", "j"}


# Errors.


def test_an_error_starts_at_the_users_code() -> None:
    code = compile("def f():\n    return 1 / 0\nf()", "<distribute run-1>", "exec")
    try:
        exec(code, {})
    except ZeroDivisionError as error:
        described = describe_error(error, Control())
    assert described["type"] == "ZeroDivisionError"
    assert described["message"] == "division by zero"
    assert described["traceback"].splitlines()[1] == '  File "<distribute run-1>", line 3, in <module>'
    assert not described["aborted"]
    assert not described["interrupted"]


def test_an_aborted_error_counts_as_abort_only_in_an_aborted_run() -> None:
    assert describe_error(AbortedError("x"), Control(aborted="why"))["aborted"]
    assert not describe_error(AbortedError("x"), Control())["aborted"]
    assert not describe_error(ValueError("x"), Control(aborted="why"))["aborted"]
    assert describe_error(KeyboardInterrupt(), Control())["interrupted"]


# Text.


@pytest.fixture
def out(tmp_path: Path) -> Any:
    one = Output(tmp_path / "output-0000.log")
    yield one
    one.finish()


def test_text_is_taken_once_and_kept_in_a_private_file(out: Output, tmp_path: Path) -> None:
    print("one", file=out)
    print("two", end="", file=out)
    assert out.take() == "one\ntwo"
    assert out.take() == ""
    out.write("\ud800\N{SNOWMAN}")
    assert out.take() == "\ud800\N{SNOWMAN}"
    path = tmp_path / "output-0000.log"
    assert path.read_text() == "one\ntwo?\N{SNOWMAN}"
    assert path.stat().st_mode & 0o777 == 0o600


def test_too_much_at_once_is_cut_and_counted(out: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "WAITING_LIMIT", 10)
    assert out.write("12345678") == 8
    assert out.write("abcdefgh") == 8
    out.write("more")
    text = out.take()
    assert text.startswith(
        "12345678ab\n[10 characters were printed faster than they can be shown, and dropped]"
    )
    out.write("again")
    assert out.take() == "again"


def test_a_file_of_output_is_bounded(out: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "FILE_LIMIT", 4)
    out.write("123456")
    path = tmp_path / "output-0000.log"
    assert out.take() == f"123456\n[{path} has the 0 MiB that it may have; further output is only shown]\n"
    out.write("78")
    assert out.take() == "78"
    assert path.read_text() == "123456"


def test_what_a_full_disk_does_not_take_is_counted_in_the_file(out: Output, tmp_path: Path) -> None:
    class Disk(io.FileIO):
        room = 3

        def write(self, data: Any) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken = super().write(data[: self.room])
            self.room -= taken
            return taken

    path = tmp_path / "output-0000.log"
    out._file = disk = Disk(path, "ab")
    shown = []
    for text, room in (("first\n", 3), ("second\n", 0), ("third\n", 1000)):
        disk.room = room
        out.write(text)
        shown.append(out.take())
    assert shown[0].startswith(f"first\n[output cannot be written to {path}: No space left on device. ")
    assert shown[1:] == ["second\n", "third\n"]
    assert path.read_text() == "fir\n[10 bytes of output are missing here: the disk was full]\nthird\n"


def test_output_of_threads_is_recorded(out: Output) -> None:
    threads = [
        threading.Thread(target=lambda i=i: [print(i, file=out) for _ in range(200)]) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(out.take().split()) == sorted(str(i) for i in range(4) for _ in range(200))


def test_a_link_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "output-0000.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Output(tmp_path / "output-0000.log")


# Progress.


def report(step: int, examples: int = 0, total: int | None = 100, state: str = "running") -> dict[str, Any]:
    return vars(Progress(step=step, total=total, examples=examples or step * 10, state=state))


def test_asynchronous_replicas_add_up() -> None:
    tally, store = ProgressTracker(2, synchronous=False), RunStore()
    for second in range(3):
        tally.update(0, report(10 * second), float(second))
        tally.update(1, report(20 * second), float(second))
    standing = tally.standing(2.0, store)
    assert (standing.step, standing.total, standing.state) == (60, 200, "running")
    assert standing.steps_per_second == 30
    assert standing.examples_per_second == 300
    assert standing.seconds_left == pytest.approx(140 / 30)
    assert standing.elapsed == 2.0
    assert [replica.steps_per_second for replica in standing.replicas] == [10, 20]


def test_a_replica_that_has_ended_makes_no_steps_beside_a_slower_one() -> None:
    tally, store = ProgressTracker(2, synchronous=False), RunStore()
    for second in range(3):
        tally.update(0, report(50 * second, state="finished" if second == 2 else "running"), float(second))
        tally.update(1, report(10 * second), float(second))
    standing = tally.standing(2.0, store)
    assert (standing.step, standing.steps_per_second, standing.examples_per_second) == (120, 10, 100)
    assert standing.seconds_left == pytest.approx(8.0)
    assert [replica.steps_per_second for replica in standing.replicas] == [50, 10]
    tally.update(1, report(30, total=30, state="finished"), 3.0)
    assert tally.standing(3.0, store).steps_per_second == 60  # the view keeps what both made


def test_synchronous_replicas_step_together() -> None:
    tally = ProgressTracker(2, synchronous=True)
    for second in range(3):
        for replica in range(2):
            tally.update(replica, report(10 * second), float(second))
    standing = tally.standing(2.0, RunStore())
    assert (standing.step, standing.total, standing.steps_per_second) == (20, 100, 10)
    assert standing.examples_per_second == 200


def test_the_epoch_is_that_of_the_replica_which_has_most_left() -> None:
    members = Members([TaskInfo("worker", i, i, "here", 7, "", "", 1) for i in range(3)])
    tally, store = ProgressTracker(3, synchronous=False, members=members.workers), RunStore()

    def epoch(number: int) -> dict[str, int]:
        return {"epoch": number, "epochs": 40}

    tally.update(0, report(100, state="finished") | epoch(40), 1.0)
    tally.update(1, report(70) | epoch(28), 1.0)
    assert (tally.standing(1.0, store).epoch, tally.standing(1.0, store).epochs) == (28, 40)
    tally.update(2, report(5) | epoch(2), 1.0)
    assert tally.standing(1.0, store).epoch == 2
    members.workers[2].move(State.LOST)
    tally.lose(2, 2.0)
    assert tally.standing(2.0, store).epoch == 28
    tally.update(1, report(75, state="finished") | epoch(30), 2.0)  # by a callback
    assert (tally.standing(2.0, store).epoch, tally.standing(2.0, store).epochs) == (40, 40)


def test_a_new_process_that_dies_before_it_has_joined_counts_no_steps() -> None:
    members = Members([TaskInfo("worker", i, i, "here", 7, "", "", 1) for i in range(2)])
    tally, store = ProgressTracker(2, synchronous=False, members=members.workers), RunStore()
    member = members.workers[1]
    tally.update(1, report(70, examples=70), 1.0)
    member.move(State.LOST)
    tally.lose(1, 2.0)
    member.renew(member.info, State.JOINING, Restart(member.info, "it died", 1, 2.0, calls=NoCalls()))
    tally.restart(1)
    member.suspect(3.0, "it died again", "")
    tally.update(1, report(3), 3.0)
    assert tally.standing(3.0, store).replicas[1].state == "restarting"
    assert tally.standing(3.0, store).step == 70


def test_rates_cover_the_last_seconds() -> None:
    tally = ProgressTracker(1, synchronous=False)
    tally.update(0, report(0), 0.0)
    for tenth in range(1, 101):
        tally.update(0, report(1000 + tenth), 100 + tenth / 10)
    assert tally.standing(110.0, RunStore()).steps_per_second == pytest.approx(10)
    assert WINDOW < 10


def test_a_training_after_a_loop_of_ones_own_has_a_rate_of_its_own() -> None:
    tally, store = ProgressTracker(1, synchronous=False), RunStore()
    for second, step in enumerate((40, 50, 0, 1, 2)):
        tally.update(0, report(step), second / 2)
        assert tally.standing(second / 2, store).steps_per_second == (0, 20, 0, 2, 2)[second]


def test_a_resumed_run_counts_its_own_steps() -> None:
    """The jump from 0 to the saved step is no speed."""
    tally = ProgressTracker(2, synchronous=True)
    store = RunStore()
    tally.update(0, report(0), 0.0)
    for now in (0.1, 1.1):
        for replica in range(2):
            step = 1000 + round(10 * (now - 0.1))
            tally.update(replica, report(step) | {"examples": 8 * step, "resumed": [1000, 8000]}, now)
    standing = tally.standing(1.1, store)
    assert standing.step == 1010
    assert standing.steps_per_second == pytest.approx(10)
    assert (tally.resumed_steps, tally.examples) == (1000, 160)


def test_late_reports_do_not_distort_the_rate() -> None:
    tally = ProgressTracker(1, synchronous=False)
    for tenth in range(1, 101):  # reports of ten seconds, received within a tenth of a second
        tally.update(0, report(5 * tenth) | {"spent": {"compute": tenth / 10}}, 20 + tenth / 1000)
    assert tally.standing(20.1, RunStore()).steps_per_second == pytest.approx(50)


def test_elapsed_excludes_pauses() -> None:
    tally, store = ProgressTracker(2, synchronous=False), RunStore()
    for replica in range(2):
        tally.update(replica, report(10), 0.0)
    tally.update(0, report(20, state="paused"), 2.0)
    assert tally.standing(3.0, store).elapsed == 3.0  # the other one trains
    tally.update(1, report(20, state="paused"), 4.0)
    assert [tally.standing(now, store).elapsed for now in (4.0, 9.0)] == [4.0, 4.0]
    tally.update(0, report(21), 10.0)
    assert tally.standing(11.0, store).elapsed == 5.0
    tally.update(0, report(22) | {"rested": 9.0}, 12.0)  # with a pause before this client attached
    assert tally.standing(12.0, store).elapsed == 3.0


def test_a_late_report_of_a_pause_has_the_replicas_duration() -> None:
    tally, store = ProgressTracker(1, synchronous=False), RunStore()
    # A cell computed until 8.0.
    tally.update(0, report(20, state="paused") | {"paused": 6.0, "spent": {"compute": 2.0}}, 8.0)
    assert [tally.standing(now, store).elapsed for now in (8.0, 9.0)] == [2.0, 2.0]
    tally.update(0, report(20, state="finished") | {"paused": 7.0}, 9.0)
    assert (tally.standing(10.0, store).elapsed, tally.paused(10.0), tally.rested) == (3.0, 7.0, 0.0)


class NoCalls:
    """Bodies that have no outcome yet."""

    def ready_ranks(self) -> list[int]:
        return []

    def outcome(self, rank: int) -> object:
        raise AssertionError("no rank is ready")


@pytest.mark.parametrize(("synchronous", "rate"), [(True, 10), (False, 20)])
def test_a_run_counts_updates_and_not_replicas(synchronous: bool, rate: int, tmp_path: Path) -> None:
    workers = [TaskInfo("worker", i, i, "", 0, "", "", 0) for i in range(2)]
    options, record = Options(synchronous=synchronous), RunFile("digits", status="running")
    run = Run(EndedTasks(workers), record, tmp_path, workers, MembershipRules.of(options, 2, 0), NoCalls())
    run.status = "finished"
    assert (run.steps_per_second, run.examples_per_second) == (0.0, 0.0)
    for replica in range(2):
        steps = range(1, 31)
        run.store.extend(replica, "loss", list(steps), [0.5] * len(steps), [n / 10 for n in steps])
        run.tally.update(replica, report(30) | {"examples": 300}, 0.0)
    assert run.seconds == pytest.approx(2.9)
    assert run.steps_per_second == pytest.approx(30 * (rate / 10) / 2.9)
    assert run.examples_per_second == pytest.approx(600 / 2.9)
    run.status = "running"
    for replica in range(2):
        run.tally.update(replica, report(40) | {"examples": 400}, 1.0)
    assert (run.steps_per_second, run.examples_per_second) == (rate, 200)


def test_a_pause_ended_by_a_stop_counts_if_a_step_follows() -> None:
    context = Context(progress=Progress(step=7, rested=1.0, last_rest=(7, 2.5)))
    assert progress_message(context)["rested"] == 1.0
    context.control.stop_requested = True
    assert progress_message(context)["paused"] == 3.5  # no step was made in that time
    context.progress.step = 8
    assert progress_message(context)["rested"] == 3.5


def test_unknown_totals_have_no_estimate() -> None:
    tally, store = ProgressTracker(2, synchronous=False), RunStore()
    standing = tally.standing(0.0, store)
    assert (standing.state, standing.step, standing.total, standing.seconds_left) == (
        "starting",
        0,
        None,
        None,
    )
    tally.update(0, report(5), 1.0)
    tally.update(1, report(5, total=None), 1.0)
    standing = tally.standing(1.0, store)
    assert (standing.total, standing.seconds_left, standing.steps_per_second) == (None, None, 0.0)
    store.extend(0, "staleness", [1], [2.0], [1.0])
    assert [r.staleness for r in tally.standing(1.0, store).replicas] == [2.0, None]
    tally.update(0, report(9, state="finished"), 1.0)
    assert tally.standing(1.0, store).state == "running"
