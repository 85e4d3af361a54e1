"""`cache`: the elements of the first full pass, in memory or in a file, for all later ones.

A cache is complete only after a full pass: one that ends early leaves nothing. What is upstream always makes
its first epoch, whichever pass fills the cache, so that a training that is continued finds the same elements.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbdist.data.blocks import Block, Blocks, Pass
from nbdist.data.encoding import packed, unpacked
from nbdist.data.fingerprint import fingerprint
from nbdist.data.steps import RANDOM, Step, all_steps, comparable
from nbdist.data.tfrecord import records
from nbdist.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, StorageError
from nbdist.record_frame import framed

_DIGEST = re.compile(r'"digest": "\w+"')


class MemoryCache:
    """Keeps blocks, of which those over arrays are row numbers only."""

    def __init__(self, upstream: Blocks) -> None:
        self._upstream = upstream
        self._complete: dict[Any, list[Block]] = {}

    def __call__(self, run: Pass) -> Iterator[Block]:
        """Yield the blocks that are kept, or make and keep them."""
        key = run.salt, run.readers, run.hint
        found = self._complete.get(key)
        if found is not None:
            yield from found
            return
        kept: list[Block] = []
        for block in self._upstream(first_epoch(run)):
            kept.append(block)
            yield block
        self._complete[key] = kept

    def __getstate__(self) -> dict[str, Any]:
        return {"_upstream": self._upstream, "_complete": {}}


class FileCache:
    """Keeps elements in a file, which later runs use too if the pipeline before it is the same."""

    def __init__(self, upstream: Blocks, path: str, steps: Sequence[Step]) -> None:
        self._upstream, self._path = upstream, Path(path)
        self._made_of = comparable(steps)
        self._digest = ""  # of the functions and arrays before it, at its first pass
        self._random = any(step[0] in RANDOM for step in all_steps(steps))

    def __call__(self, run: Pass) -> Iterator[Block]:
        """Yield the elements in the file, or make them and write it."""
        self._digest = self._digest or fingerprint(self._upstream)
        about: dict[str, Any] = {"nbdist cache": 2, "steps": self._made_of, "digest": self._digest}
        if self._random:
            about["salt"] = list(run.salt)
        if run.readers or run.hint:
            about["part"] = [run.readers, run.hint]
        head = json.dumps(about, default=str)
        if self._path.exists():
            yield from self._read(head, run)
        else:
            yield from self._write(head, run)

    def _read(self, head: str, run: Pass) -> Iterator[Block]:
        if not self._path.is_file():  # to read a pipe would wait for its other end
            raise InvalidArgumentError(
                f"cache: {self._path} is a folder, a device or a pipe; expected the path of a file"
            )
        try:
            yield from self._kept(head, run)
        except DataLossError as error:
            raise DataLossError(
                f"cache file {self._path} is cut or damaged, or of something else: "
                f"{str(error).partition('. ')[0]}. Delete it, and the next pass makes it again"
            ) from None

    def _kept(self, head: str, run: Pass) -> Iterator[Block]:
        whole = replace(run, readers=None, hint=None)
        kept = itertools.chain.from_iterable(records([os.fspath(self._path)], "", "raise", whole))
        theirs = next(kept, b"").decode(errors="replace")
        if theirs != head:
            what = f"of another pipeline or worker: {theirs:.300}, and this one is {head:.300}"
            if _DIGEST.sub("", theirs) == _DIGEST.sub("", head):
                what = (
                    "of a pipeline with the same steps whose functions (or what they use), arrays or "
                    "settings were others"
                )
            raise FailedPreconditionError(
                f"cache file {self._path} is {what}. Delete it, or give each pipeline (and, after a shuffle, "
                "each worker) its own"
            )
        for record in kept:
            yield [unpacked(record)]

    def _write(self, head: str, run: Pass) -> Iterator[Block]:
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}.{id(run):x}.draft")
        with self._explained():
            file = draft.open("wb")
        try:
            with self._explained():
                file.write(framed(head.encode()))
            for block in self._upstream(first_epoch(run)):
                with self._explained():
                    file.writelines(framed(b"".join(packed(element))) for element in block)
                yield block
            with self._explained():
                file.close()
                draft.replace(self._path)
        finally:
            with contextlib.suppress(OSError):
                file.close()  # which may fail, on a full disk
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"cache file {self._path} cannot be written: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_digest": ""}


def first_epoch(run: Pass) -> Pass:
    """Return a pass that makes the first epoch, whichever one ``run`` is."""
    return replace(run, openings={}, first=0, buffers=0)
