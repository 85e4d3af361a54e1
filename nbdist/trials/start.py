"""Starts a sweep: its space is checked, its folder and its log are made, its engines are won."""

from __future__ import annotations

import atexit
import inspect
import secrets
import shutil
import textwrap
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import living, this_process
from nbdist.distribute.registry import default_strategy, trial_strategies
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    ResourceExhaustedError,
    choices,
)
from nbdist.run.notify import target_of
from nbdist.run.options import Options, select
from nbdist.run.start import any_cluster, check_given, prepare
from nbdist.run.task.body import check_source
from nbdist.run.task.edited_modules import autoreloaded
from nbdist.run.values.delivery import Given
from nbdist.sweep.event_log import EventLog
from nbdist.sweep.events import Direction
from nbdist.sweep.parse import as_space
from nbdist.sweep.space import Space
from nbdist.sweep.start import LONGEST_BODY, check_names, check_per_trial, open_sweep
from nbdist.sweep.state import Ledger
from nbdist.trials import store
from nbdist.trials.protocol import SweepSpec
from nbdist.trials.sweep import Sweep

_sweeps: weakref.WeakSet[Sweep] = weakref.WeakSet()


def start_sweep(
    trial: str | Callable[..., Any],
    space: Space | Mapping[str, object] | str,
    *,
    metric: str,
    direction: Direction = "max",
    trials: int | None = None,
    sampler: str = "random",
    pruner: str = "none",
    per_trial: int = 1,
    strategy: str | None = None,
    collective: str = "auto",
    framework: str | None = None,
    on: str | None = None,
    seed: int | None = None,
    name: str = "sweep",
    sampler_settings: Mapping[str, Any] | None = None,
    pruner_settings: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
    report: Callable[[str], object] = print,
    push: Mapping[str, Any] | None = None,
    first_line: int = 1,
    notify: str | None = None,
) -> Sweep:
    """Start a sweep and return it; its trials run from here on. Nothing is left behind if starting fails.

    ``trial`` is source text, which finds the parameters as variables, or a function that takes them by name.
    ``push`` has values of this process, by the names under which trials find them; ``first_line`` is the
    number of a text's first line in its cell. ``notify`` is notified of its end, as for a run.
    Without a cluster a small local one is brought up.
    """
    check_trial(trial, first_line)
    check_given(trial, Given(dict(push or {})), True, first_line)
    searched = as_space(space)
    check_names(trial, searched)
    if strategy not in (None, *trial_strategies()):
        raise InvalidArgumentError(f"no --strategy {strategy!r}; {choices(strategy, trial_strategies())}")
    options = Options(strategy=strategy, collective=collective, framework=framework)
    check_framework(framework, strategy, collective)
    target = None if notify is None else target_of(notify)
    opened = open_sweep(  # before a cluster is brought up for it
        searched,
        metric=metric,
        now=time.time(),
        trials=trials,
        seed=secrets.randbits(31) if seed is None else seed,
        direction=direction,
        sampler=sampler,
        pruner=pruner,
        per_trial=per_trial,
        sampler_settings=sampler_settings,
        pruner_settings=pruner_settings,
        body=source_of(trial),
    )
    cluster = cluster or any_cluster(report)
    workers = select(tuple(cluster.tasks), on)
    check_per_trial(per_trial, len(workers))
    ranks = [info.rank for info in workers]
    win(cluster, ranks)
    folder = store.new_sweep_folder(name)
    try:
        about = {
            "name": name,
            "cluster": cluster.id,
            "ranks": ranks,
            "names": {str(info.rank): info.name for info in workers},
            "everyone": on is None,
            "strategy": strategy or default_strategy(together=per_trial > 1 and framework is None),
            "framework": framework,
            "settings": options.settings(),
            "function": not isinstance(trial, str),
            "push": list(push or ()),
            "first_line": first_line,
            "autoreload": autoreloaded(),
            "owner": this_process(),
        }
        store.write_about(folder, about)
        log = EventLog.create(folder / store.LOG)
        record = store.Record(folder, log, Ledger(opened), cluster)
        log.append(opened)
        sweep = Sweep(
            record, sweep_spec(folder, about, metric), trial, ranks, name, everyone=on is None,
            push=push, pushes=tuple(push or ()),
        )  # fmt: skip
        sweep.notify = target
        sweep.begin()
    except BaseException as error:
        let_go(cluster, ranks)
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, NbdistError):
            raise ResourceExhaustedError(
                f"the sweep's folder {folder} cannot be written: {error.strerror}; make room there, or set "
                "NBDIST_HOME to another folder before you start the cluster"
            ) from error
        raise
    keep(sweep)
    return sweep


def sweep_spec(folder: Path, about: Mapping[str, Any], metric: str) -> SweepSpec:
    """Return the part of a sweep's description that engines receive, from the file beside its log."""
    return SweepSpec(
        folder.name, str(folder), metric,
        Options(strategy=about["strategy"], framework=about.get("framework"), **about["settings"]),
        first_line=int(about.get("first_line", 1)), autoreload=tuple(about.get("autoreload", ())),
    )  # fmt: skip


def check_framework(framework: str | None, strategy: str | None, collective: str) -> None:
    """Raise `InvalidArgumentError` for options of nbdist's models beside a framework."""
    if framework is None:
        return
    given = {"--strategy": strategy, "--collective": None if collective == "auto" else collective}
    for flag, value in given.items():
        if value is not None:
            raise InvalidArgumentError(
                f"{flag} {value} is for models of nbdist. With --framework {framework} a trial trains as "
                f"{framework} does, by calls of its own: drop {flag}, or --framework"
            )


def check_trial(trial: object, first_line: int = 1) -> None:
    """Raise `InvalidArgumentError` unless a trial's body is Python text or a function."""
    if isinstance(trial, str):
        if not trial.strip():
            raise InvalidArgumentError("the trial is empty: write what one trial does, with the names set")
        check_source(trial, first_line)
    elif not callable(trial):
        raise InvalidArgumentError(f"a trial is source text or a function, not {trial!r:.80}")


def source_of(trial: str | Callable[..., Any]) -> str:
    """Return a trial's source for the log; of a function that has none its name."""
    if isinstance(trial, str):
        return trial
    try:
        return textwrap.dedent(inspect.getsource(trial))[:LONGEST_BODY]
    except (OSError, TypeError):
        return f"{getattr(trial, '__module__', '?')}.{getattr(trial, '__qualname__', repr(trial))}"


def win(cluster: Cluster, ranks: list[int]) -> None:
    """Reserve engines; raises the error that names the run which has one. Frees all if one is busy."""
    cluster.check_running()
    prepare(cluster)
    dead = {info.rank: info for info in cluster.dead()}
    living = [rank for rank in ranks if rank not in dead]
    if not living:
        raise FailedPreconditionError(
            f"no worker of cluster {cluster.id} is alive; %cluster restart brings them back"
        )
    try:
        for rank in living:
            cluster.peer(rank).call("run.reserve", {"run": RESERVING})
    finally:
        let_go(cluster, living)


RESERVING = "sweep"


def let_go(cluster: Cluster, ranks: list[int]) -> None:
    """Free engines that were reserved."""
    for rank in ranks:
        with suppress(NbdistError):
            cluster.peer(rank).send("run.release", {"run": RESERVING})


def keep(sweep: Sweep) -> None:
    """See to it that the sweep lets go of its engines and its log when this process ends."""
    if not _sweeps:
        atexit.register(leave_all)
    _sweeps.add(sweep)


def held(sweep: str) -> Sweep | None:
    """Return the sweep of this id, if this process holds it already."""
    return next((one for one in _sweeps if one.id == sweep and not one.left), None)


def leave_all() -> None:
    """Let go of all sweeps that this process drives."""
    for sweep in list(_sweeps):
        sweep.leave()


# Attaches to a sweep whose kernel has ended, or opens a finished one; all state comes from its log.


def attach_sweep(
    sweep: str,
    *,
    trial: Callable[..., Any] | None = None,
    push: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
    report: Callable[[str], object] = print,
) -> Sweep:
    """Return a sweep by its id, with all its trials; it continues if it has work left.

    Trials that engines still run are adopted, others are retried, and none runs twice. If its cluster has
    ended, it continues on another. ``trial`` is the function, where the trial
    was one, and ``push`` are the values that its trials use of the notebook, where some were pushed. Raises
    FailedPreconditionError while another process drives it, if it has work left and lacks one of these, or if
    this process runs its trials and is given one; InvalidArgumentError for a ``trial`` where it was a cell.
    """
    folder = store.sweep_folder(sweep)
    about = store.read_about(folder)
    if trial is not None:
        check_trial(trial)
        if not about["function"]:
            raise InvalidArgumentError(
                f"the trial of sweep {sweep} is a cell, which its log has: attach without trial="
            )
    names = about.get("push", ())
    if push is not None and set(push) != set(names):
        raise InvalidArgumentError(
            f"sweep {sweep} was started with pushed values {', '.join(names) or 'none'}, and push has "
            f"{', '.join(push) or 'none'}"
        )
    if (mine := held(sweep)) is not None:
        if mine.driven or mine.error is None:
            mine.continue_with(trial, push)
            say_if_other(trial, mine.ledger, sweep, report)
            return mine
        mine.leave()
    log = EventLog.reopen(folder / store.LOG)
    try:
        ledger = Ledger.of(log.found.events)
        if complaint := log.found.complaint():
            report(f"{folder / store.LOG}: {complaint}")
        body: Any = trial if about["function"] else ledger.created.body
        say_if_other(trial, ledger, sweep, report)
        record = store.Record(folder, log, ledger, cluster or its_cluster(about["cluster"]))
        if record.has_work:
            with suppress(OSError):  # it only names the owner, for readers
                store.write_about(folder, {**about, "owner": this_process()})
        if record.has_work:
            record.cluster = record.cluster or any_cluster(report)
        same = record.cluster is not None and record.cluster.id == about["cluster"]
        everyone = not same or bool(about.get("everyone"))
        ranks = None if everyone else list(about["ranks"])
        found = Sweep(
            record, sweep_spec(folder, about, ledger.created.metric), body, ranks, about["name"],
            taken_over=True, everyone=everyone, push=push,
            pushes=names,
        )  # fmt: skip
        found.engine_names = store.engine_names_in(about)
        found.begin()
    except BaseException:
        log.close()
        raise
    keep(found)
    return found


def say_if_other(
    trial: Callable[..., Any] | None, ledger: Ledger, sweep: str, report: Callable[[str], object]
) -> None:
    """Report that a sweep continues with another function than the one that it began with."""
    if trial is not None and source_of(trial) != ledger.created.body:
        report(f"the function is not what sweep {sweep} began with: trials from here on run this one")


def its_cluster(name: str) -> Cluster | None:
    """Return the cluster that a sweep ran on, if it lives."""
    with suppress(NotFoundError):
        if (current := Cluster.current()).id == name:
            return current
    if name not in living():
        return None
    cluster = Cluster.attach(name)
    cluster.take_ownership()
    return cluster
