"""A run's logs in a store, to be drawn from: all of them, or of very long ones evenly spread parts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nbdist.errors import DataLossError, NbdistError
from nbdist.lab.curves import LOG, MOST_LOGS
from nbdist.lab.opening import open_regular
from nbdist.metrics.batch import by_series
from nbdist.metrics.log import FORMAT, MAGIC, damage, parse
from nbdist.metrics.store import RunStore

MOST = 64 << 20  # bytes that are read of a run's logs together
PIECE = 1 << 20
LEAST = 1 << 18  # bytes of a part of a log: it begins and ends within a frame


def filled(folder: str | Path) -> tuple[RunStore, list[str]]:
    """Return a store with the points of a run's logs, and what to say of those that are not in it."""
    store, notes = RunStore(recent=1), []
    logs, whole = [], 0
    for name in sorted(os.listdir(folder)):
        if LOG.fullmatch(name):
            with suppress(OSError, NbdistError):
                descriptor, status = open_regular(Path(folder, name))
                os.close(descriptor)
                logs.append((name, status.st_size))
                whole += status.st_size
    for name, size in logs[:MOST_LOGS]:
        most = size if whole <= MOST else int(size * MOST / whole)
        try:
            notes.extend(add_log(store, Path(folder, name), size, most))
        except DataLossError as error:
            notes.append(str(error))
        except (OSError, NbdistError):  # it was removed
            continue
    if whole > MOST:
        notes.append(
            f"its logs have {whole / 1e6:,.0f} MB: the curves are drawn from {MOST / 1e6:,.0f} MB of them"
        )
    return store, notes


def add_log(store: RunStore, path: Path, size: int, most: int) -> list[str]:
    """Put at most about ``most`` bytes of a log into the store; return a message about damage, or "".

    Its first piece has the names; damaged frames, and frames that the edge of a piece cuts, are skipped.
    Raises `DataLossError` if the file is not a metrics log.
    """
    descriptor, _ = open_regular(path)
    try:
        start = FORMAT.start(os.pread(descriptor, PIECE, 0), path.name)
        if start is None:  # its writer has just created it
            return []
        damaged = len(MAGIC) - start
        names: dict[int, str] = {}
        replica = int(path.name[8:].split(".")[0])
        rest = b""
        for at, length, joined in parts(len(MAGIC), size, most):
            data = (rest if joined else b"") + os.pread(descriptor, length, at)
            part = parse(data)
            damaged += part.damaged
            rest = data[part.offset :]
            names.update(part.names)
            replica = replica if part.replica is None else part.replica
            for series, steps, values, times in by_series(part.points):
                if series in names:
                    store.extend(replica, names[series], steps, values, times)
    finally:
        os.close(descriptor)
    said = damage(path.name, damaged) if size <= most else ""  # else pieces begin and end within frames
    return [said] if said else []


def parts(start: int, size: int, most: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (position, length, whether it follows the one before) of what is read of a log.

    >>> list(parts(0, 3 << 20, 3 << 20))
    [(0, 1048576, False), (1048576, 1048576, True), (2097152, 1048576, True)]
    >>> list(parts(0, 8 << 20, 1 << 20))
    [(0, 262144, False), (2708821, 262144, False), (5417642, 262144, False), (8126464, 262144, False)]
    """
    if size <= most:
        for at in range(start, size, PIECE):
            yield at, min(PIECE, size - at), at > start
        return
    count = max(2, most // LEAST)
    for index in range(count):
        yield start + index * (size - start - LEAST) // (count - 1), LEAST, False
