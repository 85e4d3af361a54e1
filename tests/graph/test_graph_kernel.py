"""Kernels of our own without a GPU: NVRTC compiles them, the host runs the same source (host_kernels.py)."""

from __future__ import annotations

from typing import Any

import cupy as real_cupy
import numpy as np
import pytest
from cupy._core import core
from cupy.cuda import compiler
from fake_cupy import FakeCupy
from host_kernels import Argument, cuda_source, split_includes, types_of
from tiers import matrix

from nbdist import optim  # noqa: F401  (its kernels)
from nbdist.graph.kernel import KERNELS, Kernel
from nbdist.graph.ops import OPS

cupy = FakeCupy()


def sources(kernel: Kernel) -> list[str]:
    """Return a kernel's source for each choice of types; of one of them also for matrices with strides."""
    found = []
    choices = list(zip(*kernel.types.values(), strict=True)) or [()]  # all of its types may be fixed
    for number, chosen in enumerate(choices):
        letters = dict(zip(kernel.types, chosen, strict=True))
        for strided in (False, True)[: 1 + (number == len(choices) // 2)]:
            name = f"nbdist_{kernel.name}_{number}_{strided}"
            made = real_cupy.ElementwiseKernel(**kernel.source | {"name": name})
            # A parameter of a fixed type is a number, unless it is indexed or written; or an array of one.
            given = [
                None
                if p.dtype and not p.raw and n < made.nin and not strided
                else np.zeros(1, letters.get(p.ctype, p.dtype))
                for n, p in enumerate(made.params[: made.nargs])
            ]
            types, type_map = types_of(made, given)
            arguments = [
                Argument(np.dtype(t), 1 + strided, is_array=a is not None, contiguous=not strided)
                for t, a in zip(types, given, strict=True)
            ]
            found.append(cuda_source(made, arguments, type_map))
    return found


def compiled(arch: str, texts: list[str]) -> bytes:
    """Return what NVRTC makes of kernels, with the includes and options that CuPy gives it.

    Each is in a namespace, so that NVRTC is called once.
    """
    split = [split_includes(text) for text in texts]
    common = "".join(f"#include <{name}>\n" for name in core._cupy_header_list)
    head = common + "\n".join(sorted({line for lines, _ in split for line in lines}))
    body = "".join(f"\nnamespace kernel_{n} {{\n{text}\n}}\n" for n, (_, text) in enumerate(split))
    program = compiler._NVRTCProgram(head + body, "kernels.cu", method="cubin")
    options = core.assemble_cupy_compiler_options(())
    own = ("-ftz=true", f"-arch=sm_{arch}", "--device-as-default-execution-space")
    binary: bytes
    binary, _ = program.compile((*options, *own), None)
    return binary


@pytest.mark.slow
@pytest.mark.parametrize("arch", matrix(["90"], rest=["75"]))
def test_nvrtc_compiles_every_kernel(arch: str) -> None:
    """Each kernel for both; of its types half for each, because that takes seconds."""
    half = slice(arch == "75", None, 2)
    binary = compiled(arch, [text for kernel in KERNELS.values() for text in sources(kernel)[half]])
    assert binary.startswith(b"\x7fELF")
    assert all(f"nbdist_{name}".encode() in binary for name in KERNELS)


def both(op: str, *arrays: Any, **attrs: Any) -> tuple[Any, Any]:
    """Return the value of an op with NumPy, and that of its kernel, written over its first floating input."""
    expected = OPS[op].forward(np, *(a.copy() for a in arrays), **attrs)
    given = [cupy.array(a) for a in arrays]
    out = cupy.full(expected.shape, 7, expected.dtype)
    if OPS[op].in_place is not None or OPS[op].elementwise:
        out = next((g for g in given if (g.shape, g.dtype) == (out.shape, out.dtype)), out)
    into: Any = OPS[op].into
    into(cupy, **attrs)(*given, out)
    return expected, out.get()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [1, 5, 70])
def test_kernels_compute_what_numpy_computes(dtype: Any, classes: int) -> None:
    """To a few units in the last place, also in place, and with infinities and NaN in a row."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(6, classes)) * 4).astype(dtype)
    x[1, 0], x[2, -1], x[3, 0] = np.inf, np.nan, -np.inf
    labels, g = rng.integers(0, classes, 6), rng.normal(size=6).astype(dtype)
    one = np.finfo(dtype).eps
    with np.errstate(all="ignore"):
        p = OPS["softmax"].forward(np, x)
        rows = {"softmax": (x,), "log_softmax": (x,), "pick_log_likelihood": (p, labels)}
        rows |= {"sparse_cross_entropy": (x, p, labels), "sparse_cross_entropy_grad": (g, p, labels)}
        points = {"sigmoid": (x,), "sigmoid_grad": (x, p), "relu_grad": (x, p), "erf": (x,)}
        for name, arrays in (rows | points).items():
            expected, ours = both(name, *arrays)
            assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
            # NumPy computes float16 in float16; a sum of many has larger errors than each of them.
            np.testing.assert_allclose(ours, expected, rtol=16 * one, atol=16 * one, err_msg=name)


def test_a_label_that_is_no_class_gives_nan() -> None:
    p = cupy.full((3, 4), 0.25, np.float32)
    labels = cupy.array(np.array([3, 4, -1]))
    for name, arrays in {
        "pick_log_likelihood": (p, labels),
        "sparse_cross_entropy": (p, p, labels),
        "sparse_cross_entropy_grad": (cupy.full(3, 1, np.float32), p, labels),
    }.items():
        value = OPS[name].forward(cupy, *arrays).get().reshape(3, -1)
        assert np.isfinite(value[0]).all()
        assert np.isnan(value[1:]).all()


@pytest.mark.parametrize("first", [0, 7, 2**61 - 1], ids=["first", "later", "carry"])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((5, 40), np.float32), ((3, 2, 8), np.float64), ((4,), np.float16)]
)
def test_dropout_on_a_gpu_keeps_the_same_elements(shape: Any, dtype: Any, first: int) -> None:
    """The counter's low word carries into the step, and on, where the first example is that large."""
    x = np.zeros(shape, dtype)
    for rate, seed, step in ((0.3, -1, 3), (0.5, 2**62 + 1, -1)):
        draw = np.array([seed, 5, step, first], np.int64)
        kept = OPS["dropout_mask"].forward(np, x, draw, rate=rate, number=2)
        ours = OPS["dropout_mask"].forward(cupy, cupy.array(x), cupy.array(draw), rate=rate, number=2)
        assert kept.dtype == ours.dtype
        np.testing.assert_array_equal(ours.get(), kept)
