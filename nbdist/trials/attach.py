"""Takes over a sweep whose kernel is gone, or opens one that is over: everything comes from its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import living, this_process
from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.runs.start import any_cluster
from nbdist.sweep.eventlog import EventLog
from nbdist.sweep.ledger import Ledger
from nbdist.trials.folder import LOG, read_about, sweep_folder, write_about
from nbdist.trials.record import Record
from nbdist.trials.start import check_trial, held, keep, order_of, source_of
from nbdist.trials.sweep import Sweep


def attach_sweep(
    sweep: str,
    *,
    trial: Callable[..., Any] | None = None,
    push: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
    report: Callable[[str], object] = print,
) -> Sweep:
    """Return a sweep by its id, with all its trials; it goes on if it has work left.

    Trials that engines still run are adopted, those that nobody runs any more are tried once again, and none
    runs twice. Where its cluster is gone it goes on with another. ``trial`` is the function, where the trial
    was one, and ``push`` are the values that its trials use of the notebook, where some were pushed. Raises
    FailedPreconditionError while another process drives it, or if it has work left and lacks one of these.
    """
    folder = sweep_folder(sweep)
    about = read_about(folder)
    if trial is not None:
        check_trial(trial)
    if (mine := held(sweep)) is not None:
        if mine.driven or mine.error is None:
            return mine
        mine.leave()
    log = EventLog.reopen(folder / LOG)
    try:
        ledger = Ledger.of(log.found.events)
        if complaint := log.found.complaint():
            report(f"{folder / LOG}: {complaint}")
        body: Any = trial if about["function"] else ledger.created.body
        if about["function"] and trial is not None and source_of(trial) != ledger.created.body:
            report(f"the function is not what sweep {sweep} began with: trials from here on run this one")
        record = Record(folder, log, ledger, cluster or its_cluster(about["cluster"]))
        if record.goes_on:
            with suppress(OSError):  # it only says whose it is, to those who look
                write_about(folder, {**about, "owner": this_process()})
        if record.goes_on:
            record.cluster = record.cluster or any_cluster(report)
        same = record.cluster is not None and record.cluster.id == about["cluster"]
        everyone = not same or bool(about.get("everyone"))
        ranks = None if everyone else list(about["ranks"])
        found = Sweep(
            record, order_of(folder, about, ledger.created.metric), body, ranks, about["name"],
            taken_over=True, everyone=everyone, push=pushed_again(sweep, push, about.get("push", ())),
            pushes=about.get("push", ()),
        )  # fmt: skip
        found.begin()
    except BaseException:
        log.close()
        raise
    keep(found)
    return found


def pushed_again(
    sweep: str, push: Mapping[str, Any] | None, names: Sequence[str]
) -> Mapping[str, Any] | None:
    """Return the pushed values for trials; raises InvalidArgumentError unless the names are the sweep's."""
    if push is not None and set(push) != set(names):
        wanted = ", ".join(names) or "none"
        raise InvalidArgumentError(
            f"sweep {sweep} was started with pushed values {wanted}, and push has {', '.join(push) or 'none'}"
        )
    return push


def its_cluster(name: str) -> Cluster | None:
    """Return the cluster that a sweep ran on, if it lives."""
    try:
        current = Cluster.current()
        if current.id == name:
            return current
    except NotFoundError:
        pass
    if name not in living():
        return None
    cluster = Cluster.attach(name)
    cluster.own()
    return cluster
