"""Every op as CuPy would run it: NumPy computes, the installed CuPy's signatures judge (fake_cupy.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_cupy import DeviceArray, FakeCupy, current_device
from op_examples import of_every_op
from op_inputs import Example

from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.graph import backend
from nbdist.graph.backend import device_scope, scoped_device, to_device
from nbdist.graph.compile.program import compile_program
from nbdist.graph.op import OPS, Spec
from nbdist.graph.tensor import Graph, placeholder

cupy = FakeCupy()


@of_every_op
def test_an_op_computes_on_a_gpu_what_it_computes_on_the_host(op: Any, example: Example) -> None:
    specs = [Spec(np.shape(a), np.asarray(a).dtype) for a in example.inputs]
    spec = op.spec(*specs, **example.attrs)
    expected = op.forward(np, *(np.array(a) for a in example.inputs), **example.attrs)
    found = [op.forward(cupy, *(cupy.array(a) for a in example.inputs), **example.attrs)]
    if op.into is not None:
        found.append(cupy.full(spec.shape, 7, spec.dtype))
        op.into(cupy, **example.attrs)(*(cupy.array(a) for a in example.inputs), found[-1])
    for value in found:
        assert isinstance(value, DeviceArray)
        assert (value.dtype, value.shape) == (spec.dtype, spec.shape)
        np.testing.assert_allclose(value.get(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["inv", "cholesky"])
def test_a_singular_matrix_is_an_error_on_a_gpu(name: str) -> None:
    """By default CuPy returns garbage."""
    with pytest.raises(np.linalg.LinAlgError):
        OPS[name].forward(cupy, cupy.array(np.zeros((2, 2))))
    with pytest.raises(np.linalg.LinAlgError):
        OPS["solve"].forward(cupy, cupy.array(np.zeros((2, 2))), cupy.array(np.ones(2)))


def test_a_thread_works_on_the_gpu_of_its_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_cupy", lambda: cupy)
    with device_scope("/job:worker/task:0/device:GPU:1"):
        assert cupy.zeros(3).device.id == current_device() == 1
        assert scoped_device().endswith("GPU:1")
        with device_scope("CPU:0"):
            assert (current_device(), scoped_device()) == (1, "CPU:0")
    assert (current_device(), scoped_device()) == (0, "CPU:0")
    for device, problem in (
        ("GPU:7", r"no device 'GPU:7'; its GPUs are GPU:0 to GPU:1"),
        ("GPU:x", "no backend for device 'GPU:x'"),
    ):
        with pytest.raises(InvalidArgumentError, match=problem), device_scope(device):
            pass


def test_a_process_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeCupy()
    error = module.cuda.runtime.CUDARuntimeError

    def count() -> int:
        raise error("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    monkeypatch.setattr(module.cuda.runtime, "getDeviceCount", count)
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    problem = "cannot use 'GPU:0': cudaErrorInsufficientDriver.* nvidia-smi .* or name CPU:0"
    with pytest.raises(UnavailableError, match=problem), device_scope("GPU:0"):
        pass
    assert scoped_device() == "CPU:0"


def test_values_on_a_gpu_are_in_c_order() -> None:
    """Programs take variables to be in C order; CuPy keeps the order of a Fortran array."""
    x = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert cupy.asarray(x).flags.f_contiguous
    assert to_device(x, cupy).flags.c_contiguous


def test_events_measure_traced_calls() -> None:
    """A launch returns at once: on the host's clock the call that waits would take the time of all before."""
    with Graph().as_default():
        x = placeholder(np.float32, (4,))
        y = np.arctan(np.arctan(np.exp(x).reshape(2, 2)))
    program = compile_program([y], feeds=[x], shapes=[(4,)], xp=cupy)
    stream = cupy.cuda.get_current_stream()
    before = stream.waits
    _, spans = program.traced(cupy.zeros(4, np.float32))
    assert stream.waits == before  # only the last event is waited for
    assert [round((end - start) * 1e3) for _, start, end in spans] == [1, 1, 1]  # a launch takes 1 ms here
