"""How workers that read on their own split a dataset."""

from __future__ import annotations

import functools
import operator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.data import SHARD_HINT, AutoShardPolicy, Dataset
from nbdist.errors import InvalidArgumentError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number}{line}\n" for line in range(3)))
    return tmp_path


def parts(dataset: Dataset, workers: int, policy: AutoShardPolicy | str) -> list[list[str]]:
    return [list(dataset.auto_shard(workers, index, policy)) for index in range(workers)]


def test_files_are_split(folder: Path) -> None:
    lines = Dataset.text_lines(f"{folder}/*.txt")
    first, second = parts(lines, 2, "file")
    assert {line[0] for line in first} == {"0", "2", "4"}
    assert {line[0] for line in second} == {"1", "3"}
    assert lines.auto_shard(2, 0, "file").shards == 2
    shuffled = Dataset.list_files(f"{folder}/*.txt", shuffle=True, seed=3).interleave(Dataset.text_lines, 2)
    for epoch in range(2):
        found = [list(shuffled.auto_shard(2, index).iterate(epoch=epoch)) for index in range(2)]
        assert sorted(found[0] + found[1]) == sorted(lines)
        assert len(found[0]) == 9


def test_auto_chooses_files_if_there_are_enough(folder: Path) -> None:
    lines = Dataset.text_lines(f"{folder}/*.txt")
    assert parts(lines, 5, "auto") == parts(lines, 5, "file")
    assert parts(lines, 6, "auto") == parts(lines, 6, "data")
    assert parts(Dataset.range(5), 2, "auto") == [[0, 2, 4], [1, 3]]
    assert parts(Dataset.range(3), 2, AutoShardPolicy.OFF) == [[0, 1, 2]] * 2


@given(count=st.integers(1, 30), workers=st.integers(1, 5))
def test_hints_split_the_elements_before_what_follows(count: int, workers: int) -> None:
    made: list[int] = []
    dataset = Dataset.range(count).shard(SHARD_HINT, SHARD_HINT).map(lambda n: made.append(int(n)) or int(n))  # type: ignore[func-returns-value]
    assert list(dataset) == list(range(count)), "without the policy the place changes nothing"
    made.clear()
    if count < workers:
        with pytest.raises(InvalidArgumentError, match=f"{count} elements cannot be split into {workers}"):
            parts(dataset, workers, "hint")
        return
    found = parts(dataset, workers, "hint")
    assert sorted(functools.reduce(operator.iadd, found, [])) == sorted(made) == list(range(count))


def test_policies_that_cannot_be_followed(folder: Path) -> None:
    lines = Dataset.text_lines(f"{folder}/*.txt")
    with pytest.raises(InvalidArgumentError, match=r"5 files cannot be split among 6 workers.*DATA"):
        lines.auto_shard(6, 0, "file")
    with pytest.raises(InvalidArgumentError, match="FILE needs one source of files"):
        Dataset.range(9).auto_shard(2, 0, "file")
    with pytest.raises(InvalidArgumentError, match="5 elements cannot be split into 6 shards"):
        Dataset.range(5).auto_shard(6, 0, "data")
    with pytest.raises(InvalidArgumentError, match=r"HINT needs one .*has 0"):
        lines.auto_shard(2, 0, "hint")
    with pytest.raises(InvalidArgumentError, match=r"no auto-shard policy 'files'; .*did you mean FILE"):
        lines.auto_shard(2, 0, "files")
    with pytest.raises(InvalidArgumentError, match="index 2 of 2"):
        lines.auto_shard(2, 2)
    with pytest.raises(InvalidArgumentError, match="both"):
        lines.shard(SHARD_HINT, 1)
