"""Groups of ranks on two hosts, each rank in its own process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from actors import Actor
from host_namespaces import ADDRESSES, TwoHosts

from nbdist.wire.keys import ClusterKeys

Infos = list[dict[str, Any]]


class Group:
    """Ranks by their hosts, such as "aabb"."""

    def __init__(self, hosts: TwoHosts, places: str, script: str = "ring_actor.py") -> None:
        self.places = places
        self.ranks = [hosts.run(place, script) for place in places]
        self.identities = [rank.do(do="where")["identity"] for rank in self.ranks]
        self.keys = ClusterKeys.create()

    def form(self, kind: str = "auto", change: Callable[[Infos], Infos] = lambda infos: infos) -> set[str]:
        """Form a new group of all ranks; return its kinds."""
        shared = {
            "hosts": self.identities,
            "names": [f"/job:worker/task:{rank}" for rank in range(len(self.places))],
            "incarnation": secrets.randbits(60),
            "prefix": f"nbdist-test{secrets.token_hex(4)}",
            "keys": self.keys.to_dict(),
        }
        for number, (rank, place) in enumerate(zip(self.ranks, self.places)):
            rank.ask(do="meet", kind=kind, member={**shared, "rank": number, "bind": ADDRESSES[place]})
        infos = change([rank.answer()["info"] for rank in self.ranks])
        for rank in self.ranks:
            rank.tell(infos)
        found = self.answers()
        assert all(isinstance(one, str) for one in found), found
        return set(found)

    def ask(self, **order: Any) -> None:
        """Send all ranks the same order."""
        for rank in self.ranks:
            rank.ask(**order)

    def answers(self, ranks: Sequence[Actor] = ()) -> list[Any]:
        """Return the answers of all or some ranks."""
        return [rank.answer() for rank in ranks or self.ranks]

    def all(self, **order: Any) -> list[Any]:
        """Send all ranks the same order; return their answers."""
        self.ask(**order)
        return self.answers()
