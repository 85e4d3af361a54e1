"""nb.attach: a run that another kernel has started, here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from IPython.core.getipython import get_ipython
from psutil import pid_exists

from nbdist.cluster.busy import FOLDER, runs_on
from nbdist.cluster.folder import clusters_folder, living
from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.runs.attach import attach_run
from nbdist.runs.following import View
from nbdist.runs.history import is_under_way, runs
from nbdist.runs.run import Run
from nbdist.trials.folder import driven_by_another, is_sweep, sweeps
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

    Without an id it is the newest run or sweep that is under way, and the others are named; if none is, the
    latest run. A sweep that another living process drives is named and left to it.

    A run that is under way is shown live and followed while the notebook does other things;
    ``run.wait()`` waits for its end, ``run.stop()`` stops it, and at its end ``run.model``, ``run.history``
    and ``run.results`` are there, and `model`, `history` and the rest in the notebook, as after a cell. One
    that is over is there at once; of a run whose results went home to another notebook that is its history,
    and its model too while the cluster has begun no other run.

    A sweep comes back with all its trials, from its log; it goes on if it has work left: trials that engines
    still run are adopted, others are tried again. ``trial`` is its function, where the trial was one;
    ``push`` has its pushed values by name, where it was started with --push or push=.

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
        raise InvalidArgumentError(f"trial= and push= belong to a sweep, and there is none called {run_id!r}")
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
    """Return the ids without those of sweeps that another process drives, which are named."""
    free = []
    for one in found:
        driver = driven_by_another(one) if is_sweep(one) else None
        if driver is None:
            free.append(one)
        else:
            print(f"sweep {one} is under way in {driver}, which drives it: follow it there")
    return free


def _into_notebook(run: Run) -> None:
    """Put what came home from a run into the notebook, as its own cell would; not in a script."""
    shell = get_ipython()
    if shell is not None:
        shell.user_ns.update(run.results)


def _view(run: Run) -> View:
    return RunView(run) if run.options.show else PrintedView(run)
