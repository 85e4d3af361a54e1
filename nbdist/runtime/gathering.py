"""Where the tasks of a run find each other: a service on the first one's Server.

    replica                                    service
    group.card   run, group, card ──────────► group.cards (pushed to all), once all ranks have come
    group.roll   run, group ────────────────► group.present (pushed to all): the ranks that are left
    group.gone   run, ranks ────────────────► those tasks are gone, as one of the others has seen
    group.ended  run ───────────────────────► who waits for this rank is refused: it comes to nothing more

Ranks are those of tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nbdist.errors import AbortedError, InvalidArgumentError, NbdistError, TaskDiedError, UnavailableError
from nbdist.runtime.server import Server
from nbdist.wire.frames import Frame
from nbdist.wire.messages import error_frame
from nbdist.wire.peers import Sender

Array = np.ndarray[Any, Any]
KEPT_RUNS = 64  # whose end is remembered


class Gathering:
    """Brings the ranks of a group together; all calls come from the Server's thread."""

    def __init__(self, server: Server) -> None:
        self._runs: dict[str, _Run] = {}
        self._past: deque[str] = deque(maxlen=KEPT_RUNS)
        self._name = server.name
        for kind, handler in (
            ("group.card", self._card),
            ("group.roll", self._roll),
            ("group.gone", self._gone),
            ("group.ended", self._ended),
        ):
            server.on(kind, partial(self._heed, handler))

    def lose(self, run: str, ranks: list[int]) -> None:
        """Note that tasks of a run are gone: roll calls do without them, groups with them are refused."""
        here = self._of(run)
        here.lost.update(ranks)
        for name in list(here.rolls):
            self._see_roll(here, name)
        for name in list(here.groups):
            self._see_group(here, name)

    def lost(self, run: str) -> list[int]:
        """Return the ranks of a run that are gone, as far as it is known here."""
        return sorted(self._runs[run].lost) if run in self._runs else []

    def drop_run(self, run: str) -> None:
        """Forget a run, with groups of it that were never complete; who comes now is told that it is over."""
        self._runs.pop(run, None)
        self._past.append(run)

    def _heed(self, handler: Callable[[Frame, Sender], None], frame: Frame, sender: Sender) -> None:
        run = str(frame.meta["run"])
        if run not in self._past:
            handler(frame, sender)
        elif frame.kind in ("group.card", "group.roll"):
            _push(sender, self._failure(AbortedError(f"run {run} has ended without this replica")))

    def _card(self, frame: Frame, sender: Sender) -> None:
        here, name = self._of(frame.meta["run"]), str(frame.meta["group"])
        rank, ranks = int(frame.meta["rank"]), tuple(frame.meta["ranks"])
        if rank not in ranks or len(frame.arrays) != 1:
            what = f"rank {rank} of {list(ranks)} brought {len(frame.arrays)} cards to {name}"
            _push(sender, error_frame(InvalidArgumentError(what), self._name))
            return
        group = here.groups.setdefault(name, _Group(ranks))
        group.came[rank] = (sender, np.array(frame.arrays[0]))
        self._see_group(here, name)

    def _see_group(self, here: _Run, name: str) -> None:
        group = here.groups[name]
        missing = set(group.ranks) - group.came.keys()
        if not missing:
            cards = tuple(group.came[rank][1] for rank in group.ranks)
            self._answer(here.groups.pop(name), Frame("group.cards", {}, cards))
        elif gone := sorted(missing & here.lost):
            error = TaskDiedError(f"the task of rank {gone[0]} has died")
            self._answer(here.groups.pop(name), self._failure(error))
        elif over := sorted(missing & here.over):
            self._answer(here.groups.pop(name), self._failure(_over(over[0])))

    def _roll(self, frame: Frame, sender: Sender) -> None:
        here, name = self._of(frame.meta["run"]), str(frame.meta["group"])
        rank, ranks = int(frame.meta["rank"]), tuple(frame.meta["ranks"])
        if rank in here.lost:
            error = UnavailableError(f"the others have continued without rank {rank}, which did not answer")
            _push(sender, self._failure(error))
            return
        here.rolls.setdefault(name, _Group(ranks)).came[rank] = (sender, np.empty(0, np.uint8))
        self._see_roll(here, name)

    def _see_roll(self, here: _Run, name: str) -> None:
        roll = here.rolls[name]
        missing = set(roll.ranks) - roll.came.keys() - here.lost
        if over := sorted(missing & here.over):
            self._answer(here.rolls.pop(name), self._failure(_over(over[0])))
        elif not missing:
            present = [rank for rank in roll.ranks if rank in roll.came]
            self._answer(here.rolls.pop(name), Frame("group.present", {"ranks": present}))

    def _gone(self, frame: Frame, sender: Sender) -> None:
        self.lose(str(frame.meta["run"]), [int(rank) for rank in frame.meta["gone"]])

    def _ended(self, frame: Frame, sender: Sender) -> None:
        here = self._of(frame.meta["run"])
        here.over.add(int(frame.meta["rank"]))
        for name in list(here.groups):
            self._see_group(here, name)
        for name in list(here.rolls):
            self._see_roll(here, name)

    def _of(self, run: str) -> _Run:
        return self._runs.setdefault(str(run), _Run())

    def _failure(self, error: NbdistError) -> Frame:
        return error_frame(error, self._name)

    @staticmethod
    def _answer(group: _Group, frame: Frame) -> None:
        for sender, _ in group.came.values():
            _push(sender, frame)


@dataclass
class _Group:
    ranks: tuple[int, ...]
    came: dict[int, tuple[Sender, Array]] = field(default_factory=dict)


@dataclass
class _Run:
    groups: dict[str, _Group] = field(default_factory=dict)
    rolls: dict[str, _Group] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)
    """Ranks whose part of the run has ended."""


def _over(rank: int) -> UnavailableError:
    return UnavailableError(
        f"the task of rank {rank} has ended its part of the run and others wait for it, in a collective call "
        "or a fit: every worker has to make the same ones, in the same order"
    )


def _push(sender: Sender, frame: Frame) -> None:
    with suppress(ConnectionError):  # it has died; the others learn of it in the group
        sender.push(frame)
