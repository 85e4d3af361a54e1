"""Which clusters and processes live, asked at most once in a look; nothing is made or removed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from nbdist.cluster.folder import VALID_ID, is_alive, is_process_alive
from nbdist.errors import NbdistError
from nbdist.lab.readers.files import read_bounded
from nbdist.lab.readers.run_record import Record, listed, mapping, whole

LONGEST = 4 << 20  # bytes of a cluster.json


class Living:
    """One look at the clusters in a home: make a new one for each look."""

    def __init__(self, home: Path) -> None:
        self._clusters = home / "clusters"
        self._found: dict[str, frozenset[int] | None] = {}

    def reaches(self, record: Record) -> bool:
        """Return whether what a run needs to go on is there.

        That is its cluster, and not a later one of the same name; of an in-graph run, the process that
        drives it. One on another host counts as alive.
        """
        if record.in_graph and record.owner and not is_process_alive(record.owner):
            return False
        there = self.incarnations(record.cluster)
        if there is None:
            return False
        return not there or record.incarnations <= {0} or bool(there & record.incarnations)

    def incarnations(self, cluster: str | None) -> frozenset[int] | None:
        """Return the incarnations of a cluster's tasks, none if they are not known; None if it is gone."""
        if cluster is None or not VALID_ID.fullmatch(cluster):
            return None
        if cluster not in self._found:
            folder = self._clusters / cluster
            self._found[cluster] = described(folder) if is_alive(folder) else None
        return self._found[cluster]


def described(folder: Path) -> frozenset[int]:
    """Return the incarnations in a cluster.json, none if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError, NbdistError):
        content = read_bounded(folder / "cluster.json", LONGEST)
        tasks = [mapping(one) for one in listed(mapping(json.loads(content)).get("tasks"))]
        return frozenset(n for one in tasks if (n := whole(one.get("incarnation"))) is not None)
    return frozenset()
