"""The verbs as tools: their schemas, confirmations, limits, and the audit file. And their protocol."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, ElicitResult

from nbdist.cli import runs, tools
from nbdist.cli.guide import guide_text
from nbdist.cli.mcp import server_of
from nbdist.cli.tools import AUDIT_BYTES, TOKEN_SECONDS, TOOLS, Asked, Audit, Tools, audit_path, bounded
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from nbdist.metrics.run_folder import RunFile, runs_folder, write_run

STARTS_CODE = ("run", "sweep", "start", "attach", "resume", "delete", "clean", "export", "restart", "grow")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("NBDIST_HOME", str(home))
    for number, name in enumerate(["mnist", "digits"]):
        folder = runs_folder() / f"26112{number}-{name}"
        folder.mkdir(mode=0o700)
        write_run(RunFile(folder.name, name=name, status="finished", ended=2_000.0), wait=False)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def made(clock: Clock) -> Tools:
    return Tools(Audit(audit_path(), "a test"), clock)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What tools have done to runs, all of which are under way."""
    found: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(runs, "is_under_way", lambda record: True)
    for name in ("stop_run", "set_run"):
        monkeypatch.setattr(runs, name, lambda report, _name=name, **given: found.append((_name, given)))
    stop = runs.acts("stop", lambda report, **given: found.append(("stop_run", given)), "Stop.", "is stopped")
    monkeypatch.setitem(runs.COMMANDS, "stop", stop)
    monkeypatch.setitem(tools.TOOLS, "stop_run", tools.Tool("runs stop", question="stop {}"))
    return found


def logged() -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit_path().read_text().splitlines()]


def test_no_tool_starts_code_or_deletes() -> None:
    for tool in TOOLS.values():
        verb = tool.words.split()
        assert not {*STARTS_CODE} & {*verb} or verb == ["runs", "resume", "--only-paused"]
        assert tool.reads_only == (verb[-1] in ("list", "show", "compare", "tail", "diagnose"))
        assert "picture" not in tool.parameters


def test_a_schema_follows_the_verb() -> None:
    schema = TOOLS["list_runs"].schema()
    assert schema["properties"]["limit"] == {
        "type": "integer", "minimum": 1, "description": "The newest so many.",
    }  # fmt: skip
    assert schema["properties"]["words"]["type"] == "array"
    assert "finished" in schema["properties"]["status"]["enum"]
    assert TOOLS["compare_runs"].schema()["required"] == ["runs"]
    assert TOOLS["set_learning_rate"].schema()["required"] == ["run", "learning_rate"]
    assert set(TOOLS["continue_run"].schema()["properties"]) == {"runs"}
    for tool in TOOLS.values():
        assert tool.description
        assert all(one["description"] for one in tool.schema()["properties"].values())


def test_reading_answers_at_once(made: Tools) -> None:
    found = made.call("list_runs", {"words": ["digits"], "limit": 5})
    assert isinstance(found, dict)
    assert [one["id"] for one in found["items"]] == ["261121-digits"]
    shown = made.call("tail_run", {"run": "mnist"})
    assert isinstance(shown, dict)
    assert (shown["id"], shown["status"]) == ("261120-mnist", "finished")
    assert [one["tool"] for one in logged()] == ["list_runs", "tail_run"]
    assert all(one["by"] == "a test" for one in logged())
    assert stat.S_IMODE(audit_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(audit_path().parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("stop", {}, "no tool 'stop'; "),
        ("list_runs", {"all": True}, "no argument 'all'"),
        ("list_runs", {"limit": [1, 2]}, "limit is one value, got 2"),
        ("list_runs", {"limit": {"a": 1}}, "limit is a text or a number"),
        ("list_runs", {"trained": "yes"}, "trained is true or false"),
        ("list_runs", {"words": ["x" * 30_000]}, "more than 20,000 characters"),
        ("show_run", {"run": "--code"}, "no run '--code'"),
        ("show_run", {"run": "gone"}, "no run 'gone'"),
    ],
)
def test_wrong_arguments_are_refused(made: Tools, name: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidArgumentError, NotFoundError), match=said):
        made.call(name, arguments)
    assert len(logged()) == 2  # the call, and its error


def test_a_change_needs_its_confirmation(made: Tools, done: list[Any]) -> None:
    asked = made.call("stop_run", {"runs": ["digits"]})
    assert isinstance(asked, Asked)
    assert asked.question.startswith("stop run 261121-digits (digits, finished)")
    assert done == []
    with pytest.raises(FailedPreconditionError, match="no change waits"):
        made.confirm("guessed")
    assert made.confirm(asked.token) == {"runs": ["261121-digits"]}
    assert done == [("stop_run", {"id": "261121-digits"})]
    with pytest.raises(FailedPreconditionError, match="a token works once"):
        made.confirm(asked.token)
    assert len(done) == 1
    assert [one.get("confirmed") for one in logged() if "error" not in one] == [None, None, True, None]


def test_what_was_asked_about_is_done(made: Tools, done: list[Any]) -> None:
    """A newer run that fits the same part of an id is left alone, and a rate is the one of the question."""
    asked = made.call("set_learning_rate", {"run": "digits", "learning_rate": 0.5})
    assert isinstance(asked, Asked)
    assert asked.question.endswith("to 0.5")
    (runs_folder() / "261122-digits").mkdir(mode=0o700)
    write_run(RunFile("261122-digits", status="running"), wait=False)
    made.confirm(asked.token)
    assert done == [("set_run", {"id": "261121-digits", "learning_rate": 0.5})]


def test_a_token_ends(made: Tools, clock: Clock, done: list[Any]) -> None:
    asked = made.call("stop_run", {"runs": ["digits"]})
    declined = made.call("stop_run", {"runs": ["digits"]})
    assert isinstance(asked, Asked)
    assert isinstance(declined, Asked)
    made.decline(declined.token)
    clock.now = TOKEN_SECONDS + 1
    for one in (asked, declined):
        with pytest.raises(FailedPreconditionError):
            made.confirm(one.token)
    assert done == []


def test_a_mistake_is_said_before_the_question(made: Tools) -> None:
    import click

    with pytest.raises(click.UsageError, match="not in the range"):
        made.call("set_learning_rate", {"run": "digits", "learning_rate": -1})
    with pytest.raises(NotFoundError):
        made.call("stop_run", {"runs": ["gone"]})


def test_nothing_is_changed_that_cannot_be_audited(made: Tools, done: list[Any]) -> None:
    asked = made.call("stop_run", {"runs": ["digits"]})
    assert isinstance(asked, Asked)
    audit_path().unlink()
    audit_path().mkdir()
    assert isinstance(made.call("list_runs", {}), dict)  # on a full disk it is needed most
    with pytest.raises(ResourceExhaustedError, match="so nothing is changed"):
        made.confirm(asked.token)
    assert done == []


def test_no_link_takes_the_audit(made: Tools, tmp_path: Path) -> None:
    target = tmp_path / "other"
    target.write_text("")
    audit_path().symlink_to(target)
    made.call("list_runs", {})
    assert target.read_text() == ""


def test_the_audit_file_is_bounded(made: Tools) -> None:
    for _ in range(3):
        audit_path().write_bytes(b"x" * (AUDIT_BYTES - 10) + b"\n")
        made.call("list_runs", {"words": ["y" * 5_000]})
        assert audit_path().stat().st_size < 1_000
    assert sorted(path.name for path in audit_path().parent.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]


def test_an_answer_is_bounded(made: Tools) -> None:
    folder = runs_folder() / "261123-long"
    folder.mkdir(mode=0o700)
    write_run(RunFile("261123-long", status="failed", code="x = 1\n" * 20_000, error="e" * 9_000), wait=False)
    found = made.call("show_run", {"run": "long"})
    assert isinstance(found, dict)
    assert "characters cut" in found["code"]
    assert len(json.dumps(found)) < 30_000
    assert bounded({"a": ["x" * 9_000]})["a"][0].count("x") == 8_000


# The protocol, with the client of the same package.

Agree = Callable[[Any, Any], Awaitable[ElicitResult]]


def said(action: str) -> Agree:
    async def agree(context: Any, asked: Any) -> ElicitResult:
        assert asked.message == "May the assistant stop run 261121-digits (digits, finished)?"
        return ElicitResult.model_validate({"action": action, "content": {} if action == "accept" else None})

    return agree


def value_of(result: CallToolResult) -> dict[str, Any]:
    (text,) = result.content
    found: dict[str, Any] = json.loads(text.text)  # type: ignore[union-attr]
    assert found == result.structured_content
    return found


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_client_without_forms_confirms_by_a_second_call(made: Tools, done: list[Any], mode: Any) -> None:
    async def talk() -> None:
        async with Client(server_of(made), mode=mode) as client:
            names = {one.name: one for one in (await client.list_tools()).tools}
            assert set(names) == {*TOOLS, "confirm"}
            assert [one for one, tool in names.items() if tool.annotations.read_only_hint] == [  # type: ignore[union-attr]
                name for name, tool in TOOLS.items() if tool.reads_only
            ]
            listed = value_of(await client.call_tool("list_runs", {"limit": 1}))
            assert [one["id"] for one in listed["items"]] == ["261121-digits"]
            wrong = await client.call_tool("show_run", {"run": "gone"})
            assert wrong.is_error
            assert "no run 'gone'" in value_of(wrong)["error"]
            asked = value_of(await client.call_tool("stop_run", {"runs": ["digits"]}))
            assert "Nothing was done yet" in asked["needs_confirmation"]
            assert done == []
            assert value_of(await client.call_tool("confirm", {"token": asked["token"]}))["runs"]
            assert len(done) == 1
            again = await client.call_tool("confirm", {"token": asked["token"]})
            assert again.is_error

    asyncio.run(talk())


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
def test_a_client_with_forms_asks_its_user(made: Tools, done: list[Any], mode: Any, action: str) -> None:
    async def talk() -> dict[str, Any]:
        async with Client(server_of(made), mode=mode, elicitation_callback=said(action)) as client:
            return value_of(await client.call_tool("stop_run", {"runs": ["digits"]}))

    found = asyncio.run(talk())
    assert len(done) == (action == "accept")
    assert ("runs" in found) == (action == "accept")
    assert ("declined" in found) == (action != "accept")


def test_read_only_has_no_tool_that_changes(made: Tools, done: list[Any]) -> None:
    async def talk() -> None:
        async with Client(server_of(made, read_only=True)) as client:
            names = {one.name for one in (await client.list_tools()).tools}
            assert names == {name for name, tool in TOOLS.items() if tool.reads_only}
            for name, arguments in (("stop_run", {"runs": ["digits"]}), ("confirm", {"token": "a"})):
                refused = await client.call_tool(name, arguments)
                assert refused.is_error
                assert "--read-only" in value_of(refused)["error"]

    asyncio.run(talk())
    assert done == []


@pytest.mark.processes
def test_over_stdio() -> None:
    async def talk() -> None:
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "nbdist", "mcp"], env=dict(os.environ)
        )
        async with Client(parameters) as client:
            assert guide_text() in (client.instructions or "")
            listed = value_of(await client.call_tool("list_runs", {}))
            assert len(listed["items"]) == 2

    asyncio.run(talk())
