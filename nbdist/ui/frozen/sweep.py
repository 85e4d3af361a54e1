"""The output of a sweep in a saved notebook: picture, table, text and data. It needs no kernel.

`frozen_sweep(sweep)` returns a MIME bundle of less than 150 kB for any sweep:

- ``image/png``: its charts, if a trial has a value
- ``text/html``: the same picture, the best trials, the first failure; all of it escaped
- ``text/plain``: the same as text
- ``application/vnd.nbdist.sweep+json``: a downsampled snapshot for the grid (`sweep_data`)
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from nbdist.errors import NbdistError
from nbdist.metrics.run_folder import duration
from nbdist.metrics.series import shape_weights
from nbdist.sweep.reports import Curve
from nbdist.sweep.state import Ledger, State, Trial
from nbdist.text import clip
from nbdist.ui.formatting import shorten, well_formed
from nbdist.ui.frozen.render import PICTURE_WIDTH, line, rows_table, rows_text
from nbdist.ui.frozen.sweep_axes import by_weight, ranked, short
from nbdist.ui.frozen.sweep_cells import cells_of
from nbdist.ui.frozen.sweep_figure import picture
from nbdist.ui.widgets.sweep_feed import (
    LONGEST_REASON,
    SweepSeen,
    ended_at,
    head,
    names_of,
    pairs,
    plain,
    rows,
    since,
    span_row,
    status,
)

SWEEP = "application/vnd.nbdist.sweep+json"
LIMIT = 147_000  # bytes in a notebook file, less than 150 kB for the bundle's own keys
DATA_LIMIT = 34_000  # without the curves, which take the remaining bytes
PICTURE_LIMIT = 34_000  # stored twice, in base64
ERROR_LIMIT, FAILURE_LIMIT, ROWS_LIMIT = 1_500, 1_500, 3_500
LEAST_WIDTH = 560  # CSS pixels; a narrower page scrolls


def frozen_sweep(sweep: SweepSeen) -> dict[str, Any]:
    """Return the MIME bundle of a sweep; called with its lock held."""
    return sweep_output(sweep, picture(sweep.ledger, PICTURE_LIMIT))


def sweep_output(sweep: SweepSeen, png: bytes | None = None) -> dict[str, Any]:
    """Return the MIME bundle of a sweep; the Jupyter server makes it without a picture."""
    summary = summary_of(sweep)
    encoded = None if png is None else base64.b64encode(png).decode("ascii")
    bundle: dict[str, Any] = {} if encoded is None else {"image/png": encoded}
    bundle["text/html"] = well_formed(sweep_html(summary, encoded))
    bundle["text/plain"] = well_formed(sweep_text(summary))
    data = bundle[SWEEP] = well_formed(trial_data(sweep, DATA_LIMIT))
    bundle[SWEEP] = well_formed(with_curves(data, sweep.ledger, LIMIT - size(bundle)))
    return bundle


def sweep_html(summary: SweepSummary, picture: str | None) -> str:
    """Return the HTML: plain elements and few styles, because untrusted notebooks keep no others."""
    named = f" &nbsp; <small>{line(summary.id)}</small>" if summary.id not in ("", summary.name) else ""
    parts = [f"<p><strong>{line(summary.name)}</strong> &nbsp; {line(summary.headline, 400)}{named}</p>"]
    if summary.error:
        parts.append(f"<pre>{escape(shorten(summary.error, ERROR_LIMIT, escape))}</pre>")
    if picture is not None:
        parts.append(
            f'<p><img alt="Charts of {line(summary.name)}: {line(summary.headline, 200)}" '
            f'src="data:image/png;base64,{picture}" '
            f'style="width:100%; min-width:{LEAST_WIDTH}px; max-width:{PICTURE_WIDTH}px; height:auto"></p>'
        )
    parts.append(f"<p>{line(standing(summary), 200)}</p>")
    parts.append(rows_table(summary.rows, ROWS_LIMIT))
    if summary.failed is not None:
        error = escape(shorten(summary.failed.error, FAILURE_LIMIT, escape))
        parts.append(f"<p>{line(first_failure(summary), 200)}</p><pre>{error}</pre>")
    return "\n".join(part for part in parts if part)


def sweep_text(summary: SweepSummary) -> str:
    """Return the plain text, for terminals, diffs and searches."""
    named = f"  ({clip(summary.id)})" if summary.id not in ("", summary.name) else ""
    parts = [f"{clip(summary.name)}  {clip(summary.headline, 400)}{named}"]
    if summary.error:
        parts.append(shorten(summary.error, ERROR_LIMIT))
    parts.append(standing(summary))
    parts.append(rows_text(summary.rows, ROWS_LIMIT))
    if summary.failed is not None:
        parts.append(f"{first_failure(summary)}\n{shorten(summary.failed.error, FAILURE_LIMIT)}".rstrip())
    return "\n\n".join(part for part in parts if part)


def standing(summary: SweepSummary) -> str:
    """Return the number of trials per state, and the heading of the table."""
    if not summary.counts:
        return "no trial was drawn"
    what = "the best trials:" if summary.finished else "no trial finished; those with a value:"
    return f"{summary.counts}; {what}" if summary.rows else f"{summary.counts}; none has a value"


def first_failure(summary: SweepSummary) -> str:
    """Return the heading of the first failure, with the number of failures."""
    number = summary.failed.number if summary.failed else -1
    return f"trial {number} failed first, of {summary.failures:,}:" if summary.failures > 1 else (
        f"trial {number} failed:"
    )  # fmt: skip


# The data of the output, from which a page redraws the grid: `application/vnd.nbdist.sweep+json`.
#
# A snapshot for the grid (`nbdist.ui.widgets.sweep_feed`), downsampled: ``curves`` instead of points, by
# trial number, each as base64 of float32 pairs (step, value; little-endian); ``left_out`` is the number of
# curves that did not fit. It has ``shown`` of ``of`` trials, the best and a sample of the others, and their
# attempts; ``busy`` in the status counts the attempts of all, and ``cells`` are the heat maps of all trials
# (`nbdist.ui.frozen.sweep_cells`). Empty columns are omitted, and long texts are cut. (Notebooks saved
# before 2026-11-22 have ``{number: [[steps], [values]]}``.)

BEST = 24  # trials that take precedence over the sample
POINTS = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12)  # points per curve; the largest that fits is used
MOST_TRIALS = 200
CELLS_SHARE = 0.2  # of the data without curves, for the heat maps of all trials
MOST_PARAMETERS, MOST_METRICS, MOST_ENGINES, MOST_IMPROVEMENTS = 12, 6, 32, 24
MOST_VALUES = (24, 8, 3)
KEPT = ("number", "state")  # columns that exist even without trials
LONGEST_TEXT, LONGEST_SPACE, LONGEST_ERROR = 60, 1_000, 100


def sweep_data(sweep: SweepSeen, limit: int) -> dict[str, Any]:
    """Return the data in at most ``limit`` bytes of a notebook file; called with the sweep's lock held."""
    data = trial_data(sweep, limit // 2)
    return with_curves(data, sweep.ledger, limit - size(data))


def trial_data(sweep: SweepSeen, limit: int) -> dict[str, Any]:
    """Return the data without curves in at most ``limit`` bytes of a notebook file.

    Called with the sweep's lock held, as is `with_curves`, which adds the curves.
    """
    ledger = sweep.ledger
    best = ranked(ledger)
    shown = {one.number for one in best[:BEST]}
    rest = [ledger.trials[number] for number in sorted(ledger.trials.keys() - shown)]
    data: dict[str, Any] = {}
    for values in MOST_VALUES:
        data = whole(sweep, values)
        if size(data) < limit / 2:
            break

    def made(count: int) -> dict[str, Any]:
        return with_trials(data, ledger, chosen(best, rest, count))

    most = min(len(ledger.trials), MOST_TRIALS)
    count = most_that_fit(most, lambda count: size(made(count)) <= limit)
    if count == len(ledger.trials):
        return made(count)
    names = [name for name in by_weight(ledger) if clip(name, LONGEST_TEXT) in known(data)]
    cells = cells_of(ledger, names, lambda found: size(found) <= limit * CELLS_SHARE)
    data["cells"] = {**cells, "bins": cut(cells["bins"])}
    return made(most_that_fit(count, lambda count: size(made(count)) <= limit))


def known(data: Mapping[str, Any]) -> set[str]:
    """Return the names of the parameters that the data has."""
    return {one["name"] for one in data["head"]["parameters"]}


def with_curves(data: dict[str, Any], ledger: Ledger, room: int) -> dict[str, Any]:
    """Return the data with the curves of its trials, in ``room`` bytes of a notebook file.

    All curves are downsampled to the same number of points. If a dozen points each do not fit, only the best
    trials have curves.
    """
    numbers = data["trials"]["number"]
    curves = {number: one for number in numbers if (one := ledger.curve(number)) is not None and one.steps}

    def cost(points: int) -> int:
        return sum(curve_bytes(min(points, len(one.steps))) for one in curves.values())

    points = next((points for points in POINTS if cost(points) <= room), POINTS[-1])
    by_number: dict[str, str] = {}
    for number, one in curves.items():  # the best first
        room -= curve_bytes(min(points, len(one.steps)))
        if room < 0:
            break
        by_number[str(number)] = packed(one, points)
    left_out = len(curves) - len(by_number)
    return {**data, "curves": by_number, **({"left_out": left_out} if left_out else {})}


def whole(sweep: SweepSeen, most_values: int) -> dict[str, Any]:
    """Return the fields of the whole sweep, with at most ``most_values`` values per choice."""
    ledger = sweep.ledger
    about = head(sweep, names_of(sweep, ledger.spans, {}))
    weighty = set([*by_weight(ledger), *ledger.space][:MOST_PARAMETERS])
    parameters = [one for one in about["parameters"] if one["name"] in weighty]
    for one in parameters:
        if "values" in one:
            one["values"] = one["values"][:most_values]
    about |= {
        "parameters": cut(parameters),
        "space": clip(about["space"], LONGEST_SPACE),
        "engines": cut(about["engines"][:MOST_ENGINES]),
        **{key: cut(about[key]) for key in ("name", "metric", "sampler", "pruner")},
    }
    stands = status(sweep, time.time())
    improvements = ledger.improvements[-MOST_IMPROVEMENTS:]
    return {
        "version": 1,
        "kind": "sweep",
        "snapshot": True,
        "head": about,
        "status": {
            **stands,
            "engines": stands["engines"][:MOST_ENGINES],
            "busy": busy_shares(ledger)[:MOST_ENGINES],
            "trouble": stands["trouble"] and clip(stands["trouble"], LONGEST_REASON),
        },
        "best": [[since(ledger, at), number, digits(value)] for at, number, value in improvements],
        "of": len(ledger.trials),
    }


def busy_shares(ledger: Ledger) -> list[list[float]]:
    """Return (rank, share of the sweep's time in which the engine had a trial) of all attempts."""
    took = ledger.elapsed(ended_at(ledger))
    busy: dict[int, float] = {}
    for span in ledger.spans:
        for rank in span.ranks:
            busy[rank] = busy.get(rank, 0.0) + ledger.elapsed(span.end) - ledger.elapsed(span.start)
    return [[rank, round(min(1.0, time / took), 4)] for rank, time in sorted(busy.items()) if took > 0]


def with_trials(data: dict[str, Any], ledger: Ledger, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the data of these trials."""
    numbers = {one.number for one in trials}
    metrics = dict.fromkeys(name for one in trials for name in one.values if name != ledger.created.metric)
    columns = rows(ledger, trials, list(metrics)[:MOST_METRICS], LONGEST_ERROR)
    columns["value"] = [digits(one.value) for one in trials]
    names = known(data)
    columns["parameters"] = {
        clip(name, LONGEST_TEXT): [cut(value) for value in column]
        for name, column in columns["parameters"].items()
        if clip(name, LONGEST_TEXT) in names
    }
    columns["metrics"] = {
        clip(name, LONGEST_TEXT): [digits(one.values.get(name)) for one in trials]
        for name in columns["metrics"]
    }
    return {
        **data,
        "shown": len(trials),
        "trials": {name: column for name, column in columns.items() if not empty(name, column)},
        "spans": [span_row(ledger, span) for span in ledger.spans if span.number in numbers],
        "curves": {},
    }


def chosen(best: Sequence[Trial], rest: Sequence[Trial], count: int) -> list[Trial]:
    """Return at most ``count`` trials: the best, and an even sample of the others."""
    first = list(best[: min(BEST, count)])
    room = count - len(first)
    return [*first, *(rest[index * len(rest) // room] for index in range(room))]


def most_that_fit(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to ``most`` that fits, 0 if none fits."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def packed(curve: Curve, points: int) -> str:
    """Return a curve downsampled to at most ``points`` points that preserve its shape, as base64."""
    kept = np.argsort(-shape_weights(curve.steps, curve.values), kind="stable")[:points]
    kept.sort()
    some = kept.tolist()
    bytes_ = pairs([curve.steps[index] for index in some], [curve.values[index] for index in some])
    return base64.b64encode(bytes_).decode("ascii")


def curve_bytes(points: int) -> int:
    """Return the largest size of a curve of that many points in a notebook file, in bytes."""
    return 4 * -(-8 * points // 3) + 40


def empty(name: str, column: Any) -> bool:
    """Return whether a column is empty."""
    nothing = (lambda one: one == -1) if name == "parent" else (lambda one: one in (None, "") or one is False)
    return name not in KEPT and isinstance(column, list) and all(map(nothing, column))


def digits(value: float | None) -> float | str | None:
    """Return a number with six significant digits; as a text if it is not finite."""
    shown = plain(value)
    return float(f"{shown:.6g}") if isinstance(shown, float) else shown


def cut(value: Any) -> Any:
    """Return plain JSON data with its texts cut."""
    if isinstance(value, str):
        return clip(value, LONGEST_TEXT)
    if isinstance(value, list):
        return [cut(one) for one in value]
    if isinstance(value, dict):
        return {key: cut(one) for key, one in value.items()}
    return value


def size(value: Any) -> int:
    """Return the bytes of a value in a notebook file, where each item has its own, deeply indented line."""
    return len(json.dumps([[[[[[value]]]]]], indent=1))


# The summary of a sweep for its saved output, and its progress line. Pure.
#
# mnist  ✓ finished · 24 of 24 trials · 4 min 12 s · best val_accuracy 0.953 (trial 7: lr=0.01 hidden=64)

GLYPHS = {"running": "▶", "paused": "⏸", "finished": "✓", "stopped": "■", "failed": "✕"}
MOST_ROWS = 10
MOST_NAMED = 6  # parameters in the table, those of the largest weight
OVER: tuple[State, ...] = ("finished", "pruned", "stopped", "failed")
COUNTED: tuple[State, ...] = ("running", "failed")


@dataclass(frozen=True)
class SweepSummary:
    """A sweep's results; ``rows`` is the table of its best trials, ``failed`` the first failed trial."""

    id: str
    name: str
    headline: str
    counts: str
    rows: Sequence[Mapping[str, object]]
    finished: bool
    error: str | None
    failed: Trial | None
    failures: int


def summary_of(sweep: SweepSeen) -> SweepSummary:
    """Return a finished sweep's summary; called with its lock held."""
    ledger = sweep.ledger
    failed = sorted(
        (one for one in ledger.trials.values() if one.state == "failed"),
        key=lambda one: (one.ended_at or 0.0, one.number),
    )
    took = ledger.elapsed(ended_at(ledger))
    parts = [f"{GLYPHS.get(sweep.state, '')} {sweep.state}".strip(), progress(ledger)]
    parts += [duration(took)] if took > 0 else []
    parts += [f"the space was edited {times(len(ledger.spaces) - 1)}"] if len(ledger.spaces) > 1 else []
    best = best_words(ledger)
    return SweepSummary(
        id=sweep.id,
        name=sweep.name,
        headline=" · ".join([*parts, *([best] if best else [])]),
        counts=" · ".join(f"{count:,} {state}" for state, count in ledger.counts.items() if count),
        rows=rows_of(ledger),
        finished=bool(ledger.counts["finished"]),
        error=None if sweep.error is None else words(sweep.error),
        failed=failed[0] if failed else None,
        failures=len(failed),
    )


def sweep_line(sweep: SweepSeen) -> str:
    """Return a line about a running sweep; called with its lock held.

    ``12 of 24 trials, 3 running, best val_accuracy 0.953 (trial 7: lr=0.01 hidden=64)``
    """
    ledger = sweep.ledger
    parts = [progress(ledger)]
    parts += [f"{count:,} {state}" for state in COUNTED if (count := ledger.counts[state])]
    parts += [sweep.state] if sweep.state != "running" else []
    best = best_words(ledger)
    return ", ".join(
        [*parts, *([best] if best else []), *([clip(sweep.trouble, 200)] if sweep.trouble else [])]
    )


def progress(ledger: Ledger) -> str:
    """Return the number of finished trials, out of how many."""
    over = sum(ledger.counts[state] for state in OVER)
    wanted = ledger.wanted + len(ledger.trials) - ledger.sampled
    return f"{over:,} of {wanted:,} {'trial' if wanted == 1 else 'trials'}"


def best_words(ledger: Ledger) -> str:
    """Return the best trial in words; "" while there is none."""
    best = ledger.best
    if best is None or best.value is None:
        return ""
    given = " ".join(f"{clip(name, 24)}={short(value)}" for name, value in best.parameters.items())
    return (
        f"best {clip(ledger.created.metric, 40)} {best.value:.4g} (trial {best.number}: {clip(given, 120)})"
    )


def rows_of(ledger: Ledger) -> list[dict[str, object]]:
    """Return the best trials as rows: number, value, and the parameters of the largest weight."""
    trials = ranked(ledger)
    finished = ledger.counts["finished"] > 0
    weighty = by_weight(ledger)
    some = {*weighty[:MOST_NAMED]} if weighty else {*list(ledger.space)[:MOST_NAMED]}
    names = [name for name in dict.fromkeys([*ledger.space, *weighty]) if name in some]
    metric = ledger.created.metric
    rows: list[dict[str, object]] = []
    for one in trials[:MOST_ROWS]:
        row: dict[str, object] = {"trial": str(one.number), other(metric, ("trial",), "metric"): one.value}
        if not finished:
            row[other("state", (metric,), "its")] = one.state
        taken = tuple(row)
        for name in names:
            value = one.parameters.get(name)
            row[other(name, taken, "parameter")] = short(value) if name in one.parameters else ""
        rows.append(row)
    return rows


def other(name: str, taken: Sequence[str], kind: str) -> str:
    """Return a name for a column, with its kind as a prefix if the name is taken.

    >>> other("trial", ("trial",), "parameter"), other("lr", ("trial",), "parameter")
    ('parameter trial', 'lr')
    """
    return f"{kind} {name}" if name in taken else name


def times(count: int) -> str:
    """Return a count as an adverb.

    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count == 1 else f"{count} times"


def words(error: NbdistError) -> str:
    """Return a sweep's error as text."""
    return f"{type(error).__name__}: {error}"
