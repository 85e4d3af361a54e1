"""``nbdist/api/v1/stream``: a WebSocket that sends a page the state, then its changes.

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
from nbdist.lab.service import SERVICE, ChangeSender, Service

PING_MS = 20_000  # between two pings: proxies close silent connections
MOST_BYTES = 4 << 10  # of a page's message
UNUSABLE = 1003  # WebSocket's code for a message that cannot be accepted


class Stream(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """One page's connection. It is visible and has no open cluster until its first message."""

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
        """Set none: a WebSocket has no use for them."""

    def get_compression_options(self) -> dict[str, Any] | None:
        """Return the server's settings for all WebSockets."""
        options: dict[str, Any] | None = self.settings.get("websocket_compression_options", None)
        return options

    async def prepare(self) -> None:  # type: ignore[override]  # tornado allows it
        """Check authentication and authorisation before the upgrade to a WebSocket."""
        await super().prepare()
        verb = "WEBSOCKET" if self.request.method == "GET" else str(self.request.method)
        await check_user(self, HTTP_METHOD_TO_AUTH_ACTION.get(verb, "write"))

    @ws_authenticated
    async def get(self, *arguments: str, **named: str) -> None:
        """Upgrade the request to a WebSocket."""
        await super().get(*arguments, **named)

    def open(self, *arguments: str, **named: str) -> None:
        """Begin to send the state."""
        super().open(*arguments, **named)
        self._sender = ChangeSender(self._send)
        self._service.poller.join(self)

    def offer(self, state: dict[str, Any]) -> None:
        """Send the page a newer state."""
        self._sender.offer(state)

    def on_message(self, message: str | bytes) -> None:
        """Take over the page's cluster and visibility; close the connection after an invalid message."""
        try:
            self.cluster, self.visible = parse_view(message, self.cluster, self.visible)
        except NbdistError as error:
            self.close(UNUSABLE, str(error)[:120])  # a reason has at most 123 bytes
            return
        if not self.visible:
            self._sender.drop()
        self._service.poller.wake()

    def on_close(self) -> None:
        """Remove the page from the poller."""
        self.visible = False
        if hasattr(self, "_sender"):
            self._sender.drop()
            self._service.poller.leave(self)

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
        except (WebSocketClosedError, StreamClosedError):  # the page has closed it
            self._sender.drop()


def parse_view(message: str | bytes, cluster: str | None, visible: bool) -> tuple[str | None, bool]:
    """Return (open cluster, visible) of a page after a message from it. Pure.

    >>> parse_view('{"kind": "look", "cluster": "a"}', None, True)
    ('a', True)
    """
    try:
        found = json.loads(message)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("kind") != "look":
        raise InvalidArgumentError(
            'a message from a page is {"kind": "look", "cluster": ID or null, "visible": true}'
        )
    check_keys(found, ("kind", "cluster", "visible"))
    if "cluster" in found:
        cluster = None if found["cluster"] is None else checked_id(text(found, "cluster"))
    return cluster, flag(found, "visible") if "visible" in found else visible
