"""TensorBoard's pages, handed on by the Jupyter server to those who are logged in to it.

    <base>nbdist/tensorboard/RUN/data/...?run=worker-0    ──►    the run's board: same path, same query

What is Jupyter's own stays here: cookies, the token (also in a query), the Referer. What comes back is the
content and what describes it; no cookie is set.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote, unquote_plus

from jupyter_server.auth.utils import HTTP_METHOD_TO_AUTH_ACTION
from tornado import web
from tornado.httpclient import HTTPRequest
from tornado.httputil import HTTPHeaders

from nbdist.lab.handlers.base import TellsErrors, check_user, checked_id, error_text
from nbdist.lab.tensorboard.manager import PATH, REQUEST_SECONDS, Boards

MOST_BYTES = 4 << 20  # of a request's body; TensorBoard's are lists of tags
JUPYTERS = ("token", "_xsrf")  # arguments of a query that are none of TensorBoard's business
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
    """Return patterns below the server's base address, their handlers, and what those are made with."""
    return [(rf"{PATH}/([^/]+)(/.*)?", BoardHandler, {"boards": boards})]


class BoardHandler(TellsErrors):
    """Hands requests on to a run's board, which is started if it is not there."""

    def initialize(self, boards: Boards) -> None:
        """Take the boards of this server."""
        self._boards = boards

    async def prepare(self) -> None:  # type: ignore[override]  # tornado allows it
        """Let only those through who are logged in, may do this here, and ask from a page of our own."""
        await super().prepare()
        web.authenticated(lambda _: None)(self)  # Jupyter lets everybody pass who is not asked
        if self._finished:  # on the way to the login page
            return
        await check_user(self, HTTP_METHOD_TO_AUTH_ACTION.get(str(self.request.method), "write"))
        if not self.check_origin() or self._is_wanted_elsewhere:
            raise web.HTTPError(403, "TensorBoard answers pages of this server only")

    @web.authenticated
    async def get(self, run_id: str, rest: str | None) -> None:
        """Hand the request on, and its answer back."""
        checked_id(run_id)  # before any of it is written to a header
        if not rest:  # the page's own links are relative to its folder
            self.redirect(f"{self.base_url}{PATH}/{quote(run_id)}/")
            return
        answer = await self._boards.ask(run_id, self._question())
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
        """Accept the header that TensorBoard's page sends in the place of Jupyter's token.

        No form can send it, and a page of another origin only if it is told that it may: never here.
        """
        if not hasattr(self, "_jupyter_current_user"):  # tornado itself asks before there is a user
            return
        if self.request.headers.get("X-XSRF-Protected") != "1" or not self.check_origin():
            super().check_xsrf_cookie()

    def get_login_url(self) -> str:
        """Send who wants to see the page to the login, and refuse all else."""
        if self.request.headers.get("Sec-Fetch-Mode") != "navigate":
            raise web.HTTPError(403)
        return super().get_login_url()

    def _question(self) -> HTTPRequest:
        asked = self.request
        if len(asked.body) > MOST_BYTES:
            raise web.HTTPError(413, f"a question to TensorBoard has at most {MOST_BYTES:,} bytes")
        parts = [part for part in asked.query.split("&") if part]
        query = "&".join(part for part in parts if unquote_plus(part.partition("=")[0]) not in JUPYTERS)
        return HTTPRequest(
            f"http://board{asked.path}" + (f"?{query}" if query else ""),
            str(asked.method),
            headers=HTTPHeaders({name: asked.headers[name] for name in SENT if name in asked.headers}),
            body=asked.body if asked.method == "POST" else None,
            request_timeout=REQUEST_SECONDS,
            follow_redirects=False,
            decompress_response=False,  # compressed as the browser has asked for it, and handed on so
        )

    def _set_policy(self, run_id: str, headers: HTTPHeaders) -> None:
        """Keep the page to what TensorBoard allows it, and to its own path: Jupyter's is out of its reach.

        A browser obeys all policies that it gets. TensorBoard's own, which comes with its pages, says what
        scripts may be inside them, by their hashes; so ours need not.
        """
        theirs = headers.get_list("Content-Security-Policy")
        own = f"*:*{quote(unquote(self.base_url))}{PATH}/{run_id}/"
        inside = "data: blob: 'unsafe-inline' 'unsafe-eval'" if theirs else ""
        policy = f"default-src {own} {inside}; base-uri {own}; object-src 'none'; form-action 'none'"
        # Jupyter's stands alone: it has violations reported, and TensorBoard looks for its fonts elsewhere.
        policies = [self.content_security_policy, policy, *(theirs or ["default-src 'self'"])]
        self.set_header("Content-Security-Policy", ", ".join(policies))

    @property
    def _is_wanted_elsewhere(self) -> bool:
        """Whether a page of another origin wants this for itself; a link there may lead here."""
        headers = self.request.headers
        return headers.get("Sec-Fetch-Site") in CROSS_ORIGIN and headers.get("Sec-Fetch-Mode") != "navigate"

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Say in plain text what is wrong: it may be all that stands in the tab."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(error_text(status_code, kwargs))
