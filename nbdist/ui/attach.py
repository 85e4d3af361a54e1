"""nb.attach: opens a run or a sweep of another kernel in this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from IPython.core.getipython import get_ipython
from psutil import pid_exists

from nbdist.cluster.folder import FOLDER, clusters_folder, living, runs_on
from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.runs.attach import attach_run
from nbdist.runs.follow import View
from nbdist.runs.history import is_under_way, runs
from nbdist.runs.run import Run
from nbdist.trials.store import driven_by_another, is_sweep, sweeps
from nbdist.ui.background import follow_in_background
from nbdist.ui.leaving import leaving
from nbdist.ui.showing import show
from nbdist.ui.sweeplaunch import attach_to_sweep
from nbdist.ui.timelineview import TimelineView
from nbdist.ui.view import PrintedView, RunView


def attach(
    run_id: str | None = None,
    *,
    trial: Callable[..., Any] | None = None,
    push: Mapping[str, Any] | None = None,
) -> Any:
    """Return a run, or a sweep, by its id, with every point, its output so far, its controls and its result.

    Without an id it returns the newest run or sweep that is under way, and prints the ids of the others; if
    none is under way, it returns the latest run. It skips a sweep that another living process drives, and
    prints its id.

    A run that is under way is shown live and followed in the background;
    ``run.wait()`` waits for its end, ``run.stop()`` stops it, and at its end ``run.model``, ``run.history``
    and ``run.results`` are available, and `model`, `history` and the rest in the notebook, as after a cell.
    A run that has ended is available at once. If another notebook has fetched its results, only the history
    is available, and the model until the cluster begins another run.

    A sweep is restored from its log with all its trials, and continues if it has work left: trials that
    engines still run are adopted, others are retried. ``trial`` is its function, if the trial was one;
    ``push`` has its pushed values by name, if it was started with --push or push=.

    Raises NotFoundError for an unknown id, FailedPreconditionError where the run's cluster has another
    version of nbdist, or where the run is ``--replication in-graph`` and another living process drives it::

        run = nb.attach("261120-091512-mnist")
        run.wait().model
    """
    if run_id is not None and not isinstance(run_id, str):
        raise InvalidArgumentError(
            f"nb.attach takes the id of a run or a sweep as text, got {run_id!r:.80}: for one of nb.runs() "
            "write nb.attach(one.id)"
        )
    if run_id is None and (found := _free(under_way())):
        run_id, *others = found
        if others:
            print(
                f"attached to {run_id}; also under way: {', '.join(others)} (nb.attach(id) attaches to one)"
            )
    if run_id is not None and is_sweep(run_id):
        return attach_to_sweep(run_id, trial, push)
    if trial is not None or push is not None:
        raise InvalidArgumentError(f"trial= and push= are for a sweep, and no sweep has the id {run_id!r}")
    try:
        run = attach_run(run_id, make_view=_view)
    except NotFoundError as error:
        if run_id is None or not sweeps():
            raise
        raise NotFoundError(f"{error}; it is no sweep either: nb.sweeps() lists those") from None
    run.timeline_type, run.shown_by, run.leaving = TimelineView, show, leaving
    if run.over:
        _into_notebook(run)
        for note in run.untold():
            print(note)
    else:
        run.deliver = _into_notebook
        follow_in_background(run)
    return run


def under_way() -> list[str]:
    """Return the ids of the runs and sweeps that are under way on living clusters, the newest first."""
    going = {
        run.id
        for run in runs()
        if run.kind == "run" and run.options.get("replication") != "in-graph" and is_under_way(run)
    }
    for name in living():
        folder = clusters_folder() / name
        with suppress(OSError):
            pids = [int(path.name) for path in (folder / FOLDER).iterdir() if path.name.isdigit()]
            going.update(one for one in runs_on(folder, list(filter(pid_exists, pids))) if is_sweep(one))
    return sorted(going, reverse=True)  # ids begin with their time


def _free(found: list[str]) -> list[str]:
    """Return the ids without sweeps that another process drives; print the ids of these."""
    free = []
    for one in found:
        driver = driven_by_another(one) if is_sweep(one) else None
        if driver is None:
            free.append(one)
        else:
            print(f"sweep {one} is under way in {driver}, which drives it: follow it there")
    return free


def _into_notebook(run: Run) -> None:
    """Put the results of a run into the notebook, as its own cell would; not in a script."""
    shell = get_ipython()
    if shell is not None:
        shell.user_ns.update(run.results)


def _view(run: Run) -> View:
    return RunView(run) if run.options.show else PrintedView(run)
