"""nb.launch and nb.start_cluster: what the magics do, as plain calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbdist.cluster.handle import Cluster
from nbdist.runs.options import Options
from nbdist.runs.run import Run
from nbdist.runs.start import start_run
from nbdist.ui.timelineview import TimelineView
from nbdist.ui.view import PrintedView, RunView


def launch(
    body: str | Callable[[], Any],
    *,
    strategy: str | None = None,
    sync: bool | None = None,
    replication: str = "between-graph",
    data: str = "client",
    on: str | None = None,
    name: str = "run",
    seed: int | None = None,
    live: tuple[str, ...] | bool = True,
    epochs: int | None = None,
    fetch: tuple[str, ...] = (),
    cluster: Cluster | None = None,
    transport: str = "auto",
    backups: int | None = None,
    aggregate: int | None = None,
    staleness: int | None = None,
    locking: bool = False,
    collective: str = "auto",
    min_workers: int | None = None,
    every: int | None = None,
    alpha: float | None = None,
) -> Run:
    """Run a body on the cluster's workers, show it live, and return the finished run. Same as %%distribute.

    ``body`` is source text, or a function of no arguments (it must be able to travel; what it returns on the
    chief comes home as ``run.results["result"]``). Raises BodyError with the task's own traceback if the
    body fails anywhere. ``backups`` to ``alpha`` are settings of single strategies, as the flags of the
    magic are. Runs in the client; the body runs in the tasks, or with replication "in-graph" right
    here, where its ``fit`` drives a tower on every worker.

        run = nb.launch("print(nb.task.rank)", live=False)
    """
    options = Options(
        strategy=strategy,
        synchronous=sync,
        replication=replication,
        data=data,
        on=on,
        name=name,
        seed=seed,
        live=live if isinstance(live, tuple) else None,
        show=live is not False,
        epochs=epochs,
        fetch=tuple(fetch),
        transport=transport,
        backups=backups,
        aggregate=aggregate,
        staleness=staleness,
        locking=locking,
        collective=collective,
        min_workers=min_workers,
        every=every,
        alpha=alpha,
    )
    return start(body, options, cluster).wait()


def start(body: str | Callable[[], Any], options: Options, cluster: Cluster | None = None) -> Run:
    """Start a body with its view; the caller follows the run."""
    run = start_run(body, options, cluster=cluster, make_view=RunView if options.show else PrintedView)
    run.timeline_type = TimelineView
    return run
