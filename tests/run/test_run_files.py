"""The files of a run, in a folder of this host and behind a task's Server, and their copies."""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from nbdist.checkpoint.manager import state_files
from nbdist.errors import DataLossError, InvalidArgumentError, NbdistError, NotFoundError, UnavailableError
from nbdist.home import home
from nbdist.run.files import mirror as mirrors
from nbdist.run.files import store
from nbdist.run.files.mirror import COPIES, LOCK, Mirror
from nbdist.run.files.place import RESUMED, RunPlace, mark, new_spool, sent_name, spool_path
from nbdist.run.files.store import (
    PIECE,
    Entry,
    LocalFiles,
    RemoteFiles,
    RunFiles,
    check_name,
    entries_of,
    send,
)
from nbdist.run.task.agent import Agent
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame

RUN = "261130-090000-digits"


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """The folder of a run in a client's home, which is not this process's."""
    folder = tmp_path / "client" / "runs" / RUN
    folder.mkdir(mode=0o700, parents=True)
    return folder


@pytest.fixture(autouse=True)
def other_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "task"))


class FilesContract(ABC):
    """What the files of a run do, wherever they are."""

    @pytest.fixture
    def spool(self) -> Path:
        return new_spool(RUN)

    @pytest.fixture
    @abstractmethod
    def files(self, spool: Path) -> Iterator[RunFiles]:
        """The files in ``spool``."""

    def test_it_lists_names_sizes_and_times(self, spool: Path, files: RunFiles) -> None:
        (spool / "checkpoints" / "step-5").mkdir(parents=True)
        (spool / "checkpoints" / "step-5" / "model.safetensors").write_bytes(b"abc")
        (spool / "metrics-0000.log").write_bytes(b"12")
        os.utime(spool / "metrics-0000.log", ns=(5, 7))
        found = list(entries_of(files))
        assert [(one.name, one.size) for one in found] == [
            ("checkpoints/step-5/model.safetensors", 3),
            ("metrics-0000.log", 2),
        ]
        assert found[1].time == 7
        assert [one.grows for one in found] == [False, True]
        assert [one.name for one in entries_of(files, "checkpoints/step-5")] == [found[0].name]
        assert list(entries_of(files, "trials")) == []

    def test_it_lists_neither_drafts_nor_links_nor_what_the_client_has_sent(
        self, spool: Path, files: RunFiles, tmp_path: Path
    ) -> None:
        (tmp_path / "keys").write_text("secret")
        (spool / ".state.draft").write_text("half")
        (spool / ".step-5.draft").mkdir()
        (spool / ".step-5.draft" / "model.safetensors").write_text("half")
        (spool / "link").symlink_to(tmp_path / "keys")
        (spool / "folder").symlink_to(tmp_path)
        os.mkfifo(spool / "pipe")
        files.put(f"{RESUMED}/state", 0, b"abc", 3, 1)
        assert list(entries_of(files)) == []
        assert [one.name for one in entries_of(files, RESUMED)] == [f"{RESUMED}/state"]

    def test_it_lists_many_files_page_by_page(
        self, spool: Path, files: RunFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "MOST_ENTRIES", 3)
        names = sorted(["a", "a-b", "a.b/c", "a/b", "a/c/d", "b", "z/z"])
        for name in names:
            path = spool / (name if "/" in name else f"{name}.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        listed = [one.name for one in entries_of(files)]
        assert listed == sorted(listed)
        assert len(listed) == len(set(listed)) == len(names)
        page = files.page()
        assert page.more
        assert len(page.entries) == 3

    def test_it_reads_a_file_in_pieces(self, spool: Path, files: RunFiles) -> None:
        data = os.urandom(PIECE + 5)
        (spool / "state.safetensors").write_bytes(data)
        (entry,) = entries_of(files)
        assert files.read(entry, 0) + files.read(entry, PIECE) == data
        assert files.read(entry, 3, most=4) == data[3:7]
        assert files.read(entry, len(data)) == b""

    def test_a_file_that_loses_its_name_is_read_to_its_end(self, spool: Path, files: RunFiles) -> None:
        data = os.urandom(2 * PIECE)
        path = spool / "state-0001-000000000005.safetensors"
        path.write_bytes(data)
        (entry,) = entries_of(files)
        first = files.read(entry, 0)
        path.unlink()
        assert first + files.read(entry, PIECE) == data
        with pytest.raises(NotFoundError):
            files.read(entry, 0)

    def test_another_file_of_the_name_is_not_read(self, spool: Path, files: RunFiles) -> None:
        path = spool / "progress-0000.json"
        path.write_bytes(b"old")
        (entry,) = entries_of(files)
        path.rename(spool / ".kept")
        path.write_bytes(b"new")
        with pytest.raises(NotFoundError):
            files.read(entry, 0)

    @pytest.mark.parametrize(
        "name", ["../keys", "/etc/passwd", "a/../../b", "", ".id", "a//b", "a/.b", "x\0"]
    )
    def test_names_that_lead_elsewhere_are_refused(self, spool: Path, files: RunFiles, name: str) -> None:
        with pytest.raises(InvalidArgumentError):
            files.read(Entry(name, 1, 1, 1), 0)
        with pytest.raises(InvalidArgumentError):
            files.put(name, 0, b"x", 1, 1)
        if name:
            with pytest.raises(InvalidArgumentError):
                files.page(name)

    def test_links_are_not_followed(self, spool: Path, files: RunFiles, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "keys").write_text("secret")
        (spool / "folder").symlink_to(tmp_path / "other")
        (spool / "keys").symlink_to(tmp_path / "other" / "keys")
        number = (tmp_path / "other" / "keys").stat().st_ino
        for name in ("folder/keys", "keys"):
            with pytest.raises(NotFoundError):
                files.read(Entry(name, 6, 1, number), 0)

    @pytest.mark.parametrize(("at", "most"), [(-1, 1), (0, 0), (0, PIECE + 1), (0.5, 1), (0, True)])
    def test_pieces_of_other_sizes_are_refused(
        self, spool: Path, files: RunFiles, at: Any, most: Any
    ) -> None:
        (spool / "a").write_text("abc")
        (entry,) = entries_of(files)
        with pytest.raises(InvalidArgumentError):
            files.read(entry, at, most)

    def test_a_file_is_sent_once(self, spool: Path, files: RunFiles, tmp_path: Path) -> None:
        path, name = tmp_path / "state.safetensors", f"{RESUMED}/state"
        path.write_bytes(os.urandom(PIECE + 9))
        send(path, name, files)
        there = spool / name
        assert there.read_bytes() == path.read_bytes()
        assert there.stat().st_mode & 0o777 == 0o600
        number = there.stat().st_ino
        send(path, name, files)
        assert there.stat().st_ino == number
        path.write_bytes(b"")
        send(path, name, files)
        assert there.read_bytes() == b""

    def test_a_file_that_is_not_whole_has_no_name(self, spool: Path, files: RunFiles) -> None:
        files.put(f"{RESUMED}/state", 0, b"abc", 6, 1)
        assert list(entries_of(files, RESUMED)) == []
        with pytest.raises(InvalidArgumentError):
            files.put(f"{RESUMED}/state", 4, b"ef", 6, 1)
        with pytest.raises(InvalidArgumentError):
            files.put(f"{RESUMED}/state", 3, b"defgh", 6, 1)
        files.put(f"{RESUMED}/state", 0, b"abcdef", 6, 1)
        assert (spool / RESUMED / "state").read_bytes() == b"abcdef"
        assert [path.name for path in (spool / RESUMED).iterdir()] == ["state"]


class TestLocalFiles(FilesContract):
    @pytest.fixture
    def files(self, spool: Path) -> Iterator[RunFiles]:
        one = LocalFiles(spool)
        yield one
        one.close()


class TestRemoteFiles(FilesContract):
    @pytest.fixture
    def files(self, spool: Path, client: Path, agent: Agent, task: Any) -> Iterator[RunFiles]:
        place = mark(client)
        with Peer(task.server.address, task.keys) as peer:
            yield RemoteFiles(place, asking(peer))

    def test_only_files_to_resume_from_are_taken(self, files: RunFiles) -> None:
        with pytest.raises(InvalidArgumentError, match="resumed/"):
            files.put("run.json", 0, b"{}", 2, 1)

    def test_a_place_without_a_token_is_refused(self, client: Path, files: RunFiles, task: Any) -> None:
        with Peer(task.server.address, task.keys) as peer, pytest.raises(InvalidArgumentError):
            RemoteFiles(RunPlace(str(client)), asking(peer)).page()

    @pytest.mark.parametrize("root", ["/etc", "/home/ann/runs/..", "/home/ann/runs/.x", "/home/ann/keys/a"])
    def test_a_place_that_is_no_run_is_refused(self, root: str, files: RunFiles, task: Any) -> None:
        with Peer(task.server.address, task.keys) as peer, pytest.raises(InvalidArgumentError):
            RemoteFiles(RunPlace(root, "0" * 32), asking(peer)).page()

    def test_the_last_client_removes_the_spool(
        self, spool: Path, files: RunFiles, client: Path, task: Any
    ) -> None:
        (spool / "metrics-0000.log").write_bytes(b"abc")
        with Peer(task.server.address, task.keys) as peer:
            peer.call("files.drop", mark(client).to_meta())
        assert not spool.exists()
        assert list(entries_of(files)) == []


def asking(peer: Peer) -> Callable[[str, dict[str, Any], list[Any]], Frame]:
    return lambda kind, meta, arrays: peer.call(kind, meta, arrays)


# Which folder is meant.


def test_a_task_finds_the_token_in_its_own_home(client: Path, tmp_path: Path) -> None:
    place = mark(client)
    assert mark(client) == place
    assert not place.is_shared
    assert place.folder() == spool_path(RUN) == home() / "spool" / RUN
    assert place.folder().stat().st_mode & 0o777 == 0o700
    own = home() / "runs" / RUN
    own.parent.mkdir(mode=0o700)
    own.mkdir(mode=0o700)
    (own / ".token").write_text("f" * 32)  # the same path on another disk
    assert not place.is_shared
    (own / ".token").write_text(place.token)
    assert place.is_shared
    assert place.folder() == own


def test_a_file_system_may_have_no_links(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*paths: Path) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(os, "link", link)
    assert mark(client) == mark(client)
    assert [path.name for path in client.iterdir()] == [".token"]


def test_a_token_on_a_full_disk_leaves_nothing(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*paths: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(Path, "rename", link)
    with pytest.raises(OSError, match="No space"):
        mark(client)
    assert not list(client.iterdir())


def test_files_of_earlier_runs_are_where_the_client_has_them_or_was_sent(client: Path) -> None:
    place, path = mark(client), str(client.parent / "earlier" / "state")
    assert place.received(path) == spool_path(RUN) / RESUMED / sent_name(path)
    own = home() / "runs" / RUN
    own.mkdir(mode=0o700, parents=True)
    (own / ".token").write_text(place.token)
    assert place.received(path) == home() / "runs" / "earlier" / "state"
    assert RunPlace("/tmp/folder").received(path) == Path(path)


def test_links_in_the_place_of_a_spool_are_refused(client: Path, tmp_path: Path) -> None:
    (home() / "spool").mkdir(mode=0o700)
    (home() / "spool" / RUN).symlink_to(tmp_path)
    with pytest.raises(InvalidArgumentError, match="is a link"):
        mark(client).folder()


@pytest.mark.parametrize("name", ["a" * 1001, "/".join("a" * 9), 3, None])
def test_names_have_limits(name: object) -> None:
    with pytest.raises(InvalidArgumentError, match="not the name of a file"):
        check_name(name)


# Copies.


class Hosts:
    """Tasks on two hosts, each with a spool: tasks 0 and 1 share one."""

    def __init__(self, folder: Path) -> None:
        self.spools = {host: folder / f"host-{host}" for host in (0, 1)}
        for spool in self.spools.values():
            spool.mkdir()
        self.hosts, self.dead, self.cut = {0: 0, 1: 0, 2: 1}, set[int](), set[int]()
        self.cut_off = False
        self.asked: list[tuple[int, str]] = []

    def tasks(self) -> list[TaskInfo]:
        return [
            TaskInfo("worker", rank, rank, f"host {host}", 1, f"address {rank} on {host}", "CPU:0", 1)
            for rank, host in self.hosts.items()
        ]

    def dead_tasks(self) -> list[TaskInfo]:
        return [info for info in self.tasks() if info.rank in self.dead]

    def peer(self, rank: int) -> Any:
        return self.Task(self, rank)

    class Task:
        def __init__(self, hosts: Hosts, rank: int) -> None:
            self.hosts, self.rank = hosts, rank

        def call(self, kind: str, meta: dict[str, Any], arrays: list[Any], timeout: float) -> Frame:
            import json

            import numpy as np

            hosts = self.hosts
            if self.rank not in hosts.hosts:
                raise InvalidArgumentError(f"no task has rank {self.rank}")
            if self.rank in hosts.cut:
                raise UnavailableError("no route to host")
            hosts.asked.append((self.rank, kind))
            host = hosts.hosts[self.rank]
            files = LocalFiles(hosts.spools[host])
            if kind == "files.list":
                page = files.page(meta["under"], meta["after"])
                rows = np.frombuffer(json.dumps(page.entries).encode(), np.uint8)
                spool = f"{host}" * 32 if page.entries else ""
                return Frame("x", {"shared": False, "spool": spool, "more": page.more}, (rows,))
            if kind == "files.read":
                data = files.read(Entry(*meta["entry"]), meta["at"], meta["most"])
                return Frame("x", {}, (np.frombuffer(data, np.uint8),))
            assert kind == "files.drop"
            shutil.rmtree(hosts.spools[host])
            hosts.spools[host].mkdir()
            return Frame("x")


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


@pytest.fixture
def copying(client: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Mirror]]:
    monkeypatch.setattr(mirrors, "INTERVAL", 0.01)
    made: list[Mirror] = []

    def start() -> Mirror:
        one = Mirror(mark(client), hosts.tasks, hosts.dead_tasks, hosts.peer, lambda: hosts.cut_off)
        for rank in (0, 1, 2):
            one.add(rank, shared=False)
        made.append(one)
        return one

    yield start
    for one in made:
        one.close()


def test_logs_grow_and_other_files_appear_whole(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    log = hosts.spools[0] / "metrics-0000.log"
    log.write_bytes(b"abc")
    (hosts.spools[1] / "output-0002.log").write_bytes(b"hello")
    (hosts.spools[1] / "checkpoints" / "step-5").mkdir(parents=True)
    (hosts.spools[1] / "checkpoints" / "step-5" / "model.safetensors").write_bytes(b"m" * (PIECE + 1))
    mirror = copying()
    until(lambda: (client / "output-0002.log").exists() and (client / "metrics-0000.log").exists())
    with log.open("ab") as file:
        file.write(b"def")
    assert mirror.log(0, "metrics-0000.log", 6, 60.0) == client / "metrics-0000.log"
    assert (client / "metrics-0000.log").read_bytes() == b"abcdef"
    model = client / "checkpoints" / "step-5" / "model.safetensors"
    until(model.exists)
    assert model.stat().st_size == PIECE + 1
    assert all(path.stat().st_mode & 0o077 == 0 for path in client.rglob("*"))
    until(mirror.settle)
    assert not mirror.news
    mirror.drop()
    assert not list(hosts.spools[0].iterdir())


def test_each_spool_is_read_once(client: Path, hosts: Hosts, copying: Callable[[], Mirror]) -> None:
    (hosts.spools[0] / "metrics-0000.log").write_bytes(b"abc")
    mirror = copying()
    until(mirror.settle)
    assert [kind for _, kind in hosts.asked].count("files.read") == 1


def test_what_a_dead_task_has_left_comes_from_another_of_its_host(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    (hosts.spools[0] / "metrics-0000.log").write_bytes(b"abc")
    mirror = copying()
    until(lambda: (client / "metrics-0000.log").exists())
    hosts.dead.add(0)
    (hosts.spools[0] / "metrics-0000.log").write_bytes(b"abcdef")
    until(mirror.settle)
    assert (client / "metrics-0000.log").read_bytes() == b"abcdef"
    assert not mirror.news


@pytest.mark.parametrize("why", ["the process has ended", "this client was cut off from the cluster"])
def test_what_a_dead_host_has_is_said_to_be_missing(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror], why: str
) -> None:
    (hosts.spools[1] / "metrics-0002.log").write_bytes(b"abc")
    mirror = copying()
    until(lambda: (client / "metrics-0002.log").exists())
    hosts.cut_off = "cut off" in why
    hosts.dead.add(2)
    until(mirror.settle)
    (news,) = mirror.news
    assert re.search(rf"lacks what /job:worker/task:2 wrote .*: {why}\..*spool/{RUN}", news)
    mirror.drop()
    assert (hosts.spools[1] / "metrics-0002.log").exists()


def test_a_host_that_is_cut_off_for_a_while_loses_nothing(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    (hosts.spools[1] / "metrics-0002.log").write_bytes(b"abc")
    mirror = copying()
    until(lambda: (client / "metrics-0002.log").exists())
    hosts.cut.add(2)
    (hosts.spools[1] / "metrics-0002.log").write_bytes(b"abcdef")
    until(lambda: any(watch.failing for watch in mirror._watches))
    assert not mirror.settle()
    hosts.cut.clear()
    until(mirror.settle)
    assert (client / "metrics-0002.log").read_bytes() == b"abcdef"
    assert not mirror.news


def test_a_rank_that_moves_to_another_host_keeps_both_logs(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    for host, text in ((0, b"first"), (1, b"second")):
        (hosts.spools[host] / "metrics-0000.log").write_bytes(text)
        (hosts.spools[host] / "output-0000.log").write_bytes(text)
    first = copying()
    until(first.settle)
    assert (client / "metrics-0000.log").read_bytes() == b"first"
    assert (client / "metrics-0000.1.log").read_bytes() == b"second"
    assert (client / "output-0000.log").read_bytes() == b"firstsecond"
    first.drop()
    first.close()
    later = copying()  # attached when the run is over
    until(later.settle)
    assert later.log(0, "metrics-0000.log", 6, 60.0) == client / "metrics-0000.1.log"


def test_another_client_goes_on_where_the_copies_end(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    for host, text in ((0, b"first"), (1, b"second")):
        (hosts.spools[host] / "output-0000.log").write_bytes(text)
    (hosts.spools[0] / "outcome-0000.bin").write_bytes(b"outcome")
    first = copying()
    until(first.settle)
    number = (client / "outcome-0000.bin").stat().st_ino
    (client / ".outcome-0000.bin.0123.copy").touch()
    second = copying()
    until(second.settle)
    assert second.log(2, "output-0000.log", 6, 60.0) == client / "output-0000.log"
    first.close()
    (hosts.spools[1] / "output-0000.log").write_bytes(b"second more")
    third = copying()
    until(third.settle)
    assert (client / "output-0000.log").read_bytes() == b"firstsecond more"
    assert (client / "outcome-0000.bin").stat().st_ino == number
    assert not list(client.glob("*.copy"))


def test_the_newest_states_stay(client: Path, hosts: Hosts, copying: Callable[[], Mirror]) -> None:
    for step in (5, 10, 15):
        (hosts.spools[0] / f"state-0001-{step:012d}.safetensors").write_bytes(b"x" * step)
    mirror = copying()
    until(mirror.settle)
    assert [path.name[-14:-12] for path in state_files(client)] == ["15", "10"]
    until(mirror.settle)


def test_the_clients_own_files_are_not_overwritten(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    (client / "run.json").write_text("{}")
    for name in ("run.json", "labels.json", "body.bin", LOCK, "owner.lock"):
        (hosts.spools[0] / name).write_text("others")
    (hosts.spools[0] / "progress-0000.json").write_text("{}")
    mirror = copying()
    until(mirror.settle)
    names = {path.name for path in client.iterdir()}
    assert names <= {"run.json", ".token", LOCK, COPIES, "progress-0000.json"}
    assert (client / "run.json").read_text() == "{}"


def test_a_full_disk_is_said_once_and_copied_again_later(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"is": True}
    write: Callable[[int, bytes, int], None] = mirrors.write_whole

    def written(descriptor: int, data: bytes, offset: int) -> None:
        if full["is"]:
            raise OSError(28, os.strerror(28))
        write(descriptor, data, offset)

    monkeypatch.setattr(mirrors, "write_whole", written)
    (hosts.spools[0] / "metrics-0000.log").write_bytes(b"abc")
    mirror = copying()
    until(lambda: mirror.news)
    asked = len(hosts.asked)
    until(lambda: len(hosts.asked) > asked + 9)
    (news,) = mirror.news
    assert re.search(r"cannot be copied into .*: No space left.*Training continues", news)
    full["is"] = False
    until(mirror.settle)
    assert (client / "metrics-0000.log").read_bytes() == b"abc"
    assert "are copied again" in mirror.news[-1]


def test_an_interrupted_end_says_what_is_missing(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    (hosts.spools[1] / "metrics-0002.log").write_bytes(b"abc")
    mirror = copying()
    until(lambda: (client / "metrics-0002.log").exists())
    hosts.cut.add(2)
    until(lambda: any(watch.failing for watch in mirror._watches))
    assert not mirror.settle()
    mirror.give_up()
    assert mirror.settle()
    assert "interrupted" in mirror.news[-1]


def test_a_disk_that_stays_full_ends_the_wait_with_a_sentence(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes, offset: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(mirrors, "write_whole", full)
    monkeypatch.setattr(mirrors, "GIVE_UP_SECONDS", 0.1)
    (hosts.spools[0] / "metrics-0000.log").write_bytes(b"abc")
    mirror = copying()
    until(mirror.settle)
    missing = [text for text in mirror.news if "lacks what" in text]
    assert all("/job:worker/task:2" not in text and "No space left" in text for text in missing)
    assert {"task:0", "task:1"} <= set(re.findall(r"task:\d", " ".join(missing)))
    assert all(f"; make room there. What is left is there, in spool/{RUN} " in text for text in missing)
    assert all(text.endswith(f"; nb.attach('{RUN}') copies it while the cluster is up") for text in missing)
    mirror.drop()
    assert (hosts.spools[0] / "metrics-0000.log").exists()


def test_a_bug_ends_the_wait_with_a_sentence(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    (hosts.spools[0] / "metrics-0000.log").write_bytes(b"abc")
    mirror = copying()
    until(lambda: (client / "metrics-0000.log").exists())
    monkeypatch.setattr(mirror, "_copy_logs", lambda lists, number: 1 / 0)
    until(mirror.settle)
    assert "ZeroDivisionError" in mirror.news[-1]


def test_a_task_whose_body_had_ended_before_its_death_lacks_nothing(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    (hosts.spools[1] / "metrics-0002.log").write_bytes(b"abc")
    mirror = copying()
    until(lambda: (client / "metrics-0002.log").exists())
    mirror.end(2)
    until(lambda: all(watch.ended is None or watch.whole >= watch.ended for watch in mirror._watches))
    del hosts.hosts[2]  # it has left the cluster
    until(mirror.settle)
    assert not mirror.news


def test_a_client_that_does_not_copy_waits_for_the_one_that_does(
    client: Path, hosts: Hosts, copying: Callable[[], Mirror]
) -> None:
    first = copying()
    (hosts.spools[1] / "metrics-0002.log").write_bytes(b"abc")
    until(lambda: (client / "metrics-0002.log").exists())
    second = copying()
    until(second.settle)
    assert [first._lock.held, second._lock.held] == [True, False]
    second.drop()
    assert (hosts.spools[1] / "metrics-0002.log").exists()


def test_old_spools_are_removed_when_another_is_made() -> None:
    old, recent, sweep = (new_spool(name) for name in ("old", "recent", "sweep"))
    (sweep / "trials").mkdir()
    for folder in (old, sweep):
        os.utime(folder, (1e9, 1e9))
    new_spool("new")
    assert [one.exists() for one in (old, recent, sweep)] == [False, True, True]


def test_a_list_that_is_none_is_refused() -> None:
    import numpy as np

    wrong = Frame("x", {"shared": False, "spool": "", "more": False}, (np.frombuffer(b"[[1]]", np.uint8),))
    place = RunPlace("/home/ann/runs/a", "0" * 32)
    with pytest.raises((DataLossError, InvalidArgumentError)):
        RemoteFiles(place, lambda kind, meta, arrays: wrong).page()
    out = Frame(
        "x", {"shared": False, "spool": "", "more": False}, (np.frombuffer(b'[["../a",1,1,1]]', np.uint8),)
    )
    with pytest.raises(NbdistError):
        RemoteFiles(place, lambda kind, meta, arrays: out).page()
