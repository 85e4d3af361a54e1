"""run.timeline(): all tasks on one clock, during the run, after it, and without a cluster."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trace_rules import problems
from waiting import until

import nbdist as nb
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from nbdist.metrics.timeline import Span, Timeline
from nbdist.metrics.timeline_parts import Part, part_path, write_part
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.run.values.backfill import collect, steps_of
from nbdist.runtime.task import TaskInfo, host_identity
from nbdist.ui.api import launch
from nbdist.ui.timeline.view import TimelineView
from nbdist.wire.rpc.frame import Frame

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

TRAIN = """
import numpy as np
rng = np.random.default_rng(0)
x = rng.normal(size=(60, 40)).astype(np.float32)
model = nb.nn.Sequential([nb.nn.Dense(30, "tanh"), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
history = model.fit(nb.data.Dataset.from_arrays(x, np.arange(60) % 3).batch(20), epochs={epochs})
"""
# Replicas that go their own ways wait for each other before they begin: their steps overlap then.
TOGETHER = """
import pathlib, threading
folder = pathlib.Path({folder!r})
(folder / str(nb.task.rank)).touch()
while len(list(folder.iterdir())) < 3:
    threading.Event().wait(0.001)
"""
PARTS = ("data", "compute", "exchange", "wait")


@pytest.fixture
def begin(cluster: Cluster) -> Callable[..., Run]:
    return lambda body, **options: start_run(body, Options(**options), cluster=cluster)


def everything(run: Run) -> Timeline:
    """Return all recorded spans."""
    return collect(run.id, run.folder, run._cluster, [one.info for one in run.members], run.over)


@pytest.mark.engines
@pytest.mark.parametrize(
    "options",
    [{}, {"synchronous": True}, {"transport": "socket"}, {"strategy": "one_device"}],
    ids=str,
)
def test_short_trainings_are_recorded_whole(begin: Callable[..., Run], options: dict[str, Any]) -> None:
    run = begin(TRAIN.format(epochs=20), **options).wait()
    timeline = everything(run)
    assert problems(timeline.chrome_trace()) == []
    servers = [] if options.get("strategy") == "one_device" else ["/job:ps/task:0"]
    assert list(timeline.tasks) == run.tasks + servers
    assert timeline.steps == tuple(range(1, 61))
    standing = run.tally.standing(time.monotonic(), run.store)
    totals = timeline.totals()
    for task, replica in zip(run.tasks, standing.replicas, strict=True):
        mine = Timeline([s for s in timeline.spans if s.task == task and s.step is not None]).totals()[task]
        spent = {part: replica.spent[part] * replica.step for part in PARTS}
        assert mine["data"] == pytest.approx(spent["data"], rel=1e-3)
        assert mine.get("wait", 0.0) == pytest.approx(spent["wait"], rel=1e-3, abs=1e-5)
        if "GPU" in run.trained_on:
            continue  # its timeline has what the GPU's events measure of the rest
        assert mine["compute"] == pytest.approx(spent["compute"], rel=1e-3)
        moved = sum(mine.get(kind, 0.0) for kind in ("send", "receive", "apply"))
        if servers:
            assert moved == pytest.approx(spent["exchange"], rel=1e-3, abs=1e-5)
        else:  # One device pulls nothing: the moment before its compute has no span.
            assert 0.0 < moved <= spent["exchange"] + 1e-5
    for server in servers:
        assert totals[server]["apply"] > 0
        applied = [s for s in timeline.spans if s.task == server and s.kind in ("apply", "receive")]
        assert len(applied) == 180
        lane = "socket" if options.get("transport") == "socket" else "mailbox"
        assert {span.lane for span in applied} == {lane}


@pytest.mark.engines
@pytest.mark.parametrize("transport", ["auto", "socket"])
def test_all_tasks_share_one_clock(begin: Callable[..., Run], transport: str) -> None:
    run = begin(TRAIN.format(epochs=20), synchronous=True, transport=transport).wait()
    timeline = everything(run)
    arrows = timeline.arrows()
    gradients = [(a, b) for a, b in arrows if b.task == "/job:ps/task:0"]
    assert len(gradients) == 180
    assert {(b.name, b.step) for _, b in gradients} == {
        (f"gradient of replica {r}", n) for r in range(3) for n in range(1, 61)
    }
    for send, receive in gradients:
        assert send.start <= receive.start  # on the common clock every message is sent before it arrives
    pulled = [(a, b) for a, b in arrows if a.task == "/job:ps/task:0"]
    assert bool(pulled) == (transport == "socket")
    for send, receive in pulled:
        assert receive.start <= send.start <= send.end <= receive.end  # a request spans its answer


@pytest.mark.engines
@pytest.mark.parametrize("synchronous", [False, True])
def test_one_step_of_every_task_is_in_the_window(
    begin: Callable[..., Run], synchronous: bool, tmp_path: Path
) -> None:
    together = TOGETHER.format(folder=str(tmp_path))
    # Tasks keep their last steps: of those that end far apart none are left that were at one moment.
    near = {} if synchronous else {"staleness": 8}
    body = together + TRAIN.format(epochs=300)
    run = begin(body, synchronous=synchronous, name="window", **near).wait()
    step = run.timeline()
    assert step.tasks == (*run.tasks, "/job:ps/task:0")
    assert step.title.startswith("window · ")
    totals = step.totals()
    for task in run.tasks:
        assert totals[task]["compute"] > 0
        assert sum(totals[task].values()) <= step.seconds * 1.000001
    begin_, end = step.bounds
    assert all(begin_ <= span.start <= span.end <= end + 1e-9 for span in step.spans)
    if synchronous:  # the same step of all, or those at one moment where a task was held up before the last
        assert re.fullmatch(
            r"window · (step|one step each, of \d+ to) \d+( \(near the median of \d+ recorded, [\d.]+ ms\))?",
            step.title,
        )
    more = run.timeline(steps=20)
    shown = [{span.step for span in more.spans if span.task == task} - {None} for task in run.tasks]
    assert max(map(len, shown)) >= 20
    assert more.totals()["/job:ps/task:0"]["apply"] > 0
    chosen = run.timeline(895)
    assert 895 in {span.step for span in chosen.spans if span.task == run.tasks[0]}
    trace = json.loads(step.save(tmp_path / "step.json").read_text())
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == set(step.tasks)


@pytest.mark.engines
def test_spans_are_collected_during_the_run(begin: Callable[..., Run]) -> None:
    run = begin(TRAIN.format(epochs=10**6), synchronous=True)

    def far() -> bool:
        at = run.store.last(0, "loss") if "loss" in run.store.series else None
        return at is not None and at.step >= 1500  # another replica's points may be the first to come

    until(far, during=run)
    step = run.timeline()
    assert all(step.totals()[task]["compute"] > 0 for task in run.tasks)
    assert not list(run.folder.glob("timeline-*"))
    run.stop()
    run.wait()
    assert run.timeline(steps=2).steps[-1] >= step.steps[-1]
    assert len(list(run.folder.glob("timeline-*.json"))) == 4


def test_a_run_before_its_first_step_is_an_error() -> None:
    with pytest.raises(
        FailedPreconditionError, match=r"run r has no timeline: .*Ask again when it has begun"
    ):
        steps_of(Timeline([]), Timeline, "r", "", None, 1, over=False)


@pytest.mark.engines
def test_the_timeline_outlives_the_cluster(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start(workers=2, ps=1)
    run = launch(TRAIN.format(epochs=30), sync=True, cluster=cluster, live=False, name="kept")
    with_cluster = run.timeline()
    cluster.stop()
    alone = run.timeline()
    assert isinstance(alone, TimelineView)
    assert alone.spans == with_cluster.spans
    later = nb.timeline(run.id)
    assert (later.title, later.tasks) == (alone.title, alone.tasks)
    # Where a task was held up before the last step, the steps at one moment are shown, as of those apart.
    assert re.fullmatch(
        r"kept · (step|one step each, of \d+ to) \d+( \(near the median of \d+ recorded, [\d.]+ ms\))?",
        later.title,
    )
    assert later.totals() == alone.totals()
    latest = re.fullmatch(
        r"kept · .*steps .*\b(\d+)", nb.timeline(steps=3).title
    )  # of the latest run that trained
    assert latest is not None
    assert 80 < int(latest[1]) <= 90  # the last ones that all tasks recorded
    assert later.save(tmp_path / "step.png").stat().st_size > 1000
    part_path(run.folder, 1).unlink()
    assert nb.timeline(run.id).tasks == ("/job:worker/task:0", "/job:ps/task:0")
    assert run.timeline().totals()["/job:worker/task:1"] == {}  # listed without spans


@pytest.mark.engines
def test_a_run_without_training_is_an_error(begin: Callable[..., Run]) -> None:
    run = begin("n = 3").wait()
    with pytest.raises(FailedPreconditionError, match=rf"run {run.id} has no timeline.*model\.fit"):
        run.timeline()
    assert not list(run.folder.glob("timeline-*"))
    with pytest.raises(FailedPreconditionError, match="no timeline"):
        nb.timeline(run.id)


@pytest.mark.engines
def test_the_error_for_an_unrecorded_step_lists_the_recorded_ones(begin: Callable[..., Run]) -> None:
    run = begin(TRAIN.format(epochs=3), strategy="one_device").wait()
    with pytest.raises(InvalidArgumentError, match=r"step 40 is not on record; there are steps 1-9"):
        run.timeline(40)


def test_an_unknown_run() -> None:
    with pytest.raises(NotFoundError, match="no run 'never-was'"):
        nb.timeline("never-was")


class RemoteCluster:
    """A cluster with a task on another host and a clock 1000 s ahead, reachable or not."""

    def __init__(self, part: Part, reachable: bool) -> None:
        self.part, self.reachable, self.calls = part, reachable, 0

    def peer(self, rank: int) -> RemoteCluster:
        return self

    def call(self, kind: str, meta: Any = None, timeout: float = 0.0) -> Frame:
        self.calls += 1
        if not self.reachable:
            raise UnavailableError("not reachable")
        assert kind == "run.hello"
        return Frame("run.hello", {"clock": time.perf_counter() + 1000})


@pytest.mark.parametrize("reachable", [True, False])
def test_the_clock_of_another_host_is_measured_or_taken_from_the_time_of_day(
    tmp_path: Path, reachable: bool
) -> None:
    tmp_path.chmod(0o700)
    now, day = time.perf_counter(), time.time()
    roster, hosts = [], {0: host_identity(), 1: "another host"}
    for rank, ahead in ((0, 0.0), (1, 1000.0)):
        name = f"/job:worker/task:{rank}"
        spans = [Span(name, "CPU:0", "compute", "step", now + ahead, 0.5, 1)]
        # The host's time of day is off by a minute, and is used only if the task is unreachable.
        part = Part(name, hosts[rank], now + ahead, day + 60 * rank, Timeline(spans))
        write_part(tmp_path, rank, part)
        roster.append(TaskInfo("worker", rank, rank, hosts[rank], 1, "", "CPU:0", 1))
    timeline = collect("r", tmp_path, RemoteCluster(part, reachable), roster, True)  # type: ignore[arg-type]
    own, other = sorted(timeline.spans, key=lambda span: span.task)
    assert other.start - own.start == pytest.approx(0.0 if reachable else 60.0, abs=0.05)
