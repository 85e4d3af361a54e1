"""State that the towers of an in-graph training share: graph, session, finished towers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbdist.data import Dataset
from nbdist.data.shares import share_of
from nbdist.distribute.in_graph.dataset import Reading
from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.compile.specs import value_order
from nbdist.graph.copying import Copier
from nbdist.graph.device import DeviceSpec
from nbdist.graph.op import Spec
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph, control_dependencies, device, name_scope
from nbdist.graph.tensor import Placeholder, Tensor, Variable, constant, record
from nbdist.optim import Optimizer, from_config
from nbdist.runtime.session.session import Session
from nbdist.train.pipeline import bubble_fraction, pipeline
from nbdist.train.trainable import Parts

if TYPE_CHECKING:
    from nbdist.distribute.in_graph.strategy import InGraphStrategy


class Joint:
    """One training of some towers; any of their threads may ask it."""

    def __init__(self, strategy: InGraphStrategy, parts: Parts, optimizer: Optimizer) -> None:
        self.parts, self.data, self.optimizer = parts, strategy.data, optimizer
        self.master = Master(parts, optimizer, strategy.devices, strategy.ps_devices)
        number = len(self.master.groups)
        if strategy.data == "client":  # the steps take batches of any size
            usual = split_batch(number * parts.micro_batches, number, parts.micro_batches)
            ways = (
                [dict(enumerate(usual))] if strategy.synchronous else [{i: usual[0]} for i in range(number)]
            )
            for cuts in ways:
                self.master.step(cuts)
        transport: Literal["auto", "socket"] = "socket" if strategy.transport == "socket" else "auto"
        self.session = Session(strategy.target, self.master.graph, isolate=True, transport=transport)
        self.lock = threading.Condition()
        self.going_on = 1 if strategy.synchronous else number
        """Towers with a thread of their own that have not finished."""
        self.updates = 0
        self._initialised: set[Variable] = set()
        try:
            self._initialise()
        except BaseException:
            self.session.close()
            raise

    def describe(self) -> str:
        """Return what a user should know of how the work is spread."""
        parts, number = self.parts, len(self.master.groups)
        text = f"in-graph: one graph with {number} tower{'s' * (number > 1)}, one session"
        if parts.stages > 1:
            idle = bubble_fraction(parts.stages, parts.micro_batches, parts.schedule)
            text += (
                f"; {parts.stages} stages, {parts.micro_batches} micro-batches, {parts.schedule}: each stage "
                f"is idle {idle:.0%} of the time at best (the pipeline's bubble)"
            )
        elif parts.devices_needed > 1:
            text += f"; layers split over {parts.devices_needed} tasks"
        if self.data == "workers":
            text += "; the data is sent to the workers once, and each reads its share of every batch"
        return text

    def step(self, cuts: Mapping[int, Sequence[slice]], reading: Reading | None) -> Step:
        """Return a step of the graph, which grows if a batch is smaller than usual."""
        with self.lock:
            step = self.master.step(cuts, reading)
            self._initialise()
            return step

    def set_rate(self, rate: float) -> None:
        """Change the learning rate, wherever variables live; returns when all have."""
        self.session.run(self.master.set_rate, {self.master.new_rate: np.array(rate, np.float64)})
        self.optimizer.learning_rate = rate

    def read(self, dataset: Dataset, towers: Sequence[int]) -> Reading:
        """Have some towers read a dataset together, each on its first device."""
        master = self.master
        with self.lock, master.graph.as_default():
            return Reading(dataset, [master.groups[number][0] for number in towers], master.parts)

    def _initialise(self) -> None:
        """Initialise the variables that are new: an optimizer's come with its first step."""
        new = [v for v in self.master.graph.variables() if v not in self._initialised]
        if new:
            with self.master.graph.as_default():
                initialised = group(*(v.initializer for v in new))
            self.session.run(initialised)
            self._initialised.update(new)


def split_batch(size: int, towers: int, micro_batches: int) -> list[list[slice]]:
    """Return, for each tower, the slices of its micro-batches; none of them is empty.

    >>> split_batch(5, 2, 2)
    [[slice(0, 2, None), slice(2, 3, None)], [slice(3, 4, None), slice(4, 5, None)]]
    """
    found = []
    for i in range(towers):
        own = share_of(size, towers, i)
        edges = [
            own.start + -(-(own.stop - own.start) * k // micro_batches) for k in range(micro_batches + 1)
        ]
        found.append([slice(a, b) for a, b in pairwise(edges) if b > a])
    return found


# The graph with all replicas: a tower for each group of devices, on shared variables.
#
#     master = Master(parts, optimizer, devices, ps_devices)
#     step = master.step({0: [slice(0, 8)], 1: [slice(8, 16)]})       # two towers with one micro-batch each
#     session.run([step.towers[0].micro_batches[0].loss, step.update], {...})
#
# A tower is a copy of the step that is trained. With stages or micro-batches it is several, made in the order
# in which a pipeline's stages work through them: a session follows the order of creation.


@dataclass
class MicroBatch:
    """One micro-batch of one tower: what is fed (the draw alone, if towers read), and what comes of it."""

    x: Tensor
    y: Tensor
    draw: Placeholder | None
    loss: Tensor
    metrics: list[Tensor]


@dataclass
class Tower:
    """One replica in the graph."""

    micro_batches: list[MicroBatch]
    gradients: list[Tensor]
    checks: list[Tensor]
    """Raise NanLossError if a loss is NaN or infinite."""
    updates: list[Tensor]
    """Assign the states of layers."""


@dataclass
class Step:
    """Towers that make one update together, and the op that makes it."""

    towers: list[Tower]
    update: Tensor


class Master:
    """The graph that a client drives, with its variables.

    ``devices`` are the workers', of which each tower gets ``parts.devices_needed``. Variables live on
    ``ps_devices`` in turns; where there are none, or where a model has stages, with the first tower.
    """

    def __init__(
        self, parts: Parts, optimizer: Optimizer, devices: Sequence[str], ps_devices: Sequence[str]
    ) -> None:
        needed = parts.devices_needed
        if len(devices) < needed:
            raise InvalidArgumentError(
                f"the model is cut into {needed} parts and there are {len(devices)} workers; start a cluster "
                f"with %cluster start --workers {needed}, or use fewer stages"
            )
        self.parts = parts
        self._optimizer = from_config(optimizer.to_config())  # its slots belong to this graph alone
        self.groups = [devices[i : i + needed] for i in range(0, len(devices) - needed + 1, needed)]
        self.graph = Graph()
        self.graph.in_order = parts.stages > 1  # a pipeline's schedule is the order
        with self.graph.as_default():
            self.scale = Placeholder(None, (), {}, parts.scale.spec, "scale")
            self.weights = [
                self._variable(v, self._home(v, i, ps_devices), v.name, value)
                for i, (v, value) in enumerate(zip(parts.weights, parts.values, strict=True))
            ]
            self.states = [
                {
                    v: self._variable(v, _placed(v.device, own), f"{v.name}/of_replica_{i}", value)
                    for v, value in parts.states.items()
                }
                for i, own in enumerate(self.groups)
            ]
            # One per device with weights, so that applying a gradient needs no transfer of the rate.
            self.new_rate = Placeholder(None, (), {}, Spec((), np.dtype(np.float64)), "new_rate")
            rates = self._optimizer.graph_state.rates
            for home in dict.fromkeys(weight.device for weight in self.weights):
                with device(home):
                    rates[home] = Variable(
                        np.float64(optimizer.learning_rate), trainable=False, name="learning_rate"
                    )
            self.set_rate = group(*(rate.assign(self.new_rate) for rate in rates.values()))
            """The op that changes the rate of all updates from the next step on to the ``new_rate``."""
        self._steps: dict[tuple[Any, ...], Step] = {}

    def step(self, cuts: Mapping[int, Sequence[slice]], reading: Reading | None = None) -> Step:
        """Return the step that some towers make together: by tower, its micro-batches in the whole batch.

        Without ``reading`` they are fed, and may be of any size. A tower without an example computes nothing;
        where towers read, it advances with the others.
        """
        size = max(piece.stop for own in cuts.values() for piece in own)
        key = (*((number, len(own)) for number, own in cuts.items()), reading, reading and size)
        if key not in self._steps:
            with self.graph.as_default():
                self._steps[key] = self._made(cuts, reading, size)
        return self._steps[key]

    def _variable(self, v: Variable, place: str, name: str, value: Array) -> Variable:
        with device(place):
            return Variable(value, name=name, trainable=v.trainable)

    def _home(self, v: Variable, i: int, ps_devices: Sequence[str]) -> str:
        if self.parts.devices_needed > 1 or not ps_devices:
            return _placed(v.device, self.groups[0])
        return ps_devices[i % len(ps_devices)]

    def _made(self, cuts: Mapping[int, Sequence[slice]], reading: Reading | None, size: int) -> Step:
        towers: list[Tower] = []
        idle: list[Tensor] = []
        scale = self.scale if reading is None else constant(np.float32(1 / size))
        for i, (number, own) in enumerate(cuts.items()):
            if own:
                with name_scope(f"replica_{number}"):
                    inputs = (
                        [(_like(self.parts.x, k), _like(self.parts.y, k)) for k in range(len(own))]
                        if reading is None
                        else _cut(*reading.share(i, size), own)
                    )
                    towers.append(self._tower(number, inputs, scale))
            elif reading is not None:
                idle.append(reading.sources[i].next())
        return self._together(towers, idle)

    def _tower(self, number: int, inputs: Sequence[tuple[Tensor, Tensor]], scale: Tensor) -> Tower:
        parts, own = self.parts, self.groups[number]
        own_states = self.states[number]
        shared: dict[Tensor, Tensor] = {parts.scale: scale}
        shared |= dict(zip([*parts.weights, *own_states], [*self.weights, *own_states.values()], strict=True))
        copies = []
        tower = Tower([], [], [], [])
        for k, (x, y) in enumerate(inputs):
            given: dict[Tensor, Tensor] = {parts.x: x, parts.y: y}
            draw = None
            if parts.draw is not None:
                draw = given[parts.draw] = _like(parts.draw, k)
            copies.append(Copier(self.graph, {**shared, **given}, lambda text: _placed(text, own)))
            tower.micro_batches.append(MicroBatch(x, y, draw, parts.loss, []))
        tower.gradients = self._work_through(tower, copies)
        self._update_states(tower, copies, number)
        return tower

    def _work_through(self, tower: Tower, copies: list[Copier]) -> list[Tensor]:
        """Copy the step for each micro-batch, in the order of the schedule; return the summed gradients."""
        parts, stages = self.parts, self.parts.stages
        forward, backward = by_stage(parts, stages)
        homes = {t: stage for stage, work in enumerate(backward) for t in work}
        ends: list[list[int]] = [[] for _ in range(stages)]
        for i, gradient in enumerate(parts.gradients):
            ends[homes.get(gradient, 0)].append(i)
        sums: dict[int, Tensor] = {}
        for work in pipeline(stages, len(copies), parts.schedule):
            copy = copies[work.micro_batch]
            copy((forward if work.forward else backward)[work.stage])
            if work.forward and work.stage == stages - 1:
                micro = tower.micro_batches[work.micro_batch]
                micro.loss, *micro.metrics = copy([parts.loss, *parts.metrics])
                with device(micro.loss.device):
                    tower.checks.append(record("check_finite", micro.loss))
            elif not work.forward:
                for i in ends[work.stage]:
                    (one,) = copy([parts.gradients[i]])
                    with device(one.device):
                        sums[i] = sums[i] + one if i in sums else one
        return [sums[i] for i in range(len(parts.gradients))]

    def _update_states(self, tower: Tower, copies: list[Copier], number: int) -> None:
        """Move states once a step: by the mean of what the micro-batches say."""
        for v, new in self.parts.updates.items():
            values = [copy([new])[0] for copy in copies]
            state = self.states[number][v]
            with device(state.device):
                total = values[0]
                for value in values[1:]:
                    total = total + value
                tower.updates.append(state.assign(total / len(values) if len(values) > 1 else total))

    def _together(self, towers: list[Tower], besides: list[Tensor]) -> Step:
        """Sum the towers' gradients where each variable lives, and apply them once all losses are numbers.

        ``besides`` is run in the same step.
        """
        pairs = []
        for i, weight in enumerate(self.weights):
            with device(weight.device):
                total = towers[0].gradients[i]
                for tower in towers[1:]:
                    total = total + tower.gradients[i]
            pairs.append((total, weight))
        with control_dependencies([check for tower in towers for check in tower.checks]):
            applied = self._optimizer.apply_gradients(pairs)
        return Step(towers, group(applied, *besides, *(u for tower in towers for u in tower.updates)))


def by_stage(parts: Parts, stages: int) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return what each stage computes forward and backward, in order; what names no stage is the last's."""
    given: set[Tensor] = {parts.x, parts.y, parts.scale, *parts.weights, *parts.states}
    if parts.draw is not None:
        given.add(parts.draw)
    ahead = value_order([parts.loss, *parts.metrics, *parts.updates.values()], given=given)
    forward: list[list[Tensor]] = [[] for _ in range(stages)]
    backward: list[list[Tensor]] = [[] for _ in range(stages)]
    for t in ahead:
        if t not in given:
            forward[stage_of(t, stages)].append(t)
    known = given | set(ahead)
    for t in value_order(parts.gradients, given=known):
        if t not in known:
            backward[stage_of(t, stages)].append(t)
    return forward, backward


def stage_of(t: Tensor, stages: int) -> int:
    """Return the stage whose device a tensor names; the last one if it names none."""
    task = DeviceSpec.from_string(t.device).task
    return stages - 1 if task is None else min(task, stages - 1)


def _like(t: Placeholder, k: int) -> Placeholder:
    return Placeholder(None, (), {}, t.spec, f"{t.name}_{k}")


def _cut(x: Tensor, y: Tensor, pieces: Sequence[slice]) -> list[tuple[Tensor, Tensor]]:
    """Return the micro-batches of a tower's share, given where they lie in the whole batch."""
    if len(pieces) == 1:
        return [(x, y)]
    own = [slice(piece.start - pieces[0].start, piece.stop - pieces[0].start) for piece in pieces]
    return [(x[piece], y[piece]) for piece in own]


def _placed(text: str, own: Sequence[str]) -> str:
    """Return the device that ``/task:i`` stands for in a tower; what names none is on the last."""
    task = DeviceSpec.from_string(text).task
    return own[-1] if task is None else own[min(task, len(own) - 1)]
