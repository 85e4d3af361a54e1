"""Sources of other libraries: Parquet, frames, images, Hugging Face and PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

import nbdist as nb
from nbdist.data import Dataset
from nbdist.errors import DataLossError, InvalidArgumentError, MissingExtra, NotFoundError

TABLE = {"n": [1, 2, 3], "x": [0.5, None, 2.0], "name": ["a", None, "c"], "words": [[1], [], [2, 3]]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    parquet.write_table(pyarrow.table(TABLE), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def test_parquet(file: Path) -> None:
    first, second, third = Dataset.parquet(file, defaults={"name": "?"})
    assert (first["n"], second["n"], third["name"], second["name"]) == (1, 2, "c", "?")
    assert np.isnan(second["x"])
    assert third["words"].tolist() == [2, 3]
    assert type(first["n"]) is np.int64
    few = Dataset.parquet(str(file), ["n", "x"], defaults={"x": 7}).batch(3)
    assert {name: part.tolist() for name, part in next(iter(few)).items()} == {
        "n": [1, 2, 3],
        "x": [0.5, 7, 2],
    }


def test_nulls_are_nan_in_floats_and_errors_elsewhere(file: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"row 1: column 'name' \(string\) is null.*defaults"):
        list(Dataset.parquet(file))
    table = {"flag": [True, None], "list": [[1, None], [2]], "day": [None, 3], "x": [[None, 1.5], [2.0]]}
    for name, row in [("flag", 1), ("list", 0), ("day", 0)]:
        parquet.write_table(pyarrow.table({name: table[name]}), file)
        with pytest.raises(InvalidArgumentError, match=f"row {row}: column '{name}'"):
            list(Dataset.parquet(file))
        assert len(list(Dataset.parquet(file, on_error="skip"))) == 1
    parquet.write_table(pyarrow.table({"x": table["x"]}), file)
    assert np.isnan(next(iter(Dataset.parquet(file)))["x"][0])


def test_lists_in_lists_are_arrays(file: Path) -> None:
    parquet.write_table(pyarrow.table({"image": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}), file)
    (batch,) = Dataset.parquet(file).batch(2)
    assert batch["image"].shape == (2, 2, 2)
    assert batch["image"].dtype == np.int64


def test_parquet_that_cannot_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no column 'm'; choose from n, x"):
        list(Dataset.parquet(file, ["m"]))
    parquet.write_table(pyarrow.table({"n": [1, None]}), file)
    with pytest.raises(
        InvalidArgumentError, match=r"a\.parquet, row 1: column 'n' \(int64\) is null.*defaults"
    ):
        list(Dataset.parquet(file))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataLossError, match=r"a\.parquet cannot be read as Parquet"):
        list(Dataset.parquet(file))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"nbdist\[parquet\]"):
        list(Dataset.parquet(file))


COLUMNS = {"n": [1, 2], "x": [0.5, 1.5], "kind": ["a", "b"]}


@pytest.mark.parametrize(
    "frame", [pandas.DataFrame(COLUMNS), polars.DataFrame(COLUMNS), pyarrow.table(COLUMNS)]
)
def test_frames(frame: Any) -> None:
    rows = Dataset.from_frame(frame)
    assert list(rows) == [{"n": 1, "x": 0.5, "kind": "a"}, {"n": 2, "x": 1.5, "kind": "b"}]
    assert rows.element_spec["n"].dtype == np.int64
    assert rows.cardinality() == 2


def test_a_label_makes_pairs_for_fit(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,name,y,b\n1,u,0,0.5\n2,v,1,1.5\n")
    columns = {"a": [1, 2], "b": [0.5, 1.5], "y": [0, 1]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    for dataset in (
        Dataset.csv(tmp_path / "a.csv", ["b", "a"], label="y"),
        Dataset.csv(tmp_path / "a.csv", {"b": "f4", "a": "i4", "y": "i8"}, label="y"),
        Dataset.parquet(tmp_path / "a.parquet", ["b", "a"], label="y"),
        Dataset.from_frame(pandas.DataFrame(columns)[["b", "a", "y"]], label="y"),
    ):
        ((x, y),) = dataset.batch(2)
        assert (x.tolist(), y.tolist()) == ([[0.5, 1], [1.5, 2]], [0, 1])
        assert [int(label) for _, label in dataset] == [0, 1]
        model = nb.nn.Sequential([nb.nn.Dense(1)])
        model.compile(nb.optim.SGD(0.1), "mse")
        assert len(model.fit(dataset.batch(2), epochs=1).history["loss"]) == 1
    with pytest.raises(InvalidArgumentError, match=r"'name' is not of numbers: leave it out \(columns"):
        list(Dataset.csv(tmp_path / "a.csv", label="y"))
    named = pandas.DataFrame({"name": ["a"], "y": [1]})
    with pytest.raises(InvalidArgumentError, match=r"'name' is not of numbers: leave it out \(frame\[\["):
        Dataset.from_frame(named, label="y")
    with pytest.raises(InvalidArgumentError, match="label is 'z', and there is no such column"):
        list(Dataset.csv(tmp_path / "a.csv", label="z"))
    with pytest.raises(InvalidArgumentError, match=r"fit: .* are dicts \('a', 'name'.*label='NAME'"):
        model.fit(Dataset.csv(tmp_path / "a.csv").batch(2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pandas.DataFrame({"a": [1.0], "b": ["x"]}), r"columns 'b' \(.*encode text and dates as numbers"),
        (pandas.DataFrame({"a": [1, 2], "b": pandas.array([1, None], "Int64")}), r"'b' \(Int64\)"),
        (pandas.DataFrame({"a": [1.5], "b": [1]}).convert_dtypes(), r"'a' \(Float64\), 'b' \(Int64\) NumPy"),
        (pandas.Series(["x", None]), r"objects \(.*str\): give numbers, or text as array.astype\(str\)"),
        (pyarrow.table({"a": [1.0], "b": ["x"]}), r"array 0 is a frame, of whose columns 'b'"),
        (polars.DataFrame({"a": [1.0], "b": ["x"]}), r"array 0 is a frame, of whose columns 'b' \(String\)"),
    ],
    ids=["text", "nullable", "nullable kinds", "a series", "arrow", "polars"],
)
def test_arrays_of_objects(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Dataset.from_arrays(given, np.zeros(len(given)))
    model = nb.nn.Sequential([nb.nn.Dense(1)])
    model.compile("sgd", "mse")
    for method in (model.fit, model.evaluate, lambda x, _: model.predict(x)):
        with pytest.raises(InvalidArgumentError, match=message):
            method(given, np.zeros(len(given)))


def test_frames_that_are_none() -> None:
    with pytest.raises(InvalidArgumentError, match="column 'o' holds dict objects"):
        Dataset.from_frame(pandas.DataFrame({"o": [{}, {}]}))
    with pytest.raises(InvalidArgumentError, match="got list"):
        Dataset.from_frame([1])
    for twice in (["a", "a"], [0, "0"]):
        with pytest.raises(InvalidArgumentError, match=f"several columns '{twice[1]}': name them apart"):
            Dataset.from_frame(pandas.DataFrame(np.ones((2, 2)), columns=twice))
    floats = Dataset.from_frame(pandas.DataFrame({"s": [1.5, None]}))
    assert np.isnan([row["s"] for row in floats]).tolist() == [False, True]


@pytest.mark.parametrize(
    "frame",
    [
        pandas.DataFrame({"s": ["a", None]}),
        pandas.DataFrame({"s": pandas.array([2**62 + 1, None], dtype="Int64")}),
        pandas.DataFrame({"s": pandas.array([True, None], dtype="boolean")}),
        polars.DataFrame({"s": [2**62 + 1, None]}),
        polars.DataFrame({"s": ["a", None]}),
        pyarrow.table({"s": [2**62 + 1, None]}),
        pyarrow.table({"s": ["a", None]}),
    ],
    ids=str,
)
def test_a_frame_without_a_value_is_refused_where_no_nan_can_be(frame: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"column 's' .* has no value in row 1"):
        Dataset.from_frame(frame)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, kind in enumerate(["cat", "dog", "cat"]):
        (tmp_path / kind).mkdir(exist_ok=True)
        pixels = np.full((4, 6, 3), number * 40, np.uint8)
        Image.fromarray(pixels).save(tmp_path / kind / f"{number}.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path


@pytest.mark.parametrize("calls", [None, 2])
def test_images(folder: Path, calls: int | None) -> None:
    images = Dataset.images(folder, num_parallel_calls=calls)
    assert [(int(image[0, 0, 0]), int(label)) for image, label in images] == [(0, 0), (80, 0), (40, 1)]
    ((batch, labels),) = Dataset.images(folder, (2, 3), mode="L", num_parallel_calls=calls).batch(3)
    assert batch.shape == (3, 2, 3, 1)
    assert batch.dtype == np.uint8
    assert labels.tolist() == [0, 0, 1]
    shuffled = Dataset.images(folder, shuffle=True, seed=1)
    epochs = [[int(image[0, 0, 0]) for image, _ in shuffled] for _ in range(4)]
    assert all(sorted(epoch) == [0, 40, 80] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert len(list(Dataset.images(folder, labels=False))) == 3


def test_images_keep_their_bit_depth(folder: Path) -> None:
    deep = np.array([[0, 255, 256], [1000, 40_000, 65_535]], np.uint16)
    for kind in ("cat", "dog"):
        for old in (folder / kind).iterdir():
            old.unlink()
        Image.fromarray(deep).save(folder / kind / "16.png")
        Image.fromarray(deep).save(folder / kind / "16.tif")
    for image, _ in Dataset.images(folder, mode="I;16"):
        assert image.dtype == np.uint16
        assert np.array_equal(image[..., 0], deep)
    (small, *_) = Dataset.images(folder, (1, 3), mode="I;16", labels=False)
    assert small[0, :, 0].tolist() == [500, 20_128, 32_896]
    for mode in ("RGB", "RGBA", "L"):
        with pytest.raises(InvalidArgumentError, match=r"16\.png is grayscale with 16 bits.*mode='I;16'"):
            list(Dataset.images(folder, mode=mode))
    Image.fromarray(deep.astype(np.int32)).save(folder / "cat" / "0.tif")
    with pytest.raises(InvalidArgumentError, match=r"0\.tif has Pillow's mode 'I'.*map\(\)"):
        list(Dataset.images(folder))
    Image.fromarray(deep.astype(np.uint8)).save(folder / "cat" / "0.tif")
    with pytest.raises(InvalidArgumentError, match=r"0\.tif has Pillow's mode 'L'.*mode='L'"):
        list(Dataset.images(folder, mode="I;16"))


def test_images_that_are_none(folder: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no images in .*CLASS"):
        Dataset.images(folder / "cat")
    assert len(list(Dataset.images(folder / "cat", labels=False))) == 2
    with pytest.raises(NotFoundError, match="there is no folder"):
        Dataset.images(folder / "mouse")
    with pytest.raises(InvalidArgumentError, match=r"mode is 'rgb'; .*did you mean RGB"):
        Dataset.images(folder, mode="rgb")
    with pytest.raises(InvalidArgumentError, match=r"size is \(1, 2, 3\)"):
        Dataset.images(folder, (1, 2, 3))
    (folder / "dog" / "1.png").write_bytes(b"\x89PNG")
    with pytest.raises(DataLossError, match=r"1\.png cannot be decoded"):
        list(Dataset.images(folder))
    some = Dataset.images(folder, on_error="skip")
    assert [int(label) for _, label in some] == [0, 0]
    assert "1 record was left out" in some.skipped_note()
    assert "1.png cannot be decoded" in some.skipped_note()


class Tensor:
    """As much of a tensor as is asked for."""

    def __init__(self, value: Any) -> None:
        self._value = np.asarray(value)

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._value


class MapStyle:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= 5:
            raise IndexError(index)
        return Tensor([index, index]), index


class Loader:
    batch_sampler = None

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[Tensor]]:
        yield [Tensor([[0], [1]]), Tensor([0, 1])]
        yield [Tensor([[2]]), Tensor([2])]


def test_datasets_of_pytorch() -> None:
    rows = Dataset.from_torch(MapStyle())
    assert rows.cardinality() == 5
    assert [int(y) for _, y in rows] == list(range(5))
    batches = list(rows.shuffle(5, seed=1).batch(2))
    assert all(np.array_equal(x[:, 0], y) for x, y in batches)
    assert sorted(np.concatenate([y for _, y in batches])) == list(range(5))
    loader = Dataset.from_torch(Loader())
    assert [y.tolist() for _, y in loader] == [y.tolist() for _, y in loader] == [[0, 1], [2]]
    with pytest.raises(InvalidArgumentError, match="got int"):
        Dataset.from_torch(3)


@pytest.mark.slow
@pytest.mark.frameworks
def test_datasets_of_hugging_face() -> None:
    import datasets

    theirs = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [0, 1, 2]})
    rows = Dataset.from_huggingface(theirs)
    assert rows.cardinality() == 3
    assert [row["x"].tolist() for row in rows] == [[1, 2], [3, 4], [5, 6]]
    (batch,) = rows.shuffle(3, seed=0).batch(3)
    assert batch["x"].shape == (3, 2)
    assert np.array_equal(batch["x"][:, 0], 2 * batch["y"] + 1)
    streamed = Dataset.from_huggingface(theirs.to_iterable_dataset())
    assert [int(row["y"]) for row in streamed] == [0, 1, 2]
    with pytest.raises(InvalidArgumentError, match=r"from_huggingface\(ds\['train'\]\)"):
        Dataset.from_huggingface(datasets.DatasetDict(train=theirs))


@pytest.mark.slow
@pytest.mark.frameworks
def test_what_a_dataset_of_hugging_face_carries_is_obeyed_or_refused() -> None:
    import datasets

    columns = {
        "x": [[1.0, 2.0], [3.0, 4.0]],
        "y": pyarrow.array([2**63 + 1, 1], "u8"),
        "text": ["a", "bc"],
        "b": pyarrow.array([[1], [2, 3]], pyarrow.list_(pyarrow.int8())),
    }
    theirs = datasets.Dataset(pyarrow.table(columns))
    for source in (theirs, theirs.to_iterable_dataset()):
        first, second = Dataset.from_huggingface(source)
        assert (int(first["y"]), first["text"], second["b"].tolist()) == (2**63 + 1, "a", [2, 3])
        assert (first["x"].dtype, second["b"].dtype) == (np.float64, np.int8)
    (batch,) = Dataset.from_huggingface(theirs.remove_columns("b")).shuffle(2, seed=1).batch(2)
    assert {name: part.dtype.str for name, part in batch.items()} == {"x": "<f8", "y": "<u8", "text": "<U2"}

    def doubled(rows: dict[str, list[Any]]) -> dict[str, Any]:
        return {"twice": [np.asarray(x) * 2 for x in rows["x"]], "y": rows["y"]}

    (batch,) = Dataset.from_huggingface(theirs.with_transform(doubled)).batch(2)
    assert list(batch) == ["twice", "y"]
    assert batch["twice"].tolist() == [[2, 4], [6, 8]]
    chosen = theirs.with_format(columns=["x"])
    assert [list(row) for row in Dataset.from_huggingface(chosen)] == [["x"], ["x"]]
    (batch,) = Dataset.from_huggingface(theirs.with_format("numpy", columns=["x"], dtype="f4")).batch(2)
    assert batch["x"].dtype == np.float32
    assert list(batch) == ["x"]
    (batch,) = Dataset.from_huggingface(theirs.with_format("torch", columns=["x"])).batch(2)
    assert batch["x"].tolist() == [[1, 2], [3, 4]]
    for form in ("pandas", "arrow"):
        with pytest.raises(InvalidArgumentError, match=f"format '{form}', whose rows are frames"):
            Dataset.from_huggingface(theirs.with_format(form))
    for column in ([1, None], ["a", None], [[1], [None]]):
        rows = Dataset.from_huggingface(datasets.Dataset.from_dict({"c": column}))
        with pytest.raises(InvalidArgumentError, match="row 1 of the dataset has a null in column 'c'"):
            list(rows.batch(2))
    image = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    decoded = datasets.Dataset.from_dict({"i": [image], "n": [3]}).cast_column("i", datasets.Image())
    (batch,) = Dataset.from_huggingface(decoded).batch(1)
    assert batch["i"].tolist() == [np.asarray(image).tolist()]
    assert list(batch) == ["i", "n"]
