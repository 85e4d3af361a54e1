"""TensorBoard processes for runs, started at the first request and ended after an idle time.

    page ──► Jupyter server (authentication) ──► proxy ──► Boards ──► Board ═ Unix socket ═► child process

TensorBoard has no authentication, and any local user can connect to a port. So the child listens on a Unix
socket in a folder with mode 0700, which the server creates, binds and passes on: requests sent before the
child has imported TensorBoard wait in the socket's queue, so nothing polls for readiness. The child's stdin
is a pipe from the server: whatever way the server ends, the child sees the end of file, removes its folder
and ends.
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
ALL = "all"  # instead of a run's id: a comparison of all runs
MAX_BOARDS = 4  # each is a process of about 100 MB
IDLE_SECONDS = 600.0
START_SECONDS = 60.0


def problem() -> str | None:
    """Return why TensorBoard is not available here, or None."""
    if sys.platform == "win32" or not hasattr(socket, "AF_UNIX"):
        return "TensorBoard needs a Unix socket, which this system does not support"
    if find_spec("tensorboard") is None:
        return 'TensorBoard is not installed: pip install "nbdist[tensorboard]"'
    return None


class Boards:
    """The TensorBoard processes of one Jupyter server; call all methods on its event loop.

    ``base_url`` is the server's. Of more than ``most`` boards, the least recently used ends. A board ends
    after ``idle_seconds`` without a request, and starts again at the next one.
    """

    def __init__(
        self,
        base_url: str = "/",
        *,
        most: int = MAX_BOARDS,
        idle_seconds: float = IDLE_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._base = "/" + "".join(f"{part}/" for part in base_url.split("/") if part)
        self._most, self._idle, self._start = most, idle_seconds, start_seconds
        self._boards: dict[str, Board] = {}
        self._all: set[Board] = set()  # including those that are ending
        self._worker = Worker("nbdist-tensorboard")
        self._cleaned = False

    async def open(self, run_id: str) -> str:
        """Return the path of a run's page below the server's ``base_url``, when it answers.

        The page of "all" compares the newest runs.
        Raises `InvalidArgumentError` or `NotFoundError` for an unknown run, `FailedPreconditionError` with
        the `problem`, and `UnavailableError` with the end of its output if TensorBoard does not start.
        """
        await self._board(run_id)
        return f"{PATH}/{run_id}/"

    async def fetch(self, run_id: str, request: HTTPRequest) -> HTTPResponse:
        """Return the answer of a run's board, which is started if necessary.

        Raises what `open` does, and `UnavailableError` if the answer is incomplete.
        """
        board = await self._board(run_id)
        try:
            return await board.fetch(request)
        except UnavailableError:
            await asyncio.wait([board.life], timeout=1.0)
            if board.lives:
                raise
        board = await self._board(run_id)  # its process had died: retry once with a new one
        return await board.fetch(request)

    async def close(self) -> None:
        """End all boards, and remove their folders."""
        for board in self._all:
            board.end()
        await asyncio.gather(*(board.life for board in self._all), return_exceptions=True)
        self._worker.close()

    async def _board(self, run_id: str) -> Board:
        board = self._boards.get(run_id)
        if board is None or not board.lives:
            run = await self._worker.run(find_folder, run_id)
            if (found := problem()) is not None:
                raise FailedPreconditionError(found)
            if not self._cleaned:
                self._cleaned = True
                await self._worker.run(remove_stale_folders)
            board = self._boards.get(run_id)  # another request may have started it
        if board is None or not board.lives:
            board = self._boards[run_id] = Board(
                run,
                f"{self._base}{PATH}/{run_id}",
                self._worker,
                all=run_id == ALL,
                idle=self._idle,
                start=self._start,
            )
            self._all.add(board)
            board.life.add_done_callback(lambda _: self._forget(run_id, board))
            self._make_room()
        await asyncio.shield(board.ready)
        return board

    def _make_room(self) -> None:
        living = sorted((one for one in self._boards.values() if one.lives), key=lambda board: board.used)
        for board in living[: max(0, len(living) - self._most)]:
            board.end()

    def _forget(self, run_id: str, board: Board) -> None:
        self._all.discard(board)
        if self._boards.get(run_id) is board:
            del self._boards[run_id]


def find_folder(run_id: str) -> Path:
    """Return the folder of a run, or of all runs; raises InvalidArgumentError or NotFoundError."""
    if run_id == ALL:
        return runs_folder()
    folder = run_folder(run_id)
    if not (folder / "run.json").is_file() and not (folder.is_dir() and logs_in(folder)):
        raise NotFoundError(f"no run {run_id!r} in {folder.parent}")
    return folder


# One TensorBoard process, from its start to the removal of its folder.
#
# Its folder is a temporary one with mode 0700: the socket, the log and, for a run without event files, those.
# It is not in NBDIST_HOME, which hosts may share, and which may be too long for a socket's path (108 bytes).

NAME = "nbdist-board-"  # the prefix of folders
SOCKET, LOG = "socket", "log"
REFRESH_SECONDS = 5.0  # between two refreshes, of the event files and of TensorBoard
END_SECONDS = 5.0  # then the process is killed
REQUEST_SECONDS = 60.0
LARGEST_ANSWER = 64 << 20  # bytes
SETTLED_SECONDS = 60.0  # an older folder without a process is stale
TAIL = 1500  # characters of the log in the error about a failed start
# Environment variables that are not passed on:
SECRETS = ("JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN")
log = logging.getLogger(__name__)


class Board:
    """TensorBoard for a run's folder, or a folder of runs, at the path ``prefix`` of the server.

    Construct it on an event loop. ``ready`` is done when it answers, or has the exception of a failed start.
    It ends after ``idle`` seconds without a request, or by `end`; ``life`` is done when its process has ended
    and its folder is removed.
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
            "look": REFRESH_SECONDS,
        }
        self._idle, self._start = idle, start
        self._client: SimpleAsyncHTTPClient | None = None
        self._requests = 0
        self.used = time.monotonic()
        self.lives = True  # starting or running
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.life = asyncio.create_task(self._live())  # done after the clean-up
        self.life.add_done_callback(self._resolve)

    async def fetch(self, request: HTTPRequest) -> HTTPResponse:
        """Return the answer, whatever its status; the host in the request does not matter.

        Raises `UnavailableError` if the connection breaks or the answer is too large, and
        `DeadlineExceededError` after `REQUEST_SECONDS`.
        """
        if self._client is None:
            raise UnavailableError("TensorBoard has ended")
        self._requests += 1
        try:
            return await self._client.fetch(request, raise_error=False)
        except HTTPTimeoutError:
            raise DeadlineExceededError(f"TensorBoard has not answered for {REQUEST_SECONDS:g} s") from None
        except (HTTPClientError, OSError) as error:
            raise UnavailableError(
                f"TensorBoard's answer is incomplete, or larger than {LARGEST_ANSWER >> 20} MB: {error}"
            ) from error
        finally:
            self._requests -= 1
            self.used = time.monotonic()

    def end(self) -> None:
        """Begin to end it; `life` is done when it has ended."""
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
        """Wait for the page with one request: the socket already listens."""
        page = HTTPRequest(f"http://board{self._prefix}/", "HEAD", request_timeout=self._start)
        answered = asyncio.create_task(self.fetch(page))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait([answered, ended], return_when=asyncio.FIRST_COMPLETED)
            if answered.done() and answered.exception() is None and answered.result().code == 200:
                return
            # The connection broke: if the process ends, its exit code tells more.
            await asyncio.wait([ended], timeout=1.0)
        finally:
            for task in (answered, ended):
                task.cancel()
            await asyncio.gather(answered, ended, return_exceptions=True)
        code = process.returncode
        how = f"does not answer after {self._start:g} s" if code is None else f"has ended with code {code}"
        output = await self._worker.run(tail, folder / LOG)
        raise UnavailableError(f"TensorBoard {how}: {output or 'it printed nothing'}")

    async def _wait_until_unused(self, process: Process) -> None:
        while (left := self.used + self._idle - time.monotonic()) > 0 or self._requests:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), max(left, 1.0))
                return

    def _resolve(self, life: asyncio.Task[None]) -> None:
        """Give those that await `ready` the reason why it will not be."""
        self.lives = False
        error = None if life.cancelled() else life.exception()
        if not self.ready.done():
            if error is None:
                error = UnavailableError("TensorBoard was closed before it answered")
            elif not isinstance(error, NbdistError):
                error = UnavailableError(f"TensorBoard cannot be started: {error}")
            self.ready.set_exception(error)
            self.ready.exception()  # mark it as retrieved: possibly no request awaits it
        elif error is not None:
            log.error("nbdist: TensorBoard of %s", self._run.name, exc_info=error)


@asynccontextmanager
async def running(
    plan: dict[str, Any], worker: Worker
) -> AsyncIterator[tuple[Path, Process, SimpleAsyncHTTPClient]]:
    """Start a process; yield (folder, process, HTTP client), and remove all three afterwards."""
    folder, listener = await worker.run(make_folder)
    try:
        with listener:  # the child has its own copy: when it ends, connections are refused
            process = await start(plan | {"folder": str(folder)}, listener, folder / LOG)
        resolver = UnixSocketResolver(path=str(folder / SOCKET))
        client = SimpleAsyncHTTPClient(True, resolver=resolver, max_body_size=LARGEST_ANSWER)
        try:
            yield folder, process, client
        finally:
            client.close()
            await end(process)
    finally:
        await worker.run(shutil.rmtree, folder, True)


async def start(plan: dict[str, Any], listener: socket.socket, log: Path) -> Process:
    """Start the process on a listening socket, and send it its configuration."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    with open(log, "wb", opener=lambda path, flags: os.open(path, flags | os.O_EXCL, 0o600)) as output:
        process = await asyncio.create_subprocess_exec(
            # -P: do not import a tensorboard.py from the server's working directory.
            sys.executable, "-P", "-m", "nbdist.lab.tensorboard.child",
            stdin=PIPE, stdout=output, stderr=STDOUT, pass_fds=[listener.fileno()], start_new_session=True,
            env=environment | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(plan | {"descriptor": listener.fileno()}).encode() + b"\n")
    return process


async def end(process: Process) -> None:
    """End a process by closing its stdin; kill it if that takes too long."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def make_folder() -> tuple[Path, socket.socket]:
    """Create a private folder, and a listening socket in it."""
    folder, listener = Path(mkdtemp(prefix=NAME)), socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(folder / SOCKET))
        listener.listen()
    except OSError:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, listener


def remove_stale_folders() -> None:
    """Remove the folders of processes that were killed together with their server."""
    for folder in Path(gettempdir()).glob(f"{NAME}*"):
        with suppress(OSError):
            status = folder.lstat()
            settled = time.time() - status.st_mtime > SETTLED_SECONDS
            if status.st_uid == os.geteuid() and settled and not is_listening(folder / SOCKET):
                shutil.rmtree(folder, ignore_errors=True)


def is_listening(path: Path) -> bool:
    """Return whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def tail(path: Path) -> str:
    """Return the end of a process's log."""
    return path.read_text(errors="replace").strip()[-TAIL:]


class UnixSocketResolver(Resolver):
    """Resolves every host to one Unix socket."""

    def initialize(self, path: str) -> None:
        """Take the socket's path."""
        self._path = path

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        """Return the socket's address."""
        return [(socket.AF_UNIX, self._path)]
