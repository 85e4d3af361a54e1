"""``nb.compare(a, b, ...)``: runs beside each other, with what differs between them.

    nb.compare(*nb.runs("mnist")[:3])

reads only the folders of the runs: neither a cluster nor the processes that made them are needed. What a
notebook saves is a picture, a table and text.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NbdistError, choices
from nbdist.metrics.run_folder import RunFile, run_folder
from nbdist.metrics.store import RunStore
from nbdist.metrics.table import parts_from_logs, table
from nbdist.run.history import known_run, listed
from nbdist.run.options import LaunchOptions
from nbdist.run.record import RunRecord
from nbdist.run.run import Run
from nbdist.run.values.inputs import describe_value, mark
from nbdist.text import clip, columns
from nbdist.train.options import rows
from nbdist.ui.formatting import well_formed
from nbdist.ui.frozen.run_figure import (
    COLUMN_WIDTH,
    MUTED,
    PAPER,
    REPLICAS,
    ROW_HEIGHT,
    Line,
    add_legend,
    columns_of,
    drawable,
    encode,
    frame,
    is_key,
    own_style,
    short_count,
    y_range,
)
from nbdist.ui.frozen.summary import last_and_best, number
from nbdist.ui.widgets.run_feed import Chart, course, plan_charts

By = Literal["step", "time"]
MOST_RUNS = len(REPLICAS)
LONGEST_VALUE, LONGEST_LABEL, LONGEST_DIFF = 60, 24, 20_000  # characters
DOTS = 110  # per inch of the picture
AXES: Mapping[str, str] = {"step": "steps", "time": "seconds"}
AnyRun = Run | RunFile | str


def compare(
    *runs: AnyRun | Iterable[AnyRun], by: By = "step", metrics: Iterable[str] | None = None
) -> Comparison:
    """Return runs beside each other: their curves, what differs between them, their final and best metrics.

    - ``runs``: two to eight runs: handles, rows of ``nb.runs()``, ids, or lists of them
    - ``by``: what the curves are drawn over: "step", or "time" since the run's first point, in seconds
    - ``metrics``: names of the curves, such as ("loss", "accuracy"); None chooses them as the live view does

    The result shows itself in a notebook. Its ``differences``, ``metrics`` and ``code_diff()`` are for
    programs, ``save("curves.svg")`` writes the picture.

    Raises InvalidArgumentError for fewer than two or more than eight runs and for another ``by``,
    NotFoundError for an unknown id.

    Example::

        best = nb.compare(*nb.runs(tag="candidate"), by="time")
        best.metrics["val_accuracy (best)"]
    """
    if by not in AXES:
        raise InvalidArgumentError(f"no axis {by!r}; {choices(str(by), AXES)}")
    records = [_record_of(one) for one in _flat(runs)]
    ids = [record.id for record in records]
    if not 2 <= len(set(ids)) == len(ids) <= MOST_RUNS:
        raise InvalidArgumentError(
            f"nb.compare takes 2 to {MOST_RUNS} different runs, got {len(ids)}: "
            f"{', '.join(ids[:20]) or 'none'}"
        )
    return Comparison(tuple(records), by, None if metrics is None else tuple(metrics))


def _flat(runs: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for one in runs:
        found += [one] if isinstance(one, Run | RunFile | str) else _flat_one(one)
    return found


def _flat_one(one: Any) -> list[Any]:
    if not isinstance(one, Iterable):
        raise InvalidArgumentError(f"a run is a handle, a row of nb.runs() or an id, not {one!r:.80}")
    return _flat(one)


def _record_of(one: AnyRun) -> RunFile:
    """Return the record of a run, with the name that its user has given it."""
    known = known_run(one if isinstance(one, str) else one.id)
    return listed(run_folder(known.id)) or known


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs beside each other. `compare` makes it; ``runs`` are their records, in the order of the call."""

    runs: tuple[RunFile, ...]
    by: By = "step"
    names: tuple[str, ...] | None = None

    @cached_property
    def labels(self) -> list[str]:
        """The names of the runs, with the ends of their ids where two are equal."""
        names = [run.name or run.id for run in self.runs]
        return [
            clip(name if names.count(name) == 1 else f"{name} ({run.id})", LONGEST_VALUE)
            for name, run in zip(names, self.runs, strict=True)
        ]

    @cached_property
    def differences(self) -> dict[str, list[str]]:
        """What is not equal in all runs, by name: a text for each run."""
        found = [_facts(run) for run in self.runs]
        names = dict.fromkeys(name for facts in found for name in facts)
        values = {name: [facts.get(name, "") for facts in found] for name in names}
        return {name: texts for name, texts in values.items() if len(set(texts)) > 1}

    @cached_property
    def metrics(self) -> dict[str, list[float | None]]:
        """The last and the best value of each curve, by its name: a number for each run, None without one."""
        found: list[dict[str, float]] = []
        for store in self._stores:
            values: dict[str, float] = {}
            for name in dict.fromkeys(name for chart in self._charts for name in chart.names):
                _, curve = store.aggregate(name) if name in store.series else (None, np.empty(0))
                finite = curve[np.isfinite(curve)]
                if len(finite):
                    values |= last_and_best(name, float(finite[-1]), float(finite.min()), float(finite.max()))
            found.append(values)
        names = dict.fromkeys(name for values in found for name in values)
        return {name: [values.get(name) for values in found] for name in names}

    def table(self) -> Any:
        """Return a row for each run, with what differs and its metrics: a DataFrame if pandas is there."""
        columns: dict[str, Any] = {"run": [run.id for run in self.runs], "name": self.labels}
        return table(columns | self.differences | self.metrics)

    def code_diff(self, first: int = 0, second: int = 1) -> str:
        """Return the unified diff of the code of two runs, by their places; "" if it is equal."""
        one, other = self.runs[first], self.runs[second]
        lines = difflib.unified_diff(
            one.code.splitlines(), other.code.splitlines(), one.id, other.id, lineterm="", n=2
        )
        return clip_lines("\n".join(lines), LONGEST_DIFF)

    def save(self, path: str | Path) -> Path:
        """Write the picture of the curves into a file.

        - ``path``: ends with .png, .svg or .pdf

        Raises InvalidArgumentError for another ending, FailedPreconditionError if no run has a curve.
        """
        path = Path(path)
        if path.suffix not in (".png", ".svg", ".pdf"):
            raise InvalidArgumentError(f"a picture is .png, .svg or .pdf, not {path.name!r}")
        if not self._charts:
            raise FailedPreconditionError("none of these runs has logged a metric")
        with own_style():
            self._draw().savefig(path, dpi=2 * DOTS)
        return path

    @cached_property
    def notes(self) -> list[str]:
        """Sentences about runs whose points could not be read."""
        return [
            f"{label}: its points cannot be read: {error}"
            for label, (_, error) in zip(self.labels, self._read, strict=True)
            if error
        ]

    @cached_property
    def _read(self) -> list[tuple[RunStore, str]]:
        return [_points_of(run, self.by) for run in self.runs]

    @property
    def _stores(self) -> list[RunStore]:
        return [store for store, _ in self._read]

    @cached_property
    def _charts(self) -> list[Chart]:
        names = list(dict.fromkeys(name for store in self._stores for name in store.series))
        return plan_charts(names, self.names)

    def _draw(self) -> Any:
        from matplotlib.figure import Figure

        columns = columns_of(len(self._charts))
        count = -(-len(self._charts) // columns)
        figure = Figure(
            figsize=(COLUMN_WIDTH * columns, ROW_HEIGHT * count), facecolor=PAPER, layout="constrained"
        )
        keys: dict[str, Any] = {}
        for index, chart in enumerate(self._charts):
            axes = figure.add_subplot(count, columns, index + 1)
            axes.set_xlabel(AXES[self.by], fontsize=8, color=MUTED)
            axes.xaxis.set_major_formatter(lambda at, _: short_count(at))
            frame(axes, clip(chart.title, 40))
            lines = [line for name in chart.names for line in self._lines(name, name == chart.validation)]
            for x, values, style in lines:
                axes.plot(x, drawable(values), **style)
            within = y_range([drawable(values) for _, values, _ in lines], [])
            if within is not None:
                axes.set_ylim(*within)
            keys |= {str(line.get_label()): line for line in axes.get_lines() if is_key(line)}
        if keys:
            add_legend(figure, keys, 2 * columns)
        return figure

    def _lines(self, name: str, dashed: bool) -> list[Line]:
        """Return the curve of each run that has it; that of validation data is dashed."""
        found: list[Line] = []
        for place, (label, store) in enumerate(zip(self.labels, self._stores, strict=True)):
            if name in store.series:
                x, values = course(*store.aggregate(name))
                style = {"color": REPLICAS[place], "linewidth": 1.6, "label": clip(label, LONGEST_LABEL)}
                if dashed:
                    style |= {"linestyle": (0, (4, 2)), "label": "_"}
                found.append((x / 1000 if self.by == "time" else x, values, style))
        return found

    def _rows(self) -> list[dict[str, str]]:
        """Return a row of text for each run: its name, what differs, its metrics."""
        texts = {"run": self.labels, **self.differences}
        texts |= {
            name: ["" if value is None else number(value) for value in values]
            for name, values in self.metrics.items()
        }
        return [{name: values[at] for name, values in texts.items()} for at in range(len(self.runs))]

    def __repr__(self) -> str:
        found = self._rows()
        head = list(found[0])
        table = columns([head, *([row[name] for name in head] for row in found)])
        diff = self.code_diff() if len(self.runs) == 2 else ""
        return "\n".join([table, *self.notes, *(["", diff] if diff else [])])

    def _repr_mimebundle_(self, **how: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": well_formed(repr(self))}
        picture = ""
        if self._charts:
            with own_style():
                figure = self._draw()
                picture = base64.b64encode(encode(figure, DOTS)).decode("ascii")
            bundle["image/png"] = picture
        bundle["text/html"] = well_formed(self._html(picture))
        return bundle

    def _html(self, picture: str) -> str:
        found = self._rows()
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in found[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{self._cell(at, name, text)}</td>" for name, text in row.items()) + "</tr>"
            for at, row in enumerate(found)
        )
        parts = [f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"]
        parts += [f"<p>{escape(note)}</p>" for note in self.notes]
        if picture:
            alt = escape(f"Curves of {', '.join(self.labels)}")
            source = f"data:image/png;base64,{picture}"
            style = "width:100%; max-width:900px; height:auto"
            parts.insert(0, f'<p><img alt="{alt}" src="{source}" style="{style}"></p>')
        for at in range(1, len(self.runs)):
            if diff := self.code_diff(0, at):
                title = escape(f"code: {self.labels[0]} → {self.labels[at]}")
                parts.append(
                    f"<details><summary><small>{title}</small></summary><pre>{escape(diff)}</pre></details>"
                )
        return "\n".join(parts)

    def _cell(self, at: int, name: str, text: str) -> str:
        if name != "run":
            return escape(text)
        return (
            f'<span style="color:{REPLICAS[at]}">■</span> <span style="color:inherit">{escape(text)}</span>'
        )


def clip_lines(text: str, most: int) -> str:
    """Return a text of whole lines, at most so many characters, with a note on what was cut."""
    if len(text) <= most:
        return text
    kept = text[:most].rpartition("\n")[0]
    return f"{kept}\n... and {text.count(chr(10)) - kept.count(chr(10))} more lines"


def _points_of(run: RunFile, by: By) -> tuple[RunStore, str]:
    """Return a run's points, and why they cannot be read; over time, x is in milliseconds."""
    store = RunStore(recent=1)
    try:
        parts = parts_from_logs(run_folder(run.id))
    except (OSError, NbdistError) as error:
        return store, str(error)
    begun = min((float(times.min()) for *_, times in parts if len(times)), default=0.0)
    for replica, name, steps, values, times in parts:
        at = np.round(1000 * (times - begun)).astype(np.uint32) if by == "time" else steps
        store.extend(replica, name, at, values, times)
    return store, ""


def _facts(run: RunFile) -> dict[str, str]:
    """Return what a run was, as texts by name."""
    facts = {
        one.flag: _text(run.options.get(name))
        for name, one in rows(LaunchOptions).items()
        if run.options.get(name) not in (None, one.default)
    }
    if (together := run.options.get("synchronous")) is not None:
        facts["--sync or --async"] = "sync" if together else "async"
    record = RunRecord.of(run)
    facts["workers"] = str(len(record.workers))
    facts["hosts"] = ", ".join(sorted({one.node for one in record.members.values() if one.node}))
    facts |= {name: str(value) for name, value in run.given.items()}
    facts["code"] = mark(run.code.encode(errors="replace"))
    facts |= {"seed": _text(run.seed), "status": run.status}
    facts |= {f"{name} version": _text(version) for name, version in run.versions.items()}
    if run.resumed_from:
        facts["resumed from"] = run.resumed_from
    return facts


def _text(value: object) -> str:
    return "" if value is None else describe_value(value)
