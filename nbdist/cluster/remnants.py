"""What clusters have left on a host whose processes were killed: folders, and segments of shared memory.

    remove_remnants().text()      # "folders removed: 1, ...; clusters that live here: none"

A supervisor removes all that its tasks have left when it ends. One that is killed cannot: the next cluster on
the host, or ``nbdist clean``, removes it, if no supervisor of its cluster lives there.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass

from nbdist.cluster.folder import VALID_ID, clusters_folder, hosts_folder, is_alive, remove_traces
from nbdist.runtime.task import segment_prefix
from nbdist.wire.shm import remove_all


@dataclass(frozen=True)
class Remnants:
    """What was removed, by name, and which clusters have living processes here, by id."""

    folders: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    living: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it in a line.

        >>> Remnants(("c1@a",), (), ("c2",)).text()
        'folders removed: 1, shared segments removed: 0; clusters that live here: c2'
        """
        living = ", ".join(self.living) or "none"
        return (
            f"folders removed: {len(self.folders)}, shared segments removed: {len(self.segments)}; clusters "
            f"that live here: {living}"
        )


def remove_remnants() -> Remnants:
    """Remove what dead clusters have left on this host, the head's and those of other hosts' clusters."""
    living, dead, segments = set[str](), {}, list[str]()
    for folder in [*clusters_folder().iterdir(), *hosts_folder().iterdir()]:
        cluster = folder.name.partition("@")[0]
        if not VALID_ID.fullmatch(cluster):
            continue
        if is_alive(folder):
            living.add(cluster)
        else:
            dead[folder] = cluster
    for folder, cluster in dead.items():
        if cluster not in living:  # else its segments may be in use: another host of it is this machine
            segments += remove_all(segment_prefix(cluster))
        if "@" in folder.name:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            with suppress(OSError):
                remove_traces(folder, cluster)
    return Remnants(tuple(folder.name for folder in dead), tuple(segments), tuple(sorted(living)))
