"""What all our routes have in common: who may ask, how a view is answered, how errors are told.

Authentication and authorisation come before anything else, for every verb, offered or not. Jupyter's own
`prepare` looks at the host, the user, the origin and the XSRF token; the decorators tell its own check of all
routes that nothing was forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import responses
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.auth.utils import HTTP_METHOD_TO_AUTH_ACTION
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from nbdist.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    NbdistError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
)
from nbdist.lab.service import SERVICE, Service
from nbdist.lab.state import Views
from nbdist.ui.formatting import jsonable

RESOURCE = "nbdist"
"""What an authoriser knows all this by; reading is "read", all else "write"."""


MOST_BYTES = 64 << 10  # of a request's body
MOST_ID = 256  # characters
UNEXPECTED = "something went wrong in the Jupyter server: its log says what"
STATUS: tuple[tuple[type[NbdistError], int], ...] = (
    (NotFoundError, 404),
    (NotAllowedError, 403),  # before what it is a kind of
    (InvalidArgumentError, 400),
    (FailedPreconditionError, 409),
    (MissingExtra, 409),
    (DataLossError, 409),
    (UnavailableError, 503),
    (DeadlineExceededError, 503),
)


class TellsErrors(JupyterHandler):
    """Turns our errors into HTTP's."""

    auth_resource = RESOURCE

    def log_exception(self, *raised: Any) -> None:
        """Log what nobody expects, with its traceback; what the user is told of is no news for the log."""
        if not isinstance(raised[1], NbdistError) or status_of(raised[1]) == 500:
            super().log_exception(*raised)

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Send an error with the status that it has."""
        raised = kwargs.get("exc_info", (None, None))[1]
        super().send_error(status_of(raised) if isinstance(raised, NbdistError) else status_code, **kwargs)


class Handler(TellsErrors, APIHandler):
    """A route of ours: who may not use it gets no further than `prepare`."""

    @property
    def service(self) -> Service:
        """What all routes share."""
        service: Service = self.settings[SERVICE]
        return service

    @property
    def _track_activity(self) -> bool:  # type: ignore[override]  # a plain value there
        """A page that only looks must not keep an idle server from being culled."""
        return self.request.method != "GET"

    def set_default_headers(self) -> None:
        """Have nothing kept: by the next question it is old, and it is the user's own."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    def compute_etag(self) -> str | None:
        """Make none, for nothing is kept."""
        return None

    async def prepare(self) -> None:  # type: ignore[override]  # tornado allows it
        """Let only those through who are known, and allowed to read or write here."""
        await super().prepare()
        if self.request.method == "OPTIONS" and self._allows_elsewhere:
            return  # a browser asks that without saying who its user is
        await check_user(self, HTTP_METHOD_TO_AUTH_ACTION.get(str(self.request.method), "write"))

    async def answer(self, view: Callable[[Views], dict[str, Any]]) -> None:
        """Send what a view returns as JSON; both are done on a thread."""
        self.finish(await self.service.read(lambda views: encoded(view(views))))

    def accept(self, found: dict[str, Any]) -> None:
        """Say that something was begun; how it ends is told by the item that it is about."""
        self.set_status(202)
        self.finish(json.dumps(found))

    def body(self) -> dict[str, Any]:
        """Return the request's body, a JSON object; nothing at all is an empty one."""
        if len(self.request.body) > MOST_BYTES:
            raise web.HTTPError(413, f"a request has at most {MOST_BYTES:,} bytes")
        if not self.request.body.strip():
            return {}
        try:
            found = json.loads(self.request.body, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the request's body is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidArgumentError("the request's body is a JSON object, such as {}")
        return found

    @allow_unauthenticated
    def options(self, *arguments: Any, **named: Any) -> None:
        """Answer the question before a request from elsewhere, where the server's owner allows such."""
        if not self._allows_elsewhere:
            raise web.HTTPError(405)
        super().options(*arguments, **named)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send an error as JSON: ``{"message": text, "reason": null}``."""
        self.finish(error_body(status_code, kwargs))

    @property
    def _allows_elsewhere(self) -> bool:
        return bool(self.allow_origin or self.allow_origin_pat)


class NoSuchRoute(Handler):
    """Answers everything else below our address, to those who may ask at all."""

    async def prepare(self) -> None:  # type: ignore[override]  # tornado allows it
        """Say that there is nothing."""
        await super().prepare()
        raise NotFoundError("no such route; docs/lab-api.md lists those of version 1")


async def check_user(handler: Any, action: str) -> None:
    """Raise 403 unless the request's user is known, and allowed this action on what is ours."""
    user = handler.current_user
    if not user:
        raise web.HTTPError(403)
    allowed = handler.authorizer.is_authorized(handler, user, action, RESOURCE)
    if not await ensure_async(allowed):
        raise web.HTTPError(403, f"this user may not {action} {RESOURCE}")


def error_body(status: int, kwargs: dict[str, Any]) -> str:
    """Return what tornado's `write_error` is to send, as JSON."""
    return json.dumps({"message": error_text(status, kwargs), "reason": None})


def error_text(status: int, kwargs: dict[str, Any]) -> str:
    """Return what is wrong, given what `write_error` is; what nobody expects is told in the log alone."""
    raised = kwargs.get("exc_info", (None, None))[1]
    if status == 500:
        return UNEXPECTED
    if isinstance(raised, NbdistError):
        return str(raised)
    return getattr(raised, "log_message", None) or responses.get(status, "unknown error")


def status_of(error: NbdistError) -> int:
    """Return the HTTP status that tells of an error.

    >>> status_of(NotAllowedError("no")), status_of(InvalidArgumentError("no")), status_of(NbdistError("?"))
    (403, 400, 500)
    """
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def encoded(value: Any) -> str:
    """Return JSON that every browser reads: a number that is not finite becomes null.

    >>> encoded({"value": float("nan")})
    '{"value": null}'
    """
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(jsonable(value), allow_nan=False)


def checked_id(text: str) -> str:
    """Return what may name an item; anything that could be more than a name is not found.

    >>> checked_id("ipp:default:")
    'ipp:default:'
    """
    if (
        not text.isprintable()
        or not 0 < len(text) <= MOST_ID
        or text in (".", "..")
        or set(text) & set("/\\")
    ):
        raise NotFoundError("there is nothing of that name")
    return text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON's")
