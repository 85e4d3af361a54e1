"""Invalid ids and paths are not found by the real readers."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from labserver import Server, serving

SECRET = "not in the run's folder"
UNICODE = [
    quote(text, errors="surrogatepass") for text in ("ünï✓", "\u202e", "a\nb", "\ud800", "'; drop", "💥")
]
NASTY = [
    "..", "%2e%2e", "%2E%2E", "..%2f..", "%2e%2e%2f%2e%2e%2fsecret", "..%5c..", "%2Fetc%2Fpasswd", "%00",
    "a%00b", "run-1%00", "a" * 4096, "%ff%fe", "%c0%ae%c0%ae", "%0d%0aX:%20y", "%", "%2", "~root", ".", "%20",
    "-rf", "*", "$(id)", "con", "run-1/", "run-1%2fsecret", "NaN", "__proto__", "ipp:", "ipp::", "ipp:..:..",
    "ipp%3A..%2F..%3Ax", *UNICODE,
]  # fmt: skip
ADDRESSES = [
    ("GET", "runs/{}"),
    ("GET", "runs/{}/data"),
    ("GET", "runs/{}/output"),
    ("GET", "runs/{}/files/run.json"),
    ("GET", "runs/run-1/files/{}"),
    ("GET", "runs/run-1/files/{}/{}"),
    ("GET", "runs/run-1/files/checkpoints/{}"),
    ("POST", "runs/{}/stop"),
    ("POST", "runs/{}/pause"),
    ("POST", "runs/{}/tensorboard"),
    ("GET", "sweeps/{}"),
    ("GET", "sweeps/{}/data"),
    ("GET", "sweeps/{}/output"),
    ("POST", "sweeps/{}/pause"),
    ("DELETE", "clusters/{}"),
    ("POST", "clusters/{}/grow"),
    ("POST", "clusters/{}/restart"),
    ("GET", "../../{}"),
    ("GET", "{}"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("nbdist-home")
    home.chmod(0o700)
    for folder in ("runs", "runs/run-1", "runs/run-1/checkpoints", "sweeps", "clusters"):
        (home / folder).mkdir(mode=0o700)
    (home / "runs" / "secret").write_text(SECRET)
    (home / "secret").write_text(SECRET)
    (home / "runs" / "run-1" / "checkpoints" / "1.bin").write_bytes(b"weights")
    (home / "runs" / "run-1" / "link").symlink_to(home / "secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBDIST_HOME", str(home))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        with serving(tmp_path_factory.mktemp("jupyter")) as one:
            before = sorted(home.rglob("*"))
            yield one
            assert sorted(home.rglob("*")) == before, "a file was created or removed"


@pytest.mark.parametrize("nasty", NASTY, ids=lambda text: text[:20])
def test_invalid_names(server: Server, nasty: str) -> None:
    for verb, address in ADDRESSES:
        path = "nbdist/api/v1/" + address.replace("{}", nasty)
        answer = server.ask(verb, path)
        assert answer.status in (400, 403, 404, 405, 409), (verb, path[:80], answer)
        assert SECRET.encode() not in answer.body
        assert len(answer.body) < 20_000


@pytest.mark.parametrize("nasty", NASTY, ids=lambda text: text[:20])
def test_the_state_of_an_invalid_cluster(server: Server, nasty: str) -> None:
    answer = server.ask("GET", f"nbdist/api/v1/state?cluster={nasty}")
    assert answer.status in (200, 400, 404)
    if answer.status == 200:
        assert answer.json["tasks"] == []


def test_a_link_is_not_followed(server: Server) -> None:
    assert server.ask("GET", "nbdist/api/v1/runs/run-1/files/link").status == 403
    assert server.ask("GET", "nbdist/api/v1/runs/run-1/files/../secret").status == 403


def test_valid_items_are_found(server: Server) -> None:
    """Valid ids are found, so the tests above are not vacuous."""
    answer = server.ask("GET", "nbdist/api/v1/runs/run-1/files/checkpoints/1.bin")
    assert (answer.status, answer.body) == (200, b"weights")
