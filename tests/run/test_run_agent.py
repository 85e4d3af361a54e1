"""A task's agent: one run at a time, reports to subscribers, commands from the client."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
)
from nbdist.frameworks.torch.store import REQUEST
from nbdist.metrics.log import Batch, log_path, read_log
from nbdist.metrics.recorder import Recorder
from nbdist.run.displays import Displayed
from nbdist.run.files.place import RunPlace
from nbdist.run.options import Options
from nbdist.run.task import agent as agents
from nbdist.run.task import body as bodies
from nbdist.run.task.agent import Agent
from nbdist.run.task.body import RunSpec, run_body
from nbdist.run.task.reporting import ActiveRun, Output
from nbdist.runtime.groups import World
from nbdist.runtime.task import Task
from nbdist.train.context import Context
from nbdist.wire.hosts import host_identity
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame, decode


def live(agent: Agent, folder: Path, run: str = "r1") -> ActiveRun:
    one = ActiveRun(
        run,
        Context(control=agent.control(run)),
        Recorder(folder / f"metrics-{run}.log", replica=2),
        Output(folder / f"output-{run}.log"),
    )
    agent.begin(one)
    return one


def finish(agent: Agent, one: ActiveRun, small: bool = False) -> None:
    one.small = small
    agent.end(one)
    one.recorder.close()
    one.output.finish()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def next_report(client: Peer) -> Frame:
    frame = client.receive(10)
    assert frame is not None
    assert frame.kind == "run.progress"
    return frame


def reports_until(client: Peer, enough: Callable[[list[Frame]], object]) -> list[Frame]:
    """Return reports until ``enough(reports)``; the agent sends them ten times a second."""
    frames = [next_report(client)]
    while not enough(frames):
        frames.append(next_report(client))
    return frames


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.arrays[0].tobytes().decode() for frame in frames)


def batches_of(frames: list[Frame]) -> list[Batch]:
    return [Batch.from_arrays(one.meta["batch"], one.arrays[1:]) for one in frames if "batch" in one.meta]


def step_of(frames: list[Frame]) -> int:
    return int(frames[-1].meta["progress"]["step"])


def test_a_run_that_has_begun_hands_its_body_over(
    agent: Agent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec("r1", RunPlace(str(folder)), (agent.task.rank,), Options(seed=1), "one_device")
    begin, given = agent.begin, list[Any]()

    def begin_and_ask(one: ActiveRun) -> None:
        begin(one)
        given.append(agent.hand_over("r1"))

    monkeypatch.setattr(bodies, "agent", lambda: agent)
    monkeypatch.setattr(agent, "begin", begin_and_ask)
    outcome = run_body(spec, "x = 1")
    assert (given, outcome.get("error")) == ([(spec, "x = 1")], None)
    with pytest.raises(NotFoundError, match="runs no body of run r1"):
        agent.hand_over("r1")


@pytest.mark.parametrize("here", [True, False], ids=["on the client's host", "elsewhere"])
def test_points_have_the_time_of_the_clients_host(
    agent: Agent, folder: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """Whatever this process's time of day is: the clock may have been set since the run began."""
    monkeypatch.setattr(bodies, "agent", lambda: agent)
    origin = host_identity() if here else "elsewhere", 5e9
    place = RunPlace(str(folder))
    spec = RunSpec("r1", place, (agent.task.rank,), Options(seed=1), "one_device", origin=origin)
    run_body(spec, "import nbdist\nnbdist.log(loss=1.0)")
    (time,) = read_log(log_path(folder, agent.task.rank)).points["time"]
    assert (time > 5e9) == here


def test_one_run_at_a_time(agent: Agent, client: Peer, folder: Path) -> None:
    client.call("run.reserve", {"run": "r1"})
    client.call("run.reserve", {"run": "r1"})  # repeated, as after a lost answer
    with pytest.raises(FailedPreconditionError, match=r"/job:worker/task:0 is busy with run r1; wait for it"):
        client.call("run.reserve", {"run": "r2"})
    client.call("run.release", {"run": "r1"})
    client.call("run.reserve", {"run": "r2"})
    one = live(agent, folder, "r2")
    client.call("run.release", {"run": "r2"})  # no effect while the body runs
    with pytest.raises(FailedPreconditionError, match="busy with run r2"):
        client.call("run.reserve", {"run": "r3"})
    finish(agent, one)
    client.call("run.reserve", {"run": "r3"})


def test_a_reservation_without_a_body_expires(client: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    client.call("run.reserve", {"run": "r1"})
    monkeypatch.setattr(agents, "RESERVED_SECONDS", 0.0)
    client.call("run.reserve", {"run": "r2"})


def test_a_body_is_awaited_until_its_reservation_expires(
    client: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("run.subscribe", "run.outcome")

    def asked() -> list[str]:
        return [client.call(kind, {"run": "r1"}).meta["state"] for kind in kinds]

    assert asked() == ["unknown", "unknown"]
    client.call("run.reserve", {"run": "r1"})
    assert asked() == ["waiting", "coming"]
    monkeypatch.setattr(agents, "RESERVED_SECONDS", 0.0)
    assert asked() == ["expired", "expired"]


def test_a_run_that_ends_while_it_is_asked_has_not_expired(
    agent: Agent, client: Peer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body's thread ends it between two looks of the Server's thread."""
    client.call("run.reserve", {"run": "r1"})
    one, busy = live(agent, folder, "r1"), agent._busy

    def end_and_look() -> str | None:
        finish(agent, one)
        return busy()

    monkeypatch.setattr(agent, "_busy", end_and_look)
    assert client.call("run.outcome", {"run": "r1"}).meta["state"] == "coming"


def test_a_port_is_offered_on_which_nothing_listens(client: Peer) -> None:
    asked = {"framework": "torch", "first": True}
    about = client.call("run.reserve", {"run": "r1", **asked}).meta
    assert about["host"] == socket.gethostname()
    with socket.socket() as one:
        assert one.connect_ex(("127.0.0.1", about["port"])) != 0
    client.call("run.release", {"run": "r1"})
    assert "port" not in client.call("run.reserve", {"run": "r2", **asked, "first": False}).meta


def test_a_store_ends_with_its_run(client: Peer) -> None:
    def ask(do: str, *values: bytes) -> list[bytes]:
        arrays = [np.frombuffer(value, np.uint8) for value in values]
        return [
            bytes(one) for one in client.call(REQUEST, {"run": "r1", "do": do, "keys": ["a"]}, arrays).arrays
        ]

    ask("set", b"1")
    ask("append", b"2")
    assert ask("get") == [b"12"]
    client.call("run.release", {"run": "r1"})
    with pytest.raises(AbortedError, match="run r1 has ended: its store is gone"):
        ask("get")


def test_a_subscriber_receives_points_text_and_progress(agent: Agent, client: Peer, folder: Path) -> None:
    client.call("run.subscribe", {"run": "r1"})
    client.call("run.subscribe", {"run": "r1"})  # a repeated subscription has no effect
    one = live(agent, folder)
    one.output.write("hello \N{SNOWMAN}")
    one.recorder.add(one.recorder.series("loss"), 1, 0.5)
    one.context.progress.step = 7
    frames = reports_until(
        client, lambda frames: text_of(frames) and batches_of(frames) and step_of(frames) == 7
    )
    for frame in frames:
        assert (frame.meta["run"], frame.meta["rank"], frame.meta["ended"]) == ("r1", 0, False)
    assert text_of(frames) == "hello \N{SNOWMAN}"
    (batch,) = batches_of(frames)
    assert [(name, values.tolist()) for name, _, values, _ in batch.by_series()] == [("loss", [0.5])]
    assert batch.replica == 2
    one.output.write("bye")
    finish(agent, one)
    assert text_of(reports_until(client, lambda frames: frames[-1].meta["ended"])) == "bye"
    assert client.receive(0.3) is None  # no message follows the end


def test_a_reservation_may_subscribe_from_the_start(agent: Agent, client: Peer, folder: Path) -> None:
    """A short body ends before a later subscription: its text would be lost."""
    client.call("run.reserve", {"run": "r1", "subscribe": True})
    one = live(agent, folder)
    one.output.write("a")
    text = text_of(reports_until(client, lambda frames: text_of(frames)))
    one.output.write("b")
    finish(agent, one, small=True)
    assert text + text_of(reports_until(client, lambda frames: frames[-1].meta["ended"])) == "ab"
    assert one.unsent is None


def test_the_only_message_of_a_brief_body_is_left_to_its_outcome(
    agent: Agent, client: Peer, folder: Path
) -> None:
    client.call("run.reserve", {"run": "r1", "subscribe": True})
    one = live(agent, folder)
    one.output.write("short")
    finish(agent, one, small=True)
    assert one.unsent is not None
    last = decode(one.unsent)
    assert last.meta["ended"]
    assert text_of([last]) == "short"
    client.call("ping")
    assert client.receive(0) is None


@pytest.mark.parametrize("other", ["subscriber", "display", "points", "results"])
def test_the_only_message_of_a_brief_body_is_sent_if_its_outcome_is_not_enough(
    agent: Agent, client: Peer, task: Task, folder: Path, other: str
) -> None:
    client.call("run.reserve", {"run": "r1", "subscribe": True})
    with Peer(task.server.address, task.keys) as other_client:
        if other == "subscriber":
            other_client.call("run.subscribe", {"run": "r1"})
        one = live(agent, folder)
        if other == "display":
            one.output.display(Displayed({"text/html": "<b>1</b>"}))
        if other == "points":
            one.recorder.add(one.recorder.series("loss"), 1, 0.5)
        finish(agent, one, small=other != "results")
        assert one.unsent is None
        first = client.receive(10)
        assert first is not None
        assert first.kind == ("run.display" if other == "display" else "run.progress")
        if other == "subscriber":
            assert reports_until(other_client, lambda frames: frames[-1].meta["ended"])


def test_releasing_a_reservation_ends_its_subscription(agent: Agent, client: Peer, folder: Path) -> None:
    client.call("run.reserve", {"run": "r1", "subscribe": True})
    client.call("run.release", {"run": "r1"})
    finish(agent, live(agent, folder))
    assert client.receive(0.2) is None


def test_subscribers_of_other_runs_receive_nothing(agent: Agent, client: Peer, folder: Path) -> None:
    client.call("run.subscribe", {"run": "other"})
    one = live(agent, folder)
    finish(agent, one)
    assert client.receive(0.2) is None


def test_a_closed_connection_ends_its_subscription(
    agent: Agent, client: Peer, task: Task, folder: Path
) -> None:
    with Peer(task.server.address, task.keys) as other_client:
        other_client.call("run.subscribe", {"run": "r1"})
    client.call("run.subscribe", {"run": "r1"})
    one = live(agent, folder)
    for _ in range(3):
        one.output.write("still here")
        assert text_of(reports_until(client, text_of)) == "still here"
    finish(agent, one)


def test_commands_reach_only_their_run(agent: Agent, client: Peer, folder: Path) -> None:
    assert client.call("run.stop", {"run": "r1"}).meta == {"running": False}
    one = live(agent, folder)
    control = one.context.control
    assert client.call("run.stop", {"run": "r0"}).meta == {"running": False}
    assert client.call("run.abort", {"run": "r0", "reason": "x"}).meta == {"running": False}
    assert (control.stop_requested, control.aborted) == (False, None)
    assert client.call("run.stop", {"run": "r1"}).meta == {"running": True}
    assert client.call("run.abort", {"run": "r1", "reason": "another failed"}).meta == {"running": True}
    assert (control.stop_requested, control.aborted) == (True, "another failed")
    finish(agent, one)


def test_a_command_reaches_the_control_of_its_run(agent: Agent, client: Peer, folder: Path) -> None:
    client.call("run.subscribe", {"run": "r1"})
    one = live(agent, folder)
    control, progress = one.context.control, one.context.progress
    assert client.call("run.control", {"run": "r0", "do": "pause", "number": 1}).meta == {"running": False}
    assert client.call("run.control", {"run": "r1", "do": "pause", "number": 1}).meta == {"running": True}
    assert (control.paused, control.pause_number) == (True, 1)
    client.call("run.control", {"run": "r1", "do": "set", "learning_rate": 0.5})
    assert (control.rates, control.rate) == (1, 0.5)
    for wrong, message in (
        ({"do": "fly"}, "cannot be asked to 'fly'; choose from pause, resume, set, checkpoint"),
        ({"do": "set", "learning_rate": -1}, "learning_rate must be 0 or more and finite, got -1"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            client.call("run.control", {"run": "r1", **wrong})
    progress.state, progress.learning_rate = "running", 0.5
    progress.checkpoint = {"number": 1, "step": 3, "path": None, "error": "full"}
    control.rest(1)
    control.check()  # as in a wait for other replicas
    found = reports_until(client, lambda frames: frames[-1].meta["progress"]["state"] == "paused")[-1].meta[
        "progress"
    ]
    assert (found["learning_rate"], found["checkpoint"]) == (0.5, progress.checkpoint)
    finish(agent, one)


def test_a_command_may_arrive_before_the_body(agent: Agent, client: Peer, folder: Path) -> None:
    client.call("run.reserve", {"run": "r1"})
    assert client.call("run.stop", {"run": "r1"}).meta == {"running": True}
    assert client.call("run.abort", {"run": "r1", "reason": "another failed"}).meta == {"running": True}
    one = live(agent, folder)
    assert (one.context.control.stop_requested, one.context.control.aborted) == (True, "another failed")
    finish(agent, one)
    client.call("run.reserve", {"run": "r2"})
    other = live(agent, folder, "r2")
    assert (other.context.control.stop_requested, other.context.control.aborted) == (False, None)
    finish(agent, other)


def test_releasing_a_run_frees_its_parameters(
    agent: Agent, client: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []
    monkeypatch.setattr(agent.parameters, "drop_run", dropped.append)
    client.call("run.release", {"run": "r1"})
    assert dropped == ["r1"]


def test_a_task_has_one_agent(task: Task) -> None:
    one = agents.agent()
    assert agents.agent() is one
    agents.install()
    assert agents.agent() is one
    one.parameters.close()


def test_a_task_without_a_cluster_has_no_shared_files(task: Task) -> None:
    task.cluster_id = ""
    with pytest.raises(NbdistError, match="no cluster id"):
        agents.shared_prefix(task)


def test_after_any_error_the_task_is_free(
    agent: Agent, client: Peer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.call("run.subscribe", {"run": "r1"})
    one = live(agent, folder)

    def broken() -> Any:
        raise OSError("the disk is full")

    monkeypatch.setattr(one.recorder, "flush", broken)
    agent.end(one)
    monkeypatch.undo()
    one.recorder.close()
    one.output.finish()
    client.call("run.reserve", {"run": "r2"})


def test_a_task_leaves_its_run_unless_too_few_workers_would_be_left(
    agent: Agent, client: Peer, folder: Path
) -> None:
    request = {"run": "r1", "ranks": [0], "leaves": True}
    assert client.call("run.leave", request).meta["state"] == "free"
    one = live(agent, folder)
    one.context.world = World(agent.task, (0, 1), "r1", least=2)
    with pytest.raises(FailedPreconditionError, match=r"would have 1 workers left, and needs 2"):
        client.call("run.leave", request)
    one.context.world.least = 1
    assert client.call("run.leave", request).meta["state"] == "body"
    one.context.fitting = True
    assert client.call("run.leave", request).meta["state"] == "fits"
    assert agent.control("r1").leave_requested
    assert client.call("run.leave", {**request, "leaves": False}).meta["state"] == "stays"
    assert not agent.control("r1").leave_requested
    agent.groups.lose("r1", [1])
    with pytest.raises(FailedPreconditionError, match=r"would have 0 workers left"):
        client.call("run.leave", request)
    assert client.call("run.using").meta["left"] == ""
    one.context.progress.left_at = 9
    finish(agent, one)
    assert client.call("run.using").meta["left"] == "r1"
