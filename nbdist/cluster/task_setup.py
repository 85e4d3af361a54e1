"""Functions that a client runs on engines, to make them the tasks of one cluster."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from nbdist.cluster.affinity import CORES_VARIABLE, allowed_cores, format_cores
from nbdist.cluster.resources import MEMORY_VARIABLE
from nbdist.runtime.heap import keep_freed_memory
from nbdist.runtime.server import Server
from nbdist.runtime.session.cluster import add_target
from nbdist.runtime.task import Task, TaskInfo, host_identity, segment_prefix, set_current
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.rpc.server import Caller

_opened: dict[str, Any] = {}


def open_task(
    job: str,
    index: int,
    rank: int,
    device: str,
    keys: dict[str, str],
    host: str = "127.0.0.1",
    cluster_id: str = "local",
    node: str = "",
) -> dict[str, Any]:
    """Start this process's Server and return its TaskInfo as plain values. Runs on an engine.

    ``host`` is the address that the Server listens on, ``node`` the name of the host. Called again (see
    `OpeningCall`), it returns the same.
    """
    if _opened.get("cluster") == cluster_id:
        opened: dict[str, Any] = _opened["info"].to_dict()
        return opened
    keep_freed_memory()
    cluster_keys = ClusterKeys.from_dict(keys)
    server = Server(
        {job: {index: f"{host}:0"}},
        job,
        index,
        keys=cluster_keys,
        host=host,
        devices=("CPU:0", device),
        segment_prefix=segment_prefix(cluster_id),
    )
    limit = os.environ.get(MEMORY_VARIABLE)
    server.sessions.store.limit = int(limit) if limit else None
    info = TaskInfo(
        job, index, rank, host_identity(), os.getpid(), server.address, device, server.incarnation, node,
        format_cores(allowed_cores()) if CORES_VARIABLE in os.environ else "",
    )  # fmt: skip
    _opened.update(cluster=cluster_id, info=info, server=server, keys=cluster_keys)
    return info.to_dict()


def join_roster(roster: list[dict[str, Any]], cluster_id: str) -> str:
    """Make this process the task that `open_task` began, with the roster of all tasks; return its name."""
    infos = tuple(TaskInfo.from_dict(entries) for entries in roster)
    task = Task(_opened["info"], infos, _opened["server"], _opened["keys"], cluster_id=cluster_id)
    _apply_roster(task)
    task.server.on("task.roster", partial(_receive_roster, task))
    set_current(task)
    return task.name


def _receive_roster(task: Task, frame: Frame, sender: Caller) -> Frame:
    """Use the roster of a membership change. Runs on the Server's thread."""
    task.update_roster(tuple(TaskInfo.from_dict(entries) for entries in frame.meta["tasks"]))
    _apply_roster(task)
    return Frame("task.roster_applied")


def _apply_roster(task: Task) -> None:
    task.server.cluster = task.cluster
    for info in task.roster:  # a body may open a session on any of them
        add_target(f"nbdist://{info.address}", task.keys)
    os.environ["TF_CONFIG"] = task.cluster.to_tf_config(task.job, task.index)


def run_source(source: str) -> Any:
    """Run code in the engine's namespace; return its last expression, or its repr if it cannot be pickled."""
    import pickle

    from IPython import get_ipython

    shell = get_ipython()
    result = shell.run_cell(source, store_history=False)
    result.raise_error()
    try:
        pickle.dumps(result.result)  # as ipyparallel will, to send it through its own channel
    except Exception:  # whatever an object's own __reduce__ raises
        return repr(result.result)
    return result.result
