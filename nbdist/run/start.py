"""Starts a run: reserves the tasks, opens the run folder, ships the body."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nbdist.cluster.adopt import adopt
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.folder import living, this_process
from nbdist.cluster.launch import start_cluster
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    NotFoundError,
    ResourceExhaustedError,
    TaskDiedError,
    UnavailableError,
)
from nbdist.frameworks.registry import FRAMEWORKS
from nbdist.frameworks.versions import check_versions
from nbdist.metrics.run_folder import (
    CONTINUED,
    RunFile,
    new_run_id,
    read_run,
    run_folder,
    versions,
    write_run,
)
from nbdist.run.export.registry import find_exporter
from nbdist.run.files.left import Left
from nbdist.run.files.mirror import Mirror
from nbdist.run.files.place import RunPlace, mark
from nbdist.run.follow import View
from nbdist.run.history import known_run
from nbdist.run.in_graph.start import InGraph
from nbdist.run.membership import MembershipRules
from nbdist.run.options import Options, parse_on
from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.run.record import is_under_way
from nbdist.run.recovery.failure_detector import remedy
from nbdist.run.recovery.ownership import RunOwnership
from nbdist.run.resumable import continued, members_of, options_of, read_body, record_body, resumable_run
from nbdist.run.run import Run
from nbdist.run.task.agent import install
from nbdist.run.task.body import RunSpec, check_source, run_body
from nbdist.run.task.edited_modules import autoreloaded
from nbdist.run.values.delivery import Delivery, Given, missing_name, without_closure
from nbdist.run.values.inputs import describe_body, describe_inputs, line_of
from nbdist.run.values.push import Packed
from nbdist.runtime.task import TaskInfo, segment_prefix
from nbdist.wire.hosts import host_identity

LOOK_SECONDS = 0.2  # between two looks at a cluster, or a run, that is awaited
END_SECONDS = 30.0  # for a run that has lost its tasks to end
LAST_SECONDS = 60.0  # of a job, in which its tasks end one after the other

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
    generators: int | None = None,
) -> Run:
    """Start ``body`` on the tasks and return its run, to be followed or waited for.

    ``names`` are variables for a body of text, which then has a namespace of its own, or arguments for a
    function; ``given`` are values of this process that the body finds there. ``first_line`` is the number of
    a text's first line in its cell. ``generators`` seeds the global generators of its processes. Without a
    cluster it starts a small local one. If the start fails, it removes all files of the run.
    """
    original, inputs = body, given or Given()
    body, given, packed = check_given(body, inputs, not options.replicated.in_client, first_line)
    if options.resume is not None:
        _fetch_left(options.resume, cluster, report)
    options, states = continued(options)
    for name in options.log_to:
        find_exporter(name).require()  # before the training, not after it
    cluster = cluster or any_cluster(report)
    options, workers = options.placed(tuple(cluster.tasks))
    rules = MembershipRules.of(options, len(workers), sum(info.job == "ps" for info in cluster.tasks))
    servers = rules.servers(cluster.tasks)
    check_alive(cluster, [*workers, *servers])
    if options.data == "service":
        check_data_tasks(cluster)
    prepare(cluster)
    run_id = new_run_id(options.name)
    reserved: list[TaskInfo] = []
    here: InGraph | None = None
    delivery: Delivery | None = None
    folder = run_folder(run_id)
    ownership, mirror = RunOwnership(folder), Mirror.of(RunPlace(str(folder)), cluster)
    try:
        try:
            mirror = Mirror.of(mark(folder), cluster)  # before a task looks for it
        except OSError as error:
            raise _unwritable(folder, error) from error
        asked = []
        needs = [info.rank for info in (*workers, *servers)]
        fixed = rules.why_fixed
        for info in workers:  # in parallel; run.json is written before the answers
            reserved.append(info)
            meta = {
                "run": run_id,
                "subscribe": True,
                "ranks": needs,
                "fixed": fixed,
                **mirror.place.to_meta(),
            }
            if options.framework is not None:
                meta |= {"framework": options.framework, "first": info is workers[0]}
            asked.append(cluster.peer(info.rank).ask("run.reserve", meta))
        record = _record(run_id, original, inputs, options, cluster, workers, first_line)
        try:
            ownership.begin()
            saves = options.checkpoint_every is not None or cluster.saves_at is not None
            write_run(record, wait=saves)
            if saves:
                record_body(folder, original, inputs, first_line)
        except OSError as error:
            raise _unwritable(folder, error) from error
        answers = []
        for info, one in zip(workers, asked, strict=True):
            try:
                answers.append(cluster.peer(info.rank).answer(one).meta)
            except UnavailableError as error:  # frozen, say
                raise UnavailableError(f"{error}. {remedy(info, [])}") from None
        if options.framework is not None:
            needed = FRAMEWORKS[options.framework]
            check_versions(needed.package, needed.least, [info.name for info in workers], answers)
        elsewhere = [] if options.replicated.in_client else elsewhere_of(workers, answers)
        for info in elsewhere:
            mirror.add(info.rank, shared=False)
            mirror.send(info.rank, states)
        if packed is not None:
            delivery = Delivery(run_id, packed, cluster, segment_prefix(cluster.id))
            delivery.send(workers)
        spec = RunSpec(
            run=run_id,
            place=mirror.place,
            ranks=tuple(info.rank for info in workers),
            began_with=len(workers),
            options=replace(options.without_secrets(), seed=record.seed),
            strategy=rules.spec.name,
            awaits=rules.awaits_workers,
            names=names,
            pushed=given if delivery is None else delivery.pushed,
            first_line=first_line,
            states=tuple(map(str, states)),
            origin=(host_identity(), time.time() - time.perf_counter()),
            autoreload=autoreloaded(),
            generators=generators,
            framework_port=None if options.framework is None else int(answers[0]["port"]),
            connection=connection_of(cluster) if options.data == "service" else None,
        )
        if options.replicated.in_client:
            here = InGraph(cluster, spec, body, workers, servers)
            here.start()
            run = Run(
                here.tasks, record, folder, here.workers, rules, here.body,
                towers=workers, at_end=here.close, ownership=ownership, mirror=mirror,
            )  # fmt: skip
        else:
            calls = cluster.submit(run_body, spec, body, on=list(spec.ranks))
            cluster.active_runs.add(run_id)
            run = Run(
                cluster, record, folder, workers, rules, calls,
                at_end=partial(_ended, cluster, run_id, delivery),
                launcher=RunLauncher(cluster, cluster, spec, body, delivery, mirror, needs, fixed),
                ownership=ownership,
                mirror=mirror,
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
                if mirror.is_elsewhere(info.rank):
                    cluster.peer(info.rank).send("files.drop", mirror.place.to_meta())
        mirror.close()
        shutil.rmtree(run_folder(run_id), ignore_errors=True)
        raise
    continue_after(cluster, run)
    return opened(run, make_view)


def opened(run: Run, make_view: Callable[[Run], View] | None) -> Run:
    """Return a run that is shown in a view, None for none, and knows how it is resumed."""
    run.resumed_by = resumed
    if make_view is not None:
        try:
            run.show_in(make_view(run))
        except Exception as error:  # the body runs already: it matters more than how it is shown
            run.notes.append(f"the view of run {run.id} failed: {type(error).__name__}: {error}")
    return run


def elsewhere_of(tasks: Sequence[TaskInfo], answers: Sequence[Mapping[str, Any]]) -> list[TaskInfo]:
    """Return the tasks that do not see the client's folder, from their answers to their reservation."""
    return [info for info, answer in zip(tasks, answers, strict=True) if not answer.get("shared", True)]


def _unwritable(folder: Path, error: OSError) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"the run's folder {folder} cannot be written: {error.strerror}; make room there, or set NBDIST_HOME "
        "to another folder before you start the cluster"
    )


class RunLauncher:
    """Sends a run's body and its pushed values to the new process of one of its workers, or to a new worker.

    ``tasks`` has the connections on which the run receives messages, ``delivery`` the pushed values: None if
    there are none, or if another client has delivered them. ``mirror`` copies the files of tasks on other
    hosts. ``needs`` are the ranks of all tasks that the run uses, ``fixed`` says why no worker can join or
    leave: empty if they can.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: RunTasks,
        spec: RunSpec,
        body: str | Callable[..., Any],
        delivery: Delivery | None,
        mirror: Mirror,
        needs: Sequence[int],
        fixed: str = "",
    ) -> None:
        self._cluster, self._tasks, self._spec, self._body = cluster, tasks, spec, body
        self._mirror = mirror
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
        meta |= self._spec.place.to_meta()
        answer = self._tasks.peer(info.rank).call("run.reserve", meta, timeout=timeout)
        for one in elsewhere_of([info], [answer.meta]):
            self._mirror.add(one.rank, shared=False)
            self._mirror.send(one.rank, self._spec.states)

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

    Raises InvalidArgumentError for what is neither text nor callable, for a text that is empty, is not
    Python or has arguments, for an object of a class of the notebook, and for a value that cannot be sent.
    """
    if not isinstance(body, str) and not callable(body):
        raise InvalidArgumentError(f"the body is source text or a function, not {body!r}")
    if isinstance(body, str):
        if not body.strip():
            raise InvalidArgumentError("the body is empty: there is nothing to run")
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


def check_data_tasks(cluster: Cluster) -> None:
    """Raise InvalidArgumentError if a cluster has no data task, TaskDiedError if all have died."""
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


def connection_of(cluster: Cluster) -> dict[str, Any]:
    """Return what a client of a cluster's controller has to know, with the keys: never to be shown."""
    path = cluster.folder / "security" / f"ipcontroller-{cluster.id}-client.json"
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataLossError(f"{path} cannot be read: {error}; start another cluster") from error
    return found


def check_alive(cluster: Cluster, tasks: Sequence[TaskInfo]) -> None:
    """Raise TaskDiedError unless the tasks that a run needs are alive.

    Raises FailedPreconditionError if a run that is under way handles the death, or the next job does.
    """
    needed = {info.rank for info in tasks}
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
            cluster.check_job()
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
    body: str | Callable[..., Any],
    given: Given,
    options: Options,
    cluster: Cluster,
    workers: list[TaskInfo],
    first_line: int,
) -> RunFile:
    code, function = describe_body(body)
    own = ["/job:client/task:0"] if options.replicated.in_client else []
    return RunFile(
        id=run_id,
        name=options.name,
        status="running",
        code=code,
        function=function,
        first_line=first_line if isinstance(body, str) else line_of(body),
        given=describe_inputs(body, given),
        seed=options.seed if options.seed is not None else secrets.randbits(31),
        versions=versions(),
        cluster={
            "id": cluster.id,
            "tasks": [*own, *(info.name for info in cluster.tasks)],
            "members": [info.to_dict() for info in cluster.tasks],
            "workers": [info.rank for info in workers],
            "owner": this_process(),
        },
        options={k: v for k, v in vars(options.without_secrets()).items() if v is not None},
        resumed_from=options.resume or "",
    )


# Starting a run again, from the body, the inputs, the options and the states in its folder


def resume_run(
    run_id: str,
    *,
    cluster: Cluster | None = None,
    make_view: Callable[[Run], View] | None = None,
    report: Callable[[str], object] = print,
    detached: bool = False,
    notify: str | None = None,
) -> Run:
    """Start a run that has ended without finishing again, as a new run that continues its newest state.

    - ``run_id``: the run's id
    - ``cluster``: where to run it; None takes this process's cluster, else the run's own if it is up, else a
      new one of the same size, which is ``detached`` if it is to outlive this process. Its dead tasks are
      restarted
    - ``make_view``: returns the view that shows the new run; None for no view
    - ``report``: receives the lines about a cluster that starts
    - ``notify``: what is told when the new run ends, as for nb.launch; no file has that of the run before

    The caller follows the new run, which is in the background. Raises NotFoundError for an unknown id,
    FailedPreconditionError if the run is under way, has finished, has no state, or its body was not recorded.
    """
    _fetch_left(run_id, cluster, report)
    record, _ = resumable_run(run_id)
    if record.status == "finished":
        raise FailedPreconditionError(
            f"run {run_id} has finished: there is nothing to resume. To train on, run its cell with "
            f"%%distribute --resume {run_id} and more epochs"
        )
    recorded = read_body(run_folder(run_id))
    was_continued = (run_folder(run_id) / CONTINUED).exists()
    cluster = cluster or cluster_for(record, report, detached)
    if not take_continuation(run_folder(run_id)) and not was_continued:
        raise FailedPreconditionError(
            f"run {run_id} was continued while this waited for its cluster: nb.runs() lists the new run"
        )
    if cluster.dead():
        cluster.restart(report=report)
    options = replace(options_for(record, cluster), notify=notify)
    return start_run(
        recorded.body, options, cluster=cluster, make_view=make_view, report=report,
        given=recorded.given, first_line=recorded.first_line,
    )  # fmt: skip


def _fetch_left(run_id: str, cluster: Cluster | None, report: Callable[[str], object]) -> None:
    """Copy what a run that is to be continued has left on hosts: its newest state may be there."""
    record = known_run(run_id, "--resume: ")
    if not is_under_way(record):
        with suppress(NotFoundError):
            cluster = cluster or Cluster.current()
        for line in Left(record).fetch(cluster, prepare):
            report(line)


def options_for(record: RunFile, cluster: Cluster) -> Options:
    """Return the options of a run for its continuation on a cluster, which may have other tasks."""
    options = replace(options_of(record), resume=record.id, seed=record.seed, background=True)
    if options.on is not None:
        job, wanted = parse_on(options.on)
        there = {info.index for info in cluster.tasks if info.job == job}
        if wanted is not None and not there.issuperset(wanted):
            options = replace(options, on=job)
    return options


def cluster_for(record: RunFile, report: Callable[[str], object] = print, detached: bool = False) -> Cluster:
    """Return a cluster to continue a run on: this process's, the run's own, or a new one of the same size."""
    with suppress(NotFoundError):
        current = Cluster.current()
        await_job(current, record.id, report)
        ended = current.controller_died()
        if not ended and len(current.dead()) < len(current.tasks):
            return current
        report(f"cluster {current.id} has ended: {ended or 'all of its tasks have died'}")
        current.stop()
    members = members_of(record)
    name, known = record.cluster.get("id"), {info.incarnation for info in members}
    if name in living():
        with suppress(NbdistError):  # it runs other versions, or ends at this moment
            found = Cluster.attach(str(name))
            if any(info.incarnation in known for info in found.tasks):
                await_job(found, record.id, report)
                return found
            found.close()
    left = None if detached else adopt(None, report)
    if left is not None:
        return left
    workers = sum(info.job == "worker" for info in members) or 1
    servers = sum(info.job == "ps" for info in members)
    report(f"starting a cluster like that of run {record.id}, with {workers} workers and {servers} ps")
    return start_cluster(workers=workers, ps=servers, detached=detached, report=report)


def await_job(cluster: Cluster, run: str, report: Callable[[str], object]) -> None:
    """Wait until the tasks of a cluster have started on the hosts of the next job, if that is awaited."""
    if cluster.is_between_jobs():
        report(
            f"run {run} waits for the next job of cluster {cluster.id}; interrupt this to do something else, "
            "%cluster stop ends the cluster"
        )
    while cluster.is_between_jobs():
        time.sleep(LOOK_SECONDS)


def continue_after(cluster: Cluster, run: Run) -> None:
    """Have a run continue on the hosts of the cluster's next job, if that is submitted (``requeue``)."""
    if cluster.requeues:
        cluster.on_next_job[run.id] = partial(continue_lost, cluster, run)


def continue_lost(cluster: Cluster, run: Run, over: float) -> None:
    """Continue a run whose hosts' job was over: its tasks have started again on those of the next job.

    Of several clients that follow it, one does. A run that had ended before is left as it is.
    """
    cluster.on_next_job.pop(run.id, None)
    deadline = time.monotonic() + END_SECONDS
    while not run.over and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    ended = read_run(run.id).ended or over
    if run.status != "failed" or not isinstance(run.error, UnavailableError) or ended < over - LAST_SECONDS:
        return
    if not take_continuation(run.folder):
        return
    try:
        new = resume_run(run.id, cluster=cluster, notify=run.options.notify)
        new.follow_on_thread()
    except NbdistError as error:
        print(f"run {run.id} does not continue: {error}")
    else:
        print(f"run {run.id} continues as run {new.id}: nb.attach({new.id!r}) shows it")


def take_continuation(folder: Path) -> bool:
    """Return whether the run of a folder was not continued by any client yet, and note that it is now."""
    try:
        os.close(os.open(folder / CONTINUED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    except OSError:  # a full disk, say, of which the run that continues will tell
        return True
    return True


def resumed(run: Run) -> Run:
    """Start a run that has ended again, without a view, and follow it from a separate thread."""
    started = resume_run(run.id, notify=run.options.notify)
    started.follow_on_thread()
    return started
