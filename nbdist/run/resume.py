"""`resume_run`: starts a run again, from the body, the inputs, the options and the states in its folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from nbdist.cluster.adopt import adopt
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import living
from nbdist.cluster.launch import start_cluster
from nbdist.errors import FailedPreconditionError, NbdistError, NotFoundError
from nbdist.metrics.run_folder import RunFile, run_folder
from nbdist.run.attach import members_of, options_of
from nbdist.run.follow import View
from nbdist.run.options import Options, parse_on
from nbdist.run.resumable import read_body, resumable_run
from nbdist.run.run import Run
from nbdist.run.start import start_run

Report = Callable[[str], object]


def resume_run(
    run_id: str,
    *,
    cluster: Cluster | None = None,
    make_view: Callable[[Run], View] | None = None,
    report: Report = print,
    detached: bool = False,
) -> Run:
    """Start a run that has ended without finishing again, as a new run that continues its newest state.

    - ``run_id``: the run's id
    - ``cluster``: where to run it; None takes this process's cluster, else the run's own if it is up, else a
      new one of the same size, which is ``detached`` if it is to outlive this process. Its dead tasks are
      restarted
    - ``make_view``: returns the view that shows the new run; None for no view
    - ``report``: receives the lines about a cluster that starts

    The caller follows the new run, which is in the background. Raises NotFoundError for an unknown id,
    FailedPreconditionError if the run is under way, has finished, has no state, or its body was not recorded.
    """
    record, _ = resumable_run(run_id)
    if record.status == "finished":
        raise FailedPreconditionError(
            f"run {run_id} has finished: there is nothing to resume. To train on, run its cell with "
            f"%%distribute --resume {run_id} and more epochs"
        )
    recorded = read_body(run_folder(run_id))
    cluster = cluster or cluster_for(record, report, detached)
    if cluster.dead():
        cluster.restart(report=report)
    return start_run(
        recorded.body, options_for(record, cluster), cluster=cluster, make_view=make_view, report=report,
        given=recorded.given, first_line=recorded.first_line,
    )  # fmt: skip


def options_for(record: RunFile, cluster: Cluster) -> Options:
    """Return the options of a run for its continuation on a cluster, which may have other tasks."""
    options = replace(options_of(record), resume=record.id, seed=record.seed, background=True)
    if options.on is not None:
        job, wanted = parse_on(options.on)
        there = {info.index for info in cluster.tasks if info.job == job}
        if wanted is not None and not there.issuperset(wanted):
            options = replace(options, on=job)
    return options


def cluster_for(record: RunFile, report: Report = print, detached: bool = False) -> Cluster:
    """Return a cluster to continue a run on: this process's, the run's own, or a new one of the same size."""
    with suppress(NotFoundError):
        current = Cluster.current()
        ended = current.controller_died()
        if not ended and len(current.dead()) < len(current.tasks):
            return current
        report(f"cluster {current.id} has ended: {ended or 'all of its tasks have died'}")
        current.stop()
    members = members_of(record)
    name, known = record.cluster.get("id"), {info.incarnation for info in members}
    if name in living():
        with suppress(NbdistError):  # it runs other versions, or ends at this moment
            found = Cluster.attach(str(name))
            if any(info.incarnation in known for info in found.tasks):
                return found
            found.close()
    left = None if detached else adopt(None, report)
    if left is not None:
        return left
    workers = sum(info.job == "worker" for info in members) or 1
    servers = sum(info.job == "ps" for info in members)
    report(f"starting a cluster like that of run {record.id}, with {workers} workers and {servers} ps")
    return start_cluster(workers=workers, ps=servers, detached=detached, report=report)
