"""nb.launch and nb.start_cluster: what the magics do, as plain calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbdist.cluster.handle import Cluster
from nbdist.runs.options import Options
from nbdist.runs.run import Run
from nbdist.runs.start import start_run
from nbdist.ui.background import follow_in_background
from nbdist.ui.leaving import leaving
from nbdist.ui.showing import show
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
    background: bool = False,
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
    tensorboard: bool = False,
) -> Run:
    """Run a body on the cluster's workers, show it live, and return the finished run. Same as %%distribute.

    ``body`` is source text, or a function of no arguments (it must be able to travel; what it returns on the
    chief comes home as ``run.results["result"]``). Raises BodyError with the task's own traceback if the
    body fails anywhere. Runs in the client; the body runs in the tasks, or with replication "in-graph" right
    here, where its ``fit`` drives a tower on every worker.

    The arguments are the flags of the magic (``%%distribute?`` explains each):

    - ``strategy``: "ps", "mirrored", "multi_worker", "central", "elastic" or "one_device"; ``sync`` True or
      False stands for --sync and --async
    - for "ps": ``backups``, ``aggregate`` (with sync), ``staleness`` (without), ``locking``, ``transport``
    - for "mirrored" and "multi_worker": ``collective``; for these and "ps": ``min_workers``
    - for "elastic": ``every``, ``alpha``
    - ``live``: False shows no view, names such as ("loss",) choose its curves
    - ``background``: return at once, with the run going on; ``run.wait()`` waits for it
    - ``tensorboard``: True writes event files too: ``tensorboard --logdir {run.folder}/tensorboard``
    - ``cluster``: the one to run on; None is the one that was started last

    Examples::

        run = nb.launch("print(nb.task.rank)", live=False)
        run = nb.launch(body, strategy="multi_worker", min_workers=2)
        run = nb.launch(body, strategy="ps", sync=True, backups=1, seed=7)
        run.model, run.history, run.dropped
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
        background=background,
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
        tensorboard=tensorboard,
    )
    run = start(body, options, cluster)
    if not background:
        return run.wait()
    follow_in_background(run)
    return run


def start(body: str | Callable[[], Any], options: Options, cluster: Cluster | None = None) -> Run:
    """Start a body with its view; the caller follows the run."""
    run = start_run(body, options, cluster=cluster, make_view=RunView if options.show else PrintedView)
    run.timeline_type, run.shown_by, run.leaving = TimelineView, show, leaving
    return run
