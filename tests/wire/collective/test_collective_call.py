"""The results of single calls, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from nbdist.wire.collective.call import combine, describe


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", "c8", "c16"])
def test_a_mean_is_bitwise_equal_to_numpys(dtype: str) -> None:
    for seed in range(40):
        random = np.random.default_rng(seed)
        values = [random.normal(size=50).astype(dtype) for _ in range(3)]
        call = describe("all_reduce", (50,), np.dtype(dtype), 3, "mean")
        out = np.empty(50, call.work)
        combine(call, [value.astype(call.work) for value in values], out)
        np.testing.assert_array_equal(out.astype(call.result), np.mean(np.stack(values), axis=0))
