"""`RunContents`: what an exporter reads of a run, from its folder alone.

    run.config          {"strategy": "ps", "learning_rate": 0.1, "seed": 7, "version.numpy": "2.4.0", ...}
    run.points()        the points of all replicas, in parts
    run.finals          {"loss": 0.12, "accuracy": 0.97}
    run.files()         checkpoints and artifacts

The logs are read twice: first to count their points and to know which series and replicas there are, then
part by part for the export. A log that grows is read up to its end at the first time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.metrics.log import Batch, by_series, damage, log_parts, logs_in, replica_of
from nbdist.metrics.run_folder import ARTIFACTS, RunFile
from nbdist.run.record import RunRecord, is_under_way
from nbdist.text import clip

LONGEST_VALUE = 250  # characters
SAME_ROW = 0.001  # seconds within which points of one step are a row
CHECKPOINTS = "checkpoints"
LABELS = ("name", "live")  # options that are no part of what the run was
Config = dict[str, str | int | float | bool]


@dataclass
class Curve:
    """One series of one replica: how many points it has, its last value, and whether all are finite."""

    count: int = 0
    last: float = 0.0
    finite: bool = True


@dataclass(frozen=True)
class Index:
    """What the logs of a run have: curves by (replica, name), how far each log was read, its damage."""

    curves: Mapping[tuple[int, str], Curve]
    ends: Mapping[Path, int]
    damage: tuple[str, ...]

    @property
    def points(self) -> int:
        """How many points there are."""
        return sum(curve.count for curve in self.curves.values())


@dataclass
class RunContents:
    """A run, for its export. ``report`` is called with the number of points so far, as `points` goes on."""

    record: RunFile
    folder: Path
    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    report: Callable[[int], object] = field(default=lambda done: None)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.record.id

    @cached_property
    def index(self) -> Index:
        """What its logs have."""
        curves: dict[tuple[int, str], Curve] = {}
        ends: dict[Path, int] = {}
        lost: list[str] = []
        for path in logs_in(self.folder):
            damaged = torn = 0
            ends[path] = path.stat().st_size
            for replica, names, part in _parts(path, ends[path]):
                damaged, torn = damaged + part.damaged, part.torn
                for series, _, values, _ in by_series(part.points):
                    curve = curves.setdefault((replica, _name(names, series)), Curve())
                    curve.count += len(values)
                    curve.last = float(values[-1])
                    curve.finite = curve.finite and bool(np.isfinite(values).all())
            lost += filter(None, [damage(path.name, damaged, 0 if self.is_under_way else torn)])
        return Index(dict(sorted(curves.items())), ends, tuple(lost))

    def points(self) -> Iterator[Batch]:
        """Yield all points, in the order in which each replica has recorded them."""
        done = 0
        for path, end in self.index.ends.items():
            for replica, names, part in _parts(path, end):
                if len(part.points):
                    used = np.unique(part.points["series"]).tolist()
                    yield Batch(replica, {one: _name(names, one) for one in used}, part.points)
                    done += len(part.points)
                    self.report(done)

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """The replicas that have points."""
        return tuple(sorted({replica for replica, _ in self.index.curves}))

    def label(self, replica: int, name: str) -> str:
        """Return a curve's name for targets without replicas: with the replica if there are several."""
        return f"{name}/replica {replica}" if len(self.replicas) > 1 else name

    @property
    def finals(self) -> dict[str, float]:
        """The last value of each curve, by its label."""
        return {self.label(*key): curve.last for key, curve in self.index.curves.items()}

    @cached_property
    def is_under_way(self) -> bool:
        """Whether the run has not ended."""
        return is_under_way(self.record)

    @cached_property
    def config(self) -> Config:
        """What the run was, as plain values by name: inputs of its body, options, seed, hosts, versions."""
        record = RunRecord.of(self.record)
        hosts = sorted({one.node for one in record.members.values() if one.node})
        facts: Config = {
            name: plain(value)
            for name, value in record.options.items()
            if name not in LABELS and value is not None and value is not False and value not in ("", [])
        }
        facts |= {"workers": len(record.workers), "status": record.status}
        facts |= {"hosts": ", ".join(hosts)} if hosts else {}
        facts |= {"seed": record.seed} if record.seed is not None else {}
        facts |= {"resumed_from": record.resumed_from} if record.resumed_from else {}
        facts |= {"error": clip(record.error, LONGEST_VALUE)} if record.error else {}
        facts |= {f"version.{name}": str(version) for name, version in record.versions.items()}
        given = {str(name): plain(value) for name, value in record.given.items()}
        inputs = {f"given.{name}" if name in facts else name: value for name, value in given.items()}
        return inputs | facts

    def files(self) -> list[tuple[str, Path]]:
        """Return its checkpoints and artifacts: names below the folder, and paths; no link is followed."""
        found = []
        for part in (CHECKPOINTS, ARTIFACTS):
            for path in sorted((self.folder / part).rglob("*")):
                name = path.relative_to(self.folder)
                hidden = any(piece.startswith(".") for piece in name.parts)
                if path.is_file() and not path.is_symlink() and not hidden:
                    found.append((name.as_posix(), path))
        return found

    @property
    def notes(self) -> list[str]:
        """Sentences about the run that hold for any target."""
        found = list(self.index.damage)
        if self.is_under_way:
            found.append(f"run {self.id} is under way: these are its points so far")
        return found

    @property
    def not_finite(self) -> list[str]:
        """The labels of curves with NaN or infinite values."""
        return [self.label(*key) for key, curve in self.index.curves.items() if not curve.finite]

    def about(self) -> dict[str, Any]:
        """Return all that is known of the run beside its points, as JSON has it."""
        names = ("id", "kind", "created", "ended", "paused", "status", "error", "code", "seed")
        known = {name: getattr(self.record, name) for name in names}
        return known | {
            "name": self.name, "tags": list(self.tags), "note": self.note, "config": self.config,
            "versions": dict(self.record.versions), "options": dict(self.record.options),
            "resumed_from": self.record.resumed_from, "finals": self.finals,
        }  # fmt: skip

    def as_json(self) -> str:
        """Return `about` as text; what is not finite is null, as JSON has none."""
        return json.dumps(_finite(self.about()))


def rows_of(batch: Batch, label: Callable[[int, str], str]) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield points as rows for targets that log rows: (step, time in seconds since 1970, values by label).

    Points of one step that were recorded within a millisecond are one row, with the time of the first.

    >>> from nbdist.metrics.log import POINT
    >>> points = np.array([(0, 1, 0.5, 10.0), (1, 1, 0.9, 10.0001), (0, 2, 0.4, 11.0)], POINT)
    >>> list(rows_of(Batch(0, {0: "loss", 1: "accuracy"}, points), lambda replica, name: name))
    [(1, 10.0, {'loss': 0.5, 'accuracy': 0.9}), (2, 11.0, {'loss': 0.4})]
    """
    labels = {series: label(batch.replica, name) for series, name in batch.names.items()}
    row: dict[str, float] = {}
    first, began = 0, 0.0
    columns = (batch.points[name].tolist() for name in ("series", "step", "value", "time"))
    for series, step, value, time in zip(*columns, strict=True):
        name = labels[series]
        if row and (step != first or abs(time - began) > SAME_ROW or name in row):
            yield first, began, row
            row = {}
        if not row:
            first, began = step, time
        row[name] = value
    if row:
        yield first, began, row


def plain(value: object) -> str | int | float | bool:
    """Return a value as every target holds it: a number, a bool, or a short text.

    >>> plain(0.1), plain([1, 2]), plain(np.zeros((2, 3)))
    (0.1, '[1, 2]', 'float64 (2, 3) 498e9e')
    """
    if isinstance(value, str | bool | int | float):
        return clip(value, LONGEST_VALUE) if isinstance(value, str) else value
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        mark = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=3).hexdigest()
        return f"{value.dtype} {value.shape} {mark}"
    return clip(repr(value), LONGEST_VALUE)


def _parts(path: Path, end: int) -> Iterator[tuple[int, Mapping[int, str], Any]]:
    """Yield (replica, names so far, part) of a log."""
    for part in log_parts(path, end):
        yield replica_of(path) if part.replica is None else part.replica, part.names, part


def _name(names: Mapping[int, str], series: int) -> str:
    return names.get(series, f"series {series}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
