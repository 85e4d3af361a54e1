"""Savers on Servers of this process and in one without: what is saved, restored, kept and refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from runtime_tasks import ONE, PS, Tasks, begin, open_tasks
from waiting import PATIENCE, until

from nbdist.checkpoint import tensor_file
from nbdist.checkpoint.tensor_file import CHUNK
from nbdist.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.graph.ops.state import group
from nbdist.graph.partitioners import fixed_size_partitioner
from nbdist.graph.placement import replica_device_setter
from nbdist.graph.scopes import container, device
from nbdist.graph.tensor import Graph, Variable
from nbdist.graph.variables import get_or_create_global_step, get_variable
from nbdist.optim import Adam
from nbdist.runtime.session.session import Session
from nbdist.sessions.saver import (
    Saver,
    checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_variable,
)


def table_graph(ps: int, shards: int, step: int = 0) -> Graph:
    """Return a graph with a table in shards, a weight and a global step, over some ps tasks."""
    with Graph().as_default() as graph, device(replica_device_setter(ps_tasks=ps) if ps else None):
        get_variable("table", (10, 3), np.float32, partitioner=fixed_size_partitioner(shards))
        Variable(np.arange(4.0), name="w")
        Variable(np.int64(step), trainable=False, name="global_step")
    return graph


TABLE = np.arange(30, dtype=np.float32).reshape(10, 3)


def fill(session: Session, factor: float = 1.0) -> None:
    """Give the variables of a table graph known values."""
    begin(session)
    for v in session.graph.variables():
        if v.part is not None and v.shape:
            first = v.part.start[0]
            session.set_value(v, factor * TABLE[first : first + (v.shape[0] or 0)])


def table_of(session: Session) -> np.ndarray[Any, Any]:
    parts = [v for v in session.graph.variables() if v.name.startswith("table")]
    return np.concatenate(session.run(sorted(parts, key=lambda v: v.part.start if v.part else ())))


@pytest.fixture(scope="module")
def two_ps() -> Iterator[Tasks]:
    tasks = open_tasks(workers=1, ps=2)
    yield tasks
    for server in tasks.servers.values():
        server.close()


@pytest.fixture
def empty(two_ps: Tasks) -> Tasks:
    """Two parameter servers and a worker without variables."""
    Session.reset(two_ps.target)
    return two_ps


class TestShards:
    def test_each_task_writes_its_own_and_any_partition_restores(self, empty: Tasks, tmp_path: Path) -> None:
        with table_graph(2, 3).as_default() as graph, empty.session(graph) as session:
            fill(session)
            path = Saver().save(session, tmp_path / "m", global_step=4)
        assert path == str(tmp_path / "m-4")
        assert len(list(tmp_path.glob("m-4.*-of-2.safetensors"))) == 2
        assert list_variables(path) == [("global_step", ()), ("table", (10, 3)), ("w", (4,))]
        np.testing.assert_array_equal(load_variable(path, "table"), TABLE)
        for ps, shards in [(2, 2), (1, 1), (2, 7), (0, 4)]:
            Session.reset(empty.target)
            with table_graph(ps, shards).as_default() as graph, empty.session(graph) as session:
                Saver().restore(session, path)  # without an initialisation
                np.testing.assert_array_equal(table_of(session), TABLE)
                np.testing.assert_array_equal(session.run("w"), np.arange(4.0))
        with table_graph(0, 2).as_default() as graph, Session(graph=graph) as session:  # and in this process
            Saver().restore(session, path)
            np.testing.assert_array_equal(table_of(session), TABLE)

    def test_values_never_pass_through_the_client(
        self, empty: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with table_graph(2, 2).as_default() as graph, empty.session(graph) as session:
            fill(session)
            saver = Saver()
            monkeypatch.setattr(session, "run", None)
            path = saver.save(session, tmp_path / "m", global_step=1)
            saver.restore(session, path)

    def test_one_file_if_asked(self, empty: Tasks, tmp_path: Path) -> None:
        with table_graph(2, 3).as_default() as graph, empty.session(graph) as session:
            fill(session)
            path = Saver(sharded=False).save(session, tmp_path / "m")
            fill(session, 2.0)
            Saver().restore(session, path)
            np.testing.assert_array_equal(table_of(session), TABLE)
        assert len(list(tmp_path.glob("*.safetensors"))) == 1

    def test_optimizer_slots_of_shards_are_restored_in_other_shards(
        self, empty: Tasks, tmp_path: Path
    ) -> None:
        def trained(shards: int) -> tuple[Graph, Any, list[Variable]]:
            with Graph().as_default() as graph, device(replica_device_setter(ps_tasks=2)):
                t = get_variable("t", (7, 2), np.float32, partitioner=fixed_size_partitioner(shards))
                step = get_or_create_global_step()
                loss = np.sum(t.as_tensor() ** 2)
                train = Adam(0.1).minimize(loss, step)
            return graph, train, t.shards

        graph, train, shards = trained(3)
        with graph.as_default(), empty.session(graph) as session:
            begin(session)
            for _ in range(3):
                session.run(train)
            path = Saver().save(session, tmp_path / "m", session.run("global_step"))
            session.run(train)
            expected = np.concatenate(session.run(shards))
        Session.reset(empty.target)
        graph, train, shards = trained(2)
        with graph.as_default(), empty.session(graph) as session:
            Saver().restore(session, path)
            session.run(train)
            np.testing.assert_array_equal(np.concatenate(session.run(shards)), expected)

    def test_containers_and_isolated_sessions(self, empty: Tasks, tmp_path: Path) -> None:
        with Graph().as_default() as graph, device(PS):
            with container("mine"):
                Variable(1.0, name="a")
            Variable(2.0, name="b")
        with graph.as_default(), empty.session(graph, isolate=True) as session:
            begin(session)
            path = Saver().save(session, tmp_path / "m")
            session.run([graph.tensor("a").assign_add(5.0), graph.tensor("b").assign_add(5.0)])
            Saver().restore(session, path)
            assert session.run(["a", "b"]) == [1.0, 2.0]
        until(lambda: not empty.variables(ready=True))

    def test_names_are_mapped(self, tmp_path: Path) -> None:
        with Graph().as_default() as graph, Session(graph=graph) as session:
            a, b = Variable(1.0, name="a"), Variable(2.0, name="b")
            begin(session)
            path = Saver({"first": a, "second": b}).save(session, tmp_path / "m")
            Saver({"first": b}).restore(session, path)
            assert session.run([a, b]) == [1.0, 1.0]


class TestRetention:
    def saved(self, session: Session, saver: Saver, folder: Path, *steps: int) -> list[str]:
        for step in steps:
            saver.save(session, folder / "s", step)
        return [Path(path).name for path in saver.last_checkpoints]

    def test_max_to_keep(self, tmp_path: Path) -> None:
        with Graph().as_default() as graph, Session(graph=graph) as session:
            w = Variable(0.0, name="w")
            begin(session)
            saver = Saver(max_to_keep=2)
            assert self.saved(session, saver, tmp_path, 1, 2, 3) == ["s-2", "s-3"]
            session.run(w.assign(7.0))
            assert self.saved(session, saver, tmp_path, 2) == ["s-3", "s-2"]
            assert latest_checkpoint(tmp_path) == str(tmp_path / "s-2")
            state = checkpoint_state(tmp_path)
            assert state is not None
            assert state.all_model_checkpoint_paths == (str(tmp_path / "s-3"), str(tmp_path / "s-2"))
            assert load_variable(tmp_path, "w") == 7.0
            assert len(list(tmp_path.iterdir())) == 2 * 2 + 1
            later = Saver(max_to_keep=2)
            later.recover_last_checkpoints([*state.all_model_checkpoint_paths, tmp_path / "s-99"])
            assert self.saved(session, later, tmp_path, 4) == ["s-2", "s-4"]
            assert not list(tmp_path.glob("s-3*"))

    def test_one_saver_with_several_names(self, tmp_path: Path) -> None:
        with Graph().as_default() as graph, Session(graph=graph) as session:
            Variable(0.0, name="w")
            begin(session)
            saver = Saver(max_to_keep=1)
            for name in ("one/a", "one/b", "two/a"):
                saver.save(session, tmp_path / name, 1)
        assert [path.name for path in (tmp_path / "one").iterdir()] == ["checkpoint"]
        assert len(list((tmp_path / "two").iterdir())) == 3

    def test_a_relative_path_is_the_same_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with Graph().as_default() as graph, Session(graph=graph) as session:
            Variable(0.0, name="w")
            begin(session)
            Saver().save(session, "saved/m", 1)
            saver = Saver(max_to_keep=2)
            saver.recover_last_checkpoints([str(latest_checkpoint("saved"))])
            saver.save(session, "saved/m", 1)
            assert saver.save(session, "saved/m", 2) == "saved/m-2"
            assert saver.last_checkpoints == [str(tmp_path / "saved" / f"m-{step}") for step in (1, 2)]
            assert load_variable("saved/m-1", "w") == 0.0

    def test_names_of_the_state_file(self, tmp_path: Path) -> None:
        with Graph().as_default() as graph, Session(graph=graph) as session:
            Variable(0.0, name="w")
            begin(session)
            saver = Saver()
            saver.save(session, tmp_path / "a", 1, latest_filename="state_a")
            saver.save(session, tmp_path / "b", 1, write_state=False)
            assert checkpoint_state(tmp_path) is None
            assert latest_checkpoint(tmp_path, "state_a") == str(tmp_path / "a-1")
            assert latest_checkpoint(tmp_path) == str(tmp_path / "b-1")  # without a state file: the newest

    def test_debris_is_removed_and_other_files_are_not(self, tmp_path: Path) -> None:
        with Graph().as_default() as graph, Session(graph=graph) as session:
            Variable(0.0, name="w")
            begin(session)
            saver = Saver()
            saver.save(session, tmp_path / "s", 1)
            kept = {
                "other-1.0123456789ab.0-of-1.safetensors",
                "s-1.safetensors",
                "notes.txt",
                ".other.1.draft",
            }
            for name in {"s-0.0123456789ab.0-of-1.safetensors", ".s-0.index.00.draft", *kept}:
                (tmp_path / name).write_text("")
            before = set(os.listdir(tmp_path)) - kept
            saver.save(session, tmp_path / "s", 2)
            after = set(os.listdir(tmp_path))
        assert kept < after
        assert before - after == {"s-0.0123456789ab.0-of-1.safetensors", ".s-0.index.00.draft"}


class TestBackground:
    def test_what_changes_after_the_call_is_not_saved(
        self, empty: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = threading.Event()
        original = tensor_file.zlib.crc32

        class Held:
            def crc32(self, *args: Any) -> int:
                assert held.wait(PATIENCE)
                return original(*args)

        with table_graph(2, 2).as_default() as graph, empty.session(graph) as session:
            fill(session)
            saver = Saver()
            fill(session, 2.0)  # plans are made
            fill(session)
            used = [server.sessions.store.used() for server in empty.servers.values()]
            monkeypatch.setattr(tensor_file, "zlib", Held())
            path = saver.save(session, tmp_path / "m", 1, wait=False)
            assert latest_checkpoint(tmp_path) is None
            fill(session, 2.0)
            held.set()
            saver.wait()
            np.testing.assert_array_equal(load_variable(path, "table"), TABLE)
            assert [server.sessions.store.used() for server in empty.servers.values()] == used

    def test_the_next_save_waits_and_failures_are_raised(
        self, empty: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(writer: Any, data: Any) -> None:
            raise OSError(28, "No space left on device")

        with table_graph(2, 2).as_default() as graph, empty.session(graph) as session:
            fill(session)
            saver = Saver()
            first = saver.save(session, tmp_path / "m", 1, wait=False)
            saver.save(session, tmp_path / "m", 2, wait=False)
            saver.wait()
            with monkeypatch.context() as patch:
                patch.setattr("nbdist.checkpoint.folder._Descriptor.write", full)
                saver.save(session, tmp_path / "m", 3, wait=False)
                with pytest.raises(ResourceExhaustedError, match="free some space"):
                    saver.wait()
            assert saver.last_checkpoints[0] == first
            assert latest_checkpoint(tmp_path) == str(tmp_path / "m-2")
            assert len(os.listdir(tmp_path)) == 2 * 3 + 1
            saver.save(session, tmp_path / "m", 4)

    def test_an_earlier_failure_keeps_neither_a_save_nor_a_restore_from_their_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(writer: Any, data: Any) -> None:
            raise OSError(28, "No space left on device")

        with Graph().as_default() as graph, Session(graph=graph) as session:
            Variable(1.0, name="w")
            begin(session)
            saver = Saver()
            path = saver.save(session, tmp_path / "m", 1)
            with monkeypatch.context() as patch:
                patch.setattr("nbdist.checkpoint.folder._Descriptor.write", full)
                saver.save(session, tmp_path / "m", 2, wait=False)
                saver.restore(session, path)
                with pytest.raises(ResourceExhaustedError):
                    saver.wait()
                saver.wait()
                saver.save(session, tmp_path / "m", 3, wait=False)
                saver.restore(session, path)
            saver.save(session, tmp_path / "m", 4)
            saver.wait()
        assert latest_checkpoint(tmp_path) == str(tmp_path / "m-4")

    def test_two_savers_of_one_series(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        held = threading.Event()
        original = tensor_file.zlib.crc32

        class Held:
            def crc32(self, *args: Any) -> int:
                assert held.wait(PATIENCE) or threading.current_thread() is threading.main_thread()
                return original(*args)

        with Graph().as_default() as graph, Session(graph=graph) as session:
            Variable(1.0, name="w")
            begin(session)
            one, two = Saver(), Saver()
            with monkeypatch.context() as patch:
                patch.setattr(tensor_file, "zlib", Held())
                one.save(session, tmp_path / "m", 1, wait=False)
                until(lambda: list(tmp_path.glob("m-1.*.safetensors")))
            two.save(session, tmp_path / "m", 2)
            held.set()
            one.wait()
        assert load_variable(tmp_path / "m-1", "w") == load_variable(tmp_path / "m-2", "w") == 1.0

    def test_a_saver_leaves_the_draft_of_another(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Graph().as_default() as graph, Session(graph=graph) as session:
            Variable(1.0, name="w")
            begin(session)
            one, two = Saver(), Saver()
            replace = os.replace

            def after_the_other(draft: Any, file: Any) -> None:
                with monkeypatch.context() as patch:
                    patch.setattr(os, "replace", replace)
                    two.save(session, tmp_path / "m", 2)
                replace(draft, file)

            with monkeypatch.context() as patch:
                patch.setattr(os, "replace", after_the_other)
                one.save(session, tmp_path / "m", 1)
        assert load_variable(tmp_path / "m-1", "w") == load_variable(tmp_path / "m-2", "w") == 1.0
        assert not list(tmp_path.glob(".*"))

    def test_without_memory_for_copies_it_writes_at_once(self, empty: Tasks, tmp_path: Path) -> None:
        with table_graph(2, 2).as_default() as graph, empty.session(graph) as session:
            fill(session)
            stores = [server.sessions.store for server in empty.servers.values()]
            for store in stores:
                store.limit = store.used()
            try:
                path = Saver().save(session, tmp_path / "m", 1, wait=False)
            finally:
                for store in stores:
                    store.limit = None
            assert latest_checkpoint(tmp_path) == path


class TestRefused:
    def test_bad_arguments(self, tmp_path: Path) -> None:
        with Graph().as_default() as graph, Session(graph=graph) as session:
            with pytest.raises(InvalidArgumentError, match="no variables to save"):
                Saver()
            w = Variable(0.0, name="w")
            for bad, words in [
                ({"var_list": w}, "list of variables"),
                ({"var_list": [w + 1.0]}, "is not a variable"),
                ({"var_list": [w, w]}, None),
                ({"var_list": {"": w}}, "a name in a checkpoint"),
                ({"max_to_keep": -1}, "max_to_keep"),
                ({"max_to_keep": True}, "max_to_keep"),
                ({"keep_checkpoint_every_n_hours": 0}, "above 0"),
                ({"keep_checkpoint_every_n_hours": "x"}, "above 0"),
            ]:
                if words is None:
                    continue
                with pytest.raises(InvalidArgumentError, match=words):
                    Saver(**bad)  # type: ignore[arg-type]
            table = get_variable("t", (4, 2), partitioner=fixed_size_partitioner(2))
            with pytest.raises(InvalidArgumentError, match="only some shards of 't'"):
                Saver(table.shards[:1])
            with pytest.raises(InvalidArgumentError, match="both be saved as 'w'"):
                Saver([w, Variable(1.0, name="v")] and {"w": [w, Variable(1.0)]})
            saver = Saver([w])
            with pytest.raises(FailedPreconditionError, match="'w' cannot be saved: it is not initialised"):
                saver.save(session, tmp_path / "m")
            begin(session)
            for step in (-1, True, "x", 1.5):
                with pytest.raises(InvalidArgumentError, match="global_step"):
                    saver.save(session, tmp_path / "m", step)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match="latest_filename"):
                saver.save(session, tmp_path / "m", latest_filename="a/b")
            with pytest.raises(InvalidArgumentError, match="file name"):
                saver.save(session, f"{tmp_path}/")
            assert os.listdir(tmp_path) == []

    def test_what_does_not_fit(self, tmp_path: Path) -> None:
        with Graph().as_default() as graph, Session(graph=graph) as session:
            Variable(np.zeros((2, 3)), name="weights")
            begin(session)
            path = Saver().save(session, tmp_path / "m")
        for value, name, words in [
            (np.zeros((2, 3)), "weight", "did you mean 'weights'"),
            (np.zeros((3, 2)), "weights", r"float64 \(3, 2\), and in the checkpoint .* float64 \(2, 3\)"),
            (np.zeros((2, 3), np.float32), "weights", "is float32"),
        ]:
            with Graph().as_default() as graph, Session(graph=graph) as session:
                Variable(value, name=name)
                with pytest.raises((NotFoundError, InvalidArgumentError), match=words):
                    Saver().restore(session, path)
                with pytest.raises(NotFoundError, match=f"complete checkpoints in '{tmp_path}': m"):
                    Saver().restore(session, tmp_path / "other")
                with pytest.raises(NotFoundError, match=r"it is a folder: .*latest_checkpoint\('"):
                    Saver().restore(session, tmp_path)
                with pytest.raises(InvalidArgumentError, match="None, which nb"):
                    Saver().restore(session, latest_checkpoint(tmp_path / "wrong"))  # type: ignore[arg-type]
        with pytest.raises(NotFoundError, match="it has weights"):
            load_variable(path, "x")


class TestDamage:
    @pytest.fixture
    def saved(self, empty: Tasks, tmp_path: Path) -> Iterator[tuple[Session, Saver]]:
        """Two checkpoints: m-1 with the table, m-2 with twice its values; the variables have three times."""
        with table_graph(2, 2).as_default() as graph, empty.session(graph) as session:
            saver = Saver()
            for step in (1, 2):
                fill(session, step)
                saver.save(session, tmp_path / "m", step)
            fill(session, 3.0)
            yield session, saver

    @pytest.mark.parametrize("damage", ["flip", "cut", "missing", "swapped", "index"])
    def test_it_is_named_and_nothing_is_lost(
        self, saved: tuple[Session, Saver], tmp_path: Path, damage: str
    ) -> None:
        session, saver = saved
        shards = sorted(tmp_path.glob("m-2.*.safetensors"))
        old = sorted(tmp_path.glob("m-1.*.safetensors"))
        if damage == "flip":
            data = bytearray(shards[0].read_bytes())
            data[-3] ^= 4
            shards[0].write_bytes(data)
        elif damage == "cut":
            shards[1].write_bytes(shards[1].read_bytes()[:-1])
        elif damage == "missing":
            shards[1].unlink()
        elif damage == "swapped":
            shards[0].write_bytes(old[0].read_bytes())
        else:
            index = tmp_path / "m-2.index"
            index.write_text(index.read_text().replace("float32", "float64", 1))
        with pytest.raises(DataLossError, match=r"m-2[.']"):
            saver.restore(session, tmp_path / "m-2")
        np.testing.assert_array_equal(table_of(session), 3.0 * TABLE)
        saver.restore(session, tmp_path / "m-1")
        np.testing.assert_array_equal(table_of(session), TABLE)
        if damage in ("cut", "missing", "index"):  # found without reading the tensors
            assert latest_checkpoint(tmp_path) == str(tmp_path / "m-1")

    @pytest.mark.parametrize("state", ["torn", "gone"])
    def test_without_a_state_file_the_newest_is_found(
        self, saved: tuple[Session, Saver], tmp_path: Path, state: str
    ) -> None:
        if state == "torn":
            (tmp_path / "checkpoint").write_text('{"format"')
        else:
            (tmp_path / "checkpoint").unlink()
        assert latest_checkpoint(tmp_path) == str(tmp_path / "m-2")

    def test_a_checkpoint_that_the_state_file_lacks_is_found(
        self, saved: tuple[Session, Saver], tmp_path: Path
    ) -> None:
        session, saver = saved
        before = (tmp_path / "checkpoint").read_text()
        saver.save(session, tmp_path / "m", 3)
        (tmp_path / "checkpoint").write_text(before)  # as if killed before it was replaced
        assert latest_checkpoint(tmp_path) == str(tmp_path / "m-3")


class TestUrls:
    def test_a_url_is_a_folder(self) -> None:
        try:
            with table_graph(0, 2).as_default() as graph, Session(graph=graph) as session:
                fill(session)
                saver = Saver(max_to_keep=1)
                for step in (1, 2):
                    path = saver.save(session, "memory://bucket/runs/m", step)
                assert path == "memory://bucket/runs/m-2"
                assert latest_checkpoint("memory://bucket/runs") == path
                fill(session, 2.0)
                saver.restore(session, path)
                np.testing.assert_array_equal(table_of(session), TABLE)
            assert len(fsspec.filesystem("memory").ls("/bucket/runs")) == 3
        finally:
            fsspec.filesystem("memory").store.clear()


class TestTasksThatEnd:
    def test_a_server_that_was_started_again_is_refused(self, tmp_path: Path) -> None:
        tasks = open_tasks(workers=1, ps=1)
        try:
            with table_graph(1, 1).as_default() as graph, tasks.session(graph) as session:
                fill(session)
                saver = Saver()
                saver.save(session, tmp_path / "m", 1)
                tasks["ps0"].incarnation += 1
                with pytest.raises(AbortedError, match="started again"):
                    saver.save(session, tmp_path / "m", 2)
                assert latest_checkpoint(tmp_path) == str(tmp_path / "m-1")
        finally:
            for server in tasks.servers.values():
                server.close()

    def test_a_server_that_ends_in_the_middle_of_a_write(self, tmp_path: Path) -> None:
        tasks = open_tasks(workers=1, ps=1)
        try:
            with Graph().as_default() as graph, device(PS), tasks.session(graph) as session:
                big = Variable(np.zeros(64 * CHUNK, np.uint8), name="big")
                with device(ONE):
                    small = Variable(0.0, name="small")
                session.run(group(big.initializer, small.initializer))
                saver = Saver()
                saver.save(session, tmp_path / "m", 1)
                tasks["ps0"].sessions._files.close()
                with pytest.raises(UnavailableError, match="closed while a checkpoint"):
                    saver.save(session, tmp_path / "m", 2)
                until(lambda: len(os.listdir(tmp_path)) == 4)
        finally:
            for server in tasks.servers.values():
                server.close()


@pytest.mark.processes
def test_killed_at_every_change_of_a_file_the_newest_complete_one_loads(tmp_path: Path) -> None:
    script = Path(__file__).parent / "killed_saver.py"
    done = subprocess.run([sys.executable, script, tmp_path / "saved"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        int(done.stdout) > 12
    )  # shard, index and state file: create, write, fsync, rename, and the deletions
