from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nbdist.data import digits, mnist
from nbdist.data import digits as digits_function
from nbdist.data.digits import packaged, stratified
from nbdist.data.mnist import FILES
from nbdist.errors import DataLossError, InvalidArgumentError, MissingExtra, NotFoundError


def test_digits_are_split_evenly_and_repeatably() -> None:
    x_train, y_train, x_test, y_test = digits(test_fraction=0.25)
    assert x_train.dtype == np.float32
    assert y_train.dtype == np.int64
    assert len(x_train) + len(x_test) == 1797
    assert (x_train.min(), x_train.max()) == (0, 1)
    share = np.bincount(y_test) / (np.bincount(y_train) + np.bincount(y_test))
    assert abs(share - 0.25).max() < 0.005
    assert all(
        np.array_equal(a, b) for a, b in zip(digits(test_fraction=0.25), (x_train, y_train, x_test, y_test))
    )
    assert not np.array_equal(digits(test_fraction=0.25, seed=1)[1], y_train)
    with pytest.raises(ValueError, match="read-only"):
        x_train[0] = 0


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    images, labels = packaged()
    assert np.allclose(images * 16, theirs.data)
    assert np.array_equal(labels, theirs.target)


def test_digits_as_images() -> None:
    flat, _, _, _ = digits()
    images, _, _, empty = digits(flatten=False, test_fraction=0)
    assert images.shape == (1797, 8, 8, 1)
    assert len(empty) == 0
    assert np.array_equal(digits(flatten=False)[0].reshape(-1, 64), flat)


def test_the_split_has_every_row_once() -> None:
    labels = np.repeat(np.arange(3), [5, 10, 20])
    train, test = stratified(labels, 0.2, seed=0)
    assert sorted([*train, *test]) == list(range(35))
    assert np.bincount(labels[test]).tolist() == [1, 2, 4]


def test_bad_fraction() -> None:
    with pytest.raises(InvalidArgumentError, match=r"1\.5"):
        digits(test_fraction=1.5)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import nbdist.data.digits  # noqa: F401

    monkeypatch.setattr(sys.modules["nbdist.data.digits"], "find_spec", lambda name: None)
    packaged.cache_clear()
    with pytest.raises(MissingExtra, match=r"nbdist\[data\]"):
        digits_function()


def test_engines_do_not_pay_for_what_they_do_not_use() -> None:
    code = (
        "import sys, nbdist.metrics.recorder, nbdist.metrics.store; from nbdist.data import digits, Dataset; "
        "digits(); print([m for m in ('sklearn', 'scipy', 'matplotlib', 'ipywidgets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# MNIST


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def contents() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    arrays = [
        random.integers(0, 256, (7, 28, 28)),
        np.arange(7),
        random.integers(0, 256, (3, 28, 28)),
        np.arange(3),
    ]
    return {name: idx(array.astype(np.uint8)) for name, array in zip(FILES, arrays)}


def put(folder: Path, contents: dict[str, bytes], packed: bool = False, dotted: bool = False) -> Path:
    for name, content in contents.items():
        name = name.replace("-idx", ".idx") if dotted else name
        (folder / (f"{name}.gz" if packed else name)).write_bytes(
            gzip.compress(content) if packed else content
        )
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_mnist_is_read_in_all_its_forms(tmp_path: Path, contents, packed: bool, dotted: bool) -> None:
    x_train, y_train, x_test, y_test = mnist(put(tmp_path, contents, packed, dotted))
    assert (x_train.shape, x_test.shape) == ((7, 784), (3, 784))
    assert (x_train.dtype, y_train.dtype) == (np.float32, np.int64)
    assert y_train.tolist() == list(range(7))
    pixels = np.frombuffer(contents[FILES[2]], np.uint8, offset=16).reshape(3, 784)
    assert np.allclose(x_test * 255, pixels, atol=1e-4)
    assert not y_test.flags.writeable
    assert mnist(tmp_path, flatten=False)[0].shape == (7, 28, 28, 1)


@pytest.mark.parametrize("variable", ["NBDIST_MNIST", "NBDIST_HOME"])
def test_where_mnist_is_looked_for(
    tmp_path: Path, contents, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("NBDIST_MNIST", raising=False)
    folder = tmp_path if variable == "NBDIST_MNIST" else tmp_path / "mnist"
    folder.mkdir(exist_ok=True)
    put(folder, contents)
    monkeypatch.setenv(variable, str(tmp_path))
    assert len(mnist()[0]) == 7


def test_missing_files_say_what_goes_where(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        mnist(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert all(name in str(caught.value) for name in FILES)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:-5],
        lambda content: content + b"x",
        lambda content: content[:9],
        lambda content: b"",
        lambda content: b"<html>" + content,
        lambda content: content[:4] + b"\xff" * 12 + content[16:],
        lambda content: content[:4] + struct.pack(">I", 6) + content[8 : -28 * 28],
    ],
    ids=["cut", "longer", "no header", "empty", "a web page", "huge", "fewer images than labels"],
)
def test_a_damaged_file_is_named(tmp_path: Path, contents, spoil, packed: bool) -> None:
    contents[FILES[0]] = spoil(contents[FILES[0]])
    with pytest.raises(DataLossError, match=r"train-(images|labels)-idx"):
        mnist(put(tmp_path, contents, packed))


def test_a_cut_gzip_is_named(tmp_path: Path, contents) -> None:
    put(tmp_path, contents, packed=True)
    path = tmp_path / f"{FILES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataLossError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        mnist(tmp_path)
