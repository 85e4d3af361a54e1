"""`states_of_others`: a training's newest states, from the hosts of the workers that have written them.

The chief writes the states of a run. A worker on another host needs one when a parameter server has died: its
optimizer's slots are in no worker's memory. It asks the other workers, since the client may be away.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbdist.errors import NbdistError
from nbdist.run.files.place import RESUMED, RunPlace, new_spool
from nbdist.run.files.store import LocalFiles, RemoteFiles, copy, entries_of
from nbdist.runtime.task import Task
from nbdist.wire.rpc.frame import Frame

ANSWER_SECONDS = 5.0


def states_of_others(place: RunPlace, task: Task, ranks: Sequence[int]) -> list[Path]:
    """Return a copy of the newest state that other workers of a run have, none where all share one folder."""
    if place.is_shared:
        return []
    to = LocalFiles(new_spool(place.id))
    found = []
    for rank in ranks:

        def ask(kind: str, meta: dict[str, Any], arrays: list[Any], rank: int = rank) -> Frame:
            return task.peer(rank).call(kind, meta, arrays, timeout=ANSWER_SECONDS)

        if rank != task.rank:
            files = RemoteFiles(place, ask, states=True)
            with suppress(NbdistError):  # it has died, say
                found += [(entry, files) for entry in entries_of(files)]
    for entry, files in sorted(found, key=lambda one: one[0].name, reverse=True):
        with suppress(NbdistError, OSError):  # replaced by a newer one, or this host's disk is full
            copy(entry, f"{RESUMED}/{entry.name}", files, to, lambda: None)
            return [to.folder / RESUMED / entry.name]
    return []
