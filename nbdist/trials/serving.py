"""An engine's side of a sweep: its main thread runs one trial after the other, until there are no more."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.cluster.folder import busy_with, clusters_folder
from nbdist.runs.agent import Agent
from nbdist.runs.body import around, live_of, perform
from nbdist.runs.bodycode import filename
from nbdist.runs.signals import bodies_only, forget
from nbdist.runtime.task import Task, current
from nbdist.train.resume import TrainingStates
from nbdist.trials.desk import Desk, desk
from nbdist.trials.found import metrics_of
from nbdist.trials.live import Reports, TrialLive
from nbdist.trials.order import STATE, SweepOrder, TrialOrder, order_of

Body = str | Callable[..., Any]


def serve(order: SweepOrder, body: Body, token: str) -> None:
    """Run the trials of a sweep that come to this engine; submitted once, on the main thread."""
    task, here = current(), desk()
    with busy_with(clusters_folder() / task.cluster_id, order.sweep), bodies_only():
        order.pushed.hold(task.info.host)  # before the first trial: the client may end first
        here.open(order, token)
        try:
            while (trial := here.next()) is not None:
                forget()  # a signal for the trial before
                serve_one(order, trial, body, task, here)
        finally:
            here.close()


def serve_one(order: SweepOrder, trial: TrialOrder, body: Body, task: Task, here: Desk) -> None:
    """Run one trial and tell the driver; however it ends, that is told."""
    here.end(trial, run_trial(order, trial, body, task, here.agent, here.begin(trial)))


def run_trial(
    sweep: SweepOrder, trial: TrialOrder, body: Body, task: Task, here: Agent, reported: Reports
) -> dict[str, Any]:
    """Run one trial and return how it ended: state, values, error."""
    order = order_of(sweep, trial)
    try:
        live = live_of(order, task, here, partial(TrialLive, sweep=sweep, trial=trial, reported=reported))
        live.context.states = TrainingStates(
            write=Path(order.folder) / STATE, read=Path(trial.resume) if trial.resume else None
        )
        live.context.ends_in_log = True
        seed_generators(trial.seed)
        brought = lambda order, found: {"metrics": metrics_of(found, sweep.metric)}
        outcome = perform(order, body, task, here, live, around(live), brought)
    except Exception as error:  # a full disk, say: this trial cannot be run here
        return {"state": "failed", "values": {}, "error": plain(f"{type(error).__name__}: {error}")}
    finally:
        linecache.cache.pop(filename(order.run), None)  # there may be thousands
        if len(trial.ranks) > 1:
            task.server.post(lambda: here.groups.drop_run(order.run))
    return ending(outcome)


def ending(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return how a trial ended, from the outcome of its body.

    >>> ending({"metrics": {"accuracy": 0.9}, "stopped": False})
    {'state': 'finished', 'values': {'accuracy': 0.9}, 'error': ''}
    """
    wrong, values = outcome.get("error"), outcome.get("metrics", {})
    stopped = bool(outcome["stopped"])
    if wrong and not (stopped and (wrong["aborted"] or wrong["interrupted"])):
        told = {"state": "failed", "values": values, "error": plain(str(wrong["traceback"])).rstrip()}
        told["undefined"] = plain(str(wrong.get("undefined", "")))
        return told | {how: True for how in ("aborted", "interrupted") if wrong[how]}
    return {"state": "stopped" if stopped else "finished", "values": values, "error": ""}


def plain(text: str) -> str:
    r"""Return a text that can travel, without halves of characters.

    >>> plain("no file \udcff")
    'no file ?'
    """
    return text.encode("utf-8", "replace").decode()


def seed_generators(seed: int) -> None:
    """Seed the generators that a body may use without asking: NumPy's global one, and Python's."""
    np.random.seed(seed % 2**32)
    random.seed(seed)
