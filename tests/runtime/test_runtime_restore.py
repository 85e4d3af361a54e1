"""Which copy restores a parameter server, and what is lost: compared with a server of a few lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nbdist.runtime.ps.restore import Offer, newest, restoration, step_restoration

Steps = list[tuple[int, str]]
steps = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(("pull", "push", "acknowledge"))), max_size=60)


class Server:
    """Applies gradients in order; three replicas pull, push and receive acknowledgements when they like."""

    def __init__(self) -> None:
        self.applied: list[int] = []  # the replica of each gradient
        self.version, self.known, self.made = [0] * 3, [0] * 3, [0] * 3
        self.unacknowledged: list[list[int]] = [[], [], []]  # positions

    def run(self, what: Steps) -> None:
        for replica, step in what:
            if step == "pull":
                self.version[replica] = len(self.applied)
            elif step == "push":
                self.applied.append(replica)
                self.unacknowledged[replica].append(len(self.applied))
            elif self.unacknowledged[replica]:
                self.known[replica] = self.unacknowledged[replica].pop(0)
                self.made[replica] += 1

    def offers(self, living: set[int]) -> dict[int, Offer]:
        return {
            r: Offer(r, self.version[r], max(self.known[r], self.version[r]), self.version[r], self.made[r])
            for r in living
        }


@given(steps, st.sets(st.integers(0, 2), min_size=1))
def test_what_is_lost_is_what_was_acknowledged_and_is_not_in_the_newest_copy(
    what: Steps, living: set[int]
) -> None:
    server = Server()
    server.run(what)
    found = restoration(server.offers(living), replicas=3)
    versions = {r: server.version[r] for r in living}
    assert versions[found.replica] == max(versions.values()) == found.base == found.global_step
    assert found.replica == min(r for r, version in versions.items() if version == found.base)
    last = max((server.known[r] for r in living), default=0)
    assert found.lost == max(0, last - found.base)
    assert all(found.made[r] == server.made[r] for r in living)
    counted_for_the_dead = sum(found.made[r] for r in range(3) if r not in living)
    assert counted_for_the_dead <= max(0, found.base - sum(server.made[r] for r in living))


def test_a_copy_of_a_later_process_is_newer() -> None:
    first = Offer(0, version=90, known=95, global_step=90, made=40)
    second = Offer(1, version=3, known=4, global_step=93, made=45, generation=1, base=88)
    assert newest([first, second]) is second
    found = restoration({0: first, 1: second}, replicas=2)
    assert (found.lost, found.base, found.generation, found.global_step) == (1, 91, 2, 93)


def test_the_global_step_has_all_updates_that_replicas_have_counted() -> None:
    offers = {
        0: Offer(0, 9, 9, global_step=15, made=9, counted=8, began=2),
        1: Offer(1, 9, 9, global_step=14, made=9, counted=7, began=2),
    }
    assert restoration(offers, replicas=2).global_step == 17


@given(
    st.integers(0, 9),
    st.lists(st.sampled_from(("computes", "sent", "has the answer", "has pulled")), min_size=1),
)
def test_each_gradient_of_the_restored_step_is_sent_again_or_part_of_it(step: int, at: list[str]) -> None:
    """Replicas in step ``step``: all have sent their gradients before one has an answer."""
    if "computes" in at:  # no replica has an answer
        at = ["sent" if one.startswith("has") else one for one in at]
    offers = {
        r: Offer(r, step + (one == "has pulled"), step + one.startswith("has"), step, made=step)
        for r, one in enumerate(at)
    }
    found = step_restoration(offers, len(at), backups=False)
    assert found.version == max(offer.version for offer in offers.values())
    assert (found.global_step, found.lost) == (found.version, 0)
    if "has pulled" in at:
        assert found.version == step + 1  # with the gradients of all
    else:
        assert found.version == step  # all have their gradients of this step still, or are about to make them
    assert set(found.made) == {found.version}
