"""Examining hosts: the table of problems, what a host says of itself, and a whole examination without sshd.

tests/hosts/test_hosts_doctor.py breaks real hosts.
"""

from __future__ import annotations

import ast
import json
import os
import selectors
import socket
import stat
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import limit

from nbdist.cluster.doctor import examine, observe
from nbdist.cluster.doctor.judge import (
    CONTAINERS_SHM,
    NO_PYTHON,
    PROBLEMS,
    Examined,
    Finding,
    Wanted,
    judge,
    sentence,
)
from nbdist.cluster.hosts import CAUSES, Host, read_hosts
from nbdist.cluster.hub import own_versions
from nbdist.cluster.versions import SHARED, shared_part
from nbdist.errors import InvalidArgumentError, NotFoundError

ROOT = Path(__file__).parent.parent.parent
GB = 1 << 30
FACTS: dict[str, Any] = {
    "python": {"version": "3.11.7", "executable": "/env/bin/python"},
    "versions": {"nbdist": "0.2.0", "numpy": "2.4.6", "ipyparallel": "9.2.0", "pyzmq": "27.3.0"}
    | {"mpich": "5.0.2"},
    "nbdist": True,
    "home": {"path": "/home/me/nbdist", "owner": 7, "user": 7, "open": False, "total": 9 * GB, "free": GB},
    "shm": {"total": 8 * GB, "free": 8 * GB},
    "gpus": {"driver": False, "names": []},
    "identity": {"name": "a", "hash": "1"},
    "head": {"address": "10.0.0.9:4000", "own": "10.0.0.1"},
    "port": 4001,
}
HERE = Examined("", FACTS)
GPUS = Wanted(gpus=True)
EXTRAS = Wanted(extras={"sweep": ["optuna"]})
MPI = Wanted(extras={"mpi": ["mpich"]}, same=["mpich"])


def changed(**facts: Any) -> dict[str, Any]:
    """Return the facts with some values of their objects, or whole values, replaced."""
    return {
        **FACTS,
        **{
            name: {**FACTS[name], **value} if isinstance(value, dict) and "error" not in value else value
            for name, value in facts.items()
        },
    }


def host(**facts: Any) -> Examined:
    return Examined("a", changed(**facts))


NO_NBDIST = host(nbdist=False, versions={"nbdist": None})
FULL = host(home={"errno": "ENOSPC", "said": "No space left on device", "free": 0})
QUOTA = host(home={"errno": "EDQUOT", "said": "Disk quota exceeded"})
READ_ONLY = host(home={"errno": "EROFS", "said": "Read-only file system"})
NO_GPU = Examined("a", {**FACTS, "gpus": {"error": "Driver/library version mismatch"}})
SAMPLES: list[tuple[str, Examined, Wanted, str]] = [
    ("old Python", Examined("a", {"python": {"version": "3.6.8"}}), Wanted(), "its Python is 3.6.8"),
    ("another Python", host(python={"version": "3.12.1"}), Wanted(), "3.12.1, and this host's is 3.11.7"),
    ("no nbdist", NO_NBDIST, Wanted(), "/env/bin/python -m pip install nbdist==0.2.0"),
    ("another nbdist", host(versions={"nbdist": "0.1.0"}), Wanted(), "nbdist 0.1.0, and this host 0.2.0"),
    ("another nbdist", host(versions={"nbdist": None}), Wanted(), "of an unknown version"),
    ("missing package", host(versions={"numpy": None, "pyzmq": None}), Wanted(), "pip install numpy pyzmq"),
    ("another version", host(versions={"numpy": "1.26.0"}), Wanted(), "pip install numpy==2.4.6"),
    ("missing extra", host(), EXTRAS, '-m pip install "nbdist[sweep]"'),
    ("another version", host(versions={"mpich": "4.3.2"}), MPI, "it has mpich 4.3.2, and this host 5.0.2"),
    ("missing extra", host(versions={"mpich": None}), MPI, '-m pip install "nbdist[mpi]"'),
    ("home silent", host(home={"error": "no answer within 3 s"}), Wanted(), "(no answer within 3 s)"),
    ("home not writable", READ_ONLY, Wanted(), "Read-only"),
    ("home of another user", host(home={"owner": 8}), Wanted(), "user 8 owns it"),
    ("home of another user", host(home={"open": True}), Wanted(), "others may write there"),
    ("quota", QUOTA, Wanted(), "/home/me/nbdist is used up"),
    ("disk full", FULL, Wanted(), "has 0 MiB left"),
    ("disk full", host(home={"free": 50 << 20}), Wanted(), "has 50 MiB left"),
    ("no /dev/shm", host(shm={"error": "there is none"}), Wanted(), "(there is none)"),
    ("small /dev/shm", host(shm={"total": CONTAINERS_SHM, "free": CONTAINERS_SHM}), Wanted(), "64 MiB"),
    ("full /dev/shm", host(shm={"free": 10 << 20}), Wanted(), "10 MiB of 8.0 GiB"),
    ("no GPU driver", host(), GPUS, "--gpus all"),
    ("no GPU", host(gpus={"driver": True, "names": []}), GPUS, "nvidia-smi lists none"),
    ("no GPU", NO_GPU, GPUS, "mismatch"),
    (
        "head out of reach",
        Examined("a", {**FACTS, "head": {"own": "10.0.0.1", "errors": {"10.0.0.9:4000": "timed out"}}}),
        Wanted(),
        "this host at 10.0.0.9:4000 (timed out)",
    ),
    ("head out of reach", host(head={"error": "no answer within 3 s"}), Wanted(), "no answer within 3 s"),
    ("loopback", host(head={"own": "127.0.0.1"}), Wanted(hosts=2), "its address is 127.0.0.1"),
    (
        "peer out of reach",
        Examined("a", FACTS, unreached=dict.fromkeys("bcdef", "timed out")),
        Wanted(hosts=6),
        "it does not reach b, c, d and 2 more (timed out)",
    ),
    ("clock", Examined("a", FACTS, clock=-3600.0), Wanted(), "3600 s behind this host's"),
    ("clock", Examined("a", FACTS, clock=2.5), Wanted(), "2 s ahead of this host's"),
    ("same machine", Examined("a", FACTS, twin="b"), Wanted(hosts=2), "the same machine as b"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "examined", "wanted", "said"), SAMPLES)
def test_a_problem_is_one_sentence(name: str, examined: Examined, wanted: Wanted, said: str) -> None:
    first, *others = judge(examined, HERE, wanted)
    assert (first.name, others if name != "old Python" else []) == (name, [])
    whole = sentence(examined, [first])
    assert whole.startswith("host a: ")
    assert said in whole
    assert "\n" not in whole
    assert "{" not in whole


def test_each_problem_has_a_sample() -> None:
    assert {problem.name for problem in PROBLEMS} == {sample[0] for sample in SAMPLES}


def test_a_host_like_this_one_has_no_problem() -> None:
    assert judge(host(), HERE, Wanted()) == []
    patch = host(python={"version": "3.11.9"}, versions={"numpy": "2.0.0", "ipyparallel": "9.0.1"})
    assert judge(patch, HERE, Wanted()) == []
    assert judge(HERE, HERE, Wanted(hosts=3)) == []
    gpus = host(gpus={"driver": True, "names": ["GPU 0: H200"]})
    assert judge(gpus, HERE, GPUS) == []


def test_several_problems_are_in_order() -> None:
    examined = replace(host(home={"free": 0}, versions={"nbdist": "0.1.0"}), clock=60.0)
    findings = judge(examined, HERE, Wanted())
    assert [finding.name for finding in findings] == ["another nbdist", "disk full", "clock"]
    assert sentence(examined, findings).endswith("on both; then also: disk full, clock")


def test_of_a_host_that_is_not_reached_only_that_is_said() -> None:
    failure = Finding("refused", "nothing listens")
    assert judge(Examined("a", failure=failure), HERE, GPUS) == [failure]


@pytest.mark.parametrize("value", [None, 3, "x" * 100_000, [], {}, {"error": "x"}, {"error": 3}])
@pytest.mark.parametrize("name", FACTS)
def test_no_value_of_a_host_raises(name: str, value: Any) -> None:
    examined = Examined("a", {**FACTS, name: value})
    for finding in judge(examined, HERE, replace(EXTRAS, gpus=True, hosts=2)):
        assert len(finding.text) < 1000


def test_the_versions_that_must_agree_are_those_of_a_cluster() -> None:
    assert own_versions() == {
        name: shared_part(name, str(Examined("", observe.facts({"packages": list(SHARED)})).version(name)))
        for name in SHARED
    }
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert needed == ">=" + ".".join(map(str, examine.LEAST_PYTHON))
    (old,) = (problem for problem in PROBLEMS if problem.name == "old Python")
    assert f"needs {needed[2:]} or newer" in old.text


# What a host says of itself.


def test_the_program_needs_only_the_standard_library() -> None:
    tree = ast.parse(Path(observe.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "a" / "b"))
    facts = observe.facts({"packages": ["numpy", "no-such-package"]})
    assert json.loads(json.dumps(facts)) == facts
    assert facts["nbdist"] is True
    assert facts["versions"]["no-such-package"] is None
    assert facts["home"]["path"] == str(tmp_path / "a" / "b")
    assert facts["home"]["free"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_others_may_change_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o722)
    assert observe.writable(folder)["open"] is True
    folder.chmod(0o700)
    assert observe.writable(folder) | {"free": 0, "total": 0} == {
        "path": str(folder),
        "owner": os.geteuid(),
        "user": os.geteuid(),
        "open": False,
        "free": 0,
        "total": 0,
    }


def test_a_fact_that_takes_too_long_or_raises_does_not_hide_the_others() -> None:
    release = threading.Event()

    def fails() -> None:
        raise OSError("stale file handle")

    begun = time.monotonic()
    found = observe.together({"slow": release.wait, "fails": fails, "fine": lambda: 3}, 0.2)
    release.set()
    assert found["fine"] == 3
    assert found["fails"] == {"error": "OSError: stale file handle"}
    assert found["slow"] == {"error": "no answer within 0 s"}
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("platform", "variables", "path"),
    [
        ("linux", {}, "~/.local/share/nbdist"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/nbdist"),
        ("linux", {"XDG_DATA_HOME": "data"}, "~/.local/share/nbdist"),
        ("linux", {"NBDIST_HOME": "/own"}, "/own"),
        ("linux", {"NBDIST_HOME": "~/own"}, "~/own"),
        ("darwin", {}, "~/Library/Application Support/nbdist"),
    ],
)
def test_the_home_is_where_nbdist_has_it(
    platform: str, variables: Mapping[str, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbdist.home import home_path

    for name in ("NBDIST_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert observe.home_path() == home_path() == Path(path).expanduser()


# Who reaches whom.


@pytest.fixture
def server() -> Iterator[observe.TokenServer]:
    one = observe.TokenServer("a" * 64)
    yield one
    one.close()


def test_a_host_is_reached_by_the_proof(server: observe.TokenServer) -> None:
    address = f"127.0.0.1:{server.port}"
    assert observe.dial(address, "a" * 64, 10.0) == {"own": "127.0.0.1"}
    assert observe.dial(address, "b" * 64, 10.0) == {"error": "another program answers"}
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        assert observe.dial(address, "a" * 64, 10.0) == {"own": "127.0.0.1"}
        silent.sendall(b"\0" * observe.QUESTION_BYTES)
        assert len(observe.receive(silent, 100)) == 32


def test_another_program_at_the_port_is_not_the_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert observe.dial(address, "a" * 64, 0.2) == {"error": "timed out"}
    assert observe.dial(address, "a" * 64, 10.0) == {"error": "Connection refused"}


def test_the_head_is_reached_at_any_of_its_addresses(
    server: observe.TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "a" * 64
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.2 4000 127.0.0.3 22")
    reached = observe.reach_head(["127.0.0.1"], server.port, token)
    assert reached == {"address": f"127.0.0.2:{server.port}", "own": "127.0.0.1"}
    server.close()
    missed = observe.reach_head(["127.0.0.1"], server.port, token)
    assert missed["own"] == "127.0.0.3"
    assert list(missed["errors"]) == [f"127.0.0.2:{server.port}", f"127.0.0.1:{server.port}"]
    monkeypatch.setenv("SSH_CONNECTION", "fe80::1 4000 fe80::2 22")
    assert observe.reach_head([], server.port, token) == {"errors": {}, "own": ""}


# A whole examination, through a stand-in for ssh that runs the command on this host.

STAND_IN = """\
#!/bin/sh
for word; do before=$name; name=$command; command=$word; done
case $name in
    refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255 ;;
    silent) exec sleep 60 ;;
    deaf) exec sh -c 'exec <&-; exec sleep 60' ;;
    noisy) echo "Welcome to noisy"; echo "have a nice day" >&2 ;;
    closed) exit 0 ;;
    other) command=$(printf %s "$command" | sed "s:^[^ ]*:/no/python:") ;;
    chatters) exec yes nbdist ;;
    repeats) exec yes 'nbdist-doctor {}' ;;
    moody) echo 'nbdist-doctor [3]'; echo 'nbdist-doctor {"python": 3}'; exit 1 ;;
esac
exec sh -c "$command"
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ssh"
    path.write_text(STAND_IN)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return path


def hosts(*names: str) -> list[Host]:
    return [Host(name) for name in names]


@pytest.mark.processes
def test_an_examination(stand_in: Path) -> None:
    report = examine.examine(hosts("a", "noisy"))
    assert [host.name for host in report.hosts] == ["", "a", "noisy"]
    for name in ("a", "noisy"):
        # The stand-in has no connection, so the own addresses of this machine are tried.
        names = {finding.name for finding in report.findings.get(name, [])}
        assert names <= {"same machine", "loopback", "head out of reach"}
    assert "same machine" in {finding.name for finding in report.findings["noisy"]}
    head, here, *rows = str(report).splitlines()
    assert head.split()[:3] == ["host", "python", "nbdist"]
    assert here.startswith("this host")
    assert here.split()[2] == rows[0].split()[1]


@pytest.mark.processes
def test_silent_hosts_delay_no_other(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "FACTS_LIMIT", 2.0)
    monkeypatch.setattr(examine, "LIMIT", 4.0)
    begun = time.monotonic()
    report = examine.examine(hosts("silent", "deaf", "refused", "closed", "other", "chatters", "moody", "a"))
    took = time.monotonic() - begun
    found = {name: [finding.name for finding in findings] for name, findings in report.findings.items()}
    assert found["silent"] == found["deaf"] == found["chatters"] == ["late"]
    assert found["refused"] == ["refused"]
    assert found["closed"] == ["unexplained"]
    assert found["other"] == [NO_PYTHON.name]
    assert found["moody"][0] == "old Python" or found["moody"] == ["unexplained"]
    assert report.hosts[-1].failure is None
    assert took < limit(5.0)
    sentences = "\n".join(report.sentences)
    assert "host other: it has no Python at " in sentences
    assert "name another one with --python PATH" in sentences
    assert "host refused: nothing listens on port 22 of refused" in sentences


@pytest.mark.processes
def test_a_host_that_answers_without_end_is_read_no_more(stand_in: Path) -> None:
    with selectors.DefaultSelector() as selector:
        connection = examine._Connection("repeats", "true", selector)
        while not connection.ended:
            for key, _ in selector.select():
                key.data()
        connection.end_input()
        connection.close(0.0)
    assert len(connection.answers) < 2 * examine.MOST_BYTES // len("nbdist-doctor {}\n")


def test_without_hosts_this_one_is_examined() -> None:
    report = examine.examine()
    assert [host.name for host in report.hosts] == [""]
    assert report.passed == (not report.sentences)


def test_what_cannot_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no extra 'tors'; choose from .*torch"):
        examine.examine(extras=["tors"])
    with pytest.raises(InvalidArgumentError, match="gpus is 'auto'"):
        examine.examine(gpus="many")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError, match="this host has no ssh"):
        examine.examine(read_hosts("a"))


def test_an_extra_has_the_packages_of_those_that_it_names() -> None:
    assert examine.packages_of("sweep") == ["optuna"]
    assert {"scikit-learn", "jupyterlab", "pandas"} <= set(examine.packages_of("demo"))
    assert "nbdist" not in examine.packages_of("test")


def test_the_documentation_has_every_sentence() -> None:
    page = (ROOT / "docs" / "hosts.md").read_text()
    for row in (*CAUSES, *PROBLEMS, NO_PYTHON):
        assert f"| {row.name} | {row.text} |" in page, row.name


def test_the_transcript_of_the_documentation_is_what_is_printed() -> None:
    disk, memory = 12.5 * GB, 7.8 * GB
    hosts = (
        Examined("", changed(home={"free": 61 * GB}, shm={"total": memory})),
        Examined("a", changed(home={"free": disk}, shm={"total": CONTAINERS_SHM, "free": CONTAINERS_SHM})),
        Examined("b", changed(home={"free": 61 * GB}, shm={"total": memory}, versions={"nbdist": "0.1.0"})),
    )
    page = (ROOT / "docs" / "hosts.md").read_text()
    assert f"```text\n{examine.Report(hosts, Wanted())}\n```" in page
