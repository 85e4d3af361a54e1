"""Stopping a cluster: what its runs wrote on other hosts is copied first.

    nb.stop_cluster()                            # this process's cluster
    end_cluster("20261130_101500_4c1e77", why)   # one that this process is not connected to

A cluster that ends by itself copies, too (`nbdist.cluster.supervisor.copies`).
"""

from __future__ import annotations

from contextlib import suppress

from nbdist.cluster.adopt import end
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.description import read_description
from nbdist.cluster.folder import clusters_folder
from nbdist.errors import NbdistError
from nbdist.run.files.left import copy_all, copy_ended
from nbdist.run.start import prepare


def stop_cluster(cluster: Cluster | None = None, *, force: bool = False) -> None:
    """Stop a cluster: ``cluster``, or the one that this process started or attached to last.

    What runs that have ended wrote on other hosts, and no client has copied yet, is copied first; what is
    missing then is printed. Raises NotFoundError if there is no cluster, and FailedPreconditionError for one
    that another process has started and uses, unless ``force`` is set; see `Cluster.stop`.

        nb.start_cluster(workers=2)
        nb.stop_cluster()
    """
    cluster = cluster or Cluster.current()
    if not cluster.stopped and any(info.node for info in cluster.tasks):
        for sentence in copy_ended(cluster, prepare):
            print(sentence)
    cluster.stop(force=force)


def end_cluster(cluster_id: str, by: str) -> list[str]:
    """End a cluster that this process is not connected to; its clients receive ``by`` as the reason.

    Returns sentences about files on other hosts that could not be copied. Raises UnavailableError for a
    cluster that lives and cannot be reached.
    """
    folder, missing = clusters_folder() / cluster_id, list[str]()
    with suppress(NbdistError, OSError):  # it ends at this moment, or is frozen
        description = read_description(folder)
        if not description.tunnel and any(info.node for info in description.tasks):
            missing = copy_all(folder)
    end(folder, by)
    return missing
