"""``nb.compare(a, b, ...)``: runs beside each other, with what differs between them.

    nb.compare(*nb.runs("mnist")[:3])

reads only the folders of the runs: neither a cluster nor the processes that made them are needed. JupyterLab
and Notebook 7 draw the output, also without a kernel; elsewhere it is a picture, a table and text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, choices
from nbdist.metrics.run_folder import RunFile, run_folder
from nbdist.metrics.table import table
from nbdist.run.history import ListedRun, known_run, listed
from nbdist.run.run import Run
from nbdist.text import clip, columns
from nbdist.ui.compare import facts
from nbdist.ui.compare.curves import AXES, By, RunCurves, read_curves
from nbdist.ui.compare.saved import bundle_of, drawn
from nbdist.ui.formatting import well_formed
from nbdist.ui.frozen.run_figure import REPLICAS, own_style
from nbdist.ui.frozen.summary import goal_of, last_and_best, number
from nbdist.ui.widgets.run_feed import Chart, plan_charts

MOST_RUNS = len(REPLICAS)
DOTS = 220  # per inch of a picture in a file
AnyRun = Run | RunFile | str


def compare(
    *runs: AnyRun | Iterable[AnyRun], by: By = "step", metrics: Iterable[str] | None = None
) -> Comparison:
    """Return runs beside each other: their curves, what differs between them, their final and best metrics.

    - ``runs``: two to eight runs: handles, rows of ``nb.runs()``, ids, or lists of them
    - ``by``: what the curves are drawn over: "step", "epoch", or "time" since the run's first point, in
      seconds
    - ``metrics``: names of the curves, such as ("loss", "accuracy"), at most six; None chooses them as the
      live view does

    The result shows itself in a notebook. Its ``differences``, ``metrics`` and ``code_diff()`` are for
    programs, ``save("curves.svg")`` writes the picture.

    Raises InvalidArgumentError for fewer than two or more than eight runs, for another ``by`` and for a
    metric that no run has, NotFoundError for an unknown id, FailedPreconditionError for "epoch" if no run
    has its epochs on record.

    Example::

        best = nb.compare(*nb.runs(tag="candidate"), by="epoch")
        best.metrics["val_accuracy (best)"]
    """
    if by not in tuple(AXES):  # by comparison: it may be of any type
        raise InvalidArgumentError(f"no axis {by!r}; {choices(by, AXES)}")
    records = [_record_of(one) for one in _flat(runs)]
    folders = {record.folder.resolve() for record in records}
    if not 2 <= len(folders) == len(records) <= MOST_RUNS:
        raise InvalidArgumentError(
            f"nb.compare takes 2 to {MOST_RUNS} different runs, got {len(records)}: "
            f"{', '.join(record.id for record in records[:20]) or 'none'}"
            + (f"; nb.runs()[:{MOST_RUNS}].compare() takes the latest" if len(records) > MOST_RUNS else "")
        )
    found = Comparison(tuple(records), by, None if metrics is None else _checked_names(metrics))
    found.check()
    return found


def _flat(runs: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for one in runs:
        found += [one] if isinstance(one, Run | RunFile | str) else _flat_one(one)
    return found


def _flat_one(one: Any) -> list[Any]:
    if not isinstance(one, Iterable):
        raise InvalidArgumentError(f"a run is a handle, a row of nb.runs() or an id, not {one!r:.80}")
    return _flat(one)


def _checked_names(metrics: Iterable[str]) -> tuple[str, ...]:
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"metrics are names of curves, such as ('loss', 'accuracy'), not {metrics!r:.80}"
        )
    return tuple(dict.fromkeys(names))


def _record_of(one: AnyRun) -> ListedRun:
    """Return the record of a run as it is now, with the name that its user has given it."""
    if isinstance(one, ListedRun):
        folder, archive = one.folder, one.archive
    else:
        folder, archive = run_folder(one if isinstance(one, str) else one.id), ""
        if not folder.is_dir():
            known_run(folder.name)  # its error has the latest runs
    if (record := listed(folder, archive)) is None:
        raise NotFoundError(f"no run in {folder}: it was deleted, or is a link; nb.runs() lists all")
    return record


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs beside each other. `compare` makes it; ``runs`` are their records, in the order of the call.

    ``by`` is the axis that is shown at first, ``names`` are the curves that were asked for.
    """

    runs: tuple[ListedRun, ...]
    by: By = "step"
    names: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise InvalidArgumentError or FailedPreconditionError if what was asked for cannot be shown."""
        known = list(dict.fromkeys(name for one in self.curves for name in one.names))
        for name in self.names or ():
            if not {name, f"val_{name}"} & set(known):
                raise InvalidArgumentError(
                    f"none of these runs has a metric {name!r}; {choices(name, known)}"
                )
        if self.names is not None and len(self.names) > len(self.charts):
            raise InvalidArgumentError(f"at most {len(self.charts)} charts are drawn, not {len(self.names)}")
        if not any(one.has(self.by) for one in self.curves):
            raise FailedPreconditionError(
                "none of these runs has a whole epoch on record, as fit and the loops of frameworks leave it "
                "since nbdist 0.2: compare them by='step' or by='time'"
                if self.by == "epoch"
                else "none of these runs has points: compare them by='step'"
            )

    @cached_property
    def labels(self) -> list[str]:
        """The names of the runs, with their ids where two are equal."""
        names = [run.name or run.id for run in self.runs]
        return [
            clip(name if names.count(name) == 1 else f"{name} ({run.id})", facts.LONGEST_VALUE)
            for name, run in zip(names, self.runs, strict=True)
        ]

    @cached_property
    def differences(self) -> dict[str, list[str]]:
        """What is not equal in all runs, by name: a text for each run."""
        return facts.differences(self.runs)

    @cached_property
    def metrics(self) -> dict[str, list[float | None]]:
        """The last and the best value of each curve, by its name: a number for each run, None without one."""
        found: list[dict[str, float]] = []
        for curves in self.curves:
            values: dict[str, float] = {}
            for name in dict.fromkeys(name for chart in self.charts for name in chart.names):
                if len(finite := curves.finite(name)):
                    values |= last_and_best(name, float(finite[-1]), float(finite.min()), float(finite.max()))
            found.append(values)
        names = dict.fromkeys(name for values in found for name in values)
        return {name: [values.get(name) for values in found] for name in names}

    def best(self, name: str) -> list[int]:
        """Return the places of the runs with the best value of one of `metrics`.

        None are best where the name does not say what is good, or where all are equal.
        """
        goal = goal_of(name.rpartition(" (")[0])
        values = [value for value in self.metrics[name] if value is not None]
        if goal is None or len(set(values)) < 2:
            return []
        top = min(values) if goal == "min" else max(values)
        return [at for at, value in enumerate(self.metrics[name]) if value == top]

    def table(self) -> Any:
        """Return a row for each run, with what differs and its metrics: a DataFrame if pandas is there."""
        head: dict[str, Any] = {"run": [run.id for run in self.runs], "name": self.labels}
        return table(head | self.differences | self.metrics)

    def code_diff(self, first: int = 0, second: int = 1) -> str:
        """Return the unified diff of the code of two runs, by their places; "" if it is equal.

        - ``first``, ``second``: from 0 on, in the order of ``runs``

        Raises InvalidArgumentError for another place.
        """
        for place in (first, second):
            if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < len(self.runs):
                raise InvalidArgumentError(
                    f"a run has a place from 0 to {len(self.runs) - 1}, not {place!r:.60}"
                )
        return facts.code_diff(self.runs[first], self.runs[second])

    def save(self, path: str | Path) -> Path:
        """Write the picture of the curves into a file, and return its path.

        - ``path``: ends with .png, .svg or .pdf

        Raises InvalidArgumentError for another ending, FailedPreconditionError if no run has a curve.
        """
        path = Path(path)
        if path.suffix not in (".png", ".svg", ".pdf"):
            raise InvalidArgumentError(f"a picture is .png, .svg or .pdf, not {path.name!r}")
        if not self.charts:
            raise FailedPreconditionError("none of these runs has logged a metric")
        with own_style():
            drawn(self).savefig(path, dpi=DOTS)
        return path

    @cached_property
    def notes(self) -> list[str]:
        """Sentences about runs whose points or epochs cannot be shown."""
        found = zip(self.labels, self.curves, strict=True)
        unread = [f"{label}: its points cannot be read: {one.error}" for label, one in found if one.error]
        if self.by == "step":
            return unread
        left_out = [
            f"{label}: it has no {AXES[self.by]} on record, and its curves are left out; by='step' has them"
            for label, one in zip(self.labels, self.curves, strict=True)
            if one.names and not one.has(self.by)
        ]
        return [*unread, *left_out]

    @cached_property
    def curves(self) -> list[RunCurves]:
        """The points of the runs."""
        return [read_curves(run.folder, run.status == "finished") for run in self.runs]

    @cached_property
    def charts(self) -> list[Chart]:
        """The charts that are drawn, each with the curves of all runs."""
        names = list(dict.fromkeys(name for one in self.curves for name in one.names))
        return plan_charts(names, self.names)

    @property
    def rows(self) -> list[tuple[str, list[str], list[int]]]:
        """The table: what differs and metrics by name, a text for each run, and the places of the best."""
        found: list[tuple[str, list[str], list[int]]] = [
            (name, texts, []) for name, texts in self.differences.items()
        ]
        for name, values in self.metrics.items():
            texts = ["" if value is None else number(value) for value in values]
            found.append((name, texts, self.best(name)))
        return found

    def __repr__(self) -> str:
        head = ["what differs", *self.labels]
        lines = [
            [name, *(f"{text} ★" if at in best else text for at, text in enumerate(texts))]
            for name, texts, best in self.rows
        ]
        diff = self.code_diff() if len(self.runs) == 2 else ""
        return "\n".join([columns([head, *lines]), *self.notes, *(["", diff] if diff else [])])

    def _repr_mimebundle_(self, **how: Any) -> dict[str, Any]:
        return bundle_of(self, well_formed(repr(self)))
