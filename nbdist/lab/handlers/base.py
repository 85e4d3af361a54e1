"""The base class of all routes: access control, answers from a thread, errors as JSON.

Authentication and authorisation precede everything else, for every HTTP method, also for unsupported ones.
Jupyter's own `prepare` checks the host, the user, the origin and the XSRF token. The decorators
(`web.authenticated`, `allow_unauthenticated`) satisfy Jupyter's check that every route states its access
rule.
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
from nbdist.lab.views import Views
from nbdist.ui.formatting import jsonable

RESOURCE = "nbdist"
"""The resource name for Jupyter's authorizer; GET is the action "read", all else "write"."""


MOST_BYTES = 64 << 10  # of a request's body
MOST_ID = 256  # characters
UNEXPECTED = "unexpected error in the Jupyter server; see its log"
STATUS: tuple[tuple[type[NbdistError], int], ...] = (
    (NotFoundError, 404),
    (NotAllowedError, 403),  # before its base class
    (InvalidArgumentError, 400),
    (FailedPreconditionError, 409),
    (MissingExtra, 409),
    (DataLossError, 409),
    (UnavailableError, 503),
    (DeadlineExceededError, 503),
)


class ErrorResponses(JupyterHandler):
    """Answers nbdist's errors with the matching HTTP status."""

    auth_resource = RESOURCE

    def log_exception(self, *raised: Any) -> None:
        """Log unexpected errors with their traceback; an error that the user sees is not logged."""
        if not isinstance(raised[1], NbdistError) or status_of(raised[1]) == 500:
            super().log_exception(*raised)

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Send an error with its HTTP status."""
        raised = kwargs.get("exc_info", (None, None))[1]
        super().send_error(status_of(raised) if isinstance(raised, NbdistError) else status_code, **kwargs)


class ApiHandler(ErrorResponses, APIHandler):
    """The base of the API's routes; `prepare` refuses requests without permission."""

    @property
    def service(self) -> Service:
        """The service that all routes share."""
        service: Service = self.settings[SERVICE]
        return service

    @property
    def _track_activity(self) -> bool:  # type: ignore[override]  # an attribute there
        """Whether a request counts as activity: reading does not, so that an idle server can be culled."""
        return self.request.method != "GET"

    def set_default_headers(self) -> None:
        """Forbid caching: answers are private, and outdated by the next request."""
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    def compute_etag(self) -> str | None:
        """Return None: nothing is cached."""
        return None

    async def prepare(self) -> None:  # type: ignore[override]  # tornado allows it
        """Check authentication and authorisation."""
        await super().prepare()
        if self.request.method == "OPTIONS" and self._allows_cors:
            return  # a browser's preflight request has no credentials
        await check_user(self, HTTP_METHOD_TO_AUTH_ACTION.get(str(self.request.method), "write"))

    async def answer(self, view: Callable[[Views], dict[str, Any]]) -> None:
        """Send the result of a view as JSON; both are computed on a thread."""
        self.finish(await self.service.read(lambda views: encoded(view(views))))

    def accept(self, found: dict[str, Any]) -> None:
        """Answer 202: the action has begun, and its item will show the result."""
        self.set_status(202)
        self.finish(json.dumps(found))

    def body(self) -> dict[str, Any]:
        """Return the request's body, a JSON object; {} for an empty body."""
        if len(self.request.body) > MOST_BYTES:
            raise web.HTTPError(413, f"a request has at most {MOST_BYTES:,} bytes")
        if not self.request.body.strip():
            return {}
        try:
            found = json.loads(self.request.body, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the request's body is not valid JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidArgumentError("the request's body must be a JSON object, such as {}")
        return found

    @allow_unauthenticated
    def options(self, *arguments: Any, **named: Any) -> None:
        """Answer a CORS preflight request if the server allows other origins."""
        if not self._allows_cors:
            raise web.HTTPError(405)
        super().options(*arguments, **named)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send an error as JSON: ``{"message": text, "reason": null}``."""
        self.finish(error_body(status_code, kwargs))

    @property
    def _allows_cors(self) -> bool:
        return bool(self.allow_origin or self.allow_origin_pat)


class NotFoundHandler(ApiHandler):
    """Answers 404 for all other paths below the base URL, after the access check."""

    async def prepare(self) -> None:  # type: ignore[override]  # tornado allows it
        """Raise NotFoundError."""
        await super().prepare()
        raise NotFoundError("no such route; docs/lab-api.md lists those of version 1")


async def check_user(handler: Any, action: str) -> None:
    """Raise 403 unless the request is authenticated and its user may perform this action."""
    user = handler.current_user
    if not user:
        raise web.HTTPError(403)
    allowed = handler.authorizer.is_authorized(handler, user, action, RESOURCE)
    if not await ensure_async(allowed):
        raise web.HTTPError(403, f"this user may not {action} {RESOURCE}")


def error_body(status: int, kwargs: dict[str, Any]) -> str:
    """Return the JSON body of an error, from the arguments of tornado's `write_error`."""
    return json.dumps({"message": error_text(status, kwargs), "reason": None})


def error_text(status: int, kwargs: dict[str, Any]) -> str:
    """Return the message of an error; the text of an unexpected error is only in the log."""
    raised = kwargs.get("exc_info", (None, None))[1]
    if status == 500:
        return UNEXPECTED
    if isinstance(raised, NbdistError):
        return str(raised)
    return getattr(raised, "log_message", None) or responses.get(status, "unknown error")


def status_of(error: NbdistError) -> int:
    """Return the HTTP status of an error.

    >>> status_of(NotAllowedError("no")), status_of(InvalidArgumentError("no")), status_of(NbdistError("?"))
    (403, 400, 500)
    """
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def encoded(value: Any) -> str:
    """Return standard JSON: a number that is not finite becomes null.

    >>> encoded({"value": float("nan")})
    '{"value": null}'
    """
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(jsonable(value), allow_nan=False)


def checked_id(text: str) -> str:
    """Return a valid id; raises NotFoundError for a text that cannot be one, such as a path.

    >>> checked_id("ipp:default:")
    'ipp:default:'
    """
    if (
        not text.isprintable()
        or not 0 < len(text) <= MOST_ID
        or text in (".", "..")
        or set(text) & set("/\\")
    ):
        raise NotFoundError("no item has this id")
    return text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")
