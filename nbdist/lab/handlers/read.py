"""Routes for the server's features, the state, one run (also its deletion) or sweep, a file of a run."""

from __future__ import annotations

from contextlib import suppress
from typing import BinaryIO

from tornado import web
from tornado.iostream import StreamClosedError

from nbdist.lab.handlers.act import nothing
from nbdist.lab.handlers.base import Handler, checked_id

CHUNK = 256 << 10  # bytes of a file that are read and sent at a time


class About(Handler):
    """``GET nbdist/api/v1``: what this server can do."""

    @web.authenticated
    async def get(self) -> None:
        """Answer with versions, cores, GPUs and why something is not there."""
        await self.answer(lambda views: views.about())


class CurrentState(Handler):
    """``GET nbdist/api/v1/state``: everything that the page lists."""

    @web.authenticated
    async def get(self) -> None:
        """Answer with the state; ``?cluster=ID`` adds that cluster's tasks."""
        cluster = self.get_query_argument("cluster", "")
        state = await self.service.look(checked_id(cluster) if cluster else None)
        await self.answer(lambda views: state)


class OneRun(Handler):
    """``GET nbdist/api/v1/runs/ID`` and ``.../data``; ``DELETE nbdist/api/v1/runs/ID``."""

    @web.authenticated
    async def get(self, run: str, data: str | None) -> None:
        """Answer with all that run.json says, or with the bundle that the page draws."""
        name = checked_id(run)
        await self.answer(lambda views: (views.run_bundle if data else views.run_details)(name))

    @web.authenticated
    async def delete(self, run: str, data: str | None) -> None:
        """Delete a run with all its files, and answer with the bytes that they took."""
        nothing(self.body())
        if data:
            raise web.HTTPError(405)
        name = checked_id(run)
        await self.answer(lambda views: {"bytes": views.delete(name)})
        self.service.watch.wake()


class OneSweep(Handler):
    """``GET nbdist/api/v1/sweeps/ID`` and ``.../data``."""

    @web.authenticated
    async def get(self, sweep: str, data: str | None) -> None:
        """Answer with the sweep's item, or with the bundle that the page draws."""
        name = checked_id(sweep)
        await self.answer(lambda views: (views.sweep_bundle if data else views.sweep_details)(name))


class OneFile(Handler):
    """``GET nbdist/api/v1/runs/ID/files/PATH``: a file of the run's folder, to be saved and never shown."""

    @web.authenticated
    async def get(self, run: str, path: str) -> None:
        """Send the file's bytes as they are."""
        self.check_xsrf_cookie()  # no page from elsewhere may include one
        name = checked_id(run)
        file, size = await self.service.read(lambda views: views.open_file(name, path))
        with file:
            self.set_header("Content-Length", str(size))
            self.set_attachment_header(path.rpartition("/")[2])
            self.set_header("Content-Type", "application/octet-stream")
            self.set_header("X-Content-Type-Options", "nosniff")
            with suppress(StreamClosedError):  # the page has given it up
                left = size
                while left and (part := await self._part(file, min(left, CHUNK))):
                    left -= len(part)
                    self.write(part)
                    await self.flush()  # which waits for a slow page
                self.finish(set_content_type="application/octet-stream")

    async def _part(self, file: BinaryIO, most: int) -> bytes:
        return await self.service.read(lambda views: file.read(most))
