"""The routes that begin actions, over a real Jupyter server with fake actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from labfakes import Fakes, cluster_item, run_item, sweep_item
from labserver import Answer, Server, serving
from waiting import until

from nbdist.errors import NbdistError, UnavailableError
from nbdist.lab.service import SERVICE

fakes = Fakes()
API = "nbdist/api/v1"


class FakeAction:
    """Reports a line, and waits until the test lets it end."""

    def __init__(self) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self.go = asyncio.Event()
        self.fails: NbdistError | None = None

    async def __call__(
        self, request: Mapping[str, Any], report: Callable[[str], object], seconds: float, folder: str | None
    ) -> None:
        self.requests.append(request)
        report("controller 0.4 s")
        await self.go.wait()
        if self.fails is not None:
            raise self.fails


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("jupyter"), fakes.put_into) as one:
        yield one


@pytest.fixture
def action(server: Server) -> Iterator[FakeAction]:
    fakes.clear()
    actions = server.app.web_app.settings[SERVICE].actions
    actions._perform = action = FakeAction()
    yield action

    async def end() -> None:
        await actions.close()
        actions._pending.clear()

    server.do(end())


def let_go(server: Server, action: FakeAction, fails: NbdistError | None = None) -> None:
    async def go() -> None:
        action.fails = fails
        action.go.set()
        async with asyncio.timeout(30):
            while server.app.web_app.settings[SERVICE].actions._tasks:
                await asyncio.sleep(0.001)

    server.do(go())


def asked(server: Server, action: FakeAction) -> list[Mapping[str, Any]]:
    server.do(asyncio.sleep(0))  # after the tasks of the last request
    return action.requests


def post(server: Server, path: str, body: Any = None) -> Answer:
    return server.ask("POST", f"{API}{path}", body)


def test_a_cluster_is_started(server: Server, action: FakeAction) -> None:
    answer = post(server, "/clusters", {"workers": 3, "ps": 1, "memory": "2G"})
    assert answer.status == 202
    id = answer.json["id"]
    [item] = server.get("/state")["clusters"]
    assert (item["id"], item["state"], item["engines"], item["lines"]) == (
        id,
        "starting",
        4,
        ["controller 0.4 s"],
    )
    assert asked(server, action) == [
        {"do": "start", "id": id, "workers": 3, "ps": 1, "launcher": "local", "gpus": "auto", "threads": None,
         "memory": "2G", "gpu_memory": None}
    ]  # fmt: skip
    let_go(server, action)
    assert server.get("/state")["clusters"] == []


def test_a_cluster_is_started_on_other_hosts(server: Server, action: FakeAction) -> None:
    settings = {"hosts": "a:2,b:2", "python": "/opt/py/bin/python", "idle": "30m"}
    answer = post(server, "/clusters", {"launcher": "ssh", "ps": 1, "settings": settings})
    assert answer.status == 202
    [item] = server.get("/state")["clusters"]
    assert (item["launcher"], item["workers"], item["ps"], item["engines"]) == ("ssh", None, 1, None)
    assert (item["hosts"], item["ends"]) == ([], None)
    [request] = asked(server, action)
    assert {name: request[name] for name in ("launcher", "workers", "ps", *settings)} == {
        "launcher": "ssh", "workers": None, "ps": 1, **settings,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"launcher": "ssh"}, "launcher 'ssh' needs hosts: hosts='a:2,b:2'"),
        ({"launcher": "ssh", "settings": {"hosts": "a,a"}}, "a is listed twice"),
        ({"launcher": "ssh", "settings": {"hosts": 7}}, "hosts are text such as 'a:2,b:2'"),
        (
            {"launcher": "ssh", "settings": {"hosts": "a:2"}, "workers": 3},
            "workers=3 do not fit on the hosts",
        ),
        ({"launcher": "ssh", "settings": {"hosts": "a:2"}, "workers": 0}, "workers is a whole number"),
        ({"launcher": "ssh", "settings": {"nodes": "2"}}, "nodes is not a setting of launcher 'ssh'"),
        ({"launcher": "slurm", "settings": {"cores": "many"}}, "cores is a number, not 'many'"),
        ({"launcher": "slurm", "settings": {"cores": "0"}}, "cores is the number of cores of each node"),
        ({"settings": {"hosts": "a"}}, "hosts is not a setting of launcher 'local', which has none"),
        ({"settings": {"idle": "soon"}}, "idle is a time such as 90s, 5m or 1h"),
        ({"settings": {"requeue": True}}, "requeue is not a setting of launcher 'local'"),
        ({"launcher": "slurm", "settings": {"requeue": "yes"}}, "requeue is True or False, not 'yes'"),
        ({"settings": "a:2"}, "settings are an object with the launcher's settings, not 'a:2'"),
        ({"workers": None}, "workers is a whole number of 1 or more, not None"),
    ],
)
def test_settings_of_launchers_that_are_refused(
    server: Server, action: FakeAction, body: dict[str, Any], problem: str
) -> None:
    answer = post(server, "/clusters", body)
    assert answer.status == 400
    assert problem in answer.json["message"]
    assert asked(server, action) == []


def test_a_failed_start_is_listed_until_dismissed(server: Server, action: FakeAction) -> None:
    id = post(server, "/clusters").json["id"]
    let_go(server, action, UnavailableError("no room"))
    [item] = server.get("/state")["clusters"]
    assert (item["state"], item["error"]) == ("failed", "no room")
    assert server.ask("DELETE", f"{API}/clusters/{id}").status == 202
    assert server.get("/state")["clusters"] == []


def test_a_start_can_be_cancelled(server: Server, action: FakeAction) -> None:
    id = post(server, "/clusters").json["id"]
    assert server.ask("DELETE", f"{API}/clusters/{id}").status == 202
    let_go(server, action)
    assert server.get("/state")["clusters"] == []


def test_a_cluster_is_stopped(server: Server, action: FakeAction) -> None:
    fakes.clusters.items = [cluster_item("a"), cluster_item("ipp:mpi:b:c")]
    assert server.ask("DELETE", f"{API}/clusters/a").status == 202
    assert server.ask("DELETE", f"{API}/clusters/ipp%3Ampi%3Ab%3Ac").status == 202
    assert [item["state"] for item in server.get("/state")["clusters"]] == ["stopping", "stopping"]
    assert asked(server, action) == [
        {"do": "stop", "id": "a"},
        {"do": "stop_parallel", "profile": "mpi", "id": "b:c"},
    ]
    answer = post(server, "/clusters/a/grow", {"workers": 1})
    assert (answer.status, answer.json["message"]) == (409, "a: it is being stopped")


def test_grow_and_restart(server: Server, action: FakeAction) -> None:
    fakes.clusters.items = [cluster_item("a"), cluster_item("b")]
    assert post(server, "/clusters/a/grow", {"workers": 2}).status == 202
    assert post(server, "/clusters/b/restart", {"task": "/job:worker/task:1"}).status == 202
    assert asked(server, action) == [
        {"do": "grow", "id": "a", "workers": 2},
        {"do": "restart", "id": "b", "task": "worker:1"},
    ]
    let_go(server, action, UnavailableError("another client changes it"))
    assert {item["error"] for item in server.get("/state")["clusters"]} == {"another client changes it"}
    assert post(server, "/clusters/b/restart", {"task": None}).status == 202


def test_impossible_actions_are_refused_with_a_reason(server: Server, action: FakeAction) -> None:
    fakes.clusters.items = [
        cluster_item("a", can={"stop": True, "grow": False}, why={"grow": "an MPI world"})
    ]
    fakes.sweeps.items = [sweep_item("s", can={"stop": False}, why={"stop": "it is being stopped"})]
    fakes.runs.items = [run_item("r", can={"stop": False}, why={"stop": "it has ended"})]
    answers = [
        post(server, path)
        for path in ("/clusters/a/grow", "/sweeps/s/stop", "/runs/r/stop", "/clusters/z/grow", "/runs/z/stop")
    ]
    assert [answer.status for answer in answers] == [409, 409, 409, 404, 404]
    assert [answer.json["message"] for answer in answers] == [
        "a: an MPI world",
        "s: it is being stopped",
        "r: it has ended",
        "there is no cluster 'z' (any more)",
        "there is no run 'z' (any more)",
    ]
    assert not asked(server, action)


def test_a_run_is_stopped(server: Server, action: FakeAction) -> None:
    fakes.runs.items = [run_item("r")]
    assert post(server, "/runs/r/stop", {}).status == 202
    assert asked(server, action) == [{"do": "stop_run", "id": "r"}]
    assert not any(server.get("/state")["runs"][0]["can"].values())


@pytest.mark.parametrize(
    ("command", "body"), [("pause", {}), ("resume", None), ("set", {"learning_rate": 0.01})]
)
def test_a_run_is_paused_and_resumed_and_gets_another_learning_rate(
    server: Server, action: FakeAction, command: str, body: Any
) -> None:
    fakes.runs.items = [run_item("r")]
    assert post(server, f"/runs/r/{command}", body).status == 202
    assert post(server, "/runs/r/stop", {}).status == 409
    assert asked(server, action) == [{"do": f"{command}_run", "id": "r", **(body or {})}]
    let_go(server, action, UnavailableError("a step of it takes longer"))
    assert server.get("/state")["runs"][0]["error"] == "a step of it takes longer"
    assert post(server, "/runs/r/fly", {}).status == 404


@pytest.mark.parametrize("command", ["pause", "resume", "stop"])
def test_a_command_is_sent_to_a_sweep(server: Server, action: FakeAction, command: str) -> None:
    fakes.sweeps.items = [sweep_item("s")]
    assert post(server, f"/sweeps/s/{command}", {}).status == 202
    assert post(server, "/sweeps/s/stop", {}).status == 409
    until(lambda: fakes.managed == [("command", "s", command)])
    assert not asked(server, action)  # a server thread writes it, without a process
    assert set(server.get("/state")["sweeps"][0]["why"]) == {"pause", "resume", "stop"}
    fakes.fails = UnavailableError("its notebook does not answer")
    fakes.answer.set()
    let_go(server, action)
    assert server.get("/state")["sweeps"][0]["error"] == "its notebook does not answer"
    assert post(server, "/sweeps/s/fly", {}).status == 404


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/clusters", {"wrokers": 2}, "no key 'wrokers'; choose from name, settings, workers, ps, launcher, "
         "gpus, threads, memory, gpu_memory"),
        ("/clusters", {"workers": "2"}, "workers is a whole number of 1 or more, not '2'"),
        ("/clusters", {"workers": True}, "workers is a whole number of 1 or more, not True"),
        ("/clusters", {"workers": [2]}, "workers is a whole number of 1 or more, not '[2]'"),
        ("/clusters", {"ps": -1}, "ps is a whole number of 0 or more, not -1"),
        ("/clusters", {"workers": 600}, "600 tasks are more than the 512"),
        ("/clusters", {"launcher": "rsh"}, "no launcher 'rsh'; choose from local, mpi, ssh, slurm"),
        ("/clusters", {"launcher": {}}, "no launcher {}; choose from local, mpi"),
        ("/clusters", {"gpus": "all"}, "gpus is 'auto', 'none', a number, or UUIDs such as GPU-8f3a,"),
        ("/clusters", {"gpus": True}, "gpus is 'auto', 'none', a number, or UUIDs such as GPU-8f3a,"),
        ("/clusters", {"threads": 0}, "threads is a whole number of 1 or more, not 0"),
        ("/clusters", {"memory": "a lot"}, "memory is a number of bytes or a text such as 300M"),
        ("/clusters", {"gpu_memory": 2}, "gpu_memory is a share of a GPU in (0, 1], not 2"),
        ("/clusters/a/grow", {"workers": 0}, "workers is a whole number from 1 to 512, not 0"),
        ("/clusters/a/restart", {"task": "1; rm"}, "task is a name such as worker:1, or null for all"),
        ("/clusters/a/restart", {"task": 1}, "task is a text, not 1"),
        ("/clusters/a/restart", {"tsak": None}, "no key 'tsak'; choose from task"),
        ("/sweeps/s/pause", {"now": True}, "no key 'now'; the body must be empty"),
        ("/runs/r/stop", {"now": True}, "no key 'now'; the body must be empty"),
        ("/runs/r/pause", {"learning_rate": 1}, "no key 'learning_rate'; the body must be empty"),
        ("/runs/r/set", {}, "learning_rate is a number of 0 or more, not None"),
        ("/runs/r/set", {"learning_rate": "0.1"}, "learning_rate is a number of 0 or more, not '0.1'"),
        ("/runs/r/set", {"learning_rate": True}, "learning_rate is a number of 0 or more, not True"),
        ("/runs/r/set", {"learning_rate": -1}, "learning_rate is a number of 0 or more, not -1"),
        ("/runs/r/set", {"learning_rate": 10**400}, "learning_rate is a number of 0 or more, not 1000"),
        ("/runs/r/set", {"rate": 1}, "no key 'rate'; choose from learning_rate"),
    ],
)  # fmt: skip
def test_invalid_bodies(server: Server, action: FakeAction, path: str, body: Any, message: str) -> None:
    fakes.clusters.items, fakes.runs.items = [cluster_item("a")], [run_item("r")]
    answer = post(server, path, body)
    assert answer.status == 400
    assert answer.json["message"].startswith(message)
    assert not asked(server, action)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"[1]", 400),
        (b"null", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b'{"workers": NaN}', 400),
        (b'{"workers": ' + b"9" * 5000 + b"}", 400),
        (b"[" * 60_000, 400),
        (b'{"memory": "' + b"1" * 70_000 + b'"}', 413),
        (b"  ", 202),
    ],
)
def test_bodies_that_are_not_json(server: Server, action: FakeAction, raw: bytes, status: int) -> None:
    answer = server.ask("POST", f"{API}/clusters", raw=raw)
    assert answer.status == status
    assert len(answer.body) < 1000
    assert len(server.get("/state")["clusters"]) == (status == 202)


def test_a_cluster_has_the_given_name(server: Server, action: FakeAction) -> None:
    assert post(server, "/clusters", {"name": "big", "workers": 2}).json == {"id": "big"}
    assert asked(server, action)[0]["id"] == "big"
    again = post(server, "/clusters", {"name": "big"})
    assert (again.status, "choose another name" in again.json["message"]) == (409, True)
    for name in ("a b", "../x", "", "x" * 49, 7):
        answer = post(server, "/clusters", {"name": name})
        assert (answer.status, "name" in answer.json["message"]) == (400, True)


def test_a_cluster_shrinks(server: Server, action: FakeAction) -> None:
    fakes.clusters.items = [cluster_item("a")]
    assert post(server, "/clusters/a/shrink", {"workers": 1}).status == 202
    assert asked(server, action) == [{"do": "shrink", "id": "a", "workers": 1}]
    assert server.get("/state")["clusters"][0]["why"]["stop"] == "it is shrinking"


@pytest.mark.usefixtures("action")
def test_a_run_is_labelled_and_deleted_and_old_ones_are_cleaned(server: Server) -> None:
    fakes.runs.items = [run_item("r1")]
    assert post(server, "/runs/r1/labels", {"name": "baseline", "tags": ["a"]}).status == 200
    assert server.ask("DELETE", f"{API}/runs/r1").json == {"bytes": 12}
    assert post(server, "/clean", {"older_than": "30d", "keep": 5, "dry_run": False}).status == 200
    assert fakes.managed == [
        ("label", "r1", {"name": "baseline", "tags": ["a"]}),
        ("delete", "r1"),
        ("clean", "30d", 5, False),
    ]
    assert post(server, "/runs/r1/labels", {"colour": "red"}).status == 400
    assert post(server, "/clean", {"keep": "all"}).status == 400
    assert post(server, "/runs/nothing/labels", {"name": "a"}).status == 404
    assert server.ask("DELETE", f"{API}/runs/r1/data").status == 405
    assert len(fakes.managed) == 3
