"""TensorBoard's processes for runs: real ones, requested over their sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensorboard_runs import ask_json, make_run, processes, scalars
from tornado.httpclient import HTTPRequest

from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from nbdist.lab.tensorboard import manager
from nbdist.lab.tensorboard.manager import Boards, is_listening, problem, remove_stale_folders
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.run_folder import run_folder

pytestmark = pytest.mark.processes

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, which must be empty at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tb"))  # socket paths are short
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())
    folder.rmdir()


def with_boards(work: Callable[[Boards], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        boards = Boards("/base/", **options)
        try:
            return await work(boards)
        finally:
            await boards.close()

    return asyncio.run(run())


@pytest.mark.parametrize("own", [True, False])
def test_a_run_is_shown_with_and_without_event_files(temporary: Path, own: bool) -> None:
    run = make_run(own=own, steps=50)

    async def look(boards: Boards) -> None:
        assert await boards.open(run) == f"nbdist/tensorboard/{run}/"
        assert await ask_json(boards, run, "data/runs") == ["worker-0", "worker-0/validation", "worker-1"]
        found = await scalars(boards, run, "worker-0", "loss")
        assert found == {step: pytest.approx(1 / step) for step in range(1, 51)}
        assert await scalars(boards, run, "worker-0/validation", "loss") == {50: 0.25}
        environment = await ask_json(boards, run, "data/environment")
        assert environment["window_title"] == run
        folders = list(temporary.iterdir())
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700]
        assert (folders[0] / "events").exists() == (not own)

    with_boards(look)
    assert processes() == []


def test_all_runs_can_be_compared(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path))
    runs = [make_run(own=own, steps=500) for own in (True, False)]
    (run_folder(runs[0]).parent / "what is this").mkdir()

    async def look(boards: Boards) -> None:
        assert await boards.open("all") == "nbdist/tensorboard/all/"
        tasks = ("worker-0", "worker-0/validation", "worker-1")
        wanted = {f"{run}/{task}" for run in runs for task in tasks}
        assert set(await ask_json(boards, "all", "data/runs")) == wanted
        found = await scalars(boards, "all", f"{runs[1]}/worker-1", "loss")
        assert len(found) == 200
        assert found[500] == pytest.approx(1 / 500)

    with_boards(look)


def test_an_active_run_is_followed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "REFRESH_SECONDS", 0.5)
    run = make_run(own=False, steps=3, ended=False)

    async def look(boards: Boards) -> None:
        await boards.open(run)
        assert len(await scalars(boards, run, "worker-1", "loss")) == 3
        recorder = Recorder(run_folder(run) / "metrics-0001.1.log", replica=1)
        recorder.add(recorder.series("late"), 4, 0.125)
        recorder.close()
        while "late" not in (await ask_json(boards, run, "data/plugin/scalars/tags"))["worker-1"]:
            await asyncio.sleep(0.1)
        assert await scalars(boards, run, "worker-1", "late") == {4: 0.125}

    with_boards(look)


def test_a_long_run_is_thinned_and_keeps_its_ends(temporary: Path) -> None:
    run = make_run(own=False, steps=1)
    recorder = Recorder(run_folder(run) / "metrics-0000.1.log", replica=0)
    for step in range(20_000):
        recorder.add(recorder.series("long"), step, float(step))
        if step % 5000 == 0:
            recorder.add(recorder.series("rare"), step, 1.0)
    recorder.close()

    async def look(boards: Boards) -> None:
        await boards.open(run)
        found = await scalars(boards, run, "worker-0", "long")
        assert len(found) == 1000
        assert {0, 19_999} <= found.keys()
        assert all(step == value for step, value in found.items())
        assert list(await scalars(boards, run, "worker-0", "rare")) == [0, 5000, 10_000, 15_000]

    with_boards(look)


def test_damaged_and_foreign_logs_do_not_affect_others(temporary: Path) -> None:
    run = make_run(own=False, steps=5)
    folder = run_folder(run)
    with (folder / "metrics-0000.log").open("ab") as log:
        log.write(b"NBM2\x02torn")
    (folder / "metrics-0007.log").write_bytes(b"no log at all")
    (folder / "run.json").write_text("{")

    async def look(boards: Boards) -> None:
        await boards.open(run)
        assert len(await scalars(boards, run, "replica-0", "loss")) == 5

    with_boards(look)


def test_a_process_has_no_port_no_secret_and_no_tensorflow(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_TOKEN", "secret")
    run = make_run(own=True, steps=5)

    async def look(boards: Boards) -> None:
        await boards.open(run)
        (process,) = processes()
        assert process.children(recursive=True) == []
        assert [entry for entry in process.net_connections("inet") if entry.laddr] == []
        environment = process.environ()
        assert not {"JUPYTER_TOKEN", "JPY_API_TOKEN"} & environment.keys()
        assert len(await scalars(boards, run, "worker-0", "loss")) == 5

    with_boards(look)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect(temporary: Path) -> None:
    temporary.chmod(0o1777)  # like /tmp
    run = make_run(own=True, steps=1)
    script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"

    async def look(boards: Boards) -> None:
        await boards.open(run)
        (folder,) = temporary.iterdir()
        command = [sys.executable, "-c", script, str(folder / "socket")]
        assert subprocess.run(command, check=False).returncode == 0
        refused = subprocess.run([*AS_NOBODY, *command], capture_output=True, text=True, cwd="/", check=False)
        assert refused.returncode == 1
        assert "PermissionError" in refused.stderr

    with_boards(look)


def test_a_dead_process_is_replaced_at_the_next_request(temporary: Path) -> None:
    run = make_run(own=True, steps=5)

    async def look(boards: Boards) -> None:
        await boards.open(run)
        (first,) = processes()
        first.kill()
        assert len(await scalars(boards, run, "worker-0", "loss")) == 5
        (second,) = processes()
        assert second.pid != first.pid
        second.kill()
        await boards.open(run)
        assert len(await scalars(boards, run, "worker-0", "loss")) == 5

    with_boards(look)


def test_concurrent_requests_start_one_process(temporary: Path) -> None:
    run = make_run(own=True, steps=5)

    async def look(boards: Boards) -> None:
        urls = await asyncio.gather(*(boards.open(run) for _ in range(10)))
        assert set(urls) == {f"nbdist/tensorboard/{run}/"}
        assert len(processes()) == 1

    with_boards(look)


def test_the_least_recently_used_process_is_ended(temporary: Path) -> None:
    runs = [make_run(own=True, steps=1) for _ in range(3)]

    async def look(boards: Boards) -> None:
        await boards.open(runs[0])
        await boards.open(runs[1])
        await ask_json(boards, runs[0], "data/runs")
        first = {process.pid for process in processes()}
        await boards.open(runs[2])
        while len(processes()) > 2:
            await asyncio.sleep(0.02)
        assert await ask_json(boards, runs[0], "data/runs") == ["worker-0", "worker-0/validation", "worker-1"]
        assert len(first & {process.pid for process in processes()}) == 1

    with_boards(look, most=2)


def test_an_unused_process_ends(temporary: Path) -> None:
    run = make_run(own=False, steps=1)

    async def look(boards: Boards) -> None:
        await boards.open(run)
        while processes() or list(temporary.iterdir()):
            await asyncio.sleep(0.02)
        await boards.open(run)  # the next request starts it again

    with_boards(look, idle_seconds=0.2)


def test_a_frozen_process_is_ended(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "END_SECONDS", 0.1)
    run = make_run(own=False, steps=1)

    async def look(boards: Boards) -> None:
        await boards.open(run)
        (process,) = processes()
        process.suspend()

    with_boards(look)
    assert processes() == []


def test_it_ends_with_its_server(temporary: Path) -> None:
    run = make_run(own=False, steps=1)
    server = """
import asyncio, sys
from nbdist.lab.tensorboard.manager import Boards

async def main():
    print(await Boards().open(sys.argv[1]), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    environment = os.environ | {"TMPDIR": str(temporary)}
    command = [sys.executable, "-c", server, run]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == f"nbdist/tensorboard/{run}/\n"
        (child,) = psutil.Process(parent.pid).children()
        parent.kill()
    child.wait(30)
    assert not list(temporary.iterdir())


def test_a_failed_start_has_a_reason(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(own=True, steps=1)
    fake = tmp_path / "tensorboard.py"
    fake.write_text("raise RuntimeError('this TensorBoard is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def fail(boards: Boards) -> None:
        with pytest.raises(UnavailableError, match=r"ended with code 1: (.|\n)*this TensorBoard is broken"):
            await boards.open(run)

    with_boards(fail)
    fake.write_text("import time; time.sleep(600)")

    async def hang(boards: Boards) -> None:
        with pytest.raises(UnavailableError, match=r"does not answer after 0\.5 s"):
            await boards.open(run)

    with_boards(hang, start_seconds=0.5)
    assert processes() == []


def test_an_invalid_run_is_not_opened(temporary: Path) -> None:
    async def look(boards: Boards) -> None:
        for run in ("..", "../runs", "a/../b", "a..b", "", ".", "/etc", "a\0b"):
            with pytest.raises(InvalidArgumentError):
                await boards.open(run)
        with pytest.raises(NotFoundError, match="no run 'there-is-none'"):
            await boards.open("there-is-none")

    with_boards(look)
    assert processes() == []


def test_without_tensorboard_the_error_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem() is None
    run = make_run(own=True, steps=1)
    monkeypatch.setattr(manager, "find_spec", lambda name: None)
    assert problem() == 'TensorBoard is not installed: pip install "nbdist[tensorboard]"'

    async def look(boards: Boards) -> None:
        with pytest.raises(FailedPreconditionError, match=r"nbdist\[tensorboard\]"):
            await boards.open(run)

    with_boards(look)


def test_a_full_disk_is_an_nbdist_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = make_run(own=True, steps=1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    async def look(boards: Boards) -> None:
        with pytest.raises(UnavailableError, match="cannot be started"):
            await boards.open(run)

    with_boards(look)


def test_an_answer_that_is_too_large_is_refused(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(own=True, steps=1)
    monkeypatch.setattr(manager, "LARGEST_ANSWER", 1 << 20)

    async def look(boards: Boards) -> None:
        await boards.open(run)
        with pytest.raises(UnavailableError, match="1 MB"):
            await boards.fetch(run, HTTPRequest(f"http://board/base/nbdist/tensorboard/{run}/index.js"))
        assert await ask_json(boards, run, "data/runs")  # the board itself continues

    with_boards(look)


def test_files_of_a_killed_server_are_removed(temporary: Path) -> None:
    old, used, new, other = (
        temporary / f"{name}" for name in ("nbdist-board-o", "nbdist-board-u", "nbdist-board-n", "else")
    )
    for folder in (old, used, new, other):
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(folder / "socket"))
    with socket.socket(socket.AF_UNIX) as door:
        (used / "socket").unlink()
        door.bind(str(used / "socket"))
        door.listen()
        assert is_listening(used / "socket")
        for folder in (old, used, other):
            os.utime(folder, (0, 0))
        remove_stale_folders()
        assert sorted(temporary.iterdir()) == sorted([other, new, used])
    for folder in (used, new, other):
        (folder / "socket").unlink()
        folder.rmdir()


def test_the_server_imports_no_tensorboard() -> None:
    names = "tensorboard", "werkzeug", "matplotlib", "ipywidgets", "optuna"
    script = (
        "import sys, nbdist.lab.tensorboard.manager, nbdist.lab.tensorboard.proxy as proxy;"
        "proxy.handlers(nbdist.lab.tensorboard.manager.Boards());"
        f"print([n for n in {names!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
