"""The work of P17, for all sides: files and arrays that become batches, and what is compared.

A side is a table from the name of a row to the function that makes one pass over its batches:

    ROWS = {"raw": lambda work: Dataset.tfrecords(work.path).batch(work.batch).prefetch(2), ...}
    main(ROWS)          # one pass that is not timed, then some by the clock; prints one JSON line

The files are written once, by the first side that needs them, into NBDIST_BENCH_DATA (a folder; else one in
the folder for temporary files). NBDIST_BENCH_MB is the size of the TFRecord file of the row "raw".
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEGABYTES = int(os.environ.get("NBDIST_BENCH_MB", "1000"))
FOLDER = Path(os.environ.get("NBDIST_BENCH_DATA") or Path(tempfile.gettempdir()) / "nbdist-bench-data")
COLUMNS = ("n", "a", "b", "c", "d", "e", "f", "g")
CSV_TYPES = {"n": "i8", **dict.fromkeys(COLUMNS[1:], "f4")}
PROCESSES = 2


@dataclass(frozen=True)
class Work:
    """One row: what is read, in batches of which size, in how many passes by the clock."""

    name: str
    what: str
    batch: int
    elements: int
    passes: int
    count: Callable[[Any], tuple[int, float]]
    """From a batch to its elements, and to a sum that all sides must agree on."""
    write: Callable[[Path, int], None] | None = None
    """Writes ``elements`` elements to a path; None: the row reads arrays."""

    @property
    def path(self) -> str:
        """The file or folder with the elements, which is written if it is not there."""
        assert self.write is not None, f"{self.name} reads no file"
        FOLDER.mkdir(parents=True, exist_ok=True)
        found = FOLDER / f"{self.name}-{self.elements}"
        with (FOLDER / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not found.exists():
                draft = FOLDER / f"{self.name}.draft-{os.getpid()}"
                self.write(draft, self.elements)
                draft.rename(found)
        return str(found)

    def outcome(self, passes: Callable[[], Iterable[Any]]) -> dict[str, Any]:
        """Return elements per second, CPU seconds per element, and what all sides have to agree on."""
        self._sums(passes())  # reads the files into memory, compiles what is compiled
        cpu, start = cpu_seconds(), time.perf_counter()
        sums = [self._sums(passes()) for _ in range(self.passes)]
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        elements = sum(count for count, _ in sums)
        check = {"elements": elements / self.passes, "sum": sum(total for _, total in sums) / self.passes}
        return {"value": elements / seconds, "cpu": cpu / elements, "check": check}

    def _sums(self, batches: Iterable[Any]) -> tuple[int, float]:
        elements, total = 0, 0.0
        for batch in batches:
            count, part = self.count(batch)
            elements, total = elements + count, total + part
        return elements, total


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(rows: dict[str, Callable[[Work], Callable[[], Iterable[Any]]]]) -> None:
    """Measure the row that the command line names, and print the outcome."""
    parser = argparse.ArgumentParser()
    parser.add_argument("row", choices=list(rows))
    work = WORKS[parser.parse_args().row]
    print(json.dumps(work.outcome(rows[work.name](work))))


# Elements


def arrays() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return 60,000 images of 784 numbers, and their labels."""
    random = np.random.default_rng(0)
    return random.random((60_000, 784), np.float32), random.integers(10, size=60_000)


def numbers(count: int) -> NDArray[np.float32]:
    """Return the elements of the rows with a map in Python."""
    return np.random.default_rng(0).random((count, 16), np.float32)


def centred(row: Any) -> Any:
    """Map an element in little Python: what is measured is the way to it and back."""
    return row - 0.5


def computed(row: Any) -> Any:
    """Map an element in some 0.3 ms of Python, which hold its lock."""
    total, values = 0.0, [float(value) for value in row]
    for _ in range(300):
        for value in values:
            total += value * value
    return np.float32(total)


def _records(path: Path, count: int) -> None:
    from nbdist.data import write_tfrecords

    source, random = memoryview(os.urandom(1 << 20)), np.random.default_rng(0)
    sizes = random.integers(8_000, 12_001, count).tolist()
    starts = random.integers(0, len(source) - 12_000, count).tolist()
    write_tfrecords(path, (bytes(source[at : at + size]) for at, size in zip(starts, sizes, strict=True)))


def _examples(path: Path, count: int) -> None:
    """Write Examples of 64 floats, a label, 8 ids and an encoded image of 500 bytes or so."""
    from nbdist.data import make_example, write_tfrecords

    random = np.random.default_rng(0)
    image = os.urandom(600)
    write_tfrecords(
        path,
        (
            make_example(
                {
                    "x": random.random(64, np.float32),
                    "label": int(random.integers(1000)),
                    "ids": random.integers(100_000, size=8),
                    "image": image[: int(random.integers(400, 600))],
                }
            )
            for _ in range(count)
        ),
    )


def _table(path: Path, count: int) -> None:
    random = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join(COLUMNS) + "\n")
        for number, row in enumerate(random.normal(size=(count, len(COLUMNS) - 1)).tolist()):
            file.write(f"{number}," + ",".join(f"{value:.6g}" for value in row) + "\n")


def _images(ending: str, path: Path, count: int) -> None:
    """Write images of 256 x 256, smooth as photographs are, into a folder for each of 10 classes."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(count):
        folder = path / str(number % 10)
        folder.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(random.integers(0, 256, (24, 24, 3), np.uint8))
        small.resize((256, 256), Image.Resampling.BICUBIC).save(folder / f"{number:05}.{ending}")


def _sum(values: Any) -> float:
    """Return the sum of an array, or of a tensor of PyTorch."""
    return float(values.sum())


def _of_records(batch: Any) -> tuple[int, float]:
    return len(batch), float(sum(map(len, batch)))


def _of_columns(batch: Any) -> tuple[int, float]:
    return len(batch["a"]), _sum(batch["n"]) + _sum(batch["a"])


def _of_examples(batch: Any) -> tuple[int, float]:
    whole = _sum(batch["x"]) + _sum(batch["label"]) + _sum(batch["ids"])
    return len(batch["label"]), whole + len(batch["image"][0])


def _of_images(batch: Any) -> tuple[int, float]:
    images, labels = batch
    return len(images), _sum(labels) + float(images[0].shape[-1])


def _of_arrays(batch: Any) -> tuple[int, float]:
    x, y = batch
    return len(x), _sum(y)


def _of_numbers(batch: Any) -> tuple[int, float]:
    return len(batch), _sum(batch)


WORKS = {
    work.name: work
    for work in (
        Work(
            "raw",
            f"records of 8 to 12 KB from a TFRecord file of {MEGABYTES:,} MB; DataLoader verifies no sums",
            128,
            MEGABYTES * 100,
            2,
            _of_records,
            _records,
        ),
        Work("examples", "Examples of 4 features, parsed", 128, 50_000, 3, _of_examples, _examples),
        Work("csv", "rows of 8 numbers from a CSV file", 128, 100_000, 3, _of_columns, _table),
        Work("map", "a short map in Python", 128, 50_000, 3, _of_numbers),
        Work("processes", "a map of 0.3 ms in Python, by 2 processes", 128, 4_000, 2, _of_numbers),
        Work(
            "jpeg",
            "JPEG files of 256 x 256, decoded",
            32,
            1_000,
            2,
            _of_images,
            lambda path, count: _images("jpg", path, count),
        ),
        Work(
            "png",
            "PNG files of 256 x 256, decoded",
            32,
            500,
            2,
            _of_images,
            lambda path, count: _images("png", path, count),
        ),
        Work("arrays", "shuffled batches of 60,000 x 784 float32", 100, 60_000, 10, _of_arrays),
    )
}
