"""TensorBoard for a run, started when somebody asks for it and ended when nobody does.

page ──► Jupyter server (who is logged in) ──► tensorboardproxy ──► Boards ──► Board ═ socket ═► its process
"""

from __future__ import annotations

import asyncio
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from tornado.httpclient import HTTPRequest, HTTPResponse

from nbdist.errors import FailedPreconditionError, NotFoundError, UnavailableError
from nbdist.lab.tensorboardprocess import Board, sweep
from nbdist.lab.worker import Worker
from nbdist.metrics.home import run_folder, runs_folder
from nbdist.metrics.log import logs_in

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
