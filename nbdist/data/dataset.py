"""`Dataset`: a lazy description of a source and its transforms; iterating runs them."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nbdist.data import (
    arguments,
    blocks,
    elements,
    files,
    foreign,
    grouping,
    parallel,
    processes,
    text,
    tfrecord,
)
from nbdist.data import columns as tables
from nbdist.data import images as image_folders
from nbdist.data import policy as policy_rules
from nbdist.data.arguments import whole_number
from nbdist.data.autotune import AHEAD, AUTOTUNE, FIRST_BUFFER, Auto, BufferTuner, CallsTuner, pays_ahead
from nbdist.data.blocks import ON_ERROR, Blocks, Pass, Shuffle, Skipped
from nbdist.data.bottleneck import InputPipeline
from nbdist.data.cached import FileCache, MemoryCache
from nbdist.data.example import Features, checked_features, parsed_records
from nbdist.data.files import Paths
from nbdist.data.meter import Execution, Measured, Meter, name_of, stages_of
from nbdist.data.policy import SHARD_HINT, AutoShardPolicy
from nbdist.data.rows import ArrayRows, Rows
from nbdist.data.steps import Inner, Step, tokens
from nbdist.data.structure import ElementSpec, leaves_of, rebuild, spec_of
from nbdist.errors import InvalidArgumentError
from nbdist.machine import count_cores


@dataclass(frozen=True)
class _Stage:
    """The pipeline so far: how its blocks are made, what they are made of, and what is known of it."""

    blocks: Blocks
    rows: Rows | None  # what the row numbers in the blocks stand for; None if the blocks hold elements
    count: float | None  # elements of one pass: inf for endless, None for unknown
    steps: tuple[Step, ...]  # how it came about, for `recipe`
    source: ArrayRows | None = None  # the arrays that it came from
    spec: Any = None
    shards: int = 1  # of how many parts this is one
    files: Callable[[], int] | None = None  # counts the files of its source, if it is one source of files
    execution: Execution | None = None  # how it works
    policy: AutoShardPolicy | None = None  # how workers divide it, if that was asked for
    apart: bool = False  # whether it has one worker's pieces of global batches

    def __post_init__(self) -> None:
        if not isinstance(self.blocks, Measured):  # a pass with a meter measures them
            made = Measured(self.blocks, self.steps[-1], self.execution)
            object.__setattr__(self, "blocks", made)


class Dataset:
    """A sequence of elements (arrays, or tuples and dicts of them), in the engine that iterates it.

    Transforms return new datasets and cost nothing; each ``for`` over a dataset is one pass (epoch). Over
    arrays, everything up to and with `batch` works on row numbers: a batch is one gather, or a view of the
    arrays if nothing was shuffled.

    >>> x, y = np.arange(6.0), np.arange(6)
    >>> for batch_x, batch_y in Dataset.from_arrays(x, y).batch(4):
    ...     print(batch_x, batch_y)
    [0. 1. 2. 3.] [0 1 2 3]
    [4. 5.] [4 5]
    """

    def __init__(self, stage: _Stage, salt: tuple[int, ...] = ()) -> None:
        self._stage = stage
        self._salt = salt
        self._openings: dict[int, int] = {}
        self._skipped = Skipped()
        self._found_spec: Any = None

    # Sources

    @classmethod
    def from_arrays(cls, *arrays: Any) -> Dataset:
        """Return rows of arrays as a dataset, without a copy.

        ``arrays`` have one length; give several arrays, or one tuple or dict of them, whose structure the
        elements have. Raises InvalidArgumentError for arrays of different lengths.

        >>> list(Dataset.from_arrays({"x": np.arange(2), "y": np.ones(2)}))[1]
        {'x': np.int64(1), 'y': np.float64(1.0)}
        """
        rows = ArrayRows(arrays[0] if len(arrays) == 1 else arrays)
        spec = rebuild(rows.structure, [ElementSpec(array.shape[1:], array.dtype) for array in rows.arrays])
        stage = _Stage(
            partial(blocks.whole, range(rows.count)), rows, rows.count, (("from_arrays",),), rows, spec
        )
        return cls(stage)

    from_tensor_slices = from_arrays

    @classmethod
    def from_generator(cls, make: Callable[[], Iterable[Any]]) -> Dataset:
        """Return a dataset of the elements that ``make()`` yields; it is called once for each pass.

        >>> list(Dataset.from_generator(lambda: iter([1, 2])).batch(2))
        [array([1, 2])]
        """
        if not callable(make):
            raise InvalidArgumentError(
                f"from_generator needs a function that returns a fresh iterable for each pass, not a "
                f"{type(make).__name__}; pass the generator function itself, without calling it"
            )
        return cls(_Stage(elements.Generated(make), None, None, (("from_generator",),)))

    @classmethod
    def list_files(cls, pattern: Paths, shuffle: bool = False, seed: int | None = None) -> Dataset:
        """Return the paths of files as a dataset of text.

        - ``pattern``: a path, a folder, a pattern (``*``, ``**``), an fsspec URL with or without one, or
          several of these; the files of a pattern or folder are in sorted order
        - ``shuffle``: whether each pass has another order, which ``seed`` fixes

        Raises NotFoundError if there is no file, here and not in a pass.

        >>> import nbdist.data, pathlib
        >>> folder = pathlib.Path(nbdist.data.__file__).parent
        >>> [pathlib.Path(path).name for path in Dataset.list_files(folder / "s*.py")]
        ['shares.py', 'steps.py', 'structure.py']
        """
        names = files.named(pattern)
        rows = ArrayRows(np.array(files.expand(names)))
        spec = ElementSpec((), rows.arrays[0].dtype)
        return cls._of_paths(rows, ("list_files", *names), spec, shuffle, seed)

    @classmethod
    def _of_paths(cls, rows: ArrayRows, step: Step, spec: Any, shuffle: bool, seed: int | None) -> Dataset:
        made = partial(files.listed, rows.count)
        found = cls(_Stage(made, rows, rows.count, (step,), None, spec, files=partial(int, rows.count)))
        return found.shuffle(rows.count, seed) if shuffle else found

    @classmethod
    def text_lines(cls, paths: Paths, *, compression: str | None = None, encoding: str = "utf-8") -> Dataset:
        """Return the lines of text files as text, without their ends.

        - ``paths``: a path, folder, pattern or fsspec URL, or several, as for :meth:`list_files`
        - ``compression``: "gzip", "zlib", "zstd" (with ``nbdist[zstd]``), "bz2", "xz", "" for none; None goes
          by each file's ending: .gz, .zlib, .zst, .bz2, .xz

        A pass raises NotFoundError for a path without files, StorageError for one that cannot be read, and
        DataLossError for one that is not ``encoding`` text or is damaged.
        """
        names = files.named(paths)
        files.check_compression(compression)
        codec = arguments.encoding_of("text_lines: encoding", encoding)
        made = partial(text.lines, names, compression, codec)
        return cls._of_files(made, ("text_lines", *names), ElementSpec((), np.dtype(str)))

    @classmethod
    def csv(
        cls,
        paths: Paths,
        columns: text.Columns | None = None,
        *,
        label: str | None = None,
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        defaults: Mapping[str, Any] | None = None,
        compression: str | None = None,
        encoding: str = "utf-8",
        on_error: str = "raise",
    ) -> Dataset:
        """Return the rows of CSV files as dicts of one value for each column.

        - ``paths``: a path, folder, pattern or fsspec URL, or several
        - ``columns``: names of the columns to keep, or their dtypes by name; None keeps all. Types that are
          not given follow from the first 1,000 rows of the first file: int64, uint64, float64, or text
          (also of whole numbers that none of these has)
        - ``label``: makes (x, y) of each row, for ``fit``: y is the column of this name, x an array of the
          others, which are numbers, in the order of ``columns``
        - ``header``: whether each file begins with a line of names, or the names if no file does; with
          False they are column0, column1, ...
        - ``delimiter``: the character between two fields
        - ``defaults``: values of empty fields by column; without one an empty field is nan in a column of
          floats, "" in one of text, and an error in one of whole numbers
        - ``compression``, ``encoding``: as for :meth:`text_lines`
        - ``on_error``: "raise", or "skip" to leave out and count rows that cannot be read

        A pass raises DataLossError with file, line and column for a row with a field too many or too few, or
        of another type; InvalidArgumentError for a column that a file lacks.
        """
        names = files.named(paths)
        if label is not None and columns is not None and not isinstance(columns, Mapping):
            columns = list(dict.fromkeys([*arguments.names("csv: columns", columns), label]))
        rows = text.CsvRows(
            names, columns, header, delimiter, defaults or {}, compression, encoding, on_error
        )
        return cls._of_files(rows, ("csv", *names))._labelled(label)

    @classmethod
    def tfrecords(
        cls,
        paths: Paths,
        features: Features | None = None,
        *,
        compression: str | None = None,
        on_error: str = "raise",
    ) -> Dataset:
        """Return the records of TFRecord files: bytes, or their named features as dicts.

        - ``paths``: a path, folder, pattern or fsspec URL, or several
        - ``features``: what to parse of each record's Example, as for :func:`nb.data.parse_example`; None
          leaves the bytes, to be parsed in :meth:`map` by as many threads as it has
        - ``compression``: as for :meth:`text_lines`
        - ``on_error``: "raise", or "skip" to leave out and count records that are damaged or cannot be parsed

        A pass raises DataLossError with file, record number and offset for a cut or damaged record.
        """
        names, how = files.named(paths), arguments.one_of("on_error", on_error, ON_ERROR)
        files.check_compression(compression)
        made: Blocks = partial(tfrecord.records, names, compression, how)
        if features is not None:
            made = partial(parsed_records, names, compression, how, checked_features(features))
        return cls._of_files(made, ("tfrecords", *names))

    @classmethod
    def parquet(
        cls,
        paths: Paths,
        columns: Sequence[str] | None = None,
        *,
        label: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        on_error: str = "raise",
    ) -> Dataset:
        """Return the rows of Parquet files as dicts of one value for each column.

        - ``paths``: a path, folder, pattern or fsspec URL, or several
        - ``columns``: names of the columns to read; None reads all. Columns of lists are arrays
        - ``label``: makes (x, y) of each row, as for :meth:`csv`
        - ``defaults``: values for nulls by column; without one a null is nan in a column of floats, and an
          error in others, of text too (``defaults={"name": ""}``)
        - ``on_error``: "raise", or "skip" to leave out and count rows with such a null, and what is left of a
          file that is damaged

        A pass raises MissingExtra without ``nbdist[parquet]``, DataLossError for a damaged file, and
        InvalidArgumentError for a column that a file lacks.
        """
        names = files.named(paths)
        wanted = None if columns is None else arguments.names("parquet: columns", columns)
        if label is not None and wanted is not None:
            wanted = list(dict.fromkeys([*wanted, label]))
        given = arguments.named_values("parquet: defaults", defaults or {}, "{'age': 0}")
        made = partial(
            tables.parquet_rows, names, wanted, given, arguments.one_of("on_error", on_error, ON_ERROR)
        )
        return cls._of_files(made, ("parquet", *names))._labelled(label)

    @classmethod
    def images(
        cls,
        folder: str | os.PathLike[str],
        size: Sequence[int] | int | None = None,
        *,
        labels: bool = True,
        mode: str = "RGB",
        shuffle: bool = False,
        seed: int | None = None,
        num_parallel_calls: int | Auto | None = None,
        on_error: str = "raise",
    ) -> Dataset:
        """Return the images of a folder as (image, label), with a folder for each class in it.

        - ``folder``: a local path or an fsspec URL; ``folder/CLASS/image.png``, of any format of Pillow. A
          label is the number of the class's name in sorted order, int64
        - ``size``: (height, width) to resize to, or one number for both; None leaves images as they are
        - ``labels``: with False, images without labels, of all folders below
        - ``mode``: "RGB", "RGBA" or "L" for uint8, "I;16" for uint16 of grayscale images with 16 bits;
          images are (height, width, channels). Others are converted as Pillow does, except for grayscale of
          more than 8 bits, which is refused by the modes of uint8. Orientation of EXIF is not applied
        - ``shuffle``, ``seed``: whether paths are shuffled before they are decoded, with another order in
          each pass; this is cheaper than a shuffle of images
        - ``num_parallel_calls``: threads that decode, as for :meth:`map`
        - ``on_error``: "raise", or "skip" to leave out and count images that cannot be decoded

        Raises NotFoundError for a folder without images; a pass raises DataLossError, with the file, for one
        that cannot be decoded.
        """
        shape = image_folders.image_size(size)
        arguments.one_of("images: mode", mode, image_folders.MODES)
        paths, classes, _ = image_folders.find_images(folder, labels)
        given = (np.array(paths), np.array(classes)) if labels else np.array(paths)
        step = ("images", os.fspath(folder), repr(shape), mode, bool(labels))
        found = cls._of_paths(ArrayRows(given), step, None, shuffle, seed)

        def decode(path: Any, *label: Any) -> Any:
            image = image_folders.decode(path, shape, mode)
            return (image, *label) if label else image

        return found.map(decode, num_parallel_calls, on_error=on_error)

    @classmethod
    def from_frame(cls, frame: Any, *, label: str | None = None) -> Dataset:
        """Return the rows of a frame of pandas, polars or Arrow as dicts, without a copy of numbers.

        - ``frame``: the frame
        - ``label``: makes (x, y) of each row, as for :meth:`csv`

        Raises InvalidArgumentError for a column of objects that are neither numbers nor text, and for one
        that lacks a value and is not of floats, in which it is nan.

        >>> import pandas
        >>> list(Dataset.from_frame(pandas.DataFrame({"n": [1, 2], "kind": ["a", "b"]})))[1]
        {'n': np.int64(2), 'kind': np.str_('b')}
        """
        columns = tables.frame_columns(frame)
        if label is None:
            return cls.from_arrays(columns)
        return cls.from_arrays(*tables.pair(columns, label, "frame[[...]] has the columns that are named"))

    @classmethod
    def from_huggingface(cls, dataset: Any) -> Dataset:
        """Return the rows of a dataset of Hugging Face's ``datasets`` as dicts of arrays.

        - ``dataset``: one split. One in memory or on disk is read by row number, a batch at once; a
          streaming one (IterableDataset) in its own order. Columns have the dtypes of its features, and
          are those of ``set_format(columns=)``. One with a transform (``with_transform``) or a format
          ("numpy", "torch", "jax", ...) is read row by row, as it returns them

        Raises InvalidArgumentError for a format whose rows are frames; a pass, for a null in a column that
        is not of floats.
        """
        rows = foreign.huggingface_rows(dataset)
        return cls._of_foreign("from_huggingface", rows, dataset, foreign.streamed_rows)

    @classmethod
    def from_torch(cls, source: Any) -> Dataset:
        """Return the elements of a PyTorch Dataset, or the batches of a DataLoader, as arrays.

        - ``source``: a Dataset with a length is read by row number, so it is shuffled here and not by a
          sampler; an IterableDataset or a DataLoader in its own order, for which PyTorch's seeds hold.
          Tensors become arrays (on the CPU, without a copy), lists tuples, images of Pillow arrays
        """
        return cls._of_foreign("from_torch", foreign.torch_rows(source), source, foreign.iterated)

    @classmethod
    def _of_foreign(
        cls,
        name: str,
        rows: foreign.Indexed | None,
        source: Any,
        read_in_order: Callable[[Any], Iterator[Any]],
    ) -> Dataset:
        if rows is None:
            read = elements.Generated(partial(read_in_order, source))
            return cls(_Stage(read, None, None, ((name,),)))
        return cls(_Stage(partial(blocks.whole, range(rows.count)), rows, rows.count, ((name,),)))

    def _labelled(self, label: str | None) -> Dataset:
        """Return (x, y) of rows of named values; the same dataset without a label."""
        if label is None:
            return self
        if not isinstance(label, str):
            raise InvalidArgumentError(f"label is {label!r:.80}; expected the name of a column")
        return self._then(("label", label), partial(tables.pairs, self._stage.blocks, label), spec=None)

    @classmethod
    def _of_files(cls, made: Blocks, step: Step, spec: Any = None) -> Dataset:
        count = partial(files.count, step[1:])
        return cls(_Stage(made, None, None, (step,), spec=spec, files=count))

    @classmethod
    def range(cls, *bounds: int) -> Dataset:
        """Return a dataset of whole numbers.

        ``bounds``: (stop), (start, stop) or (start, stop, step), as for Python's ``range``. Raises
        InvalidArgumentError for others, and for a step of 0.

        >>> list(Dataset.range(10).shard(5, 2))
        [np.int64(2), np.int64(7)]
        """
        if not 1 <= len(bounds) <= 3:
            raise InvalidArgumentError(
                f"range has {len(bounds)} bounds; expected (stop), (start, stop[, step])"
            )
        given = [whole_number("range: a bound", bound) for bound in bounds]
        if given[2:] == [0]:
            raise InvalidArgumentError(
                f"range{bounds} has the step 0; expected a whole number above or below 0"
            )
        try:
            numbers = np.arange(*given)
        except (ValueError, MemoryError, OverflowError):
            raise InvalidArgumentError(
                f"range{bounds} has more numbers than fit in memory; make them with from_generator"
            ) from None
        return cls.from_arrays(numbers)

    # Transforms

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset:
        """Return the elements in random order, drawn from a buffer of ``buffer_size`` elements.

        - ``buffer_size``: 1 or more; with one as large as the data, a pass is a uniform permutation
        - ``seed``: fixes the sequence of passes: the n-th pass of an equal dataset has the same order; a
          whole number of 0 or more, or None
        - ``reshuffle_each_iteration``: whether each pass has another order

        >>> sorted(Dataset.range(5).shuffle(5, seed=7))
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3), np.int64(4)]
        """
        size = whole_number("shuffle: buffer_size", buffer_size, 1)
        given = None if seed is None else whole_number("shuffle: seed", seed, 0)
        return self._shuffled(Shuffle(size, given, bool(reshuffle_each_iteration), secrets.randbits(63)))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Return batches of ``batch_size`` elements (1 or more) along a new first axis.

        The last one may be smaller; ``drop_remainder`` drops it then. Raises InvalidArgumentError, in a pass,
        for elements of different shapes.

        >>> [batch.tolist() for batch in Dataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]
        """
        size = whole_number("batch: batch_size", batch_size, 1)
        stage = self._stage
        count = self._batches(size, bool(drop_remainder))
        length = size if drop_remainder or stage.count == math.inf else None
        spec = stage.spec and rebuild(
            stage.spec, [replace(leaf, shape=(length, *leaf.shape)) for leaf in leaves_of(stage.spec)]
        )
        made = partial(elements.batch, stage.blocks, stage.rows, size, drop_remainder)
        return self._then(("batch", size, bool(drop_remainder)), made, rows=None, count=count, spec=spec)

    def repeat(self, count: int | None = None) -> Dataset:
        """Return the elements ``count`` times (0 or more), or without end for None.

        >>> len(list(Dataset.range(3).repeat(2)))
        6
        """
        times = None if count is None else whole_number("repeat: count", count, 0)
        once = self._stage.count
        if once == 0 or times == 0:
            total: float | None = 0
        else:
            total = None if once is None else once * (math.inf if times is None else times)
        if times is None and once is None:
            total = math.inf
        return self._then(("repeat", times), partial(blocks.repeat, self._stage.blocks, times), count=total)

    def shard(self, num_shards: int | str, index: int | str) -> Dataset:
        """Return every ``num_shards``-th element, from ``index`` on.

        Both may be ``nb.data.SHARD_HINT``: :meth:`auto_shard` with policy HINT puts the worker's numbers
        there, and without it the place changes nothing. Raises `InvalidArgumentError` if there are fewer
        elements than shards: here if their number is known, else at the end.
        """
        if num_shards == SHARD_HINT or index == SHARD_HINT:
            if num_shards != index:
                raise InvalidArgumentError("shard: give SHARD_HINT for both num_shards and index")
            return self._then(("shard_hint",), partial(policy_rules.hinted, self._stage.blocks))
        shards = whole_number("shard: num_shards", num_shards, 1)
        own = whole_number("shard: index", index, 0)
        if own >= shards:
            raise InvalidArgumentError(f"shard: index {own} of {shards} shards; the last is {shards - 1}")
        count = self._stage.count
        if count is not None and count < shards:
            raise blocks.too_few(int(count), shards)
        if count is not None and count != math.inf:
            count = -(-(count - own) // shards)
        parts = self._stage.shards * shards
        made = partial(blocks.shard, self._stage.blocks, shards, own)
        return self._then(("shard", shards, own), made, count=count, shards=parts)

    def auto_shard(
        self, num_workers: int, index: int, policy: AutoShardPolicy | str = AutoShardPolicy.AUTO
    ) -> Dataset:
        """Return the part of one of several workers that read on their own.

        - ``num_workers``, ``index``: how many workers there are, and which one this is, from 0 on
        - ``policy``: an AutoShardPolicy or its name: "off", "file", "data", "auto" or "hint"

        For workers that read on their own in a loop of one's own. In ``fit`` and ``distribute_dataset`` the
        workers do it themselves, by :meth:`with_auto_shard`. Raises InvalidArgumentError for fewer files
        (FILE) or elements (DATA, HINT) than workers: here if the number is known, else at the end of a pass.

        >>> [int(n) for n in Dataset.range(5).auto_shard(2, 1, "data")]
        [1, 3]
        """
        workers = whole_number("auto_shard: num_workers", num_workers, 1)
        own = whole_number("auto_shard: index", index, 0)
        if own >= workers:
            raise InvalidArgumentError(
                f"auto_shard: index {own} of {workers} workers; the last is {workers - 1}"
            )
        stage, found = self._stage, self._resolved(policy, workers)
        if found is AutoShardPolicy.OFF or workers == 1:
            return self
        if found is AutoShardPolicy.DATA:
            return self.shard(workers, own)
        split = policy_rules.by_file if found is AutoShardPolicy.FILE else policy_rules.by_hint
        step = ("auto_shard", found.value, workers, own)
        made = partial(split, stage.blocks, workers, own)
        return self._then(step, made, count=None, files=None, shards=stage.shards * workers)

    def with_auto_shard(self, policy: AutoShardPolicy | str) -> Dataset:
        """Return the same dataset, which workers that train on it divide among them.

        - ``policy``: an AutoShardPolicy or its name: "off", "file", "data", "auto" or "hint"

        It says what each worker reads under a strategy: in ``fit``, with ``strategy.distribute_dataset`` and
        ``distribute_datasets_from_function``. Replicas that step together make each global batch of one
        piece from each worker's own data, with "data" of shares of the same batch; that is also what they do
        without a policy. Workers that step independently each read their part. One process reads everything.

        Training raises InvalidArgumentError for fewer files (FILE) or elements (DATA, HINT) than workers, a
        dataset without files (FILE), or without a place that is marked (HINT).

        >>> Dataset.range(5).batch(2).with_auto_shard("data").policy
        <AutoShardPolicy.DATA: 'data'>
        """
        found = policy_rules.policy_of(policy)
        return self._then(("with_auto_shard", found.value), self._stage.blocks, policy=found)

    def take(self, count: int) -> Dataset:
        """Return the first ``count`` elements (0 or more), or all if there are fewer."""
        number = whole_number("take: count", count, 0)
        known = self._stage.count
        return self._then(
            ("take", number),
            partial(blocks.take, self._stage.blocks, number),
            count=None if known is None else min(known, number),
        )

    def skip(self, count: int) -> Dataset:
        """Return all but the first ``count`` elements (0 or more)."""
        number = whole_number("skip: count", count, 0)
        known = self._stage.count
        return self._then(
            ("skip", number),
            partial(blocks.skip, self._stage.blocks, number),
            count=None if known is None else max(0, known - number),
        )

    def map(
        self,
        function: Callable[..., Any],
        num_parallel_calls: int | Auto | None = None,
        deterministic: bool = True,
        *,
        workers: int | None = None,
        on_error: str = "raise",
    ) -> Dataset:
        """Return ``function(element)``, or ``function(*element)`` for elements that are tuples.

        - ``function``: called once for each element; after :meth:`batch` that is once for a batch
        - ``num_parallel_calls``: threads that call it (1 or more), for functions that wait or that compute
          in NumPy; None calls it in the thread that iterates. With :data:`nb.data.AUTOTUNE` ("auto") their
          number is found while it runs: more while that makes elements faster, within the cores and memory
        - ``workers``: processes that call it instead (1 or more), for functions that compute in Python.
          They are forked when a pass begins; elements and results travel in shared memory and are arrays,
          numbers, text and bytes, in tuples, dicts and lists. Nothing that the function changes comes back.
          Its random generators (of NumPy, Python and PyTorch) draw other numbers in each process and pass,
          which follow from their states where the pass begins
        - ``deterministic``: whether elements keep their order however long each takes
        - ``on_error``: "raise", or "skip" to leave out and count elements for which ``function`` raises; a
          lack of memory and storage that does not answer are raised nevertheless

        What the function raises is raised in the pass, with a note that names the element; a process that
        dies is an UnavailableError.

        >>> list(Dataset.range(3).map(lambda number: number * 10, num_parallel_calls=2))
        [np.int64(0), np.int64(10), np.int64(20)]
        """
        _check_function("map", function)
        stage, how = self._stage, arguments.one_of("on_error", on_error, ON_ERROR)
        step: Step = ("map",)
        if workers is not None:
            if num_parallel_calls is not None:
                raise InvalidArgumentError("map: give num_parallel_calls (threads) or workers (processes)")
            count = whole_number("map: workers", workers, 1)
            execution = Execution(
                name_of(function), count, processes=True, buffer=processes.IN_FLIGHT * count
            )
            token = secrets.randbits(63)
            step, order = ("map", token), (bool(deterministic), how, len(stage.steps), token)
            made: Blocks = partial(processes.mapped, stage.blocks, stage.rows, function, count, *order)
        elif num_parallel_calls is None:
            execution = Execution(name_of(function))
            made = partial(elements.mapped, stage.blocks, stage.rows, function, how)
        else:
            tunes = num_parallel_calls == AUTOTUNE
            threads = 1 if tunes else whole_number("map: num_parallel_calls", num_parallel_calls, 1)
            execution = Execution(name_of(function), threads, buffer=2 * threads, tunes=tunes)
            calls = CallsTuner(count_cores()) if tunes else threads
            made = partial(
                parallel.mapped, stage.blocks, stage.rows, function, calls, bool(deterministic), how
            )
        left = stage.count if how == "raise" or stage.count == math.inf else None
        return self._then(step, made, execution, rows=None, spec=None, count=left)

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Return the elements for which ``predicate`` is true; a tuple's parts are its arguments.

        >>> list(Dataset.range(5).filter(lambda number: number % 2 == 0).batch(3))
        [array([0, 2, 4])]
        """
        _check_function("filter", predicate)
        made = partial(elements.filtered, self._stage.blocks, self._stage.rows, predicate)
        return self._then(("filter",), made, Execution(name_of(predicate)), count=None)

    def enumerate(self, start: int = 0) -> Dataset:
        """Return (number, element) for each element, counted from ``start`` (0 or more).

        >>> list(Dataset.from_generator(lambda: "ab").enumerate())
        [(np.int64(0), 'a'), (np.int64(1), 'b')]
        """
        first = whole_number("enumerate: start", start, 0)
        stage = self._stage
        spec = stage.spec and (ElementSpec((), np.dtype(np.int64)), stage.spec)
        made = partial(elements.enumerated, stage.blocks, stage.rows, first)
        return self._then(("enumerate", first), made, rows=None, spec=spec)

    def zip(self: Any = (), *others: Dataset) -> Dataset:
        """Return tuples of one element of each dataset, until one of them ends.

        ``a.zip(b)``, ``Dataset.zip(a, b)`` and ``Dataset.zip((a, b))`` are the same; ``Dataset.zip`` of a
        dict of datasets has dicts.

        >>> list(Dataset.zip({"n": Dataset.range(2), "c": Dataset.from_generator(lambda: "abc")}))
        [{'n': np.int64(0), 'c': 'a'}, {'n': np.int64(1), 'c': 'b'}]
        """
        given = self if isinstance(self, (tuple, list, dict)) else (self, *others)
        keys = tuple(given) if isinstance(given, dict) else None
        parts = _datasets("zip", given.values() if isinstance(given, dict) else given)
        counts = [part._stage.count for part in parts]
        finite = [count for count in counts if count is not None]
        count = min(finite) if len(finite) == len(counts) else None
        specs: Any = tuple(part._stage.spec for part in parts)
        if None in specs:
            specs = None
        elif keys is not None:
            specs = dict(zip(keys, specs, strict=True))
        made = partial(elements.zipped, [part._elements for part in parts], keys)
        return _combined("zip", parts, (keys is not None,), made, count=count, spec=specs)

    def concatenate(self, *others: Dataset) -> Dataset:
        """Return the elements of this dataset, and then those of the others.

        >>> [int(n) for n in Dataset.range(2).concatenate(Dataset.range(7, 9))]
        [0, 1, 7, 8]
        """
        parts = _datasets("concatenate", (self, *others))
        counts = [part._stage.count for part in parts]
        count = None if None in counts else sum(filter(None, counts))
        same = all(part._stage.spec == self._stage.spec for part in parts)
        made = partial(elements.concatenated, [part._elements for part in parts])
        return _combined("concatenate", parts, (), made, count=count, spec=self._stage.spec if same else None)

    def interleave(
        self,
        function: Callable[..., Dataset],
        cycle_length: int = 4,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
    ) -> Dataset:
        """Return the elements of the datasets that ``function(element)`` returns, of several in turn.

        - ``function``: of an element (often a path) to a Dataset
        - ``cycle_length``: how many datasets are open at once (1 or more); one that ends is replaced
        - ``block_length``: elements of each at its turn (1 or more)
        - ``num_parallel_calls``: threads that read ahead in the open datasets; the order is the same

        Shuffles in the inner datasets have another order in each pass.

        >>> inner = lambda n: Dataset.range(n, n + 2)
        >>> [int(n) for n in Dataset.from_arrays(np.array([0, 10])).interleave(inner, cycle_length=2)]
        [0, 10, 1, 11]
        """
        _check_function("interleave", function)
        cycle = whole_number("interleave: cycle_length", cycle_length, 1)
        block = whole_number("interleave: block_length", block_length, 1)
        token = secrets.randbits(63)
        threads = 0
        if num_parallel_calls is not None:
            threads = whole_number("interleave: num_parallel_calls", num_parallel_calls, 1)
        inner, stage = partial(_open_inner, function), self._stage
        made = partial(parallel.interleaved, stage.blocks, stage.rows, inner, cycle, block, threads, token)
        step, execution = ("interleave", cycle, block, token), Execution(name_of(function), threads)
        return self._then(step, made, execution, rows=None, count=None, spec=None)

    @classmethod
    def sample_from(
        cls,
        datasets: Sequence[Dataset],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty: bool = False,
    ) -> Dataset:
        """Return elements of several datasets, each drawn from a random one.

        - ``datasets``: one or more
        - ``weights``: how often each is drawn from, 0 or more in any unit; None draws evenly
        - ``seed``: fixes the sequence of passes, as for :meth:`shuffle`
        - ``stop_on_empty``: end with the first that ends; otherwise the others continue

        >>> len(list(Dataset.sample_from([Dataset.range(3), Dataset.range(4)], [1, 3], seed=0)))
        7
        """
        parts = _datasets("sample_from", datasets)
        given_weights = [1.0] * len(parts) if weights is None else weights
        try:
            shares = [float(one) for one in given_weights]
        except (TypeError, ValueError):
            shares = []
        if len(shares) != len(parts) or not all(0 <= one < math.inf for one in shares) or not any(shares):
            raise InvalidArgumentError(
                f"sample_from: weights are {weights!r:.80}; expected {len(parts)} numbers of 0 or more, not "
                "all 0"
            )
        given = None if seed is None else whole_number("sample_from: seed", seed, 0)
        token = secrets.randbits(63)
        counts = [part._stage.count for part in parts]
        known = None if stop_on_empty or None in counts or 0 in shares else sum(filter(None, counts))
        how, each = Shuffle(1, given, True, token), [part._elements for part in parts]
        made = partial(elements.sampled, each, shares, how, bool(stop_on_empty))
        same = all(part._stage.spec == parts[0]._stage.spec for part in parts)
        spec = parts[0]._stage.spec if same else None
        tail = (tuple(shares), given, token)
        return _combined("sample_from", parts, (), made, count=known, spec=spec, tail=tail)

    def scan(self, initial_state: Any, function: Callable[[Any, Any], tuple[Any, Any]]) -> Dataset:
        """Return the outputs of ``state, output = function(state, element)``, from ``initial_state`` on.

        >>> sums = Dataset.range(4).scan(0, lambda total, n: (total + n, total + n))
        >>> [int(n) for n in sums]
        [0, 1, 3, 6]
        """
        _check_function("scan", function, "(state, element)")
        made = partial(elements.scanned, self._stage.blocks, self._stage.rows, initial_state, function)
        return self._then(("scan",), made, Execution(name_of(function)), rows=None, spec=None)

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = 0,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Return batches of elements of different shapes, padded at the ends of their axes.

        - ``batch_size``: 1 or more
        - ``padded_shapes``: the structure of an element, with a list of sizes for each array (``[]`` for a
          single value); None in a list, or instead of all, is the largest of each batch
        - ``padding_values``: one value, or the structure of an element. 0 is the zero of each dtype: empty
          for text and bytes
        - ``drop_remainder``: whether a smaller last batch is left out

        A pass raises InvalidArgumentError for an array that is larger, or has other axes.

        >>> lengths = Dataset.range(1, 4).map(lambda n: np.full(n, n))
        >>> [batch.tolist() for batch in lengths.padded_batch(2)]
        [[[1, 0], [2, 2]], [[3, 3, 3]]]
        """
        size = whole_number("padded_batch: batch_size", batch_size, 1)
        shapes = None if padded_shapes is None else leaves_of(padded_shapes)
        if shapes is not None and not all(grouping.is_shape(shape) for shape in shapes):
            raise InvalidArgumentError(
                f"padded_batch: padded_shapes is {padded_shapes!r:.80}; expected the structure of an element "
                "with a list for each array, such as {'x': [None, 3], 'y': []}"
            )
        stage, values = self._stage, leaves_of(padding_values)
        made = partial(
            grouping.padded_batches, stage.blocks, stage.rows, size, shapes, values, bool(drop_remainder)
        )
        count = self._batches(size, bool(drop_remainder))
        step = ("padded_batch", size, repr(shapes), repr(values), bool(drop_remainder))
        return self._then(step, made, rows=None, count=count, spec=None)

    def bucket_by_length(
        self,
        length_of: Callable[..., int],
        boundaries: Sequence[int],
        batch_sizes: Sequence[int],
        padding_values: Any = 0,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Return padded batches of elements of similar lengths, so that little is padding.

        - ``length_of``: of an element to its length
        - ``boundaries``: ascending; the first bucket has lengths below the first, the last all others
        - ``batch_sizes``: of each bucket, one more than there are boundaries
        - ``padding_values``, ``drop_remainder``: as for :meth:`padded_batch`

        >>> words = Dataset.from_generator(lambda: [np.ones(n) for n in (1, 9, 2, 8)])
        >>> [batch.shape for batch in words.bucket_by_length(len, [5], [2, 2])]
        [(2, 2), (2, 9)]
        """
        _check_function("bucket_by_length", length_of)
        edges = [
            whole_number("bucket_by_length: a boundary", edge, 1)
            for edge in arguments.members("bucket_by_length: boundaries", boundaries, "whole numbers")
        ]
        sizes = [
            whole_number("bucket_by_length: a batch size", size, 1)
            for size in arguments.members("bucket_by_length: batch_sizes", batch_sizes, "whole numbers")
        ]
        if sorted(set(edges)) != edges or len(sizes) != len(edges) + 1:
            raise InvalidArgumentError(
                f"bucket_by_length: boundaries are {edges} and batch_sizes {sizes}; expected ascending "
                "boundaries, and one batch size more than there are"
            )
        stage, values = self._stage, leaves_of(padding_values)
        made = partial(
            grouping.bucketed, stage.blocks, stage.rows, length_of, edges, sizes, values, bool(drop_remainder)
        )
        step = ("bucket_by_length", tuple(edges), tuple(sizes), repr(values), bool(drop_remainder))
        return self._then(step, made, rows=None, count=None, spec=None)

    def unbatch(self) -> Dataset:
        """Return the rows of each batch as elements.

        >>> [int(n) for n in Dataset.range(5).batch(2).unbatch()]
        [0, 1, 2, 3, 4]
        """
        stage = self._stage
        spec = stage.spec and rebuild(
            stage.spec, [replace(leaf, shape=leaf.shape[1:]) for leaf in leaves_of(stage.spec)]
        )
        made = partial(grouping.unbatched, stage.blocks, stage.rows)
        return self._then(("unbatch",), made, rows=None, count=None, spec=spec)

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False
    ) -> Dataset:
        """Return windows of ``size`` elements, stacked along a new first axis as batches are.

        - ``size``: elements in a window, 1 or more
        - ``shift``: elements between the beginnings of two windows, 1 or more; None is ``size``
        - ``stride``: elements between two in a window, 1 or more
        - ``drop_remainder``: whether windows at the end with fewer elements are left out

        >>> [w.tolist() for w in Dataset.range(5).window(3, shift=1, drop_remainder=True)]
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        length = whole_number("window: size", size, 1)
        moves = length if shift is None else whole_number("window: shift", shift, 1)
        apart = whole_number("window: stride", stride, 1)
        stage = self._stage
        made = partial(grouping.windows, stage.blocks, stage.rows, length, moves, apart, bool(drop_remainder))
        step = ("window", length, moves, apart, bool(drop_remainder))
        return self._then(step, made, rows=None, count=None, spec=None)

    def cache(self, path: str | os.PathLike[str] | None = None) -> Dataset:
        """Return the same elements, of which the first full pass keeps those for all later ones.

        - ``path``: a local file, which later runs of the same pipeline use too; None keeps them in memory

        A pass that ends early keeps nothing. A shuffle before the cache has one order for all passes. A file
        says what pipeline it is of: its steps, the code of its functions with what they use, and its arrays,
        but not the contents of files. A pass raises FailedPreconditionError if it is of another one, and
        StorageError if it cannot be written.

        >>> cached = Dataset.from_generator(lambda: [1, 2]).cache()
        >>> list(cached) == list(cached)
        True
        """
        stage = self._stage
        if path is None:
            return self._then(("cache",), MemoryCache(stage.blocks))
        made = partial(elements.element_blocks, stage.blocks, stage.rows)
        file = arguments.local_path("cache: path", path, "a cache is a local file: give each host its own")
        return self._then(("cache",), FileCache(made, file, stage.steps), rows=None)

    def prefetch(self, buffer_size: int | Auto = 2) -> Dataset:
        """Return the same elements, with up to ``buffer_size`` made ahead by a thread.

        - ``buffer_size``: 0 (none) or more; with :data:`nb.data.AUTOTUNE` ("auto") it begins at 2 and doubles
          when the consumer finds the buffer empty after it was full, up to 64 elements and an eighth of the
          free memory (as TensorFlow's PrefetchAutotuner)

        The order, and the orders of later passes, are those without it.

        >>> list(Dataset.range(3).map(lambda n: n + 1).prefetch("auto"))
        [np.int64(1), np.int64(2), np.int64(3)]
        """
        tunes = buffer_size == AUTOTUNE
        tuner = BufferTuner() if tunes else None
        count = FIRST_BUFFER if tunes else whole_number("prefetch: buffer_size", buffer_size, 0)
        if count == 0 or self._stage.rows is not None:  # row numbers are there already
            return self
        made = partial(parallel.prefetched, self._stage.blocks, count, tuner)
        return self._then(
            ("prefetch", AUTOTUNE if tunes else count), made, Execution(buffer=count, tunes=tunes)
        )

    def ahead_of_training(self, endless: bool = False) -> Dataset:
        """Return the same dataset, with a prefetch of 2 at its end where that pays: ``fit`` reads this one.

        It pays where the process has a second core and a stage does more than to copy rows of arrays; a
        dataset that ends with a prefetch, or is read by data tasks, is returned as it is. ``endless``
        repeats it for ever, unless it is without end already.
        """
        found = self.repeat() if endless and not self.endless else self
        kinds = [stage.step[0] for stage in stages_of(self._stage.blocks)]
        if pays_ahead(kinds, count_cores()):
            found = found.prefetch(AHEAD)
        found._openings, found._skipped = self._openings, self._skipped  # its passes are passes of this one
        return found

    def with_seed(self, *numbers: int) -> Dataset:
        """Return the same dataset with orders of its own, fixed by ``numbers`` and each shuffle's seed.

        For asynchronous workers that each go through all the data: ``dataset.with_seed(run_seed, rank)``.
        The same numbers give the same orders in every process, also where a shuffle has no seed.
        """
        return Dataset(self._stage, tuple(whole_number("with_seed: number", number, 0) for number in numbers))

    # Use

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def iterate(
        self,
        *,
        reuse_buffers: bool = False,
        epoch: int | None = None,
        opened: Sequence[int] | None = None,
        meter: Meter | None = None,
    ) -> Iterator[Any]:
        """Return an iterator over one pass.

        With ``reuse_buffers`` a batch gathered from arrays is in memory that later batches overwrite: it
        is valid until the next one is taken. ``epoch`` makes this the pass of that number, to continue
        after a restart; without it passes are counted from 0 by this object. ``opened`` makes it the pass
        that began when another object of this dataset had that :attr:`opened`. A ``meter`` measures the
        stages.
        """
        if opened is not None:
            openings, first = self._openings_of("iterate", opened), 0
        elif epoch is None:
            openings, first = self._openings, 0
        else:
            openings, first = {}, whole_number("iterate: epoch", epoch, 0)
        buffers = 1 if reuse_buffers else 0
        run = Pass(openings, first, self._salt, buffers, skipped=self._skipped, meter=meter)
        return self._iterate(run)

    def _iterate(self, run: Pass) -> Iterator[Any]:
        if run.meter is not None:
            assert isinstance(self._stage.blocks, Measured)
            run.meter.begin(self._stage.blocks)
        try:
            yield from elements.elements(*self._elements, run)
        finally:
            run.resources.close()
            if run.meter is not None:
                run.meter.end()

    def profile(self, seconds: float = 3.0) -> InputPipeline:
        """Read this dataset for a while, and return which of its stages is the bottleneck, as a table.

        - ``seconds``: how long, above 0; it ends earlier at the end of a first pass. Elements are taken as
          fast as they are made: in a training, ``run.input_pipeline()`` measures the same with the training

        The result has a row for each stage: where it runs, its elements/s, the share of the time for which
        it works, and how many elements a prefetch or a parallel map had ready; then the bottleneck and what
        to do about it. The passes of this dataset are the same afterwards. Raises InvalidArgumentError for
        other ``seconds``, and what a pass raises.

        >>> found = Dataset.range(100).map(lambda n: n * n).batch(10).profile()
        >>> [(stage.name, stage.elements) for stage in found.stages]
        [('from_arrays', 100), ('map(lambda)', 100), ('batch(10)', 10)]
        """
        if not 0 < seconds < math.inf:
            raise InvalidArgumentError(f"profile: seconds is {seconds!r}; expected a number above 0")
        meter = Meter()
        run = Pass({}, 0, self._salt, 1, meter=meter)
        until = time.perf_counter() + seconds
        with contextlib.closing(self._iterate(run)) as found:  # type: ignore[type-var]  # generators close
            for _ in found:
                if time.perf_counter() >= until:
                    break
        return meter.reading()

    @property
    def skipped(self) -> int:
        """How many records ``on_error="skip"`` has left out so far, in all passes of this object."""
        return self._skipped.count

    def skipped_note(self, before: int = 0) -> str:
        """Return what was left out since :attr:`skipped` was ``before``, as a sentence; "" for nothing."""
        count = self._skipped.count - before
        if not count:
            return ""
        were = "record was" if count == 1 else "records were"
        return f"{count} {were} left out (on_error='skip'), such as: {self._skipped.first}"

    @property
    def opened(self) -> tuple[int, ...]:
        """How often each of its shuffles was opened so far: the order of the next pass follows from it."""
        return tuple(self._openings.get(token, 0) for token in self._tokens())

    def reopen(self, opened: Sequence[int]) -> None:
        """Continue where another object of this dataset was when its :attr:`opened` had this value.

        The next pass is the one that would have come next there.
        """
        self._openings.update(self._openings_of("reopen", opened))

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its origin: the source, then each transform, as names with plain values."""
        salt = (("with_seed", *self._salt),) if self._salt else ()
        return (*self._stage.steps, *salt)

    @property
    def source(self) -> ArrayRows | None:
        """The arrays that it came from, if it came from arrays."""
        return self._stage.source

    def cardinality(self) -> int | None:
        """Return the number of elements of one pass, or None if it is unknown or there is no end."""
        count = self._stage.count
        return None if count is None or count == math.inf else int(count)

    @property
    def shards(self) -> int:
        """Of how many parts this dataset is one (1: it is whole)."""
        return self._stage.shards

    @property
    def policy(self) -> AutoShardPolicy | None:
        """What :meth:`with_auto_shard` was given, if anything."""
        return self._stage.policy

    def resolved_policy(self, workers: int) -> AutoShardPolicy:
        """Return OFF, FILE, DATA or HINT: what :attr:`policy` means for so many workers.

        DATA if there is none. Raises InvalidArgumentError if the policy cannot be followed.
        """
        return self._resolved(self._stage.policy or AutoShardPolicy.DATA, workers)

    @property
    def apart(self) -> bool:
        """Whether it has the pieces of global batches that one worker makes of its own data."""
        return self._stage.apart

    @property
    def endless(self) -> bool:
        """Whether a pass is known to have no end."""
        return self._stage.count == math.inf

    def __len__(self) -> int:
        count = self.cardinality()
        if count is None:
            raise TypeError("this dataset's number of elements is unknown or without end; take(n) cuts it")
        return count

    @property
    def element_spec(self) -> Any:
        """The `ElementSpec` of each array of an element; if necessary, one element is made."""
        if self._stage.spec is not None:
            return self._stage.spec
        if self._found_spec is None:
            one = self.take(1)._iterate(Pass({}, 0, self._salt, looks=True))
            with contextlib.closing(one) as found:  # type: ignore[type-var]  # generators close
                for element in found:
                    self._found_spec = spec_of(element)
        if self._found_spec is not None:
            return self._found_spec
        raise InvalidArgumentError("an empty dataset of unknown origin has no element_spec")

    def __repr__(self) -> str:
        count = "endless" if self.endless else self.cardinality()
        return f"<Dataset: {'?' if count is None else count} elements of {self._stage.spec or '?'}>"

    def _shuffled(self, how: Shuffle) -> Dataset:
        step = ("shuffle", how.size, how.seed, how.reshuffle, how.token)
        return self._then(step, partial(blocks.shuffle, self._stage.blocks, how))

    def _batches(self, size: int, drop_remainder: bool) -> float | None:
        """Return how many batches of ``size`` there are, as far as that is known."""
        count = self._stage.count
        if count is None or count == math.inf:
            return count
        return count // size if drop_remainder else -(-count // size)

    def _then(self, step: Step, made: Blocks, execution: Execution | None = None, **changes: Any) -> Dataset:
        steps = (*self._stage.steps, step)
        return Dataset(
            replace(self._stage, blocks=made, steps=steps, execution=execution, **changes), self._salt
        )

    def _resolved(self, policy: AutoShardPolicy | str, workers: int) -> AutoShardPolicy:
        stage = self._stage
        hints = sum(step[0] == "shard_hint" for step in stage.steps)
        files = None if stage.files is None else stage.files()
        return policy_rules.chosen(policy_rules.policy_of(policy), workers, files, hints)

    def _openings_of(self, what: str, opened: Sequence[int]) -> dict[int, int]:
        given = arguments.members(f"{what}: opened", opened, "whole numbers")
        counts = [whole_number(f"{what}: opened", count, 0) for count in given]
        tokens = self._tokens()
        if len(counts) != len(tokens):
            raise InvalidArgumentError(
                f"{what}: {len(counts)} counts of openings for a dataset with {len(tokens)} shuffles"
            )
        return dict(zip(tokens, counts, strict=True))

    def _tokens(self) -> list[int]:
        return tokens(self._stage.steps)

    @property
    def _elements(self) -> tuple[Blocks, Rows | None]:
        return self._stage.blocks, self._stage.rows


def _combined(
    name: str, parts: list[Dataset], values: Step, made: Blocks, tail: Step = (), **known: Any
) -> Dataset:
    """Return the dataset that a step makes of several."""
    salts = {part._salt for part in parts}
    if len(salts) > 1:
        raise InvalidArgumentError(
            f"{name}: the datasets have different with_seed(...); call with_seed on the result"
        )
    if any(part.policy for part in parts):
        raise InvalidArgumentError(
            f"{name}: a dataset in it has with_auto_shard(...), which is for the one that is trained on; "
            "call it on the result"
        )
    step = (name, *values, *(Inner(part._stage.steps) for part in parts), *tail)
    shards = max(part.shards for part in parts)
    return Dataset(_Stage(made, None, steps=(step,), shards=shards, **known), *salts)


def _datasets(what: str, given: Any) -> list[Dataset]:
    found = [] if isinstance(given, Dataset) else arguments.members(what, given, "datasets")
    if isinstance(given, Dataset):
        raise InvalidArgumentError(
            f"{what} takes a list of datasets, got {given!r:.80}; write [dataset, ...]"
        )
    for one in found:
        if not isinstance(one, Dataset):
            raise InvalidArgumentError(f"{what} takes datasets, got {one!r:.80}")
    if not found:
        raise InvalidArgumentError(f"{what} takes at least one dataset")
    return found


def _check_function(what: str, given: Any, of: str = "an element") -> None:
    if not callable(given):
        raise InvalidArgumentError(f"{what} takes a function of {of}, got {given!r}")


def _open_inner(function: Callable[..., Any], element: Any, run: Pass) -> Iterator[Any]:
    """Return the elements of the dataset that the function of interleave returns."""
    found = elements.apply(function, element)
    if not isinstance(found, Dataset):
        raise InvalidArgumentError(f"interleave's function returns a Dataset, and returned {found!r:.80}")
    return elements.elements(*found._elements, run)
