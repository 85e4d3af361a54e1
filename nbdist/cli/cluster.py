"""``nbdist cluster start|list|stop|...``: clusters that outlive their terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from nbdist.cli.text import Answer, VerbGroup, answers, with_flags
from nbdist.cluster.cluster import Cluster, clusters
from nbdist.cluster.folder import clusters_folder, living, runs_on
from nbdist.cluster.launch import start_cluster
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, choices
from nbdist.metrics.run_folder import duration
from nbdist.run.stop import end_cluster
from nbdist.text import columns
from nbdist.ui.flags import DEBUG_FLAGS, STACKS_FLAGS, START_FLAGS, STOP_FLAGS
from nbdist.ui.magics import status_text

VERBS = {
    "start": "start a cluster that runs until it is stopped",
    "list": "the clusters of this user",
    "status": "the tasks of a cluster",
    "stacks": "where tasks are, also tasks that hang",
    "debug": "the frames of the body that failed last on a task",
    "grow": "add workers; a run that can takes them in",
    "shrink": "stop the last workers; a run that can continues without them",
    "restart": "new processes for tasks that have died, or for one",
    "stop": "end a cluster",
    "logs": "what the processes of a cluster have written",
}
NONE = "no cluster is running; nbdist cluster start starts one"
LINES = 50

cluster = VerbGroup(
    "cluster", VERBS, lambda name: COMMANDS[name], help="Start, list, change and stop clusters."
)
a_cluster = click.argument("cluster_id", metavar="[CLUSTER]", required=False)
of_cluster = click.option(
    "--cluster", "cluster_id", metavar="ID", help="The cluster, if several are running."
)


def named(cluster_id: str | None) -> str:
    """Return the id of the cluster that the line means: the only one that runs, unless it names one."""
    running = living()
    if cluster_id in running:
        return str(cluster_id)
    if cluster_id is not None:
        raise NotFoundError(
            f"no cluster {cluster_id!r} is running; {choices(cluster_id, running)}" if running else NONE
        )
    if not running:
        raise NotFoundError(NONE)
    if len(running) > 1:
        raise InvalidArgumentError(f"several clusters are running: name one of {', '.join(running)}")
    return running[0]


@contextmanager
def attached(cluster_id: str | None) -> Iterator[Cluster]:
    """Attach to a cluster inside a ``with``; it keeps running afterwards."""
    with closing(Cluster.attach(named(cluster_id))) as found:
        yield found


def report(line: str) -> None:
    """Print a line of progress, on stderr: stdout is for the result."""
    click.echo(line, err=True)


@click.command()
@with_flags(START_FLAGS)
@answers
def start(**options: Any) -> Answer:
    """Start a cluster, with the flags of %cluster start. Its id is the last line.

    It runs until nbdist cluster stop, unless --orphan-timeout or --idle end it. A notebook uses it after
    %cluster attach ID, a script with nbdist run --cluster ID.
    """
    with closing(
        start_cluster(report=report, detached="orphan_timeout" not in options, **options)
    ) as started:
        value = {"id": started.id, "tasks": [info.to_dict() for info in started.tasks]}
    return Answer(value, started.id)


@click.command("list")
@answers
def list_clusters() -> Answer:
    """List the clusters of this user that run, the oldest first."""
    found = [row | {"runs": _runs_of(row["id"])} for row in clusters()]
    head = ("id", "age", "workers", "ps", "data", "runs")
    rows = [
        (
            row["id"],
            duration(max(0.0, time.time() - row["created"])),
            *(str(row[name]) for name in ("workers", "ps", "data")),
            ", ".join(row["runs"]),
        )
        for row in found
    ]
    return Answer(found, columns([head, *rows]) if rows else NONE)


def _runs_of(cluster_id: str) -> list[str]:
    return runs_on(clusters_folder() / cluster_id)


@click.command()
@a_cluster
@answers
def status(cluster_id: str | None) -> Answer:
    """Show the tasks of a cluster, as %cluster does."""
    with attached(cluster_id) as found:
        tasks, hosts = found.status(), found.hosts()
        text = status_text(tasks, hosts, time.time(), found.saves_at, found.unused_left())
        value = {"id": found.id, "tasks": tasks, "hosts": hosts, "runs": runs_on(found.folder)}
        return Answer(value, f"{found!r}\n{text}")


@click.command()
@click.argument("task", metavar="[worker:1|worker:*|HOST]", required=False)
@of_cluster
@with_flags(STACKS_FLAGS)
@answers
def stacks(task: str | None, cluster_id: str | None, **options: Any) -> Answer:
    """Show where tasks are: the stacks of their threads, without the tasks' help.

    It begins with a sentence for each place, the odd one out first. Lines of your own have a ">".
    """
    with attached(cluster_id) as found:
        read = found.stacks(task, **options)
        return Answer({"id": found.id, "tasks": read.to_dict()}, str(read))


@click.command()
@click.argument("task", metavar="TASK")
@of_cluster
@with_flags(DEBUG_FLAGS)
@answers
def debug(task: str, cluster_id: str | None, **options: Any) -> Answer:
    """List the frames of the body that failed last on TASK (worker:1); show values of one, or evaluate there.

    A task keeps them until its next body begins, or its process ends.
    """
    with attached(cluster_id) as found:
        kept = found.debug(task, **options)
        return Answer({"id": found.id, **kept.to_dict()}, str(kept))


def changes(command: str, text: str) -> click.Command:
    """Return the verb that changes the number of workers by a method of `Cluster`."""

    @click.command(command, help=text)
    @a_cluster
    @click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="How many.")
    @answers
    def change(cluster_id: str | None, workers: int) -> Answer:
        with attached(cluster_id) as found:
            changed = getattr(found, command)(workers, report=report)
            names = [info.name for info in changed or ()]
            return Answer({"id": found.id, "tasks": names}, "")

    return change


@click.command()
@a_cluster
@click.option(
    "--task", metavar="worker:1|HOST", help="The task, or the host, to restart; default: all that have died."
)
@answers
def restart(cluster_id: str | None, task: str | None) -> Answer:
    """Give tasks new processes, with empty namespaces."""
    with attached(cluster_id) as found:
        new = found.restart(task, report=report)
        return Answer({"id": found.id, "tasks": [info.name for info in new or ()]}, "")


@click.command()
@a_cluster
@click.option("--all", "all_of_them", is_flag=True, help="Stop all clusters of this user.")
@with_flags(STOP_FLAGS)
@answers
def stop(cluster_id: str | None, all_of_them: bool, force: bool = False) -> Answer:
    """End a cluster and all of its tasks. One with a run under way is only stopped with --force."""
    if all_of_them and cluster_id is not None:
        raise InvalidArgumentError(f"--all stops every cluster: leave out {cluster_id}")
    stopped = living() if all_of_them else [named(cluster_id)]
    for one in stopped:
        if not force and (runs := _runs_of(one)):
            raise FailedPreconditionError(
                f"cluster {one} is in use by {', '.join(runs)}: wait for it, stop it (nbdist runs stop ID), "
                "or add --force, which ends it too"
            )
    missing: list[str] = []
    for one in stopped:
        missing += end_cluster(one, "it was stopped by nbdist cluster stop")
    lines = [*missing, *(f"cluster {one} is stopped" for one in stopped)]
    return Answer({"stopped": stopped, "missing": missing}, "\n".join(lines) or NONE)


@click.command()
@a_cluster
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=LINES,
    show_default=True,
    help="The last lines of each file.",
)
@answers
def logs(cluster_id: str | None, lines: int) -> Answer:
    """Print the ends of the log files of a cluster's processes on this host."""
    folder = clusters_folder() / named(cluster_id)
    found = {path.name: _last_lines(path, lines) for path in sorted((folder / "log").glob("*.log"))}
    text = "\n".join(f"==> {name} <==\n{end}" for name, end in found.items() if end)
    return Answer(found, text or f"nothing is written in {folder / 'log'}")


def _last_lines(path: Path, lines: int) -> str:
    with path.open(errors="replace") as file:
        return "".join(deque(file, lines)).rstrip("\n")


COMMANDS: dict[str, click.Command] = {
    "start": start,
    "list": list_clusters,
    "status": status,
    "stacks": stacks,
    "debug": debug,
    "grow": changes("grow", "Add workers; a run that can takes them in."),
    "shrink": changes("shrink", "Stop the last workers; a run that can continues without them."),
    "restart": restart,
    "stop": stop,
    "logs": logs,
}
