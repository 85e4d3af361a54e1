"""The handwritten digits in scikit-learn: 1,797 images of 8x8, without a download."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.errors import DataLossError, InvalidArgumentError, MissingExtra

Split = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]

IMAGES, PIXELS = 1797, 64


def digits(*, flatten: bool = True, test_fraction: float = 0.2, seed: int = 0) -> Split:
    """Return (x_train, y_train, x_test, y_test): the 8x8 digits, float32 in [0, 1], with int64 labels.

    Images are (n, 64), or (n, 8, 8, 1) without ``flatten``. The test set has the share ``test_fraction``
    (0 to 1) of each digit; the same ``seed`` gives the same split everywhere. The arrays are read-only.
    Raises `MissingExtra` without scikit-learn.

    >>> [part.shape for part in digits()]
    [(1438, 64), (1438,), (359, 64), (359,)]
    """
    if not 0 <= test_fraction < 1:
        raise InvalidArgumentError(f"test_fraction is {test_fraction}; expected at least 0 and less than 1")
    images, labels = packaged()
    train, test = stratified(labels, test_fraction, seed)
    shaped = images if flatten else images.reshape(-1, 8, 8, 1)
    parts = (shaped[train], labels[train], shaped[test], labels[test])
    for part in parts:
        part.flags.writeable = False
    return parts


def stratified(
    labels: NDArray[Any], test_fraction: float, seed: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return (train, test) row numbers in random order, with the fraction of each class in the test set."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    in_test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        in_test[rows[: round(test_fraction * len(rows))]] = True
    return order[~in_test[order]], order[in_test[order]]


@cache
def packaged() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return (images, labels) from the file in scikit-learn's package, read once in a process."""
    # Found, not imported: importing scikit-learn takes a second, and every engine would pay it.
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingExtra("data", "nb.data.digits(), which reads scikit-learn's copy of the digits")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError) as error:
        raise DataLossError(f"{path} cannot be read ({error}); reinstall scikit-learn") from error
    table = np.loadtxt(text.splitlines(), np.float32, delimiter=",")
    if table.shape != (IMAGES, PIXELS + 1):
        raise DataLossError(f"{path} holds {table.shape} numbers; expected {(IMAGES, PIXELS + 1)}")
    return table[:, :PIXELS] / np.float32(16), table[:, PIXELS].astype(np.int64)
