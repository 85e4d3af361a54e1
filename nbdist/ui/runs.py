"""``nb.runs()``: the runs of this user, of another machine's folder, or of a zip file.

nb.runs("mnist", status="finished")
nb.runs("/data/from-the-cluster")
nb.runs("digits.zip")[:3].compare(by="epoch")
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nbdist.errors import InvalidArgumentError
from nbdist.run.history import MOST_SHOWN, RunList
from nbdist.run.history import runs as listed_runs
from nbdist.ui.compare.comparison import Comparison, compare
from nbdist.ui.compare.curves import By

PLACES = ("/", "./", "../", "~")  # how a text begins that names a folder; other texts are words to find


class Runs(RunList):
    """The runs of ``nb.runs()``: a list, which can be sliced and compared."""

    def compare(self, *, by: By = "step", metrics: Iterable[str] | None = None) -> Comparison:
        """Show all runs of this list beside each other, as `nbdist.compare` does.

        - ``by``: "step", "epoch" or "time"
        - ``metrics``: names of the curves; None chooses them as the live view does

        Raises InvalidArgumentError unless there are two to eight of them: ``nb.runs("mnist")[:8].compare()``.
        """
        return compare(*self, by=by, metrics=metrics)


def runs(
    find: str | Path | None = None,
    *,
    status: str | None = None,
    tag: str | None = None,
    trained: bool | None = None,
    folder: str | Path | None = None,
) -> Runs:
    """Return the runs of this user, the newest first; a damaged one has status "damaged" and the error.

    - ``find``: words of the id, the name, the tags or the note, in any order and case; None for all. A path,
      or a text that begins with "/", "./", "../" or "~" or ends in ".zip", is ``folder``
    - ``status``: "preparing", "running", "paused", "finished", "failed", "stopped" or "damaged"; None for all
    - ``tag``: only runs that have this tag; None for all
    - ``trained``: True for runs that train or log metrics, False for plain cells, None for both
    - ``folder``: the runs of another machine: an NBDIST_HOME, a folder of run folders or that of one run,
      as rsync has copied it, or a zip file of ``run.export``; None for the runs in this NBDIST_HOME

    The result is a list: ``nb.runs()[:3].compare()`` shows runs beside each other. The runs of another
    machine are records: they can be compared, exported and read (``run.metrics()``), not attached to. Those
    of a zip file are unpacked into a private folder until this process ends, and cannot be renamed.

    A run with ``--tensorboard`` has its events in its folder: ``tensorboard --logdir <folder>/tensorboard``,
    or with the folder of all runs, to compare them.

    Raises InvalidArgumentError for another status, and for a zip file with names that lead out of it or with
    links; NotFoundError for a folder that is not there or has no runs, ResourceExhaustedError for a zip file
    of more than 2 GiB or 20,000 files, DataLossError for a damaged one.

    Example::

        nb.runs("mnist async", status="finished", trained=True)
    """
    if isinstance(find, Path) or (isinstance(find, str) and is_place(find)):
        if folder is not None:
            raise InvalidArgumentError(
                f"nb.runs takes one folder: got {str(find)!r:.200} and folder={folder!r:.200}"
            )
        find, folder = None, find
    if find is not None and not isinstance(find, str):
        raise InvalidArgumentError(f"nb.runs takes words to find as text, or a path, not {find!r:.80}")
    found = listed_runs(find, status=status, tag=tag, trained=trained, folder=folder)
    shown = Runs(found)
    shown.none = found.none
    if folder is not None:
        shown.opens = "[:3].compare() shows three of them beside each other"
        shown.older = f"[{MOST_SHOWN}:] has them"
    return shown


def is_place(text: str) -> bool:
    """Return whether a text names a folder or a zip file, and not words to find.

    >>> is_place("digits.zip"), is_place("~/runs"), is_place("mnist async"), is_place("lr 0.1")
    (True, True, False, False)
    """
    return text.startswith(PLACES) or text.endswith(".zip") or text in (".", "..")
