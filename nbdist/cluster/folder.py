"""A cluster's folder: its keys, its description and its logs; and which clusters are running.

<NBDIST_HOME>/clusters/<id>/
    lock                    held (flock) while the cluster's supervisor lives
    keys                    the cluster's CURVE keys, 0600
    cluster.json            its description: tasks, addresses, versions, owner (`description`)
    supervisor.sock         the supervisor's socket
    security/, log/         ipyparallel's connection files, standard cluster file and logs
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.home import checked, home
from nbdist.json_values import mapping, number, whole
from nbdist.runtime.task import MOST_PID, segment_prefix
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import secret_folder, write_private
from nbdist.wire.shm import remove_all

VALID_ID = re.compile(r"[A-Za-z0-9_]{1,48}")


def host_folder(cluster_id: str, host: str) -> tuple[Path, int]:
    """Create the folder of a cluster's supervisor on another host than the client's, and take its lock.

    Returns both. ``host`` is the host's name; hosts may share a disk. Raises FailedPreconditionError if one
    of that cluster and name is there.
    """
    folder = hosts_folder() / f"{cluster_id}@{re.sub(r'[^A-Za-z0-9_.-]', '_', host)[:64]}"
    if folder.exists():
        raise FailedPreconditionError(
            f"host {host} has a supervisor of cluster {cluster_id} already; a cluster has one on each host"
        )
    return folder, _create(folder)


def hosts_folder() -> Path:
    """Return the folder of this host's supervisors of clusters whose head is elsewhere (0700)."""
    return checked(home() / "hosts", secret_folder)


def clusters_folder() -> Path:
    """Return the folder of all clusters of this user (0700)."""
    return checked(home() / "clusters", secret_folder)


def new_id() -> str:
    """Return a fresh cluster id, sortable by time."""
    return f"{time.strftime('%Y%m%d_%H%M%S')}_{secrets.token_hex(3)}"


def claim(cluster_id: str) -> tuple[Path, int]:
    """Create a new cluster's folder and take its lock; return both. The supervisor inherits the lock.

    Raises InvalidArgumentError for an invalid id, FailedPreconditionError if a cluster of that id is running.
    Removes what killed clusters have left, their shared memory too: their supervisors could not.
    """
    if not isinstance(cluster_id, str) or not VALID_ID.fullmatch(cluster_id):
        raise InvalidArgumentError(f"a cluster id is 1 to 48 letters, digits and _, not {cluster_id!r:.80}")
    alive = living()
    folder = clusters_folder() / cluster_id
    if folder.exists():
        if cluster_id in alive:
            raise FailedPreconditionError(
                f"a cluster {cluster_id!r} is up already; attach to it with Cluster.attach({cluster_id!r}), "
                "stop it, or choose another cluster_id"
            )
        remove_traces(folder, cluster_id)
    return folder, _create(folder)


def _create(folder: Path) -> int:
    """Create a folder, and return its lock, which is held."""
    secret_folder(folder)
    # Locked before it has its name: others take an unlocked folder for a dead cluster.
    draft = folder / ".lock"
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(draft, folder / "lock")
    for name in ("security", "log"):
        secret_folder(folder / name)
    return lock


def is_alive(folder: Path) -> bool:
    """Return whether a supervisor (or a starting client) holds the folder's lock.

    A cluster whose lock cannot be looked at, as by a process without a free descriptor, counts as alive: what
    is dead is removed.
    """
    try:
        # Read-only: a shared lock needs no more, and a sandboxed observer may not be allowed to write.
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return True
        # Without a lock it is being created at this moment, or a dead cluster left it.
        with suppress(OSError):
            return time.time() - folder.stat().st_mtime < 5.0
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two observers do not block each other
    except OSError:  # another process has locked it, or the file system has no locks to give
        return True
    finally:
        os.close(lock)
    return False


def living() -> list[str]:
    """Return the ids of the running clusters, the oldest first; remove what dead clusters left behind."""
    alive = []
    for folder in sorted(clusters_folder().iterdir(), key=lambda folder: folder.name):
        if is_alive(folder):
            alive.append(folder.name)
        elif VALID_ID.fullmatch(folder.name):
            remove_traces(folder, folder.name)
    return alive


def find(cluster_id: str | None = None) -> Path:
    """Return the folder of a running cluster; without an id, of the one that was started or changed last.

    Raises NotFoundError if there is none.
    """
    ids = living()
    described = [name for name in ids if (clusters_folder() / name / "cluster.json").exists()]
    if cluster_id is None:
        if not described:
            raise NotFoundError(
                "no cluster is running; start one with %cluster start or nb.start_cluster(workers=2)"
            )
        return max(
            (clusters_folder() / name for name in described),
            key=lambda f: (f / "cluster.json").stat().st_mtime,
        )
    if cluster_id not in described:
        raise NotFoundError(f"no cluster {cluster_id!r} is running; running clusters: {described or 'none'}")
    return clusters_folder() / cluster_id


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file (0600) by JSON, atomically."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_private(draft, json.dumps(content, indent=1).encode())
    os.replace(draft, path)


def remove_traces(folder: Path, cluster_id: str) -> None:
    """Remove what a cluster leaves on this host: shared segments, ipyparallel's file, its folder."""
    remove_all(segment_prefix(cluster_id))
    with suppress(OSError, ValueError, KeyError):
        listing = Path(json.loads((folder / "cluster.json").read_text())["listing"])
        if listing.name == f"cluster-{cluster_id}.json":
            listing.unlink()
    shutil.rmtree(folder, ignore_errors=True)


# The owner of a cluster or a run: a process, and the notebook that it runs.

SAME_SECONDS = 0.05  # start times of one process, read twice, may differ by a tick of its clock


def this_process() -> dict[str, Any]:
    """Return the identity of this process: host, pid, start time, and its notebook ("" for none)."""
    return {**_process(os.getpid()), "session": os.environ.get("JPY_SESSION_NAME", "")}


def owner_in(value: object) -> Mapping[str, Any]:
    """Return the process in a file, {} if the value is not one. Never raises.

    >>> owner_in({"host": "here", "pid": 7, "started": 2.5})["pid"], owner_in({"pid": 7}), owner_in(3)
    (7, {}, {})
    """
    found = mapping(value)
    valid = whole(found.get("pid"), MOST_PID) and number(found.get("started")) is not None
    return found if valid and isinstance(found.get("host"), str) else {}


def is_process_alive(owner: Mapping[str, Any]) -> bool:
    """Return whether a process may be alive; a process of another host counts as alive.

    >>> is_process_alive(this_process()), is_process_alive({**this_process(), "started": 1.0})
    (True, False)
    """
    if not owner or owner.get("host") != host_identity():
        return True
    started = _started(int(owner["pid"]))
    return started is not None and abs(started - float(owner["started"])) < SAME_SECONDS


def is_this_process(owner: Mapping[str, Any]) -> bool:
    """Return whether an owner is this process."""
    return bool(owner) and owner.get("pid") == os.getpid() and is_process_alive(owner)


def describe_process(process: Mapping[str, Any]) -> str:
    """Return the name of a process for messages: its notebook, if any, and its id.

    >>> describe_process({"pid": 7, "session": "/home/ann/digits.ipynb"}), describe_process({"pid": 7})
    ('notebook digits.ipynb (pid 7)', 'process 7')
    """
    name = os.path.basename(str(process.get("session", "")))
    return f"notebook {name} (pid {process.get('pid')})" if name else f"process {process.get('pid')}"


def describe_this_process() -> str:
    """Return the name of this process for the clients of a cluster that it stops: its notebook or its id."""
    return describe_process({"pid": os.getpid(), "session": os.environ.get("JPY_SESSION_NAME", "")})


@cache
def _process(pid: int) -> dict[str, Any]:
    return {"host": host_identity(), "pid": pid, "started": _started(pid)}


def _started(pid: int) -> float | None:
    import psutil  # here, since engines need none of this

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


# Which tasks work on a run: one small file per rank in the cluster's folder. The engines write and remove
# them, and the supervisor removes those of processes that have ended; the head's supervisor writes them for
# the tasks of other hosts. Later clients read them, so no message has to reach a busy engine. This section
# uses the standard library only, because the supervisor imports it.

FOLDER = "busy"
FOLDER_VARIABLE, RANK_VARIABLE = "NBDIST_CLUSTER_FOLDER", "NBDIST_RANK"  # in an engine's environment


def folder_of_task(cluster_id: str) -> Path:
    """Return the folder of a task's cluster on the task's host. Runs on a task."""
    return Path(os.environ.get(FOLDER_VARIABLE) or clusters_folder() / cluster_id)


@contextmanager
def busy_with(run: str) -> Iterator[None]:
    """Inside a ``with``, mark this process, if it is an engine, as working on a run."""
    folder, rank = os.environ.get(FOLDER_VARIABLE), os.environ.get(RANK_VARIABLE)
    if not folder or not rank:
        yield
        return
    try:
        mark_busy(Path(folder), int(rank), run)
        yield
    finally:
        unmark_busy(Path(folder), int(rank))


def mark_busy(cluster: Path, rank: int, run: str) -> None:
    """Write that a task works on a run, if the cluster's folder exists; a full disk never stops a body."""
    path = cluster / FOLDER / str(rank)
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = path.with_name(f".{rank}")  # its name appears with its content: others poll the folder
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(run)
        os.replace(draft, path)


def unmark_busy(cluster: Path, rank: int) -> None:
    """Remove the mark of a task that works on no run any more."""
    with suppress(OSError):
        (cluster / FOLDER / str(rank)).unlink()


def busy_tasks(cluster: Path) -> dict[int, str]:
    """Return the run that each busy task works on, by rank."""
    found: dict[int, str] = {}
    with suppress(OSError):
        for path in sorted((cluster / FOLDER).iterdir()):
            with suppress(OSError, ValueError):  # also text that is not UTF-8
                if run := path.read_text():
                    found[int(path.name)] = run
    return found


def runs_on(cluster: Path) -> list[str]:
    """Return the runs that the tasks of a cluster work on."""
    return list(dict.fromkeys(run for _, run in sorted(busy_tasks(cluster).items())))


def is_busy(cluster: Path) -> bool:
    """Return whether any task works on a run."""
    return bool(busy_tasks(cluster))
