"""How workers that read on their own split a dataset. The idea and the names are TensorFlow's."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import replace

from nbdist.data.blocks import Block, Blocks, Pass, shard, too_few_files
from nbdist.errors import InvalidArgumentError, choices


class AutoShardPolicy(enum.Enum):
    """What `Dataset.with_auto_shard` and `Dataset.auto_shard` split among workers.

    OFF: nothing, each worker reads everything. FILE: the list of files. DATA: the elements, of which each
    worker makes all and keeps its own. AUTO: FILE if there are at least as many files as workers, else DATA.
    HINT: the elements at the place of ``.shard(SHARD_HINT, SHARD_HINT)``, so that what follows is made for
    own elements only.
    """

    OFF = "off"
    AUTO = "auto"
    FILE = "file"
    DATA = "data"
    HINT = "hint"


SHARD_HINT = "shard hint"
"""Stands for both arguments of `Dataset.shard` where policy HINT is to put them."""


def policy_of(value: AutoShardPolicy | str) -> AutoShardPolicy:
    """Return a policy by its name.

    >>> policy_of("FILE")
    <AutoShardPolicy.FILE: 'file'>
    """
    if isinstance(value, AutoShardPolicy):
        return value
    if not isinstance(value, str) or value.upper() not in AutoShardPolicy.__members__:
        raise InvalidArgumentError(
            f"no auto-shard policy {value!r}; {choices(value, AutoShardPolicy.__members__)}"
        )
    return AutoShardPolicy[value.upper()]


def chosen(policy: AutoShardPolicy, workers: int, files: int | None, hints: int) -> AutoShardPolicy:
    """Return OFF, FILE, DATA or HINT; raise InvalidArgumentError if the policy cannot be followed.

    ``files`` is how many there are, None if the source is no files; ``hints`` how many places are marked.
    """
    if policy is AutoShardPolicy.AUTO:
        enough = files is not None and files >= workers
        return AutoShardPolicy.FILE if enough else AutoShardPolicy.DATA
    if policy is AutoShardPolicy.FILE:
        if files is None:
            raise InvalidArgumentError(
                "auto-shard policy FILE needs one source of files (text_lines, csv, tfrecords, parquet, "
                "images, or list_files with interleave); use DATA for this dataset"
            )
        if files < workers:
            raise too_few_files(files, workers)
    if policy is AutoShardPolicy.HINT and hints != 1:
        raise InvalidArgumentError(
            f"auto-shard policy HINT needs one .shard(SHARD_HINT, SHARD_HINT), and the dataset has {hints}"
        )
    return policy


def by_file(upstream: Blocks, workers: int, index: int, run: Pass) -> Iterator[Block]:
    """Yield what the ``index``-th part of the files has."""
    return upstream(replace(run, readers=(workers, index)))


def by_hint(upstream: Blocks, workers: int, index: int, run: Pass) -> Iterator[Block]:
    """Yield what follows from the ``index``-th part of the elements at the marked place."""
    return upstream(replace(run, hint=(workers, index)))


def hinted(upstream: Blocks, run: Pass) -> Iterator[Block]:
    """Yield the elements, or this worker's part of them: the marked place."""
    return upstream(run) if run.hint is None else shard(upstream, *run.hint, replace(run, hint=None))
