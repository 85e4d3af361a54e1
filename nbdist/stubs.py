"""Names that a package loads at their first use: its stub, ``__init__.pyi``, says from where.

So they stand once, and editors and type checkers read them there, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import get_data
from typing import Any


def stub_names(package: str) -> dict[str, str]:
    """Return where each public name of a package that is being imported is: a module, or one's name."""
    text = (get_data(package, "__init__.pyi") or b"").decode()
    found = re.findall(r"^from (\S+) import \(?\s*(\w+) as \2\b", text, re.M)
    return {name: f"{module}.{name}" if module == "nbdist" else f"{module}:{name}" for module, name in found}


def loader(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which loads a name once."""

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(
                f"module {package!r} has no name {name!r}; it has {', '.join(sorted(names))}"
            )
        module, _, attribute = names[name].partition(":")
        value: Any = import_module(module)
        value = getattr(value, attribute) if attribute else value
        setattr(sys.modules[package], name, value)
        return value

    return load


def lazy(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package whose names are all in its stub.

    Its modules are found as attributes, too, as if it had imported them.
    """
    names = stub_names(package)
    load = loader(package, names)

    def find(name: str) -> Any:
        if name not in names and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        return load(name)

    return sorted(names), find, lambda: sorted(names)
