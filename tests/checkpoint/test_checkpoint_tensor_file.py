"""Arrays in a checked file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nbdist.checkpoint.tensor_file import TensorFile, write_tensors
from nbdist.errors import DataLossError, InvalidArgumentError, StorageError


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


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [("__metadata__", "", "keeps its texts"), ("w\ud800", "", "surrogate"), ("w", "\udfff", "surrogate")],
)
def test_a_name_that_no_file_holds_is_refused(tmp_path: Path, name: str, text: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        write_tensors(tmp_path / "a", {name: np.zeros(3)}, {"text": text})
    assert not (tmp_path / "a").exists()


SHARED = '"dtype":"F32","shape":[2],"data_offsets":[0,8]'


@pytest.mark.parametrize(
    "header",
    [
        f'{{"w":{{{SHARED}}},"v":{{{SHARED}}}}}',
        '{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        '{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}',
        '{"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}',
        '{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
        '{"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}',
        '{"w":7}', "[]", "{", '{"__metadata__":{"a":1}}',
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_its_data_is_damage(tmp_path: Path, header: str) -> None:
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    with pytest.raises(DataLossError, match="is not a file of tensors, or is damaged"):
        TensorFile(tmp_path / "a")


def test_the_safetensors_library_reads_and_writes_the_same_files(tmp_path: Path) -> None:
    arrays = {
        "bytes": np.arange(3, dtype=np.uint8),
        "big": np.arange(4, dtype=">f4"),
        "strided": np.arange(12.0).reshape(3, 4).T[::2],
        "scalar": np.array(3.0, np.float16),
        "none": np.zeros((2, 0), np.int64),
        "complex": np.ones(2, np.complex64),
    }
    write_tensors(tmp_path / "a", arrays, {"text": "as written"})
    found = load_file(tmp_path / "a")
    assert {name: (one.shape, one.tolist()) for name, one in found.items()} == {
        name: (one.shape, one.tolist()) for name, one in arrays.items()
    }
    save_file({name: np.array(one, order="C") for name, one in arrays.items()}, str(tmp_path / "b"))
    for path in (tmp_path / "a", tmp_path / "b"):
        with TensorFile(path) as file:
            assert all((file.read(name) == array).all() for name, array in arrays.items())


def test_what_the_system_refuses_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(tmp_path / "a", {"w": np.zeros(3)}, {})
    with pytest.raises(OSError, match="No space left on device"):
        write_tensors(Path("/dev/full"), {"w": np.zeros(3)}, {})

    def closed(*given: Any, **more: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", closed)
    with pytest.raises(StorageError, match=r"a cannot be read: Permission denied"):
        TensorFile(tmp_path / "a")


@pytest.mark.parametrize(
    ("entry", "data", "why"),
    [
        ({"dtype": "BF16", "shape": [1000], "data_offsets": [0, 1]}, b"x", "does not fit its shape"),
        ({"dtype": "BF16", "shape": [10**20], "data_offsets": [0, 1]}, b"x", "which no memory holds"),
        ({"dtype": "F32", "shape": [0, 10**30], "data_offsets": [0, 0]}, b"", "which no memory holds"),
        ({"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}, b"xxxx", "which no memory holds"),
        ({"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, b"xyz", "2 bytes follow on the last tensor"),
    ],
)
def test_a_header_that_lies_is_damage(tmp_path: Path, entry: dict[str, Any], data: bytes, why: str) -> None:
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header + data)
    with pytest.raises(DataLossError, match=why):
        TensorFile(tmp_path / "file")
