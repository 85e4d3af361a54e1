"""The stream over a real Jupyter server: a state, then changes; invalid messages close it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import websocket
from labfakes import Fakes, cluster_item, run_item, task_item
from labserver import Server, serving
from waiting import until

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.lab import service
from nbdist.lab.stream import parse_view

fakes = Fakes()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("jupyter"), fakes.put_into) as one:
        yield one


@pytest.fixture(autouse=True)
def clear_fakes() -> None:
    fakes.clear()


def receive(page: websocket.WebSocket) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(page.recv())
    return message


def send(page: websocket.WebSocket, **fields: Any) -> None:
    page.send(json.dumps({"kind": "look", **fields}))


def code_of_end(page: websocket.WebSocket) -> int:
    frame = page.recv_frame()
    while frame.opcode != websocket.ABNF.OPCODE_CLOSE:
        frame = page.recv_frame()
    return int.from_bytes(frame.data[:2], "big")


def test_a_state_and_then_what_changes(server: Server) -> None:
    fakes.runs.items = [run_item("a"), run_item("b")]
    page = server.stream()
    first = receive(page)
    assert (first["kind"], first["version"], first["cluster"]) == ("state", 1, None)
    assert [run["id"] for run in first["runs"]] == ["b", "a"]
    fakes.runs.items = [run_item("a", step=7), run_item("c", status="running")]
    send(page, cluster=None, visible=True)
    assert receive(page) == {
        "kind": "changes",
        "runs": {"set": [run_item("c", status="running"), run_item("a", step=7)], "removed": ["b"]},
    }
    page.close()
    server.wait_idle()


def test_tasks_of_the_shown_cluster(server: Server) -> None:
    fakes.clusters.items = [cluster_item("a")]
    fakes.tasks.by_cluster = {"a": [task_item("a", 0), task_item("a", 1)]}
    page = server.stream()
    assert receive(page)["tasks"] == []
    send(page, cluster="a", visible=True)
    changes = receive(page)
    assert changes == {
        "kind": "changes",
        "tasks": {"set": fakes.tasks.by_cluster["a"], "removed": []},
        "cluster": "a",
    }
    send(page, cluster=None, visible=True)
    assert receive(page) == {"kind": "changes", "cluster": None}
    page.close()
    server.wait_idle()


def test_nothing_is_read_for_hidden_pages(server: Server) -> None:
    page = server.stream()
    receive(page)
    send(page, visible=False)
    server.wait_idle()
    asked = fakes.runs.asked
    fakes.runs.items = [run_item("a")]
    page.settimeout(0.7)
    with pytest.raises(websocket.WebSocketTimeoutException):
        page.recv()
    assert fakes.runs.asked == asked
    page.settimeout(30)
    send(page, visible=True)
    assert receive(page)["runs"]["set"]
    page.close()
    server.wait_idle()


@pytest.mark.parametrize(
    "message",
    ["", "{", "[]", '{"kind": "stop"}', '{"kind": "look", "clutser": null}', '{"kind": "look", "visible": 1}',
     '{"kind": "look", "cluster": 1}', '{"kind": "look", "cluster": "../a"}', "[" * 4000],
)  # fmt: skip
def test_an_invalid_message_closes_the_connection(server: Server, message: str) -> None:
    page = server.stream()
    page.send(message)
    assert code_of_end(page) == 1003
    page.shutdown()
    server.wait_idle()


def test_a_message_that_is_too_long_ends_the_connection(server: Server) -> None:
    page = server.stream()
    page.send(json.dumps({"kind": "look", "cluster": "a" * 10_000}))
    assert code_of_end(page) == 1009
    page.shutdown()
    server.wait_idle()


def test_the_server_sends_pings(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server.app.web_app.settings, "ws_ping_interval", 10)
    page = server.stream()
    frames = [page.recv_frame().opcode for _ in range(3)]
    assert websocket.ABNF.OPCODE_PING in frames
    page.close()
    server.wait_idle()


@pytest.mark.slow
def test_a_slow_page_gets_the_newest_state_in_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most one message is in transit to a slow page, and no queue behind it."""
    monkeypatch.setattr(service, "ACTIVE_SECONDS", service.MIN_SECONDS)
    page = server.stream()
    receive(page)
    for number in range(3):
        asked = fakes.runs.asked
        fakes.runs.items = [run_item("a", step=number, status="running", text="x" * 8_000_000)]
        send(page, visible=True)
        until(lambda asked=asked: fakes.runs.asked > asked + 1)  # type: ignore[misc]
    steps = [receive(page)["runs"]["set"][0]["step"]]
    while steps[-1] < 2:
        steps.append(receive(page)["runs"]["set"][0]["step"])
    assert len(steps) <= 2
    page.close()
    server.wait_idle()


def test_messages_of_a_page() -> None:
    assert parse_view('{"kind": "look"}', "a", False) == ("a", False)
    assert parse_view('{"kind": "look", "cluster": null, "visible": true}', "a", False) == (None, True)
    with pytest.raises(InvalidArgumentError, match="no key 'x'; choose from kind, cluster, visible"):
        parse_view('{"kind": "look", "x": 1}', None, True)
    with pytest.raises(NotFoundError):
        parse_view('{"kind": "look", "cluster": "a/b"}', None, True)
