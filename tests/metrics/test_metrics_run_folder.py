from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nbdist.errors import DataLossError, InvalidArgumentError, NotAllowedError, NotFoundError
from nbdist.home import default_home, home, home_path
from nbdist.metrics.run_folder import (
    RunFile,
    new_run_id,
    read_run,
    run_folder,
    slug,
    sync_run,
    versions,
    write_run,
    write_whole_file,
)
from nbdist.run.history import RunList, runs


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "own"))
    return tmp_path / "own"


def test_home_is_made_for_its_user_only(own_home: Path) -> None:
    assert home() == own_home
    assert own_home.stat().st_mode & 0o777 == 0o700
    assert home() == own_home


def test_a_home_that_others_could_write_is_refused(own_home: Path) -> None:
    home().chmod(0o777)
    with pytest.raises(NotAllowedError, match="chmod 700"):
        home()


def test_a_home_of_another_user_is_refused(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home()
    monkeypatch.setattr(os, "geteuid", lambda: own_home.stat().st_uid + 1)
    with pytest.raises(NotAllowedError, match="NBDIST_HOME"):
        home()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_home_of_another_user_is_refused_by_root_too(own_home: Path) -> None:
    os.chown(home(), 65534, 65534)
    with pytest.raises(NotAllowedError, match="belongs to user 65534, not to user 0; set NBDIST_HOME"):
        home()


def test_a_file_in_the_place_of_home_is_refused(own_home: Path) -> None:
    own_home.write_text("")
    with pytest.raises(NotAllowedError, match="is a file"):
        home()


def test_a_relative_home_is_refused(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NBDIST_HOME", "own")
    with pytest.raises(NotAllowedError, match=f"each process .*absolute path, such as {own_home}"):
        home()
    assert not own_home.exists()
    assert default_home("linux", {"XDG_DATA_HOME": "data"}, Path("/u")) == Path("/u/.local/share/nbdist")


def test_a_home_that_is_a_link_is_refused(own_home: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    own_home.symlink_to(tmp_path / "other")
    with pytest.raises(NotAllowedError, match="is a link"):
        home()


def test_a_home_in_a_folder_of_another_user_is_refused(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home.mkdir(mode=0o700)
    place, found = Path.stat, tmp_path.stat()

    def of_another(path: Path, **how: bool) -> Any:
        status = place(path, **how)
        return os.stat_result([*status[:4], found.st_uid + 1, *status[5:]]) if path == tmp_path else status

    monkeypatch.setattr(Path, "stat", of_another)
    with pytest.raises(NotAllowedError, match=f"lies in {tmp_path}, whose owner, user"):
        home()
    monkeypatch.setenv("HOME", str(tmp_path))  # as where a group's or a container's administrator made it
    assert home() == own_home


def test_a_home_that_was_replaced_is_checked_anew(own_home: Path, tmp_path: Path) -> None:
    assert home() == own_home
    own_home.rename(tmp_path / "before")
    own_home.mkdir(mode=0o700)
    tmp_path.chmod(0o777)
    with pytest.raises(NotAllowedError, match="where every user could replace it"):
        home()


def test_a_home_that_every_user_could_replace_is_refused(own_home: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(NotAllowedError, match=f"lies in {tmp_path}, where every user could replace it"):
        home()
    tmp_path.chmod(0o1777)  # as /tmp
    assert home() == own_home


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "/u/.local/share/nbdist"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/nbdist"),
        ("darwin", {}, "/u/Library/Application Support/nbdist"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/nbdist"),
    ],
)
def test_the_platforms_own_folder(platform: str, environment: dict[str, str], expected: str) -> None:
    assert default_home(platform, environment, Path("/u")) == Path(expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"), [("NBDIST_HOME", "~/x", "x"), ("XDG_DATA_HOME", "~/x", "x/nbdist")]
)
def test_a_tilde_is_the_users_home(
    name: str, value: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("NBDIST_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(name, value)
    assert home_path() == tmp_path / expected


def test_ids_sort_by_time_and_never_meet() -> None:
    ids = [new_run_id("My net!") for _ in range(3)]
    assert len(set(ids)) == 3
    assert all("my-net" in one for one in ids)
    assert ids[0] < new_run_id("My net!")
    assert all(run_folder(one).stat().st_mode & 0o777 == 0o700 for one in ids)


@pytest.mark.parametrize(
    ("name", "expected"), [("", "run"), ("../../etc", "etc"), ("Größe 2", "gr-e-2"), ("x" * 99, "x" * 24)]
)
def test_slugs(name: str, expected: str) -> None:
    assert slug(name) == expected


@pytest.mark.parametrize("bad", ["", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "x" * 99, "a..b"])
def test_an_id_leads_nowhere_else(bad: str) -> None:
    with pytest.raises(InvalidArgumentError):
        run_folder(bad)


def test_a_run_is_read_back_as_it_was_written() -> None:
    run = RunFile(
        new_run_id("mnist"),
        name="mnist",
        code="model.fit()",
        seed=3,
        versions=versions(),
        cluster={"worker": 3},
    )
    path = write_run(run)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_run(run.id) == run
    write_run(replace(run, status="finished", ended=run.created + 5))
    assert read_run(run.id).status == "finished"
    assert sorted(one.name for one in path.parent.iterdir()) == ["run.json"]


def test_runs_are_listed_newest_first_also_the_damaged() -> None:
    ids = [new_run_id(name) for name in ("a", "b", "c", "empty")]
    for age, run_id in enumerate(ids[:3]):
        write_run(RunFile(run_id, created=1000.0 + age))
    (run_folder(ids[0]) / "run.json").write_text("{")
    listed = runs()
    assert [run.id for run in listed] == [ids[0], ids[2], ids[1]]
    assert listed[0].status == "damaged"
    assert "damaged" in listed[0].error


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (b'{"id": "ID", "created": "yesterday"}', "its 'created' is 'yesterday', and should be a time"),
        (b'{"id": "ID", "created": 1e300}', r"its 'created' is 1e\+300, and should be a time"),
        (b'{"id": "ID", "created": NaN}', "its 'created' is nan"),
        (b'{"id": "ID", "created": -5}', "its 'created' is -5"),
        (b'{"id": "ID", "created": true}', "its 'created' is True"),
        (b'{"id": "ID", "created": 1%s}' % (b"0" * 400), "its 'created' is 1000"),
        (b'{"id": "ID", "ended": "late"}', "its 'ended' is 'late'"),
        (b'{"id": "ID", "cluster": [1]}', r"its 'cluster' is \[1\], and should be an object"),
        (b'{"id": "ID", "error": {}}', "its 'error' is {}, and should be a text"),
        (b'{"id": "ID", "status": ["failed"]}', "its 'status' is"),
        (b'{"id": "ID", "status": "exploded"}', "its 'status' is 'exploded', .*one of .*a newer nbdist"),
        (b'{"id": "ID", "seed": "x"}', "its 'seed' is 'x'"),
        (b"[" * 100_000, "is damaged"),
        (b'{"id": "ID", "options": %s}' % (b'{"a":' * 100_000), "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b" " * ((8 << 20) + 1), "it has over 8,388,608 bytes"),
    ],
)  # fmt: skip
def test_one_odd_run_is_a_damaged_row_and_the_others_are_listed(odd: bytes, why: str) -> None:
    good, bad = new_run_id("good"), new_run_id("odd")
    write_run(RunFile(good, created=1000.0))
    path = write_run(RunFile(bad))
    path.write_bytes(odd.replace(b"ID", bad.encode()))
    listed = runs()
    assert {run.id: run.status for run in listed} == {good: "preparing", bad: "damaged"}
    assert re.search(why, next(run.error for run in listed if run.id == bad))
    assert good in repr(listed)
    assert bad in listed._repr_html_()


def test_runs_show_as_a_table() -> None:
    assert repr(RunList()) == "no runs yet"
    one = RunFile("a-b", created=0.0, ended=75.0, status="finished", cluster={"workers": [0, 1]})
    failed = RunFile(
        "<b>",
        created=0.0,
        status="failed",
        error="Traceback ...\n  File\nValueError: late\n\nraised on worker 0",
    )
    odd = RunFile("odd", created=0.0, cluster=None)  # type: ignore[arg-type]  # as a file may have it
    head, first, second, third, more = repr(RunList([one, failed, odd])).splitlines()
    assert head.split() == ["id", "status", "started", "duration", "workers", "error"]
    assert first.split()[:2] + first.split()[4:] == ["a-b", "finished", "1", "min", "15", "s", "2"]
    assert second.endswith("ValueError: late")
    assert third.split()[:2] == ["odd", "preparing"]
    assert more == "nb.attach(id) opens a run"
    assert repr([failed]) == "[<run <b>: failed>]"
    drawn = RunList([failed])._repr_html_()
    assert "<td>&lt;b&gt;</td>" in drawn
    assert "<b>" not in drawn
    many = RunList([one] * 1021)
    assert len(repr(many).splitlines()) == 22
    assert repr(many).endswith("and 1,001 older: nb.runs()[20:]; nb.attach(id) opens a run")
    assert many._repr_html_().count("<tr>") == 21


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(NotFoundError, match="no run 'x'"):
        read_run("x")
    run_id = new_run_id()
    write_run(RunFile("other")) if (run_folder("other").mkdir() is None) else None
    (run_folder("other") / "run.json").rename(run_folder(run_id) / "run.json")
    with pytest.raises(DataLossError, match=run_id):
        read_run(run_id)
    with pytest.raises(InvalidArgumentError, match="'asleep'"):
        RunFile("x", status="asleep")


def test_a_newer_file_is_read_for_what_is_known() -> None:
    run_id = new_run_id()
    (run_folder(run_id) / "run.json").write_text(f'{{"id": "{run_id}", "seed": 4, "colour": "blue"}}')
    assert read_run(run_id).seed == 4


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "run.json"
    write_whole_file(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space"):
        write_whole_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


def test_a_home_that_cannot_be_made_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_HOME", "/dev/null/nbdist")
    with pytest.raises(NotAllowedError, match=r"cannot be made: .*; set NBDIST_HOME"):
        home()


def test_a_run_file_can_be_brought_to_the_disk_later(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    run = RunFile(new_run_id("later"))
    write_run(run, wait=False)
    assert synced == []
    sync_run(run.id)
    assert len(synced) == 2  # the file, and the folder that names it
    assert read_run(run.id) == run
