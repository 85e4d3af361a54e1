"""Arrays in a checked file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nbdist.errors import DataLossError
from nbdist.train.tensorfile import TensorFile, write_tensors


def test_no_flipped_bit_gives_other_arrays(tmp_path: Path) -> None:
    arrays = {f"{i:04d}": np.full(3, i, np.float32) for i in range(4)}
    path, damaged = tmp_path / "a", tmp_path / "b"
    write_tensors(path, arrays, {"text": "as written"})
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        damaged.write_bytes(changed)
        try:
            with TensorFile(damaged) as file:
                found = {name: file.read(name) for name in file.shapes}
        except DataLossError:
            refused += 1
            continue
        assert found.keys() == arrays.keys(), place
        assert all((found[name] == array).all() for name, array in arrays.items()), place
    assert refused > len(whole) // 2


def test_a_renamed_tensor_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tensors(path, {"0000": np.zeros(3), "0001": np.ones(3)}, {})
    path.write_bytes(path.read_bytes().replace(b'"0000":{', b'"0010":{'))
    with pytest.raises(DataLossError, match="other names"):
        TensorFile(path)
