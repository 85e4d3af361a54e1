"""Between a run and its display: what is passed on, and the end of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nbdist.errors import NbdistError, TaskDiedError, WorkerError
from nbdist.metrics.run_events import Event, EventLog, EventReader, events_path, read_events
from nbdist.metrics.store import RunStore
from nbdist.run.devices import ReplicaDevice
from nbdist.run.options import Options
from nbdist.run.progress import ProgressTracker, ReplicaStanding, Standing
from nbdist.run.recovery.member import Members, State
from nbdist.run.remote import EndedTasks
from nbdist.run.run import Run
from nbdist.run.stack_look import SilentTasks
from nbdist.runtime.task import TaskInfo
from nbdist.summary.pictures import Gallery
from nbdist.train.callbacks import History
from nbdist.train.context import Progress
from nbdist.ui.display import run as view
from nbdist.ui.display.run import RunView, in_a_line, note_on, summary_of, those, unit_of
from nbdist.ui.frozen.run import RUN, frozen
from nbdist.ui.frozen.summary import headline
from nbdist.ui.widgets.controls import KINDS, PageControls

TASKS = ["/job:worker/task:0", "/job:worker/task:1"]


class FakeRun:
    """What a view needs of a run."""

    def __init__(self, status: str = "finished", folder: Path = Path("/nonexistent"), **options: Any) -> None:
        self.event_reader, self.folder = EventReader(folder), folder
        self.id, self.status, self.tasks = "261120-000000-mnist", status, list(TASKS)
        self.store, self.options = RunStore(), Options(name="mnist", **options)
        self.gallery = Gallery()
        self.history: History | None = None
        self.error: NbdistError | None = None
        self.epochs: dict[int, dict[str, float]] = {}
        self.interrupted = self.global_step = 0
        self.trains, self.has_session = True, False
        self.asked: list[tuple[str, float | None]] = []
        self.controls = SimpleNamespace(act=lambda kind, rate: self.asked.append((kind, rate)))
        tasks = [TaskInfo("worker", i, i, "here", 7, "", "", 1) for i in range(len(TASKS))]
        self.members = Members(tasks)
        self.silent = SilentTasks(EndedTasks(tasks))
        self.tally = ProgressTracker(len(TASKS), bool(options.get("synchronous")), self.members.workers)

    seconds, standing = Run.seconds, Run.standing

    @property
    def events(self) -> list[Event]:
        return read_events(self.folder)

    _last: Standing | None = None

    @property
    def _follower(self) -> Any:
        return SimpleNamespace(standing=lambda: self.tally.standing(26.5, self.store))

    def replica_devices(self, standing: Standing) -> list[ReplicaDevice]:
        return [ReplicaDevice(task, ("CPU:0",), cores=2) for task in self.tasks]

    def last_epoch(self, replica: int) -> dict[str, float]:
        return self.epochs.get(replica, {})

    def interrupt(self) -> None:
        self.interrupted += 1


def as_run(run: FakeRun) -> Run:
    """Return a run for what takes a whole one."""
    return cast(Run, run)


def steps_of(run: FakeRun, replica: int, count: int, staleness: float | None = None) -> None:
    """Log steps, ten a second."""
    steps = np.arange(1, count + 1)
    run.store.extend(replica, "loss", steps, 1 / steps, 1000 + steps / 10)
    if staleness is not None:
        run.store.extend(replica, "staleness", steps, np.full(count, staleness), 1000 + steps / 10)
    run.epochs[replica] = {"loss": 0.123456, "accuracy": 0.5}


def summary(run: FakeRun) -> Any:
    return summary_of(as_run(run))


class FakeDisplay:
    """Records its calls."""

    def __init__(self, store: RunStore, tasks: Any, title: str, **options: Any) -> None:
        self.made = (store, list(tasks), title, options)
        self.calls: list[tuple[str, Any]] = []
        self.controls = PageControls()

    def on_control(self, callback: Any) -> None:
        self.controls.on(callback)

    def show(self, after: float = 0.0) -> None:
        self.calls.append(("show", None))

    def tick(self, now: float) -> None:
        self.calls.append(("tick", now))

    def set_tasks(self, tasks: Any) -> None:
        self.tasks = list(tasks)

    def put(self, part: str, value: Any) -> None:
        self.calls.append((part, value))

    def progress(self, status: Any) -> None:
        self.calls.append(("progress", status))

    def output(self, task: str, text: str) -> None:
        self.calls.append(("output", (task, text)))

    def finish(self, summary: Any) -> None:
        self.calls.append(("finish", summary))


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> list[FakeDisplay]:
    made: list[FakeDisplay] = []

    def make(*arguments: Any, **options: Any) -> FakeDisplay:
        made.append(FakeDisplay(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(view, "LiveDisplay", make)
    return made


def test_a_view_shows_updates_and_freezes(displays: list[FakeDisplay]) -> None:
    run = FakeRun(live=("loss",))
    shown = RunView(as_run(run))
    (display,) = displays
    again = "to reconnect, run nb.attach('261120-000000-mnist')"
    given = {"run_id": run.id, "charts": ("loss",), "again": again}
    assert display.made == (run.store, TASKS, "mnist", given)
    assert display.calls == [("show", None)]
    shown.tick()
    shown.output(TASKS[1], "hello\n")
    shown.end(as_run(run))
    assert [name for name, _ in display.calls] == ["show", "tick", "output", "finish"]
    assert display.calls[2][1] == (TASKS[1], "hello\n")
    assert display.calls[3][1].state == "finished"
    assert isinstance(shown, view.RunView)


def test_commands_of_the_page_reach_the_run(displays: list[FakeDisplay]) -> None:
    run = FakeRun()
    RunView(as_run(run))
    for kind in KINDS:
        assert displays[0].controls.act(kind, 0.5) is None
    assert run.interrupted == 1  # as the kernel's interrupt: at a step boundary, or not at all gently
    assert run.asked == [("pause", None), ("resume", None), ("checkpoint", None), ("set", 0.5)]


def test_the_whole_progress_is_passed_on(displays: list[FakeDisplay]) -> None:
    run = FakeRun()
    run.store.extend(1, "staleness", [1], [3.0], [1.0])
    tally = ProgressTracker(2, synchronous=False)
    for second in range(2):
        for replica in range(2):
            given = Progress(
                step=10 * second,
                total=40,
                examples=100 * second,
                state="running",
                epoch=2 - replica,
                epochs=4,
            )
            tally.update(replica, vars(given), float(second))
    RunView(as_run(run)).progress(tally.standing(1.0, run.store))
    _, status = displays[0].calls[-1]
    replicas = status.pop("per_replica")
    assert status == {
        "state": "running", "step": 20, "total": 80, "unit": "updates", "epoch": 1, "epochs": 4,
        "steps_per_second": 20.0,
        "examples_per_second": 200.0, "seconds_left": 3.0, "elapsed": 1.0, "note": "",
        "learning_rate": None, "checkpoint": None, "in_session": False,
        "trained_on": "2 workers on CPU (2 cores)", "warning": "", "input": None,
    }  # fmt: skip
    assert replicas[0] == {"state": "running", "step": 10, "steps_per_second": 10.0, "staleness": None} | {
        "spent": dict.fromkeys(("data", "compute", "exchange", "wait"), 0.0),
        "dropped": None, "skipped": None, "restart": None, "host": None,
    }  # fmt: skip
    assert replicas[1]["staleness"] == 3.0


def test_an_in_graph_run_names_no_command_to_reconnect(displays: list[FakeDisplay]) -> None:
    RunView(as_run(FakeRun(replication="in-graph")))
    assert displays[0].made[3]["again"] == ""


def test_events_leave_marks_on_the_curves(displays: list[FakeDisplay], tmp_path: Path) -> None:
    run = FakeRun(folder=tmp_path)
    shown = RunView(as_run(run))
    log = EventLog(events_path(tmp_path, 0))
    log.add("rate", "learning rate 0.1 → 0.01, set by the user", 8, epoch=1, rank=0)
    log.flush()
    shown.progress(run.tally.standing(1.0, run.store))
    assert [(part, value[0].step) for part, value in displays[0].calls if part == "marks"] == [("marks", 8)]
    shown.progress(run.tally.standing(1.0, run.store))  # nothing new, and not due
    log.add("lost", "/job:worker/task:1 died", 20, rank=1)
    log.close()
    shown.end(as_run(run))
    marks = displays[0].calls[-1][1].marks
    assert [(mark.step, mark.kind, mark.text) for mark in marks] == [
        (8, "rate", "learning rate 0.1 → 0.01, set by the user"), (20, "lost", "worker 1 died"),
    ]  # fmt: skip


def test_the_last_checkpoint_is_in_the_summary(displays: list[FakeDisplay]) -> None:
    run = FakeRun()
    saved = {"number": 1, "step": 18, "path": "/runs/m/step-18", "error": None}
    run.tally.update(0, vars(Progress(step=20, state="running", checkpoint=saved)), 1.0)
    assert summary(run).checkpoint == "/runs/m/step-18"


def test_a_parameter_server_is_shown_by_its_short_name(displays: list[FakeDisplay]) -> None:
    run = FakeRun()
    shown = RunView(as_run(run))
    run.tally.lose_server("/job:ps/task:0")
    waiting = vars(Progress(step=3, state="waiting for /job:ps/task:0"))
    for replica in range(2):
        run.tally.update(replica, waiting, 1.0)
    shown.progress(run.tally.standing(1.0, run.store))
    status = displays[0].calls[-1][1]
    assert (status["state"], status["per_replica"][1]["state"]) == ("waiting for ps 0", "waiting for ps 0")
    run.tally.replace_server("/job:ps/task:0 was replaced after 0.6 s by pid 8; 2 updates lost")
    shown.progress(run.tally.standing(2.0, run.store))
    shown.end(as_run(run))
    found = displays[0].calls[-1][1]
    assert found.remarks[-1] == "ps 0 was replaced after 0.6 s by pid 8; 2 updates lost"


def test_a_plain_cell_has_no_steps(displays: list[FakeDisplay]) -> None:
    run = FakeRun()
    run.trains = False
    RunView(as_run(run)).progress(run.tally.standing(1.0, run.store))
    assert displays[0].calls[-1][1]["step"] is None


def test_a_rate_that_is_not_known_yet_is_not_zero(displays: list[FakeDisplay]) -> None:
    standing = Standing("starting", 0, None, 0.0, 0.0, None, 0.0, [])
    RunView(as_run(FakeRun())).progress(standing)
    _, status = displays[0].calls[-1]
    assert status["steps_per_second"] is status["examples_per_second"] is None


@pytest.mark.parametrize(
    ("options", "total", "unit"),
    [({}, 50, "updates"), ({"strategy": "ps"}, 50, "updates"), ({"synchronous": True}, 30, "steps")],
)
def test_a_summary_counts_what_the_replicas_made(options: dict[str, Any], total: int, unit: str) -> None:
    run = FakeRun(**options)
    steps_of(run, 0, 30, staleness=1.0)
    steps_of(run, 1, 20)
    run.history = History()
    run.history.history = {"loss": [2.0, 0.25], "val_accuracy": [0.1, 0.9]}
    found = summary(run)
    assert (found.run_id, found.title, found.state, found.tasks) == (run.id, "mnist", "finished", TASKS)
    assert (found.step, found.unit) == (total, unit)
    assert found.seconds == pytest.approx(2.9)
    assert found.steps_per_second == pytest.approx(total / 2.9)
    assert found.metrics == {"loss": 0.25, "val_accuracy": 0.9}
    assert found.error is None
    assert found.rows == [
        {
            "task": "worker 0",
            "steps": 30,
            "loss (last epoch)": 0.1235,
            "accuracy (last epoch)": 0.5,
            "mean staleness": 1.0,
        },
        {"task": "worker 1", "steps": 20, "loss (last epoch)": 0.1235, "accuracy (last epoch)": 0.5},
    ]


def test_a_pause_counts_in_no_duration_and_in_no_rate() -> None:
    run = FakeRun(synchronous=True)
    for replica, rested in enumerate((0.9, 0.0)):  # the second waited for the first
        run.tally.update(replica, vars(Progress(step=30, state="finished", rested=rested)), 1.0)
        steps_of(run, replica, 30)
    found = summary(run)
    assert found.seconds == pytest.approx(2.0)
    assert found.steps_per_second == pytest.approx(15.0)


def test_a_history_of_a_share_of_each_batch_says_so() -> None:
    run = FakeRun(strategy="ps", synchronous=True)
    steps_of(run, 0, 3)
    run.history = History()
    assert summary(run).remarks == []
    run.history.share = "worker 0's share of each batch"
    assert summary(run).remarks == ["loss and metrics in history are of worker 0's share of each batch"]


def test_the_rate_of_a_cell_of_a_framework_is_over_its_steps() -> None:
    """Its loop logs a loss now and then, and its imports take longer than its steps."""
    run = FakeRun(framework="torch")
    for replica in range(2):
        run.tally.update(replica, vars(Progress(step=0, state="starting")), 0.0)
        spent = {"data": 0.5, "compute": 1.0, "exchange": 0.0, "wait": 0.5 * replica}
        run.tally.update(replica, vars(Progress(step=46, state="finished", spent=spent)), 26.5)
        run.store.extend(replica, "loss", [44, 45], [0.2, 0.1], [26.0, 26.25])
    found = summary(run)
    assert (found.step, found.elapsed, found.seconds) == (92, 26.5, 2.0)
    assert found.steps_per_second == 46.0
    assert headline(found) == "✓ finished · 92 updates · 2.0 s of training · 46 updates/s"


def test_points_that_a_loop_of_jax_numbers_are_no_count_of_its_steps() -> None:
    run = FakeRun(framework="jax")
    for replica in range(2):
        run.tally.update(replica, vars(Progress(step=0, state="finished")), 1.3)
        run.store.extend(replica, "loss", [0, 40], [0.2, 0.1], [0.1, 1.0])
    found = summary(run)
    assert found.rows == [{"task": "worker 0", "last step": 40}, {"task": "worker 1", "last step": 40}]
    assert headline(found).startswith("✓ finished · ")
    assert "updates" not in headline(found)


def test_a_lost_replica_is_named_live_and_at_the_end(displays: list[FakeDisplay]) -> None:
    run = FakeRun(strategy="multi_worker", synchronous=True)
    for replica in range(2):
        given = Progress(step=10 + replica, total=40, state="running")
        run.tally.update(replica, vars(given), 1.0)
    steps_of(run, 0, 40)
    run.store.extend(1, "loss", [11, 12], [1.0, 1.0], [1000.0, 1001.0])
    run.members.worker(1).move(State.LOST)
    run.tally.lose(1, 2.0)
    run.tally.update(1, vars(Progress(step=12, total=40, state="running")), 3.0)  # it was only frozen
    RunView(as_run(run)).progress(run.tally.standing(3.0, run.store))
    _, status = displays[0].calls[-1]
    assert status["note"] == "worker 1 was lost; training continues on 1 replica"
    assert (status["state"], status["per_replica"][1]["state"]) == ("running", "lost")
    found = summary(run)
    assert found.remarks == ["worker 1 was lost"]
    assert [(row["task"], row["state"], row["steps"]) for row in found.rows] == [
        ("worker 0", "finished", 40),
        ("worker 1", "lost", "≥ 12"),
    ]


def test_gradients_that_were_not_applied_are_counted() -> None:
    run = FakeRun(strategy="ps", synchronous=True, backups=1)
    run.global_step = 17
    for replica, (dropped, skipped) in enumerate(((0, 1), (1200, 0))):
        given = Progress(step=9, total=40, state="finished", dropped=dropped, skipped=skipped)
        run.tally.update(replica, vars(given), 1.0)
        steps_of(run, replica, 9)
    found = summary(run)
    assert found.remarks == ["17 updates", "1,200 gradients dropped", "1 gradient left out"]
    assert (found.step, found.unit) == (9, "batches")
    assert [list(row)[:4] for row in found.rows] == [["task", "batches", "dropped", "skipped"]] * 2
    assert [row["dropped"] for row in found.rows] == [0, 1200]


def test_many_lost_replicas_are_counted() -> None:
    replicas = [ReplicaStanding("lost", 0, 0.0, None, {})] * 6
    tasks = [f"/job:worker/task:{i}" for i in range(6)]
    text = "worker 0, worker 1, worker 2, worker 3 and 2 more were lost"
    assert those("was", "lost", replicas, tasks) == text
    assert those("was", "lost", [], []) == ""


def test_replicas_that_stopped_responding_are_named() -> None:
    replicas = [ReplicaStanding(state, 9, 0.0, None, {}) for state in ("running", "silent", "lost")]
    tasks = [f"/job:worker/task:{i}" for i in range(3)]
    assert (
        note_on(replicas, tasks) == "worker 2 was lost; training continues on 2 replicas; worker 1 is silent"
    )


def test_slow_replicas_are_named_the_slowest_first() -> None:
    tasks = [f"/job:worker/task:{i}" for i in range(7)]
    replicas = [
        ReplicaStanding("lost", 0, 0.0, None, {}),
        *(ReplicaStanding("straggler", 9, 1.0, None, {}, slowness=1.2 + i / 10) for i in range(2)),
        ReplicaStanding("running", 9, 1.0, None, {}),
    ]
    assert note_on(replicas, tasks) == (
        "worker 0 was lost; training continues on 3 replicas; worker 2 is slow: 1.3x the others' step; "
        "worker 1 is slow: 1.2x the others' step"
    )
    assert note_on(replicas[3:], tasks) == ""
    assert note_on(replicas[1:2], tasks, ["b"]) == "worker 0 on b is slow: 1.2x the others' step"
    assert note_on(replicas[1:2] * 7, tasks).endswith(
        "; worker 3 is slow: 1.2x the others' step; 3 more are slow"
    )


def test_a_run_without_training_counts_no_steps() -> None:
    found = summary(FakeRun())
    assert (found.step, found.seconds, found.steps_per_second, found.rows) == (None, None, None, [])
    assert found.metrics == {}


def test_one_step_has_no_rate() -> None:
    run = FakeRun()
    steps_of(run, 0, 1)
    found = summary(run)
    assert found.step == 1
    assert found.steps_per_second is None


@pytest.mark.parametrize(
    ("status", "state"), [("finished", "finished"), ("stopped", "stopped"), ("failed", "failed")]
)
def test_the_state_has_a_text(status: str, state: str) -> None:
    assert summary(FakeRun(status)).state == state


def test_units() -> None:
    assert unit_of(as_run(FakeRun())) == "updates"
    assert unit_of(as_run(FakeRun(synchronous=True))) == "steps"
    alone = SimpleNamespace(tasks=TASKS[:1], options=Options())
    assert unit_of(as_run(alone)) == "steps"


def test_an_error_in_a_line() -> None:
    error = WorkerError("Traceback ...\n  lines\n\nraised on /job:worker/task:1")
    error.task, error.ename, error.evalue = TASKS[1], "ValueError", "\n  first words\nmore"
    assert in_a_line(error) == "ValueError on /job:worker/task:1: first words"
    error.evalue = ""
    assert in_a_line(error) == "ValueError on /job:worker/task:1"
    assert in_a_line(TaskDiedError("it has ended\nits log")) == "TaskDiedError: it has ended"
    assert in_a_line(NbdistError()) == "NbdistError"
    assert len(in_a_line(NbdistError("x" * 5000))) <= 330
    run = FakeRun("failed")
    run.error = error
    assert summary(run).error == in_a_line(error)


@pytest.mark.parametrize("raises", [True, False])
def test_an_error_that_the_cell_raises_is_not_in_the_view_as_well(
    displays: list[FakeDisplay], raises: bool
) -> None:
    run = FakeRun("failed")
    run.error = WorkerError("Traceback ...")
    RunView(as_run(run), raises=raises).end(run)
    assert displays[0].calls[-1][1].state == "failed"
    assert (displays[0].calls[-1][1].error is None) == raises


def test_gpus_are_shown_with_their_curves_at_intervals(
    displays: list[FakeDisplay], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("nbdist.ui.display.run.time.monotonic", lambda: now)
    run, tally = FakeRun(), ProgressTracker(2, synchronous=True)
    view = RunView(as_run(run))
    for tenth in range(25):
        now = tenth / 10
        run.store.extend(0, "gpu/use", [tenth], [float(tenth)], [now])
        sample = {"id": "GPU-8f3a", "use": tenth}
        tally.update(0, {**vars(Progress(step=tenth, state="running")), "gpu": sample}, now)
        view.progress(tally.standing(now, run.store))
    shown = [gpus for kind, gpus in displays[0].calls if kind == "gpus"]
    assert [gpus[0]["use"]["values"].split()[-1] for gpus in shown] == ["0", "10", "20"]
    assert summary_of(as_run(run)).trained_on == "2 workers on CPU (2 cores)"


@pytest.mark.slow
def test_series_that_the_body_logs_have_their_last_and_best_value_in_the_summary() -> None:
    run = FakeRun()
    for replica, shift in ((0, 0.0), (1, 0.5)):
        run.store.extend(
            replica, "train_error", [0, 1, 2], [3 + shift, 1 + shift, 2 + shift], [1.0, 2.0, 3.0]
        )
        run.store.extend(replica, "gpu/use", [1], [5.0], [1.0])
    run.store.extend(0, "val_acc", [0, 1, 2], [0.5, 0.75, float("nan")], [1.0, 2.0, 3.0])
    found = summary(run)
    assert list(found.logged) == [
        "train_error (last)",
        "train_error (best)",
        "val_acc (last)",
        "val_acc (best)",
    ]
    assert [*found.logged.values()][:2] == [2.25, 1.0]  # a mean over the replicas, and the best of all
    assert found.logged["val_acc (best)"] == 0.75
    assert [row["task"] for row in found.rows] == ["worker 0", "worker 1"]
    bundle = frozen(run.store, found)
    assert "train_error (best)" in bundle["text/html"]
    assert "train_error (best)" in bundle["text/plain"]
    assert [*bundle[RUN]["metrics"]] == [*found.logged]
    fitted = FakeRun()
    steps_of(fitted, 0, 10)
    assert summary(fitted).logged == {}  # the loop of fit has the means of its epochs


def test_ranks_that_train_a_model_each_are_a_warning_at_once_and_in_the_summary(
    displays: list[FakeDisplay],
) -> None:
    run = FakeRun(framework="torch")
    shown = RunView(as_run(run))
    for state, verb in (("running", "train"), ("finished", "trained")):
        for replica in range(2):
            apart = vars(Progress(step=3, state=state, apart="call init_process_group()"))
            run.tally.update(replica, apart, 1.0)
        standing = run.tally.standing(1.0, run.store)
        shown.progress(standing)
        status = displays[0].calls[-1][1]
        said = f"2 ranks {verb} without a process group: each has its own model; "
        assert status["warning"] == f"{said}call init_process_group()"
        assert said in view.progress_line("mnist", status)
    assert summary(run).warning == status["warning"]


def test_the_first_loss_that_is_nan_is_a_warning_at_once_and_in_the_summary(
    displays: list[FakeDisplay],
) -> None:
    run = FakeRun(framework="torch")
    shown = RunView(as_run(run))
    for replica, step in enumerate((6, 5)):
        wrong = vars(Progress(step=9, state="running", not_finite=["loss", "nan", step]))
        run.tally.update(replica, wrong, 1.0)
    shown.progress(run.tally.standing(1.0, run.store))
    said = "loss of worker 1 is nan at step 5: a loop that is not nbdist's may continue"
    assert displays[0].calls[-1][1]["warning"] == summary(run).warning == said
