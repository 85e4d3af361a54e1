"""The proxy for TensorBoard's pages, for users logged in to the Jupyter server.

    <base>nbdist/tensorboard/RUN/data/...?run=worker-0    ──►    the run's board: same path, same query

Jupyter's secrets are not forwarded: cookies, the token (also in a query), the Referer. Of the answer the
content and its describing headers (`RECEIVED`) are returned; no cookie is set.

TensorBoard's page runs scripts (also of plugins) on the same origin as Jupyter. A Content-Security-Policy
limits their requests to TensorBoard's own path, so that they cannot call Jupyter's API with the user's
cookies.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote, unquote_plus

from jupyter_server.auth.utils import HTTP_METHOD_TO_AUTH_ACTION
from tornado import web
from tornado.httpclient import HTTPRequest
from tornado.httputil import HTTPHeaders

from nbdist.lab.handlers.base import ErrorResponses, check_user, checked_id, error_text
from nbdist.lab.tensorboard.manager import PATH, REQUEST_SECONDS, Boards

MAX_BYTES = 4 << 20  # of a request's body; TensorBoard's are lists of tags
JUPYTER_ARGUMENTS = ("token", "_xsrf")  # query arguments that are not forwarded
SENT = (
    "Accept", "Accept-Encoding", "Accept-Language", "Content-Type", "If-Modified-Since",
    "X-TensorBoard-Feature-Flags", "X-XSRF-Protected",
)  # fmt: skip
RECEIVED = (
    "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Type", "Expires", "Last-Modified",
    "Vary",
)  # fmt: skip
CROSS_ORIGIN = ("cross-site", "same-site")  # another port of this host is the same site


def handlers(boards: Boards) -> list[tuple[str, type[web.RequestHandler], dict[str, Any]]]:
    """Return (pattern below the base URL, handler, its arguments)."""
    return [(rf"{PATH}/([^/]+)(/.*)?", BoardHandler, {"boards": boards})]


class BoardHandler(ErrorResponses):
    """Forwards requests to a run's TensorBoard, which is started if necessary."""

    def initialize(self, boards: Boards) -> None:
        """Set the boards of this server."""
        self._boards = boards

    async def prepare(self) -> None:  # type: ignore[override]  # tornado allows it
        """Check the login, the authorisation and the origin."""
        await super().prepare()
        web.authenticated(lambda _: None)(self)  # `prepare` itself does not require a login
        if self._finished:  # redirected to the login page
            return
        await check_user(self, HTTP_METHOD_TO_AUTH_ACTION.get(str(self.request.method), "write"))
        if not self.check_origin() or self._is_cross_origin:
            raise web.HTTPError(403, "TensorBoard answers pages of this server only")

    @web.authenticated
    async def get(self, run_id: str, rest: str | None) -> None:
        """Forward the request, and return the answer."""
        checked_id(run_id)  # before any of it is written to a header
        if not rest:  # the page's own links are relative to its folder
            self.redirect(f"{self.base_url}{PATH}/{quote(run_id)}/")
            return
        answer = await self._boards.fetch(run_id, self._forwarded_request())
        self.set_status(answer.code)
        for name in RECEIVED:
            if name in answer.headers:
                self.set_header(name, answer.headers[name])
        self._set_policy(run_id, answer.headers)
        if self.request.method == "HEAD":
            self.set_header("Content-Length", answer.headers.get("Content-Length", "0"))
        self.finish(answer.body or None)

    head = post = get

    def check_xsrf_cookie(self) -> None:
        """Accept the header that TensorBoard's page sends, instead of Jupyter's XSRF token.

        A form cannot send it, and a page of another origin only after a CORS preflight, which fails here.
        """
        if not hasattr(self, "_jupyter_current_user"):  # tornado calls this before the user is known
            return
        if self.request.headers.get("X-XSRF-Protected") != "1" or not self.check_origin():
            super().check_xsrf_cookie()

    def get_login_url(self) -> str:
        """Redirect navigation to the login page; refuse all other requests."""
        if self.request.headers.get("Sec-Fetch-Mode") != "navigate":
            raise web.HTTPError(403)
        return super().get_login_url()

    def _forwarded_request(self) -> HTTPRequest:
        request = self.request
        if len(request.body) > MAX_BYTES:
            raise web.HTTPError(413, f"a request to TensorBoard has at most {MAX_BYTES:,} bytes")
        parts = [part for part in request.query.split("&") if part]
        query = "&".join(
            part for part in parts if unquote_plus(part.partition("=")[0]) not in JUPYTER_ARGUMENTS
        )
        return HTTPRequest(
            f"http://board{request.path}" + (f"?{query}" if query else ""),
            str(request.method),
            headers=HTTPHeaders({name: request.headers[name] for name in SENT if name in request.headers}),
            body=request.body if request.method == "POST" else None,
            request_timeout=REQUEST_SECONDS,
            follow_redirects=False,
            decompress_response=False,  # forwarded as the browser accepts it
        )

    def _set_policy(self, run_id: str, headers: HTTPHeaders) -> None:
        """Restrict the page to TensorBoard's own path and policy, so that it cannot reach Jupyter's API.

        A browser enforces all policies of an answer. TensorBoard's own policy allows inline scripts by their
        hashes, so this one need not restrict them.
        """
        theirs = headers.get_list("Content-Security-Policy")
        own = f"*:*{quote(unquote(self.base_url))}{PATH}/{run_id}/"
        inside = "data: blob: 'unsafe-inline' 'unsafe-eval'" if theirs else ""
        policy = f"default-src {own} {inside}; base-uri {own}; object-src 'none'; form-action 'none'"
        # Jupyter's policy stays separate: it reports violations, and TensorBoard requests fonts elsewhere.
        policies = [self.content_security_policy, policy, *(theirs or ["default-src 'self'"])]
        self.set_header("Content-Security-Policy", ", ".join(policies))

    @property
    def _is_cross_origin(self) -> bool:
        """Whether a page of another origin embeds this; a link there may open it."""
        headers = self.request.headers
        return headers.get("Sec-Fetch-Site") in CROSS_ORIGIN and headers.get("Sec-Fetch-Mode") != "navigate"

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send the error as plain text: it may be the only content of a tab."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(error_text(status_code, kwargs))
