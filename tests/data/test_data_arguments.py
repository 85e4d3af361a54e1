"""Arguments of datasets that are wrong: the error names the value, what is expected, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist import data as d
from nbdist.data import Dataset, FixedLenFeature, VarLenFeature, make_example
from nbdist.errors import DataLossError, InvalidArgumentError

CSV = "a,b\n1,2\n,4\n"
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "step 0": (lambda _: Dataset.range(0, 5, 0), r"range\(0, 5, 0\) has the step 0"),
    "no bounds": (lambda _: Dataset.range(), "range has 0 bounds; expected"),
    "a float": (lambda _: Dataset.range(2.5), "2.5; expected a whole number"),
    "too many numbers": (lambda _: Dataset.range(2**62), "more numbers than fit in memory"),
    "a truth value": (lambda _: Dataset.range(3).batch(True), "batch_size is True; expected a whole number"),
    "two characters": (lambda p: Dataset.csv(p, delimiter=";;"), "delimiter is ';;'; expected one character"),
    "a quote": (lambda p: Dataset.csv(p, delimiter='"'), "neither a quote"),
    "header": (lambda p: Dataset.csv(p, header="a,b"), r"header .* is 'a,b'; expected a list of names"),
    "a column": (lambda p: Dataset.csv(p, columns="a"), r"columns is 'a'; .* such as \['a'\]"),
    "no columns": (lambda p: Dataset.csv(p, columns=[]), "expected a list of names"),
    "a dtype": (lambda p: Dataset.csv(p, columns={"a": "zz"}), "column 'a' has the dtype 'zz'"),
    "defaults": (lambda p: Dataset.csv(p, defaults=[1]), "defaults is .1.; expected a dict"),
    "encoding": (lambda p: Dataset.text_lines(p, encoding="utf9"), "'utf9'; expected the name of an"),
    "compression": (lambda p: Dataset.text_lines(p, compression="zip"), "compression is 'zip'; .* gzip"),
    "on_error": (lambda p: Dataset.csv(p, on_error="skp"), "on_error is 'skp'; .*did you mean skip"),
    "a number": (lambda _: Dataset.text_lines(3), "is 3; expected a list of paths"),
    "bytes": (lambda _: Dataset.list_files(b"a"), "is b'a'; expected a list of paths"),
    "a list of features": (
        lambda p: Dataset.tfrecords(p, features=["x"]),
        r"features is \['x'\]; expected a dict by name, such as \{'label': FixedLenFeature",
    ),
    "a feature": (
        lambda p: Dataset.tfrecords(p, features={"x": "f4"}),
        "feature 'x' is 'f4'; expected a FixedLenFeature",
    ),
    "no shape": (lambda _: FixedLenFeature(2, "f4"), r"shape is 2; .* VarLenFeature"),
    "an open shape": (lambda _: FixedLenFeature((None,), "f4"), r"shape is \(None,\)"),
    "no dtype": (lambda _: VarLenFeature("zz"), "VarLenFeature has the dtype 'zz'"),
    "objects": (lambda _: VarLenFeature("O"), "dtype is object; expected"),
    "a default": (lambda _: FixedLenFeature((2,), "f4", [1, 2, 3]), r"default_value is .*shape \(2,\)"),
    "text as record": (lambda _: d.parse_example("abc", {}), "takes a record of bytes.*not 'abc'"),
    "features of a record": (lambda _: d.parse_example(b"", ["x"]), "expected a dict by name"),
    "no names": (lambda _: make_example([1]), r"values is \[1\]; expected a dict"),
    "lists of lists": (lambda _: make_example({"a": [[1], [2, 3]]}), "'a' holds lists of different lengths"),
    "65 bits": (lambda _: make_example({"a": np.uint64(2**63)}), "holds 9223372036854775808; .* up to"),
    "no records": (lambda p: d.write_tfrecords(p, 3), "records are 3; expected a list"),
    "one record": (lambda p: d.write_tfrecords(p, b"abc"), "records are b'abc'; expected"),
    "no folder": (lambda p: d.write_tfrecords(p / "x" / "y", []), "a folder that does not exist; create it"),
    "no path": (lambda _: d.write_tfrecords(3, []), "path is 3; expected a path"),
    "a cache's path": (lambda _: Dataset.range(3).cache(3), "path is 3; expected a path"),
    "a cache's URL": (lambda _: Dataset.range(3).cache("s3://b/x"), "URL 's3://b/x'; a cache is a local"),
    "a table's column": (lambda p: Dataset.parquet(p, columns="a"), "columns is 'a'; expected a list"),
    "a size": (lambda p: Dataset.images(p, size=2.5), "size is 2.5; expected"),
    "a mode": (lambda p: Dataset.images(p, mode=["L"]), r"mode is \['L'\]; choose from"),
    "an image folder": (lambda _: Dataset.images(3), "folder is 3; expected"),
    "weights": (lambda _: Dataset.sample_from([Dataset.range(3)], ["a"]), "weights are"),
    "no list": (lambda _: Dataset.sample_from(Dataset.range(3)), r"write \[dataset, \.\.\.\]"),
    "nothing to zip": (lambda _: Dataset.zip(), "zip takes at least one dataset"),
    "padding": (lambda _: Dataset.range(3).padded_batch(2, ["a"]), "padded_shapes is"),
    "boundaries": (lambda _: Dataset.range(3).bucket_by_length(len, 3, [1]), "boundaries is 3"),
    "mnist": (lambda _: d.mnist(3), "folder is 3; expected a path"),
}  # fmt: skip
IN_A_PASS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an unknown default": (lambda p: Dataset.csv(p, defaults={"c": 1}), "defaults .* 'c', which .* a, b"),
    "a default's type": (
        lambda p: Dataset.csv(p, columns={"a": int}, defaults={"a": "q"}),
        "'q' for column 'a', which is not a whole number",
    ),
    "no elements": (lambda _: Dataset.from_generator(lambda: 3), "from_generator returns an iterable.*3"),
    "padding": (
        lambda _: Dataset.range(1, 3).map(lambda n: np.ones(n)).padded_batch(2, padding_values="a"),
        "array 0 is float64, and padding_values has 'a'",
    ),
    "a filter of an array": (
        lambda _: Dataset.from_arrays(np.ones((2, 2))).filter(lambda x: x > 0),
        r"returned an array of \(2,\); use \.any\(\)",
    ),
    "a folder as cache": (
        lambda p: Dataset.range(2).cache(p.parent),
        "is a folder, a device or a pipe; expected the path of a file",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named_at_once(tmp_path: Path, name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(InvalidArgumentError, match=message):
        make(tmp_path)


@pytest.mark.parametrize("name", IN_A_PASS)
def test_a_wrong_argument_is_named_in_the_pass_that_finds_it(tmp_path: Path, name: str) -> None:
    make, message = IN_A_PASS[name]
    path = tmp_path / "a.csv"
    path.write_text(CSV)
    with pytest.raises(InvalidArgumentError, match=message):
        list(make(path))


@pytest.mark.parametrize("damage", [lambda whole: whole[:-5], lambda _: b"no cache file, but long enough"])
def test_a_damaged_cache_says_to_delete_it(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    pytest.importorskip("google_crc32c")
    path = tmp_path / "kept"
    cached = Dataset.from_generator(lambda: [1, 2, 3]).cache(path)
    assert list(cached) == [1, 2, 3]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataLossError, match=r"kept is cut or damaged.*Delete it") as raised:
        list(cached)
    assert "on_error" not in str(raised.value)


def test_truth_values_of_an_example_are_whole_numbers() -> None:
    pytest.importorskip("google.protobuf")
    features = {"a": FixedLenFeature((), "?"), "b": VarLenFeature("i8")}
    found = d.parse_example(make_example({"a": True, "b": [True, False]}), features)
    assert (bool(found["a"]), found["b"].tolist()) == (True, [1, 0])
