"""NumPy or CuPy, by device.

    xp = backend("GPU:1")                       # the array module
    with device_scope("GPU:1"):                 # this thread allocates and computes on that GPU
        x = to_device(np.zeros(3), xp)

CuPy's current device is a property of a thread and GPU 0 at first, so each thread that works for a device
enters its scope before it allocates or computes.

A TPU has no array module here: arrays of jax.numpy cannot be written to, and `nbdist.graph.xla` compiles a
graph as a function instead.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbdist.errors import InvalidArgumentError, MissingExtra, UnavailableError
from nbdist.graph.device import TPU_ADVICE

Array: TypeAlias = np.ndarray[Any, Any]
"""An array of the backend: numpy.ndarray, or cupy.ndarray on a GPU."""
_thread = threading.local()


def backend(device: str = "CPU:0") -> ModuleType:
    """Return the array module of a device: numpy for ``CPU:i``, cupy for ``GPU:i``.

    Raises InvalidArgumentError for another kind of device, MissingExtra if the module is not installed.

    >>> backend("CPU:0").__name__
    'numpy'
    """
    return _cupy() if _kind_and_index(device)[0] == "GPU" else np


@contextmanager
def device_scope(device: str) -> Iterator[None]:
    """A context in which this thread works for a device: it allocates and computes there.

    Raises InvalidArgumentError for a GPU that this process does not have, MissingExtra without CuPy, and
    UnavailableError if CUDA does not work in this process, as without a GPU.

    >>> with device_scope("CPU:0"):
    ...     backend(scoped_device()).zeros(2)
    array([0., 0.])
    """
    kind, index = _kind_and_index(device)
    before = scoped_device()
    _thread.device = device
    try:
        if kind == "CPU":
            yield
        else:
            with _gpu(device, index):
                yield
    finally:
        _thread.device = before


def gpu_scope(device: str) -> AbstractContextManager[None]:
    """Return `device_scope` of a GPU such as "GPU:1"; for other devices a context manager that does nothing.

    >>> with gpu_scope("CPU:0"):
    ...     backend(scoped_device()).zeros(2)
    array([0., 0.])
    """
    return device_scope(device) if _kind_and_index(device)[0] == "GPU" else nullcontext()


def scoped_device() -> str:
    """Return the device that this thread works for, "CPU:0" outside of a scope.

    >>> scoped_device()
    'CPU:0'
    """
    device: str = getattr(_thread, "device", "CPU:0")
    return device


def _gpu(device: str, index: int) -> Any:
    cuda = _cupy().cuda
    try:
        count = cuda.runtime.getDeviceCount()
    except cuda.runtime.CUDARuntimeError as error:
        raise UnavailableError(
            f"this process cannot use {device!r}: {error}. Check that nvidia-smi lists a GPU and that "
            "CUDA_VISIBLE_DEVICES does not hide it, or name CPU:0"
        ) from error
    if index >= count:
        seen = "GPU:0" if count == 1 else f"GPU:0 to GPU:{count - 1}"
        raise InvalidArgumentError(
            f"this process has no device {device!r}; its GPUs are {seen} (CUDA_VISIBLE_DEVICES selects them)"
        )
    return cuda.Device(index)


def device_kind(device: str) -> str:
    """Return the short name of a device; InvalidArgumentError unless it is a CPU or GPU.

    >>> device_kind("/job:worker/task:1/device:gpu:0")
    'GPU:0'
    """
    kind, index = _kind_and_index(device)
    return f"{kind}:{index}"


def _kind_and_index(device: str) -> tuple[str, int]:
    kind, _, index = device.rpartition("/")[2].removeprefix("device:").partition(":")
    if kind.upper() not in ("CPU", "GPU") or not (index or "0").isdecimal():
        instead = f". {TPU_ADVICE}" if kind.upper() == "TPU" else ""
        raise InvalidArgumentError(f"no backend for device {device!r}; expected CPU:<i> or GPU:<i>{instead}")
    return kind.upper(), int(index or 0)


def _cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise MissingExtra("gpu", "arrays on a GPU") from error
    return cupy  # type: ignore[no-any-return]  # CuPy has no types


def _is_of_jax(array: Any) -> bool:
    jax = sys.modules.get("jax")  # loaded where there is an array of it
    return jax is not None and isinstance(array, jax.Array)


def backend_of(array: Any) -> ModuleType:
    """Return the module that an array belongs to: numpy, too, for what takes NumPy's functions in its place.

    >>> backend_of(np.zeros(1)).__name__
    'numpy'
    """
    if isinstance(array, np.ndarray | NDArrayOperatorsMixin):
        return np
    return sys.modules["jax"].numpy if _is_of_jax(array) else _cupy()


def device_of_array(array: Any) -> str:
    """Return the device that holds an array, such as "GPU:0"; of an array on several devices the first one.

    >>> device_of_array(np.zeros(1))
    'CPU:0'
    """
    if isinstance(array, np.ndarray):
        return "CPU:0"
    if _is_of_jax(array):
        device = min(array.devices(), key=lambda one: one.id)
        kind = device.platform.upper()
        return "CPU:0" if kind == "CPU" else f"{kind}:{device.local_hardware_id}"
    return f"GPU:{array.device.id}"


def to_device(array: Array, xp: ModuleType) -> Array:
    """Return an array with these values on the device of ``xp``, in C order; itself if it is there."""
    # Programs take variables to be in C order; CuPy would keep the order of a Fortran array.
    result: Array = array if xp is np else xp.asarray(array, order="C")
    return result


def to_host(array: Any) -> Array:
    """Return the values of an array of any backend as a NumPy array."""
    if isinstance(array, np.ndarray):
        return array
    found: Array = np.asarray(array) if _is_of_jax(array) else array.get()
    return found


def all_to_host(arrays: Sequence[Array]) -> list[Array]:
    """Return the values of some arrays as NumPy arrays; their GPU is waited for once.

    >>> all_to_host([np.zeros(2), np.ones(())])
    [array([0., 0.]), array(1.)]
    """
    there = [array for array in arrays if not _is_on_host(array)]
    if not there:
        return list(arrays)
    flat = [array.reshape(-1).view(np.uint8) for array in there]
    together, start = to_host(_cupy().concatenate(flat)), 0
    found = []
    for array in arrays:
        if _is_on_host(array):
            found.append(array)
        else:
            found.append(np.ndarray(array.shape, array.dtype, together, start))
            start += array.nbytes
    return found


def _is_on_host(array: Any) -> bool:
    return isinstance(array, np.ndarray | np.generic)


def pinned_buffer(size: int, xp: ModuleType) -> Array:
    """Return zeroed bytes of host memory that CuPy's GPUs copy from and to while the host continues."""
    # Not from CuPy's pool, which rounds to powers of two and keeps what it had.
    memory = xp.cuda.PinnedMemoryPointer(xp.cuda.PinnedMemory(max(size, 1)), 0)
    buffer = np.frombuffer(memory, np.uint8, size)
    buffer.fill(0)
    return buffer
