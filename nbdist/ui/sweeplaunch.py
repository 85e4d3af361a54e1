"""nb.run_sweep: what %%sweep does, as a plain call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError
from nbdist.runs.options import Options
from nbdist.runs.run import Run
from nbdist.runs.start import start_run
from nbdist.sweep.events import Direction
from nbdist.sweep.space import Space
from nbdist.sweep.state import Trial
from nbdist.trials.start import attach_sweep, start_sweep
from nbdist.trials.sweep import Sweep
from nbdist.ui.launch import run_name
from nbdist.ui.sweepdisplay import SweepDisplay, follow_sweep_in_background
from nbdist.ui.view import RunView

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
) -> Sweep:
    """Train one network per engine, with other parameters each, and show the grid of them. Same as %%sweep.

    ``trial`` is source text, which finds the parameters as variables, or a function that takes them by name
    (it must be able to travel). Its metrics are those that ``fit`` or ``nb.log`` report, what the function
    returns (a number, or a dict of them), or the variable of the metric's name. Returns at once: trials run
    while the notebook goes on, and ``sweep.wait()`` waits for the end; with ``wait`` that is done here.

    - ``space``: text as %%sweep takes it, a dict (a list of values, or nbdist.sweep's log, uniform, integer,
      choice, fixed, when), a Space, or a SpaceEditor
    - ``metric`` counts, "max" or "min" by ``direction``; ``trials`` None: all points of a grid
    - ``sampler``: "random", "grid", or of Optuna "tpe", "tpe-univariate" (`pip install nbdist[sweep]`)
    - ``pruner``: "none", "median" or "asha", asked whenever a trial reports the metric
    - ``per_trial`` engines train a trial together, under ``strategy`` "multi_worker" or "mirrored"
    - ``seed`` fixes what is asked for, and each trial's own seed
    - ``live``: False shows no grid
    - ``push``: values of this process by name, which trials can use (see docs/workers.md); they and the
      variables of a function's closure are sent once to each engine
    - ``first_line``: the number of a text's first line in its cell, for errors

    Raises InvalidArgumentError for a space that is empty or contradicts itself, and the like. Runs in the
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
        on=on,
        seed=seed,
        name=name or run_name(trial, sampler),
        sampler_settings=sampler_settings,
        pruner_settings=pruner_settings,
        cluster=cluster,
        push=push,
        first_line=first_line,
    )
    dress(sweep, live)
    return wait_for(sweep) if wait else sweep


def attach_to_sweep(
    sweep: str, trial: Callable[..., Any] | None = None, push: Mapping[str, Any] | None = None
) -> Sweep:
    """Return a sweep of another kernel, and show its grid; it goes on if it has work left."""
    found = attach_sweep(sweep, trial=trial, push=push)
    dress(found, live=True)
    return found


def dress(sweep: Sweep, live: bool) -> None:
    """Give a sweep what shows it, and show it."""
    sweep.shown_by, sweep.rerun_by = show, rerun
    if live:
        show(sweep)


def show(sweep: Sweep) -> SweepDisplay:
    """Show the grid of a sweep in this cell."""
    display = SweepDisplay(sweep)
    sweep.looking = partial(look, sweep, display)
    show_again_when_it_goes_on(sweep, display)
    if sweep.over:
        display.show_again()
        return display
    display.show()
    follow_sweep_in_background(sweep, display)
    return display


def show_again_when_it_goes_on(sweep: Sweep, display: SweepDisplay) -> None:
    """Have a sweep that was over followed again once something is wished of it, where there is a loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return

    def again() -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody looks
            loop.call_soon_threadsafe(follow_sweep_in_background, sweep, display)

    sweep.goes_on = again


def look(sweep: Sweep, display: SweepDisplay) -> None:
    """Show what is new of a sweep that somebody waits for, so that nobody else has the thread."""
    if threading.current_thread() is threading.main_thread():
        if sweep.over:
            display.finish()
        else:
            display.tick()


def wait_for(sweep: Sweep) -> Sweep:
    """Wait for a sweep's end where there is no loop; an interrupt ends it."""
    try:
        return sweep.wait()
    except KeyboardInterrupt:
        sweep.close()
        raise


def rerun(sweep: Sweep, trial: Trial) -> Run:
    """Run a trial once more, as a run of its own, on as many engines as it had: sums are rounded alike."""
    together, order = sweep.ledger.created.per_trial, sweep.order
    trained = sweep.has_trained(trial.number)
    options = Options(
        seed=trial.seed,
        on=f"worker:{','.join(map(str, _workers(sweep, together)))}",
        strategy=order.strategy if trained else None,
        name=f"{sweep.name}-{trial.number}",
        collective=str(order.settings.get("collective", "auto")) if trained else "auto",
    )
    run = start_run(
        sweep.body, options, cluster=sweep.cluster, make_view=RunView, names=dict(trial.parameters),
        given=sweep.given, first_line=order.first_line,
    )  # fmt: skip
    return run.wait()


def _workers(sweep: Sweep, count: int) -> list[int]:
    """Return the indices of the first so many living workers."""
    dead = {info.rank for info in sweep.cluster.dead()}
    living = [info.index for info in sweep.cluster.tasks if info.job == "worker" and info.rank not in dead]
    if len(living) < count:
        raise FailedPreconditionError(
            f"a trial of sweep {sweep.id} takes {count} workers, and {len(living)} are alive; "
            "%cluster restart brings back the others"
        )
    return living[:count]
