"""GPU kernels of our own, as sources in CUDA C.

    gate = define_kernel("gate", "T x, S switch", "T y", "y = switch > S(0) ? x : T(0)", ...)
    gate(cupy, x, switch, y)  # one launch, which writes y

A kernel is written for one element, as CuPy's ``ElementwiseKernel`` takes it. It stands beside the op or the
optimizer that it belongs to, and in `KERNELS`. Numbers that change from step to step (a learning rate, the
number of a step) are arguments: a number, or an array of one that is on the GPU, which the host does not wait
for. A kernel allocates nothing and reads nothing on the host, so it can be recorded in a CUDA graph.

The tests compile every kernel with NVRTC for each of its types, from the source that CuPy makes. They also
compile the same source as a loop on the host, and compare its values with NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ParamSpec

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int64", "int32", "int64")
WARP = 32
"""The threads that run together; those of a warp that shares a row exchange values."""

# Wide<T>: the type to compute in. float16 has no functions of its own, and too few digits for sums.
WIDE = """
template <typename A> struct Wide { typedef A type; };
template <> struct Wide<float16> { typedef float type; };
"""
COMPUTE_IN_W = "typedef Wide<T>::type W;\n"
# A warp reads a row 32 elements at a time, so that its threads read neighbours. It combines their partial
# results in five exchanges, and needs no shared memory (Harris 2007; PyTorch's softmax of short rows).
OVER_WARP = """
template <typename A> __device__ A largest_of_warp(A x) {
  for (int apart = 16; apart > 0; apart /= 2) {
    A other = __shfl_xor_sync(0xffffffffu, x, apart);
    x = other > x ? other : x;
  }
  return x;
}
template <typename A> __device__ A sum_of_warp(A x) {
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
  return x;
}
"""


@dataclass(frozen=True)
class Kernel:
    """The source of an elementwise kernel.

    - ``name``: its name in profiles
    - ``inputs``, ``outputs``: parameters as CuPy writes them, such as ``"T x, raw T table, float64 rate"``.
      One letter is a type that the arrays decide; a ``raw`` array is indexed by the body
    - ``body``: statements that compute one element; ``i`` is its number
    - ``types``: the dtypes that the tests compile it for: of each letter as many, which are used together
    - ``preamble``: functions that the body calls, in addition to those of `WIDE` and `OVER_WARP`
    - ``rows``: whether a warp computes one row. Then ``i / 32`` is the row, ``i % 32`` the thread in the warp
    """

    name: str
    inputs: str
    outputs: str
    body: str
    types: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"T": FLOATS}, hash=False)
    preamble: str = ""
    rows: bool = False

    def __call__(self, xp: Any, *arguments: Any, size: int | None = None) -> None:
        """Launch the kernel: inputs first, then the arrays that it writes.

        ``size`` is the number of elements, or of rows, where all arrays are ``raw``.
        """
        launch = _compiled(self, xp)
        if size is None:
            launch(*arguments)
        else:
            launch(*arguments, size=size * (WARP if self.rows else 1))

    @property
    def source(self) -> dict[str, Any]:
        """The arguments of ``ElementwiseKernel``."""
        return {
            "in_params": self.inputs,
            "out_params": self.outputs,
            "operation": self.body,
            "name": f"nbdist_{self.name}",
            "preamble": WIDE + OVER_WARP * self.rows + self.preamble,
        }


KERNELS: dict[str, Kernel] = {}
"""Every kernel by name."""


P = ParamSpec("P")


def _registered(make: Callable[P, Kernel]) -> Callable[P, Kernel]:
    def define(*args: P.args, **kwargs: P.kwargs) -> Kernel:
        kernel = make(*args, **kwargs)
        if kernel.name in KERNELS:
            raise InvalidArgumentError(f"kernel {kernel.name!r} is in the table already")
        KERNELS[kernel.name] = kernel
        return kernel

    return define


define_kernel = _registered(Kernel)
"""Makes a `Kernel` of its arguments, and puts it in the table; its name must be free."""


@cache
def _compiled(kernel: Kernel, xp: Any) -> Any:
    return xp.ElementwiseKernel(**kernel.source)


def into_new(xp: Any, shape: tuple[int, ...], dtype: Any, write: Callable[[Array], object]) -> Array:
    """Return a new array that ``write(out)`` has written."""
    out: Array = xp.empty(shape, dtype)
    write(out)
    return out
