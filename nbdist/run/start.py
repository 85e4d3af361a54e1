"""Starts a run: reserves the tasks, opens the run folder, ships the body."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nbdist.cluster.adopt import adopt
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import this_process
from nbdist.cluster.launch import start_cluster
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    ResourceExhaustedError,
    TaskDiedError,
    UnavailableError,
)
from nbdist.frameworks.environment import FRAMEWORKS
from nbdist.frameworks.versions import check_versions
from nbdist.metrics.run_folder import RunFile, new_run_id, run_folder, versions, write_run
from nbdist.run.delivery import Delivery, Given, missing_name, without_closure
from nbdist.run.failure_detector import remedy
from nbdist.run.follow import View
from nbdist.run.in_graph.start import InGraph
from nbdist.run.options import Options, check_numbers, select
from nbdist.run.ownership import RunOwnership
from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.run.push import Packed
from nbdist.run.resumable import record_body, resumable_run
from nbdist.run.run import Run
from nbdist.run.task.agent import install
from nbdist.run.task.body import RunSpec, check_source, run_body
from nbdist.run.task.edited_modules import autoreloaded
from nbdist.runtime.task import TaskInfo, segment_prefix

_prepared: set[int] = set()
"""Incarnations of the tasks that have their agent: a later cluster may have the id of an earlier one."""


def start_run(
    body: str | Callable[[], Any],
    options: Options,
    *,
    cluster: Cluster | None = None,
    make_view: Callable[[Run], View] | None = None,
    report: Callable[[str], object] = print,
    names: dict[str, Any] | None = None,
    given: Given | None = None,
    first_line: int = 1,
) -> Run:
    """Start ``body`` on the tasks and return its run, to be followed or waited for.

    ``names`` are variables for a body of text, which then has a namespace of its own, or arguments for a
    function; ``given`` are values of this process that the body finds there. ``first_line`` is the number of
    a text's first line in its cell. Without a cluster it starts a small local one. If the start fails, it
    removes all files of the run.
    """
    if not isinstance(body, str) and not callable(body):
        raise InvalidArgumentError(f"the body is source text or a function, not {body!r}")
    if isinstance(body, str) and not body.strip():
        raise InvalidArgumentError("the body is empty: there is nothing to run")
    original, inputs = body, given or Given()
    body, given, packed = check_given(body, inputs, options.replication != "in-graph", first_line)
    cluster = cluster or any_cluster(report)
    options = options.resolve(bool(_servers(cluster)))
    workers = select(tuple(cluster.tasks), options.on)
    check_numbers(options, len(workers), len(_servers(cluster)))
    check_data_tasks(cluster, options)
    options, states = _continuing(options)
    check_alive(cluster, workers, options)
    prepare(cluster)
    run_id = new_run_id(options.name)
    reserved: list[TaskInfo] = []
    here: InGraph | None = None
    delivery: Delivery | None = None
    ownership = RunOwnership(run_folder(run_id))
    try:
        asked = []
        servers = _servers(cluster) if options.uses_servers else []
        needs = [info.rank for info in (*workers, *servers)]
        fixed = options.why_fixed(len(servers))
        for info in workers:  # in parallel; run.json is written before the answers
            reserved.append(info)
            meta = {"run": run_id, "subscribe": True, "ranks": needs, "fixed": fixed}
            if options.framework is not None:
                meta |= {"framework": options.framework, "first": info is workers[0]}
            asked.append(cluster.peer(info.rank).ask("run.reserve", meta))
        record = _record(run_id, body, options, cluster, workers)
        folder = run_folder(run_id)
        try:
            ownership.begin()
            write_run(record, wait=options.checkpoint_every is not None)
            if options.checkpoint_every is not None:
                record_body(folder, original, inputs, first_line)
        except OSError as error:
            raise ResourceExhaustedError(
                f"the run's folder {folder} cannot be written: {error.strerror}; make room there, or set "
                "NBDIST_HOME to another folder before you start the cluster"
            ) from error
        answers = []
        for info, one in zip(workers, asked, strict=True):
            try:
                answers.append(cluster.peer(info.rank).answer(one).meta)
            except UnavailableError as error:  # frozen, say
                raise UnavailableError(f"{error}. {remedy(info, [])}") from None
        if options.framework is not None:
            needed = FRAMEWORKS[options.framework]
            check_versions(needed.package, needed.least, [info.name for info in workers], answers)
        seed = record.seed
        assert seed is not None
        if packed is not None:
            delivery = Delivery(run_id, packed, cluster, segment_prefix(cluster.id))
            delivery.send(workers)
        spec = RunSpec(
            run=run_id,
            folder=str(folder),
            ranks=tuple(info.rank for info in workers),
            began_with=len(workers),
            training=replace(
                options.training(bool(_servers(cluster)), seed),
                awaits=options.awaits_workers(len(workers), len(servers)),
            ),
            fetch=options.fetch,
            tensorboard=options.tensorboard,
            names=names,
            pushed=given if delivery is None else delivery.pushed,
            first_line=first_line,
            checkpoint_every=options.checkpoint_every,
            states=tuple(map(str, states)),
            framework=options.framework,
            autoreload=autoreloaded(),
            framework_port=None if options.framework is None else int(answers[0]["port"]),
        )
        if options.replication == "in-graph":
            here = InGraph(cluster, spec, body, workers, servers)
            here.start()
            run = Run(
                here.tasks, record, folder, here.workers, options, here.body, None,
                towers=workers, at_end=here.close, ownership=ownership,
            )  # fmt: skip
        else:
            calls = cluster.submit(run_body, spec, body, on=list(spec.ranks))
            cluster.active_runs.add(run_id)
            run = Run(
                cluster, record, folder, workers, options, calls, None,
                at_end=partial(_ended, cluster, run_id, delivery),
                launcher=RunLauncher(cluster, cluster, spec, body, delivery, needs, fixed),
                ownership=ownership,
                hint=partial(_hint, options, by_flag=first_line > 1),
            )  # fmt: skip
            # A wake for each outcome would poll all tasks as often as there are tasks.
            calls.when_done(run.wake, failed=lambda outcome: "error" in outcome)
    except BaseException:
        _ended(cluster, run_id, delivery)
        ownership.release()
        if here is not None:
            here.close()
        for info in reserved:
            with suppress(NbdistError):  # what went wrong first is what is raised
                cluster.peer(info.rank).send("run.release", {"run": run_id})
        _remove_empty(run_id)
        raise
    if make_view is not None:
        try:
            run.show_in(make_view(run))
        except Exception as error:  # the body runs already: it matters more than how it is shown
            run.notes.append(f"the view of run {run.id} failed: {type(error).__name__}: {error}")
    return run


class RunLauncher:
    """Sends a run's body and its pushed values to the new process of one of its workers, or to a new worker.

    ``tasks`` has the connections on which the run receives messages, ``delivery`` the pushed values: None if
    there are none, or if another client has delivered them. ``needs`` are the ranks of all tasks that the run
    uses, ``fixed`` says why no worker can join or leave: empty if they can.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: RunTasks,
        spec: RunSpec,
        body: str | Callable[..., Any],
        delivery: Delivery | None,
        needs: Sequence[int],
        fixed: str = "",
    ) -> None:
        self._cluster, self._tasks, self._spec, self._body = cluster, tasks, spec, body
        self._delivery, self._needs, self._fixed = delivery, list(needs), fixed
        self._numbers = {rank: number for number, rank in enumerate(spec.ranks)}

    def prepare(self, info: TaskInfo) -> RunCalls:
        """Begin to create the task's agent."""
        if self._delivery is not None:
            self._delivery.send([info])
        return self.install_agent(info)

    def install_agent(self, info: TaskInfo) -> RunCalls:
        """Begin to create the agent of a task that runs no body."""
        return self._cluster.submit(install, on=info.rank)

    def reserve(self, info: TaskInfo, timeout: float) -> None:
        """Reserve the task for the run and subscribe to it; FailedPreconditionError if it is taken."""
        meta = {"run": self._spec.run, "subscribe": True, "ranks": self._needs, "fixed": self._fixed}
        self._tasks.peer(info.rank).call("run.reserve", meta, timeout=timeout)

    def add(self, rank: int) -> None:
        """Count the task of a rank among the run's workers, after all others that it has had."""
        self._numbers.setdefault(rank, len(self._numbers))
        self._needs += [rank] if rank not in self._needs else []
        self._take_ranks({*self._spec.ranks, rank})

    def remove(self, rank: int) -> None:
        """Count the task of a rank among the run's workers no longer."""
        self._needs = [one for one in self._needs if one != rank]
        self._take_ranks(set(self._spec.ranks) - {rank})

    def _take_ranks(self, ranks: set[int]) -> None:
        self._spec = replace(self._spec, ranks=tuple(sorted(ranks, key=self._numbers.__getitem__)))

    def start(self, info: TaskInfo) -> RunCalls:
        """Send the body, and return the call that runs it."""
        numbers = tuple(self._numbers[rank] for rank in self._spec.ranks)
        spec = replace(self._spec, rejoins=True, numbers=numbers)
        return self._cluster.submit(run_body, spec, self._body, on=info.rank)


def _continuing(options: Options) -> tuple[Options, list[Path]]:
    """Return options with what they take from the run that they resume, and that run's states."""
    if options.resume is None:
        return options, []
    record, states = resumable_run(options.resume)
    seed = record.seed if options.seed is None else options.seed
    every = options.checkpoint_every or record.options.get("checkpoint_every")
    return replace(options, seed=seed, checkpoint_every=every), states


def _hint(options: Options, name: str, by_flag: bool) -> str:
    """Return the remedy for a name that a body lacks."""
    found = missing_name(name, options.push, by_flag)
    if found or options.resume is None:
        return found
    return (
        f"`{name}` is not on this cluster's workers: an earlier cell defined it on those of run "
        f"{options.resume}. Run the earlier cells first, then the cell with %%distribute --resume "
        f"{options.resume}"
    )


def check_given(
    body: str | Callable[..., Any], given: Given, travels: bool, first_line: int = 1
) -> tuple[str | Callable[..., Any], Given, Packed | None]:
    """Return a body in the form that is sent, its inputs with its closure, and their description.

    Raises InvalidArgumentError for a text that is not Python or has arguments, for an object of a class of
    the notebook, and for a value that cannot be sent.
    """
    if isinstance(body, str):
        check_source(body, first_line)
        if given.args or given.kwargs:
            raise InvalidArgumentError(
                "args and kwargs are for a body that is a function; for a text use push={...}"
            )
    if not travels:
        return body, given, None
    owner = getattr(body, "__self__", body)
    if type(owner).__module__ == "__main__":
        name = type(owner).__name__
        raise InvalidArgumentError(
            f"the body is an object of {name}, a class of the notebook, which a worker does not know: pass a "
            f"function that makes the object and calls it, or put {name} into a module"
        )
    body, closure = without_closure(body)
    given = replace(given, closure=closure)
    return body, given, given.pack()


def _ended(cluster: Cluster, run: str, delivery: Delivery | None) -> None:
    cluster.active_runs.discard(run)
    if delivery is not None:
        delivery.close()


def any_cluster(report: Callable[[str], object]) -> Cluster:
    """Return this process's cluster, or one that it has left behind, or else a small new one."""
    try:
        return Cluster.current()
    except NotFoundError:
        left = adopt(None, report)
        if left is not None:
            return left
        report(
            "no cluster is up: starting a small one on this machine (for another size: %cluster stop, "
            "then %cluster start --workers N --ps M)"
        )
        return start_cluster(workers=2, ps=1, report=report)


def _servers(cluster: Cluster) -> list[TaskInfo]:
    return [info for info in cluster.tasks if info.job == "ps"]


def check_data_tasks(cluster: Cluster, options: Options) -> None:
    """Raise unless a data task lives, if the options ask for them.

    Raises InvalidArgumentError if the cluster has none, TaskDiedError if all have died.
    """
    if options.data != "service":
        return
    found = [info for info in cluster.tasks if info.job == "data"]
    if not found:
        raise InvalidArgumentError(
            "--data service needs data tasks and the cluster has none; start some with: %cluster stop, then "
            "%cluster start --workers 2 --data 1"
        )
    dead = {info.rank for info in cluster.dead()}
    if all(info.rank in dead for info in found):
        names = ", ".join(f"data:{info.index}" for info in found)
        raise TaskDiedError(
            f"--data service: all data tasks of cluster {cluster.id} have died; restart one of {names} with "
            f"%cluster restart data:{found[0].index}, or drop --data service"
        )


def check_alive(cluster: Cluster, workers: list[TaskInfo], options: Options) -> None:
    """Raise TaskDiedError unless the tasks that a run needs are alive.

    Raises FailedPreconditionError if a run that is under way handles the death.
    """
    needed = {info.rank for info in workers} | {
        info.rank for info in cluster.tasks if info.job == "ps" and options.uses_servers
    }
    cluster.check_running()
    dead = cluster.dead()
    for info in dead:
        if info.rank in needed:
            if cluster.active_runs:
                run = min(cluster.active_runs)
                raise FailedPreconditionError(
                    f"{info.name} (pid {info.pid}) has died, and run {run}, which is under way on cluster "
                    f"{cluster.id}, handles that: wait for its end with nb.attach({run!r}).wait(), or stop it"
                )
            raise TaskDiedError(
                f"{info.name} (pid {info.pid}) of cluster {cluster.id} has died. {remedy(info, dead)}"
            )


def prepare(cluster: Cluster) -> None:
    """Give every living task its agent, at the first use of this client on this cluster."""
    dead = {info.rank for info in cluster.dead()}
    fresh = [info for info in cluster.tasks if info.rank not in dead and info.incarnation not in _prepared]
    missing = [info.rank for info in fresh if not _has_agent(cluster, info.rank)]
    if missing:
        cluster.submit(install, on=missing).results(timeout=30)
    _prepared.update(info.incarnation for info in fresh)


def _has_agent(cluster: Cluster, rank: int) -> bool:
    try:
        cluster.peer(rank).call("run.hello")
    except NbdistError:
        return False
    return True


def _record(
    run_id: str,
    body: str | Callable[[], Any],
    options: Options,
    cluster: Cluster,
    workers: list[TaskInfo],
) -> RunFile:
    code = body if isinstance(body, str) else f"{body.__module__}.{getattr(body, '__qualname__', body)}"
    own = ["/job:client/task:0"] if options.replication == "in-graph" else []
    return RunFile(
        id=run_id,
        name=options.name,
        status="running",
        code=code,
        seed=options.seed if options.seed is not None else secrets.randbits(31),
        versions=versions(),
        cluster={
            "id": cluster.id,
            "tasks": [*own, *(info.name for info in cluster.tasks)],
            "members": [info.to_dict() for info in cluster.tasks],
            "workers": [info.rank for info in workers],
            "owner": this_process(),
        },
        options={k: v for k, v in vars(options).items() if v is not None},
        resumed_from=options.resume or "",
    )


def _remove_empty(run_id: str) -> None:
    folder = run_folder(run_id)
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
