"""A mesh of JAX devices, and which dimensions of arrays are split along it.

    mesh = DeviceMesh({"rows": 2, "cols": 4}, {"batch": "rows", "hidden": "cols"}, devices)
    mesh.placed(("inputs", "hidden"))       # the kernel of a layer: its columns are split in four

Names of dimensions and rules for them are those of Mesh TensorFlow (Shazeer et al. 2018). A dimension without
a rule is not split: each device has all of it. XLA inserts the sums and exchanges that follow (GSPMD; Xu et
al. 2021).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, choices
from nbdist.graph.xla.devices import devices_of_host, jax_module
from nbdist.numbers import is_whole

BATCH = "batch"
"""The first dimension of what is fed."""


def checked_shape(shape: Mapping[str, Any]) -> dict[str, int]:
    """Return the shape of a mesh, sizes by name; InvalidArgumentError for anything else.

    >>> checked_shape({"rows": 2, "cols": 4})
    {'rows': 2, 'cols': 4}
    """
    if not isinstance(shape, Mapping) or not shape:
        raise InvalidArgumentError(
            f'a mesh has named dimensions with sizes, such as {{"rows": 2, "cols": 4}}, got {shape!r}'
        )
    for name, size in shape.items():
        if not isinstance(name, str) or not is_whole(size, 1):
            raise InvalidArgumentError(f"mesh: {name}={size!r} is not a name with a size of 1 or more")
    return {name: int(size) for name, size in shape.items()}


def checked_layout(layout: Mapping[str, str], shape: Mapping[str, int] | None) -> dict[str, str]:
    """Return the rules of a layout; InvalidArgumentError for a dimension that the mesh does not have.

    >>> checked_layout({"batch": "rows"}, {"rows": 2, "cols": 4})
    {'batch': 'rows'}
    """
    for name, split in layout.items():
        if shape is not None and split not in shape:
            raise InvalidArgumentError(
                f"layout: {name}={split!r} names no dimension of the mesh; {choices(split, sorted(shape))}"
            )
    return dict(layout)


def local_devices(host_devices: int | None = None) -> list[Any]:
    """Return the devices of JAX in this process; with ``host_devices``, so many of the host's CPU.

    Raises MissingExtra without JAX, and FailedPreconditionError if a body has several processes of JAX.
    """
    jax = jax_module()
    if jax.process_count() > 1:
        raise FailedPreconditionError(
            f"strategy tpu trains on the devices of one process, and jax.distributed has "
            f"{jax.process_count()}: train with JAX's own code there (--framework jax)"
        )
    if host_devices is None:
        return list(jax.local_devices())
    return devices_of_host(host_devices)


def described(devices: Sequence[Any]) -> str:
    """Return on which devices a training runs, in words, and whether these are TPUs."""
    platform, count = devices[0].platform, len(devices)
    if platform == "tpu":
        return f"XLA on {count} TPU core{'s' * (count > 1)} ({devices[0].device_kind})"
    what = {"cpu": "CPU", "gpu": "GPU", "cuda": "GPU"}.get(platform, platform)
    return f"there is no TPU in this process: XLA on {count} {what} device{'s' * (count > 1)}" + (
        f" of this host{', which share its cores' * (count > 1)}: for tests and teaching"
        if what == "CPU"
        else ""
    )


class DeviceMesh:
    """Devices in a grid with named dimensions, and the rules by which arrays are split.

    - ``shape``: sizes by name; None for one dimension, "batch", of all devices
    - ``layout``: by name of an array's dimension, the dimension of the mesh that it is split along; None
      splits the batch along the first one

    Raises InvalidArgumentError if the sizes do not multiply to the number of ``devices``.
    """

    def __init__(
        self, shape: Mapping[str, int] | None, layout: Mapping[str, str] | None, devices: Sequence[Any]
    ) -> None:
        jax = jax_module()
        self.shape = {BATCH: len(devices)} if shape is None else dict(shape)
        self.layout = {BATCH: next(iter(self.shape))} if layout is None else dict(layout)
        checked_layout(self.layout, self.shape)
        if prod(self.shape.values()) != len(devices):
            sizes = " x ".join(f"{name} {size}" for name, size in self.shape.items())
            raise InvalidArgumentError(
                f"the mesh {sizes} has {prod(self.shape.values())} places, and there are {len(devices)} "
                "devices: choose sizes whose product is that number"
            )
        self.devices = list(devices)
        grid = np.array(self.devices, object).reshape(tuple(self.shape.values()))
        self._mesh = jax.sharding.Mesh(grid, tuple(self.shape))

    def placed(self, dimensions: Sequence[str | None]) -> Any:
        """Return the sharding of an array whose dimensions have these names."""
        sharding = jax_module().sharding
        return sharding.NamedSharding(self._mesh, sharding.PartitionSpec(*along(dimensions, self.layout)))

    def weights(self, name: str, dimensions: Sequence[str | None], shape: Sequence[int]) -> Any:
        """Return the sharding of a variable; InvalidArgumentError if it cannot be divided evenly."""
        for dimension, size, split in zip(dimensions, shape, along(dimensions, self.layout), strict=True):
            if split is not None and size % self.shape[split]:
                raise InvalidArgumentError(
                    f"layout: dimension {dimension!r} of {name!r} has the size {size}, and {split!r} of the "
                    f"mesh has {self.shape[split]}, which does not divide it: choose sizes that fit, or "
                    f"leave {dimension!r} out of the layout"
                )
        return self.placed(dimensions)

    def batch(self, array: Any) -> Any:
        """Return the sharding of what is fed: examples are split, single numbers are not.

        A number of examples that the mesh does not divide evenly (a last, smaller batch) is not split: each
        device has all of them, and the values are the same.
        """
        split = self.layout.get(BATCH)
        even = array.ndim and split is not None and array.shape[0] % self.shape[split] == 0
        return self.placed((BATCH,) if even else ())

    def check_names(self, names: Collection[str | None]) -> None:
        """Raise InvalidArgumentError if a rule of the layout is for a dimension that no weight has."""
        known = sorted({BATCH, *(name for name in names if name is not None)})
        for name in self.layout:
            if name not in known:
                raise InvalidArgumentError(
                    f"layout: the model has no dimension {name!r}; {choices(name, known)} "
                    f"(a layer names its own with dimension={name!r})"
                )


def along(dimensions: Sequence[str | None], layout: Mapping[str, str]) -> list[str | None]:
    """Return the dimension of a mesh that each dimension of an array is split along, each one once.

    >>> along(("inputs", "hidden"), {"batch": "rows", "hidden": "cols"})
    [None, 'cols']
    >>> along(("hidden", "hidden"), {"hidden": "cols"})
    ['cols', None]
    """
    found: list[str | None] = []
    for name in dimensions:
        split = None if name is None else layout.get(name)
        found.append(None if split in found else split)
    return found
