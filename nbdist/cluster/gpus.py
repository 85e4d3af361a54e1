"""Which GPUs the workers of this host get: found without loading CUDA, checked in a child process.

    present = list_gpus()                    # ("GPU-8f3a...", "GPU-91bc..."), MIG slices as "MIG-..."
    chosen = choose_gpus("auto", present)
    require_gpus(chosen)                     # CuPy is installed and computes on them

A GPU is named by its UUID. CUDA numbers GPUs from the fastest on, NVML by their place on the PCI bus, and a
number cannot name a MIG slice at all: CUDA takes slices by UUID, one for each process. A number is used only
where CUDA_VISIBLE_DEVICES has one.

No process that forks tasks loads CUDA, because a forked process cannot use the CUDA of its parent.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from nbdist.errors import InvalidArgumentError, MissingExtra, UnavailableError
from nbdist.home import home, private_folder
from nbdist.wire.collective.nccl import has_driver

CHECK_SECONDS = 120.0  # for a child process to load CUDA and to compile one kernel
UUID = re.compile(r"\(UUID: ([^)]+)\)")


def list_gpus() -> tuple[str, ...]:
    """Return the NVIDIA GPUs and MIG slices that this process may use, by CUDA's names.

    Those of CUDA_VISIBLE_DEVICES if it is set, as they are written there; numbers beyond the last GPU are
    left out, as CUDA ignores them. Raises UnavailableError if a driver is loaded that NVIDIA's library cannot
    use.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible_devices(visible):
        return ()
    cards = _by_nvml()
    if cards is None:
        cards = _by_command()
    if visible is None:
        return tuple(name for card in cards for name in card)
    named = visible_devices(visible) if cards else ()
    return tuple(name for name in named if not name.isdecimal() or int(name) < len(cards))


def visible_devices(variable: str) -> tuple[str, ...]:
    """Return the devices that a value of CUDA_VISIBLE_DEVICES names; -1 or an empty entry ends the list.

    >>> visible_devices("2, 3"), visible_devices(""), visible_devices("1,-1,2")
    (('2', '3'), (), ('1',))
    """
    entries = [entry.strip() for entry in variable.split(",")]
    end = next((i for i, entry in enumerate(entries) if entry in ("", "-1")), len(entries))
    return tuple(entries[:end])


def parse_gpus(asked: Any) -> str | int:
    """Return a valid value of ``gpus``: "auto", "none", a number of GPUs, or names separated by commas.

    Raises InvalidArgumentError for anything else.

    >>> parse_gpus("2"), parse_gpus("auto"), parse_gpus("GPU-8f,MIG-1c")
    (2, 'auto', 'GPU-8f,MIG-1c')
    """
    if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0:
        return asked
    if isinstance(asked, str):
        if asked.isdecimal():
            return int(asked)
        if asked in ("auto", "none") or all(n.startswith(("GPU-", "MIG-")) for n in asked.split(",")):
            return asked
    raise InvalidArgumentError(
        f"gpus is 'auto', 'none', a number, or UUIDs such as GPU-8f3a,MIG-91bc (see nvidia-smi -L), "
        f"not {asked!r}"
    )


def choose_gpus(asked: str | int, present: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs to use out of those ``present``: all for "auto", the first N, or those that are named.

    A UUID may be abbreviated, as for CUDA. Raises InvalidArgumentError for an invalid value, a GPU that this
    host does not have, an abbreviation of several, or if there are fewer than N.

    >>> choose_gpus("GPU-9", ["GPU-8f", "GPU-91"])
    ('GPU-91',)
    """
    asked = parse_gpus(asked)
    if asked == "auto":
        return tuple(present)
    if asked == "none":
        return ()
    if isinstance(asked, str):
        return tuple(_named(name, present) for name in asked.split(","))
    if asked > len(present):
        raise InvalidArgumentError(
            f"gpus={asked}: this host has {_described(present)}; gpus='auto' takes as many as there are"
        )
    return tuple(present[:asked])


def _named(name: str, present: Sequence[str]) -> str:
    found = [one for one in present if one.startswith(name)]
    if len(found) != 1:
        what = f"names {len(found)} GPUs of this host" if found else "is not a GPU of this host"
        raise InvalidArgumentError(f"gpus: {name!r} {what}, which has {_described(present)}")
    return found[0]


def _described(gpus: Sequence[str]) -> str:
    if not gpus:
        return "no GPU that this process may use (nvidia-smi -L and CUDA_VISIBLE_DEVICES)"
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}: {', '.join(gpus)}"


def _by_nvml() -> list[tuple[str, ...]] | None:
    """Return the names on each card: its own, or those of its MIG slices. None without NVIDIA's library."""
    if not has_driver() and os.name == "posix":
        return []
    try:
        import pynvml as nvml
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        try:
            return [_names_on(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise UnavailableError(
            f"the GPUs of this host cannot be listed: NVIDIA's library (NVML) failed with {error}. Check "
            "nvidia-smi; gpus='none' uses no GPU"
        ) from error


def _names_on(nvml: Any, number: int) -> tuple[str, ...]:
    card = nvml.nvmlDeviceGetHandleByIndex(number)
    slices = []
    with suppress(nvml.NVMLError):  # a card without MIG
        if nvml.nvmlDeviceGetMigMode(card)[0]:
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
                with suppress(nvml.NVMLError):  # no slice at this place
                    one = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, place)
                    slices.append(_text(nvml.nvmlDeviceGetUUID(one)))
            return tuple(slices)  # CUDA cannot use the card itself
    return (_text(nvml.nvmlDeviceGetUUID(card)),)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _by_command() -> list[tuple[str, ...]]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    listing = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=20, check=False)
    return names_in(listing.stdout)


def names_in(listing: str) -> list[tuple[str, ...]]:
    """Return the names on each card, from what ``nvidia-smi -L`` prints.

    >>> names_in("GPU 0: A100 (UUID: GPU-1)\\n  MIG 1g.5gb Device 0: (UUID: MIG-2)\\nGPU 1: T4 (UUID: GPU-3)")
    [('MIG-2',), ('GPU-3',)]
    """
    cards: list[list[str]] = []
    for line in listing.splitlines():
        found = UUID.search(line)
        if found is None:
            continue
        if line.startswith("GPU "):
            cards.append([found[1]])
        elif cards:
            if cards[-1][0].startswith("GPU-"):
                cards[-1].clear()
            cards[-1].append(found[1])
    return [tuple(card) for card in cards]


CHECK = """
import json, sys
try:
    import cupy
    x = cupy.arange(5, dtype="f4")
    assert float((x * 2 + 1).sum()) == 25
    found = {"version": cupy.__version__}
except BaseException as error:
    found = {"problem": f"{type(error).__name__}: {error}"}
print(json.dumps(found))
"""
REMEDIES = {
    "InsufficientDriver": "the driver is too old for this CUDA version: CuPy for CUDA 13 needs driver 580 or "
    'newer; update it, or install the wheels for CUDA 12 with pip install "nbdist[gpu12]"',
    "NoDevice": "CUDA sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "cuda_fp16.h": 'CUDA\'s headers are missing: pip install "nbdist[gpu]" brings them',
    "nvrtc": 'CUDA\'s run-time compiler (NVRTC) is missing: pip install "nbdist[gpu]" brings it',
    "out of memory": "another process uses the GPU's memory: see nvidia-smi",
}
"""What to do about an error that contains a text, in the order in which they are tried."""
_usable: set[str] = set()  # the GPUs that the check has passed on


def require_gpus(gpus: Sequence[str]) -> None:
    """Raise unless CuPy computes on these GPUs: MissingExtra without CuPy, UnavailableError otherwise.

    A child process for each GPU loads CUDA and compiles a kernel, once in this process: the first GPU's alone
    and then those of the others together. Takes seconds at the first use.
    """
    if not gpus:
        return
    if find_spec("cupy") is None:
        raise MissingExtra("gpu", f"work on GPUs ({len(gpus)} chosen); gpus='none' uses no GPU")
    first, *others = dict.fromkeys(gpus)
    problems = {first: gpu_problem(first)}  # its kernel is then in the cache for the others
    if others and not problems[first]:
        with ThreadPoolExecutor(len(others)) as pool:
            problems |= dict(zip(others, pool.map(gpu_problem, others), strict=True))
    for gpu, problem in problems.items():
        if problem:
            raise UnavailableError(f"GPU {gpu} cannot be used: {problem}. gpus='none' uses no GPU")


def kernel_cache() -> dict[str, str]:
    """Return the environment variable of CuPy's cache of compiled kernels: one for all tasks of this user.

    It is a folder of mode 0700 below nbdist's own, because CuPy loads the machine code that is there; a
    CUPY_CACHE_DIR that is set is kept. `nbdist.graph.kernel_cache` has one process compile for all.
    """
    if "CUPY_CACHE_DIR" in os.environ:
        return {}
    return {"CUPY_CACHE_DIR": str(private_folder(home() / "kernels"))}


def gpu_problem(gpu: str) -> str:
    """Return why CuPy cannot compute on a GPU, and what to do; an empty text if it can.

    A GPU that can is not checked again; a problem may have been solved since.
    """
    if gpu in _usable:
        return ""
    environment = {**os.environ, **kernel_cache(), "CUDA_VISIBLE_DEVICES": gpu}
    command = [sys.executable, "-W", "ignore", "-c", CHECK]
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"loading CUDA and compiling a kernel took more than {CHECK_SECONDS:.0f} s"
    try:
        found = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return (
            f"the process that checks it ended with status {ended.returncode}: {ended.stderr[-300:].strip()}"
        )
    problem = str(found.get("problem", ""))
    if not problem:
        _usable.add(gpu)
    remedy = next((text for part, text in REMEDIES.items() if part.lower() in problem.lower()), "")
    return f"{problem}; {remedy}" if problem and remedy else problem
