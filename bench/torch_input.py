"""Peer of P17: elements per second of PyTorch's DataLoader, in this process or with 2 workers, as is faster.

PyTorch has no readers of these files: Python reads TFRecords here without verifying them, protobuf parses
Examples, `csv` rows, and Pillow decodes images.
"""

from __future__ import annotations

import csv
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import input_work
from bench.input_work import Work
from bench.script import not_measured

try:
    import torch
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        Dataset,
        IterableDataset,
        RandomSampler,
        TensorDataset,
        get_worker_info,
    )
except ImportError:
    raise not_measured("torch is not installed") from None


class Lines(IterableDataset):  # type: ignore[misc]  # Any where torch is not installed
    """The items of an iterable that each pass makes anew; of several workers, each takes its part of them."""

    def __init__(self, make: Callable[[], Iterable[Any]], convert: Callable[[Any], Any]) -> None:
        self.make, self.convert = make, convert

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        count, own = (1, 0) if info is None else (info.num_workers, info.id)
        for number, item in enumerate(self.make()):
            if number % count == own:
                yield self.convert(item)


class Rows(Dataset):  # type: ignore[misc]
    """A function of each item of a list."""

    def __init__(self, items: Any, convert: Callable[[Any], Any]) -> None:
        self.items, self.convert = items, convert

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.convert(self.items[index])


def read(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while head := file.read(12):
            record = file.read(struct.unpack_from("<Q", head)[0])
            file.read(4)
            yield record


def unchanged(item: Any) -> Any:
    return item


def raw(work: Work) -> Callable[[], Iterable[Any]]:
    path = work.path
    loader = DataLoader(Lines(lambda: read(path), unchanged), work.batch, collate_fn=unchanged)
    return lambda: loader


def examples(work: Work) -> Callable[[], Iterable[Any]]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorflow.core.example.example_pb2 import Example

    path = work.path

    def parse(record: bytes) -> dict[str, Any]:
        found = Example.FromString(record).features.feature
        return {
            "x": np.array(found["x"].float_list.value, np.float32),
            "label": found["label"].int64_list.value[0],
            "ids": np.array(found["ids"].int64_list.value, np.int64),
            "image": found["image"].bytes_list.value[0],
        }

    loader = DataLoader(Lines(lambda: read(path), parse), work.batch, num_workers=input_work.PROCESSES)
    return lambda: loader


def table(work: Work) -> Callable[[], Iterable[Any]]:
    path = work.path

    def rows() -> Iterator[list[str]]:
        with open(path, newline="") as file:
            reader = csv.reader(file)
            next(reader)
            yield from reader

    def convert(fields: list[str]) -> tuple[int, Any]:
        return int(fields[0]), np.array(fields[1:], np.float32)

    def together(batch: list[tuple[int, Any]]) -> dict[str, Any]:
        columns = torch.from_numpy(np.stack([values for _, values in batch], axis=1))
        named = dict(zip(input_work.COLUMNS[1:], columns))
        return {"n": torch.tensor([number for number, _ in batch]), **named}

    loader = DataLoader(
        Lines(rows, convert), work.batch, num_workers=input_work.PROCESSES, collate_fn=together
    )
    return lambda: loader


def mapped(work: Work, function: Callable[[Any], Any], workers: int) -> Callable[[], Iterable[Any]]:
    loader = DataLoader(Rows(input_work.numbers(work.elements), function), work.batch, num_workers=workers)
    return lambda: loader


def images(work: Work) -> Callable[[], Iterable[Any]]:
    from PIL import Image

    def load(path: Path) -> tuple[Any, int]:
        with Image.open(path) as image:
            return np.array(image.convert("RGB")), int(path.parent.name)

    paths = sorted(Path(work.path).glob("*/*"))
    loader = DataLoader(Rows(paths, load), work.batch, num_workers=input_work.PROCESSES)
    return lambda: loader


def arrays(work: Work) -> Callable[[], Iterable[Any]]:
    """Gather each batch by its row numbers, which is several times faster than collating rows."""
    rows = TensorDataset(*map(torch.from_numpy, input_work.arrays()))
    batches = BatchSampler(RandomSampler(rows), work.batch, drop_last=False)
    loader: DataLoader[Any] = DataLoader(rows, batch_size=None, sampler=batches)
    return lambda: loader


ROWS: dict[str, Callable[[Work], Callable[[], Iterable[Any]]]] = {
    "raw": raw,
    "examples": examples,
    "csv": table,
    "map": lambda work: mapped(work, input_work.centred, 0),
    "processes": lambda work: mapped(work, input_work.computed, input_work.PROCESSES),
    "jpeg": images,
    "png": images,
    "arrays": arrays,
}

if __name__ == "__main__":
    input_work.main(ROWS)
