"""Shards, indexes, state files and folders of checkpoints, local and behind a URL."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from nbdist.checkpoint.folder import Folder, open_folder, split_path
from nbdist.checkpoint.index import Index, StoredSlice, StoredTensor, overlaps
from nbdist.checkpoint.shard import ID, ShardReader, write_shard
from nbdist.checkpoint.state import CheckpointState, Retention, newest, read_state, series_of
from nbdist.checkpoint.tensor_file import CHUNK
from nbdist.errors import (
    DataLossError,
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
)


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    yield open_folder(tmp_path / "new" if request.param == "local" else "memory://bucket/new")
    fsspec.filesystem("memory").store.clear()


class TestFolder:
    def test_a_file_is_read_as_it_was_written(self, folder: Folder) -> None:
        with folder.create("a.bin") as file:
            file.write(b"one")
            file.write(memoryview(b"two"))
        assert folder.files() == ["a.bin"]
        assert folder.size("a.bin") == 6
        with folder.open("a.bin") as opened:
            assert opened.read() == b"onetwo"

    def test_a_file_is_written_once(self, folder: Folder) -> None:
        with folder.create("a.bin") as file:
            file.write(b"one")
        with pytest.raises(InvalidArgumentError, match=r"a\.bin"), folder.create("a.bin") as file:
            file.write(b"two")
        assert folder.read_text("a.bin") == "one"

    def test_a_failed_file_is_removed(self, folder: Folder) -> None:
        context = folder.create("a.bin")
        context.__enter__().write(b"one")
        error = RuntimeError()
        assert not context.__exit__(RuntimeError, error, None)
        assert folder.files() == []

    def test_a_text_is_replaced(self, folder: Folder) -> None:
        folder.replace("state", "old")
        folder.replace("state", "new")
        assert folder.read_text("state") == "new"
        assert folder.files() == ["state"]

    def test_missing_files(self, folder: Folder) -> None:
        assert folder.files() == []
        assert folder.size("a") is None
        folder.remove("a")
        with pytest.raises(NotFoundError, match="/a'"):
            folder.open("a")

    def test_a_text_that_is_no_text(self, folder: Folder) -> None:
        with folder.create("a") as file:
            file.write(b"\xff\xfe")
        with pytest.raises(DataLossError, match="UTF-8"):
            folder.read_text("a")


class TestLocalFolder:
    def test_files_are_private(self, tmp_path: Path) -> None:
        folder = open_folder(tmp_path / "new")
        folder.replace("state", "x")
        assert stat.S_IMODE((tmp_path / "new" / "state").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("secret")
        (tmp_path / "link").symlink_to(tmp_path / "secret")
        folder = open_folder(tmp_path)
        with pytest.raises(NotAllowedError, match="links are not followed"):
            folder.open("link")

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "folder").mkdir()
        for name in ("pipe", "folder"):
            with pytest.raises(DataLossError, match=f"{name}' is not a regular file"):
                open_folder(tmp_path).read_text(name)

    def test_a_folder_has_a_name(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"write '\.' for the current folder"):
            open_folder("")

    def test_a_file_in_the_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        folder = open_folder(tmp_path / "file")
        with pytest.raises((InvalidArgumentError, UnavailableError), match="file"):
            folder.replace("state", "x")

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(fd: int, data: Any) -> int:
            raise OSError(28, "No space left on device")

        folder = open_folder(tmp_path)
        folder.replace("state", "old")
        monkeypatch.setattr("nbdist.checkpoint.folder.os.write", full)
        with pytest.raises(MemoryError, match="free some space"):
            folder.replace("state", "new")
        assert folder.files() == ["state"]
        assert folder.read_text("state") == "old"

    def test_file_urls_are_local(self, tmp_path: Path) -> None:
        open_folder(f"file://{tmp_path}").replace("a", "x")
        assert (tmp_path / "a").read_text() == "x"


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nosuch"):
        open_folder("nosuch://bucket/x")


@pytest.mark.parametrize("path", ["", "folder/", "folder/.hidden", "/"])
def test_paths_without_a_name(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"folder/model\.ckpt"):
        split_path(path)


ARRAYS = {
    "scalar": np.array(7),
    "empty": np.zeros((0, 3), np.float32),
    "flags": np.array([True, False, True]),
    "half": np.arange(5, dtype=np.float16),
    "transposed": np.arange(12, dtype=np.float64).reshape(3, 4).T,
    "large": np.arange(CHUNK // 2 + 7, dtype=np.float32).reshape(-1, 1),
}


class TestShard:
    def test_tensors_are_read_as_they_were_written(self, folder: Folder) -> None:
        written = write_shard(folder, "s", ARRAYS, "id")
        assert folder.size("s") == written.size
        with ShardReader(folder, "s", "id") as shard:
            for name, array in ARRAYS.items():
                into = np.empty_like(array, order="C")
                shard.read(name, array.shape, array.dtype, written.sums[name], into)
                np.testing.assert_array_equal(into, array)

    def test_the_safetensors_library_reads_them(self, tmp_path: Path) -> None:
        write_shard(open_folder(tmp_path), "s", ARRAYS, "id", stable=True)
        loaded = safetensors.numpy.load_file(tmp_path / "s")
        assert loaded.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(loaded[name], array)

    def test_a_part_is_read(self, folder: Folder) -> None:
        table = np.arange(600_000, dtype=np.float32).reshape(100_000, 6)
        written = write_shard(folder, "s", {"t": table}, "id")
        into = np.zeros((50_000, 3), np.float32)
        with ShardReader(folder, "s") as shard:
            part, to = (slice(30_000, 70_000), slice(2, 4)), (slice(5_000, 45_000), slice(1, 3))
            shard.read("t", table.shape, table.dtype, written.sums["t"], into, part, to)
        np.testing.assert_array_equal(into[5_000:45_000, 1:3], table[30_000:70_000, 2:4])
        assert not into[:5_000].any()
        assert not into[:, 0].any()

    @pytest.mark.parametrize("damage", ["flip", "cut", "header", "empty", "grown"])
    def test_damage_is_found_and_named(self, tmp_path: Path, damage: str) -> None:
        folder = open_folder(tmp_path)
        written = write_shard(folder, "s", {"w": np.arange(1000.0)}, "id")
        data = bytearray((tmp_path / "s").read_bytes())
        if damage == "flip":
            data[-1000] ^= 1
        elif damage == "cut":
            del data[-1:]
        elif damage == "header":
            data[20] ^= 0xFF
        elif damage == "grown":
            data[0:8] = (1 << 40).to_bytes(8, "little")
        else:
            data = bytearray()
        (tmp_path / "s").write_bytes(data)
        with (
            pytest.raises(DataLossError, match=str(tmp_path / "s")) as caught,
            ShardReader(folder, "s", "id") as shard,
        ):
            shard.read("w", (1000,), np.dtype(float), written.sums["w"])
        assert damage not in ("flip", "cut") or "'w'" in str(caught.value)

    def test_a_shard_of_another_checkpoint(self, folder: Folder) -> None:
        write_shard(folder, "s", {"w": np.zeros(3)}, "other")
        with pytest.raises(DataLossError, match="belongs to checkpoint 'other'"):
            ShardReader(folder, "s", "mine")

    def test_another_shape_or_name(self, folder: Folder) -> None:
        written = write_shard(folder, "s", {"w": np.zeros(3)}, "id")
        with ShardReader(folder, "s", "id") as shard:
            with pytest.raises(DataLossError, match="no tensor 'v'; it has w"):
                shard.read("v", (3,), np.dtype(float), 0)
            with pytest.raises(DataLossError, match="the index says"):
                shard.read("w", (4,), np.dtype(float), written.sums["w"])

    def test_a_dtype_that_the_format_lacks(self, folder: Folder) -> None:
        with pytest.raises(InvalidArgumentError, match="'w' is complex128"):
            write_shard(folder, "s", {"w": np.zeros(3, complex)}, "id")
        assert folder.files() == []

    def test_the_id_is_in_the_header(self, tmp_path: Path) -> None:
        write_shard(open_folder(tmp_path), "s", {"w": np.zeros(3)}, "id")
        with safetensors.safe_open(tmp_path / "s", "np") as file:
            assert file.metadata() == {ID: "id"}


shapes = st.lists(st.integers(0, 6), min_size=0, max_size=3).map(tuple)


@st.composite
def cut_tensors(draw: Callable[..., Any]) -> tuple[StoredTensor, np.ndarray[Any, Any], dict[str, Any]]:
    """Return a tensor cut into slices along one axis, its values, and those of each slice."""
    shape = draw(shapes)
    whole = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    if not shape:
        return StoredTensor("float32", (), (StoredSlice("f", "0", (), (), 0),)), whole, {"0": whole}
    axis = draw(st.integers(0, len(shape) - 1))
    cuts = sorted(draw(st.lists(st.integers(0, shape[axis]), max_size=3)))
    slices, values = [], {}
    for n, (low, high) in enumerate(zip([0, *cuts], [*cuts, shape[axis]], strict=True)):
        place = (*(slice(None),) * axis, slice(low, high))
        values[str(n)] = whole[place]
        start = tuple(low if a == axis else 0 for a in range(len(shape)))
        slices.append(StoredSlice("f", str(n), start, whole[place].shape, 0))
    return StoredTensor("float32", shape, tuple(slices)), whole, values


@given(cut=cut_tensors(), data=st.data())
def test_any_part_is_put_together_from_any_slices(cut: Any, data: st.DataObject) -> None:
    tensor, whole, values = cut
    start = tuple(data.draw(st.integers(0, n)) for n in tensor.shape)
    shape = tuple(data.draw(st.integers(0, n - s)) for n, s in zip(tensor.shape, start, strict=True))
    found = np.full(shape, -1, np.float32)
    for overlap in overlaps(tensor, start, shape):
        found[overlap.to] = values[overlap.stored.name][overlap.part]
    expected = whole[tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))]
    np.testing.assert_array_equal(found, expected)


def an_index() -> Index:
    slices = tuple(StoredSlice("a.0", f"w{i}", (2 * i,), (2,), i) for i in range(2))
    return Index("id", 3, 12.5, {"a.0": 100}, {"w": StoredTensor("float32", (4,), slices)})


class TestIndex:
    def test_it_is_read_as_it_was_written(self) -> None:
        assert Index.from_text(an_index().to_text(), "x") == an_index()

    @given(data=st.data())
    def test_no_changed_text_is_read(self, data: st.DataObject) -> None:
        text = an_index().to_text()
        at = data.draw(st.integers(0, len(text) - 1))
        changed = text[:at] + data.draw(st.characters(codec="ascii")) + text[at + 1 :]
        try:
            same = Index.from_text(changed, "folder/x") == an_index()  # another blank, say
        except DataLossError as error:
            same = "folder/x" in str(error)
        assert same

    @pytest.mark.parametrize(
        "change",
        [
            {"files": {"../a": 100}},
            {"files": {"/a": 100}},
            {"files": {".a": 100}},
            {"files": {}},
            {"step": "x"},
            {"tensors": {"w": {"dtype": "object", "shape": [4], "slices": []}}},
            {"tensors": {"w": {"dtype": "float32", "shape": [4], "slices": []}}},
            {"tensors": {"w": {"dtype": "float32", "shape": [-4], "slices": []}}},
            {"tensors": {"w": {"dtype": "float32", "shape": [2**62, 0], "slices": []}}},
            {"tensors": {"w": {"dtype": "float32", "shape": [1] * 65 + [0], "slices": []}}},
            {"tensors": {f"w{i}": {"dtype": "float32", "shape": [0], "slices": []} for i in range(100_001)}},
            {"tensors": [1]},
        ],
        ids=lambda change: f"{change!r:.60}",
    )
    def test_a_hostile_index_is_refused(self, change: dict[str, Any]) -> None:
        outer = json.loads(an_index().to_text())
        body = json.dumps(json.loads(outer["index"]) | change)
        text = json.dumps(outer | {"index": body, "crc32": zlib.crc32(body.encode())})
        with pytest.raises(DataLossError, match="x"):
            Index.from_text(text, "x")

    def test_too_many_parts_are_counted_before_they_are_parsed(self) -> None:
        body = '{"dtype":' * 100_001  # not JSON: what is parsed is refused for that
        text = json.dumps(
            {"format": "nbdist checkpoint 1", "index": body, "crc32": zlib.crc32(body.encode())}
        )
        with pytest.raises(DataLossError, match="it lists 100,001 parts of tensors, and 100,000 at most"):
            Index.from_text(text, "x")

    def test_slices_that_overlap_are_refused(self) -> None:
        def table(*starts: tuple[int, int]) -> str:
            slices = tuple(StoredSlice("a.0", f"w{i}", at, (1, 2), i) for i, at in enumerate(starts))
            return Index(
                "id", 3, 12.5, {"a.0": 1000}, {"w": StoredTensor("float32", (10, 2), slices)}
            ).to_text()

        rows = [(n, 0) for n in range(10)]
        assert len(Index.from_text(table(*rows), "x").tensors["w"].slices) == 10
        with pytest.raises(DataLossError, match="overlap"):
            Index.from_text(table(*rows[:9], (4, 0)), "x")


class TestState:
    def test_it_is_read_as_it_was_written(self, folder: Folder) -> None:
        paths = (folder.path("m-1"), folder.path("m-2"))
        state = CheckpointState(paths[1], paths, (1.0, 2.0), 0.5)
        folder.replace("checkpoint", state.to_text())
        assert read_state(folder) == state

    def test_what_is_no_file_is_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / "m-1.index").write_text(Index("id", 1, 1.0, {}, {}).to_text())
        state = CheckpointState("m-3", ("m-1", "m-2", "m-3"), (1.0, 2.0, 3.0), 0.0)
        (tmp_path / "checkpoint").write_text(state.to_text())
        (tmp_path / "m-2.index").mkdir()
        os.mkfifo(tmp_path / "m-3.index")
        assert newest(open_folder(tmp_path)) == "m-1"

    def test_there_may_be_none(self, folder: Folder) -> None:
        assert read_state(folder) is None

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "x"}', "\0"])
    def test_a_torn_one_is_an_error(self, folder: Folder, text: str) -> None:
        folder.replace("checkpoint", text)
        with pytest.raises(DataLossError, match="checkpoint"):
            read_state(folder)


def test_a_kept_period_keeps_one_checkpoint() -> None:
    rule = Retention(1, 1.0, begun=0.0)
    doomed = [rule.add(f"s{n}", n * 1200.0) for n in range(8)]
    assert [name for names in doomed for name in names] == ["s0", "s1", "s2", "s4", "s5"]
    assert rule.kept == [("s7", 8400.0)]


def test_all_are_kept_without_a_limit() -> None:
    rule = Retention(0, 1.0, begun=0.0)
    assert not any(rule.add(f"s{n}", n) for n in range(100))


def test_names_without_their_step() -> None:
    assert [series_of(name) for name in ("m.ckpt-1", "m-2.ckpt", "m")] == ["m.ckpt", "m-2.ckpt", "m"]


def test_descriptors_are_closed(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    write_shard(folder, "s", ARRAYS, "id")
    with pytest.raises(DataLossError):
        ShardReader(folder, "s", "other")
    assert len(os.listdir("/proc/self/fd")) == before
