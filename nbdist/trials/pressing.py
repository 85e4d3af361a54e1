"""How attempts at trials are made to end: asked, then signalled, at last their engines are replaced."""

from __future__ import annotations

import time
from collections.abc import Mapping

from nbdist.runs.interrupt import REPLACE_AFTER, SIGNAL_AFTER
from nbdist.runs.replacing import Replacing
from nbdist.trials.engines import Attempt, Engines


class Pressing:
    """The attempts that are to end, each as far up the ladder as its time allows."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.told: dict[Attempt, tuple[float, int]] = {}
        """Since when each is to end, and how many rungs it has seen."""
        self._replacing: list[Replacing] = []

    def press(self, ending: Mapping[Attempt, tuple[str, float]]) -> None:
        """Do what is due: for each attempt why it is aborted, empty if it is stopped, and how patiently."""
        now = time.monotonic()
        self.told = {key: self.told.get(key, (now, 0)) for key in ending}
        for key, (reason, patience) in ending.items():
            since, rung = self.told[key]
            if rung == 0:
                self._engines.stop(*key, reason)
            elif rung == 1 and now - since >= SIGNAL_AFTER * patience:
                self._engines.interrupt(*key)
            elif rung == 2 and now - since >= REPLACE_AFTER * patience:
                stuck = self._engines.infos(*key)
                if stuck:
                    one = Replacing(self._engines.cluster)
                    one.begin(stuck, REPLACE_AFTER * patience)
                    self._replacing.append(one)
            else:
                continue
            self.told[key] = since, rung + 1

    def look(self) -> None:
        """Go on with engines that are being replaced."""
        for one in self._replacing:
            if one.under_way:
                one.look()
        self._replacing = [one for one in self._replacing if one.under_way or one.error is not None]

    @property
    def under_way(self) -> bool:
        """Whether an engine is being replaced."""
        return any(one.under_way for one in self._replacing)

    @property
    def trouble(self) -> str | None:
        """What could not be replaced, if that is so."""
        return next((one.told for one in self._replacing if one.error is not None), None)
