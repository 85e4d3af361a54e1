"""`Example` and `SequenceExample` protos: named values in the records of TFRecord files.

    features = {"image": FixedLenFeature((28, 28), "f4"), "words": VarLenFeature("i8")}
    Dataset.tfrecords("train-*.tfrecord").map(lambda record: parse_example(record, features))

The messages are built here from their published schema (tensorflow/core/example/example.proto and
feature.proto), so that nothing of TensorFlow is needed; the protobuf package parses them in C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nbdist.data.arguments import dtype_of, named_values
from nbdist.data.blocks import Block, Pass
from nbdist.data.example_columns import BYTES, FLOATS, INTEGERS, Columns, Entry, Layout, layout_of
from nbdist.data.structure import stack
from nbdist.data.table import Table, rows_of
from nbdist.data.tfrecord import Record, RecordBlock, record_blocks
from nbdist.errors import DataLossError, InvalidArgumentError, NbdistError, choices
from nbdist.numbers import is_whole


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with one ``shape`` in all examples.

    - ``shape``: sizes, () for a single value
    - ``dtype``: a dtype of whole numbers, of floats, or bytes, or str (UTF-8)
    - ``default_value``: what an example without the feature has; None makes that an error
    """

    shape: tuple[int, ...]
    dtype: DTypeLike
    default_value: Any = None

    def __post_init__(self) -> None:
        kind = _checked_form("FixedLenFeature", self.shape, self.dtype)
        if self.default_value is None or kind.kind in "SU":
            return
        try:
            np.broadcast_to(np.asarray(self.default_value, kind), self.shape)
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgumentError(
                f"FixedLenFeature: default_value is {self.default_value!r:.80}; expected {kind} of shape "
                f"{tuple(self.shape)}, or one for all"
            ) from None


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values: an array of one axis, empty in an example without it."""

    dtype: DTypeLike

    def __post_init__(self) -> None:
        _checked_form("VarLenFeature", (), self.dtype)


@dataclass(frozen=True)
class FixedLenSequenceFeature:
    """A sequence of values of one ``shape``: an array of (steps, *shape), of 0 steps if it is missing."""

    shape: tuple[int, ...]
    dtype: DTypeLike

    def __post_init__(self) -> None:
        _checked_form("FixedLenSequenceFeature", self.shape, self.dtype)


def _checked_form(what: str, shape: Any, dtype: Any) -> np.dtype[Any]:
    if not isinstance(shape, (tuple, list)) or not all(is_whole(size, 0) for size in shape):
        raise InvalidArgumentError(
            f"{what}: shape is {shape!r:.80}; expected a tuple of whole numbers, such as (28, 28), or () for "
            "a single value. VarLenFeature(dtype) has any number of values"
        )
    kind = dtype_of(what, dtype)
    if kind.kind not in "biufSU":
        raise InvalidArgumentError(f"{what}: dtype is {kind}; expected whole numbers, floats, bytes or str")
    return kind


Feature: TypeAlias = FixedLenFeature | VarLenFeature | FixedLenSequenceFeature
Features: TypeAlias = Mapping[str, Feature]


def checked_features(features: Any) -> dict[str, Feature]:
    """Return features by name as a dict; raises InvalidArgumentError for anything else."""
    example = "{'label': FixedLenFeature((), 'i8')}"
    found = named_values("features", features, example)
    for name, wanted in found.items():
        if not isinstance(wanted, Feature):
            raise InvalidArgumentError(
                f"feature {name!r} is {wanted!r:.80}; expected a FixedLenFeature, VarLenFeature or "
                f"FixedLenSequenceFeature, such as {example}"
            )
    return found


_LARGEST = int(np.iinfo(np.int64).max)
_KINDS = {"bytes_list": "bytes", "float_list": "floats", "int64_list": "whole numbers", None: "no values"}


def parse_example(record: Any, features: Features) -> dict[str, Any]:
    """Return the named features of a serialized Example; of a batch of them, stacked.

    - ``record``: bytes; or a list, tuple or array of them
    - ``features``: by name, a FixedLenFeature, VarLenFeature or FixedLenSequenceFeature

    Single values are NumPy scalars (or bytes, or str), others arrays. Raises InvalidArgumentError for a
    feature that is missing, or that has another type or number of values, with the record's place in its
    file; DataLossError for bytes that are not an Example.

    >>> parse_example(make_example({"x": [1.0, 2.0], "label": 3}), {"label": FixedLenFeature((), "i8")})
    {'label': np.int64(3)}
    """
    if isinstance(record, (bytes, bytearray, memoryview)):
        features = features if type(features) is dict else checked_features(features)
        return _parsed(_decoded("Example", record).features.feature, record, features)
    if isinstance(record, str) or not isinstance(record, Iterable):
        raise InvalidArgumentError(
            f"parse_example takes a record of bytes, or a batch of them, not {record!r:.80}"
        )
    records = list(record)
    if not records:
        raise InvalidArgumentError("parse_example was given no records")
    features = features if type(features) is dict else checked_features(features)
    if all(isinstance(one, bytes) for one in records):
        parsed = _parsed_together(records, features, lambda place: parse_example(records[place], features))
    else:
        parsed = [parse_example(one, features) for one in records]
    stacked: dict[str, Any] = parsed.batch() if isinstance(parsed, Table) else stack(parsed)
    return stacked


def parsed_records(
    names: Sequence[str], compression: str | None, on_error: str, features: dict[str, Feature], run: Pass
) -> Iterator[Block]:
    """Yield the features of the records of files, without those that cannot be parsed."""
    for block in record_blocks(names, compression, on_error, run):

        def parse(place: int, block: RecordBlock = block) -> dict[str, Any] | None:
            try:
                return parse_example(block.record(place), features)
            except NbdistError as error:
                run.leave_out(error, on_error)
                return None

        yield _parsed_together(block.data, features, parse)


_FEWEST = 16  # records for which arrays of positions are worth their while
_LAYOUTS = 4  # that are looked for in a block


def _parsed_together(
    records: Sequence[bytes], features: dict[str, Feature], parse: Callable[[int], dict[str, Any] | None]
) -> Table | list[dict[str, Any]]:
    """Return the features of records: those of one layout all at once, others by ``parse``, by their place.

    Without those for which ``parse`` returns None. The result does not depend on which way a record takes.
    """
    rows: list[dict[str, Any] | None] = [None] * len(records)
    left = np.arange(len(records))
    alone = []
    for _ in range(_LAYOUTS if features else 0):
        if len(left) < _FEWEST:
            break
        layout = layout_of(records[left[0]])
        plan = None if layout is None else _plan(layout, features)
        if layout is None or plan is None:
            alone.append(left[:1])
            left = left[1:]
            continue
        columns = Columns([records[place] for place in left.tolist()], layout)
        found = _columns(columns, plan, features)
        if found is None:
            break
        arrays = [column for column in found if isinstance(column, np.ndarray)]
        if len(arrays) == len(found) and len(left) == len(records) and columns.good.all():
            return Table(dict.fromkeys(features, 0), arrays)
        parts = [rows_of(column) if isinstance(column, np.ndarray) else column for column in found]
        for place, row in zip(left[columns.good].tolist(), zip(*parts, strict=True), strict=True):
            rows[place] = dict(zip(features, row, strict=True))
        left = left[~columns.good]
    for place in sorted(np.concatenate([*alone, left]).tolist()):
        rows[place] = parse(place)
    return [row for row in rows if row is not None]


def _plan(layout: Layout, features: dict[str, Feature]) -> list[Entry | None] | None:
    """Return the entry of each feature, None for one that has its default; None if records need `parse`."""
    entries = {entry.name: entry for entry in layout}
    plan: list[Entry | None] = []
    for name, wanted in features.items():
        kind, entry = np.dtype(wanted.dtype), entries.get(name.encode())
        tag = BYTES if kind.kind in "SU" else FLOATS if kind.kind == "f" else INTEGERS
        exact = kind.isnative and (tag != FLOATS or kind.itemsize in (4, 8))
        if not exact or (entry is not None and entry.kind != tag):
            return None
        if entry is None and isinstance(wanted, FixedLenFeature) and _is_special(wanted):
            return None
        plan.append(entry)
    return plan


def _is_special(wanted: FixedLenFeature) -> bool:
    """Whether a record without the feature is an error, or has a default that is not checked: a text."""
    text = np.dtype(wanted.dtype).kind in "SU"
    return wanted.default_value is None or (
        text and (wanted.shape != () or not isinstance(wanted.default_value, (bytes, str)))
    )


def _columns(
    columns: Columns, plan: list[Entry | None], features: dict[str, Feature]
) -> list[NDArray[Any] | list[NDArray[Any]]] | None:
    """Return the values of each feature, for the good records; None if a value does not fit its dtype.

    A record that has another number of values than its feature allows is good no longer.
    """
    for entry, wanted in zip(plan, features.values(), strict=True):
        if entry is not None and not isinstance(wanted, VarLenFeature):
            counts, size = columns.counts(entry), math.prod(wanted.shape)
            fits = counts == size
            if isinstance(wanted, FixedLenSequenceFeature):
                fits = counts % size == 0 if size else np.zeros(len(counts), bool)
            columns.good[np.flatnonzero(columns.good)[~fits]] = False
    number = int(columns.good.sum())
    found: list[NDArray[Any] | list[NDArray[Any]]] = []
    for wanted, entry in zip(features.values(), plan, strict=True):
        if entry is None:
            found.append(_missing(wanted, number))
            continue
        values = _converted(columns.values(entry), np.dtype(wanted.dtype))
        if values is None:
            return None
        if isinstance(wanted, FixedLenFeature):
            found.append(values.reshape(number, *wanted.shape))
            continue
        edges = np.cumsum(columns.counts(entry))[:-1]
        parts = [part.copy() for part in np.split(values, edges)] if number else []
        steps = isinstance(wanted, FixedLenSequenceFeature)
        found.append([part.reshape(-1, *wanted.shape) for part in parts] if steps else parts)  # type: ignore[union-attr]
    return found


def _missing(wanted: Feature, number: int) -> NDArray[Any] | list[NDArray[Any]]:
    """Return the column of a feature that is in none of ``number`` records."""
    one = _default(wanted)
    if not isinstance(wanted, FixedLenFeature):
        return [one.copy() for _ in range(number)]
    column = np.empty((number, *wanted.shape), object if np.dtype(wanted.dtype).kind in "SU" else one.dtype)
    column[:] = one
    return column


def _converted(values: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any] | None:
    """Return values as ``kind``, None if there is one that does not fit: `parse` says which."""
    if kind.kind == "U":
        try:
            values[:] = [value.decode() for value in values]
        except UnicodeDecodeError:
            return None
    if kind.kind in "SU":
        return values
    if kind.kind in "iu" and len(values):
        bounds = np.iinfo(kind)
        if int(values.min()) < bounds.min or int(values.max()) > bounds.max:
            return None
    return values.astype(kind, copy=False)


def parse_sequence_example(
    record: bytes, context_features: Features, sequence_features: Mapping[str, FixedLenSequenceFeature]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (context, sequences) of a serialized SequenceExample, by name.

    - ``record``: bytes
    - ``context_features``: as for :func:`parse_example`
    - ``sequence_features``: by name, a FixedLenSequenceFeature; the result is (steps, *shape)

    Raises as :func:`parse_example`.
    """
    if not isinstance(record, (bytes, bytearray, memoryview)):
        raise InvalidArgumentError(f"parse_sequence_example takes a record of bytes, not {record!r:.80}")
    context_features = checked_features(context_features)
    found = _decoded("SequenceExample", record)
    sequences: dict[str, Any] = {}
    lists = found.feature_lists.feature_list
    for name, wanted in checked_features(sequence_features).items():
        if not isinstance(wanted, FixedLenSequenceFeature):
            raise InvalidArgumentError(
                f"sequence feature {name!r} is {wanted!r}, not FixedLenSequenceFeature"
            )
        step = FixedLenFeature(wanted.shape, wanted.dtype)
        steps = lists[name].feature if name in lists else ()
        values = [_values(name, one, step, record) for one in steps]
        kind = np.dtype(wanted.dtype)
        empty = np.empty((0, *wanted.shape), object if kind.kind in "SU" else kind)
        sequences[name] = stack([_shaped(name, one, step, record) for one in values]) if values else empty
    return _parsed(found.context.feature, record, context_features), sequences


def make_example(values: Mapping[str, Any]) -> bytes:
    """Return a serialized Example of named values, for :func:`write_tfrecords`.

    ``values`` are whole numbers, floats, bytes, text, truth values (stored as 0 and 1), or lists or arrays of
    them, by name; an array's shape is not stored, its values are, in C order. An empty list is a feature of
    no type, which counts as missing; an empty array has the type of its dtype.

    Raises InvalidArgumentError for other values.

    >>> parse_example(make_example({"word": "an"}), {"word": FixedLenFeature((), str)})
    {'word': 'an'}
    """
    example = _messages()["Example"]()
    for name, value in named_values("make_example: values", values, "{'x': [1.0, 2.0], 'label': 3}").items():
        feature = example.features.feature[name]
        if isinstance(value, (list, tuple)) and not len(value):
            continue  # of no kind: the feature is there, and has no values of any type
        try:
            flat = np.asarray(value, object if _is_bytes(value) else None).reshape(-1)
        except ValueError:
            raise InvalidArgumentError(
                f"feature {name!r} holds lists of different lengths, {value!r:.80}; an Example has one list "
                "for each name: join them, or store each under a name of its own"
            ) from None
        if flat.dtype.kind in "biu":
            if flat.dtype.kind == "u" and flat.size and flat.max() > _LARGEST:
                raise InvalidArgumentError(
                    f"feature {name!r} holds {flat.max()}; an Example's whole numbers are up to {_LARGEST}"
                )
            feature.int64_list.value.extend(flat.astype(np.int64).tolist())
        elif flat.dtype.kind == "f":
            feature.float_list.value.extend(flat.tolist())
        elif flat.dtype.kind in "SUO":
            feature.bytes_list.value.extend(_as_bytes(name, one) for one in flat.tolist())
        else:
            raise InvalidArgumentError(
                f"feature {name!r} is of dtype {flat.dtype}; expected numbers, bytes or text"
            )
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


def _is_bytes(value: Any) -> bool:
    """Whether a value is bytes, or a list of them, whose trailing zeros NumPy's own type would drop."""
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, (bytes, bytearray, memoryview))


def _as_bytes(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidArgumentError(
        f"feature {name!r} holds {value!r:.80}; expected numbers (whole ones of 64 bits), bytes or text"
    )


def _parsed(found: Any, record: Any, features: Features) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, wanted in features.items():
        if name in found and found[name].WhichOneof("kind") is not None:
            result[name] = _shaped(name, _values(name, found[name], wanted, record), wanted, record)
            continue
        if isinstance(wanted, FixedLenFeature) and wanted.default_value is None:
            which = "has no values" if name in found else f"is missing; {choices(name, sorted(found))}"
            raise InvalidArgumentError(
                f"{_place(record)}: feature {name!r} {which}. Correct the name, or give a value for examples "
                "without it: FixedLenFeature(..., default_value=...)"
            )
        result[name] = _default(wanted)
    return result


def _default(wanted: Feature) -> Any:
    """Return the value of a feature in an example without it."""
    kind = np.dtype(wanted.dtype)
    if not isinstance(wanted, FixedLenFeature):
        shape = wanted.shape if isinstance(wanted, FixedLenSequenceFeature) else ()
        return np.empty((0, *shape), object if kind.kind in "SU" else kind)
    if kind.kind in "SU":
        return wanted.default_value
    filled = np.broadcast_to(np.asarray(wanted.default_value, kind), wanted.shape).copy()
    return filled if wanted.shape else filled[()]


def _values(name: str, feature: Any, wanted: Feature, record: Any) -> NDArray[Any]:
    """Return the values of a feature, in one axis."""
    kind = np.dtype(wanted.dtype)
    need = "bytes_list" if kind.kind in "SU" else "float_list" if kind.kind == "f" else "int64_list"
    have = feature.WhichOneof("kind")
    if have != need:
        raise InvalidArgumentError(
            f"{_place(record)}: feature {name!r} has {_KINDS[have]}, and {_KINDS[need]} were expected (dtype "
            f"{np.dtype(wanted.dtype)}); correct the dtype in features"
        )
    values = getattr(feature, need).value
    if need != "bytes_list":
        return np.array(values, kind)
    found = np.empty(len(values), object)
    found[:] = [value.decode() for value in values] if kind.kind == "U" else list(values)
    return found


def _shaped(name: str, values: NDArray[Any], wanted: Feature, record: Any) -> Any:
    if isinstance(wanted, VarLenFeature):
        return values
    if isinstance(wanted, FixedLenSequenceFeature):
        size = math.prod(wanted.shape)
        if size == 0 or len(values) % size:
            raise InvalidArgumentError(
                f"{_place(record)}: feature {name!r} has {len(values)} values, which are not whole steps of "
                f"shape {wanted.shape}"
            )
        return values.reshape(-1, *wanted.shape)
    if len(values) != math.prod(wanted.shape):
        raise InvalidArgumentError(
            f"{_place(record)}: feature {name!r} has {len(values)} values, and shape {wanted.shape} needs "
            f"{math.prod(wanted.shape)}; correct the shape, or use VarLenFeature for any number"
        )
    return values.reshape(wanted.shape) if wanted.shape else values[0]


def _place(record: Any) -> str:
    return record.place if isinstance(record, Record) else "the example"


def _decoded(message: str, record: Any) -> Any:
    try:
        return _messages()[message].FromString(record if isinstance(record, bytes) else bytes(record))
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        raise DataLossError(
            f"{_place(record)} is not a serialized {message} ({error}): parse the records yourself in "
            "map(), if they hold something else"
        ) from None


@cache
def _messages() -> dict[str, Any]:
    """Return the classes of Example and SequenceExample."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="nbdist/example.proto", package="nbdist.example", syntax="proto3"
    )

    def add(owner: Any, name: str, number: int, kind: int, of: str = "", *, repeated: bool = False) -> Any:
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        of = of and f".nbdist.example.{of}"
        return owner.field.add(name=name, number=number, label=label, type=kind, type_name=of or None)

    def message(name: str) -> Any:
        return file.message_type.add(name=name)

    def entries(name: str, key: str, of: str) -> None:
        """Add a message that is a map from text to ``of``."""
        owner = message(name)
        entry_name = f"{key.title().replace('_', '')}Entry"
        entry = owner.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        add(entry, "key", 1, field.TYPE_STRING)
        add(entry, "value", 2, field.TYPE_MESSAGE, of)
        add(owner, key, 1, field.TYPE_MESSAGE, f"{name}.{entry_name}", repeated=True)

    for name, kind in (("Bytes", field.TYPE_BYTES), ("Float", field.TYPE_FLOAT), ("Int64", field.TYPE_INT64)):
        add(message(f"{name}List"), "value", 1, kind, repeated=True)
    feature = message("Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("Bytes", "Float", "Int64"), 1):
        kind = add(feature, f"{name.lower()}_list", number, field.TYPE_MESSAGE, f"{name}List")
        kind.oneof_index = 0
    entries("Features", "feature", "Feature")
    add(message("FeatureList"), "feature", 1, field.TYPE_MESSAGE, "Feature", repeated=True)
    entries("FeatureLists", "feature_list", "FeatureList")
    add(message("Example"), "features", 1, field.TYPE_MESSAGE, "Features")
    sequence = message("SequenceExample")
    add(sequence, "context", 1, field.TYPE_MESSAGE, "Features")
    add(sequence, "feature_lists", 2, field.TYPE_MESSAGE, "FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"nbdist.example.{name}"))
        for name in ("Example", "SequenceExample")
    }
