"""Peer of P17: elements per second of TensorFlow's tf.data, with as many parallel calls as it chooses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from bench import input_work
from bench.input_work import Work
from bench.script import not_measured

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
try:
    import tensorflow as tf
except ImportError:
    raise not_measured("tensorflow is not installed") from None

Passes: TypeAlias = Callable[[], Iterable[Any]]
AUTO = tf.data.AUTOTUNE
FEATURES = {
    "x": tf.io.FixedLenFeature((64,), tf.float32),
    "label": tf.io.FixedLenFeature((), tf.int64),
    "ids": tf.io.FixedLenFeature((8,), tf.int64),
    "image": tf.io.FixedLenFeature((), tf.string),
}


def records(work: Work) -> Passes:
    made = tf.data.TFRecordDataset(work.path).batch(work.batch).prefetch(AUTO)
    return passes(made)


def examples(work: Work) -> Passes:
    batches = tf.data.TFRecordDataset(work.path).batch(work.batch)
    parsed = batches.map(lambda records: tf.io.parse_example(records, FEATURES), num_parallel_calls=AUTO)
    return passes(parsed.prefetch(AUTO))


def table(work: Work) -> Passes:
    types = [tf.int64, *[tf.float32] * (len(input_work.COLUMNS) - 1)]
    rows = tf.data.experimental.CsvDataset(work.path, types, header=True).batch(work.batch)
    named = rows.map(lambda *values: dict(zip(input_work.COLUMNS, values)), num_parallel_calls=AUTO)
    return passes(named.prefetch(AUTO))


def mapped(work: Work, function: Callable[[Any], Any], shape: tuple[int, ...]) -> Passes:
    def call(row: Any) -> Any:
        found = tf.numpy_function(function, [row], tf.float32)
        found.set_shape(shape)
        return found

    rows = tf.data.Dataset.from_tensor_slices(input_work.numbers(work.elements))
    made = rows.map(call, num_parallel_calls=AUTO).batch(work.batch).prefetch(AUTO)
    return passes(made)


def images(work: Work) -> Passes:
    paths = sorted(tf.io.gfile.glob(f"{work.path}/*/*"))
    labels = [int(path.split("/")[-2]) for path in paths]
    decode = tf.io.decode_jpeg if work.name == "jpeg" else tf.io.decode_png

    def load(path: Any, label: Any) -> tuple[Any, Any]:
        return decode(tf.io.read_file(path), channels=3), label

    files = tf.data.Dataset.from_tensor_slices((paths, labels))
    made = files.map(load, num_parallel_calls=AUTO).batch(work.batch).prefetch(AUTO)
    return passes(made)


def arrays(work: Work) -> Passes:
    rows = tf.data.Dataset.from_tensor_slices(input_work.arrays())
    return passes(rows.shuffle(work.elements).batch(work.batch).prefetch(AUTO))


def passes(made: Any) -> Passes:
    """Return what begins a pass; batches come as arrays."""
    found: Passes = made.as_numpy_iterator
    return found


ROWS: dict[str, Callable[[Work], Passes]] = {
    "raw": records,
    "examples": examples,
    "csv": table,
    "map": lambda work: mapped(work, input_work.centred, (16,)),
    "processes": lambda work: mapped(work, input_work.computed, ()),
    "jpeg": images,
    "png": images,
    "arrays": arrays,
}

if __name__ == "__main__":
    input_work.main(ROWS)
