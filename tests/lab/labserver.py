"""A real Jupyter server with only our extension, on a thread of the test's process."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import websocket
from jupyter_server.serverapp import ServerApp
from ports import free_port
from tornado.httpserver import HTTPServer
from waiting import PATIENCE, until

Result = TypeVar("Result")
TOKEN = "a-token-for-tests"
WITH_TOKEN = {"Authorization": f"token {TOKEN}"}
BASE = "/user/some one@home/".replace(" ", "%20")  # with characters that a route pattern must handle


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    cookies: list[str]

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=refuse)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON: browsers cannot read it")


@dataclass
class Client:
    """An HTTP client of a server on this host."""

    port: int

    def ask(
        self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None, raw: bytes = b""
    ) -> Answer:
        """Send a request, with the token unless other headers are given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = raw or (b"" if body is None else json.dumps(body).encode())
            given = WITH_TOKEN if headers is None else headers
            connection.putrequest(verb, BASE + path, skip_accept_encoding=True)
            for name, value in {**given, "Content-Length": str(len(sent))}.items():
                connection.putheader(name, value)
            connection.endheaders(sent or None)
            answer = connection.getresponse()
            body = b"" if answer.status == 101 else answer.read()
            return Answer(
                answer.status, dict(answer.headers.items()), body, answer.headers.get_all("Set-Cookie", [])
            )
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the JSON at an address below nbdist/api/v1."""
        answer = self.ask("GET", f"nbdist/api/v1{path}")
        assert answer.status == 200, answer
        return answer.json

    def login(self) -> dict[str, str]:
        """Log in with the token, and return the cookies as a browser sends them."""
        cookies = []
        for path in ("login", f"nbdist/api/v1/state?token={TOKEN}"):
            answer = self.ask("GET", path, headers={})
            assert answer.status == 200, answer
            cookies += [value.partition(";")[0] for value in answer.cookies]
        return dict(cookie.split("=", 1) for cookie in cookies)

    def stream(self, headers: dict[str, str] | None = None, path: str = "stream") -> websocket.WebSocket:
        """Open a WebSocket, with the token unless other headers are given."""
        given = WITH_TOKEN if headers is None else headers
        return websocket.create_connection(
            f"ws://127.0.0.1:{self.port}{BASE}nbdist/api/v1/{path}",
            timeout=30,
            header=given,
            suppress_origin=True,
            skip_utf8_validation=True,  # slow in Python, and the text is decoded anyway
        )


@dataclass
class Server(Client):
    """A server in this process."""

    app: ServerApp
    loop: asyncio.AbstractEventLoop

    def do(self, work: Awaitable[Result]) -> Result:
        """Run a coroutine on the server's loop and return its result."""

        async def done() -> Result:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(60)

    def wait_idle(self) -> None:
        """Wait until it stops polling, after the last page has closed."""
        watch = self.app.web_app.settings["nbdist_service"].poller

        async def idle() -> None:
            async with asyncio.timeout(30):
                while watch.running:
                    await asyncio.sleep(0.005)

        self.do(idle())


@dataclass
class ServerProcess(Client):
    """A server in its own process."""

    process: subprocess.Popen[bytes]
    info: Path
    """What it writes about itself once it listens."""

    @property
    def answers(self) -> bool:
        assert self.process.poll() is None, "the server has ended"
        try:
            self.port = json.loads(self.info.read_text())["port"]  # another one where that was taken
            return self.ask("GET", "nbdist/api/v1/state").status == 200
        except (OSError, ValueError):
            return False


@contextmanager
def server_process(folder: Path, *flags: str) -> Iterator[ServerProcess]:
    """Run ``jupyter server`` in its own process, with only our extension, until the block ends."""
    port = free_port()  # Jupyter looks for one that is free, closes it, and listens at it later
    command = [
        sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--port={port}",
        f"--ServerApp.base_url={BASE}", f"--ServerApp.root_dir={folder}",
        "--ServerApp.jpserver_extensions={'nbdist.lab': True}", *flags,
    ]  # fmt: skip
    own = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("DATA", "RUNTIME")}
    own["TMPDIR"] = str(folder)  # Jupyter makes an empty folder there for the configuration
    environment = {**os.environ, **own, "JUPYTER_NO_CONFIG": "1", "JUPYTER_TOKEN": TOKEN}
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    server = ServerProcess(port, process, folder / "runtime" / f"jpserver-{process.pid}.json")
    try:
        until(lambda: server.answers, describe=lambda: (folder / "server.log").read_text())
        yield server
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()


@contextmanager
def serving(folder: Path, prepare: Callable[[ServerApp], object] = id, **options: Any) -> Iterator[Server]:
    """Run a server until the block ends; ``prepare`` is called with it before it listens."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="jupyter-server")
    thread.start()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)  # tornado requires it
    port = listening.getsockname()[1]

    async def start() -> tuple[ServerApp, HTTPServer]:
        ServerApp.clear_instance()
        app = ServerApp.instance(
            port=port, open_browser=False, allow_root=True, base_url=BASE, root_dir=str(folder), **options
        )
        app.config.ServerApp.jpserver_extensions = {"nbdist.lab": True}
        app.config.IdentityProvider.token = TOKEN
        app.initialize(argv=[], new_httpserver=False)
        prepare(app)
        http_server = HTTPServer(app.web_app)
        http_server.add_socket(listening)
        return app, http_server

    async def stop(app: ServerApp, http_server: HTTPServer) -> None:
        http_server.stop()
        await http_server.close_all_connections()
        await app._cleanup()
        app.kernel_manager.context.destroy()
        await loop.shutdown_default_executor()

    def do(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    environment = {
        "JUPYTER_NO_CONFIG": "1",
        **{f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("DATA", "RUNTIME")},
    }
    # Jupyter would make one in the system's temporary folder, for all servers of the process, and leave it.
    empty = folder / "config"
    empty.mkdir(exist_ok=True)
    try:
        with (
            patch.dict("os.environ", environment),
            patch.dict("jupyter_core.paths._dtemps", {"jupyter-clean-cfg": str(empty)}),
            patch.object(ServerApp, "init_signal"),
        ):
            app, http_server = do(start())
            try:
                yield Server(port, app, loop)
            finally:
                do(stop(app, http_server))
    finally:
        ServerApp.clear_instance()
        listening.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
