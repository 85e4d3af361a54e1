"""Routes for the server's features, the state, a run (also its deletion), a sweep, and a file of a run."""

from __future__ import annotations

from contextlib import suppress
from typing import BinaryIO

from tornado import web
from tornado.iostream import StreamClosedError

from nbdist.lab.handlers.act import check_empty
from nbdist.lab.handlers.base import ApiHandler, checked_id

CHUNK = 256 << 10  # bytes of a file that are read and sent at a time


class AboutHandler(ApiHandler):
    """``GET nbdist/api/v1``: versions and features of this server."""

    @web.authenticated
    async def get(self) -> None:
        """Answer with versions, cores, GPUs, and the reasons why features are missing."""
        await self.answer(lambda views: views.about())


class StateHandler(ApiHandler):
    """``GET nbdist/api/v1/state``: all lists of the page."""

    @web.authenticated
    async def get(self) -> None:
        """Answer with the state; ``?cluster=ID`` adds that cluster's tasks."""
        cluster = self.get_query_argument("cluster", "")
        state = await self.service.poll(checked_id(cluster) if cluster else None)
        await self.answer(lambda views: state)


class RunHandler(ApiHandler):
    """``GET nbdist/api/v1/runs/ID``, ``.../data`` and ``.../output``; ``DELETE nbdist/api/v1/runs/ID``."""

    @web.authenticated
    async def get(self, run: str, part: str | None) -> None:
        """Answer with the content of run.json, with the data that the page draws, or with a saved output.

        ``.../data?chart=TITLE&chart=TITLE`` has the data of these charts.
        """
        name = checked_id(run)
        titles = self.get_query_arguments("chart", strip=False)
        await self.answer(
            lambda views: {
                "/data": lambda run: views.run_bundle(run, titles),
                "/output": views.run_saved,
            }.get(part or "", views.run_details)(name)
        )

    @web.authenticated
    async def delete(self, run: str, part: str | None) -> None:
        """Delete a run with all its files, and answer with their size in bytes."""
        check_empty(self.body())
        if part:
            raise web.HTTPError(405)
        name = checked_id(run)
        await self.answer(lambda views: {"bytes": views.delete(name)})
        self.service.poller.wake()


class SweepHandler(ApiHandler):
    """``GET nbdist/api/v1/sweeps/ID``, ``.../data`` and ``.../output``."""

    @web.authenticated
    async def get(self, sweep: str, part: str | None) -> None:
        """Answer with the sweep's item, with the data that the page draws, or with a saved output."""
        name = checked_id(sweep)
        await self.answer(
            lambda views: {"/data": views.sweep_bundle, "/output": views.sweep_saved}.get(
                part or "", views.sweep_details
            )(name)
        )


class RunFileHandler(ApiHandler):
    """``GET nbdist/api/v1/runs/ID/files/PATH``: a file of the run's folder, as a download."""

    @web.authenticated
    async def get(self, run: str, path: str) -> None:
        """Send the file's bytes."""
        self.check_xsrf_cookie()  # a page of another origin must not embed a file
        name = checked_id(run)
        file, size = await self.service.read(lambda views: views.open_file(name, path))
        with file:
            self.set_header("Content-Length", str(size))
            self.set_attachment_header(path.rpartition("/")[2])
            self.set_header("Content-Type", "application/octet-stream")
            self.set_header("X-Content-Type-Options", "nosniff")
            with suppress(StreamClosedError):  # the page cancelled the download
                left = size
                while left and (part := await self._part(file, min(left, CHUNK))):
                    left -= len(part)
                    self.write(part)
                    await self.flush()  # back-pressure from a slow page
                self.finish(set_content_type="application/octet-stream")

    async def _part(self, file: BinaryIO, most: int) -> bytes:
        return await self.service.read(lambda views: file.read(most))
