"""Which copy restores a parameter server that died, and how many updates are lost. Pure.

Replicas of an asynchronous training survive the death of a parameter server: each opens its shard again on
the new process, and offers its copy of the parameters. The new process collects the offers of all living
replicas (for 2 s at most), and has the replica with the newest one send it.

A server's process applies gradients one after the other, so every gradient has a position in that order, and
a copy with the version V contains the first V of them. A replica knows the position of each of its gradients
that was acknowledged. The largest position that any of them knows, less the version of the chosen copy, is
the number of updates that are lost. What was under way and never acknowledged counts in neither: the old
process may have applied it, and the new one never receives it.

Replicas that make steps together have equal copies, at most one step apart, and each keeps the gradient that
it sent last. A restored shard continues to count its updates where the copy is, so the version decides: a
gradient that was made from it is sent again, and an older one is part of it. Without backups all replicas
offer (the new process of one that died as well has no copy), and no step is lost. With backups the first
gradients that arrive make the step again.

A training that has lost several processes of a server counts ``base``, the gradients that earlier ones had
applied, and ``generation``, how many there were: a copy of a later process is newer than any of an earlier
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Offer:
    """What a replica knows of a shard whose server died, beside its copy of the parameters."""

    replica: int
    version: int
    """Updates in the copy, of the process that died."""
    known: int
    """The largest position of a gradient that was acknowledged, or the version if that is larger."""
    global_step: int
    """The largest that the replica has seen."""
    made: int
    """Gradients of this replica that were acknowledged, by all processes of the server."""
    counted: int = 0
    """Updates of all shards that this replica has counted there."""
    generation: int = 0
    base: int = 0
    began: int = 0
    """The global step before the first update that a replica counted."""
    done: bool = False
    """Whether the replica has made all of its steps."""
    acknowledged: int = 0
    """The largest position of a gradient that was acknowledged."""

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, from which ``Offer(**values)`` is the same."""
        return asdict(self)


@dataclass(frozen=True)
class Restoration:
    """What a shard continues with on a new process."""

    replica: int
    """The replica that sends its copy."""
    lost: int
    """Updates that were acknowledged and are not in the copy."""
    global_step: int
    base: int
    """Gradients in the copy."""
    generation: int
    made: tuple[int, ...]
    """Gradients of each replica that are counted as made."""
    counted: tuple[int, ...]
    began: int
    version: int = 0
    """The number of updates from which the shard continues to count: of replicas that make steps together."""

    def to_wire(self) -> dict[str, Any]:
        """Return plain values for a message."""
        return asdict(self)


def newest(offers: Sequence[Offer]) -> Offer:
    """Return the offer of the newest copy; of equally new ones that of the lowest replica.

    A standby (replica -1) precedes newer copies if it has all that was acknowledged: it alone knows which
    gradients are in it, so that workers send again what is not, with nothing lost and nothing taken twice.

    >>> newest([Offer(0, 7, 7, 7, 3), Offer(1, 9, 9, 9, 4), Offer(2, 9, 9, 9, 2)]).replica
    1
    >>> ahead = Offer(0, 9, 9, 9, 4, acknowledged=8)
    >>> newest([ahead, Offer(-1, 8, 8, 8, 0)]).replica, newest([ahead, Offer(-1, 7, 7, 7, 0)]).replica
    (-1, 0)
    """
    best = max(offers, key=lambda one: (one.generation, one.version, -one.replica))
    same = [one for one in offers if one.generation == best.generation]
    standby = next((one for one in same if one.replica < 0), None)
    if standby is not None and all(one.acknowledged <= standby.version for one in same):
        return standby
    return best


def step_restoration(offers: Mapping[int, Offer], replicas: int, backups: bool) -> Restoration:
    """Return what a shard of replicas that make steps together continues with, given at least one offer.

    >>> offers = {0: Offer(0, 7, 8, 7, made=7), 1: Offer(1, 8, 8, 8, made=8)}
    >>> found = step_restoration(offers, replicas=2, backups=False)
    >>> found.replica, found.lost, found.global_step, found.version, found.made
    (1, 0, 8, 8, (8, 8))
    >>> step_restoration({0: Offer(0, 7, 9, 7, made=5)}, replicas=2, backups=True).lost
    2
    """
    best = max(offers.values(), key=lambda one: (one.version, -one.replica))
    step = best.began + best.version
    if backups:  # some replica may have seen a step that is not in any copy
        step = max(step, *(one.global_step for one in offers.values()))
    return Restoration(
        replica=best.replica,
        lost=max(0, max(one.known for one in offers.values()) - best.version) if backups else 0,
        global_step=step,
        base=0,
        generation=best.generation + 1,
        made=tuple(
            (offers[r].made if r in offers else 0) if backups else best.version for r in range(replicas)
        ),
        counted=(0,) * replicas,
        began=step - best.version,
        version=best.version,
    )


def restoration(offers: Mapping[int, Offer], replicas: int, spare: int = 0) -> Restoration:
    """Return what a shard of asynchronous replicas continues with, given the offers of those that live.

    The global step is the largest that any replica has seen, so that it never goes back. A replica without an
    offer died with the server: what the others did not make is counted as made by those, in equal parts, so
    that their new processes continue about where they were. The last ``spare`` replicas
    count only with an offer.

    >>> found = restoration({0: Offer(0, 7, 9, 7, 3), 1: Offer(1, 8, 8, 8, 4)}, replicas=3)
    >>> found.replica, found.lost, found.global_step, found.base, found.made
    (1, 1, 8, 8, (3, 4, 1))
    """
    best = newest(list(offers.values()))
    same = [one for one in offers.values() if one.generation == best.generation]
    base = best.base + best.version
    missing = [replica for replica in range(replicas - spare) if replica not in offers]
    rest = max(0, base - sum(one.made for one in offers.values()))
    share = rest // len(missing) if missing else 0
    counted = {replica: one.counted for replica, one in offers.items()}
    any_counted = any(counted.values())
    began = max(one.began for one in same)
    step = max(one.global_step for one in offers.values())
    if any_counted:  # updates of all shards are counted by the replicas: all that they counted are known
        step = max(step, began + sum(counted.values()))
    return Restoration(
        replica=best.replica,
        lost=max(0, max(one.acknowledged if best.replica < 0 else one.known for one in same) - best.version),
        global_step=step,
        base=base,
        generation=best.generation + 1,
        made=tuple(offers[r].made if r in offers else share * (r in missing) for r in range(replicas)),
        counted=tuple(counted.get(r, share * (any_counted and r in missing)) for r in range(replicas)),
        began=began,
    )
