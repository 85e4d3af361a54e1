"""Names that a package loads at their first use: its stub, ``__init__.pyi``, says from where.

So they stand once, and editors and type checkers read them there, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def stub_names(file: str) -> dict[str, str]:
    """Return where each public name of the package with this ``__init__.py`` is: a module, or one's name."""
    found = re.findall(
        r"^from (\S+) import \(?\s*(\w+) as \2\b", Path(file).with_suffix(".pyi").read_text(), re.M
    )
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


def lazy(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package whose names are all in its stub."""
    names = stub_names(file)
    return sorted(names), loader(package, names), lambda: sorted(names)
