"""Checks of every op's examples: one test for each op; its error names the example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from op_inputs import EXAMPLES, Example, examples_of

from nbdist.graph.ops import OPS

Check = Callable[[Any, Example], None]


def of_every_op(check: Check | None = None, *, first: int | None = None, gradients: bool = False) -> Any:
    """Make tests of a check of all examples, or of the ``first`` so many; ``gradients``: of ops with one.

    An item for each of the examples took pytest longer than most of the checks.
    """
    if check is None:
        return lambda check: of_every_op(check, first=first, gradients=gradients)
    names = [n for n, op in OPS.items() if n in EXAMPLES and not (gradients and op.vjp is None)]

    def test(name: str) -> None:
        for number, example in enumerate(examples_of(name)[:first]):
            try:
                check(OPS[name], example)
            except BaseException as error:
                error.add_note(f"example {number} of {name}: {example}")
                raise

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return pytest.mark.parametrize("name", names)(test)
