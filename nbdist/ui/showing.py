"""What ``run.show()`` does: the live view once more, where it is called."""

from __future__ import annotations

from nbdist.runs.run import Run
from nbdist.ui.view import RunView


def show(run: Run) -> None:
    """Show a run in this cell: the same view while it goes on, afterwards one of its own.

    The view of a run that is over has all its curves, to zoom in, smooth and compare; it lives as long as
    the page does, and is not saved with the notebook: the frozen picture below the run's own cell is.
    """
    view = run.view
    if isinstance(view, RunView):
        view.show_again(run)
        return
    view = RunView(run, display=not run.over)  # there was none, as with --no-live
    if run.over:
        view.show_again(run)
    else:
        run.show_in(view)
