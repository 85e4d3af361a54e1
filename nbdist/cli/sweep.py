"""``nbdist sweep train.py 'lr=log(1e-4, 1e-1)' --metric val_accuracy``: a sweep, in the terminal."""

from __future__ import annotations

import shlex
from typing import Any

import click

from nbdist.cli.cluster import named
from nbdist.cli.run import cluster_of, ends_at_sigterm, source_of
from nbdist.cli.text import Answer, answers, with_flags
from nbdist.errors import InvalidArgumentError
from nbdist.sweep.state import Trial
from nbdist.trials.sweep import Sweep
from nbdist.ui.api import name_of, run_sweep
from nbdist.ui.flags import START_FLAGS, SWEEP_FLAGS, read_line

NOTEBOOK_ONLY = ("--push", "--space", "--wait", "--no-live")
"""Flags of %%sweep that say something about a notebook."""
FLAGS = {name: flag for name, flag in SWEEP_FLAGS.items() if name not in NOTEBOOK_ONLY} | START_FLAGS
OF_CLUSTER = {flag.option for flag in START_FLAGS.values()}


@click.command()
@click.argument("script", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.argument("parameters", metavar="NAME=VALUES...", nargs=-1, required=True)
@click.option(
    "--cluster",
    "cluster_id",
    metavar="ID",
    help="Run on this cluster, which keeps running; default: a new one.",
)
@with_flags(FLAGS)
@answers
def sweep(script: str, parameters: tuple[str, ...], cluster_id: str | None, **options: Any) -> Answer:
    """Run SCRIPT as trials with different parameters, one per engine, on a cluster that ends with them.

    The parameters are variables of the script. VALUES are those of %%sweep: [0.1, 0.01], log(1e-4, 1e-1),
    uniform(0, 0.5), int(16, 128), choice('sgd', 'adam'), when(uniform(0, 1), opt='sgd'), or one value. Quote
    them for the shell.

    \b
    nbdist sweep train.py 'lr=log(1e-4, 1e-1)' 'hidden=[32, 64]' --trials 24 --metric val_accuracy

    Ctrl-C stops the sweep; nb.attach(ID) continues it, with its body.
    """
    if "metric" not in options:
        raise InvalidArgumentError(
            f"the metric is missing: nbdist sweep {shlex.quote(script)} ... --metric NAME"
        )
    space, _ = read_line(" ".join(parameters))
    of_cluster = {name: value for name, value in options.items() if name in OF_CLUSTER}
    of_sweep = {name: value for name, value in options.items() if name not in OF_CLUSTER}
    for name in ("sampler", "pruner"):
        if name in of_sweep:
            of_sweep[name], of_sweep[f"{name}_settings"] = of_sweep[name]
    if cluster_id is not None and of_cluster:
        raise InvalidArgumentError(
            f"--cluster {cluster_id} is up already: leave out --{next(iter(of_cluster)).replace('_', '-')}"
        )
    body = source_of(script)
    of_sweep.setdefault("name", name_of(body, "" if script == "-" else script, None, ""))
    running = None if cluster_id is None else named(cluster_id)
    with ends_at_sigterm(), cluster_of(running, of_cluster) as cluster:
        started = run_sweep(body, space, cluster=cluster, **of_sweep)
        try:
            started.wait()
        except KeyboardInterrupt:
            started.close()
        return outcome(started)


def outcome(sweep: Sweep) -> Answer:
    """Return the results of a sweep."""
    best = sweep.best
    value = {
        "id": sweep.id,
        "state": sweep.state,
        "metric": sweep.metric,
        "best": None if best is None else row_of(best, sweep.metric),
        "trials": [row_of(one, sweep.metric) for one in sweep.trials],
    }
    status = {"finished": 0, "stopped": 130}.get(sweep.state, 1)
    return Answer(value, f"sweep {sweep.id}", status)


def row_of(trial: Trial, metric: str) -> dict[str, Any]:
    """Return what programs read of a trial."""
    return {"number": trial.number, "state": trial.state, "parameters": trial.parameters, metric: trial.value}
