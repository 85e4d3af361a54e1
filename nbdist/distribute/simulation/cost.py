"""What things take on a simulated cluster: a few numbers, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError

Array: TypeAlias = np.ndarray[Any, Any]
ZERO_ALLOWED = ("spread", "slow_workers", "seed", "latency_s", "message_s", "socket_s_per_byte", "meeting_s")


@dataclass(frozen=True)
class Cost:
    """What things take. `_s` is in seconds, `_bytes` in bytes; a rate is in bytes per second.

    compute_s           a worker's forward and backward pass over one batch
    spread              by how much that varies: the standard deviation of its logarithm
    slow_workers        so many workers, the last ones, take `slow_factor` times as long
    backward_share      the part of compute_s in which gradients come, last layer first
    latency_s           from host to host, one way
    link_bytes_per_s    of each host's link, each way, shared by all tasks of the host
    memory_bytes_per_s  of each host's memory, shared by its tasks; a copy is a read and a write
    message_s           processor time at each end of a message over a socket
    socket_s_per_byte   processor time at each end for each byte: copied, encrypted, added
    meeting_s           for tasks of one host to meet in shared memory
    apply_s_per_byte    a parameter server's time to add or apply one byte of gradients
    cores               of each host, shared by its tasks; None for one or more for each task

    What concerns one host was measured on two cores (`python -m bench.calibrate`); the network is a 10 Gbit/s
    Ethernet; computing takes whatever the model takes, so give compute_s.
    """

    compute_s: float = 0.1
    spread: float = 0.05
    slow_workers: int = 0
    slow_factor: float = 3.0
    backward_share: float = 2 / 3
    latency_s: float = 25e-6
    link_bytes_per_s: float = 1.25e9
    memory_bytes_per_s: float = 1e11
    message_s: float = 50e-6
    socket_s_per_byte: float = 1e-9
    meeting_s: float = 2e-6
    apply_s_per_byte: float = 8e-11
    cores: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "cores":
                continue
            if value < 0 or (value == 0 and field.name not in ZERO_ALLOWED):
                wanted = "at least 0" if field.name in ZERO_ALLOWED else "above 0"
                raise InvalidArgumentError(f"{field.name} is {value!r}; it has to be {wanted}")

    def compute_times(self, workers: int, steps: int) -> Array:
        """Return how long each worker computes in each step, (steps, workers) seconds; the mean is compute_s.

        >>> Cost(compute_s=2.0, spread=0, slow_workers=1).compute_times(3, 1)
        array([[2., 2., 6.]])
        """
        logarithms = np.random.default_rng(self.seed).normal(0, self.spread, (steps, workers))
        times: Array = self.compute_s * np.exp(logarithms - self.spread**2 / 2)
        if self.slow_workers:
            times[:, -self.slow_workers :] *= self.slow_factor
        return times

    def copy_s(self, nbytes: int) -> float:
        """Return how long a copy in memory takes: a read and a write."""
        return 2 * nbytes / self.memory_bytes_per_s

    def shared_memory_s(self, what: str, nbytes: int, ranks: int) -> float:
        """Return how long a collective call takes in the memory of one host; `nbytes` is what a rank gives.

        The bytes read and written are those of the collectives in `nbdist.wire.collective.shm.collective`.
        """
        if ranks == 1:
            return 0.0
        if what == "all_reduce":  # pieces out, own share combined, results handed out and copied in
            moved = ranks * 5 * nbytes - 2 * nbytes
        elif what == "reduce_scatter":  # the first two of these three
            moved = ranks * 3 * nbytes + nbytes
        elif what == "all_gather":
            moved = 2 * ranks * nbytes * (1 + ranks)
        elif what == "broadcast":
            moved = 2 * nbytes * (1 + ranks)
        else:
            moved = 0
        return self.meeting_s + moved / self.memory_bytes_per_s
