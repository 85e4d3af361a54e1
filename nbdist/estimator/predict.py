"""``python -m nbdist.estimator.predict FOLDER``: predictions of an exported model, line by line.

Reads lines of JSON, each the features of one example ({"x": [1, 2]}, or [1, 2] where the model has one
input; raw features where it has feature columns), and writes a line of JSON with the predictions of each.
``--signature`` prints what the model takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TextIO

import numpy as np

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.estimator.exporting import ExportedModel
from nbdist.graph.backend import Array

BATCH = 256  # lines


def main(arguments: list[str] | None = None, source: TextIO = sys.stdin, target: TextIO = sys.stdout) -> int:
    """Predict for each line of ``source``; return the exit status: 0, or 2 after a message."""
    parser = argparse.ArgumentParser(prog="python -m nbdist.estimator.predict", description=__doc__)
    parser.add_argument("folder", help="an exported model")
    parser.add_argument("--signature", action="store_true", help="print the signature, and end")
    given = parser.parse_args(arguments)
    try:
        model = ExportedModel(given.folder)
        if given.signature:
            print(json.dumps(model.signature, indent=2), file=target)
            return 0
        for line in predictions(model, source):
            print(line, file=target, flush=True)
    except NbdistError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def predictions(model: ExportedModel, lines: Iterable[str]) -> Iterator[str]:
    """Yield a line of predictions for each line of features; raise for a bad one after those before it."""
    rest, failed = enumerate(lines, 1), None
    while failed is None and (batch := list(islice(rest, BATCH))):
        examples: list[dict[str, Array]] = []
        try:
            for number, line in batch:
                examples.append(_example(model, line, number))
        except InvalidArgumentError as error:
            failed = error
        if examples:
            yield from _lines(model, examples, batch[0][0])
    if failed is not None:
        raise failed


def _lines(model: ExportedModel, examples: list[dict[str, Array]], first: int) -> Iterator[str]:
    try:
        features = {name: np.stack([one[name] for one in examples]) for name in model.signature["inputs"]}
    except ValueError as error:
        raise InvalidArgumentError(
            f"lines {first} to {first + len(examples) - 1} have features of several shapes: {error}"
        ) from error
    found = model(features)
    for i in range(len(examples)):
        yield json.dumps({name: value[i].tolist() for name, value in found.items()})


def _example(model: ExportedModel, line: str, number: int) -> dict[str, Array]:
    inputs, columns = model.signature["inputs"], model.signature.get("columns")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"line {number} is not JSON: {error}") from error
    if not isinstance(found, dict):
        found = {model.alone: found} if len(inputs) == 1 else {}
    if columns:
        try:
            arrays = model.inputs_of({name: [value] for name, value in found.items()})
        except (InvalidArgumentError, ValueError) as error:
            raise InvalidArgumentError(f"line {number}: {error}") from error
        return {name: array[0] for name, array in arrays.items()}
    missing = [name for name in inputs if name not in found]
    if missing:
        raise InvalidArgumentError(
            f"line {number} lacks {', '.join(missing)}; the model takes {', '.join(inputs)}"
        )
    arrays = {}
    for name, wanted in inputs.items():
        try:
            arrays[name] = np.array(found[name], wanted["dtype"])
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidArgumentError(
                f"line {number}: {name!r} has other numbers than the signature: {error}"
            ) from error
        sizes = wanted["shape"][1:]
        if len(sizes) != arrays[name].ndim or any(
            n not in (None, m) for n, m in zip(sizes, arrays[name].shape, strict=True)
        ):
            raise InvalidArgumentError(
                f"line {number}: {name!r} has the shape {list(arrays[name].shape)}, and the model takes "
                f"{sizes}"
            )
    return arrays


if __name__ == "__main__":
    sys.exit(main())
