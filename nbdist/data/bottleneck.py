"""Which stage of a dataset is the bottleneck, and what to do about it. Pure: the numbers are handed in.

    found = InputPipeline(stages, elements=400, seconds=2.0, waited=1.8)
    found.bottleneck        # the stage that limits the pipeline, or None if the consumer does
    print(found)            # a table, the verdict and the advice

Design, after tf.data's input pipeline analysis. Stages that run in one thread take turns, so their seconds
for an element add up: they are a *segment*. A prefetch begins a segment of its own, and so do the threads or
processes of a parallel map. Segments run at the same time, so the pipeline is as fast as the slowest of them,
and in that the stage with the most time of its own is the bottleneck. If a training hardly waits for its
batches (a tenth of its time), no stage is: the training is slower than the pipeline. Nor is one where no
segment works for half of the time that the training waits: files are opened, or threads wait for a core.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from nbdist.text import clip, rate

WAITS = 0.1  # share of its time from which a training counts as waiting for data
CONSUMER = -1  # in place of a stage: the thread that takes the elements
FILES = ("text_lines", "csv", "tfrecords", "parquet")


@dataclass(frozen=True)
class StageReading:
    """What was measured of one stage, since the first pass began."""

    kind: str
    """The transform or source: "map", "batch", "from_arrays", ..."""
    name: str
    """The same with what tells it apart: "map(decode)", "batch(32)"."""
    inputs: tuple[int, ...] = ()
    """Places of the stages that it takes elements from; all are before it."""
    elements: int = 0
    """Elements that it has made: batches, for ``batch`` and what follows it."""
    busy: float = 0.0
    """Seconds that it has worked, all its threads or processes together, without the stages before it."""
    waited: float = 0.0
    """Seconds for which the stage after it has waited, where it works in threads or processes of its own."""
    threads: int = 0
    """Threads or processes of its own; 0: it runs in the thread that takes its elements."""
    processes: bool = False
    """Whether these are processes."""
    buffer: int = 0
    """How many elements it may have ready (prefetch and parallel maps)."""
    ready: float = 0.0
    """How many it had ready when one was taken, on average."""
    tunes: bool = False
    """Whether threads and buffer are AUTOTUNE's."""

    @property
    def parallel(self) -> bool:
        """Whether it works in threads or processes of its own; a prefetch does no work."""
        return self.threads > 0

    @property
    def filling(self) -> float | None:
        """How full its queue was when an element was taken, from 0 to 1; None without a queue."""
        return min(1.0, self.ready / self.buffer) if self.buffer else None


@dataclass(frozen=True)
class InputPipeline:
    """The stages of a dataset as they were measured, with the one that is the bottleneck.

    From ``dataset.profile()``, and from ``run.input_pipeline()`` of the dataset that a run trains on. It
    shows itself as a table.

    - ``stages``: a `StageReading` each, from the source on
    - ``elements``: elements (batches, mostly) that the consumer has taken
    - ``seconds``: of the passes so far, with what the consumer did in between
    - ``waited``: seconds of these for which the consumer waited for an element
    - ``cores``: of the process that read
    - ``training``: whether the consumer is a training; otherwise nothing but the pipeline was measured
    """

    stages: tuple[StageReading, ...]
    elements: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    cores: int = 1
    training: bool = False

    @property
    def waits(self) -> float:
        """The share of its time for which the consumer waited for data, from 0 to 1."""
        return min(1.0, self.waited / self.seconds) if self.seconds > 0 else 0.0

    @property
    def rate(self) -> float:
        """Elements per second that the consumer has taken."""
        return self.elements / self.seconds if self.seconds > 0 else 0.0

    @property
    def bottleneck(self) -> StageReading | None:
        """The stage that limits the pipeline; None if the consumer does, or if nothing was read yet."""
        place = self._bottleneck()
        return None if place is None else self.stages[place]

    @property
    def limit(self) -> float:
        """Elements per second that the pipeline could make, if the consumer took them at once."""
        slowest = max(self._segments().values(), default=0.0)
        return self.elements / slowest if slowest > 0 else math.inf

    @property
    def verdict(self) -> str:
        """One sentence: the bottleneck, in numbers."""
        if not self.elements:
            return "nothing was read yet"
        found = self.bottleneck
        if found is None and self.training and self.waits >= WAITS:
            return (
                f"no stage is the bottleneck: training waits for data {_percent(self.waits)} of the time, "
                "and the stages work for less than half of that"
            )
        if found is None:
            made = f"; it could make {rate(self.limit)} elements/s" if self.limit < math.inf else ""
            return f"training is the bottleneck: it waits for data {_percent(self.waits)} of the time{made}"
        waits = f", and training waits for data {_percent(self.waits)} of the time" if self.training else ""
        return f"{found.name} is the bottleneck: busy {_percent(self.use(found))} of the time{waits}"

    @property
    def advice(self) -> list[str]:
        """What to do about the bottleneck, the best first; empty if there is none."""
        place = self._bottleneck()
        return [] if place is None else list(dict.fromkeys(self._advice(place)))

    def use(self, stage: StageReading) -> float:
        """Return the share of the time for which a stage has worked, on average over its threads: 0 to 1."""
        whole = self.seconds * max(1, stage.threads)
        return min(1.0, stage.busy / whole) if whole > 0 else 0.0

    def rows(self) -> list[dict[str, str]]:
        """Return the table: for each stage elements/s, its share of the time, the filling of its queue."""
        found = self._bottleneck()
        return [
            {
                "stage": ("▶ " if place == found else "") + stage.name,
                "runs in": _where(stage),
                "elements/s": rate(stage.elements / self.seconds if self.seconds > 0 else 0.0),
                "busy": "" if stage.kind == "prefetch" else _percent(self.use(stage)),
                "queue": _queue(stage),
            }
            for place, stage in enumerate(self.stages)
        ]

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for :meth:`from_config`."""
        return {**asdict(self), "stages": [_plain(stage) for stage in self.stages]}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> InputPipeline:
        """Return what :meth:`to_config` described; raises TypeError, LookupError or ValueError."""
        stages = [
            StageReading(**{**stage, "inputs": tuple(map(int, stage.get("inputs", ())))})
            for stage in config["stages"]
        ]
        if any(not 0 <= place < own for own, stage in enumerate(stages) for place in stage.inputs):
            raise ValueError("a stage of an input pipeline takes its elements from one that is not before it")
        counts = (int(config["elements"]), float(config["seconds"]), float(config["waited"]))
        return cls(tuple(stages), *counts, int(config["cores"]), bool(config["training"]))

    def __str__(self) -> str:
        rows = self.rows()
        widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]} if rows else {}
        lines = [_line({name: name for name in widths}, widths), *(_line(row, widths) for row in rows)]
        return "\n".join([*lines, self.verdict, *(f"- {one}" for one in self.advice)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = self.rows()
        heads = "".join(f"<th>{html.escape(name)}</th>" for name in (rows[0] if rows else ()))
        cells = "".join(
            f"<tr>{''.join(f'<td>{html.escape(value)}</td>' for value in row.values())}</tr>" for row in rows
        )
        advice = "".join(f"<li>{html.escape(one)}</li>" for one in self.advice)
        return (
            f"<table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table>"
            f"<p>{html.escape(self.verdict)}</p>" + (f"<ul>{advice}</ul>" if advice else "")
        )

    def _bottleneck(self) -> int | None:
        segments = self._segments()
        if not self.elements or not segments or (self.training and self.waits < WAITS):
            return None
        slowest = max(segments, key=lambda segment: segments[segment])
        if self.training and segments[slowest] < self.waited / 2:
            return None
        members = [place for place in range(len(self.stages)) if self._segment(place) == slowest]
        return max(members, key=lambda place: self.stages[place].busy)

    def _segments(self) -> dict[int, float]:
        """Return each segment's seconds, by the stage that begins it, or CONSUMER."""
        seconds: dict[int, float] = {}
        for place, stage in enumerate(self.stages):
            segment = self._segment(place)
            seconds[segment] = seconds.get(segment, 0.0) + stage.busy / max(1, stage.threads)
        return {segment: spent for segment, spent in seconds.items() if spent > 0}

    def _segment(self, place: int) -> int:
        """Return the segment of a stage: itself if it has threads, or the next prefetch after it."""
        if self.stages[place].parallel:
            return place
        after = self._after()
        while place in after:
            place = after[place]
            if self.stages[place].kind == "prefetch":
                return place
        return CONSUMER

    def _after(self) -> dict[int, int]:
        return {place: own for own, stage in enumerate(self.stages) for place in stage.inputs}

    def _advice(self, place: int) -> list[str]:
        stage = self.stages[place]
        found = []
        if stage.kind == "map" and not stage.parallel:
            found.append(
                f"give {stage.name} num_parallel_calls=nb.data.AUTOTUNE if it waits or computes in NumPy, or "
                f"workers={self.cores} if it computes in Python"
            )
        elif stage.kind == "map" and not stage.processes:
            if not stage.tunes:
                found.append(f"give {stage.name} num_parallel_calls=nb.data.AUTOTUNE, not {stage.threads}")
            found.append(f"give {stage.name} workers={self.cores}, not threads, if it computes in Python")
        elif stage.kind == "map" and stage.threads < self.cores:
            found.append(f"give {stage.name} workers={self.cores}: this process may use {self.cores} cores")
        elif stage.kind in FILES:
            found.append(
                f"read several files at once: list_files(...).interleave(nb.data.Dataset.{stage.kind}, "
                "num_parallel_calls=2)"
            )
        elif stage.kind == "interleave" and not stage.parallel:
            found.append(f"give {stage.name} num_parallel_calls={self.cores}")
        elif stage.kind in ("batch", "padded_batch", "filter", "enumerate", "scan", "unbatch"):
            found.append(f"do less for single elements: {stage.name} works on one at a time before batches")
        elif stage.kind == "from_generator":
            found.append("leave only the reading to the generator, and move the work to a map with AUTOTUNE")
        elif stage.kind == "shuffle":
            found.append("shuffle paths or row numbers before the elements are read, or use a smaller buffer")
        if self._segment(place) == CONSUMER and self.stages[-1].kind != "prefetch":
            found.append(
                "end with prefetch(nb.data.AUTOTUNE): it makes elements while the last one is in use"
            )
        if not any(one.kind == "cache" for one in self.stages) and stage.kind != "from_arrays":
            found.append(f"add cache() after {stage.name} if its elements are the same in every pass")
        return found


def _plain(stage: StageReading) -> dict[str, Any]:
    """Return the fields of a stage that differ from what they are by default."""
    values = {one.name: getattr(stage, one.name) for one in fields(stage)}
    values |= {"name": clip(stage.name, 80), "inputs": list(stage.inputs)}
    values |= {name: round(values[name], 6) for name in ("busy", "waited", "ready")}
    return {name: value for name, value in values.items() if value or name in ("kind", "name")}


def _where(stage: StageReading) -> str:
    if stage.kind == "prefetch":
        return "a thread" + (", tuned" if stage.tunes else "")
    if not stage.parallel:
        return ""
    kind = "process" if stage.processes else "thread"
    plural = "" if stage.threads == 1 else "es" if stage.processes else "s"
    return f"{stage.threads} {kind}{plural}" + (", tuned" if stage.tunes else "")


def _queue(stage: StageReading) -> str:
    return "" if stage.filling is None else f"{stage.ready:.1f} of {stage.buffer}"


def _percent(share: float) -> str:
    """Return a share as a percentage.

    >>> _percent(0.873), _percent(0.0123), _percent(0.0)
    ('87%', '1.2%', '0%')
    """
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{100 * share:.1f}%"


def _line(cells: Mapping[str, str], widths: Mapping[str, int]) -> str:
    left: Sequence[str] = ("stage", "runs in")
    return "  ".join(
        cells[name].ljust(width) if name in left else cells[name].rjust(width)
        for name, width in widths.items()
    ).rstrip()
