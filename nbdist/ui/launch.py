"""nb.launch and nb.start_cluster: what the magics do, as plain calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from nbdist.cluster.cluster import Cluster
from nbdist.runs.delivery import Given
from nbdist.runs.options import Options
from nbdist.runs.run import Run
from nbdist.runs.start import start_run
from nbdist.ui.background import follow_in_background
from nbdist.ui.leaving import leaving
from nbdist.ui.showing import show
from nbdist.ui.timelineview import TimelineView
from nbdist.ui.view import PrintedView, RunView


def launch(
    body: str | Callable[..., Any],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    push: Mapping[str, Any] | None = None,
    strategy: str | None = None,
    sync: bool | None = None,
    replication: str = "between-graph",
    data: str = "client",
    on: str | None = None,
    name: str | None = None,
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

    ``body`` is source text, or a function, which is called with ``args`` and ``kwargs``; its return value on
    the chief is ``run.results["result"]``. ``push`` has values of this process by name, which the body can
    use. Arguments, pushed values and variables of the function's closure may be arrays, frames, text,
    numbers, lists, dicts, datasets, functions, classes and modules; arrays are read-only on the workers (see
    docs/workers.md).

    Raises WorkerError with the task's own traceback if the body fails anywhere, InvalidArgumentError for a
    value that cannot be pushed, ResourceExhaustedError where shared memory has no room for the arrays. Runs
    in the client; the body runs in the tasks, or with replication "in-graph" right
    here, where its ``fit`` drives a tower on every worker.

    The arguments are the flags of the magic (``%%distribute?`` explains each):

    - ``strategy``: "ps", "mirrored", "multi_worker", "central", "elastic" or "one_device"; ``sync`` True or
      False stands for --sync and --async
    - for "ps": ``backups``, ``aggregate`` (with sync), ``staleness`` (without), ``locking``, ``transport``
    - for "mirrored" and "multi_worker": ``collective``; for these and "ps": ``min_workers``
    - for "elastic": ``every``, ``alpha``
    - ``name``: its name in lists and views; None makes one of the notebook, the cell and the strategy
    - ``live``: False shows no view, names such as ("loss",) choose its curves
    - ``background``: return at once and follow the run in the background, also in a plain script, so that
      ``run.over`` and ``run.standing()`` advance; ``run.wait()`` and ``run.wait_until(step=...)`` wait for it
    - ``tensorboard``: True writes event files too: ``tensorboard --logdir {run.folder}/tensorboard``
    - ``cluster``: the one to run on; None is the one that was started last

    Examples::

        run = nb.launch("print(nb.task.rank)", live=False)
        run = nb.launch(train, args=(x, y), kwargs={"epochs": 5}, push={"augment": augment})
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
        name=name or run_name(body, strategy, sync, replication),
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
        push=tuple(push or ()),
    )
    run = start(body, options, cluster, given=Given(dict(push or {}), tuple(args), dict(kwargs or {})))
    if not background:
        return run.wait()
    follow_in_background(run)
    return run


LONGEST_COMMENT = 60  # characters of a comment that names a run


def run_name(
    body: str | Callable[..., Any],
    strategy: str | None = None,
    synchronous: bool | None = None,
    replication: str = "between-graph",
) -> str:
    """Return a name for a run of this cell or script, such as "mnist [12] ps async"; see `name_of`."""
    kinds = {True: "sync", False: "async", None: ""}
    words = (strategy or "", kinds[synchronous], "in-graph" if replication == "in-graph" else "")
    shell = get_ipython()
    source = getattr(sys.modules.get("__main__"), "__file__", None)
    session = os.environ.get("JPY_SESSION_NAME", "") if shell is not None else source or ""
    # IPython 9 counts a cell before it runs it: execution_count is then the number of the next one.
    cell = None if shell is None else shell.displayhook.prompt_count
    return name_of(body, session, cell, " ".join(filter(None, words)))


def name_of(body: str | Callable[..., Any], session: str, cell: int | None, strategy: str) -> str:
    """Return a name made of the body's first comment (else a function's name, the notebook, the script), the
    number of the cell and the strategy. Decides only.

    ``session`` is the path of the notebook or script, "" for none; ``cell`` is the number of the cell.

    >>> name_of("model = 1", "work/mnist.ipynb", 12, "ps async")
    'mnist [12] ps async'
    >>> name_of("# Digits, two layers\\nmodel = 1", "work/mnist.ipynb", 3, "")
    'Digits, two layers [3]'
    >>> name_of("model = 1", "/usr/lib/pytest/__main__.py", None, "")
    'run'
    """
    told = ""
    if isinstance(body, str):
        first = next((line.strip() for line in body.splitlines() if line.strip()), "")
        told = first.lstrip("#").strip() if first.startswith("#") and not first.startswith("#!") else ""
    else:
        told = getattr(body, "__name__", "").partition("<")[0]
    stem = Path(session).stem.strip("_")
    label = (
        told if 0 < len(told) <= LONGEST_COMMENT and told.isprintable() else stem if stem != "main" else ""
    )
    words = (label or ("cell" if cell is not None else ""), "" if cell is None else f"[{cell}]", strategy)
    return " ".join(filter(None, words)) or "run"


def start(
    body: str | Callable[..., Any],
    options: Options,
    cluster: Cluster | None = None,
    *,
    given: Given | None = None,
    first_line: int = 1,
) -> Run:
    """Start a body with its view; the caller follows the run."""
    view = partial(RunView, raises=not options.background) if options.show else PrintedView
    run = start_run(
        body, options, cluster=cluster, make_view=view,
        given=given, first_line=first_line,
    )  # fmt: skip
    run.timeline_type, run.shown_by, run.leaving = TimelineView, show, leaving
    return run
