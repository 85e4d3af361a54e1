"""What clusters have left on a host: folders and segments of killed processes, and runs' files.

    remove_remnants().text()      # "folders removed: 1, ...; clusters that live here: none"

A supervisor removes all that its tasks have left when it ends. One that is killed cannot: the next cluster on
the host, or ``nbdist clean``, removes it, if no supervisor of its cluster lives there.

A *spool* has files of a run for a client on another host. It is removed when the client has copied them, or
after `KEPT_DAYS` without a new file; until then it stays, also when its cluster has ended.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nbdist.cluster.folder import (
    VALID_ID,
    clusters_folder,
    hosts_folder,
    is_alive,
    remove_traces,
    runs_on,
)
from nbdist.home import home_path
from nbdist.runtime.task import segment_prefix
from nbdist.wire.shm import remove_all

KEPT_DAYS = 30  # for which a spool waits for a client after its last new file


@dataclass(frozen=True)
class Remnants:
    """What was removed, by name, and which clusters have living processes here, by id.

    ``old`` are the runs whose spools were removed, ``waiting`` those whose spools wait for a client.
    """

    folders: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    living: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it in a line.

        >>> Remnants(("c1@a",), (), ("c2",)).text()
        'folders removed: 1, shared segments removed: 0; clusters that live here: c2'
        """
        living = ", ".join(self.living) or "none"
        told = (
            f"folders removed: {len(self.folders)}, shared segments removed: {len(self.segments)}; clusters "
            f"that live here: {living}"
        )
        if self.old:
            told += f"; removed, as not fetched in {KEPT_DAYS} days, the files of runs: {', '.join(self.old)}"
        if self.waiting:
            told += (
                f"; files are kept of runs that no client has copied: {', '.join(self.waiting)} (start a "
                "cluster on this host, and call nb.attach with the run's id)"
            )
        return told


def remove_remnants() -> Remnants:
    """Remove what dead clusters have left on this host, the head's and those of other hosts' clusters."""
    living, dead, segments, used = set[str](), {}, list[str](), set[str]()
    for folder in [*clusters_folder().iterdir(), *hosts_folder().iterdir()]:
        cluster = folder.name.partition("@")[0]
        if not VALID_ID.fullmatch(cluster):
            continue
        if is_alive(folder):
            living.add(cluster)
            used.update(runs_on(folder))
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
    spools = home_path() / "spool"
    there = spools.is_dir() and not spools.is_symlink()
    old = remove_old_spools(spools) if there else []
    left = sorted(one.name for one in spools.iterdir()) if there else []
    return Remnants(
        tuple(folder.name for folder in dead),
        tuple(segments),
        tuple(sorted(living)),
        tuple(old),
        tuple(one for one in left if one not in used),
    )


def remove_old_spools(spools: Path) -> list[str]:
    """Remove the spools that no client has come for in `KEPT_DAYS`; return the ids of their runs."""
    oldest, removed = time.time() - KEPT_DAYS * 86_400, []
    for one in sorted(spools.iterdir()):
        with suppress(OSError):  # another process removes it
            changed = [part.lstat().st_mtime for part in (one, one / "trials") if part.is_dir()]
            if changed and max(changed) < oldest:
                shutil.rmtree(one, ignore_errors=True)
                removed.append(one.name)
    return removed
