"""Sources of files: text, CSV and TFRecords, local and behind URLs, whole and damaged."""

from __future__ import annotations

import gzip
import os
import resource
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

from nbdist.data import (
    Dataset,
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    make_example,
    parse_example,
    parse_sequence_example,
    write_tfrecords,
)
from nbdist.data import text as text_files
from nbdist.errors import DataLossError, InvalidArgumentError, MissingExtra, NotFoundError, StorageError
from nbdist.record_frame import masked_crc32c

BY_TENSORFLOW = Path(__file__).parent / "files"  # written by TensorFlow 2.21's TFRecordWriter
FEATURES = {
    "image": FixedLenFeature((3,), "f4"),
    "label": FixedLenFeature((), "i8"),
    "words": VarLenFeature("i8"),
    "name": FixedLenFeature((), bytes),
}


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "folder" else f"memory://{tmp_path.name}"


def put(path: str, data: bytes) -> str:
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        file.write(data)
    return path


# Lines and paths


def test_lines_of_files_plain_and_compressed(place: str) -> None:
    put(f"{place}/a.txt", "one\r\ntwo\n\nüber".encode())
    put(f"{place}/b.txt.gz", gzip.compress(b"three\n"))
    assert list(Dataset.text_lines(f"{place}/a.txt")) == ["one", "two", "", "über"]
    both = Dataset.text_lines(f"{place}/*.txt*")
    assert list(both) == ["one", "two", "", "über", "three"]
    paths = list(Dataset.list_files(f"{place}/*"))
    assert [path.rpartition("/")[2] for path in paths] == ["a.txt", "b.txt.gz"]
    assert list(Dataset.from_generator(lambda: paths).interleave(Dataset.text_lines, 2)) == [
        "one",
        "three",
        "two",
        "",
        "über",
    ]


def test_files_that_are_not_there_are_named(place: str) -> None:
    put(f"{place}/a.txt", b"x")
    for pattern, message in [("b.txt", "there is no such file"), ("*.csv", "the pattern matches no file")]:
        with pytest.raises(NotFoundError, match=message):
            Dataset.list_files(f"{place}/{pattern}")
        with pytest.raises(NotFoundError, match=message):
            list(Dataset.text_lines(f"{place}/{pattern}"))
    with pytest.raises(InvalidArgumentError, match="not 3"):
        Dataset.text_lines([3])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="no paths"):
        Dataset.text_lines([])


def test_a_folder_without_files_and_a_name_with_a_pattern_in_it(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(NotFoundError, match="the folder has no files"):
        Dataset.list_files(tmp_path / "none")
    (tmp_path / "a[1].txt").write_text("x")
    assert list(Dataset.text_lines(tmp_path / "a[1].txt")) == ["x"]


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed")
    for pattern in ("closed/a.txt", "closed/*", "closed/more/*.txt"):
        with pytest.raises(StorageError, match=r"may not read the folder '.*closed'"):
            Dataset.list_files(tmp_path / pattern)

    def denied(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(StorageError, match=r"closed cannot be read: .*Permission denied"):
        Dataset.list_files(tmp_path / "closed")


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Files of this process have at most 1 MB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_that_cannot_be_written_is_named_and_leaves_no_draft(tmp_path: Path, ending: str) -> None:
    large = np.random.default_rng(0).bytes(2 << 20)
    with pytest.raises(StorageError, match=r".*a\.tfrecord.* cannot be written: .*No part"):
        write_tfrecords(f"{tmp_path}/a.tfrecord{ending}", [b"small", large])
    with pytest.raises(StorageError, match="/proc/a cannot be written"):
        write_tfrecords("/proc/a", [b"small"])
    with pytest.raises(StorageError, match=r"cache file .* cannot be written"):
        list(Dataset.from_generator(lambda: [large]).cache(tmp_path / "cache"))
    assert list(tmp_path.iterdir()) == []

    def records() -> Iterator[bytes]:
        raise OSError("of the source")
        yield b""

    with pytest.raises(OSError, match=r"^of the source$"):
        write_tfrecords(f"{tmp_path}/a.tfrecord", records())


def test_a_url_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtra, match=r'nbdist\[s3\]"\) *|nbdist\[s3\]'):
        list(Dataset.text_lines("s3://bucket/a.txt"))
    with pytest.raises(InvalidArgumentError, match="nosuch"):
        list(Dataset.text_lines("nosuch://bucket/a.txt"))


@pytest.mark.parametrize("ending", ["gz", "zlib", "zst", "bz2", "xz"])
def test_compressed_records_and_lines(tmp_path: Path, ending: str) -> None:
    if ending == "zst" and sys.version_info < (3, 14):
        pytest.importorskip("backports.zstd")
    path = tmp_path / f"a.tfrecord.{ending}"
    given = [bytes([n % 256]) * (n % 90) for n in range(2000)] + [b"x" * (3 << 20)]
    assert write_tfrecords(path, given) == 2001
    assert path.stat().st_size < 150_000
    assert list(Dataset.tfrecords(path)) == given
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataLossError, match=r"a\.tfrecord.* cannot be decompressed: .*copy it again"):
        list(Dataset.tfrecords(path))
    path.write_bytes(b"not compressed at all")
    with pytest.raises(DataLossError, match="cannot be decompressed"):
        list(Dataset.text_lines(path))


def test_zlib_streams_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"  # two streams, as of a file that is appended to
    path.write_bytes(zlib.compress(b"a,b\n1,2\n") + zlib.compress(b"3,4\n"))
    rows = Dataset.csv(path, compression="zlib")
    assert list(rows) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_text_and_compression_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataLossError, match=r"a\.txt is not utf-8 text"):
        list(Dataset.text_lines(tmp_path / "a.txt"))
    whole = gzip.compress(b"line\n" * 1000)
    (tmp_path / "cut.gz").write_bytes(whole[:-9])
    with pytest.raises(DataLossError, match=r"cut\.gz cannot be decompressed"):
        list(Dataset.text_lines(tmp_path / "cut.gz"))
    with pytest.raises(InvalidArgumentError, match="did you mean gzip"):
        list(Dataset.text_lines(tmp_path / "a.txt", compression="gzp"))


# CSV

CSV = 'width,kind,count\n1.5,a,1\n2,b,2\n,"c, d",3\n'


def test_csv_columns_have_the_types_of_their_fields(place: str) -> None:
    put(f"{place}/a.csv", CSV.encode())
    first, second, third = Dataset.csv(f"{place}/a.csv")
    assert first == {"width": 1.5, "kind": "a", "count": 1}
    assert (type(first["width"]), type(first["count"])) == (np.float64, np.int64)
    assert np.isnan(third["width"])
    assert third["kind"] == "c, d"
    assert second["count"] == 2
    few = Dataset.csv(f"{place}/a.csv", ["count"]).batch(3)
    assert next(iter(few))["count"].tolist() == [1, 2, 3]
    typed = Dataset.csv(f"{place}/a.csv", {"width": "f4", "count": "u1"}, defaults={"width": 7})
    assert [row["width"] for row in typed] == [1.5, 2, 7]
    assert typed.element_spec["count"].dtype == np.uint8


def test_csv_keeps_the_digits_of_large_whole_numbers(tmp_path: Path) -> None:
    large, missing = 2**53 + 1, ""
    columns = {"u": 2**64 - 1, "more": 2**64 + 1, "some": large, "near": 2**60}
    text = f"{','.join(columns)}\n{','.join(map(str, columns.values()))}\n1,1,{missing},{missing}\n"
    first, second = Dataset.csv(put(f"{tmp_path}/a.csv", text.encode()))
    assert {name: int(value) for name, value in first.items()} == columns
    assert {name: np.asarray(value).dtype.kind for name, value in first.items()} == {
        "u": "u",
        "more": "U",
        "some": "U",
        "near": "f",
    }
    assert (second["more"], second["some"]) == ("1", "")


def test_long_fields_and_quotes_that_stay_open(tmp_path: Path) -> None:
    long = "x" * 200_000
    path = put(f"{tmp_path}/a.csv", f'\n\nn,text\n1,{long}\n2,"open\n3,c\n4,"d"e\n5,"f\ng"\n6,h\n'.encode())
    rows = Dataset.csv(path, on_error="skip")
    assert [(int(row["n"]), len(row["text"])) for row in rows] == [(1, 200_000), (3, 1), (5, 3), (6, 1)]
    assert rows.skipped == 2
    with pytest.raises(DataLossError, match=r"a\.csv, line 5: .*Correct the line.*on_error='skip'"):
        list(Dataset.csv(path))
    assert [row["column0"] for row in Dataset.csv(put(f"{tmp_path}/b.csv", b"\n1\n2\n"), header=False)] == [
        1,
        2,
    ]


def test_a_line_ends_with_a_line_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(f"{tmp_path}/a.txt", b"10%\r90%\nb\r\r\nc")
    assert list(Dataset.text_lines(path)) == ["10%\r90%", "b\r", "c"]
    monkeypatch.setattr(text_files, "LONGEST", 7)
    with pytest.raises(DataLossError, match=r"a\.txt, line 1: longer than 7 characters"):
        list(Dataset.text_lines(path))


def test_a_record_takes_the_memory_of_what_is_there(tmp_path: Path) -> None:
    length = (1 << 30).to_bytes(8, "little")
    head = length + masked_crc32c(length).to_bytes(4, "little")
    path = put(f"{tmp_path}/a.tfrecord", head + bytes(100))
    tracemalloc.start()
    try:
        with pytest.raises(DataLossError, match="truncated record at 0"):
            list(Dataset.tfrecords(path))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    write_tfrecords(path, [bytes(5 << 20), b"small", bytes(3 << 20)])
    assert [len(record) for record in Dataset.tfrecords(path)] == [5 << 20, 5, 3 << 20]


def test_folders_with_characters_of_patterns_in_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "photos [2024]"
    (folder / "cat*").mkdir(parents=True)
    (folder / "a.txt").write_text("one")
    (folder / "cat*" / "b.txt").write_text("two")
    for pattern in ("*.txt", "a.txt", ""):
        assert list(Dataset.text_lines(f"{folder}/{pattern}")) == ["one"]
    assert list(Dataset.text_lines(f"{folder}/*/*.txt")) == ["two"]
    assert list(Dataset.text_lines(f"{folder}/**/*.txt")) == ["one", "two"]
    Image.new("RGB", (2, 2)).save(folder / "cat*" / "a.png")
    assert len(list(Dataset.images(folder))) == len(list(Dataset.images(folder, labels=False))) == 1


def test_a_table_in_folders_of_parts_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "year=2024").mkdir()
    (tmp_path / "year=2024" / "a.parquet").write_bytes(b"")
    with pytest.raises(
        InvalidArgumentError, match=r"such as 'year=2024': the column 'year'.*/\*/\*.*from_frame"
    ):
        list(Dataset.parquet(tmp_path))


def test_csv_without_names_and_with_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;x\n2;y\n")
    assert list(Dataset.csv(tmp_path / "a.csv", header=False, delimiter=";")) == [
        {"column0": 1, "column1": "x"},
        {"column0": 2, "column1": "y"},
    ]
    named = Dataset.csv(tmp_path / "a.csv", ["b"], header=["a", "b"], delimiter=";")
    assert [row["b"] for row in named] == ["x", "y"]


@pytest.mark.parametrize("blank", ["\n", "  \n", "\t\r\n"])
def test_blank_lines_are_left_out(tmp_path: Path, blank: str) -> None:
    (tmp_path / "a.csv").write_bytes(f"{blank}a,b\n1,2\n{blank}3,4\n{blank}".encode())
    assert [*Dataset.csv(tmp_path / "a.csv")] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_a_line_of_delimiters_is_a_row_of_empty_fields(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n1\tx\n\t\n")
    assert [row["b"] for row in Dataset.csv(tmp_path / "a.tsv", delimiter="\t")] == ["x", ""]
    (tmp_path / "one.csv").write_text('a\n"  "\n""\n')
    assert [row["a"] for row in Dataset.csv(tmp_path / "one.csv")] == ["  ", ""]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n1,2,3\n", {}, r"bad\.csv, line 3: 3 fields, and the others have 2.*on_error='skip'"),
        ("a,b\n1,2\n1\n", {}, r"line 3: 1 fields"),
        ("a\n1\nx\n", {"columns": {"a": int}}, r"line 3: column 'a' is 'x', not a whole number"),
        ("a,b\n1,2\n,2\n", {"columns": {"a": int}}, r"line 3: column 'a' is ''.*defaults=\{'a'"),
        ("a\n1\n300\n", {"columns": {"a": "u1"}}, r"line 3: column 'a' is '300'"),
        ("", {}, r"bad\.csv is empty"),
        ('a\n"open\n', {}, r"bad\.csv, line 2.*quote"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataLossError, match=message):
        list(Dataset.csv(tmp_path / "bad.csv", **options))


def test_bad_rows_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n1,2,3\nx,2\n5,6\n")
    rows = Dataset.csv(tmp_path / "bad.csv", {"a": int, "b": int}, on_error="skip")
    assert [row["a"] for row in rows] == [1, 5]
    assert rows.skipped == 2
    assert "2 records were left out" in rows.skipped_note()
    assert "line 3" in rows.skipped_note()
    assert rows.skipped_note(2) == ""
    with pytest.raises(InvalidArgumentError, match="on_error is 'ignore'"):
        Dataset.csv(tmp_path / "bad.csv", on_error="ignore")


def test_a_mark_of_the_encoding_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("\ufeffa,b\n1,2\n".encode())
    assert list(Dataset.csv(str(tmp_path / "a.csv"))) == [{"a": 1, "b": 2}]
    assert list(Dataset.text_lines(str(tmp_path / "a.csv"))) == ["a,b", "1,2"]


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(InvalidArgumentError, match="has 2 columns 'a'"):
        list(Dataset.csv(str(tmp_path / "a.csv")))
    assert list(Dataset.csv(str(tmp_path / "a.csv"), ["b"])) == [{"b": 2}]


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("width,b\n1,2\n")
    with pytest.raises(InvalidArgumentError, match=r"no column 'widht'.*did you mean width"):
        list(Dataset.csv(tmp_path / "a.csv", ["widht"]))
    (tmp_path / "b.csv").write_text("b\n1\n")
    with pytest.raises(InvalidArgumentError, match=r"b\.csv has no column 'width'"):
        list(Dataset.csv([tmp_path / "a.csv", tmp_path / "b.csv"]))


# TFRecords


def test_checksums_are_those_of_semantics() -> None:
    def masked(crc: int) -> int:
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    assert masked_crc32c(bytes(32)) == masked(0x8A9136AA)
    assert masked_crc32c(bytes(range(32))) == masked(0x46DD794E)


@pytest.mark.parametrize("name", ["by_tensorflow.tfrecord", "by_tensorflow.tfrecord.gz"])
def test_files_of_tensorflow_are_read(name: str) -> None:
    parsed = list(Dataset.tfrecords(BY_TENSORFLOW / name, FEATURES))
    assert [one["label"] for one in parsed] == [-1, 0, 1, 2]
    assert parsed[2]["image"].tolist() == [2, 2.5, -2]
    assert parsed[2]["image"].dtype == np.float32
    assert parsed[3]["words"].tolist() == [0, 1, 2]
    assert parsed[0]["words"].shape == (0,)
    assert parsed[1]["name"] == "é1\0".encode()
    batched = Dataset.tfrecords(BY_TENSORFLOW / name, {"name": FEATURES["name"]}).batch(4)
    assert next(iter(batched))["name"][1] == "é1\0".encode(), "a batch of bytes keeps zeros at their ends"


def test_a_sequence_example_of_tensorflow_is_read() -> None:
    (record,) = Dataset.tfrecords(BY_TENSORFLOW / "sequence_by_tensorflow.tfrecord")
    context, sequences = parse_sequence_example(
        record, {"id": FixedLenFeature((), int)}, {"frames": FixedLenSequenceFeature((2,), "f4")}
    )
    assert context == {"id": 7}
    assert sequences["frames"].tolist() == [[0, 1], [1, 2], [2, 3]]
    _, missing = parse_sequence_example(record, {}, {"x": FixedLenSequenceFeature((2,), "f4")})
    assert missing["x"].shape == (0, 2)


def test_our_files_are_byte_for_byte_those_of_tensorflow(tmp_path: Path) -> None:
    records = list(Dataset.tfrecords(BY_TENSORFLOW / "by_tensorflow.tfrecord"))
    assert write_tfrecords(tmp_path / "ours.tfrecord", records) == 4
    theirs = (BY_TENSORFLOW / "by_tensorflow.tfrecord").read_bytes()
    assert (tmp_path / "ours.tfrecord").read_bytes() == theirs
    assert [path.name for path in tmp_path.iterdir()] == ["ours.tfrecord"]


def test_records_of_all_sizes_come_back(place: str) -> None:
    if not place.startswith("memory"):
        Path(place).mkdir(exist_ok=True)
    records = [bytes([n % 256]) * n for n in (0, 1, 1000, 1 << 18, (1 << 18) + 1, 3 << 18, 5)]
    for name in ("a.tfrecord", "a.tfrecord.gz"):
        write_tfrecords(f"{place}/{name}", records)
        assert list(Dataset.tfrecords(f"{place}/{name}")) == records


def test_a_cut_or_corrupted_record_is_named_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    write_tfrecords(path, [b"one", b"two", b"three"])
    whole = path.read_bytes()
    second = 16 + 3
    path.write_bytes(whole[:-2])
    with pytest.raises(
        DataLossError, match=rf"truncated record at {2 * second} in .*x\.tfrecord \(record 2\)"
    ):
        list(Dataset.tfrecords(path))
    cut = Dataset.tfrecords(path, on_error="skip")
    assert list(cut) == [b"one", b"two"]
    assert cut.skipped == 1
    path.write_bytes(whole[: second + 12] + b"x" + whole[second + 13 :])
    with pytest.raises(DataLossError, match=rf"corrupted record at {second} in .*\(record 1\).*its data"):
        list(Dataset.tfrecords(path))
    damaged = Dataset.tfrecords(path, on_error="skip")
    assert list(damaged) == [b"one", b"three"]
    assert damaged.skipped == 1
    path.write_bytes(whole[:second] + b"\xff" + whole[second + 1 :])
    with pytest.raises(DataLossError, match=rf"corrupted record at {second} .*its length"):
        list(Dataset.tfrecords(path))


def test_features_that_do_not_fit_name_record_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    write_tfrecords(path, [make_example({"x": [1.0, 2.0], "n": 3}), make_example({"n": 3})])
    with pytest.raises(InvalidArgumentError, match=r"record 1 of .*x\.tfrecord: feature 'x' is missing.*n"):
        list(Dataset.tfrecords(path, {"x": FixedLenFeature((2,), float)}))
    with pytest.raises(InvalidArgumentError, match=r"'n' has whole numbers, and floats were expected"):
        list(Dataset.tfrecords(path).map(lambda one: parse_example(one, {"n": FixedLenFeature((), "f4")})))
    with pytest.raises(InvalidArgumentError, match=r"'x' has 2 values, and shape \(3,\) needs 3"):
        list(Dataset.tfrecords(path, {"x": FixedLenFeature((3,), float)}))
    some = Dataset.tfrecords(path, {"x": FixedLenFeature((2,), "f4")}, on_error="skip")
    assert len(list(some)) == some.skipped == 1
    filled = Dataset.tfrecords(path, {"x": FixedLenFeature((2,), "f4", 0.5)}).batch(2)
    assert next(iter(filled))["x"].tolist() == [[1, 2], [0.5, 0.5]]
    with pytest.raises(DataLossError, match="not a serialized Example"):
        parse_example(b"\xff\xff", {})
    with pytest.raises(InvalidArgumentError, match="record 0 is of type str"):
        write_tfrecords(path, ["text"])  # type: ignore[list-item]


def test_a_feature_without_a_kind_is_missing() -> None:
    record = make_example({"v": [], "n": 1})
    for kind in ("i8", "f4", str, bytes):
        assert parse_example(record, {"v": VarLenFeature(kind)})["v"].shape == (0,)
        steps = parse_example([record] * 20, {"v": FixedLenSequenceFeature((2,), kind)})
        assert steps["v"].shape == (20, 0, 2)
    assert parse_example(record, {"v": FixedLenFeature((), "i8", 7)}) == {"v": 7}
    with pytest.raises(InvalidArgumentError, match="feature 'v' has no values"):
        parse_example(record, {"v": FixedLenFeature((), "i8")})
    typed = make_example({"v": np.empty(0, np.int64)})
    with pytest.raises(InvalidArgumentError, match="feature 'v' has whole numbers"):
        parse_example(typed, {"v": VarLenFeature("f4")})


def test_a_batch_of_records_is_parsed_at_once() -> None:
    records = [make_example({"x": np.full((2, 2), n), "s": f"w{n}"}) for n in range(3)]
    features = {"x": FixedLenFeature((2, 2), "i4"), "s": FixedLenFeature((), str)}
    batch = next(
        iter(Dataset.from_generator(lambda: records).batch(3).map(lambda b: parse_example(b, features)))
    )
    assert batch["x"].shape == (3, 2, 2)
    assert batch["s"].tolist() == ["w0", "w1", "w2"]
