"""Runs on tasks with homes of their own: all that they write arrives in the client's folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from other_homes import cluster_elsewhere, spools
from test_run_recovery import until_all_reach
from test_run_recovery_sync_servers import STEPS
from test_run_recovery_sync_servers import body as slow_body
from test_run_server_recovery import kill
from test_run_server_recovery_sync import notes_of
from tiers import exhaustive
from waiting import until

from nbdist.checkpoint.manager import state_files
from nbdist.cluster.cluster import set_current
from nbdist.cluster.folder import runs_on
from nbdist.errors import FailedPreconditionError
from nbdist.metrics.log import logs_in
from nbdist.metrics.run_folder import read_run
from nbdist.metrics.store import columns_from_logs
from nbdist.metrics.timeline_parts import read_parts
from nbdist.nn import load
from nbdist.run.attach import attach_run
from nbdist.run.files.left import copy_ended
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import prepare, resume_run, start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

BODY = """
import time
import numpy as np

rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)

class Wait(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        while epoch == 1 and {waits} and not nb.train.context.current().control.stop_requested:
            time.sleep(0.005)
            if nb.data.files.exists({gate!r}):
                break

print("hello from", nb.task.name)
note = __import__("tempfile").NamedTemporaryFile("w", suffix=".txt")
print(nb.task.index, file=note, flush=True)
nb.save_artifact(note.name, "notes/index.txt")
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(12), epochs=4, callbacks=[Wait()])
"""


@pytest.fixture(scope="module")
def hosts(own_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hosts")
    folder.chmod(0o700)
    return folder


@pytest.fixture(scope="module")
def elsewhere(hosts: Path) -> Iterator[Cluster]:
    """Two workers and a parameter server, on three hosts."""
    with cluster_elsewhere(hosts, [0, 1, 2], workers=2, ps=1) as cluster:
        yield cluster


def body(gate: Path | None = None) -> str:
    """A training, which waits after its second epoch for a file."""
    text = BODY.replace("nb.data.files.exists({gate!r})", "__import__('os').path.exists({gate!r})")
    text = text.replace(
        "nb.train.context.current()", "__import__('nbdist.train.context').train.context.current()"
    )
    return text.format(waits=gate is not None, gate=str(gate))


def losses(run: Run) -> dict[tuple[int, int], float]:
    found = columns_from_logs(run.folder)
    rows = zip(found["replica"], found["series"], found["step"], found["value"], strict=True)
    return {(int(replica), int(step)): float(value) for replica, name, step, value in rows if name == "loss"}


@pytest.mark.parametrize("strategy", ["multi_worker", "ps"])
def test_everything_arrives(cluster: Cluster, elsewhere: Cluster, hosts: Path, strategy: str) -> None:
    options = Options(
        strategy=strategy, seed=3, checkpoint_every="5", synchronous=True, on="worker:0-1", tensorboard=True
    )
    here = start_run(body(), options, cluster=cluster).wait()
    run = start_run(body(), options, cluster=elsewhere).wait()
    assert not run.notes
    if strategy == "multi_worker":
        assert losses(run) == losses(here)
    assert losses(run).keys() == losses(here).keys()
    # States that are older than the newest may have been replaced before they were copied.
    ours, theirs = ({path.name for path in one.folder.iterdir()} for one in (run, here))
    skipped = {path.name for one in (run, here) for path in state_files(one.folder)[1:]}
    skipped |= {f"timeline-{rank:04d}.json" for rank in (2, 3)}  # that of the server
    assert ours - skipped - {".copies.json"} == theirs - skipped
    assert state_files(run.folder)[0].name == state_files(here.folder)[0].name
    assert "hello from /job:worker/task:1" in (run.folder / "output-0001.log").read_text()
    assert {part.task for part in read_parts(run.folder)} == {part.task for part in read_parts(here.folder)}
    events = [sorted(one.folder.glob("tensorboard/*/*tfevents*")) for one in (run, here)]
    assert [len(one) for one in events] == [2, 2]
    tags = [[one.read_bytes().count(b"loss") for one in files] for files in events]  # others are sampled
    assert tags[0] == tags[1]
    assert tags[0][0] > 0
    assert {one.kind for one in run.events} == {one.kind for one in here.events} == {"state"}
    indices = {name: path.read_text() for name, path in run.artifacts.items()}
    assert indices == {"notes/index.txt": "0\n", "worker-1/notes/index.txt": "1\n"}
    assert not spools(hosts)


def test_some_workers_may_be_on_the_host_of_the_client(cluster: Cluster, hosts: Path, tmp_path: Path) -> None:
    options = Options(strategy="multi_worker", seed=3, checkpoint_every="1", on="worker:0-1")
    whole = start_run(body(), options, cluster=cluster).wait()
    with cluster_elsewhere(hosts, [None, 0], workers=2) as mixed:
        run = start_run(body(tmp_path / "gate"), options, cluster=mixed)
        until(lambda: run.poll() or run.standing().step >= 10)
        run.stop()
        run.wait()
        (tmp_path / "gate").touch()
        again = resume_run(run.id, cluster=mixed).wait()
        assert losses(run) | losses(again) == losses(whole)
        assert (again.folder / "output-0001.log").exists()
        assert not spools(hosts)


def test_a_run_whose_tasks_were_all_replaced_is_resumed(
    cluster: Cluster, elsewhere: Cluster, hosts: Path, tmp_path: Path
) -> None:
    options = Options(strategy="multi_worker", seed=3, checkpoint_every="1", on="worker:0-1")
    whole = start_run(body(), options, cluster=cluster).wait()
    run = start_run(body(tmp_path / "gate"), options, cluster=elsewhere)
    until(lambda: run.poll() or run.standing().step >= 10)
    until(lambda: run.poll() or state_files(run.folder))  # copied while it trains
    run.stop()
    run.wait()
    assert run.status == "stopped"
    elsewhere.replace(elsewhere.tasks).wait()
    (tmp_path / "gate").touch()
    again = resume_run(run.id, cluster=elsewhere).wait()
    assert again.status == "finished"
    assert "training continues after step" in (again.folder / "output-0000.log").read_text()
    assert losses(run) | losses(again) == losses(whole)
    assert not spools(hosts)


def test_a_lost_stream_is_filled_from_the_copies(elsewhere: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = start_run(body(gate), Options(strategy="multi_worker", seed=3), cluster=elsewhere)
    until(lambda: run.poll() or run.standing().step >= 10)
    for member in run.members.workers:  # as if the messages so far had been lost
        member.body.position.log_bytes = member.body.position.printed = 0
    run.store.__init__()  # type: ignore[misc]
    run.follow_on_thread()  # on connections of its own
    until(lambda: run.over or {0, 1} <= set(run.store.replicas))
    assert not run.over
    gate.touch()
    run.wait()
    found = run.store.columns()
    assert set(found["step"][found["series"] == "loss"].tolist()) == {step for _, step in losses(run)}


def test_a_client_that_attaches_has_all_points(elsewhere: Cluster, hosts: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = start_run(body(gate), Options(strategy="multi_worker", seed=3), cluster=elsewhere)
    until(lambda: run.poll() or run.standing().step >= 10)
    other = attach_run(run.id)
    assert {int(one) for one in other.store.columns()["step"]} >= set(range(1, 10))
    gate.touch()
    run.wait()
    until(other.poll)
    assert other.store.columns()["step"].size == run.store.columns()["step"].size
    assert not spools(hosts)


def test_what_a_client_did_not_copy_is_fetched_later(elsewhere: Cluster, hosts: Path) -> None:
    run = start_run(body(), Options(strategy="multi_worker", seed=3, checkpoint_every="5"), cluster=elsewhere)
    run._followed.mirror.close()  # the client ends
    until(lambda: all(one is not None for one in outcomes(elsewhere, run)))
    start_run("1", Options(on="worker:0-1"), cluster=elsewhere).wait()
    assert spools(hosts)
    found = attach_run(run.id)
    found.wait()
    assert found.status == read_run(run.id).status == "finished"
    assert len(losses(found)) == 40
    assert len(logs_in(found.folder)) == 2
    assert state_files(found.folder)
    assert not spools(hosts)


def test_what_a_cluster_left_when_it_ended_is_fetched_through_another(
    elsewhere: Cluster, hosts: Path
) -> None:
    options = Options(strategy="multi_worker", seed=3, checkpoint_every="5")
    with cluster_elsewhere(hosts, [0, 1], workers=2) as first:
        run = start_run(body(), options, cluster=first)
        until(lambda: (run.folder / ".copies.json").exists())
        run._followed.mirror.close()  # the client ends
        until(lambda: all(one is not None for one in outcomes(first, run)))
        start_run("1", Options(on="worker:0-1"), cluster=first).wait()
    found = attach_run(run.id)
    assert f"call nb.attach({run.id!r}), which copies it" in found.notes[-1]
    assert (found.status, read_run(run.id).status) == ("failed", "running")
    set_current(elsewhere)
    found = attach_run(run.id)
    assert found.notes == []
    assert found.status == read_run(run.id).status == "finished"
    assert len(losses(found)) == 40
    assert state_files(found.folder)
    assert not spools(hosts)


@exhaustive
def test_what_no_client_has_copied_is_copied_before_a_stop(hosts: Path) -> None:
    with cluster_elsewhere(hosts, [0, 1], workers=2) as first:
        run = start_run(body(), Options(strategy="multi_worker", seed=3), cluster=first)
        until(lambda: (run.folder / ".copies.json").exists())
        run._followed.mirror.close()  # the client ends
        until(lambda: all(one is not None for one in outcomes(first, run)))
        start_run("1", Options(on="worker:0-1"), cluster=first).wait()
        until(lambda: not runs_on(first.folder))
        assert copy_ended(first, prepare) == []
    set_current(None)
    found = attach_run(run.id)
    assert (found.notes, found.status) == ([], "finished")
    assert len(losses(found)) == 40
    assert not spools(hosts)


@exhaustive
def test_a_run_is_resumed_from_a_state_that_no_client_has_copied(
    elsewhere: Cluster, hosts: Path, tmp_path: Path
) -> None:
    options = Options(strategy="multi_worker", seed=3, checkpoint_every="1")
    with cluster_elsewhere(hosts, [0, 1], workers=2) as first:
        run = start_run(body(tmp_path / "gate"), options, cluster=first)
        run._followed.mirror.close()  # before it has copied a state
        (run.folder / ".copies.json").write_text("{}")
        until(lambda: run.poll() or run.standing().step >= 10)
        until(lambda: any(one.glob("state-*") for one in spools(hosts)))
    lines: list[str] = []
    set_current(None)
    with pytest.raises(FailedPreconditionError, match="left no state"):
        resume_run(run.id, report=lines.append)
    assert "ended before a client had copied all" in lines[-1]
    (tmp_path / "gate").touch()
    again = resume_run(run.id, cluster=elsewhere).wait()
    assert again.status == "finished"
    assert "training continues after step" in (again.folder / "output-0000.log").read_text()
    assert not spools(hosts)


def outcomes(cluster: Cluster, run: Run) -> list[object]:
    answers = [cluster.peer(rank).call("run.outcome", {"run": run.id, "at": 0}).meta for rank in (0, 1)]
    return [one if one["state"] == "here" else None for one in answers]


def test_a_replaced_worker_writes_a_log_of_its_own(elsewhere: Cluster, hosts: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = start_run(body(gate), Options(strategy="multi_worker", seed=3, max_restarts=1), cluster=elsewhere)
    until(lambda: run.poll() or (1, 10) in losses(run))  # its log is written ten times a second
    assert elsewhere.signal(1, 9)
    recovery = run._recovery
    assert recovery is not None
    until(lambda: run.poll() or any(one.calls is not None for one in recovery.restarts))
    gate.touch()
    run.wait()
    assert run.status == "finished"
    assert {path.name for path in logs_in(run.folder)} >= {"metrics-0001.log", "metrics-0001.1.log"}
    steps = {step for replica, step in losses(run) if replica == 1}
    assert steps >= {*range(1, 11), *range(12, 21)}  # it joins after a step of the other
    assert not spools(hosts)


def test_a_worker_that_dies_while_its_files_are_copied_changes_nothing(
    elsewhere: Cluster, hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run(body(), Options(strategy="multi_worker", seed=3), cluster=elsewhere)
    mirror, asked = run._followed.mirror, list[bool]()
    monkeypatch.setattr(mirror, "settle", lambda: bool(asked.append(True)))
    until(lambda: run.poll() or asked)
    assert elsewhere.signal(1, 9)
    until(lambda: run.poll() or elsewhere.dead())
    monkeypatch.undo()
    run.wait()
    assert run.status == "finished"
    assert run.history is not None
    elsewhere.restart(report=lambda line: None)
    for left in spools(hosts):  # on the host without a task
        assert left.name == run.id
        shutil.rmtree(left)


def test_a_checkpoint_is_returned_as_the_client_has_it(elsewhere: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = start_run(body(gate), Options(strategy="multi_worker", seed=3), cluster=elsewhere)
    until(lambda: run.poll() or run.standing().step >= 5)
    gate.touch()
    path = run.checkpoint() if not run.over else None
    run.wait()
    if path is not None:
        assert path.is_relative_to(run.folder)
        assert isinstance(load(path).predict(np.zeros((1, 4), np.float32)), np.ndarray)


OTHERS = """
import nbdist.train.context as contexts
print("others", [one.name for one in contexts.current().states.others()])
"""


@pytest.mark.parametrize("first", [0, None], ids=["elsewhere", "here"])
def test_workers_find_the_states_of_the_chief(hosts: Path, first: int | None) -> None:
    options = Options(strategy="ps", seed=3, checkpoint_every="5", synchronous=True)
    with cluster_elsewhere(hosts, [first, 1, 2], workers=2, ps=1) as cluster:
        run = start_run(body() + OTHERS, options, cluster=cluster).wait()
    newest = state_files(run.folder)[0].name
    assert "others []" in (run.folder / "output-0000.log").read_text()
    assert f"others ['{newest}']" in (run.folder / "output-0001.log").read_text()
    assert not spools(hosts)


def test_a_server_that_died_has_its_slots_from_the_chiefs_host(hosts: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    options = Options(strategy="ps", synchronous=True, seed=3, checkpoint_every=4)
    with cluster_elsewhere(hosts, [0, 1, 2, 3], workers=3, ps=1) as cluster:
        run = start_run(slow_body(gate), options, cluster=cluster)
        until_all_reach(run, STEPS)
        until(lambda: state_files(run.folder), during=run)
        kill(cluster, "/job:ps/task:0")
        until(lambda: notes_of(run), during=run)
        gate.touch()
        run.wait()
    (note,) = notes_of(run)
    assert "0 updates lost; its slots of the optimizer (mean and square) are those after" in note
    assert not spools(hosts)


def test_data_tasks_serve_workers_on_other_hosts(cluster: Cluster, hosts: Path) -> None:
    options = Options(strategy="multi_worker", seed=3, on="worker:0-1")
    whole = start_run(body(), options, cluster=cluster).wait()
    with cluster_elsewhere(hosts, [0, 1, 2], workers=2, data=1) as others:
        run = start_run(body(), replace(options, data="service"), cluster=others).wait()
    assert losses(run) == losses(whole)
