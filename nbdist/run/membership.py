"""What a run allows of its workers: `MembershipRules`, which follow from its options. Pure.

    rules = MembershipRules.of(options, workers=4, servers=1)
    rules.least(), rules.needs_chief, rules.why_fixed

Whatever decides about lost, new and leaving workers reads them here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nbdist.distribute.registry import names_of
from nbdist.distribute.spec import StrategySpec
from nbdist.run.options import MOST_RESTARTS, Options
from nbdist.runtime.task import TaskInfo


@dataclass(frozen=True)
class MembershipRules:
    """Which workers a run needs, and whether lost ones are replaced, new ones join, and others leave.

    ``options`` are resolved, ``spec`` is that of the strategy on the run's cluster; ``workers`` is how many
    take part at first.
    """

    options: Options
    spec: StrategySpec
    workers: int

    @classmethod
    def of(cls, options: Options, workers: int, servers: int) -> MembershipRules:
        """Return the rules of a run with these resolved options on so many workers and parameter servers."""
        return cls(options, options.spec_on(bool(servers)), workers)

    def servers(self, tasks: Iterable[TaskInfo]) -> list[TaskInfo]:
        """Return the parameter servers among a cluster's tasks that take part."""
        return [info for info in tasks if info.job == "ps" and self.spec.uses_parameter_servers]

    @property
    def trains(self) -> bool:
        """Whether the body is meant to train."""
        return self.options.wants_training

    def least(self, workers: int | None = None) -> int | None:
        """Return how many workers have to be left for training to continue after a death; None: all of them.

        ``workers`` is how many take part by now, if another number than at first.

        >>> MembershipRules.of(Options(strategy="ps", synchronous=True, backups=1), 4, servers=1).least()
        3
        """
        workers = self.workers if workers is None else workers
        needed = self._needed(workers)
        if not self.spec.survives_worker_loss or needed >= workers or self.options.replicated.in_client:
            return None
        return max(needed, self.options.min_workers or 1)

    def _needed(self, workers: int) -> int:
        """Return how many workers' gradients a step needs."""
        return self.spec.needed(self.options.settings(), bool(self.options.synchronous), workers)

    @property
    def needs_chief(self) -> bool:
        """Whether the run ends with the first worker, whatever the others do.

        >>> [MembershipRules.of(Options(strategy=name), 2, 1).needs_chief for name in ("ps", "multi_worker")]
        [True, False]
        """
        return not self.spec.survives_chief_loss

    @property
    def most_restarts(self) -> int:
        """The restart budget: how many lost tasks of the run are replaced."""
        return MOST_RESTARTS if self.options.max_restarts is None else self.options.max_restarts

    @property
    def replaces_workers(self) -> bool:
        """Whether the new process of a lost worker can join the run.

        >>> MembershipRules.of(Options(strategy="ps"), 2, 1).replaces_workers
        True
        >>> MembershipRules.of(Options(), 2, 0).replaces_workers
        False
        >>> MembershipRules.of(Options(strategy="multi_worker", collective="mpi"), 2, 0).replaces_workers
        False
        """
        fixed = self.options.replicated.why_fixed or self.options.framework is not None
        return self.spec.takes_new_workers and not (fixed or self.options.takes_no_process)

    @property
    def awaits_workers(self) -> bool:
        """Whether a step that needs a lost worker waits for its new process.

        >>> MembershipRules.of(Options(strategy="ps", synchronous=True), 2, 1).awaits_workers
        True
        >>> MembershipRules.of(Options(strategy="ps", synchronous=True, max_restarts=0), 2, 1).awaits_workers
        False
        """
        waits = self.spec.awaits_new_workers and bool(self.options.synchronous)
        fits = self._needed(self.workers) <= self.workers
        return waits and fits and self.replaces_workers and self.most_restarts > 0

    @property
    def why_fixed(self) -> str:
        """Why no workers can join or leave the run; empty if they can.

        >>> MembershipRules.of(Options(strategy="multi_worker"), 2, 0).why_fixed
        ''
        >>> MembershipRules.of(Options(strategy="multi_worker", on="worker:0-1"), 2, 0).why_fixed
        'it runs on --on worker:0-1'
        """
        options, name = self.options, self.spec.name
        if options.framework is not None:
            return f"the processes of --framework {options.framework} are a fixed group"
        if options.replicated.why_fixed:
            return options.replicated.why_fixed
        if options.on is not None:
            return f"it runs on --on {options.on}"
        if name == "ps" and options.synchronous:
            return (
                "synchronous replicas of ps neither join nor leave; asynchronous ones (--async), and those "
                "of --strategy multi_worker, do"
            )
        if not self.spec.resizes:
            return f"replicas of {name} neither join nor leave; those of {', '.join(names_of('resizes'))} do"
        return ""
