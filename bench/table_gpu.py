"""The benchmarks that need GPUs: G1 and G2, P3 and P4 on GPUs (g3), models of PyTorch and JAX on one (g4).

python -m bench g1 g2 g3 g4                             # on a machine with GPUs
NBDIST_BENCH_REHEARSAL=1 python -m bench g1 g2 g3 g4    # on the host, few steps: the scripts, no figures
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from bench.frame import Bar, Benchmark, close
from bench.gpu_allreduce import perf_program
from bench.script import elsewhere, here

REHEARSAL = bool(os.environ.get("NBDIST_BENCH_REHEARSAL"))
NAME = "REHEARSAL WITHOUT A GPU, NO FIGURES: " if REHEARSAL else ""
DEVICE = ("--device", "CPU:0" if REHEARSAL else "GPU:0")
STEPS = {"mlp": (5, 10), "cnn": (2, 4)} if REHEARSAL else {"mlp": (100, 5000), "cnn": (60, 600)}
FEW_STEPS = STEPS if REHEARSAL else {"mlp": (100, 5000), "cnn": (10, 50)}  # compared at their end
SIZES = {"1MB": 1_000_000} if REHEARSAL else {"64MB": 64_000_000, "256MB": 256_000_000}
NCCL_PEER = "nccl-tests" if perf_program() and not REHEARSAL else "cupy"
REHEARSE = ("--rehearse",) if REHEARSAL else ()
WORKS = (("mlp", "784-100-10 sigmoid, SGD"), ("cnn", "28x28 CNN (Conv 32, Conv 64, pool, Dense 64), Adam"))


def bar(figure: float) -> Bar | None:
    """Return a bar; a rehearsal has none."""
    return None if REHEARSAL else Bar(">=", figure)


def steps(work: str, counts: Mapping[str, tuple[int, int]] = STEPS) -> tuple[object, ...]:
    warm_up, timed = counts[work]
    return ("--work", work, *DEVICE, "--warm-up", warm_up, "--steps", timed)


GPU_BENCHMARKS: list[Benchmark] = [
    *(
        Benchmark(
            f"g1.{work}",
            f"{NAME}one GPU, {what}, batch 100, float32 without TF32, batches from the host",
            "images/s",
            "PyTorch, eager",
            here("nbdist_step", *steps(work)),
            elsewhere("torch_step", *steps(work)),
            bar(1.5 if work == "mlp" else 1.0),
            close(1e-3 if work == "mlp" else 5e-3),  # Adam turns rounding into steps
        )
        for work, what in WORKS
    ),
    *(
        Benchmark(
            f"g2.{size}",
            f"{NAME}all-reduce of {size} of float32 in place, a rank on each GPU of this host",
            "GB/s of the bus",
            "itself" if REHEARSAL else {"cupy": "NCCL through CuPy"}.get(NCCL_PEER, NCCL_PEER),
            here("gpu_allreduce", "--side", "nbdist", "--bytes", nbytes, *REHEARSE),
            here("gpu_allreduce", "--side", NCCL_PEER, "--bytes", nbytes, *REHEARSE),
            bar(0.95),
        )
        for size, nbytes in SIZES.items()
    ),
    *(
        Benchmark(
            f"g3.{work}",
            f"{NAME}synchronous on 2 GPUs, {what}, batch 50 for each of 2 workers",
            "images/s",
            f"PyTorch, DistributedDataParallel over {'gloo' if REHEARSAL else 'NCCL'}",
            here("nbdist_multi_worker", *steps(work, FEW_STEPS)),
            elsewhere("torch_data_parallel", *steps(work, FEW_STEPS)),
            bar(4 if work == "mlp" else 0.9),
            close(1e-3 if work == "mlp" else 5e-3),
        )
        for work, what in WORKS
    ),
    *(
        Benchmark(
            f"g4.{framework}-{work}",
            f"{NAME}a model of {name} on one GPU, {what.replace('Adam', optimizer)}, batch 100, no TF32",
            "images/s",
            peer,
            here(f"nbdist_{framework}_step", *steps(work)),
            elsewhere(f"{framework}_step", *steps(work)),
            None,
            close(1e-3 if work == "mlp" else 5e-3),
        )
        for framework, name, optimizer, peer in (
            ("torch", "PyTorch", "Adam", "PyTorch, eager"),
            ("jax", "JAX", "SGD", "plain JAX, one jitted step, parameters donated"),
        )
        for work, what in WORKS
    ),
]
