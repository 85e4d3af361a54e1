"""TensorBoard for a run, started when somebody asks for it and ended when nobody does.

page ──► Jupyter server (who is logged in) ──► tensorboardproxy ──► Boards ──► Board ═ socket ═► its process
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any
from urllib.parse import unquote

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.netutil import Resolver
from tornado.simple_httpclient import HTTPTimeoutError, SimpleAsyncHTTPClient

from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    NbdistError,
    NotFoundError,
    UnavailableError,
)
from nbdist.lab.worker import Worker
from nbdist.metrics.log import logs_in
from nbdist.metrics.run_folder import run_folder, runs_folder

PATH = "nbdist/tensorboard"
ALL = "all"  # in the place of a run's id: all runs, to be compared
MOST = 4  # boards at a time: each is a process of about 100 MB
IDLE_SECONDS = 600.0
START_SECONDS = 60.0


def problem() -> str | None:
    """Return why no run can be opened in TensorBoard here, or None."""
    if sys.platform == "win32" or not hasattr(socket, "AF_UNIX"):
        return "TensorBoard is reached through a Unix socket, and this system has none"
    if find_spec("tensorboard") is None:
        return 'TensorBoard is not installed: pip install "nbdist[tensorboard]"'
    return None


class Boards:
    """The boards of one Jupyter server; all methods are called on its event loop.

    ``base_url`` is the server's. At most ``most`` boards are there at a time: the one unused longest makes
    room. One that nobody has asked for ``idle_seconds`` ends; who asks again starts it again.
    """

    def __init__(
        self,
        base_url: str = "/",
        *,
        most: int = MOST,
        idle_seconds: float = IDLE_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._base = "/" + "".join(f"{part}/" for part in base_url.split("/") if part)
        self._most, self._idle, self._start = most, idle_seconds, start_seconds
        self._boards: dict[str, Board] = {}
        self._there: set[Board] = set()  # also those that are ending
        self._worker = Worker("nbdist-tensorboard")
        self._swept = False

    async def open(self, run_id: str) -> str:
        """Return where a run's page is, as a path below the server's ``base_url``, once it answers.

        The page of "all" compares the newest runs.
        Raises `InvalidArgumentError` or `NotFoundError` for what is no run, `FailedPreconditionError` with
        what `problem` says, and `UnavailableError` with the end of its output if TensorBoard does not start.
        """
        await self._board(run_id)
        return f"{PATH}/{run_id}/"

    async def ask(self, run_id: str, request: HTTPRequest) -> HTTPResponse:
        """Return what a run's board answers; it is started if it is not there.

        Raises what `open` does, and `UnavailableError` if there is no whole answer.
        """
        board = await self._board(run_id)
        try:
            return await board.ask(request)
        except UnavailableError:
            await asyncio.wait([board.life], timeout=1.0)
            if board.lives:
                raise
        return await (await self._board(run_id)).ask(request)  # it had died, and nobody had noticed

    async def close(self) -> None:
        """End all boards; nothing of them is left."""
        for board in self._there:
            board.end()
        await asyncio.gather(*(board.life for board in self._there), return_exceptions=True)
        self._worker.close()

    async def _board(self, run_id: str) -> Board:
        board = self._boards.get(run_id)
        if board is None or not board.lives:
            run = await self._worker.run(existing, run_id)
            if (found := problem()) is not None:
                raise FailedPreconditionError(found)
            if not self._swept:
                self._swept = True
                await self._worker.run(sweep)
            board = self._boards.get(run_id)  # somebody else may have asked for it meanwhile
        if board is None or not board.lives:
            board = self._boards[run_id] = Board(
                run,
                f"{self._base}{PATH}/{run_id}",
                self._worker,
                all=run_id == ALL,
                idle=self._idle,
                start=self._start,
            )
            self._there.add(board)
            board.life.add_done_callback(lambda _: self._forget(run_id, board))
            self._make_room()
        await asyncio.shield(board.ready)
        return board

    def _make_room(self) -> None:
        living = sorted((one for one in self._boards.values() if one.lives), key=lambda board: board.used)
        for board in living[: max(0, len(living) - self._most)]:
            board.end()

    def _forget(self, run_id: str, board: Board) -> None:
        self._there.discard(board)
        if self._boards.get(run_id) is board:
            del self._boards[run_id]


def existing(run_id: str) -> Path:
    """Return the folder of a run that is there, or of all; raises InvalidArgumentError or NotFoundError."""
    if run_id == ALL:
        return runs_folder()
    folder = run_folder(run_id)
    if not (folder / "run.json").is_file() and not (folder.is_dir() and logs_in(folder)):
        raise NotFoundError(f"no run {run_id!r} in {folder.parent}")
    return folder


# One TensorBoard process, from its start to the removal of its folder.
#
# The folder stands where temporary files do, with mode 0700: the process's socket, its log and, for a run
# that has none, its event files. It is not in nbdist's home, which other hosts may share and whose path may
# be longer than a socket's can be.

NAME = "nbdist-board-"  # what the folders' names begin with
SOCKET, LOG = "socket", "log"
LOOK_SECONDS = 5.0  # between two looks at the logs, and of TensorBoard at its files
END_SECONDS = 5.0  # in which a process is to end by itself
REQUEST_SECONDS = 60.0
LARGEST_ANSWER = 64 << 20  # bytes
SETTLED_SECONDS = 60.0  # from when on a folder without a process is one that was left behind
TAIL = 1500  # characters of the log that tell why it did not start
SECRETS = ("JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN")  # that it has no use for
log = logging.getLogger(__name__)


class Board:
    """TensorBoard for a run's folder, or a folder of runs, at the path ``prefix`` of the server.

    It is made on an event loop.

    ``ready`` is done when it answers, or raises why it does not. It ends when nobody has asked for ``idle``
    seconds, or when told to; process and folder are gone then.
    """

    def __init__(
        self, run: Path, prefix: str, worker: Worker, *, all: bool, idle: float, start: float
    ) -> None:
        self._run, self._prefix, self._worker = run, prefix, worker
        self._plan = {
            "run": str(run),
            "all": all,
            "prefix": unquote(prefix),
            "title": "nbdist" if all else run.name,
            "look": LOOK_SECONDS,
        }
        self._idle, self._start = idle, start
        self._client: SimpleAsyncHTTPClient | None = None
        self._asking = 0
        self.used = time.monotonic()
        self.lives = True  # it answers, or will when it is ready
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.life = asyncio.create_task(self._live())  # done when nothing of it is left
        self.life.add_done_callback(self._tell)

    async def ask(self, request: HTTPRequest) -> HTTPResponse:
        """Return the answer, whatever its status, to a request for any host.

        Raises `UnavailableError` if the process hangs up or the answer is too large, and
        `DeadlineExceededError` if none comes in time.
        """
        if self._client is None:
            raise UnavailableError("TensorBoard has ended")
        self._asking += 1
        try:
            return await self._client.fetch(request, raise_error=False)
        except HTTPTimeoutError:
            raise DeadlineExceededError(f"TensorBoard has not answered for {REQUEST_SECONDS:g} s") from None
        except (HTTPClientError, OSError) as error:
            raise UnavailableError(
                f"TensorBoard gave no whole answer of at most {LARGEST_ANSWER >> 20} MB: {error}"
            ) from error
        finally:
            self._asking -= 1
            self.used = time.monotonic()

    def end(self) -> None:
        """Have it end; `life` says when it has."""
        if self.lives:
            self.lives = False
            self.life.cancel()

    async def _live(self) -> None:
        async with running(self._plan, self._worker) as (folder, process, self._client):
            try:
                await self._wait_for_answer(folder, process)
                self.ready.set_result(None)
                await self._wait_until_unused(process)
            finally:
                self.lives, self._client = False, None

    async def _wait_for_answer(self, folder: Path, process: Process) -> None:
        """Wait for the page; the socket listens from the beginning, so one request is enough."""
        page = HTTPRequest(f"http://board{self._prefix}/", "HEAD", request_timeout=self._start)
        asked = asyncio.create_task(self.ask(page))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and asked.exception() is None and asked.result().code == 200:
                return
            await asyncio.wait([ended], timeout=1.0)  # it hung up, and may have ended: that tells more
        finally:
            for task in (asked, ended):
                task.cancel()
            await asyncio.gather(asked, ended, return_exceptions=True)
        code = process.returncode
        how = f"does not answer after {self._start:g} s" if code is None else f"has ended with code {code}"
        said = await self._worker.run(tail, folder / LOG)
        raise UnavailableError(f"TensorBoard {how}: {said or 'it said nothing'}")

    async def _wait_until_unused(self, process: Process) -> None:
        while (left := self.used + self._idle - time.monotonic()) > 0 or self._asking:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), max(left, 1.0))
                return

    def _tell(self, life: asyncio.Task[None]) -> None:
        """Tell those who wait for it why it will not be ready."""
        self.lives = False
        error = None if life.cancelled() else life.exception()
        if not self.ready.done():
            if error is None:
                error = UnavailableError("TensorBoard was closed before it answered")
            elif not isinstance(error, NbdistError):
                error = UnavailableError(f"TensorBoard cannot be started: {error}")
            self.ready.set_exception(error)
            self.ready.exception()  # nobody may wait any more
        elif error is not None:
            log.error("nbdist: TensorBoard of %s", self._run.name, exc_info=error)


@asynccontextmanager
async def running(
    plan: dict[str, Any], worker: Worker
) -> AsyncIterator[tuple[Path, Process, SimpleAsyncHTTPClient]]:
    """Start a process that does the plan; gives its folder, it, and what asks it. All are gone afterwards."""
    folder, door = await worker.run(make_folder)
    try:
        with door:  # the process has its own: when it ends, nothing listens any more
            process = await start(plan | {"folder": str(folder)}, door, folder / LOG)
        resolver = AtSocket(path=str(folder / SOCKET))
        client = SimpleAsyncHTTPClient(True, resolver=resolver, max_body_size=LARGEST_ANSWER)
        try:
            yield folder, process, client
        finally:
            client.close()
            await end(process)
    finally:
        await worker.run(shutil.rmtree, folder, True)


async def start(plan: dict[str, Any], door: socket.socket, log: Path) -> Process:
    """Start the process on a socket that listens, and tell it what to serve."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    with open(log, "wb", opener=lambda path, flags: os.open(path, flags | os.O_EXCL, 0o600)) as said:
        process = await asyncio.create_subprocess_exec(
            # -P: a file in the server's folder that is called tensorboard.py is not what is meant.
            sys.executable, "-P", "-m", "nbdist.lab.tensorboard.child",
            stdin=PIPE, stdout=said, stderr=STDOUT, pass_fds=[door.fileno()], start_new_session=True,
            env=environment | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(plan | {"door": door.fileno()}).encode() + b"\n")
    return process


async def end(process: Process) -> None:
    """Have a process end by the end of its input, and kill it if it takes too long."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def make_folder() -> tuple[Path, socket.socket]:
    """Make a folder that only this user can enter, and a socket in it that listens."""
    folder, door = Path(mkdtemp(prefix=NAME)), socket.socket(socket.AF_UNIX)
    try:
        door.bind(str(folder / SOCKET))
        door.listen()
    except OSError:
        door.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, door


def sweep() -> None:
    """Remove the folders of boards that were killed together with their server."""
    for folder in Path(gettempdir()).glob(f"{NAME}*"):
        with suppress(OSError):
            status = folder.lstat()
            settled = time.time() - status.st_mtime > SETTLED_SECONDS
            if status.st_uid == os.geteuid() and settled and not answers(folder / SOCKET):
                shutil.rmtree(folder, ignore_errors=True)


def answers(path: Path) -> bool:
    """Return whether somebody listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def tail(path: Path) -> str:
    """Return the end of what a process has said."""
    return path.read_text(errors="replace").strip()[-TAIL:]


class AtSocket(Resolver):
    """Finds every host at one Unix socket."""

    def initialize(self, path: str) -> None:
        """Take the socket's path."""
        self._path = path

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        """Return the socket's address."""
        return [(socket.AF_UNIX, self._path)]
