"""`Mirror`: copies what the tasks of a run write on other hosts into the run's folder of the client.

    mirror = Mirror(place, cluster.tasks, cluster.dead, cluster.peer)
    mirror.add(0); mirror.add(1)          # tasks that may not see the client's folder
    mirror.settle()                       # polled at the end: True when all is here, or will never be

A thread asks each host twice a second for the list of its files, and copies what is new. Readers of runs
(``nb.runs()``, the sidebar, `export`) know of no other place than the client's folder.

logs       Files that grow are read from where the copy ends, in pieces of at most 1 MiB, before all others.
others     States, checkpoints, outcomes: a copy appears as a whole, under its name, with the time of the
           original, by which a later client knows that it has it. Newer ones replace older ones.
hosts      A spool is copied once, from any of its host's tasks that answers: also what a dead one has left.
clients    The one with the lock copies. When it ends, another one goes on where the copies end.
errors     A full disk, or a host that does not answer, ends nothing: it is said once, and tried again.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.checkpoint.manager import KEPT, STATE_FILE, state_files
from nbdist.errors import NbdistError, NotFoundError, ResourceExhaustedError, StorageError
from nbdist.metrics.event_file import make_private
from nbdist.metrics.log import open_new, write_whole
from nbdist.metrics.run_events import OF_CLIENT
from nbdist.metrics.run_folder import write_whole_file
from nbdist.run.files.place import RESUMED, RunPlace, sent_name
from nbdist.run.files.store import COPY, Entry, LocalFiles, RemoteFiles, RunFiles, copy, entries_of, send
from nbdist.run.protocols import RunTasks
from nbdist.run.recovery.ownership import OwnerLock
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer

INTERVAL = 0.5  # seconds between two looks at the hosts
CALL_SECONDS, DOUBT_SECONDS = 3.0, 1.0  # for an answer; of a task that did not give the last one
GIVE_UP_SECONDS = 10.0  # without progress, after the end of a run
LOCK, COPIES = "mirror.lock", ".copies.json"
OWN = {
    "run.json", "labels.json", "body.bin", "body.txt", "owner.lock", "sweep.log", "sweep.json", OF_CLIENT,
    LOCK,
}  # fmt: skip
"""The client's own files, which no task writes."""


@dataclass
class Watch:
    """The files of one task, and how far they are copied."""

    rank: int
    under: str = ""
    shared: bool | None = None
    """Whether the task sees the client's folder; None while that is unknown."""
    spool: str = ""
    """Identifies the folder on its host."""
    address: str = ""
    """Where the process is that has said so."""
    logs: int = 0
    """The last round in which its logs were copied."""
    whole: int = 0
    """The last round in which all was copied."""
    wanted: int | None = None
    """The round after which nothing more is expected; None while the task may write."""
    failing: float | None = None
    """Since when it was not reached, or copied."""
    ended: int | None = None
    """The round after which its task has written what counts; None while its body runs."""
    given_up: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is expected of it."""
        return bool(self.shared) or self.given_up or (self.wanted is not None and self.whole >= self.wanted)

    def done(self, number: int) -> None:
        """Record that all was copied in a round."""
        self.logs = self.whole = number
        self.failing = None


def _newest_first(entry: Entry) -> tuple[int, str]:
    return -entry.time, entry.name


@dataclass
class Spool:
    """The files of a host, as one of its tasks has listed them, for all of the ``watches``."""

    watches: list[Watch]
    files: RunFiles
    entries: list[Entry]
    whole: bool = True
    """Whether all of them could be copied in this round, so far."""

    @property
    def id(self) -> str:
        """What identifies the folder on its host."""
        return self.watches[0].spool


class Mirror:
    """The copies of a run's, or a sweep's, files on other hosts.

    - ``place``: the folder of the client
    - ``tasks``, ``dead``: return the tasks of the cluster, and those that have died
    - ``peer``: returns the calling thread's connection to the task of a rank
    - ``cut_off``: returns whether this client was cut off from the cluster, whose tasks may live
    """

    def __init__(
        self,
        place: RunPlace,
        tasks: Callable[[], Sequence[TaskInfo]],
        dead: Callable[[], Sequence[TaskInfo]],
        peer: Callable[[int], Peer],
        cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self.place, self.folder = place, Path(place.root)
        self._tasks, self._dead, self._peer, self._cut_off = tasks, dead, peer, cut_off
        self.news: deque[str] = deque()
        """Sentences about what cannot be copied, for the run's output."""
        self.left = 0
        """Bytes of states and other files that are still to be copied, as far as is known."""
        self._watches: list[Watch] = []
        self._elsewhere: set[int] = set()
        """Ranks of tasks that do not see the client's folder."""
        self.lost: set[int] = set()
        """Ranks of tasks that the run has lost: frozen, cut off. At its end nothing waits for them."""
        self._incomplete: set[int] = set()
        """Those of watches that were removed, and not copied."""
        self._lock = OwnerLock(self.folder, LOCK)
        self._files = LocalFiles(self.folder)
        self._copies: dict[str, list[Any]] = {}
        self._begun = 0
        """The number of the round that has begun last."""
        self._under_way: Sequence[Spool] = ()
        self._logs_at = 0.0
        self._wake, self._closed = threading.Event(), False
        self._looked = threading.Condition()
        self._thread: threading.Thread | None = None
        self._disk = ""

    @classmethod
    def of(cls, place: RunPlace, cluster: RunTasks) -> Mirror:
        """Return the copies of the files of a run, or a sweep, on a cluster."""

        def dead() -> list[TaskInfo]:
            return cluster.dead() if cluster.controller_died() is None else cluster.tasks

        return cls(place, lambda: cluster.tasks, dead, cluster.peer, cluster.is_cut_off)

    def add(self, rank: int, under: str = "", shared: bool | None = None) -> Watch:
        """Copy the files of a task from now on, unless it sees the client's folder; return its watch.

        ``shared`` is whether it does; None asks it.
        """
        found = next((one for one in self._watches if (one.rank, one.under) == (rank, under)), None)
        if found is not None:
            return found
        watch = Watch(rank, under, shared)
        if shared is False:
            self._elsewhere.add(rank)
        self._watches = [*self._watches, watch]
        if self._thread is None:
            name = f"nbdist copies the files of {self.place.id}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            atexit.register(self.close)  # before the connections that the thread uses
            self._thread.start()
        self._wake.set()
        return watch

    def send(self, rank: int, paths: Sequence[str | Path]) -> None:
        """Send files of the client to a task that is elsewhere, which finds them by `RunPlace.received`.

        From the calling thread, which waits. Raises NbdistError, or OSError for a file that cannot be read.
        """
        files = RemoteFiles(self.place, self._asker(rank))
        for path in paths:
            send(Path(path), f"{RESUMED}/{sent_name(str(path))}", files)

    def remove(self, watch: Watch) -> None:
        """Look at the files of a watch no more."""
        if watch.given_up or not watch.is_settled:
            self._incomplete.add(watch.rank)
        self._watches = [one for one in self._watches if one is not watch]

    def settle(self, watch: Watch | None = None) -> bool:
        """Whether all that a watch's task had written by the first call is here, or given up.

        Without a watch: whether all tasks' files are.
        """
        watches = self._watches if watch is None else [watch]
        for one in watches:
            if one.wanted is None and not one.is_settled:
                one.wanted = self._begun + 1
                self._wake.set()
        return all(one.is_settled for one in watches)

    def end(self, rank: int) -> None:
        """Copy soon what a task has written whose body has ended: its process may end next."""
        for one in self._watches:
            if one.rank == rank and not one.shared:
                one.ended = self._begun + 1
                self._wake.set()

    def give_up(self, why: str = "the copying was interrupted") -> None:
        """Wait for nothing more: what is missing is said."""
        self._give_up([one for one in self._watches if not one.is_settled], why)

    def is_elsewhere(self, rank: int) -> bool:
        """Whether a task is known to write on another host."""
        return rank in self._elsewhere

    def drop(self) -> None:
        """Remove the spools of which all is here, unless another client copies them. The run is over."""
        incomplete = {one.rank for one in self._watches if one.given_up or not one.is_settled}
        for rank in self._elsewhere - incomplete - self._incomplete:
            if self._lock.held:
                with suppress(NbdistError):  # it has died just now: its files stay there
                    self._asker(rank)("files.drop", self.place.to_meta(), [])

    def catch_up(self, seconds: float) -> bool:
        """Wait until the logs of all tasks are copied as they are now, so many seconds at most."""
        if self._thread is None:
            return True
        least = self._begun + 1
        self._wake.set()
        with self._looked:
            return self._looked.wait_for(
                lambda: all(one.is_settled or one.logs >= least or one.failing for one in self._watches),
                seconds,
            )

    def collect(self, ranks: Iterable[int], seconds: float, drop: bool = True) -> list[str]:
        """Copy what tasks have of a run that is over, so many seconds at most, and remove it there.

        Without ``drop`` it stays there. Returns sentences about what is missing.
        """
        for rank in ranks:
            self.add(rank)
        deadline = time.monotonic() + seconds
        try:
            with self._looked:
                while not self.settle() and time.monotonic() < deadline:
                    self._looked.wait(0.1)
            self.give_up(f"it took longer than {seconds:.0f} s")
            if drop:
                self.drop()
        finally:
            self.close()
        return list(self.news)

    def log(self, rank: int, name: str, size: int, seconds: float) -> Path:
        """Return where the log is that a task calls ``name``, when so many bytes are here or seconds over."""
        watch = next((one for one in self._watches if one.rank == rank and not one.shared), None)
        if watch is None:
            return self.folder / name
        deadline = time.monotonic() + seconds
        while True:
            copies = self._copies if self._lock.held else self._read_copies()
            local, base = copies.get(f"{watch.spool}/{name}", (name, 0))
            if watch.address and not watch.spool:  # the run is over, and the spool removed: the newest copy
                local, base = next(
                    (copies[key] for key in reversed(copies) if key.partition("/")[2] == name), (name, 0)
                )
            path = self.folder / str(local)
            with suppress(OSError):
                if path.stat().st_size - int(base) >= size:
                    return path
            if time.monotonic() > deadline or watch.shared:
                return path
            self._wake.set()
            with self._looked:
                self._looked.wait(0.05)

    def here(self, rank: int, checkpoint: str) -> Path:
        """Return the path of the copy of a checkpoint that a task has written in its folder of the run."""
        path = Path(checkpoint)
        return self.folder.joinpath(*path.parts[-3:]) if self.is_elsewhere(rank) else path

    def arrived(self, path: Path, seconds: float) -> bool:
        """Wait for a file in the client's folder, so many seconds at most; return whether it is here."""
        if path.exists() or not self._elsewhere:
            return path.exists()
        self._wake.set()
        with self._looked:
            return self._looked.wait_for(path.exists, max(0.0, seconds))

    def close(self) -> None:
        """End the thread, and let another client copy. May be called twice."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CALL_SECONDS)
            atexit.unregister(self.close)
        if self._lock.held:
            self._lock.remove()
            self._lock.release()

    # The thread.

    def _run(self) -> None:
        while not self._closed:
            self._wake.clear()
            self._begun += 1
            try:
                self._look(self._begun)
            except Exception as error:  # a bug in nbdist must not stop the copies silently
                why = f"{type(error).__name__}: {error}"
                self._say(f"the files of {self.place.id} on other hosts cannot be copied: {why}")
                wanted = [one for one in self._watches if one.wanted is not None and not one.is_settled]
                self._give_up(wanted, why)
            with self._looked:
                self._looked.notify_all()
            if all(one.shared for one in self._watches) and self._watches:
                self._wake.wait()
            else:
                self._wake.wait(INTERVAL)

    def _look(self, number: int) -> None:
        """Copy what is new on all hosts: first all logs, then the rest."""
        spools = self._spools(number)
        if not spools:
            return
        try:
            if not self._take_lock():
                self._copies = self._read_copies()
                for spool in spools:  # another client copies, and says what it cannot
                    self._finish(spool, number, "")
                return
            self._copy_logs(spools, number)
            self._copy_others(spools, number)
            if self._disk:
                self._disk = ""
                self._say(f"the files of {self.place.id} are copied again into {self.folder}")
        except OSError as error:
            if not self._disk:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                self._disk = f"{error.strerror}; make room there" if full else error.strerror or str(error)
                self._say(
                    f"the files that the tasks of {self.place.id} write on other hosts cannot be copied into "
                    f"{self.folder}: {self._disk}. Training continues, and the copying is tried again"
                )
            for spool in spools:
                self._finish(spool, number, self._disk)

    def _finish(self, spool: Spool, number: int, why: str) -> None:
        """Record whether all files of a spool are here, after a round that could not copy all it found."""
        if any(self._lacks(spool.id, one) for one in spool.entries):
            self._fail(spool.watches, why)
            return
        for watch in spool.watches:
            watch.done(number)

    def _spools(self, number: int) -> list[Spool]:
        """Return the files of each host, by the first of its tasks that answers."""
        infos = {info.rank: info for info in self._tasks()}
        found: dict[tuple[str, str], Spool] = {}
        failed: list[tuple[Watch, NbdistError]] = []
        alone: dict[tuple[str, bool], list[Watch]] = {}
        for watch in self._watches:
            if watch.shared or (watch.is_settled and watch.wanted is not None):
                continue
            info = infos.get(watch.rank)
            same = info is not None and watch.address == info.address
            if same and (spool := found.get((watch.spool, watch.under))):
                spool.watches.append(watch)  # another task of the host speaks for it
                continue
            try:
                seconds = CALL_SECONDS if watch.failing is None else DOUBT_SECONDS
                files = RemoteFiles(self.place, self._asker(watch.rank, seconds))
                first = files.page(watch.under)
                entries = list(entries_of(files, watch.under)) if first.more else first.entries
            except NbdistError as error:
                failed.append((watch, error))
                continue
            watch.shared = first.shared
            if not watch.shared:
                self._elsewhere.add(watch.rank)
            watch.address, watch.spool = info.address if info is not None else "", first.spool
            if watch.shared:
                continue
            if not first.spool:  # its host has written nothing
                watch.done(number)
            elif spool := found.get((first.spool, watch.under)):
                spool.watches.append(watch)
            else:
                found[first.spool, watch.under] = Spool([watch], files, list(entries))
        for watch, wrong in failed:
            if spool := found.get((watch.spool, watch.under)):
                spool.watches.append(watch)
            else:  # without a process, or with a new one that has no agent, there is no other answer to come
                alone.setdefault((str(wrong), isinstance(wrong, NotFoundError)), []).append(watch)
        for (why, is_final), watches in alone.items():
            self._fail(watches, why, is_final)
        return list(found.values())

    def _asker(
        self, rank: int, seconds: float = CALL_SECONDS
    ) -> Callable[[str, dict[str, Any], list[Any]], Any]:
        dead = {info.rank for info in self._dead()}

        def ask(kind: str, meta: dict[str, Any], arrays: list[Any]) -> Any:
            if rank in dead:
                cut_off = "this client was cut off from the cluster"
                raise NotFoundError(cut_off if self._cut_off() else "the process has ended")
            return self._peer(rank).call(kind, meta, arrays, timeout=seconds)

        return ask

    def _take_lock(self) -> bool:
        """Whether this client copies; the first time, remove what an earlier one has left half copied."""
        if self._lock.held:
            return True
        if not self._lock.take():
            return False
        self._copies = self._read_copies()
        for path in self.folder.rglob(f".*{COPY}"):
            path.unlink(missing_ok=True)
        return True

    def _copy_logs(self, spools: Sequence[Spool], number: int) -> None:
        self._under_way, self._logs_at = spools, time.monotonic()
        for spool in spools:
            self._each(spool, [one for one in spool.entries if one.grows], self._append)
            for watch in spool.watches if spool.whole else ():
                watch.logs = number
        with self._looked:
            self._looked.notify_all()

    def _refresh_logs(self) -> None:
        """Copy what logs have become longer by, while a large file is copied."""
        if self._closed:
            raise NotFoundError("this client copies no more")
        if time.monotonic() - self._logs_at < INTERVAL:
            return
        self._logs_at = time.monotonic()
        for spool in self._under_way:
            with suppress(NbdistError):  # the next round says what is wrong
                logs = [one for one in entries_of(spool.files, spool.watches[0].under) if one.grows]
                self._each(spool, logs, self._append)
        with self._looked:
            self._looked.notify_all()

    def _copy_others(self, spools: Sequence[Spool], number: int) -> None:
        others = []
        for spool in spools:
            lacking = (one for one in spool.entries if not one.grows and self._lacks(spool.id, one))
            others.append(sorted(lacking, key=_newest_first))
        self.left = sum(entry.size for entries in others for entry in entries)
        for spool, entries in zip(spools, others, strict=True):
            self._each(spool, entries, self._copy)
            for watch in spool.watches if spool.whole else ():
                watch.done(number)

    def _each(self, spool: Spool, entries: Sequence[Entry], do: Callable[[Spool, Entry], object]) -> None:
        """Copy entries of a spool. Raises OSError for an error of the client's disk."""
        for entry in entries:
            if entry.name in OWN:
                continue
            try:
                do(spool, entry)
            except NotFoundError:  # it was replaced since the list was made: the next round has the new one
                spool.whole = False
            except ResourceExhaustedError as error:
                raise OSError(str(error)) from None
            except StorageError:
                raise
            except NbdistError as error:  # of the task, or of the way to it
                spool.whole = False
                self._fail(spool.watches, str(error))
                return

    def _append(self, spool: Spool, entry: Entry) -> None:
        """Append to the copy of a log what it lacks."""
        local, base = self._copy_of(spool.id, entry)
        path = self.folder / local
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        make_private(path.parent)
        descriptor = os.open(path, flags, 0o600)
        try:
            have = os.fstat(descriptor).st_size - base
            while have < entry.size and (data := spool.files.read(entry, have)):
                write_whole(descriptor, data, base + have)
                have += len(data)
        finally:
            os.close(descriptor)

    def _copy_of(self, spool: str, entry: Entry) -> tuple[str, int]:
        """Return the name of the copy of a log, and where in it the copy begins.

        A rank that has moved to another host has a second log of the same name: metrics go to a file of
        their own, as those of a replaced process do on one host, and output follows what there is.
        """
        key = f"{spool}/{entry.name}"
        found = self._copies.get(key)
        if found is None:
            path, base = self.folder / entry.name, 0
            if path.exists():
                if Path(entry.name).name.startswith("output-"):
                    base = path.stat().st_size
                else:
                    path, descriptor = open_new(path)
                    os.close(descriptor)
            found = [path.relative_to(self.folder).as_posix(), base]
            copies = {**self._copies, key: found}
            write_whole_file(self.folder / COPIES, json.dumps(copies).encode(), wait=False)
            self._copies = copies
        return str(found[0]), int(found[1])

    def _read_copies(self) -> dict[str, list[Any]]:
        try:
            found = json.loads((self.folder / COPIES).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _copy(self, spool: Spool, entry: Entry) -> None:
        """Copy a file that is written as a whole, unless the copy is as new by now."""
        if self._lacks(spool.id, entry):
            copy(entry, entry.name, spool.files, self._files, self._refresh_logs)
        self.left = max(0, self.left - entry.size)
        for old in state_files(self.folder)[KEPT:] if STATE_FILE.fullmatch(entry.name) else ():
            old.unlink(missing_ok=True)

    def _lacks(self, spool: str, entry: Entry) -> bool:
        """Whether a file is not here as it is on its host, and should be."""
        if entry.name in OWN:
            return False
        if entry.grows:
            local, base = self._copies.get(f"{spool}/{entry.name}", (entry.name, 0))
            with suppress(FileNotFoundError):
                return (self.folder / str(local)).lstat().st_size - int(base) < entry.size
            return entry.size > 0
        with suppress(FileNotFoundError):
            if (self.folder / entry.name).lstat().st_mtime_ns >= entry.time:
                return False
        if STATE_FILE.fullmatch(entry.name):  # unless newer ones are here
            return not any(one.name >= entry.name for one in state_files(self.folder)[KEPT - 1 : KEPT])
        return True

    def _fail(self, watches: Sequence[Watch], why: str, is_final: bool = False) -> None:
        """Note that watches of a host were not copied in this round; give up those whose time is over."""
        now = time.monotonic()
        there = {info.rank for info in self._tasks()} - {info.rank for info in self._dead()} - self.lost
        over = []
        for watch in watches:
            watch.failing = now if watch.failing is None else watch.failing
            late = is_final or watch.rank not in there or now - watch.failing > GIVE_UP_SECONDS
            over += [watch] if late and watch.wanted is not None else []
        self._give_up(over, why)

    def _give_up(self, watches: Sequence[Watch], why: str) -> None:
        """Expect nothing more of watches; say what is missing, unless another client says it: without why."""
        names = {info.rank: info.name for info in self._tasks()}
        lacking = []
        for watch in watches:
            known = watch.shared is False or watch.spool  # else it may have nothing
            ended = watch.ended is not None and watch.whole >= watch.ended  # all was copied after its body
            if not watch.given_up and known and not ended:
                lacking.append(names.get(watch.rank, f"rank {watch.rank}"))
            watch.given_up = True
        if why and lacking:
            later = f"; nb.attach({self.place.id!r}) copies it while the cluster is up" if self._disk else ""
            self._say(
                f"{self.folder} lacks what {', '.join(lacking)} wrote on another host after the last copy: "
                f"{why}. What is left is there, in spool/{self.place.id} of its NBDIST_HOME{later}"
            )

    def _say(self, text: str) -> None:
        if not self.news or self.news[-1] != text:
            self.news.append(text)
