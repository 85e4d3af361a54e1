"""Errors of memory and of GPUs, with injected errors that have the names and texts of CuPy's."""

from __future__ import annotations

import types

import numpy as np
import pytest

import nbdist as nb
from nbdist.errors import AbortedError, ResourceExhaustedError, UnavailableError
from nbdist.graph import gpu_errors
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gpu_errors import SizedTensor, explained, lost_gpu


class CUDARuntimeError(RuntimeError):
    """Has the name of CuPy's error."""


class OutOfMemoryError(MemoryError):
    """Has the name and the text of CuPy's error."""

    def __init__(self) -> None:
        text = "Out of memory allocating 3,221,225,472 bytes (allocated so far: 1,024 bytes)."
        super().__init__(text)


class Pool:
    get_limit = staticmethod(lambda: 4_000_000_000)
    used_bytes = staticmethod(lambda: 1_500_000_000)
    total_bytes = staticmethod(lambda: 2_000_000_000)


def test_no_memory_on_a_gpu_names_the_sizes_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = types.SimpleNamespace(memGetInfo=lambda: (1_000_000_000, 16_000_000_000))
    fake = types.SimpleNamespace(get_default_memory_pool=Pool, cuda=types.SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(gpu_errors, "backend", lambda device: fake)
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "25%")
    sizes = [SizedTensor(f"w{n}", (n, 1000), np.dtype("f4"), 4, "with slots") for n in range(100, 800, 100)]
    with pytest.raises(ResourceExhaustedError) as caught, explained("GPU:0", lambda: sizes):
        raise OutOfMemoryError
    text = str(caught.value)
    for part in (
        "no memory is left on GPU:0: Out of memory allocating 3,221,225,472 bytes",
        "arrays of this process take 1.5 GB of the 4.0 GB that they may take",
        "1.0 GB of the GPU's 16.0 GB are free",
        "the largest variables: w700 (700, 1000) float32 with slots 11.2 MB, w600",
        "Use a smaller batch, or a smaller model, or raise --gpu-memory",
    ):
        assert part in text
    assert "w200" not in text


def test_no_memory_on_the_host_names_the_buffers_of_the_program() -> None:
    with nb.Graph().as_default():
        x = nb.placeholder(np.float32, (64, 32), name="x")
        loss = np.mean(np.tanh(x @ nb.constant(np.ones((32, 5000), np.float32))))

    def memory(xp: types.ModuleType, size: int) -> np.ndarray:
        raise MemoryError(f"Unable to allocate {size} bytes")

    with pytest.raises(ResourceExhaustedError, match="Unable to allocate") as caught, explained("CPU:0"):
        compile_program([loss], feeds=[x], shapes=[(64, 32)], memory=memory)
    text = str(caught.value)
    assert "this process takes" in text
    assert "MB of buffers; the largest: 'matmul" in text
    assert "(64, 5000) float32 1.3 MB" in text


def test_a_fit_without_memory_names_variables_and_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(self: object, size: int) -> None:
        raise MemoryError("Unable to allocate 3 TB")

    model = nb.nn.Sequential([nb.nn.Dense(300), nb.nn.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((8, 20), np.float32)
    monkeypatch.setattr("nbdist.train.training.Training._scale", draw)
    with pytest.raises(ResourceExhaustedError) as caught:
        model.fit(x, x[:, :1], batch_size=8)
    assert "(20, 300) float32 with its gradient and 2 slots of Adam 0.1 MB" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
            "the GPU of GPU:0 is lost: cudaErrorECC",
        ),
        (
            "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy",
            "%cluster restart gives the task",
        ),
        ("cudaErrorIllegalAddress: an illegal memory access", "a kernel failed on GPU:0: .* another process"),
    ],
)
def test_a_gpu_that_cannot_be_used_any_more(text: str, message: str) -> None:
    with pytest.raises(UnavailableError, match=message), explained("GPU:0"):
        raise CUDARuntimeError(text)


def test_other_errors_stay_as_they_are() -> None:
    for error in (CUDARuntimeError("cudaErrorInvalidValue"), ResourceExhaustedError("full"), KeyError("x")):
        with pytest.raises(type(error)) as caught, explained("GPU:0"):
            raise error
        assert caught.value is error


def test_the_cause_of_another_error_says_that_the_gpu_is_lost() -> None:
    lost = CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    outer = AbortedError("the group is broken")
    outer.__cause__ = lost
    assert lost_gpu(outer) == str(lost)
    assert lost_gpu(RuntimeError("cudaErrorNoDevice")) == ""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert lost_gpu(Unprintable()) == ""
    lost.__context__ = outer  # a circle
    assert lost_gpu(outer) == str(lost)
