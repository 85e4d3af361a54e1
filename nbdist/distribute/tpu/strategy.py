"""`TPUStrategy`: one process, one program for all devices of JAX that the process has.

    strategy = nb.distribute.TPUStrategy()
    with strategy.scope():
        ...

XLA compiles the step of the whole batch, and partitions it over the devices: there is one replica, on a mesh.
So BatchNorm has the statistics of the whole batch, dropout draws what one device draws, and the weights are
those of one device but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist.distribute.spec import StrategyConfig, StrategySpec
from nbdist.distribute.tpu.mesh import DeviceMesh, checked_layout, checked_shape, described, local_devices
from nbdist.distribute.tpu.replica import MeshReplica
from nbdist.distribute.tpu.step import compiled_step
from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.optim import Optimizer
from nbdist.optim.precision import unscaled
from nbdist.train.options import option, rows, whole
from nbdist.train.replica import Replica, itself
from nbdist.train.strategy import StepCompiler, Strategy
from nbdist.train.trainable import Parts, Trainable, WholeStep


@dataclass(frozen=True, kw_only=True)
class TPUOptions:
    """The options of `TPUStrategy`."""

    host_devices: int | None = option(
        None,
        "compute on N devices of the host's CPU in place of TPUs, for teaching",
        "N",
        doc="compute on so many devices of the host's CPU in place of TPUs, for teaching, 1 to 1024",
        **whole(1, 1024),
    )


class TPUStrategy(Strategy, StepCompiler):
    """Train on all devices of JAX in this process with one program, which XLA partitions.

    Runs on one worker, or in any process. Devices are opened when a training begins: TPUs if the process has
    any, else what JAX finds; a line of the output names them.

    - ``mesh``: the shape of the mesh, sizes by name, such as ``{"rows": 2, "cols": 4}``; None for one
      dimension, "batch", of all devices
    - ``layout``: which dimension of arrays is split along which of the mesh, such as
      ``{"batch": "rows", "hidden": "cols"}``; None splits the batch along the first
    - ``host_devices``: compute on so many devices that JAX makes of this host's CPU, for tests and teaching;
      None for the devices that there are

    Raises InvalidArgumentError for a mesh or layout that is none. Training raises MissingExtra without JAX,
    and InvalidArgumentError if the mesh has another number of places than there are devices.

    >>> TPUStrategy({"rows": 2, "cols": 4}, {"batch": "rows"}).num_replicas_in_sync
    1
    """

    name = "tpu"
    alone = True
    continues = True
    calls_update = True
    compiler = itself

    def __init__(
        self,
        mesh: Mapping[str, int] | None = None,
        layout: Mapping[str, str] | None = None,
        *,
        host_devices: int | None = None,
    ) -> None:
        self._shape = None if mesh is None else checked_shape(mesh)
        self._layout = None if layout is None else checked_layout(layout, self._shape)
        rows(TPUOptions)["host_devices"].check(host_devices)
        self._host_devices = host_devices
        self._mesh: DeviceMesh | None = None

    def mesh(self, **sizes: int) -> TPUStrategy:
        """Give the mesh this shape from the next training on; return the strategy.

        - ``sizes``: the size of each dimension by its name; their product is the number of devices. The batch
          is split along the first one, unless ``layout`` says otherwise

        Raises InvalidArgumentError for sizes below 1.

        >>> TPUStrategy().mesh(rows=2, cols=4).layout(batch="rows", hidden="cols").name
        'tpu'
        """
        self._shape, self._layout, self._mesh = checked_shape(sizes), None, None
        return self

    def layout(self, **rules: str) -> TPUStrategy:
        """Split dimensions of arrays along the mesh from the next training on; return the strategy.

        - ``rules``: by name of a dimension, the dimension of the mesh. ``batch`` is the first dimension of
          what is fed; layers name those of weights: ``Dense(512, "relu", dimension="hidden")``

        Raises InvalidArgumentError for a dimension that the mesh does not have.
        """
        self._layout, self._mesh = checked_layout(rules, self._shape), None
        return self

    @property
    def device_mesh(self) -> DeviceMesh:
        """The devices and the layout; opens the devices at first use."""
        if self._mesh is None:
            self._mesh = DeviceMesh(self._shape, self._layout, local_devices(self._host_devices))
        return self._mesh

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Begin to train variables, each of which every device has."""
        return self._replica(variables, [(None,) * value.ndim for _, value in variables], optimizer)

    def begin(self, model: Trainable, optimizer: Optimizer) -> Replica:
        """Begin to train a model, or the variables of a loop of one's own."""
        parts = None
        if model.in_graph:
            parts = model.parts(xla=True)
            self.device_mesh.check_names({name for names in model.dimensions for name in names})
        return self._replica(model.variables, model.dimensions, optimizer, parts)

    def compile_step(self, step: WholeStep) -> Callable[..., tuple[Array, ...]]:
        """Return the program of a step of a loop of one's own."""
        return compiled_step(step, self.device_mesh)

    def _replica(
        self,
        variables: Sequence[tuple[str, Array]],
        dimensions: Sequence[Sequence[str | None]],
        optimizer: Optimizer,
        parts: Parts | None = None,
    ) -> MeshReplica:
        return MeshReplica(variables, dimensions, unscaled(optimizer), self.device_mesh, self._notes(), parts)

    def _notes(self) -> list[str]:
        mesh = self.device_mesh
        sizes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
        rules = ", ".join(f"{name} along {along}" for name, along in mesh.layout.items())
        more = f"; mesh {sizes}, split: {rules}" if self._shape is not None else ""
        return [f"strategy tpu: {described(mesh.devices)}{more}"]


def _one_worker(settings: Mapping[str, Any], workers: int | None) -> None:
    if workers is not None and workers > 1:
        raise InvalidArgumentError(
            f"--strategy tpu trains in one process, on all devices of it, and the run has {workers} workers: "
            "add --on worker:0"
        )


def _make(config: StrategyConfig) -> TPUStrategy:
    return TPUStrategy(**config.settings)


SPEC = StrategySpec(
    TPUStrategy.name,
    make=_make,
    synchronous=True,
    options=TPUOptions,
    check=_one_worker,
)
