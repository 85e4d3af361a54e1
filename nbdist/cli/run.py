"""``nbdist run train.py --workers 4 --strategy ps``: a cluster, a run on it, its progress in the terminal."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from nbdist.cli.cluster import named, report
from nbdist.cli.text import Answer, answers, flag_words, with_flags
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.launchers.registry import AUTO, choose_launcher
from nbdist.cluster.launchers.spec import no_commands
from nbdist.errors import InvalidArgumentError
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.ui.api import name_of, start
from nbdist.ui.flags import DISTRIBUTE_FLAGS, START_FLAGS, Flag

NOTEBOOK_ONLY = ("--background", "--push", "--live", "--fetch", "--argv")
"""Flags of %%distribute that say something about a notebook, or that the line says otherwise."""
LONGEST = 8 << 20  # bytes of a script
PYTHON = re.compile(r"(.*/)?python3?(\.\d+)?")


def data_of(text: str) -> int | str:
    """Read ``--data``: a number of data tasks, or the reader.

    >>> data_of("2"), data_of("service")
    (2, 'service')
    """
    return int(text) if text.isdecimal() else text


def run_flags() -> dict[str, Flag]:
    """Return the flags of ``nbdist run``: those of %cluster start and of %%distribute.

    Two names are in both: ``--min-workers`` says the same to both, and ``--data N`` starts data tasks that
    the run uses.
    """
    flags = {name: flag for name, flag in DISTRIBUTE_FLAGS.items() if name not in NOTEBOOK_ONLY}
    flags |= {name: flag for name, flag in START_FLAGS.items() if name not in flags}
    flags["--min-workers"] = replace(
        flags["--min-workers"], help="start with N workers, and continue while N are left"
    )
    flags["--data"] = Flag(
        "data", data_of, "N|workers", "N data tasks that read for the workers; in-graph: each worker reads"
    )
    return flags


RUN_FLAGS = run_flags()
OF_CLUSTER = {flag.option for flag in START_FLAGS.values()}


def divided(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the cluster, and those of the run.

    >>> divided({"workers": 4, "strategy": "ps", "data": 2})
    ({'workers': 4, 'data': 2}, {'strategy': 'ps', 'data': 'service'})
    >>> divided({"data": "workers"})
    ({}, {'data': 'workers'})
    """
    cluster = {name: value for name, value in options.items() if name in OF_CLUSTER}
    run = {name: value for name, value in options.items() if name not in OF_CLUSTER}
    data = cluster.pop("data", None)
    if isinstance(data, int):
        cluster["data"], run["data"] = data, "service"
    elif data is not None:
        run["data"] = data
    if "min_workers" in cluster:
        run["min_workers"] = cluster["min_workers"]
        spec, _ = choose_launcher(cluster.get("launcher", AUTO), cluster)
        if spec.commands is no_commands:  # all of one host's workers start together
            del cluster["min_workers"]
    return cluster, run


class RunCommand(click.Command):
    """Reads the words after ``python SCRIPT`` as the script's own, as ``horovodrun`` does.

    Without ``python`` they follow ``--``: ``nbdist run train.py --workers 4 -- --lr 0.1``.
    """

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Put ``--`` before the words of a script."""
        at = next((place for place in range(len(args)) if self._is_python(args, place)), None)
        if at is not None and at + 1 < len(args) and "--" not in args[:at]:
            args = [*args[:at], args[at + 1], "--", *args[at + 2 :]]
        return super().parse_args(context, args)

    def _is_python(self, args: list[str], place: int) -> bool:
        """Return whether a word is the program ``python``, and not the value of the option before it."""
        before = args[place - 1] if place else ""
        takes_value = any(
            before in one.opts and not (one.is_flag or one.count)
            for one in self.params
            if isinstance(one, click.Option)
        )
        return not takes_value and PYTHON.fullmatch(args[place]) is not None


@click.command(cls=RunCommand)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.argument("arguments", metavar="[-- ARGUMENT]...", nargs=-1)
@click.option("-H", "short_hosts", metavar="a:2,b:2", help="--hosts, as horovodrun has it.")
@click.option(
    "-np", "-n", "short_workers", type=click.IntRange(min=1), help="--workers, as horovodrun has it."
)
@click.option(
    "--cluster",
    "cluster_id",
    metavar="ID",
    help="Run on this cluster, which keeps running; default: a new one.",
)
@click.option("--output", metavar="OUT.ipynb", help="With a notebook: where it is saved with its outputs.")
@with_flags(RUN_FLAGS, words=True)
@answers
def run(
    script: str,
    arguments: tuple[str, ...],
    short_hosts: str | None,
    short_workers: int | None,
    cluster_id: str | None,
    output: str | None,
    words: list[str],
) -> Answer:
    """Train what SCRIPT trains, on a cluster that ends with it. "-" reads the script from stdin.

    A script is the body of a run, as the cell below %%distribute is: each worker executes it, and finds the
    ARGUMENTs in sys.argv. A notebook (.ipynb) is executed cell by cell; flags take the place of those of its
    %cluster start and %%distribute lines.

    \b
    nbdist run train.py --workers 4 --strategy ps --ps 1
    nbdist run train.py --workers 4 -- --lr 0.1
    nbdist run -np 4 -H host1:2,host2:2 python train.py --lr 0.1
    nbdist run lesson.ipynb --workers 2

    Ctrl-C stops the run, which keeps what it has; the exit status is then 130, and 1 if the run fails.
    In Python, nb.attach(ID) has the run's model, history and results afterwards.
    """
    words = [
        *words,
        *([] if short_hosts is None else [f"--hosts={short_hosts}"]),
        *([] if short_workers is None else [f"--workers={short_workers}"]),
    ]
    options = flag_words(words, RUN_FLAGS)
    of_cluster, of_run = divided(options)
    if cluster_id is not None and of_cluster:
        raise InvalidArgumentError(
            f"--cluster {cluster_id} is up already: leave out --{next(iter(of_cluster)).replace('_', '-')}"
        )
    if script.endswith(".ipynb"):
        from nbdist.cli.notebook import run_notebook

        if arguments:
            raise InvalidArgumentError(f"a notebook has no arguments: leave out {shlex.join(arguments)!r}")
        return run_notebook(Path(script), words, cluster_id, output)
    if output is not None:
        raise InvalidArgumentError(f"--output {output} is for a notebook; a run's files are in its folder")
    return run_script(script, arguments, cluster_id, of_cluster, of_run)


def run_script(
    script: str,
    arguments: Sequence[str],
    cluster_id: str | None,
    of_cluster: Mapping[str, Any],
    of_run: Mapping[str, Any],
) -> Answer:
    """Run a script on a cluster, and return the results of the run."""
    body = source_of(script)
    name = name_of(body, "" if script == "-" else script, None, of_run.get("strategy", ""))
    wanted = Options(**{"name": name, "argv": shlex.join(arguments), **of_run})
    with ends_at_sigterm(), cluster_of(cluster_id, of_cluster) as cluster:
        started = start(body, wanted, cluster)
        with suppress(KeyboardInterrupt):
            started.wait()
        for note in started.new_notes():
            report(note)
    return outcome(started)


def source_of(script: str) -> str:
    """Return the text of a script; raises InvalidArgumentError if it is none."""
    content = sys.stdin.buffer.read(LONGEST + 1) if script == "-" else Path(script).read_bytes()
    if len(content) > LONGEST:
        raise InvalidArgumentError(f"{script} has more than {LONGEST:,} bytes: a script is smaller")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{script} is not text in UTF-8: {error}") from None


@contextmanager
def cluster_of(cluster_id: str | None, options: Mapping[str, Any]) -> Iterator[Cluster]:
    """Attach to a cluster, or start one that ends with the ``with``."""
    if cluster_id is not None:
        attached = Cluster.attach(named(cluster_id))
        try:
            yield attached
        finally:
            attached.close()
        return
    started = start_cluster(report=report, **options)
    try:
        yield started
    finally:
        started.stop(force=True)


@contextmanager
def ends_at_sigterm() -> Iterator[None]:
    """Take a SIGTERM for a Ctrl-C, so that a scheduler that ends the program stops the run in order."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def outcome(run: Run) -> Answer:
    """Return the results of a run."""
    value = {
        "id": run.id,
        "status": run.status,
        "folder": str(run.folder),
        "steps": run.global_step,
        "seconds": run.seconds,
        "history": {} if run.history is None else run.history.history,
    }
    if run.status == "stopped":
        return Answer(value, f"run {run.id} was stopped; nb.attach({run.id!r}) opens it", 130)
    return Answer(value, f"run {run.id}", 0 if run.status == "finished" else 1)
