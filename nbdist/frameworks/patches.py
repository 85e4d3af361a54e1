"""Changes to other packages that last as long as a body, and are made when the body imports them: `Patches`.

    with Patches({"lightning.pytorch": add_a_callback}) as patches:
        ...     # add_a_callback(module, patches) is called as soon as the module is imported

Nothing is imported here. A module that an earlier body has imported is changed at once. All changes are
undone at the end, in reverse order.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

Change: TypeAlias = Callable[[ModuleType, "Patches"], object]
"""Changes a module that has been imported, by the methods of `Patches`."""


class Patches(MetaPathFinder):
    """Calls ``changes`` of modules when these are imported, and undoes them at the end of a ``with``.

    Some names that they change are private to a package, and another version may not have them. The body
    matters more than how it is seen: it runs, and ``report`` gets a sentence.
    """

    def __init__(self, changes: Mapping[str, Change], report: Callable[[str], object] = print) -> None:
        self._changes, self._report = dict(changes), report
        self._finding: set[str] = set()
        self._undo: list[Callable[[], object]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set ``owner.name`` to ``make(what it was)`` until the end.

        >>> class Trainer: limit = 3
        >>> with Patches({}) as patches:
        ...     patches.replace(Trainer, "limit", lambda before: before + 1)
        ...     Trainer.limit
        4
        >>> Trainer.limit
        3
        """
        own, before = name in vars(owner), getattr(owner, name)
        setattr(owner, name, make(before))
        self._undo.append((lambda: setattr(owner, name, before)) if own else (lambda: delattr(owner, name)))

    def wrap(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Have ``owner.name(...)`` return ``call(what it was, ...)`` until the end."""

        def make(original: Any) -> Any:
            def called(*args: Any, **options: Any) -> Any:
                return call(original, *args, **options)

            return called

        self.replace(owner, name, make)

    def follow(self, owner: Any, name: str, then: Callable[[Any], object]) -> None:
        """Call ``then`` with an object of a class after each call of its method ``name``, until the end."""

        def call(original: Any, one: Any, *args: Any, **options: Any) -> Any:
            result = original(one, *args, **options)
            then(one)
            return result

        self.wrap(owner, name, call)

    def append(self, values: list[Any], value: Any) -> None:
        """Append to a list until the end, unless the value is there."""
        if value not in values:
            values.append(value)
            self._undo.append(lambda: values.remove(value) if value in values else None)

    def undo(self, function: Callable[[], object]) -> None:
        """Have a function called at the end."""
        self._undo.append(function)

    def __enter__(self) -> Patches:
        sys.meta_path.insert(0, self)
        for name in self._changes:
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self.apply(module)
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)
        while self._undo:
            self._undo.pop()()

    def apply(self, module: ModuleType) -> None:
        """Change a module that has been imported."""
        if self not in sys.meta_path:
            return
        try:
            self._changes[module.__name__](module, self)
        except (AttributeError, ImportError) as error:
            self._report(
                f"this version of {module.__name__.partition('.')[0]} differs from those that nbdist knows: "
                f"the view does not show all that it does ({error})"
            )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have, with a loader that changes the module afterwards."""
        if fullname not in self._changes or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Changed(spec.loader, self)
        return spec


class _Changed(Loader):
    """Loads a module as its own loader does, and changes it."""

    def __init__(self, loader: Loader, patches: Patches) -> None:
        self._loader, self._patches = loader, patches

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # nothing of this one stays
        self._loader.exec_module(module)
        self._patches.apply(module)
