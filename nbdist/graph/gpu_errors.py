"""Errors of memory and of GPUs in plain words: what was asked, what is used, what is large, what to do next.

    with explained("GPU:0", lambda: [SizedTensor("variable w", (784, 100), np.dtype("f4"))]):
        program(batch)                           # OutOfMemoryError becomes ResourceExhaustedError
    lost_gpu(error)                              # "cudaErrorECCUncorrectable: ...", or "" if it is usable

CUDA reports most errors of a kernel at a later call, and then at every call of the process: the context is
broken, and only another process can use the GPU (CUDA Runtime API, cudaError_t: "the process must be
terminated and relaunched"). Some errors say more: that the GPU itself needs a reset. An engine with such a
GPU ends its process with the status `GPU_LOST_STATUS`, and its task gets a process on another GPU
(`nbdist.cluster.supervisor.process.Gpus`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbdist.errors import NbdistError, ResourceExhaustedError, UnavailableError
from nbdist.graph.backend import backend
from nbdist.machine import memory_limit

GPU_LOST_STATUS = 75  # the exit status of an engine whose GPU is lost (EX_TEMPFAIL of sysexits.h)
NAMED = 5  # so many of the largest tensors are named
CUDA_ERRORS = ("CUDARuntimeError", "CUDADriverError", "NVMLError_GpuIsLost")
LOST = (
    "cudaErrorDevicesUnavailable",
    "cudaErrorNoDevice",
    "cudaErrorECCUncorrectable",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "cudaErrorNvlinkUncorrectable",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "cudaErrorHardwareStackError",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "GPU is lost",
)
BROKEN = (
    "cudaErrorIllegalAddress",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "cudaErrorLaunchFailure",
    "CUDA_ERROR_LAUNCH_FAILED",
    "cudaErrorLaunchTimeout",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "cudaErrorMisalignedAddress",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "cudaErrorIllegalInstruction",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "cudaErrorAssert",
    "CUDA_ERROR_ASSERT",
    "cudaErrorUnknown",
    "CUDA_ERROR_UNKNOWN",
)
GPU_LOST_ADVICE = (
    "nvidia-smi and dmesg (Xid) show its state; %cluster restart gives the task a process on another GPU, if "
    "one is free"
)
BROKEN_ADVICE = (
    "No later call of this process can use the GPU: give the task another process by its name, as with "
    "%cluster restart worker:0, or restart the kernel"
)
SMALLER = "Use a smaller batch, or a smaller model"


@dataclass(frozen=True)
class SizedTensor:
    """A tensor's name, shape and dtype; ``copies`` arrays have its size, and ``kept`` says which."""

    name: str
    shape: tuple[int | None, ...]
    dtype: Any
    copies: int = 1
    kept: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of all copies; an unknown dimension counts as 1."""
        items = math.prod(n or 1 for n in self.shape)
        return self.copies * items * int(np.dtype(self.dtype).itemsize)

    def __str__(self) -> str:
        kept = f" {self.kept}" if self.kept else ""
        return f"{self.name} {self.shape} {np.dtype(self.dtype)}{kept} {megabytes(self.nbytes)}"


def largest(tensors: Iterable[SizedTensor], count: int = NAMED) -> str:
    """Return the largest tensors as text.

    >>> largest([SizedTensor("b", (10,), "f4"), SizedTensor("w", (1000, 500), "f4")], 1)
    'w (1000, 500) float32 2.0 MB'
    """
    return ", ".join(map(str, sorted(tensors, key=lambda one: one.nbytes, reverse=True)[:count]))


def megabytes(nbytes: float) -> str:
    """Return a size in MB, or in GB from 1 GB on.

    >>> megabytes(1_500_000), megabytes(16e9)
    ('1.5 MB', '16.0 GB')
    """
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


@contextmanager
def explained(device: str, tensors: Callable[[], Iterable[SizedTensor]] = tuple) -> Iterator[None]:
    """Explain errors of memory and of CUDA that are raised inside the block.

    Raises ResourceExhaustedError for any MemoryError, with the ``tensors`` of the program on ``device``, and
    UnavailableError if the process can no longer use its GPU. All other errors stay as they are.
    """
    try:
        yield
    except NbdistError:
        raise
    except MemoryError as error:
        raise ResourceExhaustedError(out_of_memory(error, device, tensors())) from None
    except Exception as error:
        if reason := lost_gpu(error):
            raise UnavailableError(f"the GPU of {device} is lost: {reason}. {GPU_LOST_ADVICE}") from None
        if reason := _cuda_error(error, BROKEN):
            raise UnavailableError(f"a kernel failed on {device}: {reason}. {BROKEN_ADVICE}") from None
        raise


def lost_gpu(error: BaseException | None) -> str:
    """Return the error, or the cause of it, that says that a GPU is lost; an empty text if none does.

    >>> lost_gpu(ValueError("GPU is lost"))
    ''
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if reason := _cuda_error(error, LOST):
            return reason
        error = error.__cause__ or error.__context__
    return ""


def _cuda_error(error: BaseException, names: Iterable[str]) -> str:
    if type(error).__name__ not in CUDA_ERRORS:  # the text of a user's own error may raise
        return ""
    text = str(error)
    return text if any(name in text for name in names) else ""


def out_of_memory(error: MemoryError, device: str, tensors: Iterable[SizedTensor] = ()) -> str:
    """Return what is known about an allocation that failed on a device, and what to do.

    The error says how much was asked; its notes (PEP 678) name the largest buffers of the program.
    """
    on_gpu = "GPU" in device.upper()
    parts = [f"no memory is left on {device}: {str(error).rstrip('.') or 'an allocation failed'}"]
    with suppress(Exception):  # a failed measurement must not hide the error
        parts.append(_gpu_usage(device) if on_gpu else _host_usage())
    if named := largest(tensors):
        parts.append(f"the largest variables: {named}")
    parts += getattr(error, "__notes__", [])
    limited = on_gpu and "CUPY_GPU_MEMORY_LIMIT" in os.environ
    advice = f"{SMALLER}, or raise --gpu-memory (gpu_memory=)" if limited else SMALLER
    return "; ".join(parts) + f". {advice}"


def _gpu_usage(device: str) -> str:
    xp = backend(device.rpartition("device:")[2])
    pool, (free, total) = xp.get_default_memory_pool(), xp.cuda.runtime.memGetInfo()
    limit = pool.get_limit()
    of = f" of the {megabytes(limit)} that they may take" if limit else ""
    return (
        f"arrays of this process take {megabytes(pool.used_bytes())}{of}, and its pool holds "
        f"{megabytes(pool.total_bytes())}; {megabytes(free)} of the GPU's {megabytes(total)} are free"
    )


def _host_usage() -> str:
    import psutil

    memory = psutil.virtual_memory()
    limits = [found for found in (_address_limit(), memory_limit()) if found]
    limit = f" of the {megabytes(min(limits))} that it may take" if limits else ""
    return (
        f"this process takes {megabytes(psutil.Process().memory_info().rss)}{limit}; "
        f"{megabytes(memory.available)} of the host's {megabytes(memory.total)} are free"
    )


def _address_limit() -> int:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if soft == resource.RLIM_INFINITY else soft
