"""Exported models: a folder with a graph, its values and its signature, which predicts without the program.

    path = estimator.export("exports", {"x": np.zeros((1, 4), np.float32)})
    predict = ExportedModel(path)
    predict({"x": rows})                           # {"class_ids": ..., "probabilities": ...}

    python -m nbdist.estimator.predict exports/2000 < rows.jsonl

A folder has ``model.safetensors`` (the values, and the constants and the ops of the graph as data, with a
checksum of each) and ``signature.json``. No code is in it, and none is run from it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.checkpoint.folder import open_folder
from nbdist.checkpoint.tensor_file import TensorFile, write_tensors
from nbdist.data.arguments import any_path
from nbdist.errors import (
    DataLossError,
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    StorageError,
    choices,
)
from nbdist.estimator.columns import ExportInput, FeatureColumn, column_data, column_of
from nbdist.estimator.spec import check_folder_name
from nbdist.graph.backend import Array
from nbdist.graph.compile.program import compile_program
from nbdist.graph.compile.specs import value_order
from nbdist.graph.scopes import Graph
from nbdist.graph.serialize.decode import decode
from nbdist.graph.serialize.encode import encode
from nbdist.graph.serialize.onnx import write_onnx
from nbdist.graph.tensor import Tensor, Variable
from nbdist.numbers import is_whole

if TYPE_CHECKING:
    from nbdist.estimator.estimator import Estimator


@dataclass(frozen=True)
class Served:
    """What an export takes.

    - ``arrays``: its inputs of one batch, by name
    - ``given_of``: returns what the model function takes, of the inputs' tensors
    - ``columns``: the feature columns of inputs, by name
    """

    arrays: Mapping[str, Any]
    given_of: Callable[[dict[str, Tensor]], Any]
    columns: Mapping[str, ExportInput] = field(default_factory=dict)


MODEL, SIGNATURE, GRAPH = "model.safetensors", "signature.json", "graph"
MOST_PROGRAMS = 16


def write_export(
    folder: Path,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    values: Mapping[Variable, Array],
    step: int,
    columns: Mapping[str, ExportInput],
) -> None:
    """Write a model to a new folder, which appears whole or not at all.

    - ``inputs``: placeholders by name, with an open first size
    - ``outputs``: tensors by name
    - ``values``: the values of the variables
    - ``step``: the global step, for the signature
    - ``columns``: the feature columns of inputs, by name

    Raises InvalidArgumentError if the folder exists, StorageError if it cannot be written.
    """
    if folder.exists():
        raise InvalidArgumentError(f"{str(folder)!r} exists already: choose another folder for the export")
    order = value_order([*inputs.values(), *outputs.values()])
    numbers = {t: n for n, t in enumerate(order)}
    meta, constants = encode(order)
    names = {t: f"values/{t.name}" for t in order if isinstance(t, Variable)}
    arrays = {name: np.asarray(values[t]) for t, name in names.items() if isinstance(t, Variable)}
    arrays.update({f"constants/{n}": array for n, array in enumerate(constants)})
    signature = {
        "step": step,
        "inputs": {
            name: _described(t, numbers[t]) | ({"takes": columns[name].takes} if name in columns else {})
            for name, t in inputs.items()
        },
        "outputs": {name: _described(t, numbers[t]) for name, t in outputs.items()},
        "columns": {name: column_data(one.source) for name, one in columns.items() if one.source is not None},
    }
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True, mode=0o700)
        write_tensors(draft / MODEL, arrays, {GRAPH: json.dumps(meta, default=_of_bytes)})
        (draft / SIGNATURE).write_text(json.dumps(signature, indent=2, default=_plain) + "\n")
        draft.rename(folder)
    except OSError as error:
        raise StorageError(
            f"the export {folder} cannot be written: {error}. No part of it is kept"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _plain(value: Any) -> Any:
    """Return a feature column, or a number of NumPy, as JSON."""
    return column_data(value) if isinstance(value, FeatureColumn) else value.item()


def _of_bytes(value: bytes) -> dict[str, str]:
    """Return bytes, such as those of a small constant, as JSON."""
    return {"base64": base64.b64encode(value).decode()}


def _to_bytes(found: dict[str, Any]) -> Any:
    """Return the bytes of which an object of JSON is made, or the object."""
    return base64.b64decode(found["base64"]) if {*found} == {"base64"} else found


def _described(tensor: Tensor, number: int) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "tensor": number}


class ExportedModel:
    """An exported model; call it with features, as arrays by name, to get predictions by name.

    - ``folder``: what `Estimator.export` has returned

    Raises NotFoundError for a folder without one of its files, DataLossError if one is damaged,
    NotAllowedError for one that this process may not read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(any_path("ExportedModel: folder", folder))
        for name in (SIGNATURE, MODEL):
            closed = os.path.isdir(path) and not os.access(path, os.X_OK)  # what reads it says so
            if not closed and not os.path.exists(path / name):
                raise NotFoundError(
                    f"{str(path)!r} has no {name}, which an exported model has: expected a folder that "
                    "Estimator.export has returned (copy it whole)"
                )
        try:
            self.signature: dict[str, Any] = json.loads(open_folder(path).read_text(SIGNATURE))
            """The names, dtypes and shapes of ``inputs`` and ``outputs``, and the global ``step``."""
            inputs, outputs = self.signature["inputs"], self.signature["outputs"]
            self._columns: dict[str, FeatureColumn] = {
                name: column_of(data) for name, data in self.signature.get("columns", {}).items()
            }
            if not all(isinstance(column, FeatureColumn) for column in self._columns.values()):
                raise TypeError("columns are objects of feature columns")
            indices = [int(one["tensor"]) for one in [*inputs.values(), *outputs.values()]]
        except NotAllowedError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DataLossError(f"{path / SIGNATURE} is damaged: {type(error).__name__}: {error}") from error
        with TensorFile(path / MODEL, "an exported model") as file:
            arrays = {name: file.read(name) for name in file.shapes}
            if GRAPH not in file.texts:
                raise DataLossError(
                    f"{path / MODEL} has values and no graph: it was not written by Estimator.export"
                )
            texts = file.texts
        try:
            meta = json.loads(texts[GRAPH], object_hook=_to_bytes)
            count = sum(name.startswith("constants/") for name in arrays)
            self._graph: Graph = decode(meta, [arrays[f"constants/{n}"] for n in range(count)])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DataLossError(f"{path / MODEL} is damaged: {type(error).__name__}: {error}") from error
        if not all(0 <= n < len(self._graph.tensors) for n in indices):
            raise DataLossError(f"{path / SIGNATURE} names tensors that the graph does not have")
        self._inputs = {name: self._graph.tensors[one["tensor"]] for name, one in inputs.items()}
        self._outputs = {name: self._graph.tensors[one["tensor"]] for name, one in outputs.items()}
        self._values = {v: _shaped(arrays[f"values/{v.name}"], v) for v in self._graph.variables()}
        self._programs: dict[Any, Any] = {}

    def __call__(self, features: Any) -> dict[str, Array]:
        """Return the predictions for a batch.

        - ``features``: a dict of arrays by name, or one array if the model has one input. A model of feature
          columns takes raw features: see :meth:`Estimator.export`

        Raises InvalidArgumentError for missing names, other dtypes and shapes.
        """
        arrays = self.inputs_of(features)
        shapes = tuple(array.shape for array in arrays.values())
        if shapes not in self._programs:
            if len(self._programs) >= MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[shapes] = compile_program(
                list(self._outputs.values()), feeds=list(self._inputs.values()), shapes=list(shapes),
                values=self._values,
            )  # fmt: skip
        found = self._programs[shapes](*arrays.values())
        return {name: np.array(value) for name, value in zip(self._outputs, found, strict=True)}

    @property
    def alone(self) -> str:
        """What one array is called that is given without a name: the first input, or its raw feature."""
        name = next(iter(self._inputs))
        column = self._columns.get(name)
        return str(getattr(getattr(column, "source", column), "key", name))

    def inputs_of(self, features: Any) -> dict[str, Array]:
        """Return the arrays that the graph takes for a batch, by input, such as those of an ONNX file.

        - ``features``: as for a call

        Raises InvalidArgumentError as a call.
        """
        raw = features if isinstance(features, Mapping) else {self.alone: features}
        given = dict(raw)
        for name, column in self._columns.items():
            if name not in raw or name == column.name:
                given[name] = column.transform(raw)  # of raw: another column may take the same feature
        arrays = {}
        for name, wanted in self._inputs.items():
            if name not in given:
                raise InvalidArgumentError(
                    f"the model takes {self._called(name)}, and the features have "
                    f"{', '.join(map(repr, given))}"
                )
            try:
                array = np.asarray(given[name])
            except ValueError as error:
                raise InvalidArgumentError(f"input {name!r} is not an array: {error}") from None
            if not np.can_cast(array.dtype, wanted.dtype, "same_kind"):
                raise InvalidArgumentError(
                    f"input {self._called(name)} is {wanted.dtype}, and {array.dtype} was given"
                )
            fits = array.ndim == wanted.ndim and all(
                n in (None, m) for n, m in zip(wanted.shape, array.shape, strict=True)
            )
            if not fits:
                raise InvalidArgumentError(
                    f"input {name!r} has the shape {wanted.shape}, where None is any size, and {array.shape} "
                    "was given"
                )
            arrays[name] = array.astype(wanted.dtype, copy=False)
        return arrays

    def _called(self, name: str) -> str:
        takes = self.signature["inputs"][name].get("takes")
        return f"{name!r} ({takes})" if takes else repr(name)

    def to_onnx(self, path: str | os.PathLike[str]) -> Path:
        """Write the model as an ONNX file, with the names of its inputs and outputs; return the path.

        - ``path``: a local file

        Raises MissingExtra without ``nbdist[onnx]``; InvalidArgumentError, with the op and the line that made
        it, for an op that ONNX does not have; NotFoundError for a folder that does not exist.
        """
        return write_onnx(path, self._inputs, self._outputs, self._values)


def _shaped(array: Array, variable: Variable) -> Array:
    return array.reshape(tuple(n or 0 for n in variable.shape))


class Exporter(ABC):
    """Exports a model after an evaluation of ``train_and_evaluate``.

    - ``name``: the folder below ``model_dir/export``
    - ``features``: features of one batch, arrays whose names, dtypes and shapes the model takes
    - ``exports_to_keep``: how many exports stay, from 1; None for all
    """

    def __init__(self, name: str, features: Any, exports_to_keep: int | None = 5) -> None:
        check_folder_name("an exporter's name", name)
        if exports_to_keep is not None and not is_whole(exports_to_keep, 1):
            raise InvalidArgumentError(
                f"exports_to_keep is a whole number from 1, or None, not {exports_to_keep!r}"
            )
        self.name, self._features, self._keep = name, features, exports_to_keep

    @abstractmethod
    def wants(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether the evaluated model is exported."""

    def export(self, estimator: Estimator, checkpoint: str, metrics: Mapping[str, Any]) -> str | None:
        """Export the model of a checkpoint if it is wanted; return the folder. Old exports are deleted."""
        if not self.wants(metrics):
            return None
        base = Path(estimator.model_dir) / "export" / self.name
        if (base / str(metrics["global_step"])).exists():
            return str(base / str(metrics["global_step"]))
        found = estimator.export(base, self._features, checkpoint)
        if self._keep is not None:
            steps = sorted((int(one.name), one) for one in base.iterdir() if one.name.isdigit())
            for _, old in steps[: -self._keep]:
                shutil.rmtree(old)
        return found


class LatestExporter(Exporter):
    """Exports the model after each evaluation; parameters are those of :class:`Exporter`."""

    def wants(self, metrics: Mapping[str, Any]) -> bool:
        """Return True."""
        return True


class BestExporter(Exporter):
    """Exports the model when a metric is better than in all evaluations before.

    - ``metric``: a name of the evaluation's results
    - ``larger_is_better``: whether a larger value is better
    - the others: as for :class:`Exporter`
    """

    def __init__(
        self,
        name: str,
        features: Any,
        exports_to_keep: int | None = 5,
        metric: str = "loss",
        larger_is_better: bool = False,
    ) -> None:
        super().__init__(name, features, exports_to_keep)
        if not isinstance(metric, str):
            raise InvalidArgumentError(
                f"BestExporter: metric is {metric!r}; expected the name of a metric, such as 'loss'"
            )
        self._metric, self._sign = metric, -1.0 if larger_is_better else 1.0
        self._best = float("inf")

    def wants(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether the metric is the best so far; InvalidArgumentError if there is none of the name."""
        if self._metric not in metrics:
            raise InvalidArgumentError(f"no metric {self._metric!r}; {choices(self._metric, metrics)}")
        value = self._sign * float(metrics[self._metric])
        if not value < self._best:
            return False
        self._best = value
        return True
