"""nb.launch, nb.attach and nb.run_sweep: the magics as functions."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import cleandoc, signature
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ParamSpec, get_type_hints

from IPython.core.getipython import get_ipython

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import clusters_folder, living, runs_on
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.frameworks.registry import loaded
from nbdist.run.attach import attach_run, find_run
from nbdist.run.follow import View
from nbdist.run.history import runs
from nbdist.run.options import SETTINGS, LaunchOptions, Options
from nbdist.run.record import under_way_of
from nbdist.run.replication import replication_of
from nbdist.run.run import Run
from nbdist.run.start import resume_run, start_run
from nbdist.run.values.delivery import Given
from nbdist.sweep.events import Direction
from nbdist.sweep.space import Space
from nbdist.sweep.state import Trial
from nbdist.train.options import rows
from nbdist.trials.start import attach_sweep, start_sweep
from nbdist.trials.store import driven_by_another, is_sweep, sweeps
from nbdist.trials.sweep import Sweep
from nbdist.ui.display.run import PrintedView, RunView, show
from nbdist.ui.display.sweep import SweepDisplay, follow_sweep_in_background
from nbdist.ui.kernel import leaving
from nbdist.ui.timeline.view import TimelineView

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class LaunchArguments(LaunchOptions):
    """The arguments of nb.launch: the options of a run, and what a line of %%distribute cannot say."""

    body: str | Callable[..., Any] = field(kw_only=False)
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    push: Mapping[str, Any] | None = None
    sync: bool | None = None
    name: str | None = None
    live: tuple[str, ...] | bool = True
    cluster: Cluster | None = None

    def options(self) -> Options:
        """Return the options of the run."""
        given = {name: getattr(self, name) for name in rows(LaunchOptions)}
        given |= {"synchronous": self.sync, "fetch": tuple(self.fetch), "push": tuple(self.push or ())}
        return Options(
            **given,
            name=self.name or run_name(self.body, given),
            live=self.live if isinstance(self.live, tuple) else None,
            show=self.live is not False,
        )


def takes(
    arguments: Callable[P, LaunchArguments],
) -> Callable[[Callable[[LaunchArguments], Run]], Callable[P, Run]]:
    """Give a function of a record the record's fields as its parameters, and the rows as documentation.

    Type checkers and editors see the parameters as well: those with which the record is made.
    """
    made, types = signature(arguments), get_type_hints(LaunchArguments)
    parameters = [one.replace(annotation=types[name]) for name, one in made.parameters.items()]
    made = made.replace(parameters=parameters, return_annotation=Run)

    def decorate(function: Callable[[LaunchArguments], Run]) -> Callable[P, Run]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Run:
            try:
                given = arguments(*args, **kwargs)
            except TypeError as error:
                said = str(error).replace(f"{LaunchArguments.__qualname__}.__init__", function.__name__)
                raise TypeError(said) from None
            return function(given)

        call.__signature__ = made  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": Run}
        call.__doc__ = f"{cleandoc(function.__doc__ or '')}\n\n{documentation()}"
        return call

    return decorate


def documentation() -> str:
    """Return the explanations of the options of a run that nb.launch has as parameters."""
    lines = ["Options, which are the flags of the magic:", ""]
    for row in rows(LaunchOptions).values():
        of = f" ({', '.join(SETTINGS[row.name].strategies)})" if row.name in SETTINGS else ""
        text = f"- ``{row.name}``{of}: {row.doc or row.help}"
        lines += wrap(text, 108, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


@takes(LaunchArguments)
def launch(given: LaunchArguments) -> Run:
    """Run a body on the cluster's workers, show it live, and return the finished run. Same as %%distribute.

    - ``body``: source text, or a function, which is called with ``args`` and ``kwargs``; its return value on
      the chief is ``run.results["result"]``
    - ``push``: values of this process by name, which the body can use. Arguments, pushed values and variables
      of the function's closure may be arrays, frames, text, numbers, lists, dicts, datasets, functions,
      classes and modules; arrays are read-only on the workers (see docs/workers.md)
    - ``sync``: True and False stand for --sync and --async
    - ``name``: the run's name in lists and views; None combines the notebook, the cell and the strategy
    - ``live``: False shows no view, names such as ("loss",) choose the curves
    - ``cluster``: the cluster to run on; None is the last started one

    Raises WorkerError with the task's own traceback if the body fails anywhere, InvalidArgumentError for a
    value that cannot be pushed, ResourceExhaustedError if shared memory is too small for the arrays. Runs in
    the client; the body runs in the tasks, or with replication "in-graph" in this process, where its ``fit``
    runs a tower on every worker.

    Examples::

        run = nb.launch("print(nb.task.rank)", live=False)
        run = nb.launch(train, args=(x, y), kwargs={"epochs": 5}, push={"augment": augment})
        run = nb.launch(body, strategy="multi_worker", min_workers=2)
        run = nb.launch(body, strategy="ps", sync=True, backups=1, seed=7)
        run.model, run.history, run.dropped

    The other parameters are the options of the run; ``help(nb.launch)`` and ``%%distribute?`` explain each.
    """
    inputs = Given(dict(given.push or {}), tuple(given.args), dict(given.kwargs or {}))
    run = start(given.body, given.options(), given.cluster, given=inputs)
    if not given.background:
        return run.wait()
    follow_in_background(run)
    return run


if TYPE_CHECKING:  # mypy finds the comment unused unless it knows the parameters
    launch("", no_such_option=1)  # type: ignore[call-arg]

LONGEST_COMMENT = 60  # characters of a comment that names a run


def run_name(body: str | Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Return a name for a run of this cell or script, such as "mnist [12] ps async"; see `name_of`."""
    how = {True: "sync", False: "async", None: ""}[options.get("synchronous")]
    replication = replication_of(options)
    strategy = options.get("framework") or options.get("strategy")
    words = (strategy, how, replication.name if replication.in_client else "")
    shell = get_ipython()
    source = getattr(sys.modules.get("__main__"), "__file__", None)
    session = os.environ.get("JPY_SESSION_NAME", "") if shell is not None else source or ""
    # IPython 9 counts a cell before it runs it: execution_count is then the number of the next one.
    cell = None if shell is None else shell.displayhook.prompt_count
    return name_of(body, session, cell, " ".join(filter(None, words)))


def name_of(body: str | Callable[..., Any], session: str, cell: int | None, strategy: str) -> str:
    """Return a name made of the body's first comment (else a function's name, the notebook, the script), the
    number of the cell and the strategy. Pure.

    ``session`` is the path of the notebook or script, "" for none; ``cell`` is the number of the cell.

    >>> name_of("model = 1", "work/mnist.ipynb", 12, "ps async")
    'mnist [12] ps async'
    >>> name_of("# Digits, two layers\\nmodel = 1", "work/mnist.ipynb", 3, "")
    'Digits, two layers [3]'
    >>> name_of("model = 1", "/usr/lib/pytest/__main__.py", None, "")
    'run'
    """
    name = ""
    if isinstance(body, str):
        first = next((line.strip() for line in body.splitlines() if line.strip()), "")
        name = first.lstrip("#").strip() if first.startswith("#") and not first.startswith("#!") else ""
    else:
        name = getattr(body, "__name__", "").partition("<")[0]
    stem = Path(session).stem.strip("_")
    label = (
        name if 0 < len(name) <= LONGEST_COMMENT and name.isprintable() else stem if stem != "main" else ""
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
    run = start_run(body, options, cluster=cluster, make_view=view, given=given, first_line=first_line)
    _dress_run(run)
    return run


def _dress_run(run: Run) -> None:
    """Give a run its displays."""
    run.timeline_type, run.shown_by, run.process_ends = TimelineView, show, leaving
    run.resumed_by = _resume


def _resume(run: Run) -> Run:
    """Start a run that has ended again, show it, and follow it in the background."""
    started = resume_run(run.id, make_view=_view)
    _dress_run(started)
    started.deliver = _into_notebook
    follow_in_background(started)
    return started


# nb.attach: opens a run or a sweep of another kernel in this one.


def attach(
    run_id: str | None = None,
    *,
    trial: Callable[..., Any] | None = None,
    push: Mapping[str, Any] | None = None,
    tunnel: str | None = None,
) -> Any:
    """Return a run or a sweep by its id, with all its points, its output, its controls and its results.

    Without an id it returns the newest run or sweep that is under way, and prints the ids of the others; if
    none is under way, it returns the latest run. It skips a sweep that another living process drives, and
    prints its id.

    A run that is under way is shown live and followed in the background;
    ``run.wait()`` waits for its end, ``run.stop()`` stops it, and at its end ``run.model``, ``run.history``
    and ``run.results`` are available, and `model`, `history` and the rest in the notebook, as after a cell.
    A run that has ended is available at once. If another notebook has fetched its results, only the history
    is available, and the model until the cluster begins another run.

    A sweep is restored from its log with all its trials, and continues if it has work left: trials that
    engines still run are adopted, others are retried. ``trial`` is its function, if it was started with one;
    ``push`` has its pushed values by name, if it was started with --push or push=.

    ``tunnel`` is a host that ssh reaches, such as "login1", if the cluster's head is there and no tunnel
    leads to it yet: `Cluster.attach` opens one first.

    Raises NotFoundError for an unknown id, FailedPreconditionError if the run's cluster has another version
    of nbdist, or if the run is ``--replication in-graph`` and another living process drives it::

        run = nb.attach("261120-091512-mnist")
        run.wait().model
    """
    if run_id is not None and not isinstance(run_id, str):
        raise InvalidArgumentError(
            f"nb.attach takes the id of a run or a sweep as text, got {run_id!r:.80}: for one of nb.runs() "
            "write nb.attach(one.id)"
        )
    if tunnel is not None:
        named = run_id is not None and not is_sweep(run_id)
        Cluster.attach(find_run(run_id).cluster.get("id") if named else None, tunnel=tunnel)
    if run_id is None and (found := _free(under_way())):
        run_id, *others = found
        if others:
            print(
                f"attached to {run_id}; also under way: {', '.join(others)} (nb.attach(id) attaches to one)"
            )
    if run_id is not None and is_sweep(run_id):
        sweep = attach_sweep(run_id, trial=trial, push=push)
        dress(sweep, live=True)
        return sweep
    if trial is not None or push is not None:
        raise InvalidArgumentError(f"trial= and push= are for a sweep, and no sweep has the id {run_id!r}")
    try:
        run = attach_run(run_id, make_view=_view)
    except NotFoundError as error:
        if run_id is None or not sweeps():
            raise
        raise NotFoundError(f"{error}; it is not a sweep either: nb.sweeps() lists those") from None
    _dress_run(run)
    if run.over:
        _into_notebook(run)
        for note in run.new_notes():
            print(note)
    else:
        run.deliver = _into_notebook
        follow_in_background(run)
    return run


def under_way() -> list[str]:
    """Return the ids of the runs and sweeps that are under way on living clusters, the newest first."""
    found = [run for run in runs() if run.kind == "run" and not replication_of(run.options).in_client]
    going = {run.id for run in under_way_of(found)}
    for name in living():
        going.update(one for one in runs_on(clusters_folder() / name) if is_sweep(one))
    return sorted(going, reverse=True)  # ids begin with the start time


def _free(found: list[str]) -> list[str]:
    """Return the ids without sweeps that another process drives; print the ids of these."""
    free = []
    for one in found:
        driver = driven_by_another(one) if is_sweep(one) else None
        if driver is None:
            free.append(one)
        else:
            print(f"sweep {one} is under way in {driver}, which drives it: follow it there")
    return free


def _into_notebook(run: Run) -> None:
    """Put the results of a run into the notebook's variables, as its own cell does; not in a script."""
    shell = get_ipython()
    if shell is not None:
        deliver(run, shell.user_ns)


def deliver(run: Run, namespace: dict[str, Any]) -> None:
    """Put the results of a run into a notebook's variables; note those that keep an earlier value."""
    kept = [name for name in run.unfetched if name in namespace]
    namespace.update(loaded(run.results, namespace))
    if kept:
        run.notes.append(
            f"the notebook's {', '.join(kept)} {'is' if len(kept) == 1 else 'are'} as before: what the body "
            "has under this name cannot be fetched (numbers, text, arrays, models, lists and dicts can)"
        )


def _view(run: Run) -> View:
    return RunView(run) if run.options.show else PrintedView(run)


# nb.run_sweep: %%sweep as a function.

LOOK_SECONDS = 0.1


def run_sweep(
    trial: str | Callable[..., Any],
    space: Space | Mapping[str, object] | str,
    *,
    metric: str,
    direction: Direction = "max",
    trials: int | None = None,
    sampler: str | None = None,
    pruner: str = "none",
    per_trial: int = 1,
    strategy: str | None = None,
    collective: str = "auto",
    framework: str | None = None,
    on: str | None = None,
    seed: int | None = None,
    name: str | None = None,
    live: bool = True,
    wait: bool = False,
    cluster: Cluster | None = None,
    sampler_settings: Mapping[str, Any] | None = None,
    pruner_settings: Mapping[str, Any] | None = None,
    push: Mapping[str, Any] | None = None,
    first_line: int = 1,
    notify: str | None = None,
) -> Sweep:
    """Run trials with different parameters, one per engine, and show them as a grid. Same as %%sweep.

    ``trial`` is source text with the parameters as variables, or a function that takes them by name (it must
    be possible to send it). Its metrics are those that ``fit`` or ``nb.log`` report, the function's return
    value (a number, or a dict of numbers), or the variable of the metric's name. Returns immediately: trials
    run in the background, and ``sweep.wait()`` waits for the end, as does ``wait`` True.

    - ``space``: text as %%sweep takes it, a dict (a list of values, or nbdist.sweep's log, uniform, integer,
      choice, fixed, when), a Space, or a SpaceEditor
    - ``metric``: the metric to optimize; ``direction``: "max" or "min"
    - ``trials``: the number of trials; None means all points of a grid
    - ``sampler``: "random", "grid", or Optuna's "tpe" and "tpe-univariate" (`pip install nbdist[sweep]`)
    - ``pruner``: "none", "median" or "asha", applied whenever a trial reports the metric
    - ``per_trial``: engines per trial; several train under ``strategy`` "multi_worker" or "mirrored"
    - ``framework``: "torch" or "jax", if the trials train with it; see docs/frameworks.md
    - ``seed``: determines the trials' parameters and each trial's own seed
    - ``live``: False shows no grid
    - ``push``: values of this process by name, which trials can use (see docs/workers.md); they and the
      variables of a function's closure are sent once to each engine
    - ``first_line``: the number of a text's first line in its cell, for errors
    - ``notify``: a command, or an https address, that is told when the sweep ends or loses an engine, as for
      nb.launch

    Raises InvalidArgumentError for an invalid argument, such as an empty or contradictory space. Runs in the
    client::

        def trial(lr, hidden):
            model = ...
            return model.fit(train, epochs=5, validation_data=held_out)

        sweep = nb.run_sweep(trial, "lr=log(1e-4, 1e-1) hidden=[32, 64]", metric="val_accuracy", trials=24)
        sweep.wait().best
    """
    sweep = start_sweep(
        trial,
        space,
        metric=metric,
        direction=direction,
        trials=trials,
        sampler=sampler or ("grid" if trials is None else "random"),
        pruner=pruner,
        per_trial=per_trial,
        strategy=strategy,
        collective=collective,
        framework=framework,
        on=on,
        seed=seed,
        name=name or run_name(trial, {"strategy": sampler}),
        sampler_settings=sampler_settings,
        pruner_settings=pruner_settings,
        cluster=cluster,
        push=push,
        first_line=first_line,
        notify=notify,
    )
    dress(sweep, live)
    if not wait:
        return sweep
    try:
        return sweep.wait()
    except KeyboardInterrupt:
        sweep.close()
        raise


def dress(sweep: Sweep, live: bool) -> None:
    """Give a sweep its display, unless this kernel has given it one, and show it."""
    if sweep.shown_by is print:
        sweep.shown_by, sweep.rerun_by = partial(show_sweep, display=SweepDisplay(sweep)), rerun
    if live:
        sweep.shown_by(sweep)


def show_sweep(sweep: Sweep, display: SweepDisplay) -> SweepDisplay:
    """Show the grid of a sweep in this cell, with the grids of other cells: one display has them all."""
    sweep.looking = partial(look, sweep, display)
    show_again_when_continued(sweep, display)
    display.show_again()
    if not sweep.over:
        follow_sweep_in_background(sweep, display)
    return display


def show_again_when_continued(sweep: Sweep, display: SweepDisplay) -> None:
    """Follow a finished sweep again when a command continues it, if there is an event loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return

    def again() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(follow_sweep_in_background, sweep, display)

    sweep.continued = again


def look(sweep: Sweep, display: SweepDisplay) -> None:
    """Update a sweep's display in the thread that waits for it."""
    if threading.current_thread() is threading.main_thread():
        if not sweep.over:
            display.tick()
        elif not display.in_use:
            display.finish()


def rerun(sweep: Sweep, trial: Trial) -> Run:
    """Repeat a trial as a separate run, on the same number of engines, so that sums are rounded equally."""
    together, spec = sweep.ledger.created.per_trial, sweep.spec
    trained = sweep.has_trained(trial.number)
    own = trained and spec.options.framework is None  # the run has the options of models of nbdist
    if {**trial.given, "epochs": None} != {**trial.drawn, "epochs": None}:
        print(
            f"trial {trial.number} was promoted; before, {trial.began_with}. This run has its present "
            "parameters from the start, so its losses are not the trial's"
        )
    options = Options(
        seed=trial.seed,
        epochs=trial.epochs if own else None,
        on=f"worker:{','.join(map(str, _workers(sweep, together)))}",
        strategy=spec.options.strategy if own else None,
        framework=spec.options.framework,
        name=f"{sweep.name}-{trial.number}",
        collective=spec.options.collective if own else "auto",
    )
    run = start_run(
        sweep.body, options, cluster=sweep.cluster, make_view=RunView, names=trial.given,
        given=sweep.given, first_line=spec.first_line, generators=trial.seed,
    )  # fmt: skip
    return run.wait()


def _workers(sweep: Sweep, count: int) -> list[int]:
    """Return the indices of the first ``count`` living workers."""
    dead = {info.rank for info in sweep.cluster.dead()}
    living = [info.index for info in sweep.cluster.tasks if info.job == "worker" and info.rank not in dead]
    if len(living) < count:
        raise FailedPreconditionError(
            f"a trial of sweep {sweep.id} takes {count} workers, and {len(living)} are alive; "
            "%cluster restart replaces the others"
        )
    return living[:count]


# Follows a run in the background: for ``%%distribute --background`` and ``nb.attach``.

SHOW_EVERY = 0.1  # seconds
# By the identity of the runs: a notebook may attach to a run twice.
_following: dict[int, asyncio.Task[None]] = {}


def follow_in_background(run: Run) -> None:
    """Start to follow a run in the background, in a notebook, a script or IPython.

    A separate thread follows a run with a live view on a page: the view updates ten times a second while the
    event loop is free, and once a second while a cell computes. Its controls work while no other cell runs. A
    thread also follows a run without a view (``live=False``), and any run if no loop runs. Where a notebook
    is executed without a page (nbconvert, papermill), the event loop follows its runs: `over` and `standing`
    advance between cells, and in ``wait``. Errors are shown at the run's view; ``run.wait()`` raises them.
    """
    if id(run) in _following:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        run.follow_on_thread()
        return
    view = run.view
    shown = view if isinstance(view, RunView) else None
    # The body of an in-graph run is in this process, and the thread that started it follows it. Without a
    # page, the cell that waits shows the picture.
    if run.options.replicated.in_client or (shown is not None and not shown.on_page):
        work = _follow(run)
    else:
        if shown is not None:
            shown.shown_by_this_thread()
        run.follow_on_thread()
        work = _show(run, shown)
    # A loop has only weak references to its tasks.
    task = _following[id(run)] = loop.create_task(work, name=f"nbdist follows run {run.id}")
    task.add_done_callback(lambda _: _following.pop(id(run), None))


async def _show(run: Run, view: RunView | None) -> None:
    """Show a run, which another thread follows, on this event loop; without a view, print its notes only."""
    while True:
        try:
            while not run.settled:
                if view is not None:
                    view.tick()
                await asyncio.sleep(SHOW_EVERY)
            if view is not None:
                view.freeze(run)
            break
        except KeyboardInterrupt:  # meant for the current cell
            continue
        except Exception as error:  # an error of the view must not end the run
            run.notes.append(f"the view of run {run.id} failed: {type(error).__name__}: {error}")
            break
    _tell(run)


async def _follow(run: Run) -> None:
    while True:
        try:
            await run.follow_quietly()
            break
        except KeyboardInterrupt:  # meant for the current cell
            continue
    _tell(run)


def _tell(run: Run) -> None:
    for note in run.new_notes():
        print(note)
