"""The benchmarks of GPUs: their pure parts, and NCCL's side on a fake."""

from __future__ import annotations

import importlib
import sys
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from bench import gpu_profile, script, table, table_gpu
from bench.gpu_allreduce import measure, nbdist_rank, read_perf

PERF = """# nThread 1 nGpus 2 minBytes 64000000 maxBytes 64000000
#       size       count    type  redop   root    time   algbw   busbw #wrong    time   algbw   busbw #wrong
#        (B)  (elements)                          (us)  (GB/s)  (GB/s)           (us)  (GB/s)  (GB/s)
    64000000    16000000   float    sum     -1   410.1  156.06  156.06      0   400.0  160.00  160.00      0
# Avg bus bandwidth    : 158.03
"""


def test_the_output_of_nccl_tests() -> None:
    assert read_perf(PERF, 64_000_000) == {"value": 160.0, "check": {"correct": True}}
    wrong = PERF.replace("160.00      0", "160.00      3")
    assert read_perf(wrong, 64_000_000)["check"] == {"correct": False}
    with pytest.raises(SystemExit, match="not measured: all_reduce_perf printed no line for 1000 bytes"):
        read_perf(PERF, 1000)


def test_both_sides_of_g2_are_measured_alike() -> None:
    """Ranks as threads on the host: nbdist's own group, and a sum by hand."""
    barrier, shares = threading.Barrier(2), [np.zeros(0), np.zeros(0)]

    def all_reduce(rank: int, x: Any) -> None:
        shares[rank] = x.copy()
        barrier.wait(10)
        x[...] = shares[0] + shares[1]
        barrier.wait(10)

    found: dict[int, Any] = {}

    def rank(number: int) -> None:
        found[number] = measure(np, lambda x: all_reduce(number, x), lambda: None, number, 2, 400)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert [found[number]["check"] for number in range(2)] == [{"correct": True}] * 2
    alone = nbdist_rank(0, 1, 400, lambda info: [info], 7, False)
    assert alone["check"] == {"correct": True}


def test_what_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="not measured: torch is not installed"):
        script.need_torch("GPU:0")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SystemExit, match="not measured: nsys"):
        list(gpu_profile.report())


def test_all_leaves_out_what_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "has_driver", lambda: False)
    assert not {b.key for b in table.chosen(["all"])} & {b.key for b in table_gpu.GPU_BENCHMARKS}
    assert [b.key for b in table.chosen(["g1"])] == ["g1.mlp", "g1.cnn"]
    monkeypatch.setattr(table, "has_driver", lambda: True)
    assert "g2.64MB" in {b.key for b in table.chosen(["all"])}


def test_a_rehearsal_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_BENCH_REHEARSAL", "1")
    try:
        rehearsed = importlib.reload(table_gpu).GPU_BENCHMARKS
        assert all(b.what.startswith("REHEARSAL WITHOUT A GPU") for b in rehearsed)
    finally:
        monkeypatch.undo()
        importlib.reload(table_gpu)


STATS = """Processing [profile.sqlite] with [cuda_api_sum.py]...
Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.1,1000,"1,060",10.0,10.0,1,99,1.0,cudaLaunchKernel
39.9,900,51,10.0,10.0,1,99,1.0,cudaStreamSynchronize
"""


def test_the_counts_of_nsys() -> None:
    few = gpu_profile.calls_in(STATS)
    assert few == {"cudaLaunchKernel": 1060, "cudaStreamSynchronize": 51}
    more = few + Counter({"cudaLaunchKernel": 650, "cudaStreamSynchronize": 10, "cudaMemcpyAsync": 40})
    assert gpu_profile.describe("mlp", gpu_profile.per_step(few, more, 10)) == (
        "mlp, a step: 1 waits of the host (cudaStreamSynchronize 1), 4 copies (cudaMemcpyAsync 4), "
        "65 launches (cudaLaunchKernel 65)"
    )
    with pytest.raises(SystemExit, match="printed no table"):
        gpu_profile.calls_in("nothing")
