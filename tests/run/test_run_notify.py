"""``--notify``: who is told what of a run, and that nothing of it fails the run."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.run_folder import RunFile, read_run, run_folder, write_run
from nbdist.run import notify
from nbdist.run.membership import MembershipRules
from nbdist.run.notify import Notice, Notifier, Target, deliver, target_of
from nbdist.run.options import Options
from nbdist.run.remote import EndedTasks
from nbdist.run.run import Run
from nbdist.runtime.task import TaskInfo

WORKER = TaskInfo("worker", 0, 0, "", 0, "", "", 0)
NASTY = "a'; touch pwned; $(touch pwned) `touch pwned` \"\n--x"
NOTICE = Notice("failed", "run", "r1", NASTY, f"run {NASTY} has failed", error=NASTY, tasks=("worker 1",))


class Hook(BaseHTTPRequestHandler):
    """Takes down what is posted."""

    posted: list[dict[str, Any]]
    status = 200

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append({**json.loads(content), "type": self.headers["Content-Type"]})
        self.send_response(self.status)
        if self.status == 302:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Hook]]]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # not for this host
    handler = type("OneHook", (Hook,), {"posted": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook/secret", handler
    server.shutdown()
    thread.join()
    server.server_close()


def program(tmp_path: Path, code: str) -> str:
    """Return the line of a command that executes this code."""
    path = tmp_path / "told.py"
    path.write_text(f"import json, os, sys\n{code}\n")
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(path))} 'two words'"


def told(tmp_path: Path) -> str:
    """Return a command that writes what it is told into a file."""
    parts = "sys.argv[1:], json.load(sys.stdin), {k: v for k, v in os.environ.items() if k[:7] == 'NBDIST_'}"
    file = str(tmp_path / "told.json")
    return program(tmp_path, f"with open({file!r}, 'a') as f:\n    print(json.dumps([{parts}]), file=f)")


def lines(tmp_path: Path) -> list[Any]:
    return [json.loads(line) for line in (tmp_path / "told.json").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "takes a command or an address"),
        ("   ", "takes a command or an address"),
        ("x" * 3_000, "at most 2,048 characters"),
        ("a\0b", "takes a command"),
        ("# nothing", "no program '#'"),
        ("no-such-program --now", "no program 'no-such-program' to run"),
        ("'unclosed", "as a shell reads them"),
        ("http://example.com/hook", "http is for this host; use https"),
        ("http://localhost.example.com/", "use https"),
        ("http://127.0.0.1.example.com/", "use https"),
        ("ftp://example.com/a", "ftp is not supported; use https"),
        ("file:///etc/passwd", "file is not supported"),
        ("https:///path", "an address is https://HOST/PATH"),
        ("https://a.example.com/a b", "without spaces"),
        ("https://me:secret@example.com/a", "leave the user and the password out"),
        ("https://a.example.com:port/", "takes an address such as"),
        ("https://[::1/", "takes an address such as"),
    ],
)
def test_what_cannot_be_told_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--notify") as error:
        Options(notify=text)
    assert said in str(error.value)
    assert "secret" not in str(error.value)


def test_what_can_be_told() -> None:
    assert target_of("https://hooks.example.com/a?b=c").url == "https://hooks.example.com/a?b=c"
    for host in ("127.0.0.1:8080", "localhost", "[::1]:80"):
        assert target_of(f"http://{host}/x").url
    assert target_of(f"{sys.executable} -c 'print(1)'").words == (sys.executable, "-c", "print(1)")
    assert str(target_of("https://hooks.example.com/T0/secret")) == "https://hooks.example.com/..."


def test_no_other_process_gets_it() -> None:
    options = Options(notify="https://hooks.example.com/secret", name="a")
    assert options.without_secrets() == Options(name="a")


@pytest.mark.processes
def test_a_command_gets_texts_as_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    deliver(target_of(told(tmp_path)), NOTICE)
    ((arguments, content, environment),) = lines(tmp_path)
    assert arguments == ["two words"]
    assert content["text"].startswith("run a'; touch pwned")
    assert (content["event"], content["tasks"]) == ("failed", ["worker 1"])
    assert (environment["NBDIST_EVENT"], environment["NBDIST_ID"]) == ("failed", "r1")
    assert "\n" not in environment["NBDIST_TEXT"]
    assert not (tmp_path / "pwned").exists()


def test_an_address_gets_json(hook: tuple[str, type[Hook]]) -> None:
    url, handler = hook
    deliver(
        target_of(url), Notice("finished", "run", "r1", "mnist", "it has", metrics={"loss": float("inf")})
    )
    (posted,) = handler.posted
    assert (posted["type"], posted["event"], posted["metrics"]) == (
        "application/json",
        "finished",
        {"loss": None},
    )


@pytest.mark.parametrize(("status", "said"), [(404, "HTTP 404"), (500, "HTTP 500"), (302, "HTTP 302")])
def test_what_an_address_refuses_is_said_without_its_secret(
    hook: tuple[str, type[Hook]], status: int, said: str
) -> None:
    url, handler = hook
    handler.status = status
    assert said in problem_with(url)
    assert len(handler.posted) == 1


def problem_with(text: str) -> str:
    problems: list[str] = []
    done = threading.Event()
    notifier = Notifier(target_of(text), problems.append)
    notifier.tell(NOTICE)
    notifier.close(done.set)
    until(done.is_set)
    (problem,) = problems
    assert "secret" not in problem
    assert problem.startswith("--notify ")
    return problem


@pytest.mark.processes
def test_a_command_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = program(tmp_path, "sys.exit('it is\\nbroken')")
    assert problem_with(failed).endswith(": it ended with exit status 1: it is broken")
    monkeypatch.setattr(notify, "COMMAND_SECONDS", 0.3)
    slow = program(tmp_path, "import time\ntime.sleep(600)")
    assert problem_with(slow).endswith(": it has not ended within 0.3 s, and was killed")
    gone = tmp_path / "gone"
    gone.write_text("#!/bin/sh\n")
    gone.chmod(0o700)
    line = str(gone)
    target_of(line)
    gone.write_bytes(b"\x7fELF")
    assert "Exec format error" in problem_with(line)


def test_nobody_listens() -> None:
    assert "refused" in problem_with("http://127.0.0.1:9/secret")


def test_losses_that_wait_are_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    delivered: list[Notice] = []
    begun, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def slow(target: Target, notice: Notice) -> None:
        delivered.append(notice)
        begun.set()
        goes_on.wait(60)

    monkeypatch.setattr(notify, "deliver", slow)
    problems: list[str] = []
    notifier = Notifier(Target(("true",)), problems.append)
    notifier.tell(NOTICE)
    until(begun.is_set)
    for number in range(notify.MOST_WAITING + 1):
        name = f"worker {number}"
        notifier.tell(Notice("lost", "run", "r1", "mnist", f"{name} was killed", tasks=(name,)))
    assert len(problems) == 1
    assert "64 others wait" in problems[0]
    notifier.close(done.set)
    goes_on.set()
    until(done.is_set)
    assert [one.event for one in delivered] == ["failed", "lost"]
    assert len(delivered[1].tasks) == notify.MOST_WAITING


def test_nothing_told_ends_at_once() -> None:
    ended: list[int] = []
    Notifier(Target(("true",)), pytest.fail).close(lambda: ended.append(1))
    assert ended == [1]


# A run.


class Body:
    """A body that has ended."""

    def __init__(self, **outcome: Any) -> None:
        self._outcome = {"rank": 0, **outcome}

    def ready_ranks(self) -> list[int]:
        return [0]

    def outcome(self, rank: int) -> Any:
        return self._outcome


def make_run(home: Path, text: str | None, **outcome: Any) -> Run:
    folder = run_folder("told")
    folder.mkdir(mode=0o700, exist_ok=True)
    write_run(record := RunFile("told", name="mnist", status="running"))
    rules = MembershipRules.of(Options(notify=text, name="mnist"), 1, 0)
    return Run(EndedTasks([WORKER]), record, folder, [WORKER], rules, Body(**outcome))


def test_the_end_of_a_run_is_told_before_wait_returns(own_home: Path, hook: tuple[str, type[Hook]]) -> None:
    url, handler = hook
    run = make_run(own_home, url, trainings=1, global_step=12, last_epochs={0: {"loss": 0.25}})
    run.wait()
    (posted,) = handler.posted
    assert (posted["event"], posted["id"], posted["name"]) == ("finished", "told", "mnist")
    assert posted["metrics"] == {"loss": 0.25}
    assert posted["text"].startswith("run mnist has finished")
    assert run.notes == []
    assert "notify" not in read_run("told").options


def test_a_run_that_cannot_tell_finishes(
    own_home: Path, hook: tuple[str, type[Hook]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = hook
    handler.status = 500
    run = make_run(own_home, url, trainings=1)
    assert run.wait().status == "finished"
    assert "was not told that run mnist has finished" in capsys.readouterr().out
    assert "HTTP 500" in run.notes[-1]


def test_one_client_tells(own_home: Path, hook: tuple[str, type[Hook]]) -> None:
    """Another one has written the end, and told of it."""
    url, handler = hook
    run = make_run(own_home, url, trainings=1)
    write_run(RunFile("told", name="mnist", status="finished", ended=1.0))
    run.wait()
    assert handler.posted == []
    assert run.settled


def test_a_lost_task_is_told(own_home: Path, hook: tuple[str, type[Hook]]) -> None:
    url, handler = hook
    run = make_run(own_home, url, trainings=1)
    run._followed.happened("lost", "worker 0 was killed by signal 9", WORKER)
    run.wait()
    assert [one["event"] for one in handler.posted] == ["lost", "finished"]
    assert (
        handler.posted[0]["text"]
        == "run mnist has lost a task, and continues: worker 0 was killed by signal 9"
    )


def test_without_it_nothing_is_told(own_home: Path) -> None:
    run = make_run(own_home, None, trainings=1)
    run._followed.happened("lost", "it was killed", WORKER)
    assert run.wait().settled
    assert run._notifier is None
