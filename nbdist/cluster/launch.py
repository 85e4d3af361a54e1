"""`start_cluster`: start a cluster phase by phase (controller, engines, Servers), or leave nothing behind."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from nbdist.cluster import task_setup as on_task
from nbdist.cluster.affinity import describe_binding, worker_cores
from nbdist.cluster.calls import open_server
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.description import write_description
from nbdist.cluster.doctor.judge import CORE, judge_joined
from nbdist.cluster.doctor.observe import software
from nbdist.cluster.folder import claim, new_id, remove_traces, this_process
from nbdist.cluster.gpus import choose_gpus, kernel_cache, list_gpus, parse_gpus, require_gpus
from nbdist.cluster.hosts import Host
from nbdist.cluster.hub import (
    EXIT_SECONDS,
    HubEngines,
    close_client,
    connect_client,
    is_engine_death,
    own_versions,
    versions_table,
    write_ipyparallel_files,
)
from nbdist.cluster.late_hosts import describe_awaited
from nbdist.cluster.launchers.registry import AUTO, all_settings, choose_launcher, unused_nodes
from nbdist.cluster.launchers.spec import LauncherSpec
from nbdist.cluster.placement import check_least, place, worker_slots
from nbdist.cluster.resources import (
    HERE,
    HostResources,
    TaskPlan,
    check_counts,
    parse_memory,
    plan_placed,
    resources_of,
)
from nbdist.cluster.supervisor.client import CONTROLLER, SupervisorClient, describe_exit
from nbdist.cluster.supervisor.process import OrphanTimeout
from nbdist.cluster.time_limits import LEAST_UNUSED, SAVE_BEFORE, check_switch, parse_seconds
from nbdist.cluster.tunnel import start_through
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.home import home_path
from nbdist.json_values import number
from nbdist.machine import count_cores
from nbdist.runtime.task import Roster, TaskInfo
from nbdist.wire.keys import ClusterKeys

LEAST_DISK_SPACE = 64 << 10  # bytes on the disk of the cluster's folder, without which nothing starts
WORKERS = 2  # of a cluster on one host, unless a number is given
JOIN_SECONDS = 1.0  # that other hosts get once enough are there
UNDO_SECONDS = 2.5  # for the supervisor of a start that has failed to answer, and for its processes to end
ASK_SECONDS = 0.25  # between two requests for the hub's engines
Report = Callable[[str], object]


def start_cluster(
    workers: int | None = None,
    ps: int = 0,
    data: int = 0,
    *,
    min_workers: int | None = None,
    launcher: str = AUTO,
    gpus: str | int = "auto",
    gpu_memory: float | None = None,
    threads: int | None = None,
    memory: str | int | None = None,
    cluster_id: str | None = None,
    timeout: float = 60.0,
    report: Report | None = print,
    detached: bool = False,
    orphan_timeout: float | None = None,
    idle: str | float | None = None,
    save_before: str | float | None = None,
    requeue: bool = False,
    tunnel: str | None = None,
    **settings: Any,
) -> Cluster:
    """Start a cluster of tasks and return it when the Server of every task answers.

    A task is a process; its rank is its engine's id: workers first (worker 0 is the chief), then parameter
    servers, then data tasks. If a task does not start, everything that was started is ended, and the error
    names the cause.

    - ``workers``: tasks that train; a whole number of 1 or more. None for 2, or, with a launcher of several
      hosts, for as many as the hosts have places
    - ``ps``: tasks that store parameters; a whole number of 0 or more
    - ``data``: tasks that read and transform data for the workers of runs with ``data="service"``
      (docs/data.md); a whole number of 0 or more. At most 512 tasks in all
    - ``min_workers``: with a launcher of several hosts, how many workers make the cluster ready; hosts that
      come later join it, and a running training that takes workers. None for all
    - ``launcher``: how the tasks' processes start. "local" starts plain engines; "mpi" starts them as the
      ranks of one MPI world, so that collectives of kind "mpi" work (needs ``pip install nbdist[mpi]``), on
      this host or on others (``hosts``, docs/security.md); "ssh" starts them on other hosts
      (``hosts="a:2,b:2"``, docs/hosts.md), "slurm" in a job of Slurm (docs/slurm.md), "batch" in one
      of PBS, SGE, LSF or HTCondor (docs/batch.md), "kubernetes" in pods (docs/kubernetes.md), and "dask",
      "ray" and "ipyparallel" on the hosts of a cluster that is up (docs/hosts.md). "auto" is "slurm" or
      "batch" in an allocation, "ssh" with hosts, else "local", and says so
    - ``gpus``: "auto" (all GPUs and MIG slices that this process may use), "none", how many, or their UUIDs,
      separated by commas ("GPU-8f3a,MIG-91bc"; see nvidia-smi -L). Each worker has one GPU; several workers
      share one if there are fewer GPUs than workers. Other tasks have none. On a host with
      several NUMA nodes, a worker is bound to cores near its GPU
    - ``gpu_memory``: the share of its GPU's memory that a worker's arrays may take, above 0 and at most 1;
      None for no limit. The CUDA context (0.3 to 0.6 GB), cuBLAS and NCCL take memory beside it
    - ``threads``: threads that a task computes on (BLAS), 1 or more; None for cores / tasks
    - ``memory``: the most memory that the variables and programs of graphs may take on each task: bytes, or a
      text such as "300M" or "2G"; None for no limit. A graph that needs more is refused before it allocates
    - ``cluster_id``: a name for the cluster: 1 to 48 letters, digits and underscores; None for a new one
    - ``timeout``: seconds that the start may take, above 0
    - ``report``: called with a line of text after each phase; None reports nothing
    - ``detached``: whether the cluster lives until it is stopped, whatever its clients do
    - ``orphan_timeout``: seconds, above 0, after which a cluster without a client ends. None: 60 s when no
      run uses it, and 3,600 s in any case. A number is used for both
    - ``idle``: a time such as "30m", or seconds, from 1 s, after which a cluster that no cell and no run has
      used ends, and releases its hosts; None for never. docs/hosts.md says what counts as use
    - ``save_before``: a time such as "5m", or seconds: runs write a state so long before the job of their
      hosts ends, where that is known (slurm, batch, kubernetes), also without ``checkpoint_every``; 0 for
      none. None for 5 minutes
    - ``requeue``: whether the job of the hosts is submitted again when it has no time left, or was preempted.
      The tasks start again on its hosts then, and a run that this process follows continues from its newest
      state (docs/slurm.md)
    - ``tunnel``: a host that ssh reaches, such as "login1": the cluster's head is there, all connections to
      it go through one ssh, and the cluster is detached (docs/hosts.md). None for a head on this host
    - ``settings``: settings of the launcher, if it has any (see ``%cluster --help``)

    The cluster ends with this process, unless a run on it is under way (or it is detached). Other processes
    can use it with `Cluster.attach`.

    Raises InvalidArgumentError for an invalid value, MissingExtra if the launcher or the GPUs need a package
    that is not installed, FailedPreconditionError if a cluster of that id is running, UnavailableError if a
    process dies while it starts, and DeadlineExceededError after ``timeout`` seconds.

        cluster = nb.start_cluster(workers=3, ps=1)
        controller 0.4 s
        4 engines 0.2 s
        servers 0.1 s
        ready in 0.7 s: 3 workers, 1 ps
    """
    given = {name: value for name, value in locals().items() if name not in ("settings", "tunnel", "report")}
    for name in settings.keys() - all_settings().keys():
        raise TypeError(f"start_cluster() got an unexpected keyword argument {name!r}")
    if tunnel is not None:
        return start_through(tunnel, {**given, **settings}, report or (lambda line: None), Cluster.attach)
    spec, why = choose_launcher(launcher, settings)
    if why and report is not None:
        report(f"launcher {spec.name}: {why}")
    settings = spec.read_settings(settings)
    hosts = spec.hosts(settings)
    if report is not None and not hosts and (left := unused_nodes(spec)):
        report(left)
    wanted = WORKERS if workers is None and not hosts else workers
    check_counts(1 if wanted is None else wanted, ps, threads, gpu_memory, data)
    parse_gpus(gpus)  # here: a job may wait in a queue for hours before the GPUs of its hosts are known
    for name, seconds in (("timeout", timeout), ("orphan_timeout", orphan_timeout)):
        if (seconds is not None or name == "timeout") and not (number(seconds) or 0.0) > 0:
            raise InvalidArgumentError(f"{name} is a number of seconds above 0, not {seconds!r:.60}")
    check_switch("detached", detached)
    check_switch("requeue", requeue)
    unused = None if idle is None else parse_seconds("idle", idle, LEAST_UNUSED)
    before = SAVE_BEFORE if save_before is None else parse_seconds("save_before", save_before)
    if save_before is not None and before and not spec.timed:
        raise InvalidArgumentError(
            f"save_before={save_before!r}: with launcher {spec.name!r} no time is known at which a job ends; "
            "leave it out, and start runs with --checkpoint-every"
        )
    if requeue and (refusal := spec.not_requeued(settings)):
        raise InvalidArgumentError(f"requeue with launcher {spec.name!r}: {refusal}; leave it out")
    spec.check()
    asked = {
        "launcher": spec.name,
        "gpus": gpus,
        "gpu_memory": gpu_memory,
        "threads": threads,
        "memory": memory,
        "save_before": before,
        "idle": unused,
        "requeue": requeue,
        "orphan_timeout": orphan_timeout,
        **settings,
    }

    def spread(hosts: Sequence[Host]) -> tuple[dict[str, int], int]:
        slots = worker_slots(hosts or (Host(HERE, wanted),), wanted)
        slots = {name: count for name, count in slots.items() if count}  # a host without workers has no tasks
        check_counts(sum(slots.values()), ps, threads, gpu_memory, data)
        if min_workers is not None and hosts and spec.fixed_size:
            raise InvalidArgumentError(
                f"min_workers={min_workers!r} with launcher {spec.name!r}: {spec.fixed_size}, so that hosts "
                "which come later could not join; leave it out"
            )
        return slots, check_least(min_workers, sum(slots.values()), bool(hosts))

    def spread_on(names: Sequence[str]) -> tuple[dict[str, int], int]:
        return spread([Host(name, one.slots) for name, one in zip(names, hosts, strict=False)])

    slots, least = spread(hosts)
    memory_limit = parse_memory(memory)

    def planned(slots: Mapping[str, int], found: Mapping[str, HostResources]) -> tuple[TaskPlan, ...]:
        return plan_placed(
            place(slots, ps, data), sum(slots.values()), ps, data, found,
            threads=threads, gpu_memory=gpu_memory, memory=memory_limit,
        )  # fmt: skip

    plans = None if hosts else planned(slots, {HERE: own_resources(gpus, slots[HERE])})
    with _full_disk_explained():
        start = _Startup(
            _Wanted(slots, least, ps + data, data, gpus, planned, spread_on), plans,
            new_id() if cluster_id is None else cluster_id, timeout,
            report or (lambda line: None), spec, settings, asked,
            {"idle": unused, "save_before": before, "requeue": requeue},
        )  # fmt: skip
        cluster = start.run(None if detached else OrphanTimeout.of(orphan_timeout))
    if binding := describe_binding({f"{plan.job}:{plan.index}": plan.environment for plan in start.plans}):
        start.report(binding)
    start.report(f"ready in {time.monotonic() - start.begun:.1f} s")
    if requeue:
        cluster.follow_jobs(start.report)
    if awaited := cluster.await_hosts(start.report, start.missing):
        start.report(describe_awaited(awaited))
    return cluster


@contextmanager
def _full_disk_explained() -> Iterator[None]:
    """Turn the operating system's error for a full disk into one that names the folder and the remedy."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NbdistError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ResourceExhaustedError(
            f"no cluster was started: {error.strerror} in {error.filename or home_path()}; free some space "
            "there, or set NBDIST_HOME to a folder on another disk"
        ) from None


def own_resources(gpus: str | int, workers: int) -> HostResources:
    """Return what this host gives a cluster; ``gpus`` and ``workers`` are those of `start_cluster`.

    Raises InvalidArgumentError, MissingExtra and UnavailableError for GPUs that cannot be used.
    """
    use = choose_gpus(gpus, () if gpus in ("none", 0) else list_gpus())
    require_gpus(use)
    return HostResources(count_cores(), use, worker_cores(workers, use))


@dataclass
class _Wanted:
    """What a cluster is to have.

    ``slots`` are the workers that each host takes, ``least`` is the number of workers with which it is ready,
    ``others`` that of its other tasks, and ``data`` that of the data tasks among them. ``planned`` returns
    the plans for what the hosts have. ``spread_on`` returns ``slots`` and ``least`` for a job that has fewer
    nodes than it may have, by their names; InvalidArgumentError if these do not take all workers.
    """

    slots: Mapping[str, int]
    least: int
    others: int
    data: int
    gpus: str | int
    planned: Callable[[Mapping[str, int], Mapping[str, HostResources]], tuple[TaskPlan, ...]]
    spread_on: Callable[[Sequence[str]], tuple[Mapping[str, int], int]]

    def room(self, hosts: Iterable[str]) -> int:
        """Return how many workers these hosts take."""
        return sum(self.slots[name] for name in hosts)


class _Startup:
    """A cluster that is starting: its deadline, its phases, and the clean-up if one fails.

    ``plans`` are those of tasks on this host alone; None if they follow from what other hosts have.
    """

    def __init__(
        self,
        wanted: _Wanted,
        plans: tuple[TaskPlan, ...] | None,
        cluster_id: str,
        timeout: float,
        report: Report,
        launcher: LauncherSpec,
        settings: dict[str, Any],
        asked: dict[str, Any],
        limits: dict[str, Any],
    ) -> None:
        self.wanted, self.plans = wanted, plans or ()
        self.hosts = [] if plans is not None else list(wanted.slots)
        self.missing: dict[str, str] = {}
        """Why a host has not joined, by its name."""
        self.refused: dict[str, str] = {}
        """Why a host that has joined cannot have tasks."""
        self.launcher, self.settings, self.asked, self._limits = launcher, settings, asked, limits
        self.timeout = timeout
        self.report = report
        self.begun = self.phase_begun = time.monotonic()
        self.deadline = self.begun + timeout
        self.folder, self._lock = claim(cluster_id)
        self.keys = ClusterKeys.create()
        self.supervisor: SupervisorClient | None = None
        self.client: Any = None

    def run(self, orphan_timeout: OrphanTimeout | None) -> Cluster:
        try:
            self.keys.save(self.folder / "keys")
            try:
                self.supervisor = SupervisorClient.start(
                    self.folder, self._lock, self._plan(orphan_timeout), self._shared_environment()
                )
            finally:
                os.close(self._lock)  # the supervisor holds it now
            self._controller()
            if self.hosts:
                self._join_hosts()
            self._engines()
            roster = self._servers()
            self.supervisor.ask("ready")
            description = self._describe(roster)
            if orphan_timeout is not None:
                description["owner"] = this_process()
            description["listing"] = write_ipyparallel_files(
                self.folder, self.supervisor.pids[CONTROLLER], roster
            )
            write_description(self.folder, description)
            owner = orphan_timeout is not None
            return Cluster(self.folder, roster, self.keys, self.supervisor, self.client, owner)
        except BaseException:
            self._undo()
            raise

    def _plan(self, orphan_timeout: OrphanTimeout | None) -> dict[str, Any]:
        return {
            "cluster_id": self.folder.name,
            "folder": str(self.folder),
            "orphan_timeout": None if orphan_timeout is None else [orphan_timeout.idle, orphan_timeout.busy],
            "timeout": self.timeout,
            "launcher": self.launcher.name,
            "settings": self.settings,
            **self._limits,
            "tasks": [plan.to_dict() for plan in self.plans],
            "expected": self.wanted.room(self.wanted.slots) + self.wanted.others,
            "data": self.wanted.data,
            "hosts": self.hosts,
            "versions": own_versions(),
            "keys": self.keys.to_dict() if self.hosts else None,
        }

    def _shared_environment(self) -> dict[str, str]:
        """Return the variables that all tasks share: the supervisor's imports read them, before it forks."""
        if not self.plans:
            return {}
        first, *others = (plan.environment.items() for plan in self.plans)
        shared = dict(set(first).intersection(*others))
        return shared | kernel_cache() if any(plan.device != "CPU:0" for plan in self.plans) else shared

    def _controller(self) -> None:
        supervisor = self.connected()
        import ipyparallel  # noqa: F401 - imported here, while the supervisor does the same

        while not (started := supervisor.take("started")):
            self._wait("the controller")
        while self.client is None:
            try:
                self.client = connect_client(started[0]["connection"], min(2.0, self._left()))
            except UnavailableError:
                self._wait("the controller", 0.0)
        self._phase("controller")

    def _rename(self, before: Sequence[str], names: Sequence[str]) -> None:
        """Take the real names of hosts, in the order of those that stood for them; there may be fewer."""
        if len(names) < len(before):
            self.wanted.slots, self.wanted.least = self.wanted.spread_on(names)
            self.hosts = list(self.wanted.slots)
            return
        other = dict(zip(before, names, strict=False))
        slots = {other.get(name, name): count for name, count in self.wanted.slots.items()}
        self.hosts = [name for name in slots if name in names or name not in before]
        self.wanted.slots = {name: slots[name] for name in self.hosts}

    def _join_hosts(self) -> None:
        """Wait for the supervisors of other hosts, all or enough of them, and have them start their tasks."""
        supervisor, decided = self.connected(), math.inf
        while awaited := [
            name for name in self.hosts if name not in supervisor.hosts and name not in self.missing
        ]:
            if time.monotonic() > decided + JOIN_SECONDS:
                break
            self._wait(f"the host{'s' * (len(awaited) > 1)} {', '.join(awaited)}")
            joined = [name for name in self.hosts if name in supervisor.hosts]
            possible = [name for name in self.hosts if name not in self.missing]
            least = self.wanted.least
            if self.wanted.room(joined) >= least or self.wanted.room(possible) < least:
                decided = min(decided, time.monotonic())
        reports = {name: supervisor.hosts[name] for name in self.hosts if name in supervisor.hosts}
        self.refused, notes = judge_joined(
            reports,
            software([*CORE, *self.launcher.packages]),
            named=bool(self.asked.get("hosts")),
            needs=self.launcher.needs,
        )
        joined = [name for name in reports if name not in self.refused]
        if self.wanted.room(joined) < self.wanted.least:
            self._raise_missing(reports)
        if self.refused:
            supervisor.ask("refuse_hosts", self._left(), hosts=list(self.refused))
        slots = {name: self.wanted.slots[name] for name in joined}
        found = {name: resources_of(supervisor.hosts[name], self.wanted.gpus, slots[name]) for name in joined}
        self.plans = self.wanted.planned(slots, found)
        self.deadline = min(
            self.deadline, time.monotonic() + self.timeout
        )  # hosts that it starts without may wait
        self._phase(f"{len(joined)} host{'s' * (len(joined) > 1)}")
        for why in dict.fromkeys([*self.missing.values(), *self.refused.values()]):
            self.report(f"{why}. The cluster starts without it")
        for note in notes.values():
            self.report(note)
        if self.launcher.notice and len(joined) > 1:
            self.report(self.launcher.notice)
        supervisor.ask("place", self._left(), places=[plan.host for plan in self.plans])
        for plan in self.plans:
            supervisor.ask("start", self._left(), task=plan.to_dict())

    def _raise_missing(self, reports: Mapping[str, Mapping[str, Any]]) -> NoReturn:
        """Raise an error that says why the hosts are not enough."""
        why = list(dict.fromkeys([*self.missing.values(), *self.refused.values()]))
        late = [name for name in self.hosts if name not in reports and name not in self.missing]
        why.extend(f"host {name}: not there yet when the start failed" for name in late)
        table = versions_table({name: report["versions"] for name, report in reports.items()})
        kind = UnavailableError if self.missing else FailedPreconditionError
        raise kind("\n".join(why) + table)

    def _engines(self) -> None:
        wanted = len(self.plans)
        hub, asked = HubEngines(self.client), time.monotonic()
        while len(self.client.ids) < wanted:
            self._wait("the engines", 0.005)
            if time.monotonic() - asked > ASK_SECONDS:  # the client misses notifications while it connects
                asked = time.monotonic()
                hub.ids()
        self._phase(f"{wanted} engine{'s' * (wanted > 1)}")

    def _servers(self) -> Roster:
        views = {plan.rank: self.client.direct_view(plan.rank, block=False) for plan in self.plans}
        keys = self.keys.to_dict()
        opening = {
            plan.rank: open_server(
                views[plan.rank], plan, keys, self.connected().place_of(plan.host), self.folder.name
            )
            for plan in self.plans
        }
        roster = tuple(TaskInfo.from_dict(self._result(rank, call)) for rank, call in opening.items())
        infos = [info.to_dict() for info in roster]
        joining = {
            rank: view.apply_async(on_task.join_roster, infos, self.folder.name)
            for rank, view in views.items()
        }
        for rank, call in joining.items():
            self._result(rank, call)
        self._phase("servers")
        return roster

    def _result(self, rank: int, call: Any) -> Any:
        while not call.ready():
            call.wait(0.02)
            self._wait("the Servers", 0.0)
        try:
            return call.get()
        except Exception as error:
            given_up = time.monotonic() + EXIT_SECONDS
            while is_engine_death(error) and time.monotonic() < given_up:
                self._wait("the Servers")
            raise UnavailableError(f"the Server of {self.plans[rank].name} did not start: {error}") from error

    def _wait(self, what: str, wait: float = 0.05) -> None:
        """Let up to `wait` seconds pass; raise if a process has died, or at the deadline."""
        supervisor = self.connected()
        supervisor.listen(wait)
        ended = supervisor.ended()
        if supervisor.closed and not ended:
            raise UnavailableError(
                "the process that starts the cluster failed:\n"
                f"{supervisor.stopping or supervisor.log_tail() or '(no output)'}"
            )
        for failed in supervisor.take("command_ended"):
            for host in failed["hosts"]:
                if host in self.refused:
                    continue
                self.missing[host] = self.launcher.explain(host, failed["code"], failed["errors"])
        for waiting in supervisor.take("waiting"):
            if not self.plans:
                self.deadline = math.inf  # a queue may take hours; the cell shows why, and can be interrupted
            self.report(waiting["reason"])
        for named in supervisor.take("hosts"):
            self.deadline = min(self.deadline, time.monotonic() + self.timeout)
            self._rename(named["before"], named["names"])
        for lost in supervisor.take("host_lost"):
            if lost["name"] in self.refused:
                continue
            raise UnavailableError(f"{lost['reason']}, while the cluster started")
        for rank, how in ended.items():
            name = "the controller" if rank == CONTROLLER else self.plans[rank].name
            raise UnavailableError(
                f"{name} (pid {how['pid']}) did not start: {describe_exit(how)}; its log ends with:\n"
                f"{how['log'].strip() or '(nothing)'}{disk_full_hint(self.folder)}"
            )
        if self._left() <= 0:
            registered = set(self.client.ids) if self.client is not None else set()
            missing = [plan.name for plan in self.plans if plan.rank not in registered]
            missing = missing if self.plans else [one for one in self.hosts if one not in self.refused]
            raise DeadlineExceededError(
                f"{what} did not come up within {self.timeout:g} s; "
                f"missing: {', '.join(missing) or 'none'}; raise timeout= if this host is slow"
            )

    def _phase(self, name: str) -> None:
        now = time.monotonic()
        self.report(f"{name} {now - self.phase_begun:.1f} s")
        self.phase_begun = now

    def _describe(self, roster: Roster) -> dict[str, Any]:
        return {
            "id": self.folder.name,
            "created": time.time(),
            "workers": sum(plan.job == "worker" for plan in self.plans),
            "ps": sum(plan.job == "ps" for plan in self.plans),
            "data": sum(plan.job == "data" for plan in self.plans),
            "tasks": [info.to_dict() for info in roster],
            "versions": own_versions(),
            "asked": self.asked,
            "slots": dict(self.wanted.slots) if self.hosts else {},
            "gpus": list(self.plans[0].gpus) if not self.hosts else [],
        }

    def _undo(self) -> None:
        if self.client is not None:
            close_client(self.client)
        if self.supervisor is not None:
            try:
                self.supervisor.end(UNDO_SECONDS)
            except UnavailableError as error:  # the error of the start follows
                self.report(str(error))
        remove_traces(self.folder, self.folder.name)

    def connected(self) -> SupervisorClient:
        """Return the connection to the supervisor, which has been started."""
        assert self.supervisor is not None
        return self.supervisor

    def _left(self) -> float:
        return self.deadline - time.monotonic()


def disk_full_hint(folder: Path) -> str:
    """Return a hint if the disk is full: a process that dies of it cannot even log the reason."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""
    if disk.f_bavail * disk.f_frsize >= LEAST_DISK_SPACE:
        return ""
    return f"\nThe disk of {folder} is full: make room there, or set NBDIST_HOME to another folder"
