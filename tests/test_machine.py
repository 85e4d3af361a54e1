"""The limits of cgroups, from files as Linux writes them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from nbdist.machine import available_memory, count_cores, cpu_quota, memory_limit

GIB = 1 << 30
POD = "kubepods/burstable/pod7/own"
NONE_V1 = 9223372036854771712


def write(root: Path, own: str, contents: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for name, text in contents.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("own", "contents", "quota", "limit"),
    [
        ("0::/\n", {}, None, None),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.current": "7"}, None, None),
        ("0::/\n", {"cpu.max": "150000 100000\n", "memory.max": "8", "memory.current": "7"}, 1.5, 8),
        (f"0::/{POD}\n", {f"{POD}/cpu.max": "400000 100000", "kubepods/cpu.max": "50000 100000"}, 0.5, None),
        (f"0::/{POD}\n", {f"{POD}/cpu.max": "50000 100000", "kubepods/cpu.max": "max 100000"}, 0.5, None),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000"}, 2.0, None),
        (
            "5:cpuset:/\n4:cpu,cpuacct:/a/b\n3:memory:/a\n",
            {
                "cpu/a/b/cpu.cfs_quota_us": "-1\n",
                "cpu/a/b/cpu.cfs_period_us": "100000\n",
                "cpu/a/cpu.cfs_quota_us": "300000\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
                "memory/a/memory.limit_in_bytes": f"{GIB}\n",
                "memory/a/memory.usage_in_bytes": "7\n",
                "memory/memory.limit_in_bytes": f"{NONE_V1}\n",
                "memory/memory.usage_in_bytes": "9\n",
            },
            3.0,
            GIB,
        ),
    ],
    ids=["none", "unlimited", "own", "above", "below", "hidden", "v1"],
)
def test_the_limits_of_all_cgroups_hold(
    own: str, contents: dict[str, str], quota: float | None, limit: int | None, tmp_path: Path
) -> None:
    write(tmp_path, own, contents)
    assert (cpu_quota(tmp_path), memory_limit(tmp_path)) == (quota, limit)


def test_cores_are_those_of_the_affinity_and_of_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)), raising=False)
    write(tmp_path, "0::/a\n", {"a/cpu.max": "max 100000"})
    for text, cores in (("250000", 3), ("900000", 4), ("10000", 1), ("garbage", 4)):
        (tmp_path / "sys/fs/cgroup/a/cpu.max").write_text(f"{text} 100000\n")
        assert count_cores(tmp_path) == cores
    assert count_cores(tmp_path / "nowhere") == 4


def test_processes_that_are_bound_to_cores_of_their_own_have_them_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(process: int) -> set[int]:
        if process == 9:
            raise ProcessLookupError
        return {process}

    monkeypatch.setattr(os, "sched_getaffinity", bound, raising=False)
    assert count_cores(tmp_path) == 1
    assert count_cores(tmp_path, others=[1, 2, 9]) == 3


def test_memory_is_what_the_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = psutil.virtual_memory()._replace(available=4 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    stat = f"anon 5\ninactive_file {GIB}\nactive_file 3\n"
    contents = {"a/memory.max": f"{2 * GIB}", "a/memory.current": f"{2 * GIB - 5}", "a/memory.stat": stat}
    write(tmp_path, "0::/a\n", contents)
    assert available_memory(tmp_path) == GIB + 5
    (tmp_path / "sys/fs/cgroup/a/memory.max").write_text("max")
    assert available_memory(tmp_path) == 4 * GIB
    assert available_memory() > 0
