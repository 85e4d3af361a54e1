"""Values in tuples, lists and dicts, nested as one likes: what a function is given and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what is in a tree, in order.

    >>> list(leaves(({"a": 1, "b": [2, 3]}, None)))
    [1, 2, 3, None]
    """
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if not isinstance(tree, (tuple, list)):
        yield tree
        return
    for part in tree:
        yield from leaves(part)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same form, with the function's value for each leaf.

    >>> mapped(lambda n: n + 1, ({"a": 1}, [2]))
    ({'a': 2}, [3])
    """
    if isinstance(tree, dict):
        return {name: mapped(function, part) for name, part in tree.items()}
    if not isinstance(tree, (tuple, list)):
        return function(tree)
    parts = [mapped(function, part) for part in tree]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*parts)
    return type(tree)(parts)


def rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    """Return a tree of the same form with these leaves."""
    return mapped(lambda _: next(values), tree)
