"""Measures the stages of a dataset while it is read: seconds, elements, and how full the queues are.

    meter = Meter()
    for batch in dataset.iterate(meter=meter): ...
    print(meter.reading())                    # from any thread: an `InputPipeline`

Design. Each stage's blocks are a `Measured`. In a pass without a meter it returns the generator of the stage
itself, so nothing is measured and nothing is slower. In a pass with one, blocks of 0.3 ms or more are all
timed. To time a block costs up to 3 µs (the code is not in the cache after a large copy), so of quicker ones
some are timed, every 2 ms of work: a timed block stands for itself and for those after it, which pass at the
speed of itertools. Their number is random, so that it does not fall in with a period of the stage, and is
drawn before the block is timed, so that slow blocks count neither more nor less than they should.

A time includes the stages before it in the same thread; `Meter.reading` takes these off. A stage with threads
or processes adds the seconds of its calls itself (`StageCounter.called`), on the thread that takes the
results: a counter has one writer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nbdist.data.bottleneck import InputPipeline, StageReading
from nbdist.data.steps import Step
from nbdist.machine import count_cores

if TYPE_CHECKING:
    from nbdist.data.blocks import Block, Blocks, Pass

TIMED_FIRST = 4  # blocks of a pass that are all timed: the first ones open files and fill buffers
LONG = 300e-6  # seconds of a block from which on all are timed
EVERY = 2e-3  # seconds between two quicker blocks that are timed, on average
MOST_UNTIMED = 100  # blocks between them, on average
FILLINGS = 8  # takes from a queue for each look at its length
_END: list[Any] = []


@dataclass(frozen=True)
class Execution:
    """How a stage executes: the function that it calls, threads or processes, and its buffer of elements."""

    function: str = ""
    threads: int = 0
    processes: bool = False
    buffer: int = 0
    tunes: bool = False


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called in a table.

    >>> name_of(len), name_of(lambda x: x)
    ('len', 'lambda')
    """
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


class Measured:
    """The blocks of one stage, which a pass with a meter measures."""

    def __init__(self, made: Blocks, step: Step, execution: Execution | None = None) -> None:
        self.made, self.step, self.execution = made, step, execution or Execution()

    def __call__(self, run: Pass) -> Iterator[Block]:
        """Return the blocks of one pass."""
        if run.meter is None:
            return self.made(run)
        counter = run.meter.counter(self)
        return counter.measured(self.made(replace(run, counter=counter)))

    @property
    def inputs(self) -> tuple[Measured, ...]:
        """The stages that it takes elements from."""
        return tuple(_inside(self.made))

    @property
    def single(self) -> bool:
        """Whether each of its blocks has one element."""
        kind = self.step[0]
        return kind in _SINGLE or (kind in _PASSING and all(one.single for one in self.inputs))

    @property
    def name(self) -> str:
        """The transform with what tells it apart.

        >>> Measured(iter, ("batch", 32, False)).name, Measured(iter, ("map",), Execution("decode")).name
        ('batch(32)', 'map(decode)')
        """
        kind, *values = self.step
        about: object = self.execution.function or (values[0] if values and kind in _NUMBERED else "")
        return f"{kind}({about})" if about != "" else str(kind)


_SINGLE = (
    "from_generator",
    "map",
    "batch",
    "padded_batch",
    "window",
    "enumerate",
    "scan",
    "zip",
    "concatenate",
)
_PASSING = ("repeat", "cache", "prefetch")
_NUMBERED = ("batch", "padded_batch", "shuffle", "repeat", "take", "skip", "prefetch", "window", "shard")


def _inside(made: Any) -> Iterator[Measured]:
    """Yield the stages that what makes blocks was made with: arguments, or what a cache is of."""
    if isinstance(made, Measured):
        yield made
    elif isinstance(made, partial):
        for argument in made.args:
            if isinstance(argument, list) and all(isinstance(part, tuple) for part in argument):
                for part in argument:  # (blocks, rows) of each of several datasets
                    yield from _inside(part[0] if part else None)
            elif isinstance(argument, (Measured, partial)):
                yield from _inside(argument)
    elif isinstance(upstream := getattr(made, "_upstream", None), (Measured, partial)):
        yield from _inside(upstream)


class StageCounter:
    """What one stage has done so far."""

    def __init__(self, stage: Measured) -> None:
        self.stage = stage
        self.blocks = self.elements = 0
        self.seconds = 0.0
        """For which its consumer was in it or waited for it."""
        self.busy = 0.0
        """Of its own threads or processes."""
        self.threads, self.buffer = stage.execution.threads, stage.execution.buffer
        self._single = stage.single
        self._takes, self._looks, self._ready = 0, 0, 0
        self._random = 1

    def called(self, seconds: float) -> None:
        """Count a call in a thread or process of the stage."""
        self.busy += seconds

    def take(self, ready: Callable[[], int]) -> None:
        """Count that an element is taken from its queue, of which ``ready()`` is the length."""
        if self._takes % FILLINGS == 0:
            self._looks, self._ready = self._looks + 1, self._ready + ready()
        self._takes += 1

    @property
    def ready(self) -> float:
        """The mean length of its queue when an element was taken."""
        return self._ready / self._looks if self._looks else 0.0

    def measured(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Return an iterator over blocks that counts them; dropping it drops ``blocks``."""
        return itertools.chain.from_iterable(self._parts(blocks))

    def _parts(self, blocks: Iterator[Block]) -> Iterator[Iterable[Block]]:
        """Yield blocks one by one while they are timed, and in between an iterator over some that are not."""
        clock, number = time.perf_counter, 0
        while True:
            untimed = self._untimed() if number >= TIMED_FIRST else 0
            began = clock()
            block = next(blocks, _END)
            took = clock() - began
            if block is _END:
                self.seconds += took
                return
            number += 1
            self._count(1, len(block), took)
            yield (block,)
            if untimed:
                passed = itertools.count(1)  # all of them true: it lets every block pass, and counts
                try:
                    yield itertools.compress(itertools.islice(blocks, untimed), passed)
                finally:
                    self._count(next(passed) - 1, 1, took)

    def _count(self, blocks: int, length: int, took: float) -> None:
        self.blocks += blocks
        self.elements += blocks * length
        self.seconds += blocks * took

    def _untimed(self) -> int:
        """Return how many blocks pass after the next one without a look at the clock."""
        mean = self.seconds / max(self.blocks, 1)
        if mean >= LONG or not self._single:  # where blocks are not timed, their lengths are not seen
            return 0
        most = min(MOST_UNTIMED, int(EVERY / max(mean, 1e-9)))
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF  # an LCG: the period of no stage
        return (self._random >> 8) % (2 * most + 1)


class Meter:
    """The counters of one dataset's stages, over all passes that were given it. Any thread reads them."""

    def __init__(self, *, training: bool = False) -> None:
        self._counters: dict[Measured, StageCounter] = {}
        self._root: Measured | None = None
        self._training, self._cores = training, count_cores()
        self._seconds, self._began, self._last = 0.0, 0.0, 0.0

    def counter(self, stage: Measured) -> StageCounter:
        """Return the counter of a stage."""
        found = self._counters.get(stage)
        if found is None:
            found = self._counters.setdefault(stage, StageCounter(stage))
        return found

    def begin(self, root: Measured) -> None:
        """Count the time from now on as time of a pass of ``root``."""
        self._root, self._began = root, time.perf_counter()

    def end(self) -> None:
        """Count the time until the next pass as none."""
        self._seconds, self._began = self.seconds, 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all passes so far."""
        return self._seconds + (time.perf_counter() - self._began if self._began else 0.0)

    def reading(self) -> InputPipeline:
        """Return what was measured so far."""
        root = self._root
        if root is None:
            return InputPipeline((), cores=self._cores, training=self._training)
        order = stages_of(root)
        places = {stage: place for place, stage in enumerate(order)}
        counters = [self._counters.get(stage) or StageCounter(stage) for stage in order]
        stages = []
        for counter in counters:
            stage = counter.stage
            inputs = tuple(dict.fromkeys(places[one] for one in stage.inputs))
            own = max(0.0, counter.seconds - sum(counters[place].seconds for place in inputs))
            apart = stage.step[0] == "prefetch"
            waited = counter.seconds if apart else own if counter.threads else 0.0
            stages.append(
                StageReading(
                    stage.step[0],
                    stage.name,
                    inputs,
                    counter.elements,
                    0.0 if apart else counter.busy if counter.threads else own,
                    waited,
                    counter.threads,
                    stage.execution.processes,
                    counter.buffer,
                    counter.ready,
                    stage.execution.tunes,
                )
            )
        last = counters[-1]
        return InputPipeline(
            tuple(stages), last.elements, self.seconds, last.seconds, self._cores, self._training
        )


def stages_of(blocks: Blocks) -> list[Measured]:
    """Return the stages before a stage, and itself at the end, each once."""
    found: list[Measured] = []

    def collect(stage: Measured) -> None:
        for one in stage.inputs:
            collect(one)
        if stage not in found:
            found.append(stage)

    if isinstance(blocks, Measured):
        collect(blocks)
    return found
