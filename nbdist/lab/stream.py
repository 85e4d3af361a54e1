"""``nbdist/api/v1/stream``: a WebSocket on which a page hears what changes, as it changes.

server  {"kind": "state", ...}, then {"kind": "changes", ...}    at most two a second
page    {"kind": "look", "cluster": ID or null, "visible": true}
"""

from __future__ import annotations

import json
from typing import Any

from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.auth.utils import HTTP_METHOD_TO_AUTH_ACTION
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.lab.handlers.act import check_keys, flag, text
from nbdist.lab.handlers.base import RESOURCE, check_user, checked_id, encoded, error_body
from nbdist.lab.service import SERVICE, Service, Telling

PING_MS = 20_000  # between two pings, for what stands between page and server and cuts what is silent
MOST_BYTES = 4 << 10  # of a page's message
UNUSABLE = 1003  # WebSocket's code for a message that cannot be accepted
GOING_AWAY = 1001


class Stream(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """One page's connection. Visible, without an open cluster, until it says otherwise."""

    auth_resource = RESOURCE
    cluster: str | None = None
    visible = True

    @property
    def ping_interval(self) -> int:
        """Milliseconds between two pings."""
        return int(self.settings.get("ws_ping_interval", PING_MS))

    @property
    def max_message_size(self) -> int:
        """Bytes of a message from the page; a longer one ends the connection."""
        return MOST_BYTES

    def set_default_headers(self) -> None:
        """Set none: they make no sense for a WebSocket."""

    def get_compression_options(self) -> dict[str, Any] | None:
        """Return what the server's owner has set for all WebSockets."""
        options: dict[str, Any] | None = self.settings.get("websocket_compression_options", None)
        return options

    async def prepare(self) -> None:  # type: ignore[override]  # tornado allows it
        """Let only those through who are known, and allowed to listen here; before anything is upgraded."""
        await super().prepare()
        verb = "WEBSOCKET" if self.request.method == "GET" else str(self.request.method)
        await check_user(self, HTTP_METHOD_TO_AUTH_ACTION.get(verb, "write"))

    @ws_authenticated
    async def get(self, *arguments: str, **named: str) -> None:
        """Turn the request into a WebSocket."""
        await super().get(*arguments, **named)

    def open(self, *arguments: str, **named: str) -> None:
        """Begin to tell the page."""
        super().open(*arguments, **named)
        self._telling = Telling(self._send)
        self._service.watch.join(self)

    def offer(self, state: dict[str, Any]) -> None:
        """Take note of what the state is now."""
        self._telling.offer(state)

    def on_message(self, message: str | bytes) -> None:
        """Look at what the page looks at; one that says something else is hung up on."""
        try:
            self.cluster, self.visible = look_of(message, self.cluster, self.visible)
        except NbdistError as error:
            self.close(UNUSABLE, str(error)[:120])  # a reason has at most 123 bytes
            return
        if not self.visible:
            self._telling.drop()
        self._service.watch.wake()

    def on_close(self) -> None:
        """Forget the page."""
        self.visible = False
        if hasattr(self, "_telling"):
            self._telling.drop()
            self._service.watch.leave(self)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send an error as JSON, as all our routes do."""
        self.set_header("Content-Type", "application/json")
        self.finish(error_body(status_code, kwargs))

    @property
    def _service(self) -> Service:
        service: Service = self.settings[SERVICE]
        return service

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            await self.write_message(encoded(message))
        except (WebSocketClosedError, StreamClosedError):  # it has just gone
            self._telling.drop()


def look_of(message: str | bytes, cluster: str | None, visible: bool) -> tuple[str | None, bool]:
    """Return which cluster a page looks at and whether it can be seen, after what it says; decides only.

    >>> look_of('{"kind": "look", "cluster": "a"}', None, True)
    ('a', True)
    """
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("kind") != "look":
        raise InvalidArgumentError('a page says {"kind": "look", "cluster": ID or null, "visible": true}')
    check_keys(said, ("kind", "cluster", "visible"))
    if "cluster" in said:
        cluster = None if said["cluster"] is None else checked_id(text(said, "cluster"))
    return cluster, flag(said, "visible") if "visible" in said else visible
