"""The readers of all items, which are imported at a page's first request: a Jupyter server starts faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nbdist.errors import UnavailableError
from nbdist.lab.actions.status import disk_error
from nbdist.lab.state import Lister, TaskLister

Details = Callable[[str], dict[str, Any]]


@dataclass(frozen=True)
class Views:
    """The readers of everything that a page shows, and the functions that change runs. All run on threads."""

    about: Callable[[], dict[str, Any]]
    clusters: Lister
    tasks: TaskLister
    runs: Lister
    sweeps: Lister
    run_details: Details
    run_bundle: Callable[[str, Sequence[str]], dict[str, Any]]
    """The data of a run's page, with the charts of these titles; none for the default ones."""
    run_saved: Details
    sweep_details: Details
    sweep_bundle: Details
    sweep_saved: Details
    open_file: Callable[[str, str], tuple[BinaryIO, int]]
    label: Callable[[str, Mapping[str, Any]], object]
    """Changes the name, tags or note of a run."""
    delete: Callable[[str], int]
    """Deletes a run and returns its bytes on disk."""
    clean: Callable[[str | None, int | None, bool], dict[str, Any]]
    """Deletes runs older than an age, or all but the newest N; a dry run only lists them."""
    command_sweep: Callable[[str, str], None]
    """Sends a sweep a command through its command file, and waits for the answer."""


def default_views(root: Path | None = None) -> Views:
    """Return the readers of this user's folders; ``root`` is the root of Jupyter's file browser."""
    from nbdist.lab.readers.capabilities import about
    from nbdist.lab.readers.clusters import Clusters
    from nbdist.lab.readers.run_detail import open_file, run_bundle, run_details, run_saved
    from nbdist.lab.readers.runs import Runs
    from nbdist.lab.readers.sweep_detail import sweep_bundle, sweep_details, sweep_saved
    from nbdist.lab.readers.sweeps import Sweeps
    from nbdist.lab.readers.tasks import ClusterTasks
    from nbdist.run.history import clean, delete_run, write_labels
    from nbdist.trials.command_file import send_command
    from nbdist.trials.store import sweep_folder

    def cleaned(older_than: str | None, keep: int | None, dry_run: bool) -> dict[str, Any]:
        found = clean(older_than, keep, dry_run)
        return {"runs": list(found), "bytes": found.bytes, "under_way": found.under_way}

    def command_sweep(sweep: str, command: str) -> None:
        try:
            send_command(sweep_folder(sweep), command)
        except OSError as error:
            raise UnavailableError(disk_error(error)) from error

    runs, sweeps = Runs(root), Sweeps()
    clusters = Clusters(runs.on_cluster)
    return Views(
        about, clusters, ClusterTasks(runs, clusters), runs, sweeps,
        lambda run: run_details(run, runs), lambda run, titles: run_bundle(run, runs, titles),
        lambda run: run_saved(run, runs),
        lambda sweep: sweep_details(sweep, sweeps), lambda sweep: sweep_bundle(sweep, sweeps),
        lambda sweep: sweep_saved(sweep, sweeps), open_file,
        lambda run, labels: write_labels(run, **labels), delete_run, cleaned,
        command_sweep,
    )  # fmt: skip
