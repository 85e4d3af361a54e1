"""nb.attach: a run that another kernel has started, here."""

from __future__ import annotations

from nbdist.runs.attach import attach_run
from nbdist.runs.following import View
from nbdist.runs.run import Run
from nbdist.ui.background import follow_in_background
from nbdist.ui.leaving import leaving
from nbdist.ui.showing import show
from nbdist.ui.timelineview import TimelineView
from nbdist.ui.view import PrintedView, RunView


def attach(run_id: str | None = None) -> Run:
    """Return a run by its id, with every point, what it has printed so far, its controls and its result.

    Without an id it is the latest run that still goes on, else the latest. A run that goes on is shown live
    and followed while the notebook does other things; ``run.wait()`` waits for its end (in a script that is
    the only way to follow it), ``run.stop()`` stops it, and at its end ``run.model``, ``run.history`` and
    ``run.results`` are there. One that is over is there at once; of a run whose results went home to another
    notebook that is its history, and its model too while the cluster has begun no other run.

    Raises NotFoundError for an unknown id, FailedPreconditionError where the run's cluster has another
    version of nbdist, or where the run is ``--replication in-graph`` and another living process drives it::

        run = nb.attach("261120-091512-mnist")
        run.wait().model
    """
    run = attach_run(run_id, make_view=_view)
    run.timeline_type, run.shown_by, run.leaving = TimelineView, show, leaving
    if run.over:
        for note in run.untold():
            print(note)
    else:
        follow_in_background(run)
    return run


def _view(run: Run) -> View:
    return RunView(run) if run.options.show else PrintedView(run)
