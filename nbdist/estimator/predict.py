"""``python -m nbdist.estimator.predict FOLDER``: predictions of an exported model, line by line.

Reads lines of JSON, each the features of one example ({"x": [1, 2]}, or [1, 2] where the model has one
input), and writes a line of JSON with the predictions of each. ``--signature`` prints what the model takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TextIO

import numpy as np

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.estimator.exporting import ExportedModel

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
    """Yield a line of predictions for each line of features."""
    rest, number = iter(lines), 0
    while batch := list(islice(rest, BATCH)):
        examples = [_example(model, line, number + i + 1) for i, line in enumerate(batch)]
        number += len(batch)
        try:
            features = {
                name: np.array([one[name] for one in examples], wanted["dtype"])
                for name, wanted in model.signature["inputs"].items()
            }
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidArgumentError(
                f"lines {number - len(batch) + 1} to {number} have other numbers than the signature: {error}"
            ) from error
        found = model(features)
        for i in range(len(batch)):
            yield json.dumps({name: value[i].tolist() for name, value in found.items()})


def _example(model: ExportedModel, line: str, number: int) -> dict[str, Any]:
    names = list(model.signature["inputs"])
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InvalidArgumentError(f"line {number} is not JSON: {error}") from error
    if not isinstance(found, dict):
        found = {names[0]: found} if len(names) == 1 else {}
    missing = [name for name in names if name not in found]
    if missing:
        raise InvalidArgumentError(
            f"line {number} lacks {', '.join(missing)}; the model takes {', '.join(names)}"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
