"""A cluster's folder: its keys, its description, its logs; and which folders are of clusters that live.

<NBDIST_HOME>/clusters/<id>/
    lock                    held (flock) as long as the cluster's keeper lives
    keys                    the cluster's CURVE keys, 0600
    cluster.json            what it is: tasks, addresses, versions
    keeper.sock             where the keeper is reached
    security/, log/         ipyparallel's connection files, standard cluster file and logs
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.home import home
from nbdist.runtime.task import segment_prefix
from nbdist.wire.keys import private_folder, read_private
from nbdist.wire.shm import remove_all

VALID_ID = re.compile(r"[A-Za-z0-9_]{1,48}")


def clusters_folder() -> Path:
    """Return the folder of all clusters of this user (0700)."""
    return private_folder(home() / "clusters")


def new_id() -> str:
    """Return a fresh cluster id, sortable by time."""
    return f"{time.strftime('%Y%m%d_%H%M%S')}_{secrets.token_hex(3)}"


def claim(cluster_id: str) -> tuple[Path, int]:
    """Make a new cluster's folder and take its lock; returns both. The lock passes to the keeper."""
    if not VALID_ID.fullmatch(cluster_id):
        raise InvalidArgumentError(f"a cluster id is 1 to 48 letters, digits and _, not {cluster_id!r}")
    folder = clusters_folder() / cluster_id
    if folder.exists():
        if is_alive(folder):
            raise FailedPreconditionError(
                f"a cluster {cluster_id!r} is up already; attach to it with Cluster.attach({cluster_id!r}), "
                "stop it, or choose another cluster_id"
            )
        remove_traces(folder, cluster_id)
    private_folder(folder)
    draft = folder / ".lock"  # locked before anyone can see it unlocked and take the cluster for dead
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(draft, folder / "lock")
    for name in ("security", "log"):
        private_folder(folder / name)
    return folder, lock


def is_alive(folder: Path) -> bool:
    """Return whether a keeper (or a starter) still holds the folder's lock."""
    try:
        # Only to read: a shared lock needs no more, and who looks on may not be allowed to write.
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        # Without a lock it is being made at this moment, or it is debris.
        with suppress(OSError):
            return time.time() - folder.stat().st_mtime < 5.0
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look do not see each other
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def living() -> list[str]:
    """Return the ids of the clusters that live, oldest first; what dead ones left behind is removed."""
    alive = []
    for folder in sorted(clusters_folder().iterdir(), key=lambda folder: folder.name):
        if is_alive(folder):
            alive.append(folder.name)
        elif VALID_ID.fullmatch(folder.name):
            remove_traces(folder, folder.name)
    return alive


def find(cluster_id: str | None = None) -> Path:
    """Return the folder of a living cluster; without an id, of the one described last."""
    ids = living()
    described = [name for name in ids if (clusters_folder() / name / "cluster.json").exists()]
    if cluster_id is None:
        if not described:
            raise NotFoundError(
                "no cluster is up; start one with %cluster start or nb.start_cluster(workers=2)"
            )
        return max(
            (clusters_folder() / name for name in described),
            key=lambda f: (f / "cluster.json").stat().st_mtime,
        )
    if cluster_id not in described:
        raise NotFoundError(f"no cluster {cluster_id!r} is up; those that are: {described or 'none'}")
    return clusters_folder() / cluster_id


def write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write cluster.json, whole or not at all."""
    write_json(folder / "cluster.json", description)


def read_description(folder: Path) -> dict[str, Any]:
    """Return what cluster.json says; refuses a file that others could have written."""
    description: dict[str, Any] = json.loads(read_private(folder / "cluster.json"))
    return description


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file (0600) by JSON, atomically."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(content, file, indent=1)
    os.replace(draft, path)


def remove_traces(folder: Path, cluster_id: str) -> None:
    """Remove all that a cluster leaves on this host: shared segments, its listing for others, its folder."""
    remove_all(segment_prefix(cluster_id))
    with suppress(OSError, ValueError, KeyError):
        listing = Path(json.loads((folder / "cluster.json").read_text())["listing"])
        if listing.name == f"cluster-{cluster_id}.json":
            listing.unlink()
    shutil.rmtree(folder, ignore_errors=True)
