"""A replica whose parameters, optimizer slots and states live on a mesh of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.distribute.tpu.mesh import DeviceMesh
from nbdist.distribute.tpu.step import compiled_step
from nbdist.graph.backend import Array
from nbdist.graph.tensor import Variable
from nbdist.graph.xla.devices import jax_module, wide_types
from nbdist.optim import Optimizer
from nbdist.train.compiled_replica import CompiledReplica
from nbdist.train.trainable import Held, Parts, Program, Shapes, Trainable, WholeStep


class MeshReplica(CompiledReplica):
    """Steps on a mesh, by `step.compiled_step`."""

    def __init__(
        self,
        variables: Sequence[tuple[str, Array]],
        dimensions: Sequence[Sequence[str | None]],
        optimizer: Optimizer,
        mesh: DeviceMesh,
        notes: Sequence[str],
        parts: Parts | None = None,
    ) -> None:
        values = [np.array(value) for _, value in variables]
        super().__init__(optimizer, values, [optimizer.new_slots(value) for value in values])
        self.notes, self._mesh, self._parts = notes, mesh, parts
        self.states: dict[Variable, Array] = {} if parts is None else parts.states
        """The host's copies of the states, such as moving averages."""
        whole = mesh.placed(())
        places = [
            mesh.weights(name, names, value.shape)
            for (name, value), names in zip(variables, dimensions, strict=True)
        ]
        self.placement = {
            "values": places,
            "slots": [
                {name: place if one.shape == value.shape else whole for name, one in slots.items()}
                for place, slots, value in zip(places, self.host_slots, self.values, strict=True)
            ],
            "states": [whole for _ in self.states],
        }
        self.on_mesh: Any = None
        """Values, slots and states on the mesh."""
        self.upload()

    @property
    def numbers(self) -> tuple[Any, Any]:
        """The learning rate and the number of the next update."""
        return np.float64(self.optimizer.learning_rate), np.int64(self.report.global_step + 1)

    @property
    def computed_with(self) -> Sequence[Array]:
        """The parameters on the mesh."""
        values: Sequence[Array] = self.on_mesh["values"]
        return values

    def take_over(self, state: Any) -> None:
        """Hold the state that a step has returned, of which the host has no copy yet."""
        self.on_mesh, self.host_is_current = state, False

    def fetch(self) -> None:
        """Copy parameters, slots and states to the host, if a step has changed them."""
        if self.host_is_current:
            return
        state = self.on_mesh
        for own, value in zip(self.values, state["values"], strict=True):
            np.copyto(own, np.asarray(value))
        for mine, theirs in zip(self.host_slots, state["slots"], strict=True):
            for name, one in mine.items():
                np.copyto(one, np.asarray(theirs[name]))
        for array, value in zip(self.states.values(), state["states"], strict=True):
            np.copyto(array, np.asarray(value))
        self.host_is_current = True

    def program(self, model: Trainable, shapes: Shapes) -> Program:
        """Return the step of a model that is a graph, for batches of these shapes."""
        parts = self._parts
        assert parts is not None, "a loop of one's own compiles its steps itself"
        draw = [] if parts.draw is None else [parts.draw]
        scale = [] if parts.loss_scale is None else [parts.loss_scale]
        step = WholeStep(
            feeds=[*(variable for variable, _ in scale), parts.x, parts.y, parts.scale, *draw],
            shapes=[*(() for _ in scale), *shapes, (), *((4,) for _ in draw)],
            fetches=[parts.loss, *parts.metrics],
            checked=[parts.loss],
            held=[Held(self, parts.weights, parts.gradients, parts.updates)],
        )
        program = compiled_step(step, self._mesh)
        return lambda *arrays: program(*(value.array(np) for _, value in scale), *arrays)

    def close(self) -> None:
        """Release the memory of the devices."""
        self.on_mesh = None

    def upload(self) -> None:
        """Place the host's parameters, slots and states on the mesh."""
        state = {"values": self.values, "slots": self.host_slots, "states": list(self.states.values())}
        with wide_types():
            self.on_mesh, self.host_is_current = jax_module().device_put(state, self.placement), True
