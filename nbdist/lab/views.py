"""What is read for the page, each by whoever knows how: the one place where all of it meets.

The server starts without any of it: it is imported when a page asks for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nbdist.lab.state import Lister, TaskLister

Details = Callable[[str], dict[str, Any]]


@dataclass(frozen=True)
class Views:
    """The readers of everything that a page shows. All run on threads, one look at a time."""

    about: Callable[[], dict[str, Any]]
    clusters: Lister
    tasks: TaskLister
    runs: Lister
    sweeps: Lister
    run_details: Details
    run_bundle: Details
    sweep_details: Details
    sweep_bundle: Details
    open_file: Callable[[str, str], tuple[BinaryIO, int]]
    label: Callable[[str, Mapping[str, Any]], object]
    """Changes the name, the tags or the note of a run."""
    delete: Callable[[str], int]
    """Deletes a run and returns the bytes that it took."""
    clean: Callable[[str | None, int | None, bool], dict[str, Any]]
    """Deletes the runs older than an age, or beside the newest so many; or only shows them."""


def real_views(root: Path | None = None) -> Views:
    """Return those that read this user's own folders; ``root`` is where Jupyter's file browser begins."""
    from nbdist.lab.about import about
    from nbdist.lab.clusters import Clusters
    from nbdist.lab.files import open_file
    from nbdist.lab.rundetails import run_bundle, run_details
    from nbdist.lab.runs import Runs
    from nbdist.lab.sweepdetails import sweep_bundle, sweep_details
    from nbdist.lab.sweeps import Sweeps
    from nbdist.lab.tasks import Tasks
    from nbdist.runs.history import clean, delete_run, write_labels

    def cleaned(older_than: str | None, keep: int | None, dry_run: bool) -> dict[str, Any]:
        found = clean(older_than, keep, dry_run)
        return {"runs": list(found), "bytes": found.bytes, "under_way": found.under_way}

    runs, sweeps = Runs(root), Sweeps()
    clusters = Clusters(runs.on_cluster)
    return Views(
        about, clusters, Tasks(runs, clusters), runs, sweeps,
        lambda run: run_details(run, runs), lambda run: run_bundle(run, runs),
        lambda sweep: sweep_details(sweep, sweeps), lambda sweep: sweep_bundle(sweep, sweeps), open_file,
        lambda run, labels: write_labels(run, **labels), delete_run, cleaned,
    )  # fmt: skip
