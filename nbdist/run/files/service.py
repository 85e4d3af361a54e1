"""`FileService`: a task's side of the copying of a run's files to a client on another host.

    client                                            task
    files.list  root, token, under, after ──────────► names, sizes and times, or that the folder is shared
    files.read  root, token, entry, at, most ───────► at most 1 MiB of one file
    files.put   root, token, name, at, size; bytes ─► a piece of a file from which a training continues
    files.drop  root, token ────────────────────────► removes the spool, which the client has all of

    another worker of the run
    files.list, files.read with states=True ────────► the states of trainings only, from a shared folder too

Only the spool of the run that is named is reached, and of a folder that the task shares with the client
nothing but states: see `nbdist.run.files.place` and `store`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import OrderedDict
from contextlib import suppress

import numpy as np

from nbdist.checkpoint.manager import STATE_FILE
from nbdist.cluster.folder import FOLDER_VARIABLE, busy_tasks, hosts_folder, is_alive
from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.numbers import is_whole
from nbdist.run.files.place import RESUMED, SPOOL_ID, RunPlace, new_spool, read_small, spool_path
from nbdist.run.files.store import Entry, LocalFiles
from nbdist.runtime.server import Handler
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.rpc.server import Caller

MOST_OPEN = 16  # runs whose files are being copied


class FileService:
    """Handlers for a task's Server, on its thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, LocalFiles] = OrderedDict()

    def handlers(self) -> dict[str, Handler]:
        """Return the handler of each kind of message."""
        return {
            "files.list": self._list,
            "files.read": self._read,
            "files.put": self._put,
            "files.drop": self._drop,
        }

    def close(self) -> None:
        """Close all files."""
        for files in self._open.values():
            files.close()
        self._open.clear()

    def _list(self, frame: Frame, sender: Caller) -> Frame:
        place, states = place_in(frame), bool(frame.meta.get("states"))
        if place.is_shared and not states:
            return Frame("files.listed", {"shared": True})
        page = self._files(place).page(str(frame.meta["under"]), str(frame.meta["after"]))
        entries = [one for one in page.entries if not states or STATE_FILE.fullmatch(one.name)]
        rows = np.frombuffer(json.dumps(entries).encode(), np.uint8)
        return Frame("files.listed", {"shared": False, "spool": page.spool, "more": page.more}, (rows,))

    def _read(self, frame: Frame, sender: Caller) -> Frame:
        place, entry = place_in(frame), Entry(*frame.meta["entry"])
        if place.is_shared and not STATE_FILE.fullmatch(str(entry.name)):
            raise InvalidArgumentError(f"{entry.name!r:.100} is not a state of a training")
        data = self._files(place).read(entry, frame.meta["at"], frame.meta["most"])
        return Frame("files.piece", {}, (np.frombuffer(data, np.uint8),))

    def _put(self, frame: Frame, sender: Caller) -> Frame:
        name, time = str(frame.meta["name"]), frame.meta["time"]
        if not name.startswith(f"{RESUMED}/") or not is_whole(time, 0) or len(frame.arrays) != 1:
            raise InvalidArgumentError(
                f"a client sends files for {RESUMED}/ with their time, not {name!r:.100}"
            )
        place = place_in(frame)
        try:
            new_spool(place.id)
        except OSError as error:
            raise StorageError(f"the spool of {place.id} cannot be made: {error}") from None
        data = frame.arrays[0].tobytes()
        self._files(place).put(name, frame.meta["at"], data, frame.meta["size"], time)
        return Frame("files.written")

    def _drop(self, frame: Frame, sender: Caller) -> Frame:
        place = place_in(frame)
        # A client that fetches what a run has left may not know that its cluster lives, behind a tunnel.
        if not place.is_shared and not _is_used_by_others(place.id):
            if (files := self._open.pop(place.id, None)) is not None:
                files.close()
            shutil.rmtree(spool_path(place.id), ignore_errors=True)
            with suppress(OSError):  # there are those of other runs
                spool_path(place.id).parent.rmdir()
        return Frame("files.dropped")

    def _files(self, place: RunPlace) -> LocalFiles:
        """Return the files in this host's spool of a run, or in the client's folder."""
        folder = place.own if place.is_shared else spool_path(place.id)
        spool = read_small(folder / SPOOL_ID)
        files = self._open.get(place.id)
        if files is None or (files.spool, files.folder) != (spool, folder):
            files = self._open[place.id] = LocalFiles(folder, spool)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        return files


def _is_used_by_others(run: str) -> bool:
    """Whether the tasks of another cluster work on a run on this host."""
    own = os.environ.get(FOLDER_VARIABLE)
    others = (folder for folder in hosts_folder().iterdir() if str(folder) != own and is_alive(folder))
    return any(run in busy_tasks(folder).values() for folder in others)


def place_in(frame: Frame) -> RunPlace:
    """Return the place that a message names; one without a token would be any folder of this host."""
    root, token = frame.meta.get("root"), frame.meta.get("token")
    if not (isinstance(root, str) and isinstance(token, str) and root and token):
        raise InvalidArgumentError(
            f"a run's files are asked for with its folder and token, not {root!r:.100}"
        )
    return RunPlace(root, token)
