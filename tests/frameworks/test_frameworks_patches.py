"""Changes to packages while a body runs."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from types import ModuleType

import pytest

from nbdist.frameworks.patches import Patches


def test_a_version_without_a_name_that_is_changed_is_reported_and_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = ModuleType("package")
    package.__dict__["known"] = 1
    monkeypatch.setitem(sys.modules, "package", package)

    def change(module: ModuleType, patches: Patches) -> None:
        patches.replace(module, "known", lambda before: 2)
        patches.replace(module, "unknown", lambda before: 3)

    said: list[str] = []
    with Patches({"package": change}, said.append):
        assert package.known == 2
    assert package.known == 1
    assert said == [
        "this version of package differs from those that nbdist knows: the view does not show all that it "
        "does (module 'package' has no attribute 'unknown')"
    ]


def test_a_finder_that_another_thread_adds_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Patches({})

    class Shared(list[MetaPathFinder]):
        """A list to which another thread adds a finder just before it is changed."""

        def __setitem__(self, place: object, values: object) -> None:
            self.append(others)
            super().__setitem__(place, values)  # type: ignore[index,assignment]

        def remove(self, value: MetaPathFinder) -> None:
            self.append(others)
            super().remove(value)

    found = Shared(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", found)
    with Patches({}) as patches:
        pass
    assert others in found
    assert patches not in found
