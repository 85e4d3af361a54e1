"""Monitored sessions: hooks, initialisation, recovery when a Server is replaced, and the older Supervisor."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_tasks import PS, Tasks, open_tasks
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from waiting import PATIENCE, until

import nbdist.train as train
from nbdist import summary
from nbdist.checkpoint.folder import LocalFolder
from nbdist.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NanLossError,
    OutOfRangeError,
    ResourceExhaustedError,
    StorageError,
    UnavailableError,
)
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import container, device
from nbdist.graph.tensor import Graph, Tensor, Variable, placeholder
from nbdist.graph.variables import get_or_create_global_step
from nbdist.optim import SGD
from nbdist.runtime.server import Server
from nbdist.runtime.session.session import Session
from nbdist.sessions.monitored import StepContext
from nbdist.sessions.saver import _Writing, load_variable

CONFIG = {"timeout": 20.0}


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are written in every step; none has to survive the end of this host."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def counting() -> Iterator[tuple[Graph, Tensor]]:
    """A graph whose op adds one to the global step, and to ``w``."""
    with Graph().as_default() as graph:
        step = get_or_create_global_step()
        w = Variable(0.0, name="w")
        yield graph, group(step.assign_add(1), w.assign_add(1.0), name="train")


def values(session: Any) -> tuple[int, float]:
    step, w = session.run(["global_step", "w"])
    return int(step), float(w)


class TestHooks:
    def test_the_order_of_calls(self, counting: tuple[Graph, Tensor]) -> None:
        calls: list[str] = []

        class Recorder(train.SessionRunHook):
            def begin(self) -> None:
                calls.append("begin")

            def after_create_session(self, session: Session, coord: Any = None) -> None:
                calls.append(f"created {int(session.run('global_step'))}")

            def before_run(self, run_context: Any) -> Any:
                calls.append(f"before {run_context.original_args.fetches.name}")
                return train.SessionRunArgs({"w": "w"})

            def after_run(self, run_context: Any, run_values: Any) -> None:
                calls.append(f"after {run_values.results}")
                run_context.request_stop()

            def end(self, session: Session) -> None:
                calls.append("end")

        _, op = counting
        with train.MonitoredSession(hooks=[Recorder()]) as session:
            assert session.run(op) is None
            assert session.should_stop()
            with pytest.raises(FailedPreconditionError, match="should_stop"):
                session.run(op)
        assert calls == ["begin", "created 0", "before train", "after {'w': np.float64(0.0)}", "end"]
        with pytest.raises(FailedPreconditionError, match="closed"):
            session.run(op)

    @pytest.mark.parametrize(
        ("hook", "start", "end"),
        [(train.StopAtStepHook(last_step=10), 9, 10), (train.StopAtStepHook(num_steps=10), 5, 15)],
    )
    def test_stop_at_step(
        self, counting: tuple[Graph, Tensor], hook: train.SessionRunHook, start: int, end: int
    ) -> None:
        graph, op = counting
        scaffold = train.Scaffold(init_fn=lambda scaffold, s: s.set_value(graph.variables()[0], start))
        with train.MonitoredSession(train.ChiefSessionCreator(scaffold), [hook]) as session:
            while not session.should_stop():
                session.run(op)
            assert int(session._session.run("global_step")) == end  # type: ignore[union-attr]

    def test_feeds_final_ops_and_printed_values(
        self, counting: tuple[Graph, Tensor], capsys: pytest.CaptureFixture[str]
    ) -> None:
        _, op = counting
        x = placeholder(np.float32, (), name="x")
        doubled = 2 * x
        final = train.FinalOpsHook({"w": "w"})
        hooks = [
            train.FeedFnHook(lambda: {x: 3.0}),
            train.LoggingTensorHook({"x": x}, every_n_iter=2, formatter=lambda v: f"x is {v['x']}"),
            train.LoggingTensorHook(["w"], at_end=True),
            final,
        ]
        with train.MonitoredSession(hooks=hooks) as session:
            for _ in range(3):
                assert session.run([op, doubled])[1] == 6.0
            with pytest.raises(InvalidArgumentError, match=r"FeedFnHook feeds .* already"):
                session.run(doubled, {x: 1.0})
        assert final.final_ops_values == {"w": 3.0}
        assert capsys.readouterr().out.splitlines() == ["x is 3.0", "x is 3.0", "w = 3.0"]

    def test_a_loss_that_is_nan(
        self, counting: tuple[Graph, Tensor], capsys: pytest.CaptureFixture[str]
    ) -> None:
        _, op = counting
        x = placeholder(np.float32, (), name="x")
        session = train.MonitoredSession(hooks=[train.NanTensorHook(x)])
        session.run(op, {x: 1.0})
        with pytest.raises(NanLossError, match="'x' is nan"):
            session.run(op, {x: np.nan})
        session.close()
        with train.MonitoredSession(hooks=[train.NanTensorHook(x, fail_on_nan_loss=False)]) as session:
            session.run(op, {x: np.inf})
            assert session.should_stop()
        assert "the loss 'x' is inf: the training ends" in capsys.readouterr().out

    def test_summaries_and_the_step_rate(self, counting: tuple[Graph, Tensor], tmp_path: Path) -> None:
        graph, op = counting
        summary.scalar("double", 2.0 * graph.variables()[1])
        with train.MonitoredTrainingSession(
            summary_dir=tmp_path, save_summaries_steps=3, log_step_count_steps=4
        ) as session:
            for _ in range(9):
                session.run(op)
        found = EventAccumulator(str(tmp_path)).Reload()
        assert [(e.step, e.value) for e in found.Scalars("double")] == [(1, 0.0), (4, 6.0), (7, 12.0)]
        assert [e.step for e in found.Scalars("global_step/sec")] == [5, 9]

    def test_histograms_and_images_of_a_graph(self, counting: tuple[Graph, Tensor], tmp_path: Path) -> None:
        graph, op = counting
        w = graph.variables()[1]
        summary.histogram("w", np.ones(3, np.float32) * w)
        summary.image("square", np.ones((2, 2), np.float32) * w)
        with train.MonitoredTrainingSession(summary_dir=tmp_path, save_summaries_steps=2) as session:
            for _ in range(3):
                session.run(op)
        found = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
        seen = [(e.step, e.histogram_value.num, e.histogram_value.max) for e in found.Histograms("w")]
        assert seen == [(1, 3, 0.0), (3, 3, 2.0)]
        assert found.Images("square")[0].width == 2

    def test_summaries_of_steps_after_the_checkpoint_are_replaced(
        self, counting: tuple[Graph, Tensor], tmp_path: Path
    ) -> None:
        graph, op = counting
        summary.scalar("w", 1.0 * graph.variables()[1])
        where = {"checkpoint_dir": tmp_path, "save_summaries_steps": 1}
        session = train.MonitoredTrainingSession(save_checkpoint_steps=3, log_step_count_steps=2, **where)
        for _ in range(5):
            session.run(op)
        with pytest.raises(ZeroDivisionError), session:
            session.run(1 / 0)
        with train.MonitoredTrainingSession(**where) as session:  # again from step 3 or 4
            session.run(op)
        steps = [e.step for e in EventAccumulator(str(tmp_path)).Reload().Scalars("w")]
        assert steps == list(range(1, steps[-1] + 1))
        assert steps[-1] <= 5

    def test_the_profiler_writes_timelines(self, counting: tuple[Graph, Tensor], tmp_path: Path) -> None:
        _, op = counting
        hook = train.ProfilerHook(save_steps=3, output_dir=tmp_path / "profile")
        with train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(6):
                session.run(op)
        assert [path.name for path in hook.timelines] == ["timeline-3.json", "timeline-6.json"]
        names = {event.get("name") for event in json.loads(hook.timelines[0].read_text())["traceEvents"]}
        assert "w/assign_add" in names

    def test_a_worker_that_waits_for_a_step(
        self, counting: tuple[Graph, Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nbdist.sessions.hooks.POLL_SECONDS", 0.02)
        graph, op = counting
        hook = train.GlobalStepWaiterHook(3)
        with Session(graph=graph) as plain, graph.as_default():
            hook.begin()
            plain.run([v.initializer for v in graph.variables()])
            context = train.SessionRunContext(train.SessionRunArgs(), plain)
            waiting = threading.Thread(target=lambda: hook.before_run(context))
            waiting.start()
            for _ in range(3):
                assert waiting.is_alive()
                plain.run(op)
            waiting.join(PATIENCE)
            assert not waiting.is_alive()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: train.StopAtStepHook(),
            lambda: train.StopAtStepHook(num_steps=1, last_step=1),
            lambda: train.SecondOrStepTimer(),
            lambda: train.SecondOrStepTimer(every_secs=1.0, every_steps=1),
            lambda: train.SecondOrStepTimer(every_steps=0),
            lambda: train.CheckpointSaverHook("x"),
            lambda: train.LoggingTensorHook(["w"]),
            lambda: train.LoggingTensorHook([], every_n_iter=1),
            lambda: train.SummarySaverHook(save_steps=1, output_dir="x"),
            lambda: train.MonitoredSession(hooks=[print]),  # type: ignore[list-item]
            lambda: train.MonitoredTrainingSession(save_checkpoint_secs=1, save_checkpoint_steps=1),
            lambda: train.Supervisor(save_model_secs=-1),
            lambda: train.SessionManager(recovery_wait_secs=0),
        ],
    )
    def test_bad_arguments(self, make: Any) -> None:
        with Graph().as_default(), pytest.raises(InvalidArgumentError):
            make()

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: train.StopAtStepHook(last_step="10"), "last_step is a whole number above 0, not '10'"),
            (lambda: train.StopAtStepHook(num_steps=0), "num_steps is a whole number above 0"),
            (lambda: train.CheckpointSaverHook("x"), "exactly one of save_secs and save_steps, got None"),
            (lambda: train.CheckpointSaverHook("", save_steps=1), "checkpoint_dir is empty; write"),
            (lambda: train.Supervisor(logdir=""), "logdir is empty"),
            (lambda: train.MonitoredTrainingSession(checkpoint_dir="", save_checkpoint_secs=0), "is empty"),
            (lambda: train.ProfilerHook(save_steps="5"), "save_steps is a number above 0, not '5'"),
            (lambda: train.LoggingTensorHook("loss", every_n_iter=1), r"give \[loss\]"),
            (lambda: train.GlobalStepWaiterHook("x"), "wait_until_step is a global step, not 'x'"),
            (lambda: train.Supervisor("folder"), "graph is a Graph or None, not 'folder'.*logdir="),
            (lambda: train.Supervisor(save_model_secs="60"), "save_model_secs is a number of seconds from 0"),
            (
                lambda: train.MonitoredTrainingSession(hooks=train.StopAtStepHook(5)),
                r"hooks is a list of hooks: give \[StopAtStepHook",
            ),
        ],
    )
    def test_mistakes_are_named(self, make: Any, words: str) -> None:
        with Graph().as_default(), pytest.raises(InvalidArgumentError, match=words):
            make()

    def test_hooks_that_need_a_global_step_say_so(self) -> None:
        with Graph().as_default(), pytest.raises(FailedPreconditionError, match="get_or_create_global_step"):
            train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=1)])

    def test_the_end_of_the_data_ends_quietly_and_other_errors_do_not(
        self, counting: tuple[Graph, Tensor]
    ) -> None:
        _, op = counting
        final = train.FinalOpsHook("w")
        with train.MonitoredSession(hooks=[final]) as session:
            session.run(op)
            raise OutOfRangeError("the data has ended")
        assert final.final_ops_values == 1.0
        final = train.FinalOpsHook("w")
        with pytest.raises(ZeroDivisionError), train.MonitoredSession(hooks=[final]) as session:
            session.run(1 / 0)
        assert final.final_ops_values is None

    def test_step_functions(self, counting: tuple[Graph, Tensor]) -> None:
        _, op = counting
        final = train.FinalOpsHook("w")

        def step(context: StepContext) -> float:
            context.session.run(op)
            context.run_with_hooks(op)
            w = float(context.session.run("w"))
            if w == 4.0:
                context.request_stop()
            return w

        with train.MonitoredSession(hooks=[final]) as session:
            assert session.run_step_fn(step) == 2.0
            session.run_step_fn(step)
        assert final.final_ops_values == 4.0


class TestCheckpoints:
    def test_it_saves_at_the_beginning_every_few_steps_and_at_the_end(
        self, counting: tuple[Graph, Tensor], tmp_path: Path
    ) -> None:
        graph, op = counting
        with train.MonitoredTrainingSession(
            checkpoint_dir=tmp_path, save_checkpoint_steps=2, log_step_count_steps=0
        ) as session:
            for _ in range(5):
                session.run(op)
        state = train.checkpoint_state(tmp_path)
        assert state is not None
        assert [int(p.rpartition("-")[2]) for p in state.all_model_checkpoint_paths] == [0, 2, 4, 5]
        with graph.as_default(), train.MonitoredTrainingSession(checkpoint_dir=tmp_path) as session:
            assert values(session) == (5, 5.0)

    def test_it_names_a_folder_without_checkpoints_and_one_that_another_session_uses(
        self, counting: tuple[Graph, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        _, op = counting
        options: dict[str, Any] = {"checkpoint_dir": tmp_path, "log_step_count_steps": 0}
        with train.MonitoredTrainingSession(**options) as session:
            session.run(op)
            assert capsys.readouterr().out == (
                f"initialised the variables: there is no checkpoint in {tmp_path}\n"
            )
            with train.MonitoredTrainingSession(**options):
                assert (
                    f"another session writes its checkpoints into {str(tmp_path)!r}"
                    in capsys.readouterr().out
                )
            assert train.CheckpointSaverHook("memory://x", save_steps=1).begin() is None
        with pytest.raises(ZeroDivisionError), train.MonitoredTrainingSession(**options):
            raise ZeroDivisionError  # a session that ends with an error leaves the folder, too
        with train.MonitoredTrainingSession(**options):
            pass
        assert "another session" not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"save_checkpoint_secs": "30s"}, "save_checkpoint_secs is a number from 0"),
            ({"save_checkpoint_steps": -1}, "save_checkpoint_steps is a number from 0"),
            ({"save_summaries_steps": True}, "save_summaries_steps is a number from 0"),
            ({"log_step_count_steps": "10"}, "every_n_steps is a number above 0"),
            ({"is_chief": "checkpoints"}, "is_chief is True or False.*checkpoint_dir="),
        ],
    )
    def test_values_that_do_not_fit(self, options: dict[str, Any], words: str, tmp_path: Path) -> None:
        with Graph().as_default(), pytest.raises(InvalidArgumentError, match=words):
            train.MonitoredTrainingSession(**{"checkpoint_dir": tmp_path, **options})
        assert list(tmp_path.iterdir()) == []

    def test_a_hook_that_fails_at_the_end_does_not_keep_the_others_from_it(
        self, counting: tuple[Graph, Tensor], tmp_path: Path
    ) -> None:
        class Fails(train.SessionRunHook):
            def end(self, session: Session) -> None:
                raise ZeroDivisionError("at the end")

        _, op = counting
        hooks = [Fails(), train.CheckpointSaverHook(tmp_path, save_steps=100)]
        session = train.MonitoredSession(hooks=hooks)
        session.run(op)
        with pytest.raises(ZeroDivisionError, match="at the end"):
            session.close()
        assert load_variable(tmp_path, "w") == 1.0

    def test_a_folder_that_fails_does_not_end_the_training_and_is_reported_at_the_end(
        self, counting: tuple[Graph, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(writer: Any, data: Any) -> None:
            raise OSError(5, "Input/output error")

        _, op = counting
        for listeners in ((), (train.CheckpointSaverListener(),)):
            hook = train.CheckpointSaverHook(tmp_path, save_steps=2, listeners=listeners)
            with monkeypatch.context() as patch:
                session = train.MonitoredSession(hooks=[hook])
                hook.finish()
                patch.setattr("nbdist.checkpoint.folder._Descriptor.write", broken)
                for _ in range(5):
                    session.run(op)
                with pytest.raises(StorageError, match="Input/output error"):
                    session.close()
                assert session.recoveries == 0

    def test_summaries_that_cannot_be_written_are_no_lost_task(
        self, counting: tuple[Graph, Tensor], tmp_path: Path
    ) -> None:
        """The session was made again for ever, and ended with the end of its training."""
        folder = tmp_path / "model"
        writer = summary.FileWriter(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.touch()
        writer.add_summary({"loss": 1.0}, 1)
        with pytest.raises(StorageError, match=r"summaries in .*model.* are not written"):
            writer.close()

    def test_a_session_that_cannot_begin_leaves_nothing(self, counting: tuple[Graph, Tensor]) -> None:
        made: list[Session] = []

        class Fails(train.SessionRunHook):
            def after_create_session(self, session: Session, coord: Any = None) -> None:
                made.append(session)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            train.MonitoredSession(hooks=[Fails()])
        assert made[0].closed

    def test_summaries_are_written_after_an_error(
        self, counting: tuple[Graph, Tensor], tmp_path: Path
    ) -> None:
        graph, op = counting
        summary.scalar("double", 2.0 * graph.variables()[1])
        session = train.MonitoredTrainingSession(summary_dir=tmp_path, save_summaries_steps=1)
        session.run(op)
        with pytest.raises(ZeroDivisionError), session:
            session.run(1 / 0)
        assert EventAccumulator(str(tmp_path)).Reload().Scalars("double")

    def test_after_an_error_the_checkpoint_under_way_is_completed(
        self, counting: tuple[Graph, Tensor], tmp_path: Path
    ) -> None:
        hook = train.CheckpointSaverHook(tmp_path, save_steps=1)
        with pytest.raises(ZeroDivisionError), train.MonitoredSession(hooks=[hook]) as session:
            session.run(1 / 0)
        assert load_variable(tmp_path, "w") == 0.0

    def test_listeners(self, counting: tuple[Graph, Tensor], tmp_path: Path) -> None:
        calls: list[Any] = []

        class Listener(train.CheckpointSaverListener):
            def begin(self) -> None:
                calls.append("begin")

            def before_save(self, session: Session, global_step_value: int) -> None:
                calls.append(("before", global_step_value, train.latest_checkpoint(tmp_path)))

            def after_save(self, session: Session, global_step_value: int) -> bool:
                latest = train.latest_checkpoint(tmp_path)
                calls.append(("after", global_step_value, latest))
                return global_step_value == 2

            def end(self, session: Session, global_step_value: int) -> None:
                calls.append(("end", global_step_value))

        _, op = counting
        hook = train.CheckpointSaverHook(tmp_path, save_steps=2, listeners=[Listener()])
        with train.MonitoredSession(hooks=[hook]) as session:
            while not session.should_stop():
                session.run(op)
        first, second = (str(tmp_path / f"model.ckpt-{n}") for n in (0, 2))
        assert calls == [
            "begin", ("before", 0, None), ("after", 0, first), ("before", 2, first), ("after", 2, second),
            ("end", 2),
        ]  # fmt: skip

    def test_a_full_disk_does_not_end_the_training(
        self,
        counting: tuple[Graph, Tensor],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def full(writer: Any, data: Any) -> None:
            raise OSError(28, "No space left on device")

        _, op = counting
        hook = train.CheckpointSaverHook(tmp_path, save_steps=2)
        with train.MonitoredSession(hooks=[hook]) as session:
            session.run(op)
            hook.saver.wait()
            with monkeypatch.context() as patch:
                patch.setattr("nbdist.checkpoint.folder._Descriptor.write", full)
                for _ in range(4):
                    session.run(op)
                with pytest.raises(ResourceExhaustedError):
                    hook.saver.wait()
            session.run(op)
        assert "training continues" in capsys.readouterr().out
        assert load_variable(tmp_path, "w") == 6.0
        hook = train.CheckpointSaverHook(tmp_path, save_steps=100)
        session = train.MonitoredSession(hooks=[hook])
        hook.saver.wait()
        session.run(op)
        monkeypatch.setattr("nbdist.checkpoint.folder._Descriptor.write", full)
        with pytest.raises(ResourceExhaustedError, match="free some space"):
            session.close()
        assert load_variable(tmp_path, "w") == 0.0

    def test_a_recovery_waits_for_the_checkpoint_that_is_being_written(
        self, counting: tuple[Graph, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lost, awaited = threading.Event(), threading.Event()
        replace, result = LocalFolder.replace, _Writing.result

        def write(folder: LocalFolder, file: str, text: str) -> None:
            if file == "model.ckpt-3.index":
                assert awaited.wait(PATIENCE)
            replace(folder, file, text)

        def wait(writing: _Writing) -> None:
            if lost.is_set():
                awaited.set()
            result(writing)

        class Loses(train.SessionRunHook):
            runs = 0

            def before_run(self, run_context: Any) -> None:
                self.runs += 1
                if self.runs == 4:
                    lost.set()
                    raise AbortedError("once")

        monkeypatch.setattr(LocalFolder, "replace", write)
        monkeypatch.setattr(_Writing, "result", wait)
        _, op = counting
        saves = train.CheckpointSaverHook(tmp_path, save_steps=1, saver=train.Saver())  # not the scaffold's
        creator = train.ChiefSessionCreator(checkpoint_dir=tmp_path)
        with train.MonitoredSession(creator, [saves, Loses()]) as session:
            for _ in range(4):
                session.run(op)
            assert session.recoveries == 1
        assert load_variable(tmp_path, "w") == 4.0

    def test_a_damaged_checkpoint_falls_back_by_one(
        self, counting: tuple[Graph, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        graph, op = counting
        with train.MonitoredTrainingSession(checkpoint_dir=tmp_path, save_checkpoint_steps=2) as session:
            for _ in range(4):
                session.run(op)
        for step, found in ((4, 2), (2, 0), (0, None)):
            (shard,) = tmp_path.glob(f"model.ckpt-{step}.*.safetensors")
            data = bytearray(shard.read_bytes())
            data[-1] ^= 1
            shard.write_bytes(data)
            options: dict[str, Any] = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 0}
            with graph.as_default():
                if found is None:
                    with pytest.raises(DataLossError, match="None of 3 checkpoints can be restored"):
                        train.MonitoredTrainingSession(**options)
                else:
                    with train.MonitoredTrainingSession(**options) as session:
                        assert values(session) == (found, float(found))
            assert "trying the checkpoint before it" in capsys.readouterr().out


def ps_graph() -> tuple[Graph, Tensor]:
    """Return a graph that counts on two parameter servers: the step on the first, ``w`` on the second."""
    with Graph().as_default() as graph:
        with device(PS):
            step = get_or_create_global_step()
        with device("/job:ps/task:1"):
            w = Variable(0.0, name="w")
        op = group(step.assign_add(1), w.assign_add(1.0), name="train")
    return graph, op


@pytest.fixture
def two_ps() -> Iterator[Tasks]:
    tasks = open_tasks(workers=2, ps=2)
    yield tasks
    for server in tasks.servers.values():
        server.close()


def replace(tasks: Tasks, name: str) -> None:
    """End a Server, and start another at its address: a task that was started again."""
    old = tasks[name]
    old.close()
    tasks.servers[name] = Server(old.cluster, old.job, old.index, keys=tasks.keys)


def monitored(tasks: Tasks, graph: Graph, chief: bool = True, **options: Any) -> train.MonitoredSession:
    target = tasks["worker0" if chief else "worker1"].target
    with graph.as_default():
        return train.MonitoredTrainingSession(
            target, chief, config={"timeout": 20.0}, **{"log_step_count_steps": 0, **options}
        )


class TestRecovery:
    def test_a_replaced_server_gets_its_variables_back_and_the_others_keep_theirs(
        self, two_ps: Tasks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        graph, op = ps_graph()
        with monitored(two_ps, graph, checkpoint_dir=tmp_path, save_checkpoint_steps=4) as session:
            for _ in range(6):
                session.run(op)
            until(lambda: train.latest_checkpoint(tmp_path) == str(tmp_path / "model.ckpt-4"))
            replace(two_ps, "ps1")
            session.run(op)
            step, w = values(session)
            assert w == 5.0
            assert step in (7, 8)  # the lost run may have counted before it failed
            assert session.recoveries == 1
        out = capsys.readouterr().out
        assert f"restored w on /job:ps/task:1 from {tmp_path}/model.ckpt-4 (global step {step - 1})" in out
        assert f"{step - 5} updates of these variables are lost" in out

    def test_without_a_checkpoint_the_lost_variables_are_initialised(
        self, two_ps: Tasks, capsys: pytest.CaptureFixture[str]
    ) -> None:
        graph, op = ps_graph()
        creator = train.ChiefSessionCreator(master=two_ps.target, config=CONFIG)
        with graph.as_default(), train.MonitoredSession(creator) as session:
            for _ in range(6):
                session.run(op)
            replace(two_ps, "ps1")
            session.run(op)
            step, w = values(session)
            assert w == 1.0
            assert step in (7, 8)  # the other server keeps what it has

    def test_a_worker_waits_for_the_chief_and_says_so(
        self, two_ps: Tasks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("nbdist.sessions.manager.REPORT_SECONDS", 0)
        graph, _ = ps_graph()
        with pytest.raises(DeadlineExceededError, match=r"waited 0\.5 s for the chief to initialise"):
            train.SessionManager(graph=graph, config=CONFIG).wait_for_session(
                two_ps["worker1"].target, max_wait_secs=0.5
            )
        out = capsys.readouterr().out
        assert "waiting for the chief to initialise or restore global_step on /job:ps/task:0; w on" in out

    def test_a_new_chief_joins_and_nothing_is_rolled_back(
        self, two_ps: Tasks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        graph, op = ps_graph()
        options: dict[str, Any] = {"checkpoint_dir": tmp_path, "save_checkpoint_steps": 100}
        first = monitored(two_ps, graph, **options)
        for _ in range(6):
            first.run(op)
        with monitored(two_ps, ps_graph()[0], chief=False) as other:
            other.run(other.graph.tensor("train"))
        with monitored(two_ps, ps_graph()[0], **options) as second:  # the first one has ended without a word
            assert values(second) == (7, 7.0)
        assert "joined the training (global step 7)" in capsys.readouterr().out
        first._close(failed=True)

    def test_chiefs_one_after_the_other_keep_max_to_keep(self, two_ps: Tasks, tmp_path: Path) -> None:
        for _ in range(4):
            graph, op = ps_graph()
            with graph.as_default():
                scaffold = train.Scaffold(saver=train.Saver(max_to_keep=2))
            options: dict[str, Any] = {"scaffold": scaffold, "save_checkpoint_steps": 2}
            with monitored(two_ps, graph, checkpoint_dir=tmp_path, **options) as session:
                for _ in range(3):
                    session.run(op)
        assert sorted(path.stem for path in tmp_path.glob("*.index")) == ["model.ckpt-11", "model.ckpt-12"]

    def test_what_the_saver_lacks_is_initialised(self, two_ps: Tasks, tmp_path: Path) -> None:
        for expected in ((0, 0.0), (1, 0.0)):
            graph, op = ps_graph()
            with graph.as_default():
                scaffold = train.Scaffold(saver=train.Saver([graph.tensor("global_step")]))
            Session.reset(two_ps.target)
            with monitored(two_ps, graph, checkpoint_dir=tmp_path, scaffold=scaffold) as session:
                assert values(session) == expected
                session.run(op)

    def test_another_training_begins_anew(self, two_ps: Tasks, tmp_path: Path) -> None:
        graph, op = ps_graph()
        for folder in ("a", "b"):
            with monitored(two_ps, graph, checkpoint_dir=tmp_path / folder) as session:
                assert values(session) == (0, 0.0)
                session.run(op)

    @pytest.mark.slow
    def test_the_error_of_a_task_that_does_not_come_back(
        self, two_ps: Tasks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        timeouts: list[float] = []

        def recorded(target: str, graph: Graph, timeout: float, **options: Any) -> Session:
            timeouts.append(timeout)
            return Session(target, graph, timeout=timeout, **options)

        monkeypatch.setattr("nbdist.sessions.manager.REPORT_SECONDS", 0.1)
        monkeypatch.setattr("nbdist.sessions.manager.Session", recorded)
        graph, op = ps_graph()
        creator = train.ChiefSessionCreator(master=two_ps["worker0"])
        with graph.as_default():
            session = train.MonitoredSession(creator)
        session.run(op)
        two_ps["ps1"].close()
        creator._max_wait = 1.0
        with pytest.raises(DeadlineExceededError, match="/job:ps/task:1"):
            session.run(op)
        waits = [line for line in capsys.readouterr().out.splitlines() if "waiting for a task" in line]
        assert waits[0].endswith("; if its process has ended, start it again with its command")
        assert timeouts[1:3] == [
            0.25,
            0.5,
        ]  # a replaced task is found soon, a busy one has more and more time
        session.close()

    def test_a_reset_is_survived(self, two_ps: Tasks, tmp_path: Path) -> None:
        graph, op = ps_graph()
        with monitored(two_ps, graph, checkpoint_dir=tmp_path, save_checkpoint_steps=1) as session:
            session.run(op)
            Session.reset(two_ps.target)
            session.run(op)
            assert values(session) == (2, 2.0)

    def test_an_aborted_step_function_is_called_again(self, two_ps: Tasks) -> None:
        graph, _ = ps_graph()
        failures = iter([AbortedError("once")])

        def step(context: Any) -> int:
            for error in failures:
                raise error
            return int(context.session.run(graph.tensor("global_step")))

        with monitored(two_ps, graph) as session:
            assert session.run_step_fn(step) == 0
            assert session.recoveries == 1

    def test_local_variables_are_initialised_by_each_worker(self, two_ps: Tasks) -> None:
        graph, _ = ps_graph()
        with graph.as_default(), device("/job:worker/task:0"), container("local"):
            mine = Variable(5.0, name="mine")
            graph.local_variables[mine] = None
            scaffold = train.Scaffold(
                local_init_op=mine.initializer, ready_for_local_init_op=graph.tensor("global_step") >= 0
            )
        with monitored(two_ps, graph, scaffold=scaffold) as session:
            assert session.run(mine) == 5.0

    @pytest.mark.slow
    def test_synchronous_replicas_survive_a_new_parameter_server(self, two_ps: Tasks, tmp_path: Path) -> None:
        def replica(chief: bool) -> tuple[Graph, Any, Any]:
            with Graph().as_default() as graph:
                with device("/job:ps/task:1"):
                    w = Variable(np.zeros(2), name="w")
                with device(PS):
                    step = get_or_create_global_step()
                optimizer = train.SyncReplicasOptimizer(SGD(1.0), 2, 2)
                op = optimizer.minimize(np.sum(w), step)
                return graph, op, optimizer.make_session_run_hook(chief)

        reached = threading.Event()
        errors: list[BaseException] = []

        def work(chief: bool) -> None:
            try:
                graph, op, hook = replica(chief)
                hooks = [hook, train.StopAtStepHook(last_step=20)]
                options: dict[str, Any] = {"checkpoint_dir": tmp_path} if chief else {}
                with monitored(two_ps, graph, chief, hooks=hooks, **options) as session:
                    while not session.should_stop():
                        session.run(op)
                        if int(session._session.run("global_step")) >= 8:  # type: ignore[union-attr]
                            reached.set()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(chief,), daemon=True) for chief in (True, False)]
        for thread in threads:
            thread.start()
        assert reached.wait(PATIENCE)
        replace(two_ps, "ps1")
        for thread in threads:
            thread.join(PATIENCE)
        assert not errors
        assert not any(thread.is_alive() for thread in threads)
        assert load_variable(tmp_path, "global_step") >= 20


class TestSupervisor:
    def test_a_published_program(self, two_ps: Tasks, tmp_path: Path) -> None:
        """The chief prepares, the worker waits, and both count."""

        def work(index: int) -> None:
            graph, op = ps_graph()
            supervisor = train.Supervisor(
                graph, is_chief=index == 0, logdir=tmp_path if index == 0 else None, config=CONFIG
            )
            with supervisor.prepare_or_wait_for_session(two_ps[f"worker{index}"].target) as session:
                for _ in range(10):
                    session.run(op)
                done.wait(PATIENCE)
            supervisor.stop()

        done = threading.Barrier(2)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        with two_ps.session(ps_graph()[0]) as session:
            assert values(session) == (20, 20.0)

    def test_a_managed_session_saves(self, counting: tuple[Graph, Tensor], tmp_path: Path) -> None:
        graph, op = counting
        summary.scalar("w", 1.0 * graph.variables()[1])
        supervisor = train.Supervisor(logdir=tmp_path, save_model_secs=0.05, save_summaries_secs=0.05)

        def is_written() -> bool:
            assert supervisor.summary_writer is not None
            supervisor.summary_writer.flush()
            return "w" in EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]

        with supervisor.managed_session() as session:
            session.run(op)
            until(lambda: train.latest_checkpoint(tmp_path) is not None)
            until(is_written)  # its end writes no summary
            session.run(op)
            raise OutOfRangeError("the data has ended")
        assert supervisor.should_stop()
        assert load_variable(tmp_path, "w") == 2.0

    def test_an_error_of_a_thread_is_raised(self, counting: tuple[Graph, Tensor]) -> None:
        def fail() -> None:
            raise ZeroDivisionError("of the thread")

        supervisor = train.Supervisor()
        managed = supervisor.managed_session()
        session = managed.__enter__()
        supervisor.loop(0.001, fail)
        while not supervisor.should_stop():
            session.run("w")
        with pytest.raises(ZeroDivisionError, match="of the thread"):
            managed.__exit__(None, None, None)


def test_a_coordinator_names_the_threads_that_do_not_end() -> None:
    release = threading.Event()
    coordinator = train.Coordinator()
    thread = threading.Thread(target=release.wait, name="stubborn")
    coordinator.register_thread(thread)
    thread.start()
    coordinator.request_stop()
    with pytest.raises(DeadlineExceededError, match="stubborn"):
        coordinator.join(stop_grace_period_secs=0.01)
    release.set()
    coordinator.join()
    assert coordinator.joined


def test_a_timer_counts_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    timer = train.SecondOrStepTimer(every_secs=2.0)
    assert timer.should_trigger_for_step(0)
    assert timer.update_last_triggered_step(0) == (None, None)
    now = 101.9
    assert not timer.should_trigger_for_step(5)
    now = 102.0
    assert timer.should_trigger_for_step(5)
    assert not timer.should_trigger_for_step(0)
    assert timer.update_last_triggered_step(5) == (2.0, 5)
    assert timer.last_triggered_step() == 5


def test_a_request_to_a_task_that_has_ended_fails(two_ps: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = ps_graph()
    with graph.as_default(), two_ps.session(graph) as session:
        session.run([v.initializer for v in graph.variables()])
        two_ps["ps1"].close()
        monkeypatch.setattr("nbdist.wire.rpc.client.CONNECT_SECONDS", 0.3)
        with pytest.raises(UnavailableError, match="/job:ps/task:1"):
            session.describe_variables(graph.variables())
