"""Tensors of PyTorch in files: every dtype, and what the safetensors library reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nbdist.checkpoint.tensor_file import TensorFile
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.torch.step_hooks import save_tensors, tensor_of

pytestmark = pytest.mark.frameworks


def test_tensors_of_every_dtype_are_read_back(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    kinds = [
        "bool",
        "uint8",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "float8_e5m2",
    ]
    tensors = {kind: torch.arange(6).reshape(2, 3).T.to(getattr(torch, kind)) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.0), "none": torch.zeros(0, 3), "shared": tensors["int64"]}
    save_tensors(tmp_path / "a", {**tensors, "number": 3}, {"text": "as written"})
    save_file({name: one.clone().contiguous() for name, one in tensors.items()}, tmp_path / "b")
    read = load_file(tmp_path / "a")
    assert read["number"] == 3
    for path in (tmp_path / "a", tmp_path / "b"):
        with TensorFile(path) as file:
            for name, one in tensors.items():
                found = tensor_of(file.raw(name))
                assert found.dtype == read[name].dtype == one.dtype, name
                assert found.tolist() == read[name].tolist() == one.tolist(), name
            assert file.read("bfloat16").astype(np.float32).tolist() == tensors["bfloat16"].float().tolist()


def test_a_dtype_that_safetensors_lacks_is_refused(tmp_path: Path) -> None:
    import torch

    with pytest.raises(InvalidArgumentError, match=r"torch\.complex128, which safetensors files cannot hold"):
        save_tensors(tmp_path / "a", {"w": torch.zeros(2, dtype=torch.complex128)}, {})
