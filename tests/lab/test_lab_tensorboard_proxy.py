"""TensorBoard's pages through a real Jupyter server: permissions and headers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from http.cookies import SimpleCookie

import pytest
from labserver import BASE, TOKEN, Answer, Server, serving
from tensorboard_runs import make_run, processes
from tornado.httpclient import HTTPRequest, HTTPResponse
from tornado.httputil import HTTPHeaders

from nbdist.lab.tensorboard import proxy
from nbdist.lab.tensorboard.manager import Boards

VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
READS = ("GET", "HEAD")
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("jupyter")) as one:
        yield one
    assert processes() == []


@pytest.fixture(scope="module")
def run() -> str:
    return make_run(own=True, steps=20)


@pytest.fixture(scope="module")
def page(run: str) -> str:
    return f"nbdist/tensorboard/{run}/"


@pytest.fixture(scope="module")
def cookie(server: Server, page: str) -> dict[str, str]:
    """Return the headers of a logged-in browser."""
    answer = server.ask("GET", f"{page}?token={TOKEN}", headers={})
    assert answer.status == 200
    cookies = SimpleCookie(answer.headers["Set-Cookie"])
    assert list(cookies) == [f"username-127-0-0-1-{server.port}"]  # only Jupyter's cookie
    return {"Cookie": "; ".join(f"{name}={one.coded_value}" for name, one in cookies.items())}


def test_the_page_and_its_data(server: Server, page: str, cookie: dict[str, str]) -> None:
    found = server.ask("GET", page, headers=cookie)
    assert found.status == 200
    assert b"<tb-webapp" in found.body or b"tensorboard" in found.body.lower()
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    path = f"{page}data/plugin/scalars/scalars?run=worker-0%2Fvalidation&tag=loss"
    answer = server.ask("GET", path, headers=cookie)
    assert [point[1:] for point in answer.json] == [[20, 0.25]]
    head = server.ask("HEAD", page, headers=cookie)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(found.body))


def test_it_is_opened_by_the_sidebar(server: Server, page: str, run: str) -> None:
    answer = server.ask("POST", f"nbdist/api/v1/runs/{run}/tensorboard")
    assert (answer.status, answer.json) == (200, {"url": page})
    assert server.ask("GET", f"{page}data/runs").json == ["worker-0", "worker-0/validation", "worker-1"]


def test_a_post_of_the_page(server: Server, page: str, cookie: dict[str, str]) -> None:
    origin = {
        "Origin": f"http://127.0.0.1:{server.port}",
        "X-XSRF-Protected": "1",
        "Sec-Fetch-Site": "same-origin",
    }
    boundary = {"Content-Type": "multipart/form-data; boundary=b"}
    wanted = json.dumps([{"plugin": "scalars", "tag": "loss"}])
    body = f'--b\r\nContent-Disposition: form-data; name="requests"\r\n\r\n{wanted}\r\n--b--\r\n'
    path = f"{page}experiment/defaultExperimentId/data/plugin/timeseries/timeSeries"
    answer = server.ask("POST", path, headers={**cookie, **origin, **boundary}, raw=body.encode())
    assert answer.status == 200, answer
    series = answer.json[0]["runToSeries"]
    assert [point["value"] for point in series["worker-1"]] == pytest.approx(
        [1 / step for step in range(1, 21)]
    )


def test_without_a_trailing_slash(server: Server, page: str, cookie: dict[str, str]) -> None:
    answer = server.ask("GET", page.rstrip("/"), headers=cookie)
    assert (answer.status, answer.headers["Location"]) == (302, BASE + page)


def test_compressed_content_is_forwarded(server: Server, page: str, cookie: dict[str, str]) -> None:
    path = f"{page}index.js"
    packed = server.ask("GET", path, headers={**cookie, "Accept-Encoding": "gzip"})
    plain = server.ask("GET", path, headers=cookie)
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "rest", ["", "/", "/data/runs", "/data/plugin/scalars/scalars?run=worker-0&tag=loss"]
)
def test_requests_without_permission_are_refused(
    server: Server, run: str, cookie: dict[str, str], verb: str, rest: str
) -> None:
    path = f"nbdist/tensorboard/{run}{rest}"
    own = f"http://127.0.0.1:{server.port}"
    xsrf = {"X-XSRF-Protected": "1"}

    def ask(**headers: str) -> Answer:
        return server.ask(
            verb, path, headers={name.replace("_", "-"): value for name, value in headers.items()}, raw=b""
        )

    refused = [
        ask(),
        ask(Authorization="token wrong"),
        ask(Cookie=f"username-127-0-0-1-{server.port}=wrong"),
        ask(**xsrf),
        ask(**xsrf, Origin=own),
        ask(**cookie, Origin="http://elsewhere.example"),
        ask(**cookie, **xsrf, Origin="http://elsewhere.example"),
        ask(**cookie, **xsrf, Origin="null"),
        ask(**cookie, **xsrf, Origin="http://127.0.0.1:1"),
        ask(**cookie, **xsrf, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors"),
        ask(**cookie, **xsrf, Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors"),
    ]
    if verb not in READS:
        refused += [ask(**cookie), ask(**cookie, Origin=own), ask(**cookie, X_XSRF_Protected="0", Origin=own)]
    # Jupyter does not check the origin of a preflight request; it has no answer here.
    allowed = {403, 404, 405} if verb == "OPTIONS" else {403, 404}
    assert {answer.status for answer in refused} <= allowed, [answer.status for answer in refused]
    assert {answer.status for answer in refused[:5]} == {403}
    for answer in refused:
        assert b"worker-0" not in answer.body
        assert "Access-Control-Allow-Origin" not in answer.headers
    if verb not in (*READS, "POST"):
        assert ask(**cookie, **xsrf, Origin=own).status == 405


def test_unauthenticated_requests_start_nothing(server: Server) -> None:
    run, before = make_run(own=True, steps=1), processes()
    for headers in ({}, {"Authorization": "token wrong"}, {"X-XSRF-Protected": "1"}):
        for verb in VERBS:
            assert server.ask(verb, f"nbdist/tensorboard/{run}/", headers=headers).status == 403
    assert processes() == before


def test_the_page_redirects_to_the_login(server: Server, page: str) -> None:
    answer = server.ask("GET", page, headers={"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"})
    assert answer.status == 302
    assert answer.headers["Location"].startswith(f"{BASE}login?next=")


def test_links_from_other_sites_work(server: Server, page: str, cookie: dict[str, str]) -> None:
    headers = {**cookie, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "cross-site"}
    assert server.ask("GET", page, headers=headers).status == 200


def test_an_authorizer_is_obeyed(server: Server, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def is_authorized(self: object, handler: object, user: object, action: str, resource: str) -> bool:
        asked.append((action, resource))
        return action == "read"

    monkeypatch.setattr(type(server.app.authorizer), "is_authorized", is_authorized)
    assert server.ask("GET", page).status == 200
    assert server.ask("POST", page).status == 403
    assert asked == [("read", "nbdist"), ("write", "nbdist")]


def test_jupyters_cookies_are_not_forwarded(
    server: Server, run: str, page: str, cookie: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[HTTPRequest] = []

    async def ask(self: Boards, run_id: str, request: HTTPRequest) -> HTTPResponse:
        sent.append(request)
        headers = HTTPHeaders(
            {"Set-Cookie": "a=b", "Server": "x", "Connection": "x", "Content-Type": "text/plain"}
        )
        return HTTPResponse(request, 200, headers=headers)

    monkeypatch.setattr(Boards, "fetch", ask)
    given = {
        "Authorization": f"token {TOKEN}", "Referer": f"http://x/?token={TOKEN}", "X-XSRFToken": "secret",
        "X-Forwarded-For": "1.2.3.4", "Accept": "text/html", "User-Agent": "secret", **cookie,
    }  # fmt: skip
    query = f"?tag=a%26b&token={TOKEN}&t%6Fken={TOKEN}&_xsrf=secret&run=worker-0"
    answer = server.ask("GET", f"{page}data/x{query}", headers=given)
    assert answer.status == 200
    assert sent[0].url == f"http://board{BASE}{page}data/x?tag=a%26b&run=worker-0"
    assert dict(sent[0].headers) == {"Accept": "text/html"}
    assert not {"Set-Cookie", "Connection"} & answer.headers.keys() or "a=b" not in str(answer.headers)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_scripts_are_restricted_to_their_path(server: Server, page: str, cookie: dict[str, str]) -> None:
    answer = server.ask("GET", page, headers=cookie)
    policies = answer.headers["Content-Security-Policy"].split(", ")
    own = "*:*/user/some%20one%40home/" + page
    assert policies[0].startswith("frame-ancestors 'self'")
    assert policies[1].startswith(
        f"default-src {own} data: blob: 'unsafe-inline' 'unsafe-eval'; base-uri {own}"
    )
    assert "report" not in policies[1]
    assert "script-src 'self' 'unsafe-eval'" in policies[2]
    script = server.ask("GET", f"{page}index.js", headers=cookie).headers["Content-Security-Policy"]
    assert f"default-src {own} ;" in script
    assert "unsafe" not in script


def test_too_long_requests_are_refused(server: Server, page: str) -> None:
    answer = server.ask("POST", f"{page}data/runs", raw=b"x" * (proxy.MAX_BYTES + 1))
    assert answer.status == 413


@pytest.mark.parametrize("run", ["..", "%2e%2e", "..%2f..%2fetc", "a%00b", "nothing-like-it", "a..b", "-x"])
def test_invalid_runs(server: Server, run: str) -> None:
    for verb in ("GET", "HEAD", "POST"):
        answer = server.ask(verb, f"nbdist/tensorboard/{run}/")
        assert answer.status in (400, 404)
        assert "html" not in answer.headers["Content-Type"] or answer.status == 404


@pytest.mark.parametrize("name", ["a%0d%0aX-Broken:%20x", "a%0a", "%00", "a%5cb", "..", "%ed%a0%80"])
def test_a_name_that_could_break_a_header_is_refused(server: Server, name: str) -> None:
    for rest in ("", "/", "/data/runs"):
        answer = server.ask("GET", f"nbdist/tensorboard/{name}{rest}")
        assert answer.status in (400, 404), (name, rest, answer)
        assert "X-Broken" not in answer.headers


@pytest.mark.processes
def test_paths_stay_below_the_board(server: Server, page: str, cookie: dict[str, str]) -> None:
    for path in (
        "../../../api/contents",
        "%2e%2e/%2e%2e/etc/passwd",
        "/etc/passwd",
        "data/../../x",
        "data/none",
    ):
        assert server.ask("GET", page + path, headers=cookie).status == 404
