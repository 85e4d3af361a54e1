"""The liveness of clusters and of processes that drive runs, checked once per poll; read-only."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from nbdist.cluster.folder import VALID_ID, is_alive, is_process_alive
from nbdist.errors import NbdistError
from nbdist.lab.readers.files import read_bounded
from nbdist.lab.readers.run_record import RunRecord, listed, mapping, whole

MAX_BYTES = 4 << 20  # bytes of a cluster.json


class ClusterLiveness:
    """The liveness of the clusters in a home; create a new one for each poll."""

    def __init__(self, home: Path) -> None:
        self._clusters = home / "clusters"
        self._found: dict[str, frozenset[int] | None] = {}

    def can_continue(self, record: RunRecord) -> bool:
        """Return whether a run can continue: its cluster lives, and it is not a later one of the same name.

        An in-graph run also needs the process that drives it. A process on another host counts as alive.
        """
        if record.in_graph and record.owner and not is_process_alive(record.owner):
            return False
        incarnations = self.incarnations(record.cluster)
        if incarnations is None:
            return False
        return not incarnations or record.incarnations <= {0} or bool(incarnations & record.incarnations)

    def incarnations(self, cluster: str | None) -> frozenset[int] | None:
        """Return the incarnations of a cluster's tasks, empty if unknown; None if the cluster is dead."""
        if cluster is None or not VALID_ID.fullmatch(cluster):
            return None
        if cluster not in self._found:
            folder = self._clusters / cluster
            self._found[cluster] = read_incarnations(folder) if is_alive(folder) else None
        return self._found[cluster]


def read_incarnations(folder: Path) -> frozenset[int]:
    """Return the incarnations in a cluster.json, empty if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError, NbdistError):
        content = read_bounded(folder / "cluster.json", MAX_BYTES)
        tasks = [mapping(one) for one in listed(mapping(json.loads(content)).get("tasks"))]
        return frozenset(n for one in tasks if (n := whole(one.get("incarnation"))) is not None)
    return frozenset()
