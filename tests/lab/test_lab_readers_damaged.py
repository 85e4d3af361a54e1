"""A server with arbitrary files in the state folder: it answers, and lists the valid items."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labserver import Server, serving

from nbdist.metrics.run_folder import RunFile, write_run

home = Path()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    global home
    home = tmp_path_factory.mktemp("nbdist-home")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBDIST_HOME", str(home))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        for name in ("runs", "sweeps", "clusters", "runs/good", "ipython/profile_default/security"):
            (home / name).mkdir(mode=0o700, parents=True)
        write_run(RunFile("good", name="good", status="finished", created=1.0))
        with serving(tmp_path_factory.mktemp("jupyter")) as one:
            yield one


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("name", "status", "created", "ended", "cluster", "options", "error", "kind", "seed", "code")
RUN = st.fixed_dictionaries({"id": st.just("bad")}, optional=dict.fromkeys(KEYS, VALUES))
CONTENTS = st.binary(max_size=200) | (VALUES | RUN).map(lambda value: json.dumps(value).encode())
FILES = [
    *(f"runs/bad/{name}" for name in ("run.json", "metrics-0000.log", "progress-0000.json")),
    *(f"runs/good/{name}" for name in ("metrics-0000.log", "progress-0000.json")),
    *(f"sweeps/bad/{name}" for name in ("events.log", "sweep.json")),
    *(f"clusters/bad/{name}" for name in ("cluster.json", "lock", "keys")),
    "ipython/profile_default/security/cluster-bad.json",
]


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(FILES), CONTENTS, max_size=5))
def test_files_with_any_content(server: Server, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (home / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / name).write_bytes(content)
        os.chmod(home / name, 0o600)
    state = server.get("/state?cluster=bad")
    assert "good" in [run["id"] for run in state["runs"]]
    assert not [problem for problem in state["problems"] if "log says why" in problem]
    for path in ("runs/bad", "runs/bad/data", "runs/good", "runs/good/data", "sweeps/bad", "sweeps/bad/data"):
        answer = server.ask("GET", f"nbdist/api/v1/{path}")
        assert answer.status in (200, 400, 403, 404, 409), path
        assert answer.json
    for name in files:
        (home / name).unlink()


def test_folders_that_vanish_between_two_polls(server: Server) -> None:
    for name in ("runs/removed", "clusters/removed", "sweeps/removed"):
        (home / name).mkdir(mode=0o700)
        server.get("/state?cluster=removed")
        (home / name).rmdir()
        server.get("/state?cluster=removed")
    assert server.ask("DELETE", "nbdist/api/v1/clusters/removed").status == 404
    assert server.ask("POST", "nbdist/api/v1/runs/removed/stop").status == 404


def test_an_invalid_state_folder(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    state = server.get("/state")
    assert (state["runs"], state["clusters"], state["sweeps"]) == ([], [], [])
    assert [problem for problem in state["problems"] if "is a file" in problem]
    assert "is a file" in server.get("")["problem"]
    assert server.ask("GET", "nbdist/api/v1/runs/good").status in (403, 404)
