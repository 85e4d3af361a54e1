"""Every route x verb x credential: requests without permission change and reveal nothing.

The routes come from the server itself: a new route without an entry here fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from jupyter_server.auth import Authorizer
from labfakes import Fakes, cluster_item, run_item, sweep_item
from labserver import BASE, Answer, Server, serving
from tornado.httpclient import HTTPRequest, HTTPResponse
from tornado.routing import HostMatches, PathMatches, Rule
from tornado.web import RequestHandler
from waiting import until

from nbdist.lab.service import SERVICE, Service

SECRET = "what-only-the-user-may-see"
API = "nbdist/api/v1"
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET")
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@dataclass(frozen=True)
class Route:
    """An address that a pattern matches, and the status of each offered verb for a permitted user."""

    path: str
    offered: Mapping[str, int]
    else_: int = 405


READ = {"GET": 200, "WEBSOCKET": 200}
PAGE = {"GET": 200, "HEAD": 200, "POST": 200, "WEBSOCKET": 200}
ROUTES = {
    "/nbdist/api/v1/?": Route(API, READ),
    "/nbdist/api/v1/state": Route(f"{API}/state", READ),
    "/nbdist/api/v1/stream": Route(f"{API}/stream", {"GET": 400, "WEBSOCKET": 101}),
    "/nbdist/api/v1/clusters": Route(f"{API}/clusters", {"POST": 202}),
    "/nbdist/api/v1/clusters/([^/]+)": Route(f"{API}/clusters/{SECRET}", {"DELETE": 202}),
    "/nbdist/api/v1/clusters/([^/]+)/(grow|shrink|restart)": Route(
        f"{API}/clusters/{SECRET}/grow", {"POST": 202}
    ),
    "/nbdist/api/v1/runs/([^/]+)(/data|/output)?": Route(f"{API}/runs/{SECRET}", {**READ, "DELETE": 200}),
    "/nbdist/api/v1/runs/([^/]+)/files/(.+)": Route(f"{API}/runs/{SECRET}/files/{SECRET}", READ),
    "/nbdist/api/v1/runs/([^/]+)/(stop|pause|resume|set)": Route(f"{API}/runs/{SECRET}/pause", {"POST": 202}),
    "/nbdist/api/v1/runs/([^/]+)/labels": Route(f"{API}/runs/{SECRET}/labels", {"POST": 200}),
    "/nbdist/api/v1/clean": Route(f"{API}/clean", {"POST": 200}),
    "/nbdist/api/v1/runs/([^/]+)/tensorboard": Route(f"{API}/runs/{SECRET}/tensorboard", {"POST": 200}),
    "/nbdist/api/v1/sweeps/([^/]+)(/data|/output)?": Route(f"{API}/sweeps/{SECRET}", READ),
    "/nbdist/api/v1/sweeps/([^/]+)/(pause|resume|stop)": Route(f"{API}/sweeps/{SECRET}/stop", {"POST": 202}),
    "/nbdist/tensorboard/([^/]+)(/.*)?": Route(f"nbdist/tensorboard/{SECRET}/data/x", PAGE),
    "/nbdist(?:/.*)?": Route("nbdist/api/v2/state", {}, else_=404),
}


@dataclass
class Touched:
    """Everything that a request can start or read."""

    fakes: Fakes = field(default_factory=Fakes)
    begun: list[Mapping[str, Any]] = field(default_factory=list)

    def put_into(self, app: Any) -> None:
        self.fakes.put_into(app)
        service: Service = app.web_app.settings[SERVICE]
        service.actions._perform = self._perform
        service.boards.open = self._open  # type: ignore[method-assign]
        service.boards.fetch = self._fetch  # type: ignore[method-assign]

    def fill(self) -> None:
        self.begun.clear()
        self.fakes.clear()
        self.fakes.clusters.items = [cluster_item(SECRET)]
        self.fakes.runs.items = [run_item(SECRET)]
        self.fakes.sweeps.items = [sweep_item(SECRET)]
        self.fakes.files = {(SECRET, SECRET): SECRET.encode()}
        self.fakes.answer.set()

    @property
    def count(self) -> int:
        fakes = self.fakes
        return (
            len(self.begun)
            + len(fakes.managed)
            + fakes.read
            + sum(one.asked for one in (fakes.clusters, fakes.runs, fakes.sweeps))
        )

    async def _perform(self, request: Mapping[str, Any], **options: Any) -> None:
        self.begun.append(request)

    async def _open(self, run: str) -> str:
        self.begun.append({"do": "open", "id": run})
        return f"nbdist/tensorboard/{run}/"

    async def _fetch(self, run: str, request: HTTPRequest) -> HTTPResponse:
        self.begun.append({"do": "fetch", "id": run})
        return HTTPResponse(request, 200)


class Denies(Authorizer):
    """An authorizer that denies all actions on nbdist."""

    asked: list[tuple[str, str]] = []

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        Denies.asked.append((action, resource))
        return resource != "nbdist"


touched = Touched()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("jupyter"), touched.put_into) as one:
        yield one


@pytest.fixture(scope="module")
def cookies(server: Server) -> dict[str, str]:
    touched.fill()
    return server.login()


@pytest.fixture(autouse=True)
def something_to_see(server: Server, cookies: dict[str, str]) -> None:
    server.wait_idle()
    touched.fill()


def ours(rules: list[Rule]) -> Iterator[tuple[str, type[RequestHandler]]]:
    """Yield the patterns and handlers of all rules, at any depth, with a handler of nbdist."""
    for rule in rules:
        if isinstance(rule.matcher, HostMatches) or not isinstance(rule.target, type):
            yield from ours(getattr(rule.target, "rules", []))
        elif issubclass(rule.target, RequestHandler) and rule.target.__module__.startswith("nbdist."):
            assert isinstance(rule.matcher, PathMatches)
            yield rule.matcher.regex.pattern, rule.target


def send(server: Server, verb: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    given = dict({"Authorization": "token a-token-for-tests"} if headers is None else headers)
    if verb == "WEBSOCKET":
        return server.ask("GET", path, headers={**given, **UPGRADE})
    answer = server.ask(verb, path, headers=given)
    if answer.status == 202:  # a command is carried out after its answer: not in the middle of what follows
        until(lambda: touched.begun or touched.fakes.managed)
    return answer


def as_browser(cookies: Mapping[str, str], **more: str) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()), **more}


def test_every_route_is_in_the_table(server: Server) -> None:
    start = re.escape(BASE.rstrip("/"))
    found = [pattern for pattern, _ in ours(server.app.web_app.default_router.rules)]
    assert sorted(pattern.removeprefix(start).removesuffix("$") for pattern in found) == sorted(ROUTES)


def test_jupyters_check_finds_no_unprotected_route(server: Server) -> None:
    """Jupyter checks this for servers with ``allow_unauthenticated_access=False``."""
    for pattern, handler in ours(server.app.web_app.default_router.rules):
        assert server.app.web_app._check_handler_auth(pattern, handler) == []


def with_every_verb(check: Callable[..., None]) -> Callable[..., None]:
    """Make a test of a check, whose error names the verb. A test for each took as long as the requests."""

    def test(self: Any, server: Server, cookies: dict[str, str], pattern: str) -> None:
        for verb in VERBS:
            server.wait_idle()
            touched.fill()
            try:
                check(self, server, cookies, pattern, verb)
            except BaseException as error:
                error.add_note(verb)
                raise

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


@pytest.mark.parametrize("pattern", ROUTES)
class TestEachRoute:
    @with_every_verb
    def test_right(self, server: Server, cookies: dict[str, str], pattern: str, verb: str) -> None:
        route = ROUTES[pattern]
        answer = send(server, verb, route.path)
        assert answer.status == route.offered.get(verb, route.else_)
        if answer.status >= 400 and verb != "HEAD":
            if (
                answer.status != 400 and "tensorboard/(" not in pattern
            ):  # 400 is tornado's answer without a WebSocket
                assert answer.json.keys() == {"message", "reason"}
            assert not touched.begun
            assert not touched.fakes.managed

    @with_every_verb
    def test_no_token(self, server: Server, cookies: dict[str, str], pattern: str, verb: str) -> None:
        refused(send(server, verb, ROUTES[pattern].path, {}))

    @with_every_verb
    def test_wrong_token(self, server: Server, cookies: dict[str, str], pattern: str, verb: str) -> None:
        refused(send(server, verb, ROUTES[pattern].path, {"Authorization": "token a-token-for-test"}))

    @with_every_verb
    def test_wrong_token_in_the_address(
        self, server: Server, cookies: dict[str, str], pattern: str, verb: str
    ) -> None:
        refused(send(server, verb, ROUTES[pattern].path + "?token=wrong", {}))

    @with_every_verb
    def test_a_login_without_xsrf(
        self, server: Server, cookies: dict[str, str], pattern: str, verb: str
    ) -> None:
        """Like a form or an image on another page, which sends the cookies."""
        answer = send(server, verb, ROUTES[pattern].path, as_browser(cookies))
        if verb in ("GET", "HEAD", "OPTIONS", "WEBSOCKET") and "files" not in pattern:
            # A read changes nothing, and the other page cannot see the answer.
            assert answer.status == ROUTES[pattern].offered.get(verb, ROUTES[pattern].else_)
        elif "files" in pattern and verb in ("HEAD", "OPTIONS"):
            assert answer.status == 405
        else:
            refused(answer)
        assert not (touched.begun or touched.fakes.managed) or verb in ("GET", "HEAD", "WEBSOCKET")

    @with_every_verb
    def test_a_login_with_a_wrong_xsrf(
        self, server: Server, cookies: dict[str, str], pattern: str, verb: str
    ) -> None:
        wrong = as_browser(cookies, **{"X-XSRFToken": "2|0|0|0"})
        answer = send(server, verb, ROUTES[pattern].path, wrong)
        if verb not in ("GET", "HEAD", "OPTIONS", "WEBSOCKET"):
            refused(answer)

    @with_every_verb
    def test_a_login_from_another_origin(
        self, server: Server, cookies: dict[str, str], pattern: str, verb: str
    ) -> None:
        foreign = {"Origin": "http://evil.example", "X-XSRFToken": cookies["_xsrf"]}
        answer = send(server, verb, ROUTES[pattern].path, as_browser(cookies, **foreign))
        if verb == "OPTIONS":
            assert answer.status in (404, 405)
        elif "stream" in pattern and verb != "WEBSOCKET":  # no connection, and no data
            assert answer.status in (400, 403, 404, 405)
        else:
            refused(answer)
        assert SECRET.encode() not in answer.body
        assert "Access-Control-Allow-Origin" not in answer.headers

    @with_every_verb
    def test_a_user_without_permission(
        self, server: Server, cookies: dict[str, str], pattern: str, verb: str
    ) -> None:
        Denies.asked.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(server.app.web_app.settings, "authorizer", Denies())
            refused(send(server, verb, ROUTES[pattern].path))
        action = {"GET": "read", "HEAD": "read", "OPTIONS": "read"}.get(verb, "write")
        if "stream" in pattern and verb in ("GET", "WEBSOCKET"):
            action = "execute"
        elif verb == "WEBSOCKET":
            action = "read"
        assert Denies.asked == [(action, "nbdist")]


def refused(answer: Answer) -> None:
    """Check that an answer reveals nothing, and that nothing was touched."""
    assert answer.status in (403, 404), answer
    assert SECRET.encode() not in answer.body
    assert touched.count == 0


def test_a_logged_in_browser(server: Server, cookies: dict[str, str]) -> None:
    same = {"Origin": f"http://127.0.0.1:{server.port}", "X-XSRFToken": cookies["_xsrf"]}
    for route in ROUTES.values():
        for verb, status in route.offered.items():
            touched.fill()
            answer = send(server, verb, route.path, as_browser(cookies, **same))
            assert answer.status == status, (route, verb, answer)


def test_a_file_needs_a_link_on_the_servers_pages(server: Server, cookies: dict[str, str]) -> None:
    """A link has no XSRF token; the browser sends its page as Referer."""
    path = f"{API}/runs/{SECRET}/files/{SECRET}"
    for origin, status in ((f"http://127.0.0.1:{server.port}", 200), ("http://evil.example", 403)):
        answer = send(server, "GET", path, as_browser(cookies, Referer=f"{origin}/lab"))
        assert answer.status == status


def test_preflight_requests_of_an_allowed_origin(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server.app.web_app.settings, "allow_origin", "https://lab.example")
    asked = {"Origin": "https://lab.example", "Access-Control-Request-Method": "POST"}
    answer = send(server, "OPTIONS", f"{API}/clusters", asked)
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "https://lab.example")
    assert touched.count == 0
