"""Runs the kernels of a GPU on the host: g++ compiles the source that CuPy makes for NVRTC.

    source = cuda_source(cupy.ElementwiseKernel("T x", "T y", "y = x + x"), arguments)
    HostKernel(source, arguments)(*arrays, size)

A shim takes the place of CUDA: one thread runs the kernel's loop over all elements. Threads of a warp that
exchange values are fibers: each waits in ``__shfl_xor_sync`` until the others have come there, as on a GPU.
Libraries are kept in a folder of this user below the temporary folder, by the hash of their source.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import cupy._core._carray as carray
import cupy._core._kernel as kernels
import cupy._core._scalar as scalars
import numpy as np

NDARRAY, INDEXER, SCALAR = 1, 2, 3  # CuPy's kinds of arguments

SHIM = r"""
#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#define __global__
#define __device__
#ifdef __FLT16_MAX__
typedef _Float16 float16;
#else
struct float16 {};
#endif
struct Dim { unsigned x; };
static Dim blockIdx, blockDim, threadIdx, gridDim;
template <typename T, int ndim, bool contiguous, bool small> struct CArray {
  T* data;
  T& operator[](ptrdiff_t i) const { return data[i]; }
};
template <int ndim, bool small> struct CIndexer {
  ptrdiff_t n, at;
  ptrdiff_t size() const { return n; }
  void set(ptrdiff_t i) { at = i; }
  ptrdiff_t get() const { return at; }
};
#define CUPY_FOR(i, n) \
  for (ptrdiff_t i = static_cast<ptrdiff_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n); \
       i += static_cast<ptrdiff_t>(blockDim.x) * gridDim.x)
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

// A warp: fibers that take turns. An exchange writes the own value, lets the others run until they have
// written theirs, and reads. There are two sets of slots, because the first fiber to read writes next.
// A fiber is made once and then computes one thread after the other. setjmp and longjmp switch between them:
// swapcontext would ask the kernel for the signal mask each time.
const int WARP = 32;
static ucontext_t maker, made[WARP];
static jmp_buf main_fiber, fibers[WARP];
static bool are_made, ended[WARP], diverged;
static unsigned long long exchanges[WARP];
static char slots[2][WARP][16], stacks[WARP][1 << 16];
static int lane;

// Let the next fiber of the warp run that has not ended: itself if there is no other one.
static int next_lane() {
  int to = lane;
  do { to = (to + 1) % WARP; } while (ended[to] && to != lane);
  return to;
}
static void turn_to(int to) {
  threadIdx.x = threadIdx.x - lane + to;
  lane = to;
  _longjmp(fibers[to], 1);
}
static void next_fiber() {
  int to = next_lane();
  if (to != lane && !_setjmp(fibers[lane])) turn_to(to);
}
template <typename V> static V __shfl_xor_sync(unsigned mask, V value, int apart) {
  int me = lane;
  char (*slot)[16] = slots[exchanges[me]++ % 2];
  memcpy(slot[me], &value, sizeof(V));
  next_fiber();
  diverged |= mask != 0xffffffffu || exchanges[me ^ apart] < exchanges[me];
  V found;
  memcpy(&found, slot[me ^ apart], sizeof(V));
  return found;
}
"""
LOOP = r"""
static void** given;
static ptrdiff_t elements;
static void thread_body() { NAME(ARGUMENTS); }
static void fiber_body() {
  if (!_setjmp(fibers[lane])) swapcontext(&made[lane], &maker);
  for (;;) {
    thread_body();
    ended[lane] = true;
    int to = next_lane();
    if (!_setjmp(fibers[lane])) {
      if (ended[to]) _longjmp(main_fiber, 1);
      turn_to(to);
    }
  }
}
static void make_fibers() {
  for (lane = 0; lane < WARP; ++lane) {
    getcontext(&made[lane]);
    made[lane].uc_stack.ss_sp = stacks[lane];
    made[lane].uc_stack.ss_size = sizeof stacks[lane];
    makecontext(&made[lane], fiber_body, 0);
    swapcontext(&maker, &made[lane]);
  }
  are_made = true;
}
extern "C" int host(void** arguments, ptrdiff_t n, unsigned block) {
  given = arguments; elements = n; diverged = false;
  if (!WARPS) {  // a kernel's loop lets one thread compute all elements
    blockIdx.x = threadIdx.x = 0;
    blockDim.x = gridDim.x = 1;
    thread_body();
    return 0;
  }
  if (!are_made) make_fibers();
  blockDim.x = n < block ? n : block;
  gridDim.x = (n + blockDim.x - 1) / blockDim.x;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    for (unsigned first = 0; first < blockDim.x; first += WARP) {
      for (int t = 0; t < WARP; ++t) {
        ended[t] = first + t >= blockDim.x;
        exchanges[t] = 0;
      }
      lane = 0;
      threadIdx.x = first;
      if (!_setjmp(main_fiber)) _longjmp(fibers[0], 1);
    }
  }
  return diverged;
}
"""


@dataclass(frozen=True)
class Argument:
    """The type of an argument: an array of so many dimensions, or a number."""

    dtype: Any
    ndim: int = 1
    is_array: bool = True
    contiguous: bool = True

    @property
    def info(self) -> Any:
        """What CuPy makes a parameter of."""
        kind, of = (NDARRAY, cupy.ndarray) if self.is_array else (SCALAR, scalars.CScalar)
        return kernels._ArgInfo(kind, of, self.dtype, self.ndim, self.contiguous, True)


def types_of(kernel: Any, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """Return the dtype of each argument (an array or a number), and CuPy's map of the letters."""
    dtypes = [a.dtype if isinstance(a, np.ndarray) else None for a in arguments]
    inputs, outputs, letters = kernel._decide_params_type(
        tuple(dtypes[: kernel.nin]), tuple(dtypes[kernel.nin :])
    )
    return (*inputs, *outputs), letters


def cuda_source(kernel: Any, arguments: Sequence[Argument], letters: Any) -> str:
    """Return the source that CuPy compiles for arguments of these types, without its includes."""
    wide = max([a.ndim for a in arguments if a.is_array], default=1)
    indexer = kernels._ArgInfo(INDEXER, carray.Indexer, None, wide, True, True)
    source: str = kernels._get_elementwise_kernel_code(
        (*(a.info for a in arguments), indexer),
        letters,
        kernel.params,
        kernel.operation,
        kernel.name,
        kernel.preamble,
        **kernel.kwargs,
    )
    return source


def split_includes(source: str) -> tuple[list[str], str]:
    """Return a source's includes (of dtypes that CUDA lacks), and the rest."""
    lines = [line.strip() for line in source.splitlines()]
    includes = [line for line in lines if line.startswith("#include")]
    return includes, "\n".join(line for line in lines if line not in includes)


class HostKernel:
    """A kernel's source as a function on NumPy arrays."""

    def __init__(self, name: str, source: str, arguments: Sequence[Argument]) -> None:
        types = [scalars.get_typename(a.dtype) for a in arguments]
        values = [
            f"{{({t}*)given[{n}]}}" if a.is_array else f"*({t}*)given[{n}]"
            for n, (t, a) in enumerate(zip(types, arguments, strict=True))
        ]
        loop = LOOP.replace("NAME", name).replace("ARGUMENTS", ", ".join([*values, "{elements, 0}"]))
        warps = "1" if "__shfl" in source else "0"
        self._call = _library(source + loop.replace("WARPS", warps)).host
        self._types = [a.dtype for a in arguments]

    def __call__(self, values: Sequence[Any], size: int, block: int) -> None:
        """Run so many threads; arrays are C-contiguous."""
        held = [np.asarray(v, dtype) for v, dtype in zip(values, self._types, strict=True)]
        pointers = (ctypes.c_void_p * len(held))(*(array.ctypes.data for array in held))
        if self._call(pointers, ctypes.c_ssize_t(size), ctypes.c_uint(block)):
            raise RuntimeError("threads of a warp do not all take part in an exchange")


_kernels: dict[tuple[Any, ...], HostKernel] = {}
"""What was compiled, by CuPy's kernel and the types of its arguments, from which its source follows."""


@functools.cache
def _library(source: str) -> Any:
    """Return the loaded library. It keeps the GIL: the shim's variables are those of one thread."""
    path = _folder() / f"{_hash_of(SHIM + source)}.so"
    if not path.exists():
        _compile(path, "-shared", "-include", str(_shim()), "-x", "c++", "-", source=source)
    return ctypes.PyDLL(str(path))


@functools.cache
def _shim() -> Path:
    """Return the shim as a header that is compiled already: a kernel then takes a third of the time."""
    path = _folder() / f"{_hash_of(SHIM)}.h"
    compiled = path.with_suffix(".h.gch")
    if not compiled.exists():
        made = _own(path)
        made.write_text(SHIM)
        made.replace(path)
        _compile(compiled, "-x", "c++-header", str(path))
    return path


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"nbdist-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set TMPDIR")
    return folder


def _hash_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:32]


def _own(path: Path) -> Path:
    """Return where this thread makes a file that is moved to its place once it is whole."""
    return path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")


def _compile(path: Path, *options: str, source: str = "") -> None:
    if shutil.which("g++") is None:
        raise RuntimeError("the tests run GPU kernels on the host with g++; on Debian: apt-get install g++")
    made = _own(path)
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-U_FORTIFY_SOURCE",  # which refuses a longjmp to another stack
        "-Wno-unknown-pragmas",
        "-ffp-contract=off",
        "-fPIC",
        *options,
    ]
    done = subprocess.run([*command, "-o", str(made)], input=source, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"g++ cannot compile a kernel: {done.stderr}\n{source}")
    made.replace(path)


def check_arguments(kernel: Any, arguments: Sequence[Any], size: int) -> tuple[int, ...]:
    """Return the shape of a launch; raise as CuPy does for arguments that do not fit."""
    looped = [
        a for a, p in zip(arguments, kernel.params, strict=False) if isinstance(a, np.ndarray) and not p.raw
    ]
    if size != -1:
        if looped:
            raise ValueError("Specified 'size' can be used only if all of the ndarray are 'raw'.")
        return (size,)
    if not looped:
        raise ValueError("Loop size is undecided.")
    shape = np.broadcast_shapes(*(a.shape for a in looped))
    for value, parameter in zip(arguments[kernel.nin :], kernel.params[kernel.nin :], strict=False):
        if not parameter.raw and value.shape != shape:
            raise ValueError("Out shape is mismatched")
    return shape


def run(kernel: Any, arguments: Sequence[Any], size: int = -1, block: int = 128) -> None:
    """Run a kernel of the installed CuPy on NumPy arrays and numbers; its outputs come last."""
    shape = check_arguments(kernel, arguments, size)
    dtypes, letters = types_of(kernel, arguments)
    types, values, copied = [], [], []
    for value, dtype, parameter in zip(arguments, dtypes, kernel.params, strict=False):
        types.append(Argument(np.dtype(dtype), is_array=isinstance(value, np.ndarray)))
        if isinstance(value, np.ndarray):
            whole = value if parameter.raw else np.broadcast_to(value, shape)
            flat = np.ascontiguousarray(whole)
            if flat is not whole and not np.shares_memory(flat, value):
                copied.append((value, flat))
            value = flat
        values.append(value)
    count = int(np.prod(shape))
    if count == 0:
        return
    made = _kernels.get((kernel, *types))
    if made is None:
        _, source = split_includes(cuda_source(kernel, types, letters))
        made = _kernels[kernel, *types] = HostKernel(kernel.name, source, types)
    made(values, count, block)
    outputs = arguments[kernel.nin :]
    for value, flat in copied:
        if any(value is output for output in outputs):
            value[...] = flat.reshape(value.shape)
