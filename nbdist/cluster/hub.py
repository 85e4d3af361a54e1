"""Connecting to a cluster's hub, and the check that both sides run the same versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nbdist.cluster.folder import write_json
from nbdist.cluster.supervisor.engine import RECONNECT_MS
from nbdist.cluster.versions import SHARED, shared_part
from nbdist.errors import FailedPreconditionError, UnavailableError
from nbdist.home import own_version
from nbdist.runtime.task import Roster
from nbdist.wire.keys import secret_folder
from nbdist.wire.proxy import keep_open, use_proxy

EXIT_SECONDS = 5.0
"""For the supervisor to say how a process ended whose end the hub has noticed."""


def connect_client(connection: dict[str, Any] | Path, timeout: float, proxy: str = "") -> Any:
    """Return an ipyparallel client of the controller, with a ZeroMQ context of its own.

    ``connection`` is the connection information or the path of its file, ``timeout`` is in seconds,
    ``proxy`` a SOCKS proxy (HOST:PORT) on the way. Raises UnavailableError if the controller does not answer.
    """
    import ipyparallel
    import zmq

    context: zmq.Context[Any] = zmq.Context()
    context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    context.setsockopt(zmq.LINGER, 0)
    if not use_proxy(context, proxy):
        raise UnavailableError("the tunnel to the controller has ended")
    where = connection if isinstance(connection, dict) else str(connection)
    try:
        return ipyparallel.Client(where, context=context, timeout=timeout)
    except TimeoutError:
        if proxy:
            keep_open(context)
        else:
            context.destroy(linger=0)
        raise UnavailableError(f"the controller did not answer within {timeout:.0f} s") from None


def close_client(client: Any) -> None:
    """Close an ipyparallel client and the threads of its context."""
    client.close(linger=0)
    client._context.destroy(linger=0)


def is_engine_death(error: BaseException) -> bool:
    """Return whether the error of a call says that the hub has noticed the end of the engine's process.

    Which of the hub and the supervisor notices it first is a matter of chance; the supervisor says how it
    ended.
    """
    return getattr(error, "ename", type(error).__name__) == "EngineError"


def own_versions() -> dict[str, str]:
    """Return the versions that a client and its cluster must share: nbdist, Python, NumPy, ipyparallel."""
    whole = {"nbdist": own_version(), "python": platform.python_version()}
    return {name: shared_part(name, whole.get(name) or version(name)) for name in SHARED}


def check_versions(theirs: Mapping[str, str]) -> None:
    """Raise FailedPreconditionError with a table if the cluster runs other versions than this process."""
    ours = own_versions()
    if ours != theirs:
        rows = "\n".join(f"  {name:12} {ours[name]:10} {theirs.get(name, '?')}" for name in ours)
        raise FailedPreconditionError(
            "this process and the cluster run different versions; "
            "restart the cluster or use its environment\n"
            f"  {'':12} {'here':10} cluster\n{rows}"
        )


def versions_table(theirs: Mapping[str, Mapping[str, str]]) -> str:
    """Return the versions of hosts, by name, that differ from this process's, as lines; "" without any."""
    ours = own_versions()
    other = {name: versions for name, versions in theirs.items() if versions != ours}
    if not other:
        return ""
    head = "".join(f" {name:14}" for name in ("here", *other))
    rows = "\n".join(
        f"  {name:12}" + "".join(f" {one.get(name, '?'):14}" for one in (ours, *other.values()))
        for name in ours
    )
    return f"\n  {'':12}{head}\n{rows}"


class HubEngines:
    """The engines that are registered at the hub, by polling it without blocking.

    The hub also sends notifications, but they are lost while a client connects. Each answer updates the
    ipyparallel client as well.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._engines: dict[int, str] | None = None
        self._asked = self._ask()

    def ids(self) -> set[int] | None:
        """Return the ids of the hub's last answer and ask again; None before the first answer."""
        if self._asked.done():
            self._asked = self._ask()
        known = dict(self._client._engines)  # the client's IO thread may be one answer ahead
        engines = self._engines
        return None if engines is None else {id for id, uuid in engines.items() if known.get(id) == uuid}

    def wait(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for an answer."""
        self._asked.wait(timeout)

    def _ask(self) -> Any:
        asked = self._client._send(self._client._query_stream, "connection_request")
        asked.add_done_callback(self._take)  # before it counts as done; on the client's IO thread
        return asked

    def _take(self, answered: Any) -> None:
        client = self._client
        engines = {int(id): uuid for id, uuid in answered.result()["content"]["engines"].items()}
        for id, uuid in list(client._engines.items()):
            if engines.get(id) != uuid:
                client._unregister_engine({"content": {"id": id, "uuid": uuid}})
        for id, uuid in engines.items():
            if id not in client._ids:
                client._register_engine({"content": {"id": id, "uuid": uuid}})
        self._engines = engines


# ipyparallel's cluster files, from which its lab panel and `ipyparallel.Cluster.from_file` read our clusters.


def write_ipyparallel_files(folder: Path, controller_pid: int, roster: Roster) -> str:
    """Write ipyparallel's cluster file into the cluster's folder and into the user's IPython profile.

    ipyparallel's panel reads the second one. Returns its path, or "" if the user has no IPython profile. The
    files have no secret.
    """
    description = standard_description(folder, controller_pid, len(roster))
    name = f"cluster-{folder.name}.json"
    write_json(folder / "security" / name, description)
    profile = default_profile()
    if not (profile.is_dir() and os.access(profile, os.W_OK)):
        return ""
    listing = secret_folder(profile / "security") / name
    write_json(listing, description)
    return str(listing)


def default_profile() -> Path:
    """Return the folder of IPython's default profile, from which ipyparallel's panel lists clusters."""
    return Path(os.environ.get("IPYTHONDIR") or Path.home() / ".ipython") / "profile_default"


def standard_description(folder: Path, controller_pid: int, n: int) -> dict[str, Any]:
    """Return the content of a file for `ipyparallel.Cluster.from_file`."""
    launcher = {"profile_dir": str(folder), "cluster_id": folder.name, "state": "running"}
    return {
        "cluster": {
            "class": "ipyparallel.cluster.cluster.Cluster",
            "cluster_id": folder.name,
            "profile_dir": str(folder),
            "controller_args": [],
            "controller_ip": "",
            "controller_location": "",
            "delay": 0.0,
            "n": n,
        },
        "controller": {
            "class": "local",
            "state": {
                **launcher,
                "pid": controller_pid,
                "output_file": str(folder / "log" / "controller.log"),
            },
        },
        "engines": {
            "class": "nbdist.cluster.ipyparallel_launcher.LocalTaskLauncher",
            "sets": {folder.name: {**launcher, "n": n, "supervisor_folder": str(folder)}},
        },
    }
