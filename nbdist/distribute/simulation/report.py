"""What a simulation found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """One strategy on one cluster. A step is one batch on every worker.

    `messages` and `bytes` travel over sockets in a step, `host_messages` through the memory of a host.
    `busiest_link_bytes` go through the busiest host's link in a step, one way. `critical_path_s` is from the
    start of a step to the last update that it needs. `batches_per_second` counts what all workers have done
    together, without what was dropped; `efficiency` is that as a part of what they could do undisturbed.
    `staleness` is how many updates a gradient is late, on average.
    """

    strategy: str
    workers: int
    servers: int
    hosts: int
    messages: int
    host_messages: int
    bytes: int
    busiest_link_bytes: int
    critical_path_s: float
    steps_per_second: float
    batches_per_second: float
    efficiency: float
    staleness: float = 0.0

    def __str__(self) -> str:
        name = f"{self.strategy}, {self.servers} servers" if self.servers else self.strategy
        return (
            f"{name}: {self.batches_per_second:,.4g} batches/s ({self.efficiency:.0%}), "
            f"{self.messages:,} messages and {self.busiest_link_bytes / 1e6:,.4g} MB "
            "through the busiest link in a step"
        )


class Traffic:
    """Messages and bytes, in all and on each host's link."""

    def __init__(self) -> None:
        self.messages = self.host_messages = self.bytes = 0
        self.out: dict[int, int] = {}
        self.into: dict[int, int] = {}

    def add(self, source: int, target: int, messages: int, nbytes: int) -> None:
        """Note messages over sockets from host to host; within a host they touch no link."""
        self.messages += messages
        self.bytes += nbytes
        if source != target:
            self.out[source] = self.out.get(source, 0) + nbytes
            self.into[target] = self.into.get(target, 0) + nbytes

    @property
    def busiest(self) -> int:
        """How many bytes the busiest link carried, one way."""
        return max([0, *self.out.values(), *self.into.values()])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traffic) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"<{self.messages} messages, {self.bytes:,} bytes, {self.busiest:,} on the busiest link>"


def spread_over(tasks: int, hosts: int) -> list[int]:
    """Return the host of each task, in order, as evenly as can be.

    >>> spread_over(5, 2)
    [0, 0, 0, 1, 1]
    """
    return [task * hosts // tasks for task in range(tasks)]
