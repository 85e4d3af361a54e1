"""Feature columns: which features a model takes, and how they become numbers.

    age = numeric_column("age")
    city = categorical_column_with_hash_bucket("city", 1000)
    columns = [bucketized_column(age, [18, 30, 65]), embedding_column(city, 8)]
    dataset = dataset.map(transform_features(columns))         # texts -> ids, on the host
    x = input_layer(features, columns)                         # (batch, numbers), in the model function

A column has a host part, which turns a batch's arrays into numbers (`transform`), and a part in the graph
(`dense`). The Estimators of this package do both. Source of the names: TensorFlow's tf.feature_column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from nbdist.data.arguments import members
from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.initial import kind_of
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Tensor, placeholder, symbolic
from nbdist.graph.variables import get_variable
from nbdist.nn.functional import embedding_lookup, one_hot
from nbdist.numbers import is_whole

Array: TypeAlias = np.ndarray[Any, Any]
Features: TypeAlias = Mapping[str, Array]
COMBINERS = ("mean", "sqrtn", "sum")
NONE = -1  # the id of an example without a value


class FeatureColumn(ABC):
    """One input of a model."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What identifies it among the transformed features."""

    @abstractmethod
    def transform(self, features: Features) -> Array:
        """Return the column's numbers of a batch: (batch, values)."""

    @property
    def transformed(self) -> Sequence[FeatureColumn]:
        """The columns whose numbers it needs in the graph."""
        return (self,)


class DenseColumn(FeatureColumn):
    """A column that a layer can take."""

    @abstractmethod
    def dense(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return (batch, numbers) from transformed features."""


class CategoricalColumn(FeatureColumn):
    """A column of ids from 0 to ``size - 1``; -1 stands for no value."""

    size: int

    @property
    def is_data(self) -> bool:
        """Whether ids are made without a function of the program."""
        return True

    def exported(self) -> ExportInput:
        """Return an export's input: ids, under a name that is not the feature's."""
        takes, source = f"the ids of the column {self.name!r}", self if self.is_data else None
        takes += (
            "; without them it takes the raw features"
            if source is not None
            else ", whose normalizer_fn is not in the export: transform_features(columns) makes them"
        )
        return ExportInput(self, f"{self.name}_ids", takes, source, _as_it_is)


@dataclass(frozen=True)
class ExportInput:
    """How an exported model takes the numbers of a column.

    - ``column``: the column
    - ``name``: the input's; a feature's only if it takes the raw feature
    - ``takes``: what it takes, for errors
    - ``source``: the column, all data, that makes it of raw features; None if a function of the program does
    - ``record``: what the graph makes of it
    """

    column: FeatureColumn
    name: str
    takes: str
    source: FeatureColumn | None
    record: Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class NumericColumn(DenseColumn):
    """See `numeric_column`."""

    key: str
    shape: tuple[int, ...] = (1,)
    default_value: float | None = None
    normalizer_fn: Callable[[Array], Array] | None = None

    @property
    def name(self) -> str:
        """The feature's name."""
        return self.key

    def transform(self, features: Features) -> Array:
        """Return the numbers as float32, (batch, values)."""
        raw = feature_of(features, self.key)
        try:
            values = raw.astype(np.float32, casting="same_kind" if raw.dtype.kind == "c" else "unsafe")
            values = _rows(values)
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgumentError(
                f"numeric_column {self.key!r} takes numbers, and the feature has {raw.dtype}: use a "
                "categorical column, or convert it in the input function"
            ) from None
        wanted = int(np.prod(self.shape))
        if values.shape[1] != wanted:
            raise InvalidArgumentError(
                f"numeric_column {self.key!r} has {wanted} numbers for each example, and the feature has the "
                f"shape {raw.shape}; give numeric_column(shape=...)"
            )
        result: Array = self.normalized(values)
        return result

    def normalized(self, values: Any) -> Any:
        """Return numbers, an array or a tensor, with the default value and the normalizer's work."""
        if self.default_value is not None:
            values = np.where(np.isnan(values), np.float32(self.default_value), values)
        if self.normalizer_fn is not None:
            given, values = values.shape, self.normalizer_fn(values)
            recorded = isinstance(values, Tensor)
            values = values.astype(np.float32) if recorded else np.asarray(values, np.float32)
            if values.shape != given:
                raise InvalidArgumentError(
                    f"numeric_column {self.key!r}: normalizer_fn has made {values.shape} of {given}; "
                    "expected the same shape"
                )
        return values

    def exported(self) -> ExportInput:
        """Return an export's input: raw numbers if the normalizer records in a graph, else its result."""
        plain = replace(self, default_value=None, normalizer_fn=None)
        try:
            with Graph().as_default():
                self.normalized(placeholder(np.float32, (None, int(np.prod(self.shape)))))
        except Exception:  # of a function of the user's, which takes arrays
            takes = (
                f"what the normalizer_fn of numeric_column {self.key!r} returns, which does not record in a "
                "graph: transform_features(columns) calls it"
            )
            return ExportInput(self, f"{self.key}_normalized", takes, None, _as_it_is)
        return ExportInput(self, self.key, "raw numbers", plain, self.normalized)

    def dense(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the numbers."""
        return transformed_of(features, self)


@dataclass(frozen=True)
class BucketizedColumn(CategoricalColumn, DenseColumn):
    """See `bucketized_column`."""

    source: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        """The source's name with ``_bucketized``."""
        return f"{self.source.name}_bucketized"

    @property
    def size(self) -> int:  # type: ignore[override]
        """The number of buckets."""
        return len(self.boundaries) + 1

    @property
    def is_data(self) -> bool:
        """Whether the source has no normalizer."""
        return self.source.normalizer_fn is None

    def transform(self, features: Features) -> Array:
        """Return the number of each value's bucket."""
        return np.digitize(self.source.transform(features), self.boundaries).astype(np.int64)

    def dense(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the buckets as rows of zeros with a one."""
        ids = transformed_of(features, self)
        return one_hot(ids, self.size).reshape((-1, int(ids.shape[1] or 0) * self.size))


@dataclass(frozen=True)
class VocabularyColumn(CategoricalColumn):
    """See `categorical_column_with_vocabulary_list`."""

    key: str
    vocabulary: tuple[Any, ...]
    default_value: int = NONE
    num_oov_buckets: int = 0

    @property
    def name(self) -> str:
        """The feature's name."""
        return self.key

    @property
    def size(self) -> int:  # type: ignore[override]
        """The number of values."""
        return len(self.vocabulary) + self.num_oov_buckets

    def transform(self, features: Features) -> Array:
        """Return the number of each value in the vocabulary."""
        raw = feature_of(features, self.key)
        values = _rows(raw)
        known = np.asarray(self.vocabulary)
        if known.dtype.kind in "US":
            values = texts_of(values)
        elif values.dtype.kind in "USO":
            raise InvalidArgumentError(
                f"column {self.key!r} has a vocabulary of {known.dtype}, and the feature has texts: give the "
                "vocabulary as texts"
            )
        order = np.argsort(known)
        places = np.minimum(np.searchsorted(known, values, sorter=order), len(known) - 1)
        found = known[order[places]] == values
        ids = np.where(found, order[places], self.default_value)
        if self.num_oov_buckets:
            other = len(known) + (hash_texts(texts_of(values)) % np.uint64(self.num_oov_buckets)).astype(
                np.int64
            )
            ids = np.where(found, ids, other)
        return np.where(is_missing(values) & ~found, NONE, ids).astype(np.int64)


@dataclass(frozen=True)
class HashColumn(CategoricalColumn):
    """See `categorical_column_with_hash_bucket`."""

    key: str
    size: int

    @property
    def name(self) -> str:
        """The feature's name."""
        return self.key

    def transform(self, features: Features) -> Array:
        """Return the bucket of each value; an empty text, and the whole number -1, have none."""
        raw = feature_of(features, self.key)
        values = _rows(raw)
        buckets = hash_texts(texts_of(values)) % np.uint64(self.size)
        return np.where(is_missing(values), NONE, buckets.astype(np.int64))


@dataclass(frozen=True)
class CrossedColumn(CategoricalColumn):
    """See `crossed_column`."""

    keys: tuple[Any, ...]
    size: int

    @property
    def name(self) -> str:
        """The parts' names with ``_X_`` between them."""
        return "_X_".join(sorted(one if isinstance(one, str) else one.name for one in self.keys))

    @property
    def is_data(self) -> bool:
        """Whether its parts are."""
        return all(isinstance(one, str) or one.is_data for one in self.keys)

    def transform(self, features: Features) -> Array:
        """Return the bucket of each combination of the parts' values."""
        parts = []
        for one in self.keys:
            if isinstance(one, str):
                raw = feature_of(features, one)
                values = _rows(raw)
                parts.append((hash_texts(texts_of(values)), is_missing(values)))
            else:
                ids = one.transform(features)
                parts.append((ids.astype(np.uint64), ids < 0))
        columns = []
        for combination in product(*(range(values.shape[1]) for values, _ in parts)):
            mixed = np.full(len(parts[0][0]), _OFFSET)
            missing = np.zeros(len(mixed), bool)
            for (values, without), column in zip(parts, combination, strict=True):
                mixed = (mixed ^ values[:, column]) * _PRIME
                mixed ^= mixed >> np.uint64(29)
                missing |= without[:, column]
            ids = (mixed % np.uint64(self.size)).astype(np.int64)
            columns.append(np.where(missing, NONE, ids))
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class _OfCategorical(DenseColumn):
    """A dense column that is made of a categorical one."""

    source: CategoricalColumn

    @property
    def transformed(self) -> Sequence[FeatureColumn]:
        """The source."""
        return (self.source,)

    def transform(self, features: Features) -> Array:
        """Return the source's ids."""
        return self.source.transform(features)


@dataclass(frozen=True)
class IndicatorColumn(_OfCategorical):
    """See `indicator_column`."""

    @property
    def name(self) -> str:
        """The source's name with ``_indicator``."""
        return f"{self.source.name}_indicator"

    def dense(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return how often each value is in an example."""
        result: Tensor = one_hot(transformed_of(features, self.source), self.source.size).sum(axis=1)
        return result


@dataclass(frozen=True)
class EmbeddingColumn(_OfCategorical):
    """See `embedding_column`."""

    dimension: int
    combiner: str = "mean"
    initializer: Any = None
    partitioner: Any = None

    @property
    def name(self) -> str:
        """The source's name with ``_embedding``."""
        return f"{self.source.name}_embedding"

    def dense(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the combined rows of the table, (batch, dimension)."""
        table = get_variable(
            f"{self.name}/embedding_weights",
            (self.source.size, self.dimension),
            initializer="glorot_uniform" if self.initializer is None else self.initializer,
            partitioner=self.partitioner,
        )
        return combined(table, transformed_of(features, self.source), self.combiner)


def combined(table: Any, ids: Tensor, combiner: str) -> Tensor:
    """Return the sum, the mean, or the sum over the root of the count, of the rows of each example's ids."""
    present = (ids >= 0).astype(np.float32)
    rows = embedding_lookup(table, symbolic.maximum(ids, 0)) * symbolic.expand_dims(present, -1)
    total = rows.sum(axis=1)
    count = symbolic.maximum(present.sum(axis=1), 1.0)
    if combiner == "mean":
        total = total / symbolic.expand_dims(count, -1)
    elif combiner == "sqrtn":
        total = total / symbolic.expand_dims(symbolic.sqrt(count), -1)
    result: Tensor = total
    return result


# What users call


def numeric_column(
    key: str,
    shape: int | Sequence[int] = (1,),
    default_value: float | None = None,
    normalizer_fn: Callable[[Array], Array] | None = None,
) -> NumericColumn:
    """Return a column of numbers.

    - ``key``: the feature's name
    - ``shape``: the shape of one example's numbers; they are flattened
    - ``default_value``: the value in place of a NaN; None leaves it
    - ``normalizer_fn``: a function of the float32 array (batch, numbers) that returns another of that shape.
      An export calls it with a tensor; one that fails there is left out (see :meth:`Estimator.export`)

    >>> numeric_column("age", normalizer_fn=lambda x: x / 100).transform({"age": np.array([50])})
    array([[0.5]], dtype=float32)
    """
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not all(is_whole(n, 1) for n in sizes):
        raise InvalidArgumentError(f"numeric_column {key!r}: shape has whole numbers from 1, not {shape!r}")
    if default_value is not None and not isinstance(default_value, (int, float, np.number)):
        raise InvalidArgumentError(
            f"numeric_column {key!r}: default_value is {default_value!r:.80}; expected a number, or None"
        )
    if normalizer_fn is not None and not callable(normalizer_fn):
        raise InvalidArgumentError(
            f"numeric_column {key!r}: normalizer_fn is {normalizer_fn!r:.80}; expected a function of an array"
        )
    return NumericColumn(_key(key), sizes, default_value, normalizer_fn)


def bucketized_column(source_column: NumericColumn, boundaries: Sequence[float]) -> BucketizedColumn:
    """Return a column of the buckets in which numbers are: below the first boundary, then from each one on.

    - ``source_column``: a `numeric_column`
    - ``boundaries``: numbers in ascending order

    >>> bucketized_column(numeric_column("age"), [18, 65]).transform({"age": np.array([3, 18, 70])}).ravel()
    array([0, 1, 2])
    """
    if not isinstance(source_column, NumericColumn):
        raise InvalidArgumentError(f"bucketized_column takes a numeric_column, not {source_column!r}")
    given = members("bucketized_column: boundaries", boundaries, "numbers in ascending order")
    try:
        edges = tuple(float(one) for one in given)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"bucketized_column: boundaries are {boundaries!r:.80}; expected numbers in ascending order"
        ) from None
    if not edges or list(edges) != sorted(set(edges)):
        raise InvalidArgumentError(f"bucketized_column: boundaries ascend, and these do not: {boundaries!r}")
    return BucketizedColumn(source_column, edges)


def categorical_column_with_vocabulary_list(
    key: str, vocabulary_list: Sequence[Any], default_value: int = NONE, num_oov_buckets: int = 0
) -> VocabularyColumn:
    """Return a column of known values.

    - ``key``: the feature's name
    - ``vocabulary_list``: distinct texts, or distinct whole numbers
    - ``default_value``: the id of any other value; -1 for none
    - ``num_oov_buckets``: how many buckets other values are hashed to, instead

    An empty text and the whole number -1 pad: unless they are in the vocabulary they are no value.

    >>> column = categorical_column_with_vocabulary_list("colour", ["red", "blue"])
    >>> column.transform({"colour": np.array(["blue", "green", "red"])}).ravel()
    array([ 1, -1,  0])
    """
    listed = members(f"column {key!r}: vocabulary_list", vocabulary_list, "texts or whole numbers")
    values = tuple(one.decode() if isinstance(one, bytes) else one for one in listed)
    if not all(isinstance(one, str) for one in values) and not all(map(_is_integer, values)):
        raise InvalidArgumentError(
            f"column {key!r}: vocabulary_list is {values!r:.200}; expected texts, or whole numbers"
        )
    if not values or len(set(values)) != len(values):
        raise InvalidArgumentError(
            f"column {key!r}: vocabulary_list must list distinct values, got {values!r:.200}"
        )
    if not is_whole(num_oov_buckets, 0) or (num_oov_buckets and default_value != NONE):
        raise InvalidArgumentError(
            f"column {key!r}: num_oov_buckets is a whole number from 0, without a default_value"
        )
    if not is_whole(default_value, NONE, len(values) - 1):
        raise InvalidArgumentError(
            f"column {key!r}: default_value is from -1 to {len(values) - 1}, not {default_value!r}"
        )
    return VocabularyColumn(_key(key), values, default_value, num_oov_buckets)


def categorical_column_with_hash_bucket(key: str, hash_bucket_size: int) -> HashColumn:
    """Return a column of any values, as texts, of which each is in one of so many buckets.

    - ``key``: the feature's name
    - ``hash_bucket_size``: the number of buckets, from 2

    Values that are equal as texts have one bucket, on every host; an empty text has none, nor has the whole
    number -1: both pad. The hash is FNV-1a (Fowler, Noll, Vo) of the text's characters, which is not
    TensorFlow's.
    """
    return HashColumn(_key(key), _buckets(f"column {key!r}", hash_bucket_size))


def crossed_column(keys: Sequence[Any], hash_bucket_size: int) -> CrossedColumn:
    """Return a column of the combinations of several features, hashed.

    - ``keys``: names of features, or categorical columns (not of hashes: name their feature), from two on
    - ``hash_bucket_size``: the number of buckets, from 2
    """
    parts = tuple(members("crossed_column: keys", keys, "two or more features"))
    for one in parts:
        if not isinstance(one, (str, CategoricalColumn)) or isinstance(one, (HashColumn, CrossedColumn)):
            raise InvalidArgumentError(
                f"crossed_column takes names of features and bucketized or vocabulary columns, not {one!r}"
            )
    if len(parts) < 2:
        raise InvalidArgumentError(f"crossed_column takes two features or more, not {keys!r}")
    return CrossedColumn(parts, _buckets("crossed_column", hash_bucket_size))


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """Return the values of a categorical column as counts, (batch, size): a one for each value."""
    return IndicatorColumn(_categorical("indicator_column", categorical_column))


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    partitioner: Any = None,
) -> EmbeddingColumn:
    """Return the values of a categorical column as rows of a table that is trained.

    - ``categorical_column``: the column
    - ``dimension``: the numbers of a row, from 1
    - ``combiner``: "mean", "sum" or "sqrtn", for examples with several values
    - ``initializer``, ``partitioner``: those of ``nb.get_variable``

    Under parameter servers only the rows of a batch travel.
    """
    if not is_whole(dimension, 1):
        raise InvalidArgumentError(f"embedding_column: dimension is a whole number from 1, not {dimension!r}")
    if combiner not in COMBINERS:
        raise InvalidArgumentError(
            f"embedding_column: no combiner {combiner!r}; {choices(combiner, COMBINERS)}"
        )
    if isinstance(initializer, str):
        kind_of(initializer)  # raises for an unknown name
    source = _categorical("embedding_column", categorical_column)
    return EmbeddingColumn(source, dimension, combiner, initializer, partitioner)


def transform_features(columns: Iterable[FeatureColumn]) -> Callable[..., Any]:
    """Return a function for ``Dataset.map``, after ``batch``, that turns features into the columns' numbers.

    - ``columns``: the feature columns of a model

    It takes a dict of arrays, and what else is in an element, and replaces the dict.

    >>> column = categorical_column_with_vocabulary_list("colour", ["red", "blue"])
    >>> transform_features([indicator_column(column)])({"colour": np.array(["blue"])}, np.array([1]))
    ({'colour': array([[1]])}, array([1]))
    """
    needed = transformed_columns(columns)

    def transform(features: Any, *rest: Any) -> Any:
        found = {name: column.transform(features) for name, column in needed.items()}
        return (found, *rest) if rest else found

    return transform


def input_layer(features: Mapping[str, Tensor], columns: Iterable[FeatureColumn]) -> Tensor:
    """Return the dense columns side by side, (batch, numbers), in the order of their names.

    - ``features``: what `transform_features` has made, in a model function
    - ``columns``: dense columns: numeric, bucketized, indicator, embedding
    """
    parts = []
    for column in sorted(checked_columns(columns), key=lambda one: one.name):
        if not isinstance(column, DenseColumn):
            raise InvalidArgumentError(
                f"input_layer: {column.name!r} is categorical; put it into an indicator_column or an "
                "embedding_column"
            )
        parts.append(column.dense(features).astype(np.float32))
    result: Tensor = symbolic.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
    return result


def linear_model(features: Mapping[str, Tensor], columns: Iterable[FeatureColumn], units: int = 1) -> Tensor:
    """Return a weighted sum of all columns and a bias, (batch, units).

    - ``features``: what `transform_features` has made, in a model function
    - ``columns``: any columns; a categorical one has a weight for each value
    - ``units``: numbers for each example, from 1
    """
    total: Any = get_variable("bias_weights", (units,), initializer="zeros")
    for column in sorted(checked_columns(columns), key=lambda one: one.name):
        if isinstance(column, CategoricalColumn):
            weights = get_variable(f"{column.name}/weights", (column.size, units), initializer="zeros")
            total = total + combined(weights, transformed_of(features, column), "sum")
        else:
            assert isinstance(column, DenseColumn)
            values = column.dense(features).astype(np.float32)
            weights = get_variable(
                f"{column.name}/weights", (int(values.shape[1] or 0), units), initializer="zeros"
            )
            total = total + values @ weights
    result: Tensor = total
    return result


def checked_columns(columns: Iterable[FeatureColumn]) -> list[FeatureColumn]:
    """Return feature columns as a list; raises InvalidArgumentError for none, others, and equal names."""
    found = members("feature_columns", columns, "feature columns")
    if not found:
        raise InvalidArgumentError("a model with feature columns has one at least")
    for one in found:
        if not isinstance(one, FeatureColumn):
            raise InvalidArgumentError(
                f"{one!r} is not a feature column; nb.estimator.numeric_column makes one"
            )
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"two feature columns are called {name!r}")
    return found


def transformed_columns(columns: Iterable[FeatureColumn]) -> dict[str, Any]:
    """Return the columns whose numbers a model's columns need in the graph, by name.

    Of several kinds of columns of one feature, such as a vocabulary and a hash, all but the first add their
    kind to the name. Raises InvalidArgumentError for two of one kind that differ.
    """
    found: dict[str, FeatureColumn] = {}
    for column in checked_columns(columns):
        for one in column.transformed:
            other = found.setdefault(one.name, one)
            if other != one and (
                type(other) is type(one) or found.setdefault(_name_and_kind(one), one) != one
            ):
                raise InvalidArgumentError(
                    f"two columns that differ take the feature {one.name!r}: give one of them a copy of the "
                    "feature under another name"
                )
    return found


def _name_and_kind(column: FeatureColumn) -> str:
    return f"{column.name}/{type(column).__name__}"


def export_inputs(columns: Mapping[str, Any], features: Features) -> dict[str, ExportInput]:
    """Return the inputs of an export, by name, that `transformed_columns` become, in their order."""
    found: dict[str, ExportInput] = {}
    for column in columns.values():
        one = column.exported()
        name = one.name
        while name != column.name and (name in features or name in found):
            name += "_"
        found[name] = one
    return found


def column_data(column: FeatureColumn) -> dict[str, Any]:
    """Return a column without a function as data for JSON; `column_of` returns it to a column."""
    return {"column": type(column).__name__, **vars(column)}


def column_of(data: Any) -> Any:
    """Return a column that was written as JSON: what `column_data` has returned, with columns in it."""
    if isinstance(data, dict):
        kinds = (NumericColumn, BucketizedColumn, VocabularyColumn, HashColumn, CrossedColumn)
        kind: Any = {one.__name__: one for one in kinds}[data["column"]]
        return kind(**{name: column_of(value) for name, value in data.items() if name != "column"})
    return tuple(map(column_of, data)) if isinstance(data, list) else data


def feature_of(features: Features, key: str) -> Array:
    """Return a feature of a batch; raises InvalidArgumentError, with the known names, if it is missing."""
    if not isinstance(features, Mapping):
        raise InvalidArgumentError(
            f"feature columns take features by name, a dict of arrays, not {type(features).__name__}"
        )
    if key not in features:
        raise InvalidArgumentError(f"the features have no {key!r}; {choices(key, features)}")
    return np.asarray(features[key])


def _rows(values: Array) -> Array:
    """Return (batch, values), also of an empty batch, for which NumPy finds no -1."""
    if not values.ndim:
        raise InvalidArgumentError(f"a feature is an array of a batch's values, not {values.item()!r}")
    return values.reshape(len(values), int(np.prod(values.shape[1:])))


def transformed_of(features: Mapping[str, Tensor], column: FeatureColumn) -> Tensor:
    """Return a column's numbers among transformed features; raises InvalidArgumentError without them."""
    if (name := _name_and_kind(column)) in features:
        return features[name]
    if column.name not in features:
        raise InvalidArgumentError(
            f"the features have no numbers of the column {column.name!r}: map the dataset with "
            f"transform_features(columns) after batch ({choices(column.name, features)})"
        )
    return features[column.name]


def texts_of(values: Array) -> Array:
    """Return values as texts; bytes are UTF-8."""
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8")
    if values.dtype.kind == "O":
        plain = [one.decode() if isinstance(one, bytes) else str(one) for one in values.ravel()]
        return np.array(plain, dtype=np.str_).reshape(values.shape)
    return values.astype(np.str_)


_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def is_missing(values: Array) -> Array:
    """Return where there is no value: empty texts, and -1 among whole numbers, as in TensorFlow.

    >>> is_missing(np.array([3, -1])), is_missing(np.array(["a", ""]))
    (array([False,  True]), array([False,  True]))
    """
    if values.dtype.kind in "USO":
        return np.asarray(texts_of(values) == "")
    return np.asarray(values == -1) if values.dtype.kind in "iu" else np.zeros(values.shape, bool)


def hash_texts(texts: Array) -> Array:
    """Return a hash of each text as uint64: FNV-1a of its characters, whatever the width of the array.

    >>> hash_texts(np.array(["a", ""])) == hash_texts(np.array(["a", "", "longer"]))[:2]
    array([ True,  True])
    """
    flat = np.ascontiguousarray(texts).ravel()
    width = max(flat.dtype.itemsize // 4, 1)
    codes = (
        flat.view(np.uint32).reshape(len(flat), width)
        if flat.dtype.itemsize
        else np.zeros((len(flat), 1), np.uint32)
    )
    hashes = np.full(len(flat), _OFFSET)
    for column in range(codes.shape[1]):
        used = codes[:, column] != 0
        mixed = (hashes ^ codes[:, column].astype(np.uint64)) * _PRIME
        hashes = np.where(used, mixed, hashes)
    return hashes.reshape(texts.shape)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _key(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise InvalidArgumentError(f"a feature column has the name of a feature, not {key!r}")
    return key


def _buckets(what: str, size: Any) -> int:
    if not is_whole(size, 2):
        raise InvalidArgumentError(f"{what}: hash_bucket_size is a whole number from 2, not {size!r}")
    return int(size)


def _categorical(what: str, column: Any) -> CategoricalColumn:
    if not isinstance(column, CategoricalColumn):
        raise InvalidArgumentError(f"{what} takes a categorical column, not {column!r}")
    return column
