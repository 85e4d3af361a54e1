"""`Cluster`: a client's handle on a running cluster, and `Members`, its view of the tasks."""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from nbdist.cluster import task_setup as tasks
from nbdist.cluster.affinity import bound_cores
from nbdist.cluster.calls import Calls, CallSender
from nbdist.cluster.description import change_description, read_description
from nbdist.cluster.folder import (
    busy_tasks,
    clusters_folder,
    describe_process,
    describe_this_process,
    find,
    is_process_alive,
    is_this_process,
    living,
    remove_traces,
    runs_on,
    this_process,
)
from nbdist.cluster.host_status import host_rows, tasks_named
from nbdist.cluster.hub import HubEngines, check_versions, close_client, connect_client
from nbdist.cluster.late_hosts import LateHosts
from nbdist.cluster.next_job import NextJob
from nbdist.cluster.post_mortem import PostMortem, check_expression, look
from nbdist.cluster.resize import (
    ReplaceTask,
    check_unused,
    describe_replacement,
    find_task,
    grow,
    short_name,
    shrink,
)
from nbdist.cluster.stacks import Stacks, TaskStack, body_lines, code_from, requests_for
from nbdist.cluster.supervisor.client import CONTROLLER, SupervisorClient, describe_exit
from nbdist.cluster.supervisor.stacks import RANKS_AT_ONCE
from nbdist.cluster.time_limits import save_time
from nbdist.cluster.tunnel import lead_to
from nbdist.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TaskDiedError,
    UnavailableError,
)
from nbdist.machine import count_cores
from nbdist.runtime.session.cluster import add_target, remove_target
from nbdist.runtime.task import Roster, TaskInfo, chief_of_roster, find_rank, roster_spec
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer

STOP_SECONDS = 5.0
HUB_SECONDS = 1.0  # for the hub's answer
BUSY_SECONDS = 0.1  # between two looks whether a task has begun a body
ANSWER_SECONDS = 5.0  # for a task to answer, beside the time for what it evaluates
DESCRIBED = ("rank", "name", "job", "index", "pid", "host", "node", "device", "address")
"""What a status says of a task."""
_latest: Cluster | None = None


class Cluster:
    """A running cluster, seen from a client process. `start_cluster` and `Cluster.attach` return one.

    All methods may be called from any thread, also while an event loop runs in it. ``id`` is the cluster's
    name, ``folder`` is its folder below NBDIST_HOME, and ``client`` is ipyparallel's client.

        cluster = nb.start_cluster(workers=2)
        cluster.run("import os; os.getpid()")
        [4711, 4712]
        cluster.stop()
    """

    def __init__(
        self,
        folder: Path,
        roster: Roster,
        keys: ClusterKeys,
        supervisor: SupervisorClient,
        client: Any,
        owner: bool,
    ) -> None:
        self.id = folder.name
        self.folder = folder
        self.keys = keys
        self._client = client
        self._supervisor = supervisor
        self._members = Members(roster, keys, supervisor, self._await_hub)
        self._sender = CallSender(client)
        self._process = os.getpid()
        self._connections = threading.local()
        self._peers: weakref.WeakValueDictionary[int, Peer] = weakref.WeakValueDictionary()
        self._ended = False
        self.stopped = False
        """Whether this process has stopped the cluster or closed its connection to it."""
        self.on_next_job: dict[str, Callable[[float], object]] = {}
        """By run, what is called when the tasks have started on the hosts of another job (``requeue``).

        Its argument is when the job before was seen to be over, in seconds since 1970.
        """
        self._next_job: NextJob | None = None
        self._late: LateHosts | None = None
        self.active_runs: set[str] = set()
        """Runs of this process that are under way here; with one, the cluster outlives the process."""
        set_current(self)
        if owner:
            atexit.register(self._stop_at_exit)

    @classmethod
    def attach(
        cls,
        id: str | None = None,
        timeout: float = 10.0,
        *,
        tunnel: str | None = None,
        python: str | None = None,
    ) -> Cluster:
        """Connect to a cluster that another process started. It does not end with this process.

        - ``id``: the cluster's name; None for the cluster that was started or changed last
        - ``timeout``: seconds that the controller may take to answer
        - ``tunnel``: a host that ssh reaches, such as "login1", where the cluster's head is. All connections
          go through one ssh (docs/hosts.md). None for a cluster of this host
        - ``python``: with ``tunnel``, the path of that host's Python; None for the path of this one

        Raises InvalidArgumentError for ``python`` without ``tunnel``, NotFoundError if no such cluster runs,
        FailedPreconditionError if it runs other versions of Python or its packages, UnavailableError if it,
        or the tunnel's host, does not answer, DataLossError if its cluster.json is damaged.

            cluster = nb.Cluster.attach("20261122_101500_a1b2c3")
        """
        if tunnel is not None:
            id = lead_to(tunnel, id, python)
        elif python is not None:
            raise InvalidArgumentError(
                f"python={python!r} goes with a tunnel (--tunnel HOST, tunnel=); a cluster of this host "
                "needs none: leave it out"
            )
        folder = find(id)
        description = read_description(folder)
        check_versions(description.versions)
        keys = replace(ClusterKeys.load(folder / "keys"), proxy=description.proxy)
        supervisor = SupervisorClient.connect(folder)
        if host := description.tunnel:
            supervisor.lead_through(host)
        connection = folder / "security" / f"ipcontroller-{folder.name}-client.json"
        client = connect_client(connection, timeout, description.proxy)
        cluster = cls(folder, description.tasks, keys, supervisor, client, owner=False)
        if supervisor.requeues:
            cluster.follow_jobs(print)
        cluster.await_hosts(print)
        return cluster

    @classmethod
    def current(cls) -> Cluster:
        """Return the cluster that this process started or attached to last; NotFoundError if it has none."""
        if _latest is None or _latest.stopped:
            raise NotFoundError(
                "this process has no cluster; start one with %cluster start or "
                "nb.start_cluster(workers=2), or attach to one"
            )
        return _latest

    @property
    def client(self) -> Any:
        """ipyparallel's client; to read it counts as a use of the cluster.

        Raises FailedPreconditionError if the cluster has ended.
        """
        self._members.use()
        return self._client

    @property
    def saves_at(self) -> float | None:
        """When runs write a state for the end of the hosts' job, in seconds since 1970; None if never.

        cluster.saves_at
        """
        before = read_description(self.folder).asked.get("save_before", 0.0)
        return save_time(self._supervisor.ends, before)

    def unused_left(self) -> float | None:
        """Return in how many seconds the cluster ends if nothing uses it (``idle``); None for no limit.

        cluster.unused_left()
        1740.0
        """
        return cast("float | None", self._supervisor.ask("watch").get("unused_left"))

    @property
    def tasks(self) -> list[TaskInfo]:
        """The tasks by rank, with all changes that any client has made."""
        return self._members.now()

    @property
    def target(self) -> str:
        """The address of the chief's Server, for ``nb.Session(cluster.target)``.

        Raises FailedPreconditionError after ``stop()``.
        """
        self._check_up()
        chief = chief_of_roster(tuple(self.tasks)) or self.tasks[0]
        return f"nbdist://{chief.address}"

    @property
    def spec(self) -> Any:
        """The ClusterSpec of the tasks' addresses."""
        return roster_spec(tuple(self.tasks))

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        on: int | Iterable[int] | None = None,
        **named: Any,
    ) -> Calls:
        """Run ``function(*arguments, **named)`` on tasks and return at once.

        ``on`` is a rank, several ranks, or None for all tasks. The function runs on the main thread of each
        engine, after the calls that were submitted before; it and its arguments travel by pickle, through
        ipyparallel's authenticated channel. Returns a `Calls`, which collects the results. The call of a task
        that has died fails with TaskDiedError.

        Raises InvalidArgumentError for an unknown rank, FailedPreconditionError if the cluster was stopped
        here.

            calls = cluster.submit(pow, 2, 10, on=[0, 1])
            calls.results(timeout=5)
            [1024, 1024]
        """
        self._check_up()
        self._supervisor.note_use()
        ranks = self._members.ranks(on)
        infos = {info.rank: info for info in self.tasks}
        died = partial(self._members.deaths_in_use, infos)
        return Calls(self._sender.send(ranks, died, function, arguments, named), infos, died)

    def run(
        self,
        code: str | Callable[[], Any],
        on: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Run source text or a function on tasks, wait, and return the results in the order of ranks.

        ``code`` is source text (its result is the value of its last expression, or that value's repr if it
        cannot be pickled) or a function without arguments. ``on`` is a rank, several ranks, or None for all
        tasks. ``timeout`` is in seconds; None waits without a limit.

        Raises the first failure: a WorkerError with the task's traceback, TaskDiedError, or an error of
        nbdist; DeadlineExceededError after ``timeout`` seconds.

            cluster.run("import numpy; numpy.__version__", on=0)
            ['2.3.5']
        """
        if isinstance(code, str):
            return self.submit(tasks.run_source, code, on=on).results(timeout)
        return self.submit(code, on=on).results(timeout)

    def peer(self, rank: int) -> Peer:
        """Return this thread's connection to the Server of the task ``rank``, made at its first use.

        Threads do not share connections, so a long call in one does not delay another. Raises
        InvalidArgumentError for an unknown rank, FailedPreconditionError or UnavailableError if the cluster
        was stopped here.

            cluster.peer(1).call("ping")
        """
        if self._ended:
            raise UnavailableError(f"rank {rank} has ended: cluster {self.id} was stopped here")
        self._check_up()
        try:
            self._members.use()
        except FailedPreconditionError as error:  # as of a task that does not answer
            raise UnavailableError(str(error)) from None
        peers: dict[int, Peer] = self._connections.__dict__.setdefault("peers", {})
        info = find_rank(tuple(self.tasks), rank)
        if rank in peers and peers[rank].address != info.address:  # it was replaced
            peers.pop(rank).close()
        if rank not in peers:
            peers[rank] = Peer(info.address, self.keys, name=info.name)
            self._peers[id(peers[rank])] = peers[rank]
        return peers[rank]

    def signal(self, rank: int, signum: int) -> bool:
        """Send ``signum`` to the process of ``rank``; return whether the process existed.

        Raises InvalidArgumentError for an unknown rank.

            cluster.signal(1, signal.SIGINT)
        """
        find_rank(tuple(self.tasks), rank)
        return bool(self._supervisor.ask("signal", rank=rank, signum=int(signum))["sent"])

    def stacks(self, task: int | str | None = None, *, full: bool = False, timeout: float = 30.0) -> Stacks:
        """Return where tasks are at this moment: the stacks of their threads, also of tasks that hang.

        - ``task``: a rank, a name ("worker:1", "/job:worker/task:1"), all tasks of a job ("worker:*") or of a
          host ("a"); None for all tasks
        - ``full``: whether the text has all threads and all frames, not only those around code of yours
        - ``timeout``: seconds for a host to answer

        Nothing is asked of a task itself: its host's supervisor reads its memory with py-spy, where that is
        installed and may trace processes, or has Python's faulthandler write its stacks (docs/workers.md,
        "Where a worker is"). Print the result: it begins with a sentence for each place.

        Raises InvalidArgumentError for an unknown task, FailedPreconditionError if the cluster has ended,
        UnavailableError for a cluster of an older version of nbdist.

            cluster.stacks("worker:1")
            worker:1 is at line 7 of the body: time.sleep(1000)
        """
        self.check_running()
        infos = self.tasks if task is None else self._tasks_named(task)
        answers: dict[int, Any] = {}
        for ranks in requests_for(infos, RANKS_AT_ONCE):
            found = self._supervisor.ask("stacks", timeout, ranks=ranks)["stacks"]
            answers |= {int(rank): one for rank, one in found.items()}
        ended = self._supervisor.ended()
        read, here = list[TaskStack](), host_identity()
        for info in infos:
            why = f"it has ended: {describe_exit(how)}" if (how := ended.get(info.rank)) else "it has ended"
            answer = answers.get(info.rank)
            read.append(TaskStack.of(short_name(info), info.pid, answer, why, info.host == here))
        return Stacks(read, code_from(body_lines), full)

    def debug(
        self,
        task: int | str,
        *,
        frame: int | None = None,
        values: bool = False,
        expression: str | None = None,
        timeout: float = 30.0,
    ) -> PostMortem:
        """Return the frames of the body that failed last on a task; look into one of them.

        - ``task``: a rank or a name ("worker:1", "/job:worker/task:1")
        - ``frame``: the number of the frame that is looked into; None for the innermost one of your code
        - ``values``: whether its local values are wanted, as short texts
        - ``expression``: a Python expression to evaluate in it, on the task; the result has its value as text
        - ``timeout``: seconds for the expression, which is interrupted if it takes longer

        A task keeps the frames, with the values that they hold, until its next body begins or its process
        ends. Frames of nbdist's own code keep no values.

        Raises InvalidArgumentError for an unknown task or frame, NotFoundError if no failure is kept,
        TaskDiedError if the task has died, FailedPreconditionError while it runs a body, WorkerError with
        what the expression raises (TimeoutError after ``timeout`` seconds), DeadlineExceededError if the task
        does not answer.

            cluster.debug("worker:1", expression="len(rows)")
            0
        """
        self.check_running()
        check_expression(expression)
        info = find_task(self.tasks, task)
        name = short_name(info)
        if (how := self._supervisor.ended().get(info.rank)) is not None:
            raise TaskDiedError(
                f"{name} has ended ({describe_exit(how)}), and the frames of its body with it; its log and "
                "the run's error may say more"
            )
        call = self.submit(look, frame, values, expression, timeout, on=info.rank)
        deadline = time.monotonic() + timeout + ANSWER_SECONDS
        while not call.wait(BUSY_SECONDS):
            if (run := busy_tasks(self.folder).get(info.rank)) is not None:  # perhaps it has just begun
                raise FailedPreconditionError(
                    f"{name} runs a body of run {run}, so it keeps no frames: wait for it or stop it; "
                    f"%cluster stacks {name} shows where it is"
                )
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"{name} did not answer within {timeout:g} s: %cluster stacks {name} shows where it is"
                )
        return PostMortem.of(name, call.results()[0], values, expression)

    def restart(
        self, task: int | str | None = None, *, report: Callable[[str], object] = print
    ) -> list[TaskInfo]:
        """Replace the processes of tasks and return the new tasks.

        ``task`` is a rank or a name ("worker:1", "/job:worker/task:1"), or the name of a host, for all of its
        tasks; None means all tasks that are dead. A process that lives, or is frozen, is killed first. The
        new process has the task's rank, device and environment, and a new namespace; its variables are lost.
        Other tasks keep theirs, and connections to the old process fail. ``report`` is called with a text of
        what was done.

        Raises InvalidArgumentError for an unknown task, for a host without tasks, and for a name that a task
        and a host have, FailedPreconditionError while a run uses the task,
        UnavailableError while another client changes the cluster or if the new process dies,
        DeadlineExceededError if it does not start within 30 s.

            cluster.restart("worker:1")
            restarted in 0.3 s: /job:worker/task:1 (pid 4711 -> 4803)
        """
        self.check_running()
        infos = self.dead() if task is None else self._tasks_named(task)
        if not infos:
            report(f"no task of cluster {self.id} is dead; name one to restart it, such as worker:0")
            return []
        check_unused(self, infos)
        replacement = self.replace(infos)
        new = replacement.wait()
        report(describe_replacement(replacement))
        return new

    def replace(self, tasks: Sequence[TaskInfo]) -> ReplaceTask:
        """Begin to replace the processes of tasks, even if a run uses them; call ``poll`` of the result.

        Raises FailedPreconditionError if the launcher cannot replace processes, UnavailableError while
        another client changes the cluster.
        """
        self._check_up()
        return ReplaceTask(self, self._supervisor, tasks)

    def grow(self, workers: int = 1, *, report: Callable[[str], object] = print) -> list[TaskInfo]:
        """Start more workers and return them.

        ``workers`` is how many, 1 or more; a cluster has at most 512 tasks. They have the next indices of job
        worker, and ranks after all others. When it returns, all tasks know them. A run that is under way
        takes them in between two steps if it uses all workers and its strategy allows that (see
        docs/strategies.md, "Growing and shrinking"); else it keeps its tasks, and the next run uses the new
        workers. The number of parameter servers stays. ``report`` is called with a text of what was done.

        Raises InvalidArgumentError for an invalid number, FailedPreconditionError if the cluster has a fixed
        size (launcher "mpi"), UnavailableError while another client changes the cluster or if a worker dies
        while it starts; then the cluster is unchanged.

            cluster.grow()
            grown in 0.3 s by /job:worker/task:2 (rank 3, pid 4803): 3 workers, 1 ps
        """
        self.check_running()
        return grow(self, self._supervisor, workers, report)

    def shrink(self, workers: int = 1, *, report: Callable[[str], object] = print) -> list[TaskInfo]:
        """End the workers with the highest indices and return them.

        ``workers`` is how many; the first worker, the chief, stays. They leave a run that is under way
        between two steps, if it uses all workers and its strategy allows that; it continues on the others.
        The other tasks are informed before the processes end. ``report`` is called with a text of what was
        done.

        Raises InvalidArgumentError for an invalid number, FailedPreconditionError while a run uses one of
        them that cannot leave it, or does not within 25 s (3 s if its body is not in ``fit``), or if the
        cluster has a fixed size (launcher "mpi"), UnavailableError while another client changes the cluster.

            cluster.shrink()
            shrunk in 0.1 s by /job:worker/task:2 (pid 4803): 2 workers, 1 ps
        """
        self.check_running()
        return shrink(self, self._supervisor, workers, report)

    def dead(self) -> list[TaskInfo]:
        """Return the tasks with dead processes. It takes microseconds and sends no message.

        A death is known within 2 s (usually milliseconds) after it happens.
        """
        return self._members.dead()

    def controller_died(self) -> str | None:
        """Return how the controller ended, if it has; the cluster then ends too."""
        return "the cluster was stopped here" if self._ended else self._members.controller_died()

    def is_cut_off(self) -> bool:
        """Return whether the connection has ended and the cluster may run on, as behind a broken tunnel."""
        return self._supervisor.cut_off

    def status(self) -> list[dict[str, Any]]:
        """Return a dictionary per task, in the order of ranks.

        Its keys: ``rank``, ``name``, ``job``, ``index``, ``pid``, ``host``, ``node`` (the name of its host in
        the cluster, "" for the client's), ``device``, ``address``,
        ``cores`` (those that it is bound to, such as "0-7", else ""), ``state`` ("running" or "dead"), and
        ``ended`` (how a dead one ended, such as "killed by SIGKILL";
        else None).

            [row["state"] for row in cluster.status()]
            ['running', 'running']
        """
        return self._members.status()

    def hosts(self) -> list[dict[str, Any]]:
        """Return a dictionary per host, in the order of ranks; it sends no message.

        Its keys: ``name`` (in the cluster, as ``node`` of a task; "" for the client's own), ``hostname`` (its
        own), ``address``, ``cores``, ``gpus`` (their names in CUDA), ``tasks`` (their ranks), ``state`` and
        ``ends`` (when its job ends, in seconds since 1970; None if no end is known). A state is "up", "lost",
        or "absent": the host has not come. What is not known of such a host is None.

            [(row["name"], row["tasks"]) for row in cluster.hosts()]
            [('a', [0, 1]), ('b', [2, 3])]

        Raises DataLossError if the cluster's cluster.json is damaged, NotFoundError if it has been removed.
        """
        tasks, description = self.tasks, read_description(self.folder)
        own = {"hostname": socket.gethostname(), "address": "127.0.0.1", "cores": count_cores()}
        if description.tunnel:
            own = {"hostname": description.tunnel, "address": "127.0.0.1", "cores": None}
        own["gpus"] = description.gpus
        reports, lost = self._supervisor.hosts, self._supervisor.lost_hosts
        return host_rows({**reports}, description.slots, tasks, own, self._supervisor.ends, {*lost})

    def stop(self, timeout: float = STOP_SECONDS, *, force: bool = False) -> None:
        """End every process of the cluster, and remove its files and shared memory. May be called twice.

        What runs wrote on other hosts and no client has copied stays there; `nb.stop_cluster` copies it.
        ``timeout`` is in seconds; what has not ended then is killed. ``force`` also stops a cluster that
        another living process started and that a run uses; without it FailedPreconditionError is raised, and
        nothing is stopped. Raises UnavailableError for a cluster behind a tunnel that does not answer, and
        if a job that has held its hosts could not be cancelled.
        """
        if self.stopped:
            return
        if not force:
            self._check_own()
        self._ended = True  # a monitor of a run that polls now must see the reason
        self._close_connections()
        self._supervisor.end(timeout, by=f"it was stopped from another {describe_this_process()}")
        remove_traces(self.folder, self.id)

    def detach(self) -> None:
        """Disconnect from the cluster, which keeps running for its other clients.

        Without any client it ends after a while (``orphan_timeout`` of `start_cluster`), later if a run is
        under way. `Cluster.attach` connects to it again. Raises FailedPreconditionError while this process
        follows a run on it.

            cluster.detach()
            nb.Cluster.attach(cluster.id)
        """
        self._check_up()
        if self.active_runs:
            raise FailedPreconditionError(
                f"run {', '.join(sorted(self.active_runs))} on cluster {self.id} is followed here: wait for "
                "it or stop it first (run.wait(), run.stop())"
            )
        self.close()

    @property
    def requeues(self) -> bool:
        """Whether the job of the hosts is submitted again when it is over (``requeue``)."""
        return self._next_job is not None

    def is_between_jobs(self) -> bool:
        """Return whether tasks are dead that start again on the hosts of the next job (``requeue``).

        It is submitted, or may be: how the last one has ended is known some seconds after its tasks are dead.
        """
        if not self.dead() or self._next_job is None or self.controller_died() is not None:
            return False
        return self._next_job.pending or bool(self._supervisor.ask("watch").get("between"))

    def check_job(self) -> None:
        """Raise FailedPreconditionError if the tasks are dead, and the next job of their hosts is awaited."""
        if self.is_between_jobs():
            raise FailedPreconditionError(
                f"cluster {self.id} waits for the next job of its hosts, on which its tasks start again: "
                "wait for that, or end the cluster with %cluster stop"
            )

    def follow_jobs(self, report: Callable[[str], object]) -> None:
        """Start the tasks again on the hosts of each job that follows (``requeue``); `report` takes why."""
        self._next_job = NextJob(self, self._supervisor, report)
        self._next_job.start()

    @property
    def awaited_hosts(self) -> list[str]:
        """The names of the hosts that have not come yet, whose workers join the cluster when they do."""
        return self._late.awaited if self._late is not None else []

    def await_hosts(
        self, report: Callable[[str], object], reasons: Mapping[str, str] | None = None
    ) -> list[str]:
        """Add the workers of hosts that come late, and return the names of these hosts.

        ``reasons`` are those that are known already of hosts that did not come.
        """
        self._late = LateHosts.begin(self, self._supervisor, report, reasons)
        return self.awaited_hosts

    def _tasks_named(self, task: int | str) -> list[TaskInfo]:
        """Return the task of a rank or a name, or the tasks of a host."""
        return tasks_named(self.tasks, task, [row["name"] for row in self.hosts() if row["name"]])

    def _check_own(self) -> None:
        """Raise FailedPreconditionError if another process started the cluster and has a run on it."""
        try:
            owner = read_description(self.folder).owner
        except (NotFoundError, DataLossError):  # it is starting or ending
            return
        if not owner or is_this_process(owner) or not is_process_alive(owner):
            return
        runs = [run for run in runs_on(self.folder) if run not in self.active_runs]
        if runs:
            raise FailedPreconditionError(
                f"cluster {self.id} was started from {describe_process(owner)}, and run {', '.join(runs)} is "
                "under way on it: %cluster stop --force (stop(force=True)) ends both; %cluster detach "
                "disconnects and leaves it running"
            )

    def check_running(self) -> None:
        """Raise FailedPreconditionError if the cluster has ended or was closed here."""
        self._check_up()
        self._members.check_running()

    def close(self) -> None:
        """Close this process's connections to the cluster, which continues to run."""
        if not self.stopped:
            self._close_connections()
            self._supervisor.close()

    def take_ownership(self) -> None:
        """Make this process the owner: the cluster ends with it, as if it had been started here."""
        change_description(self.folder, owner=this_process())
        atexit.unregister(self._stop_at_exit)
        atexit.register(self._stop_at_exit)

    def _close_connections(self) -> None:
        self.stopped = True
        atexit.unregister(self._stop_at_exit)
        for found in self._peers.valuerefs():  # a list, made at once: other threads may add theirs
            if (peer := found()) is not None:
                peer.close()
        close_client(self._client)

    def _stop_at_exit(self) -> None:
        if os.getpid() != self._process:  # in a child that this process has forked
            return
        if self.active_runs:
            self.close()
        else:
            self.stop(force=True)

    def _await_hub(self) -> None:
        if not self.stopped:  # a message to a task must not go to its old engine
            HubEngines(self._client).wait(HUB_SECONDS)

    def _check_up(self) -> None:
        if self.stopped:
            raise FailedPreconditionError(
                f"cluster {self.id} was stopped or closed here; start or attach again"
            )

    @property
    def counted(self) -> str:
        """The number of tasks of each job as text, such as "3 workers, 1 ps"."""
        jobs: dict[str, int] = {}
        for info in self.tasks:
            jobs[info.job] = jobs.get(info.job, 0) + 1
        return ", ".join(f"{n} {job}{'s' * (job == 'worker' and n > 1)}" for job, n in jobs.items())

    def __repr__(self) -> str:
        return f"<Cluster {self.id}: {self.counted}{' (stopped)' if self.stopped else ''}>"


def set_current(cluster: Cluster | None) -> None:
    """Make a cluster the one that `Cluster.current` returns."""
    global _latest
    _latest = cluster


def clusters() -> list[dict[str, Any]]:
    """Return a dictionary per running cluster of this user, the oldest first.

    Its keys: ``id``, ``created`` (seconds since 1970), ``workers``, ``ps``, ``data``, ``tasks``,
    ``versions``.
    """
    found = []
    for name in living():
        try:
            description = read_description(clusters_folder() / name)
        except (NotFoundError, DataLossError):
            continue  # it is starting or ending
        shown = {key: getattr(description, key) for key in ("created", "workers", "ps", "data", "versions")}
        found.append({"id": name, **shown, "tasks": [info.to_dict() for info in description.tasks]})
    return found


class Members:
    """The tasks as the supervisor reports them; ``changed`` is called before a new roster is used."""

    def __init__(
        self, roster: Roster, keys: ClusterKeys, supervisor: SupervisorClient, changed: Callable[[], object]
    ) -> None:
        self._tasks = list(roster)
        self._lock = threading.RLock()
        self._keys, self._supervisor, self._changed = keys, supervisor, changed
        for info in self._tasks:
            self._add_target(info)

    def now(self) -> list[TaskInfo]:
        """Return the tasks by rank, with all changes of any client."""
        self._supervisor.ended()
        with self._lock:  # one thread at a time, so that none restores an older roster
            if self._supervisor.roster is not None:
                self._take_roster(self._supervisor.roster)
            return self._tasks

    def dead(self) -> list[TaskInfo]:
        """Return the tasks with dead processes."""
        tasks, ended = self.now(), self._supervisor.ended()
        return [info for info in tasks if info.rank in ended]

    def controller_died(self) -> str | None:
        """Return how the controller ended, if it has."""
        how = self._supervisor.ended().get(CONTROLLER)
        if how is None:
            return self._supervisor.stopping or None  # its tasks end before it
        return describe_exit(how)

    def check_running(self) -> None:
        """Raise FailedPreconditionError with the reason if the cluster has ended."""
        if (how := self.controller_died()) is not None:
            raise FailedPreconditionError(self._describe_end(how))

    def use(self) -> None:
        """Count as a use of the cluster; raise FailedPreconditionError if it has ended."""
        if self._supervisor.left:  # a session may go on, by another connection of this process
            return
        self._supervisor.note_use()
        self.check_running()

    def _describe_end(self, how: str) -> str:
        return (
            f"cluster {self._supervisor.folder.name} has ended: {how}. Start another one with %cluster start"
        )

    def deaths_in_use(self, infos: Mapping[int, TaskInfo]) -> dict[int, TaskDiedError]:
        """Return `deaths`; a client that waits for these tasks uses the cluster."""
        self._supervisor.note_use()
        return self.deaths(infos)

    def deaths(self, infos: Mapping[int, TaskInfo]) -> dict[int, TaskDiedError]:
        """Return the errors of those of the tasks that died or left, by rank."""
        current = {info.rank: info for info in self.now()}
        ended = self._supervisor.ended()
        deaths = {}
        for info in infos.values():
            how = ended.get(info.rank) or ended.get(CONTROLLER)
            if how is not None and self._supervisor.stopping:
                deaths[info.rank] = TaskDiedError(self._describe_end(self._supervisor.stopping))
                continue
            if info.rank not in current:
                deaths[info.rank] = TaskDiedError(
                    f"{info.name} (pid {info.pid}) was removed: the cluster was made smaller"
                )
            elif current[info.rank] != info:
                deaths[info.rank] = TaskDiedError(
                    f"{info.name} (pid {info.pid}) was replaced by pid {current[info.rank].pid}"
                )
            elif how is not None:
                what = "" if info.rank in ended else "the controller of "
                deaths[info.rank] = TaskDiedError(
                    f"{what}{info.name} (pid {how['pid']}) died: {describe_exit(how)}; "
                    f"its log ended with:\n{how['log'].strip() or '(nothing)'}"
                )
        return deaths

    def ranks(self, on: int | Iterable[int] | None) -> list[int]:
        """Return the ranks in order; None means all. Raises InvalidArgumentError for an unknown one."""
        known = [info.rank for info in self.now()]
        if on is None:
            return known
        ranks = [on] if isinstance(on, int) else sorted(set(on))
        unknown = [rank for rank in ranks if rank not in known]
        if unknown or not ranks:
            raise InvalidArgumentError(f"no task has rank {unknown or ranks}; the ranks are {known}")
        return ranks

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task: rank, name, host, pid, device, address, state, and how it ended."""
        tasks, rows = self.now(), []
        ended = self._supervisor.ended()
        for info in tasks:
            how = ended.get(info.rank)
            row = {name: getattr(info, name) for name in DESCRIBED}
            row["cores"] = "" if how is not None else info.cores
            if how is None and info.host == host_identity():  # another process may have bound it since
                row["cores"] = bound_cores(info.pid)
            row |= {"state": "running" if how is None else "dead", "ended": how and describe_exit(how)}
            rows.append(row)
        return rows

    def _take_roster(self, roster: list[dict[str, Any]]) -> None:
        """Take the roster of a membership change."""
        if [entries["incarnation"] for entries in roster] == [info.incarnation for info in self._tasks]:
            return
        self._changed()
        before = self._tasks
        self._tasks = [TaskInfo.from_dict(entries) for entries in roster]
        for old in before:
            if old not in self._tasks:
                remove_target(f"nbdist://{old.address}")
        for new in self._tasks:
            if new not in before:
                self._add_target(new)

    def _add_target(self, info: TaskInfo) -> None:
        found = weakref.WeakMethod(self.use)  # sessions do not keep the connection to the supervisor

        def use() -> None:
            if (used := found()) is not None:
                used()

        add_target(f"nbdist://{info.address}", self._keys, use)
