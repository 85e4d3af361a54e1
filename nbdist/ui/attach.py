"""nb.attach: a run that another kernel has started, here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.runs.attach import attach_run
from nbdist.runs.following import View
from nbdist.runs.run import Run
from nbdist.trials.folder import is_sweep, sweeps
from nbdist.ui.background import follow_in_background
from nbdist.ui.leaving import leaving
from nbdist.ui.showing import show
from nbdist.ui.sweeplaunch import attach_to_sweep
from nbdist.ui.timelineview import TimelineView
from nbdist.ui.view import PrintedView, RunView


def attach(run_id: str | None = None, *, trial: Callable[..., Any] | None = None) -> Any:
    """Return a run, or a sweep, by its id, with every point, its output so far, its controls and its result.

    Without an id it is the latest run that still goes on, else the latest. A run that goes on is shown live
    and followed while the notebook does other things; ``run.wait()`` waits for its end (in a script that is
    the only way to follow it), ``run.stop()`` stops it, and at its end ``run.model``, ``run.history`` and
    ``run.results`` are there. One that is over is there at once; of a run whose results went home to another
    notebook that is its history, and its model too while the cluster has begun no other run.

    A sweep comes back with all its trials, from its log; it goes on if it has work left: trials that engines
    still run are adopted, others are tried again. ``trial`` is its function, where the trial was one.

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
    if run_id is not None and is_sweep(run_id):
        return attach_to_sweep(run_id, trial)
    if trial is not None:
        raise InvalidArgumentError(f"trial= belongs to a sweep, and there is none called {run_id!r}")
    try:
        run = attach_run(run_id, make_view=_view)
    except NotFoundError as error:
        if run_id is None or not sweeps():
            raise
        raise NotFoundError(f"{error}; it is no sweep either: nb.sweeps() lists those") from None
    run.timeline_type, run.shown_by, run.leaving = TimelineView, show, leaving
    if run.over:
        for note in run.untold():
            print(note)
    else:
        follow_in_background(run)
    return run


def _view(run: Run) -> View:
    return RunView(run) if run.options.show else PrintedView(run)
