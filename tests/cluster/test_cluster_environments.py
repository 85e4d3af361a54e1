"""What the notebook's lock has, and the wheels that are made of what is on no index."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from nbdist.cluster.environments import lock as locks
from nbdist.cluster.environments import pack
from nbdist.cluster.environments.__main__ import make_offer, pack_modules
from nbdist.cluster.environments.lock import Lock, project_modules, read_lock, wheels_in
from nbdist.cluster.environments.pack import build_editable, pack_installed, stamp
from nbdist.cluster.environments.receive import explain_uv
from nbdist.cluster.hosts import SENTENCE, why_ssh_ended
from nbdist.cluster.launchers.ssh import SPEC
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

ABI = f"cp{sys.version_info.major}{sys.version_info.minor}"


def package(folder: Path, name: str, url: str = "", editable: bool = False) -> Distribution:
    """Return a package that is installed in a folder, from a URL."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}.py").write_text("VALUE = 1\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py2-none-any\nTag: py3-none-any\n")
    (info / "entry_points.txt").write_text(f"[console_scripts]\n{name} = {name}:main\n")
    listed = [f"{name}.py", f"__pycache__/{name}.pyc", f"../../bin/{name}", f"{info.name}/METADATA"]
    listed += [f"{info.name}/{one}" for one in ("WHEEL", "RECORD", "INSTALLER", "entry_points.txt")]
    (info / "RECORD").write_text("".join(f"{one},,\n" for one in listed))
    if url:
        where = {"url": url, **({"dir_info": {"editable": editable}} if url.startswith("file:") else {})}
        (info / "direct_url.json").write_text(json.dumps(where))
    return Distribution.at(info)


def test_the_lock_has_each_package_from_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (tmp_path / "project").mkdir()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in (f"sent-1.0-{ABI}-none-any.whl", "sent-1.0-py3-none-any.whl", "sent-1.0-cp27-none-any.whl"):
        (wheels / name).write_bytes(b"")
    found = {
        "plain": package(site, "plain"),
        "sent": package(site, "sent"),
        # A path of the host that has built it.
        "built": package(site, "built", "file:///home/conda/feedstock/work"),
        "folder": package(site, "folder", f"file://{tmp_path}/project"),
        "repository": package(site, "repository", "git+https://example.org/repository"),
    }
    monkeypatch.setattr(locks, "installed", lambda: found)
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple")
    lock = read_lock(wheels, tmp_path)
    assert lock.requirements == ("built==1.0", "plain==1.0")
    assert [path.name for path in lock.wheels] == [f"sent-1.0-{ABI}-none-any.whl"]
    packed = [path.name for path in lock.local]
    assert packed[0].startswith("nbdist-")
    assert packed[1:] == ["folder-1.0-py2.py3-none-any.whl", "repository-1.0-py2.py3-none-any.whl"]
    assert lock.variables["UV_INDEX_URL"] == "https://example.org/simple"
    with_index = Lock(lock.python, (*lock.requirements, "sent==1.0"), (), lock.local)
    assert with_index.hash == lock.hash != Lock(lock.python, lock.requirements, (), lock.local).hash
    for folder in (tmp_path / "none", site):
        with pytest.raises(InvalidArgumentError, match="wheels"):
            wheels_in(folder)


def test_a_wheel_of_installed_files_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    one = package(tmp_path / "site", "tiny", "git+https://example.org/tiny")
    wheel = pack_installed(one, tmp_path)
    first = wheel.read_bytes()
    os.utime(tmp_path / "site" / "tiny.py", (1, 1))
    assert pack_installed(one, tmp_path).read_bytes() == first
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read("tiny-1.0.dist-info/RECORD").decode().splitlines()
    info = "tiny-1.0.dist-info"
    assert names == [
        "tiny.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/entry_points.txt", f"{info}/RECORD",
    ]  # fmt: skip
    assert record[0].startswith("tiny.py,sha256=")
    assert record[-1] == f"{info}/RECORD,,"
    (tmp_path / "site" / info / "RECORD").unlink()
    with pytest.raises(
        FailedPreconditionError, match=r"tiny 1.0 was installed from git\+https.*--wheels FOLDER"
    ):
        pack_installed(one, tmp_path)


def test_an_editable_package_is_built_again_when_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, folder = tmp_path / "project", tmp_path / "wheels"
    (project / "mine.egg-info").mkdir(parents=True)
    folder.mkdir()
    (project / "mine.py").write_text("1")
    one = package(tmp_path / "site", "mine", f"file://{project}", editable=True)
    built: list[str] = []

    def build(uv: str, project: Path, folder: Path, options: object) -> str:
        built.append(str(options))
        if not options:
            return "no network"
        folder.mkdir()
        (folder / "mine-1.0-py3-none-any.whl").write_bytes(b"")
        (project / "_version.py").write_text("1.0")
        return ""

    monkeypatch.setattr(pack, "_build", build)
    monkeypatch.setattr(pack, "own_uv", lambda: "uv")
    said: list[str] = []
    for _ in range(2):
        assert build_editable(one, project, folder, said.append).name == "mine-1.0-py3-none-any.whl"
    assert (said, len(built)) == (["builds the wheel of mine"], 2)
    before = stamp(project)
    (project / "mine.egg-info" / "SOURCES.txt").write_text("")
    assert stamp(project) == before
    (project / "mine.py").write_text("22")
    build_editable(one, project, folder, said.append)
    assert len(said) == 2
    assert len(list(folder.glob("mine-*"))) == 1
    (project / "mine.py").write_text("333")
    monkeypatch.setattr(pack, "_build", lambda *given: "no network")
    with pytest.raises(FailedPreconditionError, match=r"could not be built \(no network\): see `uv build"):
        build_editable(one, project, folder, said.append)
    monkeypatch.setattr(pack, "own_uv", lambda: None)
    with pytest.raises(
        FailedPreconditionError, match="this host has no uv to build it: run `pip install uv`"
    ):
        build_editable(one, project, folder, said.append)


def test_modules_are_the_python_files_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ["main.py", "part/__init__.py", "part/deep/one.py"]
    left = [".git/hook.py", "venv/lib/x.py", "node_modules/y.py", "build/z.py", "part/data.json"]
    for name in (*kept, *left, "venv/pyvenv.cfg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "linked.py").symlink_to("/etc/passwd")
    assert project_modules(tmp_path) == [tmp_path / name for name in kept]
    out = tmp_path / "out"
    out.mkdir()
    assert pack_modules(tmp_path, out) == pack_modules(tmp_path, out)
    with pytest.raises(NotFoundError, match="has no Python files"):
        project_modules(out)
    monkeypatch.setattr(locks, "MOST_MODULES", 2)
    with pytest.raises(InvalidArgumentError, match="has more than 2 Python files, or 32 MiB of them"):
        project_modules(tmp_path)


def test_an_offer_without_an_environment_has_modules_only(own_home: Path, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("1")
    offer = make_offer(False, None, tmp_path, None, print)
    assert (offer.order["hash"], offer.order["modules"], offer.order["uv"]) == ("", 0, None)
    assert (own_home / "nbdist" / "environments").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wheels": "/no/folder", "sync_env": True}, "wheels='/no/folder' is no folder with wheels"),
        ({"sync_env": "yes"}, "sync_env and sync_modules are True or False, not 'yes'"),
        ({"wheels": 3}, "wheels is the path of a folder with wheels, not 3"),
    ],
)
def test_settings_that_cannot_be_obeyed_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        SPEC.read_settings({"hosts": "a", **settings})


def test_wheels_without_an_environment_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(b"")
    given = SPEC.read_settings({"hosts": "a", "wheels": str(tmp_path)})
    with pytest.raises(InvalidArgumentError, match=r"wheels= is for sync_env=True \(--sync-env\)"):
        SPEC.hosts(given)


def test_the_sentence_of_a_host_is_kept() -> None:
    assert why_ssh_ended("a", SENTENCE, "noise\nhost a: its disk is full\n") == "host a: its disk is full"
    assert why_ssh_ended("a", 255, "Permission denied (publickey).").startswith("host a: it refuses")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("error: write: No space left on device (os error 28)", "its disk is full (error: write: No"),
        ("error: Disk quota exceeded (os error 122)", "your disk quota there is used up"),
        (
            "cause: Because x==1 has no wheels with a matching Python tag",
            "x==1 has no wheel for it; make one",
        ),
        ("cause: Because there is no version of x==1 and", "the packages' index has no x==1; start with"),
        (
            "cause: Because x was not found in the package registry",
            "the packages' index has no x; start with",
        ),
        ("error: dns error", "it does not reach the packages' index for y==2 (error: dns error); start with"),
        ("error: something else", "default"),
    ],
)
def test_what_uv_prints_becomes_a_sentence(said: str, sentence: str) -> None:
    assert explain_uv(said, "default", " for y==2").startswith(sentence)
